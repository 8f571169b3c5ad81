package transfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

const kib = 1 << 10

func TestFetchFromSeveral(t *testing.T) {
	for _, size := range []int{0, 1, 4*kib - 1, 4 * kib, 100*kib + 13} {
		k, m, b := makePart(size, 4*kib)
		st := &memStore{m: m, b: b}
		sink := newSink(t, m)
		rep, err := Fetch(t.Context(), k, []Source{source("n1", st), source("n2", st), source("n3", st)}, sink.begin)
		if err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		sink.check(b)
		var sum uint64
		for _, n := range rep.By {
			sum += n
		}
		if rep.Bytes != uint64(size) || sum != rep.Bytes || len(rep.Failed) != 0 {
			t.Errorf("size %d: report %+v", size, rep)
		}
	}
}

// TestSourceDiesAnywhere kills one of two sources after each number of chunks (and inside the next one): what it brought
// stays, the other brings the rest, and the report says who failed.
func TestSourceDiesAnywhere(t *testing.T) {
	const chunks, chunk = 12, 4 * kib
	k, m, b := makePart(chunks*chunk, chunk)
	good := &memStore{m: m, b: b}
	for n := range chunks {
		for _, extra := range []int{0, chunkHeaderBytes / 2, chunkHeaderBytes, chunkHeaderBytes + chunk/2} {
			t.Run(fmt.Sprintf("chunk %d + %d", n, extra), func(t *testing.T) {
				sink := newSink(t, m)
				died := make(chan struct{})
				bad := &memStore{m: m, b: b}
				var manifest countingConn
				dying := Source{Node: "dying", Dial: func(context.Context) (Lane, error) {
					return newPipeLane("dying", bad, func(c net.Conn) net.Conn {
						return &dyingAfterManifest{Conn: c, count: &manifest, left: n*(chunk+chunkHeaderBytes) + extra, died: died}
					}), nil
				}}
				// The good source starts only when the other has died, so that the latter is surely asked for all it can bring.
				late := Source{Node: "good", Dial: func(ctx context.Context) (Lane, error) {
					select {
					case <-died:
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					return newPipeLane("good", good, nil), nil
				}}
				rep, err := Fetch(t.Context(), k, []Source{dying, late}, sink.begin)
				if err != nil {
					t.Fatal(err)
				}
				sink.check(b)
				if got, want := rep.By["dying"], uint64(n*chunk); got != want {
					t.Errorf("%d bytes of the dying source count, want %d", got, want)
				}
				if rep.Failed["dying"] == "" || rep.Failed["good"] != "" || sink.puts != chunks {
					t.Errorf("report %+v after %d puts", rep, sink.puts)
				}
			})
		}
	}
}

type countingConn struct{ n int }

// dyingAfterManifest lets the first write (the manifest) through, then left bytes.
type dyingAfterManifest struct {
	net.Conn
	count *countingConn
	left  int
	died  chan struct{}
}

func (d *dyingAfterManifest) Write(b []byte) (int, error) {
	if d.count.n++; d.count.n == 1 {
		return d.Conn.Write(b)
	}
	if len(b) > d.left {
		n, _ := d.Conn.Write(b[:d.left])
		_ = d.Conn.Close()
		close(d.died)
		return n, errors.New("died")
	}
	d.left -= len(b)
	return d.Conn.Write(b)
}

func TestCorruptSourceIsSetAside(t *testing.T) {
	k, m, b := makePart(64*kib, 4*kib)
	sent := make(chan struct{})
	var once sync.Once
	liar := &memStore{m: m, b: b, bend: func(i int, b []byte) {
		b[len(b)/2] ^= 1
		once.Do(func() { close(sent) })
	}}
	good := &memStore{m: m, b: b, chunk: func(i int) error { <-sent; return nil }} // so that the liar is surely asked
	sink := newSink(t, m)
	rep, err := Fetch(t.Context(), k, []Source{source("n1", good), source("liar", liar), source("n3", good)}, sink.begin)
	if err != nil {
		t.Fatal(err)
	}
	sink.check(b)
	if !slices.Equal(rep.Corrupt, []replica.NodeName{"liar"}) || !strings.HasPrefix(rep.Failed["liar"], "bad-digest: ") || rep.By["liar"] != 0 {
		t.Errorf("report %+v", rep)
	}
}

func TestManifestMustBeTheOneAsked(t *testing.T) {
	k, m, b := makePart(16*kib, 4*kib)
	for name, bend := range map[string]func(m *replica.Manifest){
		"another digest":     func(m *replica.Manifest) { m.Chunks = slices.Clone(m.Chunks); m.Chunks[1][0] ^= 1 },
		"another size":       func(m *replica.Manifest) { m.Bytes-- },
		"another chunk size": func(m *replica.Manifest) { m.ChunkBytes++ },
		"chunk size zero":    func(m *replica.Manifest) { m.ChunkBytes = 0 },
		"another root":       func(m *replica.Manifest) { m.Root[0] ^= 1 },
		"another job":        func(m *replica.Manifest) { m.Job[0] ^= 1 },
		"another part":       func(m *replica.Manifest) { m.Part.Index++ },
		"another generation": func(m *replica.Manifest) { m.Generation.Step++ },
	} {
		bad := m
		bend(&bad)
		begun, lying := false, &memStore{m: bad, b: b, lies: true}
		rep, err := Fetch(t.Context(), k, []Source{source("n1", lying)}, func(replica.Manifest) (Sink, error) {
			begun = true
			return newSink(t, m), nil
		})
		if !errors.Is(err, ErrCorrupt) || begun || len(rep.Corrupt) != 1 {
			t.Errorf("%s: begun %v, %v", name, begun, err)
		}
	}
}

// TestFrozenPartKeepsItsGeneration: it was captured once, before the generation that is restored.
func TestFrozenPartKeepsItsGeneration(t *testing.T) {
	k, m, b := makePart(16*kib, 4*kib)
	m.Part = replica.FrozenOf(1)
	m.Root = hash(m.RootInput())
	k.Part, k.Root = m.Part, m.Root
	k.Generation.Step += 94
	sink := newSink(t, m)
	if _, err := Fetch(t.Context(), k, []Source{source("n1", &memStore{m: m, b: b})}, sink.begin); err != nil {
		t.Fatal(err)
	}
	sink.check(b)
}

func TestAllFail(t *testing.T) {
	k, m, b := makePart(16*kib, 4*kib)
	sources := []Source{
		source("unknown", &memStore{open: func() error { return fmt.Errorf("%w: freed", ErrUnknownPart) }}),
		source("fenced", &memStore{open: func() error { return ErrFenced }}),
		source("torn", &memStore{m: m, b: b, chunk: func(int) error { return errors.New("slot was freed") }}),
		{Node: "away", Dial: func(context.Context) (Lane, error) { return nil, errors.New("connection refused") }},
	}
	rep, err := Fetch(t.Context(), k, sources, newSink(t, m).begin)
	for _, want := range []string{"unknown: ", "freed", "fenced: ", "torn: ", "slot was freed", "away: ", "connection refused", "group 1", "(3,40)"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	for _, mark := range []error{ErrUnknownPart, ErrFenced, ErrPeer} {
		if !errors.Is(err, mark) {
			t.Errorf("the error is not marked %v", mark)
		}
	}
	if len(rep.Failed) != 4 {
		t.Errorf("report %+v", rep)
	}
	if _, err := Fetch(t.Context(), k, nil, newSink(t, m).begin); err == nil {
		t.Error("a fetch from nobody succeeded")
	}
}

func TestNotYetAndRefusedAreAskedAgain(t *testing.T) {
	for _, mark := range []error{ErrNotYet, ErrRefused} {
		bubble.Test(t, func(t *testing.T) {
			k, m, b := makePart(16*kib, 4*kib)
			asked := 0
			st := &memStore{m: m, b: b, open: func() error {
				if asked++; asked < 4 {
					return mark
				}
				return nil
			}}
			sink := newSink(t, m)
			rep, err := Fetch(t.Context(), k, []Source{source("n1", st)}, sink.begin)
			if err != nil || asked != 4 || len(rep.Failed) != 0 {
				t.Fatalf("asked %d times, %+v, %v", asked, rep, err)
			}
			sink.check(b)
		})
	}
}

func TestNotYetForEverEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, _ := makePart(16*kib, 4*kib)
		_, err := Fetch(t.Context(), k, []Source{source("n1", &memStore{open: func() error { return ErrNotYet }})}, newSink(t, m).begin)
		if !errors.Is(err, ErrNotYet) {
			t.Fatal(err)
		}
	})
}

