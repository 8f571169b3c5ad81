//go:build cgo

package trouble_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
)

// rot flips a bit in every copy of a rank's weights that a node holds in memory: in each long run of equal numbers that are
// whole and not zero, as the weights are. It reaches the memory through the keeper's descriptors, so nobody is told.
func (n *node) rot() (flipped int) {
	n.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", n.keeper.PID())
	entries, err := os.ReadDir(dir)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		if to, err := os.Readlink(file); err != nil || !strings.Contains(to, "/memfd:") {
			continue
		}
		f, err := os.OpenFile(file, os.O_RDWR, 0)
		if err != nil {
			n.t.Fatal(err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			n.t.Fatal(err)
		}
		word := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
		for at := 0; at+4 <= len(b); {
			end := at + 4
			for end+4 <= len(b) && word(end) == word(at) {
				end += 4
			}
			if v := math.Float32frombits(word(at)); end-at >= 256 && v >= 1 && v == float32(int(v)) {
				if _, err := f.WriteAt([]byte{b[at+40] ^ 1}, int64(at+40)); err != nil {
					n.t.Fatal(err)
				}
				flipped++
			}
			at = end
		}
		f.Close()
	}
	return flipped
}

// freeze stops a job's one rank between two looks of ours and returns the step that is committed then, at least.
func freeze(t *testing.T, n *node, l *process) (pid, step int) {
	t.Helper()
	at := l.await("step", fields{"step": 12})
	pid = int(at.fields["pid"].(float64))
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), ") T ") {
			return pid, n.statusWhen(linked).job("job").Position.Step
		}
	}
}

// pair is a cluster of a voter, a node with the rank in the same failure domain, and one in another, which gets the mirrors.
func pair(t *testing.T, change func(*config.Config)) (voter, home, mirror *node) {
	t.Helper()
	c := newCluster(t, "n1", "n2", "n3")
	for i, n := range c.nodes {
		n.cfg.Labels = map[string]string{"rack": []string{"a", "a", "b"}[i]}
		if change != nil {
			change(n.cfg)
		}
	}
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	return c.nodes[0], c.nodes[1], c.nodes[2]
}

// A bit flips in the rank's own copy: it is found when the rank is restored, never loaded, and fetched from the mirror.
func TestACopyRots(t *testing.T) {
	t.Parallel()
	voter, home, _ := pair(t, nil)
	l := home.run("job", 1, rankSpec{})
	pid, step := freeze(t, voter, l)
	home.rots()
	replaced(t, l, pid, step)
	home.daemon.awaitText(0, "given up, it is fetched from another holder") // said after the fact, and by another process than that which has loaded
	voter.daemon.await("note", fields{"code": "bad-copy", "text": "on n2 failed its digest"})
}

// Every copy in memory rots: each plan that rests on them is given up, until the durable tier serves; nothing loops.
func TestEveryCopyRots(t *testing.T) {
	t.Parallel()
	voter, home, mirror := pair(t, nil)
	l := home.run("job", 1, rankSpec{}, "--durable-every", "5")
	voter.daemon.await("durable", nil)
	pid, _ := freeze(t, voter, l)
	if a, b := home.rot(), mirror.rot(); a == 0 || b == 0 {
		t.Fatalf("%d and %d copies were found in memory", a, b)
	}
	from := l.mark()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	o := l.awaitFrom(from, "loaded", nil)
	if o.fields["source"] != "durable" {
		t.Errorf("a copy was loaded though every one in memory was bad: %s", o.text)
	}
	voter.daemon.await("note", fields{"code": "bad-copy", "text": "on n2, n3 failed its digest"})
	l.awaitFrom(from, "step", fields{"step": int(o.fields["step"].(float64)) + 3})
}

// A rank finds what it was given to load bad although it hashes right: the generation is condemned, an older one serves.
func TestARankRejectsWhatItLoads(t *testing.T) {
	t.Parallel()
	voter, home, _ := pair(t, nil)
	l := home.run("job", 1, rankSpec{Reject: true}, "--durable-every", "5")
	voter.daemon.await("durable", nil)
	voter.daemon.awaitFrom(voter.daemon.mark(), "durable", nil) // two: the rank may reject the newest
	pid, _ := freeze(t, voter, l)
	from := l.mark()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rejected := l.awaitFrom(from, "rejects", nil)
	voter.daemon.await("condemned", fields{"reason": "rejects it: a NaN in weights"})
	o := l.awaitFrom(from, "loaded", nil)
	if o.fields["step"].(float64) >= rejected.fields["step"].(float64) {
		t.Errorf("rejected %s, then loaded %s", rejected.text, o.text)
	}
	l.awaitFrom(from, "step", fields{"step": int(rejected.fields["step"].(float64)) + 3})
}

// The nodes with all of the newest copies fall silent. Recovery waits for them, until the operator says that they are lost.
func TestNodesAreLostForGood(t *testing.T) {
	t.Parallel()
	voter, home, mirror := pair(t, func(c *config.Config) {
		c.Timing.HolderGrace, c.Timing.Ack, c.Timing.DaemonGrace = time.Hour, time.Second, time.Second
	})
	l := home.run("job", 1, rankSpec{}, "--durable-every", "5")
	voter.daemon.await("durable", nil)
	voter.statusWhen(func(s status) bool { return s.state("n3") == "alive" })
	if code, out := voter.verb("node", "lost", "n3"); code == 0 || !strings.Contains(out, "n3 is connected and answers, its memory is there") {
		t.Errorf("a node that is here: code %d:\n%s", code, out)
	}
	if code, out := voter.verb("node", "lost", "n9"); code == 0 || !strings.Contains(out, `node "n9" is not registered`) {
		t.Errorf("a node that never was: code %d:\n%s", code, out)
	}
	spare := voter.run("job", 1, rankSpec{}, "--durable-every", "5", "--spare")
	l.await("step", fields{"step": 12})
	from := voter.daemon.mark()
	for _, n := range []*node{home, mirror} { // a host that is off does not refuse connections: it is silent
		n.daemon.Signal(syscall.SIGSTOP)
		n.keeper.kill()
	}
	l.kill()
	voter.daemon.awaitFrom(from, "note", fields{"code": "waiting", "text": "recorded as holders and not proved lost"})
	for _, name := range []string{"n2", "n3"} {
		contains(t, voter.loses(name), "is recorded as lost in 1 jobs")
	}
	o := spare.await("loaded", nil)
	if o.fields["source"] != "durable" {
		t.Errorf("want the durable tier: %s", o.text)
	}
	spare.await("step", fields{"step": int(o.fields["step"].(float64)) + 3})
}
