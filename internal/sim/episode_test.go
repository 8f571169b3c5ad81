package sim

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/racing"
)

var (
	episodes = flag.Int("episodes", 100, "how many to play; under the race detector one in seven of them")
	seed     = flag.Uint64("seed", 1, "of the first one; each next has the next")
	long     = flag.Duration("for", time.Hour, "how long a run may take; what is not played by then is left out")
	most     = flag.Duration("most", 20*time.Minute, "how long a job may take, in its own time")
	level    = flag.String("level", "info", "of the daemons' lines in a trace")
	all      = flag.Bool("all", false, "keep the traces of all episodes")
	table    = flag.String("table", "", "a file for what the run came to")
	first    = flag.Bool("first", false, "play no more once one has failed")
	keep     = flag.String("keep", "", "a directory for the traces of episodes that fail")
)

// An episode leaves much behind and keeps little: collecting less often saves an eighth of the time.
func init() { debug.SetGCPercent(400) }

// TestEpisodes plays jobs from start to end, with faults at random moments.
func TestEpisodes(t *testing.T) {
	t.Cleanup(func() { ends(t) })
	for s := *seed; s < *seed+uint64(*episodes); s += racing.Stride {
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			t.Parallel()
			if time.Since(report.began) < *long && !(*first && report.fails()) {
				play(t, s)
			}
		})
	}
}

// play plays one episode. What happens when is drawn from the seed; what happens at one moment happens in the scheduler's order.
func play(t *testing.T, seed uint64) {
	dir, err := os.MkdirTemp(quick(), "sim")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	failed := false
	defer func() {
		if report.ends(seed, failed)%100 == 0 {
			sum(t) // by the real clock
		}
	}()
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		w := newWorld(t, ctx, seed, dir)
		s := newScript(w)
		go w.raft.elect(ctx)
		for _, n := range w.names {
			w.machines[n].start()
		}
		s.run()
		w.end()
		w.linear()
		cancel()
		failed = w.failed > 0
		if w.failed > 0 || *all {
			w.save(t)
		}
	})
}

// quick is a directory in memory, if there is one: durable writes are synced, and a disk would take its time for that by the real clock.
func quick() string {
	const shm = "/dev/shm"
	if st, err := os.Stat(shm); err == nil && st.IsDir() {
		return shm
	}
	return ""
}

// save writes the trace of an episode that has failed.
func (w *world) save(t *testing.T) {
	dir := *keep
	if dir == "" {
		dir = os.TempDir()
	}
	path := filepath.Join(dir, fmt.Sprintf("replicad-sim-%d.log", w.seed))
	if err := os.WriteFile(path, w.trace.Bytes(), 0o600); err != nil {
		t.Error(err)
	}
	if w.failed == 0 {
		return
	}
	again := fmt.Sprintf("make sim EPISODES=1 SEED=%d", w.seed)
	if test, _, _ := strings.Cut(t.Name(), "/"); test != "TestEpisodes" {
		again = fmt.Sprintf("go test ./internal/sim -run %s -episodes 1 -seed %d", test, w.seed)
	}
	if given := leans(); given != "" {
		again += fmt.Sprintf(" SIM=%q", given)
	}
	t.Errorf("seed %d: the faults were %v; the trace is in %s; `%s` plays it again", w.seed, w.faults, path, again)
}

// ends looks at the run as a whole, after its last episode.
func ends(t *testing.T) {
	report.check(t, leans() != "")
	sum(t)
}

// sum writes the table of what the run came to, so far.
func sum(t *testing.T) {
	if *table == "" {
		return
	}
	var b bytes.Buffer
	report.write(&b)
	if err := os.WriteFile(*table, b.Bytes(), 0o600); err != nil {
		t.Error(err)
	}
}
