package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/internal/config"
)

const (
	durableRounds    = 5
	durableMiB       = 4096
	quickDurableMiB  = 64
	durableWrites    = 2 // of a cluster
	durablePatience  = 10 * time.Minute
	durableStopGrace = 10 * time.Minute
)

// durableJobs are what the durable tier takes, by the way that daemons go, beside what else writes and reads the same bytes in the same round: dd
// and torch.distributed.checkpoint on a directory, a bare client with the same parts on a bucket.
func durableJobs() []job {
	var jobs []job
	for _, d := range []durableBench{
		{name: "durable/directory/", pace: resting, every: 3},
		{name: "durable/encrypted/", pace: resting, every: 3, encrypted: true},
		{name: "durable/bucket/", url: "s3://bench/ck", pace: resting, every: 3},
		{name: "durable/steps/", pace: "50ms", every: 40, spool: true},
	} {
		jobs = append(jobs, job{d.name, func(ctx context.Context, r *runner) error { return r.durable(ctx, &d) }})
	}
	return jobs
}

// resting has the trainer sleep nearly all the time: dd and others have the machine for themselves as well.
const resting = "4s"

// slots are one for a write that goes by no spool, beside the two that commits take turns with: four would take all of a machine of 24 GiB.
const slots = "3"

// durableBench is a job of them. Each list has a value for each round.
type durableBench struct {
	name, url string // url is empty for a directory
	pace      string // of the trainer's steps
	every     int    // steps from one durable generation to the next
	encrypted bool   // to a recipient of age
	spool     bool   // as by default; it is on the same disk here, and each byte is written twice. The steps are looked at, and nothing else
	mib       int
	python    string // with torch; empty: there is none
	store     *cluster.Store
	root      string // the store's files

	write, bareWrite, dcpSave []float64 // MB/s
	read, bareRead, dcpLoad   []float64
	during, outside           []float64 // ms, p95 of steps
	term, took                []float64 // s
	coldBytes, bytes          []float64 // MB
}

func (r *runner) durable(ctx context.Context, d *durableBench) error {
	rounds := durableRounds
	d.mib = durableMiB
	if r.opt.Quick {
		rounds, d.mib = 1, quickDurableMiB
	}
	if r.opt.PartMiB > 0 {
		d.mib = int(r.opt.PartMiB)
	}
	if err := d.fits(r.dir); err != nil {
		return err
	}
	if !d.encrypted {
		d.python = torchPython(ctx, r.opt.Program)
	}
	r.say("%s: %d rounds of %d MiB, load average %s ...", d.name, rounds, d.mib, load())
	for i := range rounds {
		if err := r.durableRound(ctx, d, i); err != nil {
			return err
		}
	}
	for _, f := range d.figures() {
		if f.Rounds == 0 {
			r.say("%s: in no round was there anything to measure", f.Name)
			continue
		}
		f.Note = fmt.Sprintf("%d MiB of state, load average %s", d.mib, load())
		if d.url != "" {
			f.Note += ", the server is " + d.store.Kind
		}
		r.add(f)
	}
	if d.python == "" && d.url == "" && !d.spool && !d.encrypted {
		return leftOut{"no Python with torch beside the program: nothing stands beside torch.distributed.checkpoint (make py-setup)"}
	}
	return nil
}

// What a round needs at most, in states: the trainer's, its arena and what is in flight; generations, one being written, and the limit's file.
const (
	memoryStates = 4
	diskStates   = 6
)

// fits leaves the job out where there is no room for it.
func (d *durableBench) fits(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	state := uint64(d.mib) * mib
	if free := st.Bavail * uint64(st.Bsize); free < diskStates*state {
		return leftOut{fmt.Sprintf("%d MiB are free in %s, %d states of %d MiB are wanted: TMPDIR chooses another, --part-mib a smaller state", free/mib, dir, diskStates, d.mib)}
	}
	if free := meminfo("MemAvailable"); free < memoryStates*state {
		return leftOut{fmt.Sprintf("%d MiB of memory are free, %d states of %d MiB are wanted: --part-mib chooses a smaller one", free/mib, memoryStates, d.mib)}
	}
	return nil
}