// TestHungSource: one source hangs in mid-stream. The other asks for what it holds up and the fetch ends without waiting
// for the stall to be called.
func TestHungSource(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(64*kib, 4*kib)
		st := &memStore{m: m, b: b}
		sink := newSink(t, m)
		start := time.Now()
		rep, err := Fetch(t.Context(), k, []Source{
			bentSource("hung", st, func(c net.Conn) net.Conn { return &hungConn{Conn: c, left: 3 * kib} }),
			source("good", st),
		}, sink.begin)
		if err != nil {
			t.Fatal(err)
		}
		sink.check(b)
		if took := time.Since(start); took >= stallAfter {
			t.Errorf("took %v of virtual time, the stall of one source: %+v", took, rep)
		}
	})
}

func TestOnlySourceHangs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(64*kib, 4*kib)
		st := &memStore{m: m, b: b}
		rep, err := Fetch(t.Context(), k, []Source{
			bentSource("hung", st, func(c net.Conn) net.Conn { return &hungConn{Conn: c, left: 20 * kib} }),
		}, newSink(t, m).begin)
		if !errors.Is(err, ErrStalled) || !strings.Contains(rep.Failed["hung"], "stalled") {
			t.Fatalf("%+v, %v", rep, err)
		}
	})
}

// TestALaneThatWaitedOpensAnew: others had all chunks asked for until the source's end of a lane has given it up, or soon will. What the lane then gets goes
// back, and the lane opens a stream anew: on this one it would read its end, and the source, which is well, would count as failed.
func TestALaneThatWaitedOpensAnew(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, m, _ := makePart(4*kib, 4*kib)
		for held, stale := range map[time.Duration]bool{idleAfter/2 + time.Second: true, idleAfter/2 - time.Second: false} {
			ctx, cancel := context.WithCancel(t.Context())
			f := &fetch{manifest: m, queue: newQueue(1, nil, func(int) bool { return false }), mix: newMix()}
			f.queue.take(ctx, false, nil)                               // another lane
			f.queue.chunks[0].since = time.Now().Add(held - hedgeAfter) // as if one after the other had it
			requests, asked := make(chan chunkHeader, 2), make([]int, 0, 2)
			ours, theirs := net.Pipe()
			go func() { // the source is there, and answers nothing
				<-requests
				cancel()
				theirs.Close()
			}()
			s := newStream(ctx, ours, stallAfter)
			err := f.chunks(ctx, &Source{Node: "well", Over: TCP}, s, &asked, requests)
			if errors.Is(err, errStale) != stale || len(asked) != 1 {
				t.Errorf("after %v: %v, and %v to give back; stale: %v", held, err, asked, stale)
			}
			close(requests)
			s.end()
		}
	})
}

