package desk

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/internal/wire"
)

// store is the rendezvous as a rank may think of it: one map, and nothing is ever lost.
type store map[string]string

// does carries out one write, or one check, and says how it is answered.
func (s store) does(op uint16, kv wire.KV) string {
	was, there := s[kv.Key]
	switch op {
	case wire.MKVSet:
		s[kv.Key] = string(kv.Value)
		return "ok 0"
	case wire.MKVAdd:
		var n int64
		fmt.Sscan(was, &n) //nolint:errcheck // no number is none
		n += int64(kv.Value[0])
		s[kv.Key] = fmt.Sprint(n)
		return fmt.Sprint("total 0 ", n)
	case wire.MKVDelete:
		delete(s, kv.Key)
		if there {
			return "total 0 1"
		}
		return "total 0 0"
	case wire.MKVCompareSet:
		if expect := string(kv.Value[:kv.Members]); was == expect {
			was = string(kv.Value[kv.Members:])
			s[kv.Key] = was
		}
		return "value 0 " + was
	default:
		if there {
			return "ok 0"
		}
		return fmt.Sprint("ok ", wire.CodeAgain)
	}
}

// Whatever is lost of requests, answers, leaders and daemons, each request is answered as if nothing was. A rank whose daemon died before it
// heard its answer asks again with the same number.
func TestLossesChangeNoAnswer(t *testing.T) {
	for seed := uint64(0); seed < 20; seed += racing.Stride {
		rng := rand.New(rand.NewPCG(seed, 19))
		m, truth := newMeeting(t), store{}
		guests := []*guest{m.guest(0), m.guest(1)}
		for n := range 100 {
			g := guests[rng.IntN(2)]
			op, kv := someRequest(rng)
			m.once++
			kv.Once = m.once
			g.ask(op, kv)
			lost := m.disturb(rng, guests)
			if m.serve(); lost && len(g.told) == 0 {
				g.ask(op, kv)
				m.serve()
			}
			if got, want := g.hears(), truth.does(op, kv); got != want {
				t.Fatalf("seed %d, request %d: message %d of key %q is answered %q, want %q", seed, n, op, kv.Key, got, want)
			}
			g.quiet()
			m.whole()
		}
		if n := len(m.pending.all); n != 0 {
			t.Errorf("seed %d: %d requests are pending though all are answered", seed, n)
		}
	}
}

func someRequest(rng *rand.Rand) (op uint16, kv wire.KV) {
	kv.Key = fmt.Sprint("key ", rng.IntN(3))
	switch rng.IntN(5) {
	case 0:
		kv.Value = []byte{byte('a' + rng.IntN(3))}
		return wire.MKVSet, kv
	case 1:
		kv.Key, kv.Value = "n", addend(1+rng.Int64N(9))
		return wire.MKVAdd, kv
	case 2:
		return wire.MKVDelete, kv
	case 3:
		kv.Value, kv.Members = []byte{byte('a' + rng.IntN(3)), byte('a' + rng.IntN(3))}, 1
		return wire.MKVCompareSet, kv
	default:
		return wire.MKVCheck, kv
	}
}

// disturb lets the request come as far as it may, and then loses something. It tells whether the daemon died.
func (m *meeting) disturb(rng *rand.Rand, guests []*guest) (died bool) {
	m.t.Helper()
	if rng.IntN(2) == 0 {
		for _, msg := range m.says() {
			m.chair.Message(m.t.Context(), "n1", msg)
		}
	}
	switch rng.IntN(8) {
	case 0: // the link, with what is on it in either direction
		m.loses()
		m.linkAnew()
	case 1: // the leader
		m.elect()
	case 2: // the daemon, after all was carried
		m.serve()
		m.again(guests)
		m.linkAnew()
		return true
	case 3: // the daemon, with what is on the link
		m.loses()
		m.again(guests)
		m.linkAnew()
		return true
	case 4: // both
		m.again(guests)
		m.elect()
		return true
	}
	return false
}

// again restarts the daemon; its processes come back on sessions of their own, and have what they heard before.
func (m *meeting) again(guests []*guest) {
	m.t.Helper()
	m.restart()
	m.knows(m.job)
	for _, g := range guests {
		heard := g.told
		*g = *m.guest(g.rank)
		g.told = heard
	}
}

// whole fails where the desk's parts disagree.
func (m *meeting) whole() {
	m.t.Helper()
	for by, id := range m.pending.newest {
		if r := m.pending.all[id]; r == nil || r.by != by {
			m.t.Errorf("%v waits for request %d, which is %+v", by, id, r)
		}
	}
	for s, l := range m.ledgers {
		if job, known := m.Job(s.job); known && s.epoch <= job.Closed {
			m.t.Errorf("of epoch %d, which is closed, %v is kept", s.epoch, l)
		}
		for rank, a := range l.accounts {
			n, size := 0, 0
			for _, list := range a.entries {
				for _, r := range list {
					n, size = n+1, size+r.size()
				}
			}
			if n != a.n || size != a.bytes {
				m.t.Errorf("rank %d has %d contributions of %d bytes, accounted for are %d of %d", rank, n, size, a.n, a.bytes)
			}
		}
	}
}
