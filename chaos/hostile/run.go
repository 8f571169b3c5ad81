package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/internal/config"
)

// ErrFailed says that a daemon did not do what it must. What was printed.
var ErrFailed = errors.New("the run failed")

// UsageError says that the options can't work. Nothing was started.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Options are the verb's flags. Zero values mean the defaults in brackets.
type Options struct {
	Patterns []string      // by name [all]
	Brief    bool          // the few that a test runs
	Hold     time.Duration // how long a pattern of load lasts [4s]
	Trainer  string        // command of the ranks, in words without spaces [textlm beside Program]
	Steps    int           // of each job [3000]
	Pace     time.Duration // shortest step [30 ms]
	Tries    int           // a pattern beside which a link was lost, or the leader changed, is tried so often [1]
	Report   string        // file for the outcome as JSON [none]
	Program  string        // replicad [this executable]
	Change   func(*config.Config)
	Lenient  bool // links, leaders and pauses between commits are reported, and fail nothing: other work shares this machine
}

var nodes = []string{"n1", "n2", "n3", mallory, fickle, guest} // the last three have certificates and no daemon of the run's own

const (
	voters    = 3
	world     = 4
	groups    = "0,1,0,1"
	calmly    = 4 * time.Second // how long the cluster is watched before anybody misbehaves
	mostGap   = 5 * time.Second // without a commit
	mostFiles = 32              // descriptors more than before, once a pattern is over
	mostLog   = 1 << 20         // bytes of a daemon's log a minute, and of a pattern that is shorter
	patience  = 60 * time.Second
)

// Outcome is what came of one pattern.
type Outcome struct {
	Pattern
	Victim   string         `json:"victim"`
	Did      map[string]int `json:"did"`
	Commits  int            `json:"commits"`
	GapMS    int64          `json:"gap_ms"` // longest time without a commit
	IdleMiB  uint64         `json:"idle_mib"`
	PeakMiB  uint64         `json:"peak_mib"` // of the victim
	LimitMiB uint64         `json:"limit_mib"`
	AfterMiB uint64         `json:"after_mib"`
	Links    int            `json:"links_lost"`
	LogKiB   int            `json:"log_kib"`  // of the daemon that logged most
	StallMS  int64          `json:"stall_ms"` // for how long at most the driver did not get to run
	Seconds  float64        `json:"seconds"`
	Try      int            `json:"try"` // which of Options.Tries this was
	Failed   []string       `json:"failed,omitempty"`
}

// Report is a run's.
type Report struct {
	Idle     map[string]uint64 `json:"idle_bytes"` // resident, by node
	Outcomes []Outcome         `json:"patterns"`
	Jobs     int               `json:"jobs"` // trained to the end, digests bit-equal with the undisturbed run's
	Wrong    []string          `json:"wrong,omitempty"`
}

// runner is one run.
type runner struct {
	opt     Options
	dir     string
	out     io.Writer
	spawn   *cluster.Spawner
	cluster *cluster.Cluster
	journal *cluster.Journal
	books   *books
	stalls  stalls
	want    []cluster.Digests
	job     cluster.Job
	idle    map[string]uint64
	report  Report
}

