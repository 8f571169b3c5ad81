//go:build cgo

package trouble_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// TestAnyFleetGoesOn: a fleet of another pki goes on with a run by its store alone, exactly, frozen parts too, and writes it on. When the first fleet comes
// back it takes the run in turn; the other one is told whose it is, and trains on.
func TestAnyFleetGoesOn(t *testing.T) {
	t.Parallel()
	for layout, groups := range map[string]string{"mirrored": "0,0", "sharded": "0,1"} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			first, second := newCluster(t, "n1").nodes[0], newCluster(t, "m1").nodes[0]
			second.cfg.DurableDir = first.cfg.DurableDir
			second.write()
			run := func(n *node, flags ...string) *process {
				return n.run("job", 2, rankSpec{Pace: 10 * time.Millisecond}, append([]string{"--groups", groups}, flags...)...)
			}
			first.start()
			l := run(first, "--durable-every", "5")
			for range 2 {
				first.daemon.awaitFrom(first.daemon.mark(), "durable", nil)
			}
			id := l.await("loaded", nil).fields["job"]
			newest := first.daemon.newestDurable()
			l.kill()
			first.die()

			second.start()
			other := run(second, "--resume", "--durable-every", "5")
			if at := other.await("loaded", fields{"source": "durable", "job": id}); int(at.fields["step"].(float64)) < newest {
				t.Errorf("it goes on from step %v, and step %d was durable", at.fields["step"], newest)
			}
			other.awaitText(0, "was written by cluster "+first.cluster()+": the run is this cluster's now ("+second.cluster()+")")
			second.daemon.awaitFrom(0, "durable", nil)
			newest = second.daemon.newestDurable()

			first.afresh()
			l = run(first, "--resume", "--durable-every", "5")
			if at := l.await("loaded", fields{"source": "durable", "job": id}); int(at.fields["step"].(float64)) < newest {
				t.Errorf("the first fleet goes on from step %v, and step %d was durable", at.fields["step"], newest)
			}
			first.daemon.awaitFrom(0, "durable", nil)
			other.awaitText(0, "warning: durable writes end: ")
			other.says("another fleet owns the run: n1-", fmt.Sprintf("cluster %s", first.cluster()), "training goes on")
			other.awaitFrom(other.mark(), "step", nil)
		})
	}
}

// TestAnyFleetGoesOnWithoutRunJSON: a run of whole generations has lost run.json, and its fleet is dead. A fresh one goes on with it, puts the file anew, and
// another job begins with it.
func TestAnyFleetGoesOnWithoutRunJSON(t *testing.T) {
	t.Parallel()
	first, second := newCluster(t, "n1").nodes[0], newCluster(t, "m1").nodes[0]
	second.cfg.DurableDir = first.cfg.DurableDir
	second.write()
	first.start()
	l := first.run("job", 1, rankSpec{}, "--durable-every", "5")
	for range 2 {
		first.daemon.awaitFrom(first.daemon.mark(), "durable", nil)
	}
	id := l.await("loaded", nil).fields["job"]
	l.kill()
	first.die()
	newest := newest(t, first) // also of what was written on the way
	words, err := filepath.Glob(filepath.Join(first.cfg.DurableDir, "job", "*", "run.json"))
	if err != nil || len(words) != 1 {
		t.Fatal(words, err)
	}
	remove(t, words[0])

	second.start()
	begun := second.run("new", 1, rankSpec{}, "--from", first.cfg.DurableDir+"/job")
	begun.awaitText(0, fmt.Sprintf("from: step %d of file://%s/job", newest, first.cfg.DurableDir))
	begun.kill()
	other := second.run("job", 1, rankSpec{}, "--resume", "--durable-every", "5")
	if at := other.await("loaded", fields{"source": "durable", "job": id}); int(at.fields["step"].(float64)) < newest {
		t.Errorf("it goes on from step %v, and step %d was durable", at.fields["step"], newest)
	}
	second.daemon.awaitFrom(second.daemon.mark(), "durable", nil)
	if size(t, words[0]) == 0 {
		t.Error("run.json was not put anew")
	}
}

// newestDurable is the newest step that the daemon has called durable.
func (p *process) newestDurable() (step int) {
	for _, s := range p.steps(0, "durable") {
		step = max(step, s)
	}
	return step
}
