//go:build cgo

package trouble_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
)

// verb runs a verb that asks the leader through the node's daemon.
func (n *node) verb(words ...string) (code int, out string) {
	n.t.Helper()
	return call(n.t, append(words, "--config", n.File)...)
}

// TestDrain: a node is drained only where somebody can take its ranks, and then it has none and gets none, until it is cleared.
func TestDrain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	c.nodes[0].run("job", 2, rankSpec{}, "--ranks", "0")
	c.nodes[1].run("job", 2, rankSpec{}, "--ranks", "1").await("step", fields{"step": 5})
	if code, out := c.nodes[0].verb("node", "drain", "n2"); code != exitFailed {
		t.Errorf("drained with nobody to take the rank: %s", out)
	} else {
		contains(t, out, "n2 can't be drained", "it runs 1 ranks there, and other nodes offer 0", "--spare")
	}
	if code, out := c.nodes[0].verb("node", "drain", "n9"); code != exitFailed {
		t.Errorf("code %d: %s", code, out)
	}
	spare := c.nodes[2].run("job", 2, rankSpec{}, "--spare", "--capacity", "1", "--cadence", "4")
	spare.awaitText(0, `warning: job "job" runs already, and these flags have no effect on it: --cadence 4 (the job runs with 1)`)
	c.nodes[0].statusWhen(func(s status) bool { return len(s.job("job").Offers) > 0 }) // the report that names the spare is on its way
	code, out := c.nodes[0].verb("node", "drain", "n2")
	if code != 0 {
		t.Fatalf("not drained: code %d: %s", code, out)
	}
	contains(t, out, "node n2 is drained", "job job (open): rank 1 is on n3", "replicad node clear n2")
	spare.await("step", fields{"rank": 1})
	j := c.nodes[0].statusWhen(linked).job("job")
	if len(j.Quarantined) != 1 || j.Quarantined[0] != "n2" {
		t.Errorf("status: %+v", j)
	}
	if code, out := c.nodes[1].verb("node", "clear", "n2"); code != 0 {
		t.Errorf("code %d: %s", code, out)
	}
	if code, out := c.nodes[1].verb("job", "end", "job", "--reason", "enough"); code != 0 {
		t.Errorf("code %d: %s", code, out)
	} else {
		contains(t, out, "job job has ended, newest commit step ")
	}
	if j := c.nodes[0].statusWhen(linked).job("job"); j.Phase != "ended" || j.EndReason != "enough" {
		t.Errorf("%+v", j)
	}
	if code, out := c.nodes[1].verb("job", "end", "job"); code != exitFailed {
		t.Errorf("code %d: %s", code, out)
	}
}

// TestVoterIsReplaced: a voter loses its disk, is removed, and a fresh node votes in its place: the quorum then survives the
// loss of another.
func TestVoterIsReplaced(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3", "n4")
	c.voters(3)
	for _, n := range c.nodes[:3] {
		n.launch()
	}
	for _, n := range c.nodes[:3] {
		n.daemon.await("linked", nil)
	}
	lost, fresh := c.nodes[2], c.nodes[3]
	lost.die()
	if err := os.RemoveAll(filepath.Join(lost.cfg.StateDir, "raft")); err != nil {
		t.Fatal(err)
	}
	c.nodes[0].until("voter", "remove", "n3")
	fresh.cfg.Voters = append(append([]config.Voter{}, c.nodes[0].cfg.Voters[:2]...), config.Voter{Name: "n4", Addr: fresh.cfg.Addr})
	fresh.write()
	fresh.flags = []string{"--join"}
	fresh.launch()
	fresh.daemon.await("linked", nil)
	c.nodes[0].until("voter", "add", "n4", fresh.cfg.Addr)
	if code, out := c.nodes[1].verb("voter", "list"); code != 0 {
		t.Errorf("code %d: %s", code, out)
	} else {
		contains(t, out, "n1", "n2", "n4", "leads")
	}
	c.nodes[0].die() // two of three are left, one of them the fresh one
	fresh.run("job", 1, rankSpec{}).await("step", fields{"step": 5})
}

// until asks again until the leader, which may have to be elected first, has done it. What became of a request that no leader answered is
// not known: where a later one then meets a conflict, there was nothing left for it to do.
func (n *node) until(words ...string) {
	n.t.Helper()
	unknown := false
	for end := time.Now().Add(patience); ; {
		code, out := n.verb(words...)
		if code == 0 || unknown && strings.Contains(out, "409 Conflict") {
			return
		}
		unknown = unknown || strings.Contains(out, "the outcome of the request is unknown")
		if time.Now().After(end) {
			n.t.Fatalf("%v: %s", words, out)
		}
	}
}

// TestOrdersNeedAnOperator: without an operator's certificate a node's user can do nothing to other nodes, to voters or to jobs of others;
// with it everything, from any node; and who did what is in the leader's audit log.
func TestOrdersNeedAnOperator(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	n1, n2 := c.nodes[0], c.nodes[1]
	l := n1.run("job", 1, rankSpec{})
	l.await("step", fields{"step": 5})
	bare := func(n *node, words ...string) (int, string) {
		return call(t, append(words, "--socket", n.cfg.AdminSocket)...)
	}
	for _, words := range [][]string{{"job", "end", "job"}, {"node", "drain", "n1", "--degrade"}, {"node", "lost", "n1"}, {"node", "clear", "n1"}, {"voter", "add", "n2", n2.cfg.Addr}, {"voter", "remove", "n1"}} {
		if code, out := bare(n2, words...); code != exitFailed {
			t.Errorf("%v: code %d: %s", words, code, out)
		} else {
			contains(t, out, "--operator FILE", "operator.pem")
		}
	}
	if code, out := bare(n2, "voter", "list"); code != 0 {
		t.Errorf("the list, which changes nothing: code %d: %s", code, out)
	}
	if code, out := bare(n1, "node", "lost", "n1"); code != exitFailed {
		t.Errorf("code %d: %s", code, out)
	} else {
		contains(t, out, "n1 is connected and answers")
	}
	if code, out := n2.verb("node", "clear", "n1"); code != exitFailed { // signed, by the configuration
		t.Errorf("code %d: %s", code, out)
	} else {
		contains(t, out, "n1", "no running job excludes node")
	}
	l.await("step", fields{"step": 20})
	if code, out := bare(n1, "job", "end", "job", "--reason", "enough"); code != 0 { // it was created here
		t.Errorf("code %d: %s", code, out)
	}
	l.exit()
	log := filepath.Join(n1.cfg.StateDir, "audit.jsonl")
	n1.daemon.Signal(syscall.SIGTERM)
	n1.daemon.exit()
	if code, out := call(t, "audit", "verify", log); code != 0 {
		t.Errorf("code %d: %s", code, out)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(text), `"by":"operator operator"`, `"verb":"node clear"`, `"verb":"job end"`, `of node n1"`, `"event":"join"`, `"event":"claim"`, `"event":"refused"`, `"from":"n2"`)
}
