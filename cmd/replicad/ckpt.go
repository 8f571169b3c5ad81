package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

const ckptLong = `List, verify, compare, keep, copy and delete durable checkpoints, without a daemon.

WHERE is a root, with or without a job and a run below it: a directory, file:///ckpt, s3://bucket/ckpt,
gs://bucket/ckpt, az://container/ckpt, /ckpt/lm, s3://bucket/ckpt/lm/20261125T1716Z-4385b34d. @STEP behind it names a generation: @1200, with an
epoch @1200.e2, the best by a metric @best:loss, @best:accuracy:max, or by the daemons' own @best. Without it,
and with @last, the command takes the newest generation that is whole, and the next one where retention deletes that meanwhile.`

// newCkpt has the verbs on generations in stores. One more is a line here.
func newCkpt(std stdio) *cobra.Command {
	c := ckpt{std, new(keyring)}
	g := group("ckpt", "List, verify, compare, keep, copy and delete durable checkpoints",
		c.ls(), c.show(), c.verify(), c.diff(), c.pin(), c.unpin(), c.prune(), c.cp(), c.export(), c.imports(), c.log(), c.wait(), c.pipe(), ckptSave(std))
	g.Long = ckptLong
	g.PersistentFlags().StringVar(&c.keyring.file, "identity", "", "a file with keys of age, for generations that are encrypted (default: "+identityEnv+")")
	return g
}

type ckpt struct {
	std stdio
	*keyring
}

// where is what an argument names.
type where struct {
	cat   *catalog.Catalog
	job   string          // empty: every one
	run   string          // empty: every one
	at    *pick           // nil: the newest that is whole
	mark  error           // why a root's mark cannot be read; nil: none was met that can't
	bad   map[string]bool // what a read has found to be damaged, by Where: it is passed over
	close func()
}

// pick names a generation of a place.
type pick struct {
	replica.Generation
	epoch   bool   // the epoch counts too
	best    string // instead: the metric that it is the best by
	largest bool   // of best: the largest value is the best
	byHint  bool   // instead: the one that the job's best.json names
}

func (p pick) String() string {
	switch {
	case p.byHint:
		return "that best.json names"
	case p.best != "":
		return "with the metric " + p.best
	case p.epoch:
		return fmt.Sprintf("of step %d, epoch %d", p.Step, p.Epoch)
	}
	return fmt.Sprintf("of step %d", p.Step)
}

// stays tells whether it names the same generation tomorrow.
func (p pick) stays() bool { return p.best == "" && !p.byHint }

// of finds the generation in a list whose newest come first.
func (p pick) of(list []catalog.Listed) (l catalog.Listed, ok bool) {
	for _, c := range list {
		m, measured := c.Row.Metrics[p.best]
		switch {
		case c.State == catalog.Unfinished || c.State == catalog.Deleting:
		case p.best == "":
			if c.Generation.Step == p.Step && (!p.epoch || c.Generation.Epoch == p.Epoch) {
				return c, true
			}
		case measured && c.State != catalog.Damaged && !math.IsNaN(float64(m)):
			if old := l.Row.Metrics[p.best]; !ok || p.largest && m > old || !p.largest && m < old {
				l, ok = c, true
			}
		}
	}
	return l, ok
}

// parseWhere takes an argument apart: the root with job and run, and the generation.
func parseWhere(arg string) (root string, at *pick, err error) {
	root, tail, named := strings.Cut(arg, "@")
	if !named || strings.Contains(tail, "/") {
		return arg, nil, nil
	}
	switch tail {
	case "last":
		return root, nil, nil
	case "best":
		return root, &pick{byHint: true}, nil
	}
	if metric, ok := strings.CutPrefix(tail, "best:"); ok {
		metric, largest := strings.CutSuffix(metric, ":max")
		if metric != "" {
			return root, &pick{best: metric, largest: largest}, nil
		}
	}
	step, e, epoch := strings.Cut(tail, ".e")
	p := pick{epoch: epoch}
	s, err := strconv.ParseUint(step, 10, 38)
	if err == nil && epoch {
		var n uint64
		n, err = strconv.ParseUint(e, 10, 24)
		p.Epoch = replica.Epoch(n)
	}
	if err != nil {
		return "", nil, coded(exitUsage, fmt.Errorf("%s: @%s names no generation: want @STEP, as @1200, @1200.e2, @last, @best, @best:METRIC or @best:METRIC:max", arg, tail))
	}
	p.Step = replica.Step(s)
	return root, &p, nil
}

