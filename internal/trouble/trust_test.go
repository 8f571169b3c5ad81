//go:build cgo

package trouble_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// epochIn is the epoch that a refusal's remedy names: what comes behind --after.
func epochIn(t *testing.T, text string) string {
	t.Helper()
	m := regexp.MustCompile(`--after (\d+)`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no remedy in %s", text)
	}
	return m[1]
}

// refused waits until the node's status says that its certificate is revoked, and returns that. Its log may say first that a busy voter did not
// answer, and then nothing of that voter for half a minute.
func (n *node) refused() (out string) {
	n.t.Helper()
	var code int
	if !poll(n.t, "a word that the certificate is revoked", func() bool {
		code, out = call(n.t, "status", "--config", n.File)
		at := strings.Index(out, "no link")
		return code == 0 && at >= 0 && strings.Contains(out[at:], "certificate revoked")
	}) {
		n.t.Fatalf("code %d: %s", code, out)
	}
	return out
}

// pki runs a verb of replicad pki on the cluster's identity.
func (c *cluster) pki(words ...string) string {
	c.t.Helper()
	code, out := call(c.t, append(append([]string{"pki"}, words...), "--dir", filepath.Join(c.Dir, "pki"))...)
	if code != 0 {
		c.t.Fatalf("pki %v: code %d: %s", words, code, out)
	}
	return out
}