func (d *durableBench) figures() []Figure {
	if d.spool {
		return []Figure{newFigure(d.name+"p95", "ms", d.during, "steps outside of writes", d.outside, atMost(1.1))}
	}
	term := newFigure(d.name+"sigterm", "s", d.term, "a write", d.took, atMost(1.2))
	if d.url != "" {
		return []Figure{newFigure(d.name+"write", "MB/s", d.write, "a bare client with the same parts", d.bareWrite, atLeast(0.8)),
			newFigure(d.name+"read", "MB/s", d.read, "", nil, bound{}), term}
	}
	if d.encrypted {
		return []Figure{newFigure(d.name+"write", "MB/s", d.write, "dd conv=fdatasync", d.bareWrite, bound{}), newFigure(d.name+"read", "MB/s", d.read, "dd, cold", d.bareRead, bound{})}
	}
	list := []Figure{
		newFigure(d.name+"write", "MB/s", d.write, "dd conv=fdatasync", d.bareWrite, atLeast(0.9)),
		newFigure(d.name+"read", "MB/s", d.read, "dd, cold", d.bareRead, atLeast(0.9)),
		newFigure(d.name+"cold-bytes", "MB", d.coldBytes, "the state's bytes", d.bytes, atMost(1.02)), term}
	if len(d.dcpSave) > 0 {
		list = append(list, newFigure(d.name+"write-beside-dcp", "MB/s", d.write, "dcp.save", d.dcpSave, atLeast(1)),
			newFigure(d.name+"read-beside-dcp", "MB/s", d.read, "dcp.load, cold", d.dcpLoad, atLeast(1)))
	}
	return list
}

// durableRound measures the limits, two writes, a SIGTERM, and a cold start of a fresh cluster; or what steps feel of two writes.
func (r *runner) durableRound(ctx context.Context, d *durableBench, i int) (err error) {
	name := fmt.Sprintf("durable-%d", i)
	b, err := r.newBedWith(ctx, nil, func(spawn *cluster.Spawner, dir string) (func(*config.Config), error) {
		return d.tier(ctx, r, spawn, dir)
	}, name, "n1")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	first := i%2 == 0 // memory that the machine has just freed is faster than what a hypervisor has taken back: nobody always goes first
	if !d.spool && first {
		if err := d.limits(ctx, r.sub(name)); err != nil {
			return err
		}
	}
	var steps []time.Time
	b.journal.View(func() {
		b.journal.OnRank = func(e cluster.RankEvent) {
			if e.Event == "step" {
				steps = append(steps, e.Time())
			}
		}
	})
	n := b.Nodes[0]
	if err := d.train(b, n); err != nil {
		return err
	}
	spans, err := b.writes(ctx)
	if err != nil {
		return err
	}
	if d.spool {
		b.journal.View(func() { d.stepsOf(steps, spans) })
		return nil
	}
	var took []float64
	for _, s := range spans {
		took = append(took, s.took().Seconds())
	}
	d.write = append(d.write, d.megabytes()/median(took))
	if !first {
		if err := d.limits(ctx, r.sub(name)); err != nil {
			return err
		}
	}
	if err := d.stopped(ctx, b, n, median(took)); err != nil {
		return err
	}
	return d.cold(ctx, b, n)
}

// tier says where the cluster writes.
func (d *durableBench) tier(ctx context.Context, r *runner, spawn *cluster.Spawner, dir string) (func(*config.Config), error) {
	where := d.url
	d.root = filepath.Join(dir, "bucket")
	if where == "" {
		d.root = filepath.Join(dir, "store")
		where = d.root
	} else if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o700); err != nil {
		return nil, err
	}
	store, err := cluster.OpenStore(ctx, spawn, where, dir, filepath.Join(filepath.Dir(r.opt.Program), "tools"))
	if err != nil {
		return nil, err
	}
	d.store = store
	keys, recipients, err := d.key(dir)
	if err != nil {
		return nil, err
	}
	return func(c *config.Config) {
		store.Use(c)
		c.DurableRecipients, c.DurableIdentities = recipients, keys
		c.Log.Level, c.RereadRate, c.ScrubRate, c.Timing.StopGrace = "info", 0, 0, durableStopGrace
		if !d.spool {
			c.SpoolDir = "none"
		}
	}, nil
}

