package mover

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// TestWhatTheMirrorTakesByNowDoesNotGiveWay: "not yet" was its answer to an earlier try. By now it takes the part, and another one that comes
// meanwhile must not break that off: a commit waits for it, and the other part may come with every step.
func TestWhatTheMirrorTakesByNowDoesNotGiveWay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a, b, at, tries := newPart(3*chunk), newPart(3*chunk), newPlace(), new(atomic.Int32)
		b.man.Part = replica.OfGroup(1)
		b.man.Root = digest(b.man.RootInput())
		n2 := &peer{name: "n2", store: &part{take: func(k transfer.Key) (*place, error) {
			if k.Part == b.man.Part {
				return newPlace(), nil
			}
			if tries.Add(1) == 1 {
				return nil, transfer.ErrNotYet
			}
			time.Sleep(2 * time.Second) // it is on its way
			return at, nil
		}}}
		m, told := among(t, nil, n2)
		line := Line{Node: "n2", Job: a.man.Job, Rank: 1}
		m.Push(line, Push{Key: a.key(), From: a}, always)
		time.Sleep(time.Second)
		if tries.Load() != 2 {
			t.Fatalf("tried %d times", tries.Load())
		}
		m.Push(line, Push{Key: b.key(), From: b}, never)
		if p := <-told; p.Err != nil || p.Key != a.key() {
			t.Errorf("%v: %v, want that it is taken", p.Key.Part, p.Err)
		}
		next(t, told, nil)
	})
}

// TestFetchNamesWhoStalls: a holder that takes connections and sends nothing is named as one that can't be reached: a third node may reach both.
func TestFetchNamesWhoStalls(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, life := newPart(4*chunk), make(chan struct{})
		p.busy = func(context.Context) bool { <-life; return false }
		m, _ := among(t, nil, &peer{name: "n2", store: p})
		t.Cleanup(func() { close(life) })
		got, err := m.Fetch(t.Context(), Wanted{Key: p.key(), Holders: holders("n2")}, newPlace().begin)
		if err == nil || !slices.Equal(got.Unreached, []replica.NodeName{"n2"}) {
			t.Errorf("%v, unreached %v", err, got.Unreached)
		}
	})
}