// Run runs the patterns one after another against a cluster of three nodes beside a job that trains. It returns nil if everything held,
// ErrFailed if not.
func Run(ctx context.Context, opt Options, out io.Writer) (rep Report, err error) {
	list, unknown := pick(opt.Patterns, opt.Brief)
	if len(unknown) > 0 {
		return rep, &UsageError{fmt.Errorf("--patterns %q: want some of %s", strings.Join(unknown, ","), strings.Join(Names(), ","))}
	}
	if opt, err = opt.withDefaults(); err != nil {
		return rep, &UsageError{err}
	}
	dir, err := os.MkdirTemp("", "replicad-hostile-")
	if err == nil {
		err = cluster.CheckSockets(dir, nodes[0])
	}
	if err != nil {
		return rep, &UsageError{fmt.Errorf("a folder for the run: %w (TMPDIR chooses another)", err)}
	}
	r := &runner{opt: opt, dir: dir, out: out, spawn: cluster.NewSpawner(), books: &books{}, idle: map[string]uint64{}}
	err = r.perform(ctx, list)
	if err != nil && !errors.Is(err, ErrFailed) {
		fmt.Fprintf(out, "what the processes said last:\n%s", r.spawn.Tails())
	}
	if e := r.spawn.Close(); e != nil {
		err = errors.Join(err, e)
	}
	if err == nil {
		err = os.RemoveAll(dir)
	} else {
		fmt.Fprintf(out, "logs: %s\n", dir)
	}
	if opt.Report != "" {
		b, e := json.MarshalIndent(r.report, "", " ")
		err = errors.Join(err, e, os.WriteFile(opt.Report, append(b, '\n'), 0o644))
	}
	return r.report, err
}

// Names are those of all patterns.
func Names() (list []string) {
	for _, p := range All {
		list = append(list, p.Name)
	}
	return list
}

func (o Options) withDefaults() (Options, error) {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&o.Hold, 4*time.Second)
	set(&o.Pace, 30*time.Millisecond)
	if o.Steps == 0 {
		o.Steps = 3000
	}
	o.Tries = max(o.Tries, 1)
	if o.Program == "" {
		self, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("find this program's file: %w", err)
		}
		o.Program = self
	}
	if o.Trainer == "" {
		o.Trainer = filepath.Join(filepath.Dir(o.Program), "textlm")
	}
	if _, err := exec.LookPath(strings.Fields(o.Trainer)[0]); err != nil {
		return o, fmt.Errorf("trainer: %w: `make build` puts textlm beside replicad", err)
	}
	return o, nil
}

func (r *runner) say(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

func (r *runner) trainer(more ...string) []string {
	return append(append(strings.Fields(r.opt.Trainer), "--steps", fmt.Sprint(r.opt.Steps), "--seed", "1"), more...)
}

func (r *runner) running() []*cluster.Node { return r.cluster.Nodes[:voters] }

func (r *runner) perform(ctx context.Context, list []Pattern) (err error) {
	doors, err := r.doors()
	if err != nil {
		return fmt.Errorf("a folder for the ranks' sockets: %w", err)
	}
	defer os.RemoveAll(doors)
	r.cluster, err = cluster.New(cluster.Plan{Dir: r.dir, Program: r.opt.Program, Nodes: nodes, Voters: voters, Change: func(c *config.Config) {
		c.JobSecret = "hostile-0123456789abcdef"
		if doors != "" {
			c.Socket, c.RankUsers, c.RankGroup = filepath.Join(doors, string(c.Node)), []string{strconv.Itoa(named)}, strconv.Itoa(namedGroup)
		}
		if r.opt.Change != nil {
			r.opt.Change(c)
		}
	}}, r.spawn, nil)
	if err != nil {
		return err
	}
	defer r.cluster.Release()
	r.want, err = cluster.Undisturbed(ctx, r.spawn, cluster.NewJournal(), r.cluster.Log("undisturbed"), 10*patience, world, r.trainer())
	if err != nil {
		return err
	}
	r.say("the undisturbed run of %d steps is done: weights %.16s", r.opt.Steps, r.want[0][0])
	r.follow()
	for _, n := range r.running() {
		if err := r.cluster.Start(n); err != nil {
			return err
		}
	}
	watching, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { r.cluster.Watch(watching) })
	wg.Go(func() { r.stalls.run(watching) })
	defer wg.Wait()
	defer end()
	if err := r.train(ctx); err != nil {
		return err
	}
	if err := r.measure(ctx); err != nil {
		return err
	}
	for _, p := range list {
		for try := 1; ; try++ {
			if err := r.room(ctx, p); err != nil {
				return err
			}
			o, err := r.one(ctx, p)
			if err != nil {
				return err
			}
			o.Try = try
			if try < r.opt.Tries && len(o.Failed) > 0 {
				r.say("%s\n  once more", o)
				continue
			}
			r.report.Outcomes = append(r.report.Outcomes, o)
			r.say("%s", o)
			break
		}
	}
	if err := r.finish(ctx); err != nil {
		return err
	}
	r.cluster.Stop(10 * time.Second)
	return r.verdict()
}