// key makes a key in a file, and says to whom it belongs; empty: nothing is encrypted.
func (d *durableBench) key(dir string) (file string, recipients []string, err error) {
	if !d.encrypted {
		return "", nil, nil
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", nil, err
	}
	file = filepath.Join(dir, "key.txt")
	return file, []string{id.Recipient().String()}, os.WriteFile(file, []byte(id.String()+"\n"), 0o600)
}

func (d *durableBench) megabytes() float64 { return float64(d.mib) * mib / 1e6 }

func (d *durableBench) train(b *bed, n *cluster.Node, flags ...string) error {
	flags = append(flags, "--durable-every", fmt.Sprint(d.every), "--min-copies", "1", "--slots", slots)
	return b.train(n, cluster.Job{Name: "durable", World: 1, Flags: flags}, "0", "--pace", d.pace, "--state-mb", fmt.Sprint(d.mib))
}

// span is a durable write: from the commit that it is of to the word that it is durable.
type span struct{ from, to time.Time }

func (s span) took() time.Duration           { return s.to.Sub(s.from) }
func (s span) holds(t time.Time) bool        { return !t.Before(s.from) && !t.After(s.to) }
func (s span) step(from, to time.Time) bool  { return s.holds(from) && s.holds(to) }
func (s span) apart(from, to time.Time) bool { return to.Before(s.from) || from.After(s.to) }

// writes waits for some durable writes.
func (b *bed) writes(ctx context.Context) (spans []span, err error) {
	err = b.journal.Await(ctx, durablePatience, "durable writes", func() bool {
		spans = nil
		for _, e := range b.journal.Log {
			for _, c := range b.journal.Commits {
				if e.Event == "durable" && c.Step == e.Step {
					spans = append(spans, span{c.At, e.Time})
				}
			}
		}
		return len(spans) >= durableWrites
	})
	return spans, err
}

// stepsOf sorts steps into those during a write and those outside. The first ones map the state, and count for nothing.
func (d *durableBench) stepsOf(at []time.Time, spans []span) {
	const warm = 5
	var during, outside []float64
	for i := warm; i < len(at); i++ {
		ms := float64(at[i].Sub(at[i-1]).Microseconds()) / 1000
		in, out := false, true
		for _, s := range spans {
			in, out = in || s.step(at[i-1], at[i]), out && s.apart(at[i-1], at[i])
		}
		if in {
			during = append(during, ms)
		} else if out {
			outside = append(outside, ms)
		}
	}
	if len(during) > 0 && len(outside) > 0 {
		d.during, d.outside = append(d.during, quantile(during, 0.95)), append(d.outside, quantile(outside, 0.95))
	}
}

// stopped measures how long a daemon stays that is told to end, beside a write.
func (d *durableBench) stopped(ctx context.Context, b *bed, n *cluster.Node, write float64) error {
	err := b.journal.Await(ctx, durablePatience, "a commit that is not durable", func() bool {
		s := b.journal.Status[n.Name]
		j := s.Job("durable")
		return j != nil && j.Committed.Step > j.Durable.Step
	})
	if err != nil {
		return err
	}
	began := time.Now()
	n.Daemon.Signal(syscall.SIGTERM)
	select {
	case <-n.Daemon.Gone:
	case <-time.After(durablePatience):
		return fmt.Errorf("the daemon has not ended %v after SIGTERM", durablePatience)
	}
	took, wrote := time.Since(began).Seconds(), false
	b.journal.View(func() {
		wrote = slices.ContainsFunc(b.journal.Log, func(e cluster.LogEvent) bool { return e.Event == "durable" && !e.Time.Before(began) })
	})
	if wrote { // else the commit came to disk before the signal, and nothing was waited for
		d.term, d.took = append(d.term, took), append(d.took, write)
	}
	return nil
}

