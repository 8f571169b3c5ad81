//go:build cgo

package trouble_test

import (
	"syscall"
	"testing"
)

// Bits flip in what a node holds, and nobody asks for it: its scrubber finds them.
func TestScrubbersFindWhatRots(t *testing.T) {
	// The leader's record is corrected, and the committed part is fetched again: it serves when the mirror's copy is gone too.
	t.Run("where the rank runs", func(t *testing.T) {
		t.Parallel()
		voter, home, mirror := pair(t, nil)
		l := home.run("job", 1, rankSpec{})
		pid, step := freeze(t, voter, l)
		from, at := home.daemon.mark(), voter.daemon.mark()
		home.rots()
		home.daemon.awaitFrom(from, "rotten_copy", nil)
		voter.daemon.awaitFrom(at, "copies", fields{"copies": 1, "degraded": true})
		home.daemon.awaitFrom(from, "moved", fields{"part": "group 0"})
		voter.daemon.awaitFrom(at, "copies", fields{"copies": 2, "degraded": false})
		mirror.rots()
		replacedBy(t, l, pid, step, "own-ram")
		if s := home.status().Scrubbed; s.Bad == 0 || s.Bytes == 0 {
			t.Errorf("status: %+v", s)
		}
	})
	// The committed part is fetched again: it serves when the other copy is gone too.
	t.Run("in a mirror", func(t *testing.T) {
		t.Parallel()
		voter, home, mirror := pair(t, nil)
		l := home.run("job", 1, rankSpec{})
		pid, step := freeze(t, voter, l)
		from := mirror.daemon.mark()
		mirror.rots()
		mirror.daemon.awaitFrom(from, "rotten_copy", nil)
		mirror.daemon.awaitFrom(from, "moved", fields{"part": "group 0"})
		home.rots()
		replaced(t, l, pid, step)
	})
}

func (n *node) rots() {
	n.t.Helper()
	if flipped := n.rot(); flipped == 0 {
		n.t.Fatalf("%s: no copy was found in memory", n.cfg.Node)
	}
}

// replaced kills a job's one rank. The process that takes it over must have its state from another node, and go on; it compares every weight.
func replaced(t *testing.T, l *process, pid, step int) {
	t.Helper()
	replacedBy(t, l, pid, step, "peer-ram")
}

// replacedBy is replaced with the state from a source.
func replacedBy(t *testing.T, l *process, pid, step int, source string) {
	t.Helper()
	from := l.mark()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	o := l.awaitFrom(from, "loaded", nil)
	if got := int(o.fields["step"].(float64)); got < step || o.fields["source"] != source {
		t.Errorf("want at least step %d of %s: %s", step, source, o.text)
	}
	l.awaitFrom(from, "step", fields{"step": int(o.fields["step"].(float64)) + 3})
}
