package node

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/membership"
	"github.com/replicad/replicad/replica"
)

// A certificate is named once a day in its last thirty days and once an hour in its last three; a renewed one ends that.
func TestCertificateEndIsSaid(t *testing.T) {
	dir := t.TempDir()
	made := time.Now()
	if err := pki.Init(dir, []replica.NodeName{"a"}, made); err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	id, err := pki.Load(file("ca.pem"), file("a.pem"), file("a-key.pem"), file("gossip.key"))
	if err != nil {
		t.Fatal(err)
	}
	log := &fixture.Lines{}
	c := &certificate{id: id, log: journaltest.New(t, log)}
	count := func(event string) int { return log.Count(`"event":"` + event + `"`) }
	const day = 24 * time.Hour
	end := id.NotAfter()
	for _, s := range []struct {
		left time.Duration
		said int
	}{{31 * day, 0}, {29 * day, 1}, {29*day - time.Hour, 1}, {28 * day, 2}, {2 * day, 3}, {2*day - time.Minute, 3}, {2*day - time.Hour, 4}} {
		if c.look(end.Add(-s.left)); count("certificate_expires") != s.said {
			t.Errorf("%v before the end: said %d times, want %d\n%s", s.left, count("certificate_expires"), s.said, &log.B)
		}
	}
	if log.Count("pki renew") == 0 {
		t.Errorf("no remedy in %s", &log.B)
	}
	if err := pki.Renew(dir, []replica.NodeName{"a"}, made.Add(24*time.Hour), 0); err != nil {
		t.Fatal(err)
	}
	c.look(made.Add(24 * time.Hour))
	if count("certificate_renewed") != 1 || !id.NotAfter().After(end) {
		t.Errorf("renewed to %v, it was %v\n%s", id.NotAfter(), end, &log.B)
	}
	if err := os.WriteFile(file("a.pem"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	kept := id.NotAfter()
	c.look(made.Add(25 * time.Hour))
	c.look(made.Add(26 * time.Hour))
	if count("failed") != 1 || !id.NotAfter().Equal(kept) {
		t.Errorf("of a file that is none: %s", &log.B)
	}
}

// A node whose daemon answers, and whose keys nobody hears of, is named: it may lack the key that all others speak with, whether several are left or one.
func TestNodesWithUnknownGossipKeysAreNamed(t *testing.T) {
	members := []membership.Member{
		{Name: "b", Alive: true, Keys: "0a, 0b"},
		{Name: "d", Keys: "0a"},    // counts as dead to gossip: it can't read what it is asked
		{Name: "e", Alive: true},   // of an earlier release
		{Name: "x", Keys: "0a"},    // registered nowhere
		{Name: "gone", Keys: "0a"}, // its host is silent
	}
	nodes := []control.NodeStatus{{Name: "a", State: "alive"}, {Name: "b", State: "alive"}, {Name: "d", State: "alive"}, {Name: "e", State: "alive"}, {Name: "f", State: "alive"},
		{Name: "dead", State: "unobserved"}, {Name: "gone", State: "silent"}, {Name: "new", State: "unknown"}, {Name: "out", State: "alive", Revoked: true}}
	answers := func(n replica.NodeName) bool { return n != "dead" && n != "gone" && n != "new" }
	if got := unknownKeys("a", members, nodes, answers); !slices.Equal(got, []replica.NodeName{"d", "e", "f"}) {
		t.Errorf("%v", got)
	}
}
