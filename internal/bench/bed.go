package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/internal/config"
)

const patience = 2 * time.Minute // for what should take seconds

// bed is a cluster of real processes on this machine: three voters and the nodes after them. One goroutine drives it.
type bed struct {
	*cluster.Cluster
	journal *cluster.Journal
	spawn   *cluster.Spawner
	trainer string
	unwatch func() // ends the watch of the daemons' status, and waits for that: answering takes their time
	stop    func() error
}

// newBed starts a cluster. job is the name of a folder for it.
func (r *runner) newBed(ctx context.Context, job string, nodes ...string) (*bed, error) {
	return r.newBedOn(ctx, nil, job, nodes...)
}

// newBedOn starts a cluster on some of the cores.
func (r *runner) newBedOn(ctx context.Context, on cores, job string, nodes ...string) (*bed, error) {
	return r.newBedWith(ctx, on, nil, job, nodes...)
}

// newBedWith starts a cluster whose configurations tier changes; it may start what they need, with its files in dir.
func (r *runner) newBedWith(ctx context.Context, on cores, tier func(spawn *cluster.Spawner, dir string) (func(*config.Config), error), job string, nodes ...string) (b *bed, err error) {
	if err := r.needsTrainer(); err != nil {
		return nil, err
	}
	dir := r.sub(job)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := cluster.CheckSockets(dir, nodes[0]); err != nil {
		return nil, err
	}
	unadopt, err := cluster.AdoptOrphans()
	if err != nil {
		return nil, err
	}
	spawn := cluster.NewSpawner()
	b = &bed{journal: cluster.NewJournal(), spawn: spawn, trainer: r.trainer()}
	watching, endWatch := context.WithCancel(ctx)
	var wg sync.WaitGroup
	b.unwatch = func() { endWatch(); wg.Wait() }
	b.stop = func() error {
		if b.Cluster != nil {
			b.Stop(3 * time.Second)
		}
		b.unwatch()
		if b.Cluster != nil {
			b.Release()
		}
		err := spawn.Close()
		unadopt()
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.stop())
		}
	}()
	if err := b.keep(on); err != nil {
		return nil, err
	}
	change := func(c *config.Config) { c.Log.Level = "info" }
	if tier != nil {
		if change, err = tier(spawn, dir); err != nil {
			return nil, err
		}
	}
	b.Cluster, err = cluster.New(cluster.Plan{Dir: dir, Program: r.opt.Program, Nodes: nodes, Voters: 3, Change: change}, spawn, b.journal)
	if err != nil {
		return nil, err
	}
	for _, n := range b.Nodes {
		if err := b.Start(n); err != nil {
			return nil, err
		}
	}
	wg.Go(func() { b.Watch(watching) })
	return b, b.await(ctx, "daemons that agree about a leader", func() bool {
		for _, n := range b.Names() {
			if s := b.journal.Status[n]; s == nil || s.Leader == "" || len(s.Nodes) < len(nodes) {
				return false
			}
		}
		return true
	})
}

func (b *bed) await(ctx context.Context, what string, ok func() bool) error {
	return b.journal.Await(ctx, patience, what, ok)
}

// train launches ranks of a job of textlm without shards on a node; no ranks: a spare.
func (b *bed) train(n *cluster.Node, job cluster.Job, ranks string, flags ...string) error {
	job.Command = append([]string{b.trainer, "--shards", "1", "--steps", fmt.Sprint(1 << 40)}, flags...)
	job.Groups = strings.TrimSuffix(strings.Repeat("0,", job.World), ",")
	return b.Launch(n, job, ranks)
}

// pause waits, without a measurement beside it.
func pause(ctx context.Context, t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// cpu is the processor time that a process has had, by the scheduler's clock of each of its threads.
func cpu(pid int) (t time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("processor time of process %d: it is gone, or the kernel keeps none: %w", pid, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // a thread that ended since
		}
		first, _, _ := strings.Cut(string(b), " ")
		n, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		t += time.Duration(n)
	}
	return t, nil
}

// own is a process's own memory, in bytes: what it shares with others, such as arenas, is not in it.
func own(pid int) uint64 {
	status := fmt.Sprintf("/proc/%d/status", pid)
	return kilobytes(status, "RssAnon") + kilobytes(status, "RssFile")
}

// arena is what is resident of the arenas that a process maps, in bytes.
func arena(pid int) (bytes uint64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, err
	}
	return residentMemfds(string(b)), nil
}

// residentMemfds adds up the Rss lines of mappings of memfds.
func residentMemfds(smaps string) (bytes uint64) {
	ours := false
	for line := range strings.Lines(smaps) {
		words := strings.Fields(line)
		switch {
		case len(words) >= 5 && strings.Contains(words[0], "-"): // the head of a mapping
			ours = len(words) >= 6 && strings.HasPrefix(words[5], "/memfd:")
		case ours && len(words) == 3 && words[0] == "Rss:":
			n, _ := strconv.ParseUint(words[1], 10, 64) // 0 of what is no number
			bytes += n << 10
		}
	}
	return bytes
}
