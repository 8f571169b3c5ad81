package place

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
)

var errNoneWhole = errors.New("no generation that is whole: see `replicad ckpt ls`")

// Jobs lists the jobs that are meant.
func (p *Place) Jobs(ctx context.Context) ([]string, error) {
	if p.Job != "" {
		return []string{p.Job}, nil
	}
	return p.Cat.Jobs(ctx)
}

// List is what there is.
func (p *Place) List(ctx context.Context) (list []catalog.Listed, err error) {
	jobs, err := p.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	for _, job := range jobs {
		rows, err := p.Cat.List(ctx, job)
		if err != nil {
			return nil, err
		}
		for _, l := range rows {
			if p.Run == "" || l.Run.Run == p.Run {
				list = append(list, l)
			}
		}
	}
	return list, nil
}

// Newest finds the newest generation that is whole, of one job, and what is newer and damaged, the newest first.
func (p *Place) Newest(ctx context.Context) (f catalog.Found, passed []catalog.Skipped, err error) {
	jobs, err := p.Jobs(ctx)
	if err != nil {
		return f, nil, err
	}
	if len(jobs) > 1 {
		return f, nil, usage.Wrong(fmt.Errorf("%s has the jobs %s: say which, as %s", p.Cat.URL(), strings.Join(jobs, ", "),
			p.Cat.URL()+"/"+jobs[0]))
	}
	for _, job := range jobs {
		found, skipped, err := p.Cat.Find(ctx, job, replica.JobID{})
		if err != nil {
			return f, nil, err
		}
		found = slices.DeleteFunc(found, func(f catalog.Found) bool { return p.Run != "" && f.Run.Run != p.Run || p.bad[f.Where()] })
		for _, s := range skipped {
			if s.State == catalog.Damaged && (p.Run == "" || s.Run.Run == p.Run) &&
				(len(found) == 0 || s.Run.Run == found[0].Run.Run && s.Generation.Compare(found[0].Generation) > 0) {
				passed = append(passed, s)
			}
		}
		if len(found) > 0 {
			return found[0], passed, nil
		}
	}
	return f, passed, errNoneWhole
}

// Named finds the generation behind @.
func (p *Place) Named(ctx context.Context) (f catalog.Found, err error) {
	l, err := p.Listed(ctx)
	if err != nil {
		return f, err
	}
	return p.Cat.Get(ctx, l.Run, l.Generation)
}

// Listed is the line of the generation behind @: of the newest run, and in it of the newest epoch.
func (p *Place) Listed(ctx context.Context) (l catalog.Listed, err error) {
	if p.At == nil {
		return l, usage.Wrong(errors.New("say which generation: WHERE@STEP"))
	}
	list, err := p.List(ctx)
	if err != nil {
		return l, err
	}
	job := ""
	for _, l := range list {
		if job == "" {
			job = l.Run.Job
		}
		if l.Run.Job != job {
			return l, usage.Wrong(fmt.Errorf("there are several jobs: say which, as WHERE/%s", job))
		}
	}
	if p.At.byHint {
		return p.hinted(ctx, job, list)
	}
	if l, ok := p.At.of(list); ok {
		return l, nil
	}
	return l, fmt.Errorf("there is no generation %v: see `replicad ckpt ls`", p.At)
}

// hinted finds the generation that a job's best.json names, among those that are there.
func (p *Place) hinted(ctx context.Context, job string, list []catalog.Listed) (l catalog.Listed, err error) {
	const remedy = "name the metric (@best:loss), or set durable_keep's best for the job's daemons"
	if job == "" {
		return l, fmt.Errorf("there is no best.json: %s", remedy)
	}
	h, err := p.Cat.Best(ctx, job)
	if err != nil {
		return l, fmt.Errorf("%s of job %s: %w: %s", format.BestKey, job, err, remedy)
	}
	i := slices.IndexFunc(list, func(l catalog.Listed) bool {
		return l.Run.Run == h.Run && l.Generation == h.Generation && l.State != catalog.Unfinished && l.State != catalog.Deleting
	})
	if i < 0 {
		return l, fmt.Errorf("%s of job %s names step %d of run %s, which is not there any more: %s", format.BestKey, job,
			h.Generation.Step, h.Run, remedy)
	}
	return list[i], nil
}

// Known refuses the name of a job that is not there. One that has written nothing yet is.
func (p *Place) Known(ctx context.Context, list []catalog.Listed) error {
	if len(list) > 0 || p.Job == "" {
		return nil
	}
	all, err := p.Cat.Jobs(ctx)
	if err != nil || slices.Contains(all, p.Job) {
		return err
	}
	return fmt.Errorf("%s has no job %q: it has %s", p.Cat.URL(), p.Job, cmp.Or(strings.Join(all, ", "), "none"))
}

// Every finds all generations that an argument means.
func (p *Place) Every(ctx context.Context) (found []catalog.Found, skipped []catalog.Skipped, err error) {
	jobs, err := p.Jobs(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, job := range jobs {
		f, s, err := p.Cat.Find(ctx, job, replica.JobID{})
		if err != nil {
			return nil, nil, err
		}
		for _, x := range f {
			if p.Run == "" || x.Run.Run == p.Run {
				found = append(found, x)
			}
		}
		for _, x := range s {
			if p.Run == "" || x.Run.Run == p.Run {
				skipped = append(skipped, x)
			}
		}
	}
	return found, skipped, nil
}
