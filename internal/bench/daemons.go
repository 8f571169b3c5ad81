package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

// idleJob is what a daemon takes that has nothing to do: three of them see each other alive, and no job is there.
func idleJob(bool) job {
	return job{"idle/", func(ctx context.Context, r *runner) (err error) {
		b, err := r.newBed(ctx, "idle", "n1", "n2", "n3")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.stop()) }()
		b.unwatch()
		r.say("idle/: %d seconds of three daemons ...", r.rounds)
		var share, daemon, keeper []float64
		for range r.rounds {
			began := time.Now()
			before, err := b.cpu()
			if err != nil {
				return err
			}
			if err := pause(ctx, time.Second); err != nil {
				return err
			}
			after, err := b.cpu()
			if err != nil {
				return err
			}
			share = append(share, 100*float64(after-before)/float64(len(b.Nodes))/float64(time.Since(began)))
			daemon, keeper = append(daemon, float64(own(b.Nodes[0].Daemon.PID()))/mib), append(keeper, float64(own(b.Nodes[0].Keeper.PID()))/mib)
		}
		r.add(newFigure("idle/cpu", "% of a core", share, "", nil, bound{}))
		r.add(newFigure("idle/daemon-memory", "MiB", daemon, "64 MiB", constant(64, len(daemon)), bound{}))
		r.add(newFigure("idle/keeper-memory", "MiB", keeper, "", nil, bound{}))
		return nil
	}}
}

// cpu is what keepers and daemons have had, all together.
func (b *bed) cpu() (sum time.Duration, err error) {
	for _, n := range b.Nodes {
		for _, p := range []*cluster.Process{n.Daemon, n.Keeper} {
			t, err := cpu(p.PID())
			if err != nil {
				return 0, err
			}
			sum += t
		}
	}
	return sum, nil
}

func constant(v float64, n int) (list []float64) {
	for range n {
		list = append(list, v)
	}
	return list
}

// commitJob is how long after a step's last seal its commit is known, beside what no commit can do without: one fsync of the log
// and a message there and back.
func commitJob(bool) job {
	return job{"commit/", func(ctx context.Context, r *runner) (err error) {
		b, err := r.newBed(ctx, "commit", "n1", "n2", "n3")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.stop()) }()
		for i := range 2 {
			if err := b.train(b.Nodes[i], cluster.Job{Name: "commit", World: 2}, fmt.Sprint(i), "--pace", "100ms"); err != nil {
				return err
			}
		}
		probe, err := newProbe(r.dir)
		if err != nil {
			return err
		}
		defer probe.stop()
		const each = 12 // commits of a round
		newest := func() (step uint64) {
			for s := range b.journal.Lags {
				step = max(step, s)
			}
			return step
		}
		if err := b.await(ctx, "the first commits", func() bool { return newest() > 5 }); err != nil {
			return err
		}
		r.say("commit/: %d rounds of %d commits, a step each 100 ms ...", r.rounds, each)
		var p50, p99, limit50, limit99 []float64
		for range r.rounds {
			var bare []float64
			for range each {
				ms, err := probe.once()
				if err != nil {
					return err
				}
				bare = append(bare, ms)
			}
			var from uint64
			b.journal.View(func() { from = newest() + 1 })
			if err := b.await(ctx, "commits", func() bool { return newest() > from+each }); err != nil { // each daemon has said of the newest but one
				return err
			}
			var lags []float64
			b.journal.View(func() {
				for s := from + 1; s <= from+each; s++ {
					if us, ok := b.journal.Lags[s]; ok {
						lags = append(lags, us/1000)
					}
				}
			})
			p50, p99 = append(p50, quantile(lags, 0.5)), append(p99, quantile(lags, 0.99))
			limit50, limit99 = append(limit50, quantile(bare, 0.5)), append(limit99, quantile(bare, 0.99))
		}
		const name = "an fsync of 4 KiB and a TCP round trip"
		r.add(newFigure("commit/seal-to-commit-p50", "ms", p50, name, limit50, bound{}))
		r.add(newFigure("commit/seal-to-commit-p99", "ms", p99, name, limit99, bound{}))
		return nil
	}}
}

// probe does what a commit can't do without.
type probe struct {
	file *os.File
	conn net.Conn
	echo *listener
}

func newProbe(dir string) (*probe, error) {
	f, err := os.Create(filepath.Join(dir, "probe"))
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", loopback)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	p := &probe{file: f, echo: listen(ln, func(c net.Conn) {
		defer c.Close()
		b := make([]byte, 64)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			if _, err := c.Write(b[:n]); err != nil {
				return
			}
		}
	})}
	if p.conn, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		p.echo.stop()
		return nil, errors.Join(err, f.Close())
	}
	return p, nil
}

// once takes ms.
func (p *probe) once() (float64, error) {
	began := time.Now()
	_, err := p.file.WriteAt(make([]byte, 4096), 0)
	if err == nil {
		err = p.file.Sync()
	}
	b := make([]byte, 64)
	if err == nil {
		_, err = p.conn.Write(b)
	}
	for n := 0; err == nil && n < len(b); {
		var m int
		m, err = p.conn.Read(b[n:])
		n += m
	}
	return float64(time.Since(began).Microseconds()) / 1000, err
}

func (p *probe) stop() {
	_ = p.conn.Close()
	p.echo.stop()
	_ = p.file.Close()
}

// memoryJob is what a job's state takes: of the arena for each generation that it holds, and of the daemon beyond arenas.
func memoryJob(quick bool) job {
	return job{"memory/", func(ctx context.Context, r *runner) (err error) {
		b, err := r.newBed(ctx, "memory", "n1", "n2", "n3")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.stop()) }()
		state, slots := 256, 3
		if quick {
			state = 64
		}
		for i := range 2 {
			err := b.train(b.Nodes[i], cluster.Job{Name: "memory", World: 2, Flags: []string{"--slots", fmt.Sprint(slots)}}, fmt.Sprint(i), "--pace", "200ms", "--state-mb", fmt.Sprint(state))
			if err != nil {
				return err
			}
		}
		r.say("memory/: two ranks with %d MiB each ...", state)
		var generation, daemon []float64
		step := uint64(2 * slots) // by then every slot has been written
		for range r.rounds {
			if err := b.await(ctx, "further steps", func() bool { done, _ := b.journal.CommittedLocked(); return done > step }); err != nil {
				return err
			}
			var pid int
			b.journal.View(func() { pid = b.journal.Ranks[0].PID; step, _ = b.journal.CommittedLocked() })
			bytes, err := arena(pid)
			if err != nil {
				return err
			}
			generation, daemon = append(generation, float64(bytes)/float64(slots)/mib), append(daemon, float64(own(b.Nodes[0].Daemon.PID()))/mib)
		}
		f := newFigure("memory/generation", "MiB", generation, "the state's bytes", constant(float64(state), r.rounds), bound{})
		f.Note = fmt.Sprintf("resident arena / %d slots; the model itself is about a MiB more", slots)
		r.add(f)
		r.add(newFigure("memory/daemon", "MiB", daemon, "64 MiB", constant(64, r.rounds), atMost(1)))
		return nil
	}}
}