// parent cuts the last name off a URL or path; ok is false where there is none to cut.
func parent(url string) (above, name string, ok bool) {
	url = strings.TrimRight(url, "/")
	i := strings.LastIndex(url, "/")
	if i <= 0 || strings.HasSuffix(url[:i+1], "//") {
		return url, "", false
	}
	return url[:i], url[i+1:], true
}

// find opens what an argument names. The root is the longest beginning of it that has the format's mark; where there is none, one that has
// runs: somebody has copied those alone.
func (c ckpt) find(ctx context.Context, arg string, who string) (w *where, err error) {
	root, at, err := parseWhere(arg)
	if err != nil {
		return nil, err
	}
	w = &where{at: at, close: func() {}}
	for _, unmarked := range []bool{false, true} {
		var names []string
		for url := root; ; {
			if len(names) == 0 || replica.CheckJobName(names[0]) == nil {
				ok, err := c.open(ctx, w, url, names, who, unmarked)
				if err != nil || ok {
					return w, err
				}
			}
			above, name, ok := parent(url)
			if !ok || len(names) == 2 {
				break
			}
			url, names = above, append([]string{name}, names...)
		}
	}
	err = fmt.Errorf("%s: no checkpoints of replicad's are there, nor in what lies above it", root)
	if w.mark != nil {
		err = fmt.Errorf("%w; and %w", err, w.mark)
	}
	return nil, err
}

// isRoot tells whether a root is one: by its mark, or, where that does not count, by what lies below it.
func isRoot(ctx context.Context, cat *find.Finder, names []string, unmarked bool) (bool, error) {
	if !unmarked {
		return cat.Marked(ctx)
	}
	if len(names) == 0 {
		jobs, err := cat.Jobs(ctx)
		return len(jobs) > 0, err
	}
	runs, err := cat.Runs(ctx, names[0])
	return len(runs) > 0, err
}

// open tries one beginning of an argument as the root; names are what follows it.
func (c ckpt) open(ctx context.Context, w *where, url string, names []string, who string, unmarked bool) (bool, error) {
	if dir, local := directoryOf(url); local {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return false, nil //nolint:nilerr // what lies above may be the root; where nothing is, find says so
		}
	}
	st, err := openStore(ctx, url, c.std.err)
	if err != nil {
		return false, err
	}
	keys, err := c.keyring.keys()
	if err != nil {
		return false, errors.Join(err, st.Close())
	}
	cat := catalog.New(st, catalog.Options{Who: who, Keys: keys})
	ok, err := isRoot(ctx, cat.Finder, names, unmarked)
	if !unmarked && (catalog.IsDamage(err) && !errors.Is(err, format.ErrNewer) || errors.Is(err, store.ErrRefused)) { // what lies below says whether it is one
		w.mark, err = err, nil
	}
	if err != nil || !ok {
		return false, errors.Join(err, st.Close())
	}
	w.cat, w.close = cat, func() { st.Close() }
	if len(names) > 0 {
		w.job = names[0]
	}
	if len(names) > 1 {
		w.run = names[1]
	}
	return true, nil
}

// directoryOf is the directory that a URL or path names.
func directoryOf(url string) (string, bool) {
	if dir, ok := strings.CutPrefix(url, "file://"); ok {
		return dir, true
	}
	return url, !strings.Contains(url, "://")
}

// jobs lists the jobs that are meant.
func (w *where) jobs(ctx context.Context) ([]string, error) {
	if w.job != "" {
		return []string{w.job}, nil
	}
	return w.cat.Jobs(ctx)
}

// list says what there is.
func (w *where) list(ctx context.Context) (list []catalog.Listed, err error) {
	jobs, err := w.jobs(ctx)
	if err != nil {
		return nil, err
	}
	for _, job := range jobs {
		rows, err := w.cat.List(ctx, job)
		if err != nil {
			return nil, err
		}
		for _, l := range rows {
			if w.run == "" || l.Run.Run == w.run {
				list = append(list, l)
			}
		}
	}
	return list, nil
}

