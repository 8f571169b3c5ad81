package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/replicad/replicad/internal/durable/retain"
	"github.com/replicad/replicad/replica"
)

// Found is a durable generation whose marker is valid and whose files are all there.
type Found struct {
	Marker
	Path    string            // of the generation's directory
	Cluster replica.ClusterID // whose parts these are: nodes of another can't stage them
	Read    *ReadMark         // what the last read of it found; nil: nothing is known
	sum     replica.Digest    // of the marker's file
}

// Skipped is a directory that Find passed over.
type Skipped struct {
	Path   string
	Reason string
	Why    SkipKind
	// Whole is the generation where all its files are there and its mark says that one is damaged: another read may find that it was mended.
	// Nil: there is nothing to read.
	Whole *Found
}

// Plain says in a few words what is wrong with it.
func (s Skipped) Plain() string {
	if s.Whole != nil && s.Whole.Read != nil && s.Whole.Read.Damage != nil {
		return s.Whole.Read.Damage.String()
	}
	return s.Reason
}

// GenerationAt is the generation whose directory a path names, as those of Found and Skipped do.
func GenerationAt(where string) (replica.Generation, bool) { return parseGeneration(path.Base(where)) }

// SkipKind tells apart why a directory was passed over.
type SkipKind uint8

// The kinds of what is passed over.
const (
	Stray      SkipKind = iota // nothing of this package's
	Unfinished                 // a generation without its commit marker
	Damaged                    // a generation that was committed and isn't whole any more, or failed a read, or is not of this version
	Unreadable                 // the disk refused to read it: what it holds is not known
)

// SkipKindOf tells why a generation is passed over whose reading failed with err.
func SkipKindOf(err error) SkipKind {
	var errno syscall.Errno
	switch {
	case errors.Is(err, errUnfinished):
		return Unfinished
	case errors.As(err, &errno) && errno != syscall.ENOENT, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, ErrSilent):
		return Unreadable
	}
	return Damaged
}

// Find lists the durable generations of a job, newest position first, and what it skipped and why. With a zero job it
// lists every job that had the name, the one committed last first.
func (s *Store) Find(jobName string, job replica.JobID) (found []Found, skipped []Skipped, err error) {
	if err := replica.CheckJobName(jobName); err != nil {
		return nil, nil, err
	}
	t, err := s.at()
	if err != nil {
		return nil, nil, fmt.Errorf("find durable generations of job %s: %w", jobName, err)
	}
	return t.find(jobName, job)
}

func (t *tree) find(jobName string, job replica.JobID) (found []Found, skipped []Skipped, err error) {
	jobs := []replica.JobID{job}
	if job == (replica.JobID{}) {
		if jobs, skipped, err = t.jobs(jobName); err != nil {
			return nil, nil, fmt.Errorf("find durable generations of job %s in %s: %w", jobName, t.dir, err)
		}
	}
	var lists [][]Found
	for _, job := range jobs {
		list, skip, err := t.findJob(jobName, job, t.look)
		if err != nil {
			return nil, nil, fmt.Errorf("find durable generations of job %s in %s: %w", jobName, t.dir, err)
		}
		skipped = append(skipped, skip...)
		if len(list) > 0 {
			lists = append(lists, list)
		}
	}
	slices.SortStableFunc(lists, func(a, b []Found) int { return cmp.Compare(newest(b), newest(a)) })
	return slices.Concat(lists...), skipped, nil
}

// newest is when the last of a job's markers was written.
func newest(list []Found) (written uint64) {
	for _, f := range list {
		written = max(written, f.Written)
	}
	return written
}

// jobs lists the jobs that had a name.
func (t *tree) jobs(jobName string) (jobs []replica.JobID, skipped []Skipped, err error) {
	entries, err := t.readDir(jobName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		id, err := replica.ParseUUID(e.Name())
		if job := replica.JobID(id); err == nil && job.String() == e.Name() && e.IsDir() {
			jobs = append(jobs, job)
			continue
		}
		skipped = append(skipped, Skipped{path.Join(jobName, e.Name()), "not the directory of a job", Stray, nil})
	}
	return jobs, skipped, nil
}

// lookAt is how a generation is looked at: whole, or by its marker alone.
type lookAt func(jobName string, job replica.JobID, dir, gen string) (Found, error)

// findJob lists one job's generations, newest position first.
func (t *tree) findJob(jobName string, job replica.JobID, look lookAt) (found []Found, skipped []Skipped, err error) {
	dir, err := jobDir(jobName, job)
	if err != nil {
		return nil, nil, err
	}
	entries, err := t.readDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if e.Name() == frozenDir || strings.HasPrefix(e.Name(), tempPrefix) {
			continue
		}
		where := path.Join(dir, e.Name())
		if _, ok := parseGeneration(e.Name()); !ok || !e.IsDir() {
			skipped = append(skipped, Skipped{where, "not the directory of a generation", Stray, nil})
			continue
		}
		f, err := look(jobName, job, dir, e.Name())
		if errors.Is(err, ErrSilent) {
			return nil, nil, err // what lies there is not known: an older generation must not pass for the newest
		}
		switch {
		case err != nil:
			skipped = append(skipped, Skipped{Path: where, Reason: err.Error(), Why: SkipKindOf(err)})
		case f.State() == retain.Damaged:
			skipped = append(skipped, Skipped{where, errReadBack{*f.Read}.Error(), Damaged, &f})
		default:
			found = append(found, f)
		}
	}
	slices.SortFunc(found, Newer)
	return found, skipped, nil
}

// Newer orders generations of one job, the newest first.
func Newer(a, b Found) int {
	return cmp.Or(cmp.Compare(b.Position.Epoch, a.Position.Epoch), cmp.Compare(b.Position.Step, a.Position.Step), b.Generation.Compare(a.Generation))
}

// look looks at one generation: its marker, what its last read found, and whether every file is there.
func (t *tree) look(jobName string, job replica.JobID, dir, gen string) (f Found, err error) {
	if f, err = t.marked(jobName, job, dir, gen); err != nil {
		return f, err
	}
	f.Cluster, err = t.complete(dir, &f.Marker)
	return f, err
}

// marked reads the marker of a generation, and what its last read found.
func (t *tree) marked(jobName string, job replica.JobID, dir, gen string) (f Found, err error) {
	m, sum, err := t.readMarker(jobName, job, gen)
	if err != nil {
		return f, err
	}
	f = Found{Marker: *m, Path: path.Join(dir, gen), sum: sum}
	f.Read, err = t.readMark(f.Path, sum)
	return f, err
}

// parseGeneration reads a directory's name, in exactly the form that is written.
func parseGeneration(name string) (g replica.Generation, ok bool) {
	if n, err := fmt.Sscanf(name, "%d-%d", &g.Epoch, &g.Step); n != 2 || err != nil {
		return g, false
	}
	return g, generationDir(g) == name && g.Epoch <= replica.MaxEpoch && g.Step <= replica.MaxStep
}