// follow begins a new journal.
func (r *runner) follow() {
	r.journal = cluster.NewJournal()
	r.journal.OnLog = r.books.log
	r.cluster.Follow(r.journal)
}

// led names the leader about whom all daemons agree; empty: there is none. The journal is locked.
func (r *runner) led() string {
	name := ""
	for _, n := range r.running() {
		s := r.journal.Status[n.Name]
		if s == nil || s.Leader == "" || name != "" && s.Leader != name || len(s.Nodes) < voters {
			return ""
		}
		name = s.Leader
	}
	return name
}

// train starts the next job, and waits until all its ranks make steps that are committed.
func (r *runner) train(ctx context.Context) error {
	name := fmt.Sprintf("train-%d", r.report.Jobs+1)
	r.follow()
	r.books.begin(name)
	if err := r.journal.Await(ctx, patience, "a leader that all follow", func() bool { return r.led() != "" }); err != nil {
		return err
	}
	r.job = cluster.Job{Name: name, World: world, Groups: groups, Command: r.trainer("--pace", r.opt.Pace.String())}
	for i, n := range r.running() {
		var ranks []string
		for rank := i; rank < world; rank += voters {
			ranks = append(ranks, fmt.Sprint(rank))
		}
		if err := r.cluster.Launch(n, r.job, strings.Join(ranks, ",")); err != nil {
			return err
		}
	}
	return r.journal.Await(ctx, 2*patience, "steps of all ranks, and commits", func() bool {
		n := 0
		for _, s := range r.journal.Ranks {
			if s.Step > 0 {
				n++
			}
		}
		committed, _ := r.journal.CommittedLocked()
		return n == world && committed > 5
	})
}

// room begins another job where this one would be over before the next pattern is.
func (r *runner) room(ctx context.Context, p Pattern) error {
	need := 3 * r.opt.Hold
	if p.Long {
		need *= 3
	}
	var step uint64
	r.journal.View(func() { _, step = r.journal.LatestLocked() })
	if left := r.opt.Steps - int(step); time.Duration(left)*r.opt.Pace > need {
		return nil
	}
	if err := r.finish(ctx); err != nil {
		return err
	}
	return r.train(ctx)
}