// newest finds the newest generation that is whole, of one job, and what is newer and damaged, the newest first.
func (w *where) newest(ctx context.Context) (f catalog.Found, passed []catalog.Skipped, err error) {
	jobs, err := w.jobs(ctx)
	if err != nil {
		return f, nil, err
	}
	if len(jobs) > 1 {
		return f, nil, coded(exitUsage, fmt.Errorf("%s has the jobs %s: say which, as %s", w.cat.URL(), strings.Join(jobs, ", "), w.cat.URL()+"/"+jobs[0]))
	}
	for _, job := range jobs {
		found, skipped, err := w.cat.Find(ctx, job, replica.JobID{})
		if err != nil {
			return f, nil, err
		}
		found = slices.DeleteFunc(found, func(f catalog.Found) bool { return w.run != "" && f.Run.Run != w.run || w.bad[f.Where()] })
		for _, s := range skipped {
			if s.State == catalog.Damaged && (w.run == "" || s.Run.Run == w.run) && (len(found) == 0 || s.Run.Run == found[0].Run.Run && s.Generation.Compare(found[0].Generation) > 0) {
				passed = append(passed, s)
			}
		}
		if len(found) > 0 {
			return found[0], passed, nil
		}
	}
	return f, passed, errNoneWhole
}

var errNoneWhole = errors.New("no generation that is whole: see `replicad ckpt ls`")

// named finds the generation behind @.
func (w *where) named(ctx context.Context) (f catalog.Found, err error) {
	l, err := w.listed(ctx)
	if err != nil {
		return f, err
	}
	return w.cat.Get(ctx, l.Run, l.Generation)
}

// listed is the line of the generation behind @: of the newest run, and in it of the newest epoch.
func (w *where) listed(ctx context.Context) (l catalog.Listed, err error) {
	if w.at == nil {
		return l, coded(exitUsage, errors.New("say which generation: WHERE@STEP"))
	}
	list, err := w.list(ctx)
	if err != nil {
		return l, err
	}
	job := ""
	for _, l := range list {
		if job == "" {
			job = l.Run.Job
		}
		if l.Run.Job != job {
			return l, coded(exitUsage, fmt.Errorf("there are several jobs: say which, as WHERE/%s", job))
		}
	}
	if w.at.byHint {
		return w.hinted(ctx, job, list)
	}
	if l, ok := w.at.of(list); ok {
		return l, nil
	}
	return l, fmt.Errorf("there is no generation %v: see `replicad ckpt ls`", w.at)
}

// hinted finds the generation that a job's best.json names, among those that are there.
func (w *where) hinted(ctx context.Context, job string, list []catalog.Listed) (l catalog.Listed, err error) {
	const remedy = "name the metric (@best:loss), or set durable_keep's best for the job's daemons"
	if job == "" {
		return l, fmt.Errorf("there is no best.json: %s", remedy)
	}
	h, err := w.cat.Best(ctx, job)
	if err != nil {
		return l, fmt.Errorf("%s of job %s: %w: %s", format.BestKey, job, err, remedy)
	}
	i := slices.IndexFunc(list, func(l catalog.Listed) bool {
		return l.Run.Run == h.Run && l.Generation == h.Generation && l.State != catalog.Unfinished && l.State != catalog.Deleting
	})
	if i < 0 {
		return l, fmt.Errorf("%s of job %s names step %d of run %s, which is not there any more: %s", format.BestKey, job, h.Generation.Step, h.Run, remedy)
	}
	return list[i], nil
}

// maxLine bounds what is printed of a text that others wrote.
const maxLine = 1000

// line is such a text as it is printed.
func line(s string) string { return replica.Line(s, maxLine) }

// common are the flags of every verb.
type common struct {
	json bool
	who  string
}

func (f *common) add(cmd *cobra.Command, writes bool) *cobra.Command {
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	if writes {
		cmd.Flags().StringVar(&f.who, "as", "", "your name in pins and in the log (default: user and number)")
	}
	return cmd
}

// age is for people.
func age(since time.Time) string {
	if since.IsZero() || since.Unix() <= 0 {
		return "-"
	}
	switch d := time.Since(since); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", max(d.Seconds(), 0))
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	default:
		return fmt.Sprintf("%.0f d", d.Hours()/24)
	}
}

// metrics are for people.
func metrics(m map[string]format.Metric) string {
	var out []string
	for _, k := range sortedKeys(m) {
		out = append(out, fmt.Sprintf("%s=%.5g", line(k), float64(m[k])))
	}
	return dash(strings.Join(out, " "))
}
