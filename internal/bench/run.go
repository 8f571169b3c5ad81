package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Options are the verb's flags.
type Options struct {
	Out     string // folder for bench.json and bench.html
	Only    string // figures whose name begins so; empty: all
	Quick   bool   // smaller and fewer: to see that it works, not for figures
	PartMiB uint64 // what a transfer moves; 0: 256, and 64 with Quick; and what a durable write has; 0: 4096, and 64 with Quick
	Strict  bool   // a figure that misses what is wanted is an error
	Program string // replicad, to run clusters [this executable]; textlm lies beside it
	CBench  string // bench/words_and_capture's program [words_and_capture beside Program]
	Version string // of replicad, for the report
}

// UsageError says that the options can't work. Nothing was measured.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// ErrMissed says that figures are not what is wanted.
var ErrMissed = errors.New("figures miss what is wanted")

// rounds of each measurement, by default and with Quick.
const (
	fullRounds  = 10
	quickRounds = 3
)

// runner is one run. Its jobs come in order, in one goroutine.
type runner struct {
	opt    Options
	rounds int
	dir    string // for what a job needs of the file system; removed at the end
	say    func(format string, args ...any)
	report Report
}

// job makes the figures whose names begin with its own.
type job struct {
	name string
	run  func(ctx context.Context, r *runner) error
}

// leftOut says why a job's figures are not in this run. It is no failure.
type leftOut struct{ why string }

func (e leftOut) Error() string { return e.why }

// wanted tells whether a job may have a figure that was asked for.
func (j job) wanted(only string) bool {
	return strings.HasPrefix(j.name, only) || strings.HasPrefix(only, j.name)
}

// Run measures and writes the report. It returns an error if something broke; a figure that is not what is wanted is none, unless
// Strict.
func Run(ctx context.Context, opt Options, stderr io.Writer) (err error) {
	began := time.Now()
	opt, err = opt.withDefaults()
	if err != nil {
		return &UsageError{err}
	}
	jobs := slices.DeleteFunc(allJobs(opt), func(j job) bool { return !j.wanted(opt.Only) })
	if len(jobs) == 0 {
		return &UsageError{fmt.Errorf("--only %s: no figure's name begins so; names begin with %s", opt.Only, strings.Join(prefixes(allJobs(opt)), ", "))}
	}
	dir, err := os.MkdirTemp("", "replicad-bench-")
	if err != nil {
		return &UsageError{fmt.Errorf("a folder to work in: %w (TMPDIR chooses another)", err)}
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	r := &runner{opt: opt, rounds: fullRounds, dir: dir}
	if opt.Quick {
		r.rounds = quickRounds
	}
	r.say = func(format string, args ...any) {
		fmt.Fprintf(stderr, "%7.1f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	r.report = Report{When: began.UTC().Format("2006-01-02 15:04 UTC"), Version: opt.Version, Quick: opt.Quick, Machine: describeMachine(), Figures: []Figure{}, LeftOut: []string{}, Broken: []string{}}
	for i, j := range jobs {
		if r.perform(ctx, j); ctx.Err() != nil {
			r.report.LeftOut = append(r.report.LeftOut, fmt.Sprintf("%s and what follows: the run was interrupted", jobs[i].name))
			break
		}
	}
	r.report.Took = time.Since(began).Round(time.Second).String()
	r.report.Machine.LoadAfter = load()
	if err := r.report.write(opt.Out); err != nil {
		return err
	}
	r.say("%s: %s, %s", r.report.summary(), filepath.Join(opt.Out, jsonFile), filepath.Join(opt.Out, pageFile))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.report.outcome(opt.Strict)
}

// add takes a figure in, unless others were asked for.
func (r *runner) add(f Figure) {
	if strings.HasPrefix(f.Name, r.opt.Only) {
		r.report.Figures = append(r.report.Figures, f)
		r.say("%s", f.line())
	}
}

// perform runs one job; what it can't measure is in the report.
func (r *runner) perform(ctx context.Context, j job) {
	err := j.run(ctx, r)
	var out leftOut
	switch {
	case errors.As(err, &out):
		r.report.LeftOut = append(r.report.LeftOut, fmt.Sprintf("%s: %s", j.name, out.why))
		r.say("%s is left out: %s", j.name, out.why)
	case err != nil && ctx.Err() == nil:
		r.report.Broken = append(r.report.Broken, fmt.Sprintf("%s: %v", j.name, err))
		r.say("%s FAILED: %v", j.name, err)
	}
}

func (o Options) withDefaults() (Options, error) {
	if o.PartMiB > mostPartMiB {
		return o, fmt.Errorf("--part-mib %d: want at most %d, of which sender and receiver hold one each", o.PartMiB, mostPartMiB)
	}
	if o.Program == "" {
		self, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("find this program's file: %w", err)
		}
		o.Program = self
	}
	if o.CBench == "" {
		o.CBench = filepath.Join(filepath.Dir(o.Program), "words_and_capture")
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return o, fmt.Errorf("--out %s: %w: choose a folder that you may write", o.Out, err)
	}
	return o, nil
}

// prefixes are the first words of the jobs' names.
func prefixes(jobs []job) (list []string) {
	for _, j := range jobs {
		if first, _, _ := strings.Cut(j.name, "/"); !slices.Contains(list, first) {
			list = append(list, first)
		}
	}
	return list
}

// allJobs are the figures in the order of the report.
func allJobs(opt Options) []job {
	return slices.Concat(stepJobs(), captureJobs(opt.Quick), transferJobs(opt), []job{cappedJob(opt.Quick), commitJob(opt.Quick), restoreJob(opt.Quick), donorJob(opt.Quick),
		memoryJob(opt.Quick), idleJob(opt.Quick)}, resentJobs(opt.Quick), durableJobs())
}

// sub is a folder of a job's own, which the job makes.
func (r *runner) sub(name string) string { return filepath.Join(r.dir, name) }