// finish trains the job to its end and compares its digests.
func (r *runner) finish(ctx context.Context) error {
	done := func() bool {
		n := 0
		for _, s := range r.journal.Ranks {
			if s.Done {
				n++
			}
		}
		return n == world
	}
	if err := r.journal.Await(ctx, 2*patience+time.Duration(r.opt.Steps)*4*r.opt.Pace, "the end of "+r.job.Name, done); err != nil {
		return err
	}
	got, err := r.journal.Digests(world)
	if err != nil {
		return err
	}
	for _, d := range cluster.Compare(got, r.want, []int{0, 1, 0, 1}) {
		r.report.Wrong = append(r.report.Wrong, r.job.Name+": "+d)
	}
	for _, n := range r.running() {
		select {
		case <-n.Launcher.Gone:
		case <-time.After(patience):
			return fmt.Errorf("the launcher of %s has not ended %v after the job", n.Name, patience)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r.report.Jobs++
	r.say("%s is done, its digests compared", r.job.Name)
	return nil
}

// measure watches the cluster while nobody misbehaves.
func (r *runner) measure(ctx context.Context) error {
	r.books.take()
	for end := time.Now().Add(calmly); time.Now().Before(end) && ctx.Err() == nil; sleep(ctx, 100*time.Millisecond) {
		for _, d := range r.daemons() {
			b, err := d.field("VmRSS")
			if err != nil {
				return err
			}
			r.idle[d.node] = max(r.idle[d.node], b)
		}
	}
	s := r.books.take()
	r.report.Idle = r.idle
	for n, b := range r.idle {
		r.say("%s idle: %d MiB", n, b>>20)
	}
	r.say("%d commits in %v, %d ms at most without one", s.commits, calmly, s.gap.Milliseconds())
	return ctx.Err()
}

func (r *runner) daemons() (list []daemon) {
	for _, n := range r.running() {
		list = append(list, daemon{n.Name, n.Daemon.PID()})
	}
	return list
}

// victim is the node that a pattern attacks.
func (r *runner) victim(ctx context.Context, p Pattern) (string, error) {
	name := ""
	err := r.journal.Await(ctx, patience, "a leader that all follow", func() bool { name = r.led(); return name != "" })
	if p.At == follower {
		name = nodes[(slices.Index(nodes, name)+1)%voters]
	}
	return name, err
}

// one runs a pattern and judges what was seen of all daemons meanwhile.
func (r *runner) one(ctx context.Context, p Pattern) (o Outcome, err error) {
	o = Outcome{Pattern: p}
	if o.Victim, err = r.victim(ctx, p); err != nil {
		return o, err
	}
	bad := func(format string, args ...any) { o.Failed = append(o.Failed, fmt.Sprintf(format, args...)) }
	files, had := map[string]int{}, map[string]uint64{}
	for _, d := range r.daemons() {
		if err := d.forgetPeak(); err != nil {
			return o, fmt.Errorf("the peak of %s's memory: %w", d.node, err)
		}
		if had[d.node], err = d.field("VmRSS"); err != nil {
			return o, err
		}
		if files[d.node], err = d.descriptors(); err != nil {
			return o, err
		}
	}
	r.books.take()
	r.stalls.take()
	began := time.Now()
	misbehave := r.misbehave
	if p.Relinks {
		misbehave = r.besides
	}
	done, err := misbehave(ctx, p, o.Victim)
	if err != nil {
		bad("%v", err)
	}
	o.Did, o.Seconds = done.Did, time.Since(began).Seconds()
	if done.Failed != "" {
		bad("%s", done.Failed)
	}
	for _, d := range r.daemons() {
		peak, err := d.field("VmHWM")
		if err != nil {
			return o, err
		}
		limit := r.idle[d.node]*5/4 + budget[p.Who]
		if p.Most > 0 {
			limit = had[d.node] + p.Most // not what it has idle: what earlier patterns left is not this one's
		}
		if peak > limit {
			bad("%s had %d MiB resident: %d MiB idle, %d before, limit %d MiB", d.node, peak>>20, r.idle[d.node]>>20, had[d.node]>>20, limit>>20)
		}
		if d.node == o.Victim {
			o.IdleMiB, o.PeakMiB, o.LimitMiB = r.idle[d.node]>>20, peak>>20, limit>>20
		}
	}
	sleep(ctx, time.Second)
	o.StallMS = r.stalls.take().Milliseconds()
	r.judge(&o, r.books.take(), bad)
	r.settle(ctx, &o, files, bad)
	return o, ctx.Err()
}

// judge takes what the daemons' logs say.
func (r *runner) judge(o *Outcome, s seen, bad func(string, ...any)) {
	o.Commits, o.GapMS, o.Links = s.commits, s.gap.Milliseconds(), len(s.unlinked)
	for _, n := range slices.Sorted(maps.Keys(s.logged)) {
		o.LogKiB = max(o.LogKiB, s.logged[n]>>10)
		if most := int(max(o.Seconds, 60) / 60 * mostLog); s.logged[n] > most {
			bad("%s logged %d KiB, limit %d KiB", n, s.logged[n]>>10, most>>10)
		}
	}
	if len(s.trouble) > 0 {
		bad("the job that trains: %s", strings.Join(s.trouble[:min(len(s.trouble), 3)], "; "))
	}
	if r.opt.Lenient {
		return
	}
	if s.commits == 0 {
		bad("no step was committed meanwhile")
	}
	if s.gap > mostGap {
		bad("%.1f s without a commit", s.gap.Seconds())
	}
	if len(s.unlinked) > 0 {
		bad("links lost: %s", strings.Join(s.unlinked, ", "))
	}
	if len(s.leaders) > 0 {
		bad("leadership: %s", strings.Join(s.leaders, "; "))
	}
}

// settle waits until the daemons have given back what was opened, and looks whether they answer.
func (r *runner) settle(ctx context.Context, o *Outcome, before map[string]int, bad func(string, ...any)) {
	for end := time.Now().Add(15 * time.Second); ; sleep(ctx, 100*time.Millisecond) {
		late := ""
		for _, d := range r.daemons() {
			n, err := d.descriptors()
			if err != nil {
				bad("daemon of %s: %v", d.node, err)
				return
			}
			if n > before[d.node]+mostFiles {
				late = fmt.Sprintf("%s has %d descriptors, %d before", d.node, n, before[d.node])
			}
			if d.node == o.Victim {
				b, _ := d.field("VmRSS") // it was there a moment ago
				o.AfterMiB = b >> 20
			}
		}
		if late == "" || ctx.Err() != nil {
			break
		}
		if time.Now().After(end) {
			bad("%s", late)
			break
		}
	}
	for _, n := range r.running() {
		if _, err := cluster.FetchStatus(ctx, n.Config.AdminSocket); err != nil {
			bad("status of %s: %v", n.Name, err)
		}
	}
}

// misbehave runs the pattern in a process of its own.
func (r *runner) misbehave(ctx context.Context, p Pattern, victim string) (d Done, err error) {
	var mu sync.Mutex
	var lines []byte
	proc, err := r.spawn.Start(p.Name, r.cluster.Log("misbehave-"+p.Name), nil, cluster.Output{Out: func(line []byte) {
		mu.Lock()
		defer mu.Unlock()
		lines = append([]byte(nil), line...)
	}}, r.opt.Program, "chaos", "misbehave", p.Name, "--dir", r.dir, "--victim", victim, "--job", r.job.Name, "--hold", r.opt.Hold.String())
	if err != nil {
		return d, err
	}
	t := time.NewTimer(10*r.opt.Hold + 60*time.Second)
	defer t.Stop()
	select {
	case <-proc.Gone:
	case <-t.C:
		proc.Kill()
		return d, errors.New("the attack has not ended")
	case <-ctx.Done():
		proc.Kill()
		return d, context.Cause(ctx)
	}
	proc.Signal(syscall.SIGKILL) // nothing is left of its group
	for !proc.Spent() {
		sleep(ctx, time.Millisecond)
	}
	mu.Lock()
	defer mu.Unlock()
	if e := json.Unmarshal(lines, &d); e != nil {
		return d, fmt.Errorf("the attack ended without a report: %v: %s", proc.State(), strings.Join(proc.Last(), " | "))
	}
	return d, nil
}

// verdict is nil if everything held.
func (r *runner) verdict() error {
	failed := len(r.report.Wrong)
	for _, o := range r.report.Outcomes {
		if len(o.Failed) > 0 {
			failed++
		}
	}
	for _, w := range r.report.Wrong {
		r.say("WRONG     %s", w)
	}
	r.say("verdict: %d patterns, %d jobs bit-equal, %d failures", len(r.report.Outcomes), r.report.Jobs-len(r.report.Wrong), failed)
	if failed > 0 {
		return ErrFailed
	}
	return nil
}
