package desk

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/wire"
)

// replayed are the ledgers that a file's records come to.
func replayed(f *file) (ledgers, error) {
	back := ledgers{}
	return back, f.replay(func(s scope, e control.KVEntry) error { back.restore(s, e); return nil })
}

// lives lists what is kept, in one order.
func lives(kept ledgers) map[scope][]string {
	all := map[scope][]string{}
	for s, l := range kept {
		for _, r := range l.settled() {
			all[s] = append(all[s], fmt.Sprintf("%+v", r.entry()))
		}
		slices.Sort(all[s])
	}
	return all
}

// FuzzLedger: whatever a file's records say, nothing panics, they are taken up to the first wrong one, and what lives of them written anew,
// once or twice, is the same ledger.
func FuzzLedger(f *testing.F) {
	set := control.KVEntry{Op: control.KVSet, Key: "k", Value: []byte("v"), Rank: 0, Nonce: 9, Once: 1, Seq: 6<<32 | 41}
	add := control.KVEntry{Op: control.KVAdd, Key: "n", Delta: 5, Rank: 1, Nonce: 9, Once: 1, Seq: 6<<32 | 40, Total: 6}
	barrier := control.KVEntry{Op: control.KVBarrier, Key: "up", Members: 2, Rank: 1}
	later := set
	later.Seq++
	body := func(entries ...control.KVEntry) []byte {
		return fixture.Body(f, control.KindKept, control.KVKept{Job: fixture.JobID, Epoch: 3, Entries: entries})
	}
	f.Add(body(set), body(later), []byte(nil))
	f.Add(body(later), body(set), body(add))
	f.Add(body(add), body(barrier), []byte("torn"))
	f.Add(body(set, add), body(control.KVEntry{Op: control.KVGet, Key: "k", Seq: 1}), []byte{0})
	f.Fuzz(func(t *testing.T, one, two, tail []byte) {
		back := memfd(t)
		records := append(append(fixture.Sealed(control.KindKept, one), fixture.Sealed(control.KindKept, two)...), tail...)
		if _, err := back.WriteAt(records, 0); err != nil {
			t.Fatal(err)
		}
		kept, err := replayed(back)
		if (err == nil) != (back.size == int64(len(records))) {
			t.Fatalf("%d bytes of %d are good: %v", back.size, len(records), err)
		}
		if err := back.Truncate(back.size); err != nil {
			t.Fatal(err)
		}
		if again, err := replayed(back); err != nil || !reflect.DeepEqual(lives(again), lives(kept)) {
			t.Fatalf("read again it is %v, was %v: %v", lives(again), lives(kept), err)
		}
		for s, l := range kept {
			fresh := memfd(t)
			for range 2 {
				for _, r := range l.settled() {
					if err := fresh.append(s, r.entry()); err != nil {
						t.Fatal(err)
					}
				}
				if again, err := replayed(fresh); err != nil || !reflect.DeepEqual(lives(again)[s], lives(kept)[s]) {
					t.Fatalf("written anew it is %v, was %v: %v", lives(again)[s], lives(kept)[s], err)
				}
			}
		}
	})
}

func memfd(t testing.TB) *file {
	t.Helper()
	f, err := newFile(epoch3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// BenchmarkLedgerAppend is what a settled contribution costs more than before it was recorded.
func BenchmarkLedgerAppend(b *testing.B) {
	for _, size := range []int{0, 256, wire.MaxValueBytes} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			f := memfd(b)
			e := control.KVEntry{Op: control.KVBarrier, Key: "step 281", Members: 2, Rank: 1, Nonce: 1 << 60}
			if size > 0 {
				e = control.KVEntry{Op: control.KVSet, Key: "address", Value: make([]byte, size), Rank: 1, Nonce: 1 << 60, Once: 1, Seq: 6<<32 | 41}
			}
			for b.Loop() {
				if f.size > 2*slack {
					f.size = 0
				}
				if err := f.append(epoch3, e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