// cold measures what a fresh cluster reads that goes on from the store, which is in no cache.
func (d *durableBench) cold(ctx context.Context, b *bed, n *cluster.Node) error {
	if err := errors.Join(b.Kill(n), drop(d.root), b.Afresh(n)); err != nil {
		return err
	}
	began := time.Now()
	if err := d.train(b, n, "--resume"); err != nil {
		return err
	}
	var moved, took int64
	err := b.journal.Await(ctx, durablePatience, "the state from the store", func() bool {
		moved, took = 0, 0
		resumed := false
		for _, e := range b.journal.Log {
			switch {
			case e.Time.Before(began):
			case e.Event == "resumed":
				resumed = true
			case e.Event == "moved" && e.Tier == "durable":
				moved, took = moved+int64(e.Bytes), max(took, e.Took)
			}
		}
		return resumed && moved > 0
	})
	if err != nil {
		return err
	}
	d.read = append(d.read, float64(moved)/float64(took))
	if got := diskReads(n.Daemon.PID()); got > 0 && d.url == "" { // 0: the file system has no disk
		d.coldBytes, d.bytes = append(d.coldBytes, got/1e6), append(d.bytes, float64(moved)/1e6)
	}
	return nil
}

// limits measures what else moves the bytes.
func (d *durableBench) limits(ctx context.Context, dir string) error {
	if d.url != "" {
		rate, err := d.bareClient(ctx)
		d.bareWrite = append(d.bareWrite, rate)
		return err
	}
	file := filepath.Join(dir, "dd")
	write, err := d.timed(exec.CommandContext(ctx, "dd", "if=/dev/zero", "of="+file, "bs=1M", fmt.Sprintf("count=%d", d.mib), "conv=fdatasync"))
	if err != nil {
		return err
	}
	if err := drop(file); err != nil {
		return err
	}
	read, err := d.timed(exec.CommandContext(ctx, "dd", "if="+file, "of=/dev/null", "bs=1M"))
	if err := errors.Join(err, os.Remove(file)); err != nil {
		return err
	}
	d.bareWrite, d.bareRead = append(d.bareWrite, write), append(d.bareRead, read)
	return d.dcp(ctx, filepath.Join(dir, "dcp"))
}

// timed is a command's rate in MB/s.
func (d *durableBench) timed(cmd *exec.Cmd) (float64, error) {
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, out)
	}
	return d.megabytes() / time.Since(began).Seconds(), nil
}

func (d *durableBench) dcp(ctx context.Context, folder string) error {
	if d.python == "" {
		return nil
	}
	script := filepath.Join(filepath.Dir(filepath.Dir(d.python)), "..", "bench", "torch", "dcp.py")
	out, err := exec.CommandContext(ctx, d.python, script, folder, fmt.Sprint(d.mib)).Output()
	if err != nil {
		return fmt.Errorf("%s: %w", script, err)
	}
	var took struct{ Save, Load float64 }
	if err := json.Unmarshal(out, &took); err != nil {
		return fmt.Errorf("%s: %w", script, err)
	}
	d.dcpSave, d.dcpLoad = append(d.dcpSave, d.megabytes()/took.Save), append(d.dcpLoad, d.megabytes()/took.Load)
	return nil
}

// torchPython is the Python of a checkout's .venv, if it has torch.
func torchPython(ctx context.Context, program string) string {
	python := filepath.Join(filepath.Dir(filepath.Dir(program)), ".venv", "bin", "python")
	if exec.CommandContext(ctx, python, "-c", "import torch").Run() != nil {
		return ""
	}
	return python
}

// drop takes files out of the page cache.
func drop(root string) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = f.Sync() // what is not on disk stays in the cache
		return errors.Join(err, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
	})
}

// diskReads is how many bytes a process has had read from disks; 0: none, or the kernel does not say.
func diskReads(pid int) (bytes float64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(text), "\nread_bytes: ")
	_, _ = fmt.Sscan(after, &bytes)
	return bytes
}
