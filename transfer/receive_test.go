package transfer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

// TestReceiversServeOn: many that fetch a part from one donor load it little more than one does, as each serves on what it has. The donor
// sends one chunk at a time.
func TestReceiversServeOn(t *testing.T) {
	many := 16
	if racing.On {
		many = 6 // the race detector makes seconds of milliseconds here
	}
	for _, receivers := range []int{1, 2, many} {
		bubble.Test(t, func(t *testing.T) {
			k, m, b := makePart(wideFrom, 16<<10)
			var donated atomic.Int32
			busy := make(chan struct{}, 1)
			donor := &memStore{m: m, b: b, chunk: func(int) error {
				busy <- struct{}{}
				defer func() { <-busy }()
				time.Sleep(4 * time.Millisecond)
				donated.Add(1)
				return nil
			}}
			sinks := make([]*memSink, receivers)
			stores := make([]*memStore, receivers)
			for i := range sinks {
				sinks[i] = newSink(t, m)
				stores[i] = &memStore{m: m, of: sinks[i], chunk: func(int) error { time.Sleep(time.Millisecond); return nil }}
			}
			began := time.Now()
			var all sync.WaitGroup
			for i := range sinks {
				all.Go(func() {
					sources := []Source{source("donor", donor)}
					for d := 1; d <= min(4, receivers-1); d++ {
						other := (i + d) % receivers
						s := source(replica.NodeName(fmt.Sprint("n", other)), stores[other])
						s.Receives = true
						sources = append(sources, s)
					}
					k := k
					k.Rank = replica.Rank(i)
					rep, err := Fetch(t.Context(), k, sources, sinks[i].begin)
					if err != nil || len(rep.Failed) != 0 || rep.Bytes != m.Bytes {
						t.Errorf("receiver %d: %+v, %v", i, rep, err)
					}
				})
			}
			all.Wait()
			for _, s := range sinks {
				s.check(b)
			}
			if n, once := int(donated.Load()), len(m.Chunks); n > once+once/2 {
				t.Errorf("%d receivers took %d chunks of the donor, the part has %d", receivers, n, once)
			}
			t.Logf("%d receivers: %d of %d chunks of the donor, %v", receivers, donated.Load(), len(m.Chunks), time.Since(began))
		})
	}
}

// TestReceiverThatFails: receivers that have nothing, fail, or never get anything hold nobody up, and are no reason to fail; one that sends
// wrong bytes is named.
func TestReceiverThatFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(wideFrom, 64<<10)
		got := newSink(t, m) // that the others serve from
		for i := range 10 {
			off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
			if err := got.Put(i, b[off:off+n]); err != nil {
				t.Fatal(err)
			}
		}
		lies := make(chan struct{})
		lied := sync.OnceFunc(func() { close(lies) })
		nothing := source("nothing", &memStore{m: m, open: func() error { return ErrUnknownPart }})
		stays := source("stays", &memStore{m: m, of: newSink(t, m)})
		loses := source("loses", &memStore{m: m, of: got, chunk: func(int) error { return errors.New("the place was freed") }})
		bends := source("bends", &memStore{m: m, of: got, bend: func(_ int, b []byte) { b[0]++; lied() }})
		away := Source{Node: "away", Dial: func(context.Context) (Lane, error) { return nil, errors.New("no route") }}
		sources := []Source{source("donor", &memStore{m: m, b: b, chunk: func(int) error { <-lies; return nil }})}
		for _, s := range []Source{nothing, stays, loses, bends, away} {
			s.Receives = true
			sources = append(sources, s)
		}
		sink := newSink(t, m)
		rep, err := Fetch(t.Context(), k, sources, sink.begin)
		if err != nil || len(rep.Failed) != 1 || len(rep.Corrupt) != 1 || rep.Corrupt[0] != "bends" {
			t.Fatalf("%+v, %v", rep, err)
		}
		sink.check(b)
	})
}

// TestNoDonorAnswers: where no manifest comes, receivers are not waited for.
func TestNoDonorAnswers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, _ := makePart(wideFrom, 64<<10)
		away := Source{Node: "donor", Dial: func(context.Context) (Lane, error) { return nil, errors.New("no route") }}
		receives := source("n1", &memStore{m: m, of: newSink(t, m)})
		receives.Receives = true
		for _, sources := range [][]Source{{away, receives}, {receives}} {
			if _, err := Fetch(t.Context(), k, sources, newSink(t, m).begin); err == nil || len(sources) > 1 && !strings.Contains(err.Error(), "no route") {
				t.Errorf("of %d sources: %v", len(sources), err)
			}
		}
	})
}

// TestReceiversWithoutADonor: what receivers have between them is enough; where it is not, the fetch ends with the donor's failure and keeps
// what came.
func TestReceiversWithoutADonor(t *testing.T) {
	for _, missing := range []int{0, 1} {
		bubble.Test(t, func(t *testing.T) {
			k, m, b := makePart(wideFrom, 64<<10)
			dies := errors.New("the donor's node has died")
			donor := source("donor", &memStore{m: m, b: b, chunk: func(int) error { return dies }})
			sources := []Source{donor}
			halves := []*memSink{newSink(t, m), newSink(t, m)}
			for i := range len(m.Chunks) - missing {
				off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
				if err := halves[i%2].Put(i, b[off:off+n]); err != nil {
					t.Fatal(err)
				}
			}
			for i, half := range halves {
				s := source(replica.NodeName(fmt.Sprint("half", i)), &memStore{m: m, of: half})
				s.Receives = true
				sources = append(sources, s)
			}
			sink := newSink(t, m)
			_, err := Fetch(t.Context(), k, sources, sink.begin)
			if (err != nil) != (missing > 0) || sink.puts != len(m.Chunks)-missing {
				t.Errorf("%d missing: %d of %d chunks, %v", missing, sink.puts, len(m.Chunks), err)
			}
			if missing > 0 && !errors.Is(err, ErrPeer) {
				t.Errorf("the donor's reason is lost: %v", err)
			}
		})
	}
}
