package journal

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// Sixty seconds without quorum used to be 300 lines.
func TestRaftsRetriesAreFewLines(t *testing.T) {
	out := &fixture.Lines{}
	j, err := New(out, config.Log{Level: "info"}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		for _, peer := range []string{"n2", "n3"} {
			j.Raft(true, "failed to make requestVote RPC", "target", peer, "error", errors.New("dial"), "term", time.Now().UnixNano())
		}
		j.Raft(false, "Election timeout reached, restarting election")
	}
	if n := out.Count(`"event":"raft"`); n != 3 {
		t.Errorf("%d lines, want one of each kind and peer:\n%s", n, out.String())
	}
	j.Raft(true, "failed to commit logs", "error", errors.New("other"))
	j.Raft(true, "failed to commit logs", "error", unix.ENOSPC)
	if n := out.Count("free space in state_dir"); n != 1 {
		t.Errorf("%d lines tell of the full disk, want one", n)
	}
}

// What is tried again five times a second for as long as a node is away is said now and then: a mirror that stays down was a gigabyte
// of warnings a day.
func TestRetriesAreSaidNowAndThen(t *testing.T) {
	out := &fixture.Lines{}
	j, err := New(out, config.Log{Level: "info"}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		for _, to := range []replica.NodeName{"n2", "n3"} {
			j.PushFailed(replica.OfRank(0), fixture.Gen(3, replica.Step(i)), to, errors.New("dial"))
		}
		j.Retried("restore", "rank 0, epoch 4", "dial")
	}
	j.Retried("restore", "rank 0, epoch 4", "digest")
	j.Retried("restore", "rank 0, epoch 5", "dial")
	if n, m := out.Count(`"event":"mirror_failed"`), out.Count(`"event":"failed"`); n != 2 || m != 3 {
		t.Errorf("%d lines of parts that were not pushed to two nodes, %d of failed restores; want 2 and 3", n, m)
	}
}

func TestLimiter(t *testing.T) {
	var l limiter
	now := time.Now()
	for i, want := range []bool{true, false, false} {
		if ok, held := l.due("a", now); ok != want || held != 0 {
			t.Errorf("line %d: %v, %d", i, ok, held)
		}
	}
	if ok, held := l.due("a", now.Add(limitEvery)); !ok || held != 2 {
		t.Errorf("after a while: %v, %d held back; want 2", ok, held)
	}
	for i := range 10 * limitKinds {
		l.due(strings.Repeat("x", i), now.Add(limitEvery))
	}
	if len(l.kinds) > limitKinds {
		t.Errorf("%d kinds are remembered", len(l.kinds))
	}
	if ok, _ := l.due("new", now.Add(3*limitEvery)); !ok {
		t.Error("kinds of long ago keep a new one out")
	}
}

// Each job whose messages were left out has a line, and a remedy in it.
func TestEachJobThatWasLeftOutIsNamed(t *testing.T) {
	out := &fixture.Lines{}
	j, err := New(out, config.Log{Level: "info"}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	a, b := replica.JobID{1}, replica.JobID{2}
	for range 100 {
		j.LeftOut("n2", a)
		j.LeftOut("n2", b)
	}
	for _, id := range []replica.JobID{a, b} {
		if n := out.Count(`"of":"` + id.String() + `"`); n != 1 {
			t.Errorf("%d lines of job %v, want one", n, id)
		}
	}
	if n := out.Count(`"remedy":"`); n != 2 {
		t.Errorf("%d lines have a remedy:\n%s", n, out.String())
	}
}