// TestRevokedNode: a node with a rank is revoked: the job goes on elsewhere, nobody talks to the node, before a restart and after it, it
// reads why; and with the next certificate it is back.
func TestRevokedNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	n1, n2, n3 := c.nodes[0], c.nodes[1], c.nodes[2]
	n1.run("job", 2, rankSpec{}, "--ranks", "0")
	n2.run("job", 2, rankSpec{}, "--ranks", "1").await("step", fields{"step": 5})
	if code, out := call(t, "revoke", "node", "n2", "--socket", n2.cfg.AdminSocket); code != exitFailed { // with its own key alone
		t.Errorf("code %d: %s", code, out)
	} else {
		contains(t, out, "--operator FILE")
	}
	for words, want := range map[string]string{
		"revoke node n2":         "other nodes offer 0 processes",
		"revoke node n1":         "n1 leads",
		"revoke node n9":         `no node "n9" is registered`,
		"revoke node n2 --until": "later than 5, which would stay valid",
	} {
		args := strings.Fields(words)
		if args[len(args)-1] == "--until" {
			args = append(args, "5")
		}
		if code, out := n1.verb(args...); code != exitFailed {
			t.Errorf("%s: code %d: %s", words, code, out)
		} else {
			contains(t, out, want)
		}
	}
	spare := n3.run("job", 2, rankSpec{}, "--spare", "--capacity", "1")
	n1.statusWhen(func(s status) bool { return len(s.job("job").Offers) > 0 })
	before := n2.daemon.mark()
	n1.until("revoke", "node", "n2")
	spare.await("step", fields{"rank": 1}) // it is on n3
	at := n1.statusWhen(func(s status) bool { return s.job("job").Phase == "open" }).job("job").Position.Step
	n1.statusWhen(func(s status) bool { return s.job("job").Position.Step > at })

	n2.daemon.awaitFrom(before, "unlinked", nil)
	why := n2.refused()
	contains(t, why, "certificate revoked", "node n2", "replicad pki renew n2 --after")
	for _, n := range []*node{n1, n3} {
		n.daemon.await("revoked", fields{"role": "node", "name": "n2", "by": "operator"})
	}
	if code, out := call(t, "status", "--config", n1.File); code != 0 {
		t.Errorf("code %d: %s", code, out)
	} else {
		contains(t, out, "revoked  ", "node n2: certificates up to epoch", "refused")
	}

	// Who refuses knows it from its disk, before it has a link.
	n1.daemon.kill()
	n3.daemon.kill()
	n3.launch()
	n3.daemon.await("daemon_ready", nil)
	if code, out := call(t, "status", "--config", n3.File); code != 0 {
		t.Errorf("code %d: %s", code, out)
	} else {
		contains(t, out, "node n2: certificates up to epoch")
	}
	n1.launch()
	for _, n := range []*node{n1, n3} {
		n.daemon.await("linked", nil)
	}
	n1.daemon.await("failed", fields{"what": "endpoint", "why": "certificate revoked"})

	back := n2.daemon.mark()
	c.pki("renew", "n2", "--after", epochIn(t, why))
	n2.daemon.awaitFrom(back, "certificate_renewed", nil)
	n2.daemon.awaitFrom(back, "linked", nil)
	at = n2.statusWhen(func(s status) bool { return linked(s) && s.job("job").Phase == "open" }).job("job").Position.Step
	n2.statusWhen(func(s status) bool { return s.job("job").Position.Step > at })
	text, err := os.ReadFile(filepath.Join(n1.cfg.StateDir, "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(text), `"verb":"revoke node"`, `"by":"operator operator"`, `"event":"revoked"`)
}

// TestRevokingKeepsAMajority: a voter that the others need is revoked by force alone; one that is down can be, and votes no more when it is up.
func TestRevokingKeepsAMajority(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	leads := c.nodes[0].statusWhen(linked).Leader
	var leader *node
	var others []*node
	for _, n := range c.nodes {
		if n.Name == leads {
			leader = n
		} else {
			others = append(others, n)
		}
	}
	down, needed := others[0], others[1]
	down.daemon.kill()
	if code, out := leader.verb("revoke", "node", needed.Name); code != exitFailed {
		t.Errorf("code %d: %s", code, out)
	} else {
		contains(t, out, "1 of the 3 voters answer", "--force")
	}
	leader.until("revoke", "node", down.Name)
	needed.daemon.await("revoked", fields{"name": down.Name})
	down.launch()
	why := down.refused()
	contains(t, why, "pki renew "+down.Name)
	leader.run("job", 1, rankSpec{}, "--min-copies", "1").await("step", fields{"step": 5})
	c.pki("renew", down.Name, "--after", epochIn(t, why))
	down.daemon.await("linked", nil)
}

// TestRevokedOperator: a revoked operator's orders are refused, whatever node they come through; no operator is revoked by itself without a
// word; and the next certificate is good.
func TestRevokedOperator(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	n1, n2 := c.nodes[0], c.nodes[1]
	c.pki("operator", "eve")
	eve := filepath.Join(c.Dir, "pki", "operator-eve.pem")
	order := func(n *node) (int, string) {
		return n.verb("node", "clear", "n1", "--operator", eve)
	}
	if _, out := order(n2); !strings.Contains(out, "no running job excludes node") {
		t.Fatalf("a good operator: %s", out)
	}
	if code, out := n1.verb("revoke", "operator", "eve", "--operator", eve); code != exitFailed {
		t.Errorf("code %d: %s", code, out)
	} else {
		contains(t, out, "signed this order", "--force")
	}
	n2.until("revoke", "operator", "eve")
	after := ""
	for _, n := range c.nodes {
		code, out := order(n)
		if code != exitFailed {
			t.Errorf("through %s: code %d: %s", n.Name, code, out)
		}
		contains(t, out, "revoked", "replicad pki operator eve --after")
		after = epochIn(t, out)
	}
	for _, file := range []string{eve, strings.TrimSuffix(eve, ".pem") + "-key.pem"} {
		if err := os.Rename(file, file+".old"); err != nil {
			t.Fatal(err)
		}
	}
	c.pki("operator", "eve", "--after", after)
	if _, out := order(n2); !strings.Contains(out, "no running job excludes node") {
		t.Errorf("its next certificate: %s", out)
	}
}

// TestGossipKeyRotates: a job trains on while the gossip key of its three nodes changes, one node after the other in each step; nobody gets a word
// that it can't read. A link may be lost here, as on any busy machine: none knows of these keys.
func TestGossipKeyRotates(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	c.calm()
	main := filepath.Join(c.Dir, "pki", "gossip.key")
	give := func(n *node) { // as an operator copies it: whole
		b, err := os.ReadFile(main)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(n.cfg.PKI.GossipKey+".new", b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(n.cfg.PKI.GossipKey+".new", n.cfg.PKI.GossipKey); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.nodes {
		n.cfg.PKI.GossipKey = filepath.Join(c.Dir, n.Name+"-gossip.key")
		n.write()
		give(n)
		n.launch()
	}
	marks := map[*node]int{}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	n1 := c.nodes[0]
	pace := rankSpec{Pace: 50 * time.Millisecond} // an epoch's rendezvous has 4096 barriers
	first := n1.run("job", 2, pace, "--ranks", "0")
	c.nodes[1].run("job", 2, pace, "--ranks", "1").await("step", fields{"step": 5})
	for _, n := range c.nodes {
		n.statusWhen(func(s status) bool { return linked(s) && len(s.Nodes) == 3 && !anyNode(s, "silent", "unknown") })
		marks[n] = n.daemon.mark()
	}
	fingerprints := regexp.MustCompile(`for sending: ([0-9a-f, ]+)\n`)
	for _, step := range []string{"add", "use", "drop"} {
		m := fingerprints.FindStringSubmatch(c.pki("gossip-key", step))
		if m == nil {
			t.Fatal("no fingerprints")
		}
		for _, n := range c.nodes {
			from := n.daemon.mark()
			give(n)
			n.daemon.awaitFrom(from, "gossip_keys", fields{"keys": m[1]})
		}
		keys := strings.Split(m[1], ", ")
		for _, n := range c.nodes {
			n.statusWhen(func(s status) bool { // all know of all
				if len(s.GossipKeys) != len(keys) || s.GossipKeys[0].Fingerprint != keys[0] || len(s.GossipKeys[0].SpokenBy) != 2 {
					return false
				}
				return len(s.GossipKeys[len(keys)-1].Missing) == 0
			})
		}
		if code, out := call(t, "config", "check", n1.File); code != 0 {
			t.Errorf("code %d: %s", code, out)
		} else {
			contains(t, out, "gossip key "+keys[0])
		}
	}
	at := first.mark()
	first.awaitFrom(at, "step", nil)
	for _, n := range c.nodes {
		n.statusWhen(func(s status) bool { // by probes, which have the keys, too
			return len(s.Nodes) == 3 && !anyNode(s, "silent", "unknown", "unobserved")
		})
		for _, bad := range []func(line) bool{
			func(l line) bool { return l.is("fault", nil) },
			func(l line) bool { return l.is("failed", fields{"what": "gossip", "why": "decrypt"}) }, // of a busy machine memberlist says more
		} {
			if at, found, _ := n.daemon.scan(marks[n], bad); found {
				t.Errorf("%s: %s", n.Name, n.daemon.text(at, at+1))
			}
		}
	}
}

func anyNode(s status, states ...string) bool {
	for _, n := range s.Nodes {
		for _, state := range states {
			if n.State == state {
				return true
			}
		}
	}
	return false
}
