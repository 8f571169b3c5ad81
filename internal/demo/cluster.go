package demo

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/internal/config"
)

const (
	jobName      = "demo"
	durableEvery = 50 // steps
)

// homes are the nodes; the last is a spare. Rank r starts on voter r%voters, so that replicas lie on different nodes.
var homes = []string{"n1", "n2", "n3", "n4"}

const voters = 3

// homeRanks are the ranks that start on a node, as --ranks has them.
func homeRanks(home, world int) string {
	var list []string
	for r := home; home < voters && r < world; r += voters {
		list = append(list, fmt.Sprint(r))
	}
	return strings.Join(list, ",")
}

// newCluster makes the demo's nodes under dir. store is where they write what is durable; nil: in a directory there.
func newCluster(opt Options, dir string, store *cluster.Store, spawn *cluster.Spawner, j *cluster.Journal) (*cluster.Cluster, error) {
	if err := os.MkdirAll(faultDir(dir), 0o700); err != nil {
		return nil, fmt.Errorf("demo directory: %w", err)
	}
	change := func(c *config.Config) {
		c.Log.Level = opt.LogLevel
		if store != nil {
			store.Use(c)
		}
	}
	return cluster.New(cluster.Plan{Dir: dir, Program: opt.Program, Nodes: homes, Voters: voters, Change: change}, spawn, j)
}

// openStore opens what --durable names, and starts its server; nil: nothing was named.
func openStore(ctx context.Context, opt Options, dir string, spawn *cluster.Spawner) (*cluster.Store, error) {
	if opt.Durable == "" {
		return nil, nil
	}
	if err := os.MkdirAll(filepath.Dir(cluster.LogPath(dir, "bucket")), 0o700); err != nil {
		return nil, fmt.Errorf("demo directory: %w", err)
	}
	s, err := cluster.OpenStore(ctx, spawn, opt.Durable, dir, filepath.Join(filepath.Dir(opt.Program), "tools"))
	if err != nil {
		return nil, fmt.Errorf("--durable: %w", err)
	}
	return s, nil
}

// generations is what `replicad ckpt ls` prints of a store.
func generations(ctx context.Context, opt Options, s *cluster.Store) (string, error) {
	ls := exec.CommandContext(ctx, opt.Program, "ckpt", "ls", s.URL)
	ls.Env = append(os.Environ(), s.Env...)
	out, err := ls.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("replicad ckpt ls %s: %w: %s", s.URL, err, out)
	}
	return fmt.Sprintf("\nreplicad ckpt ls %s\n%s", s.URL, out), nil
}

func faultDir(dir string) string { return filepath.Join(dir, "faults") }

// launch starts the launcher of node i, for its own ranks or as a spare; a node that comes back is a spare.
func (d *driver) launch(i int, spare bool) error {
	job := cluster.Job{Name: d.job, World: d.opt.World, Groups: d.opt.groupList(), Flags: []string{"--durable-every", fmt.Sprint(durableEvery)},
		Command: append(d.opt.trainer(), "--pace", d.opt.Pace.String()), Env: append([]string{"TEXTLM_FAULT_DIR=" + faultDir(d.cluster.Dir)}, d.env...)}
	if d.from != "" {
		job.Flags = append(job.Flags, "--from", d.from)
	}
	if d.resume {
		job.Flags = append(job.Flags, "--resume")
	}
	if d.opt.Slots > 0 {
		job.Flags = append(job.Flags, "--slots", fmt.Sprint(d.opt.Slots))
	}
	if d.opt.Copies > 0 {
		job.Flags = append(job.Flags, "--min-copies", fmt.Sprint(d.opt.Copies))
	}
	if d.opt.Warm > 0 {
		job.Flags = append(job.Flags, "--warm", fmt.Sprint(d.opt.Warm))
	}
	if d.opt.Preload == "none" {
		job.Flags = append(job.Flags, "--preload", d.opt.Preload)
	}
	ranks := homeRanks(i, d.opt.World)
	if spare {
		ranks = ""
	}
	return d.cluster.Launch(d.cluster.Nodes[i], job, ranks)
}

// revive brings a killed node back as a spare.
func (d *driver) revive(name string) error {
	for i, n := range d.cluster.Nodes {
		if n.Name == name {
			if err := d.cluster.Revive(n); err != nil {
				return err
			}
			return d.launch(i, true)
		}
	}
	return nil
}