// TestSlowSource: a source that is slow but alive brings what it can, the other brings the more; nobody is set aside.
func TestSlowSource(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(256*kib, 4*kib)
		slow := &memStore{m: m, b: b, chunk: func(int) error { time.Sleep(50 * time.Millisecond); return nil }} // virtual time
		fast := &memStore{m: m, b: b, chunk: func(int) error { time.Sleep(time.Millisecond); return nil }}
		sink := newSink(t, m)
		rep, err := Fetch(t.Context(), k, []Source{source("slow", slow), source("fast", fast)}, sink.begin)
		if err != nil {
			t.Fatal(err)
		}
		sink.check(b)
		if rep.By["slow"] == 0 || rep.By["fast"] < 4*rep.By["slow"] || len(rep.Failed) != 0 {
			t.Errorf("report %+v", rep)
		}
	})
}

func TestFetchGoesOnFromWhatIsThere(t *testing.T) {
	k, m, b := makePart(64*kib, 4*kib)
	sink := newSink(t, m)
	stop := errors.New("slot was freed")
	served := 0
	half := &memStore{m: m, b: b, chunk: func(int) error {
		if served++; served > 8 {
			return stop
		}
		return nil
	}}
	first, err := Fetch(t.Context(), k, []Source{source("half", half)}, sink.begin)
	if err == nil || first.Bytes != 8*4*kib {
		t.Fatalf("%+v, %v", first, err)
	}
	second, err := Fetch(t.Context(), k, []Source{source("good", &memStore{m: m, b: b})}, sink.begin)
	if err != nil || second.Reused != first.Bytes || second.Bytes != m.Bytes-first.Bytes {
		t.Fatalf("%+v, %v", second, err)
	}
	sink.check(b)
}

func TestBeginAndPutFailures(t *testing.T) {
	k, m, b := makePart(64*kib, 4*kib)
	st := &memStore{m: m, b: b}
	full := errors.New("no room")
	rep, err := Fetch(t.Context(), k, []Source{source("n1", st), source("n2", st)}, func(replica.Manifest) (Sink, error) { return nil, full })
	if !errors.Is(err, full) || len(rep.Failed) != 0 {
		t.Errorf("begin: %+v, %v", rep, err)
	}
	sink := newSink(t, m)
	sink.err = func(i int) error {
		if i == 5 {
			return full
		}
		return nil
	}
	rep, err = Fetch(t.Context(), k, []Source{source("n1", st), source("n2", st)}, sink.begin)
	if !errors.Is(err, full) || len(rep.Failed) != 0 {
		t.Errorf("put: %+v, %v", rep, err)
	}
}

func TestFetchIsCancelled(t *testing.T) {
	k, m, b := makePart(64*kib, 4*kib)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("a newer plan")
	sink := newSink(t, m)
	sink.err = func(i int) error {
		if i == 3 {
			cancel(why)
		}
		return nil
	}
	rep, err := Fetch(ctx, k, []Source{source("n1", &memStore{m: m, b: b})}, sink.begin)
	if !errors.Is(err, why) || len(rep.Failed) != 0 {
		t.Fatalf("%+v, %v", rep, err)
	}
}

// TestChunkPathAllocatesNothing compares fetches of few and of many chunks: the difference must not grow with the chunks.
func TestChunkPathAllocatesNothing(t *testing.T) {
	cost := func(chunks int) float64 {
		k, m, b := makePart(chunks*4*kib, 4*kib)
		st := &memStore{m: m, b: b}
		return testing.AllocsPerRun(20, func() {
			sink := newSink(t, m)
			if _, err := Fetch(t.Context(), k, []Source{source("n1", st)}, sink.begin); err != nil {
				t.Fatal(err)
			}
		})
	}
	few, many := cost(16), cost(1024)
	if perChunk := (many - few) / (1024 - 16); perChunk > 0.05 && !racing.On { // sync.Pool drops at random under the race detector
		t.Errorf("%.2f allocations a chunk (%v for 16, %v for 1024)", perChunk, few, many)
	}
}
