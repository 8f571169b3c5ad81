package node

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host"
	"github.com/replicad/replicad/replica"
)

func TestWays(t *testing.T) {
	p := newPaths()
	if got := p.ways("n2", "a:1"); !slices.Equal(got, []string{"a:1"}) {
		t.Errorf("a node that was never probed: %v", got)
	}
	for _, tc := range []struct {
		answers [3]answer // of a, b and c
		from    string
		want    []string
		dead    string // addresses
	}{
		{[3]answer{alive, alive, alive}, "a:1", []string{"a:1", "b:1", "c:1"}, ""},
		{[3]answer{alive, alive, alive}, "b:1", []string{"b:1", "a:1", "c:1"}, ""},
		{[3]answer{unanswered, alive, unanswered}, "a:1", []string{"b:1", "a:1", "c:1"}, "a:1 c:1 "},
		{[3]answer{unanswered, unanswered, adopting}, "a:1", []string{"c:1", "a:1", "b:1"}, "a:1 b:1 "},
		{[3]answer{unanswered, refused, unanswered}, "a:1", []string{"b:1", "a:1", "c:1"}, ""},
		{[3]answer{unanswered, unanswered, unanswered}, "a:1", []string{"a:1", "b:1", "c:1"}, ""},
		{[3]answer{unanswered, alive, alive}, "d:1", []string{"d:1"}, "a:1 "}, // none of its addresses
	} {
		p.probed("n2", []string{"a:1", "b:1", "c:1"}, tc.answers[:], make([]time.Duration, 3))
		if got := p.ways("n2", tc.from); !slices.Equal(got, tc.want) {
			t.Errorf("%v: from %s by %v, want %v", tc.answers, tc.from, got, tc.want)
		}
		dead := ""
		for _, addr := range []string{"a:1", "b:1", "c:1", "d:1"} {
			if p.dead("n2", addr) {
				dead += addr + " "
			}
		}
		if dead != tc.dead {
			t.Errorf("%v: dead are %q, want %q", tc.answers, dead, tc.dead)
		}
	}
	p.moved("n2", "b:1", 3<<20, 0, time.Second)
	p.moved("n2", "b:1", 10, 10, time.Second) // too little for a rate
	p.probed("n2", []string{"b:1"}, []answer{alive}, []time.Duration{time.Millisecond})
	if got := p.status(); len(got) != 1 || got[0].Rate != 3<<20 || got[0].Sent != 3<<20+10 || got[0].Received != 10 || got[0].ProbeUS != 1000 || got[0].State != "alive" {
		t.Errorf("status %+v", got)
	}
}

// A silent way takes its share of the time, not all of it.
func TestTryEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		dial := func(ctx context.Context, addr string) (string, error) {
			if addr == "good" {
				return addr, nil
			}
			<-ctx.Done()
			return "", errors.New(addr + " is silent")
		}
		began := time.Now()
		got, err := tryEach(ctx, []string{"bad", "good"}, dial)
		if got != "good" || err != nil || time.Since(began) != time.Second/2 {
			t.Errorf("%q, %v after %v", got, err, time.Since(began))
		}
		if _, err = tryEach(ctx, []string{"bad", "worse"}, dial); err == nil {
			t.Error("nobody answered, and there is a connection")
		}
	})
}

// One address that answers speaks for a node whose others are silent.
func TestANodeLivesByAnyOfItsAddresses(t *testing.T) {
	w := &witnessed{}
	p, h := newProber(t, w), newHost(t)
	h.SetProbeReply(endpoint.ProbeReply{Node: "n2", Incarnation: 22})
	n := replica.Node{Name: "n2", Incarnation: 22, Addr: h.silent, Addrs: []string{h.Addr().String()}}
	w.seen = host.Witness{Nodes: map[replica.NodeName]replica.Node{"n2": n}, Live: map[replica.JobID]replica.Step{fixture.JobID: 7}}
	p.interval, p.silent, p.gossip = 200*time.Millisecond, 0, book{{Name: "n2", Incarnation: 22}} // gossip gave it up
	for range 3 {
		p.round(t.Context())
	}
	if len(w.said) > 0 || p.state("n2") != "alive" {
		t.Errorf("suspected: %v, state %s", w.said, p.state("n2"))
	}
	if got := p.paths.ways("n2", h.silent); !slices.Equal(got, []string{h.Addr().String(), h.silent}) {
		t.Errorf("ways %v", got)
	}
	n.Addrs = []string{h.silent}
	w.seen.Nodes["n2"] = n
	p.round(t.Context())
	p.round(t.Context())
	if len(w.said) == 0 {
		t.Error("none of its addresses answers, and nobody is told")
	}
}
