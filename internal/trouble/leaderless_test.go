//go:build cgo

package trouble_test

import (
	"strings"
	"testing"
)

// TestNoLeaderIsSaid: two of three voters die. The third says once what that means, not what Raft tries again and again, and that
// there is a leader once one of them is back.
func TestNoLeaderIsSaid(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	n1 := c.nodes[0]
	n1.statusWhen(func(s status) bool { // they vote: one that waits when it dies is named for that
		one, _ := s.vote(c.nodes[1].cfg.Node)
		other, _ := s.vote(c.nodes[2].cfg.Node)
		return one && other
	})
	from := n1.daemon.mark()
	for _, n := range c.nodes[1:] {
		n.daemon.kill()
	}
	f := n1.daemon.awaitFrom(from, "no_leader", fields{"level": "warn", "message": "nothing is committed", "remedy": "2 of the 3 voters must run"})
	contains(t, f.text, `"n2"`, `"n3"`)
	seen := map[string]int{} // Raft's lines until then, by kind and peer
	_, _, _ = n1.daemon.scan(from, func(l line) bool {
		if l.is("raft", nil) {
			kind := []string{}
			for _, k := range []string{"text", "raft_peer", "raft_target", "raft_server-id", "raft_candidate", "raft_from"} {
				s, _ := l.fields[k].(string)
				kind = append(kind, s)
			}
			seen[strings.Join(kind, " ")]++
		}
		return l.is("no_leader", nil)
	})
	for kind, times := range seen {
		if times > 1 {
			t.Errorf("%q is said %d times before anybody says that there is no leader", kind, times)
		}
	}
	c.nodes[1].launch()
	n1.daemon.awaitFrom(from, "leader_again", nil)
}
