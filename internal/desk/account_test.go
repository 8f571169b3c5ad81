package desk

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/wire"
)

// What a rank contributes is bounded, and refused beyond with a remedy; what a later write made void makes room.
func TestKeptIsBounded(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	refused := func(g *guest) string {
		t.Helper()
		g.ask(wire.MKVSet, wire.KV{Key: "one more", Value: make([]byte, wire.MaxValueBytes)})
		m.serve()
		return g.hears()
	}
	big := make([]byte, wire.MaxValueBytes)
	for i := 0; i == 0 || maxKeptBytes-m.ledgers.account(epoch3, 0).bytes > wire.MaxValueBytes+100; i++ {
		a.tells("ok 0", wire.MKVSet, wire.KV{Key: fmt.Sprint(i), Value: big})
	}
	if n := m.ledgers.account(epoch3, 0).n; n != 127 {
		t.Errorf("%d values of 32 KiB are kept", n)
	}
	if got := refused(a); !strings.HasPrefix(got, fmt.Sprint("refused ", wire.CodeRefused)) || !strings.Contains(got, "4096 KiB") || !strings.Contains(got, "delete keys") {
		t.Errorf("too much is answered %s", got)
	}
	for i := range 3 { // in place of what was there, or of nothing
		a.tells("ok 0", wire.MKVSet, wire.KV{Key: "0", Value: big[:i]})
	}
	a.tells("total 0 1", wire.MKVDelete, wire.KV{Key: "1"})
	a.tells("total 0 0", wire.MKVDelete, wire.KV{Key: "nothing"})
	a.tells("value 0 ", wire.MKVCompareSet, wire.KV{Key: "other", Value: []byte("xy"), Members: 1}) // it changes nothing
	if got := refused(a); got != "ok 0" {
		t.Errorf("after room was made: %s", got)
	}
	acc := m.ledgers.account(epoch3, 0)
	n, size := 0, 0
	for _, list := range acc.entries {
		for _, r := range list {
			n, size = n+1, size+r.size()
		}
	}
	if n != acc.n || size != acc.bytes || n != 128 {
		t.Errorf("%d entries of %d bytes are kept, %d of %d accounted for, want 128", n, size, acc.n, acc.bytes)
	}

	m.ledgers[epoch3].accounts[1] = &account{n: maxKept - 1, entries: map[accountKey][]*request{}}
	b.tells("ok 0", wire.MKVSet, wire.KV{Key: "the last"})
	b.ask(wire.MBarrier, wire.KV{Key: "up", Members: 2})
	if got := b.hears(); !strings.Contains(got, "16384 entries") {
		t.Errorf("too many are answered %s", got)
	}
}

// What is brought fits the link's queue: few frames, each of bounded size.
func TestKeptIsBroughtInFewFrames(t *testing.T) {
	m := newMeeting(t)
	a := m.guest(0)
	big := bytes.Repeat([]byte{7}, wire.MaxValueBytes)
	for i := range 100 {
		a.tells("ok 0", wire.MKVSet, wire.KV{Key: fmt.Sprint(i), Value: big})
	}
	account := m.ledgers.account(epoch3, 0)
	for i := range keptEntries {
		r := &request{by: Caller{fixture.JobID, 0, 70}, op: control.KVSet, key: fmt.Sprint("small ", i), seq: 1<<40 + uint64(i)}
		account.entries[r.accountKey()] = []*request{r}
	}
	m.linkAnew()
	frames, n := fixture.Only[control.KVKept](m.says()), 0
	for i, f := range frames {
		size := 0
		for _, e := range f.Entries {
			size += len(e.Value)
		}
		if n += len(f.Entries); len(f.Entries) > keptEntries || size > keptFrame+wire.MaxValueBytes || f.Done != (i == len(frames)-1) {
			t.Errorf("frame %d of %d has %d entries of %d bytes, done %v", i, len(frames), len(f.Entries), size, f.Done)
		}
	}
	if n != 100+keptEntries || len(frames) > 8 {
		t.Errorf("%d entries in %d frames", n, len(frames))
	}
}
