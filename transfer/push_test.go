package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

func push1(t *testing.T, st *memStore, k Key, r Reader) error {
	t.Helper()
	l := newPipeLane("mirror", st, nil)
	defer l.Close()
	return Push(t.Context(), l, k, r, Turns{})
}

func TestPush(t *testing.T) {
	for _, size := range []int{0, 1, 4 * kib, 100*kib + 13} {
		k, m, b := makePart(size, 4*kib)
		mirror := &memStore{mirror: newSink(t, m)}
		have := 0
		for i := range m.Chunks { // every third is there
			if i%3 == 0 {
				off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
				copy(mirror.mirror.b[off:], b[off:off+n])
				mirror.mirror.have[i] = true
				have++
			}
		}
		if err := push1(t, mirror, k, reads(&memStore{m: m, b: b})); err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		mirror.mirror.check(b)
		if mirror.mirror.puts != len(m.Chunks)-have || len(mirror.mirror.ended) != 1 || mirror.mirror.ended[0] != nil {
			t.Errorf("size %d: %d puts, ended %v", size, mirror.mirror.puts, mirror.mirror.ended)
		}
	}
}

// A small part comes with the request; of a larger one the mirror is asked first what it lacks.
func TestSmallPartsAreSentUnasked(t *testing.T) {
	for size, want := range map[int]wire.Kind{4 * kib: kindPushWhole, pushWhole: kindPushWhole, pushWhole + 1: kindPush} {
		k, m, b := makePart(size, 4*kib)
		near, far := net.Pipe()
		var mirror sync.WaitGroup
		mirror.Go(func() {
			defer far.Close()
			kind, _, err := wire.Read(far, wire.MaxBody)
			if err != nil || kind != want {
				t.Errorf("%d bytes: request %d (%v), want %d", size, kind, err, want)
			}
			if kind != kindPushWhole {
				return
			}
			if n, err := io.CopyN(io.Discard, far, int64(size+len(m.Chunks)*chunkHeaderBytes)); err != nil { // and no word has been said to it
				t.Errorf("%d bytes: %d came: %v", size, n, err)
			}
			if err := wire.Write(far, kindDone, done{m.Root}); err != nil {
				t.Error(err)
			}
		})
		err := push(t.Context(), oneStream{near}, k, reads(&memStore{m: m, b: b}), Turns{})
		if (err == nil) != (want == kindPushWhole) {
			t.Errorf("%d bytes: %v", size, err)
		}
		mirror.Wait()
	}
}

// oneStream is a lane whose stream the test made.
type oneStream struct{ net.Conn }

func (l oneStream) Peer() replica.NodeName               { return "mirror" }
func (l oneStream) Open(context.Context) (Stream, error) { return l.Conn, nil }
func (l oneStream) Close()                               {}

func TestPushFails(t *testing.T) {
	for _, size := range []int{pushWhole, pushWhole + 4*kib} {
		testPushFails(t, size)
	}
}

func testPushFails(t *testing.T, size int) {
	k, m, b := makePart(size, 4*kib)
	full, freed := errors.New("no room"), errors.New("slot was freed")
	good := &memStore{m: m, b: b}
	for name, c := range map[string]struct {
		mirror func(*memStore)
		from   *memStore
		key    func(*Key)
		want   error
		text   string
		aborts int
	}{
		"refused":  {mirror: func(s *memStore) { s.accept = func() error { return ErrFenced } }, want: ErrFenced},
		"put":      {mirror: func(s *memStore) { s.mirror.err = func(i int) error { return full } }, want: ErrPeer, text: "no room", aborts: 1},
		"seal":     {mirror: func(s *memStore) { s.sealErr = func(error) error { return full } }, want: ErrPeer, text: "no room", aborts: 1},
		"corrupt":  {from: &memStore{m: m, b: b, bend: func(i int, b []byte) { b[0] ^= byte(i) }}, want: ErrCorrupt, text: "chunk 1 ", aborts: 1},
		"freed":    {from: &memStore{m: m, b: b, chunk: func(i int) error { return freed }}, want: freed, aborts: 1},
		"bad root": {key: func(k *Key) { k.Root[0] ^= 1 }, want: ErrCorrupt},
	} {
		t.Run(fmt.Sprintf("%s of %d bytes", name, size), func(t *testing.T) {
			mirror, from, k := &memStore{mirror: newSink(t, m)}, good, k
			if c.mirror != nil {
				c.mirror(mirror)
			}
			if c.from != nil {
				from = c.from
			}
			if c.key != nil {
				c.key(&k)
			}
			err := push1(t, mirror, k, reads(from))
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "to mirror") {
				t.Errorf("got %v, want %v %q", err, c.want, c.text)
			}
			if ended := mirror.mirror.ended; len(ended) != c.aborts {
				t.Errorf("ended with %v, want %d calls", ended, c.aborts)
			}
		})
	}
}

// TestPushOverSeveralStreams: chunks of a large part go over as many streams as are given, each chunk once; whatever becomes of a further
// stream, the part arrives.
func TestPushOverSeveralStreams(t *testing.T) {
	const size, chunk = 4 * wideFrom, 256 * kib
	k, m, b := makePart(size, chunk)
	for name, c := range map[string]struct {
		gate  *Gate
		dials int                              // at which no stream is to be had; 0: never
		wrap  func(n int, c net.Conn) net.Conn // bends the mirror's end of stream n, from 1
		have  bool                             // all but one chunk is there
		want  int                              // streams that are opened
	}{
		"three":        {gate: NewGate(9, 9, 1<<30), want: 3},
		"nobody joins": {want: 3},
		"no room":      {gate: NewGate(1, 1, 1<<30), want: 3},
		"one breaks": {gate: NewGate(9, 9, 1<<30), want: 3, wrap: func(n int, c net.Conn) net.Conn {
			return &brokenConn{Conn: c, left: map[bool]int{true: 5 * chunk, false: 1 << 40}[n == 2]}
		}},
		"one is not made":    {gate: NewGate(9, 9, 1<<30), dials: 2, want: 3},
		"hardly any to send": {gate: NewGate(9, 9, 1<<30), have: true, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			mirror := &memStore{mirror: newSink(t, m)}
			mirror.mirror.twice = true // what a stream that breaks had brought comes again
			for i := range m.Chunks {
				if c.have && i != 7 {
					off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
					copy(mirror.mirror.b[off:], b[off:off+n])
					mirror.mirror.have[i] = true
				}
			}
			l := &manyLane{pipeLane: newPipeLane("mirror", mirror, nil), gate: c.gate, wrap: c.wrap, fails: c.dials}
			var turns, most int
			var mu sync.Mutex
			more := func() (func(), bool) {
				mu.Lock()
				defer mu.Unlock()
				turns++
				most = max(most, turns)
				return func() { mu.Lock(); defer mu.Unlock(); turns-- }, true
			}
			if err := Push(t.Context(), l, k, reads(&memStore{m: m, b: b}), Turns{Streams: 3, More: more}); err != nil {
				t.Error(err)
			}
			l.Close() // the mirror's ends have ended
			mirror.mirror.check(b)
			if l.opened != c.want || turns != 0 || most != c.want-1 || len(mirror.mirror.ended) != 1 {
				t.Errorf("%d streams, %d turns at most and %d kept, ended %v: want %d streams", l.opened, most, turns, mirror.mirror.ended, c.want)
			}
			if c.gate != nil && (c.gate.all != 0 || len(c.gate.pushes) != 0) {
				t.Errorf("the gate counts %d, and knows of %d pushes", c.gate.all, len(c.gate.pushes))
			}
		})
	}
}

// manyLane is a lane whose streams pass a gate.
type manyLane struct {
	*pipeLane
	gate  *Gate
	wrap  func(n int, c net.Conn) net.Conn
	fails int // the stream that is not made

	mu     sync.Mutex
	opened int
}

func (l *manyLane) Open(context.Context) (net.Conn, error) {
	l.mu.Lock()
	l.opened++
	n := l.opened
	l.mu.Unlock()
	if n == l.fails {
		return nil, errors.New("no route")
	}
	here, there := net.Pipe()
	if l.wrap != nil {
		there = l.wrap(n, there)
	}
	l.wg.Go(func() { _ = Serve(l.ctx, "receiver", there, l.st, l.gate) }) // what it returns is for a log
	return here, nil
}

// brokenConn breaks once so many bytes were read.
type brokenConn struct {
	net.Conn
	left int
}

func (b *brokenConn) Read(p []byte) (int, error) {
	if b.left <= 0 {
		b.Close()
		return 0, io.ErrClosedPipe
	}
	n, err := b.Conn.Read(p)
	b.left -= n
	return n, err
}

// TestStreamsThatLie: what is no chunk that was lacking, once, ends the stream, and nothing of it is put.
func TestStreamsThatLie(t *testing.T) {
	k, m, b := makePart(pushWhole+8*kib, 4*kib)
	frame := func(kind wire.Kind, v any) []byte {
		f, err := wire.Append(nil, kind, v)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	header := func(op uint8, index, length uint32) []byte {
		var h [chunkHeaderBytes]byte
		chunkHeader{op: op, index: index, length: length}.put(h[:])
		return h[:]
	}
	chunk := func(i int) []byte {
		off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		return append(header(opChunk, uint32(i), uint32(n)), b[off:off+n]...)
	}
	bent := chunk(2)
	bent[len(bent)-1] ^= 1
	push := frame(kindPush, pushRequest{k, m})
	for name, c := range map[string]struct {
		says []byte
		want error
	}{
		"a chunk that is there":         {append(slices.Clone(push), chunk(0)...), ErrProtocol},
		"no such chunk":                 {append(slices.Clone(push), header(opChunk, 1000, 4*kib)...), ErrProtocol},
		"a chunk that is too long":      {append(slices.Clone(push), header(opChunk, 2, 4*kib+1)...), ErrProtocol},
		"a request":                     {append(slices.Clone(push), header(opGet, 2, 0)...), ErrProtocol},
		"an end with bytes":             {append(slices.Clone(push), header(opEnd, 0, 1)...), ErrProtocol},
		"other bytes":                   {append(slices.Clone(push), bent...), ErrCorrupt},
		"no end":                        {append(slices.Clone(push), chunk(1)...), io.ErrUnexpectedEOF},
		"the same chunk without end":    {append(slices.Clone(push), bytes.Repeat(chunk(1), 2*len(m.Chunks)+1)...), ErrProtocol},
		"a stream beside no push":       {append(frame(kindPushBeside, k), chunk(1)...), ErrUnknownPart},
		"a stream beside it, no key":    {frame(kindPushBeside, done{}), nil},
		"a manifest of another part":    {frame(kindPush, pushRequest{Key{}, m}), ErrCorrupt},
		"an end before all has come":    {append(slices.Clone(push), header(opEnd, 0, 0)...), errLacks},
		"a refusal in place of a chunk": {append(append(slices.Clone(push), header(opFail, 1, 0)...), frame(kindError, refuse(ErrRefused))...), ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			st := &memStore{mirror: newSink(t, m)}
			st.mirror.twice = true
			st.mirror.have[0] = true
			st.sealErr = func(error) error { return errLacks }
			err := Serve(t.Context(), "peer", &scriptConn{in: bytes.NewReader(c.says)}, st, NewGate(9, 9, 1<<30))
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

var errLacks = errors.New("a chunk is missing")

func TestPushIsRetriedAndCancelled(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(16*kib, 4*kib)
		asked := 0
		mirror := &memStore{mirror: newSink(t, m), accept: func() error {
			if asked++; asked < 3 {
				return fmt.Errorf("%w: epoch 4", ErrNotYet)
			}
			return nil
		}}
		if err := push1(t, mirror, k, reads(&memStore{m: m, b: b})); err != nil || asked != 3 {
			t.Fatalf("asked %d times, %v", asked, err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the generation was freed")
		hung := &memStore{mirror: newSink(t, m)}
		hung.mirror.err = func(int) error { cancel(why); return nil }
		l := newPipeLane("mirror", hung, func(c net.Conn) net.Conn { return &hungConn{Conn: c, left: 2} }) // the answer never comes whole
		defer l.Close()
		if err := Push(ctx, l, k, reads(&memStore{m: m, b: b}), Turns{}); !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
	})
}

func TestGate(t *testing.T) {
	g := NewGate(3, 2, 100)
	enter := func(peer replica.NodeName, bytes uint64, want error) func() {
		t.Helper()
		leave, err := g.enter(peer, bytes)
		if !errors.Is(err, want) {
			t.Fatalf("%s: got %v, want %v", peer, err, want)
		}
		return leave
	}
	a := enter("a", 1, nil)
	enter("a", 1, nil)
	enter("a", 1, ErrRefused)  // of one peer
	b := enter("b", 1000, nil) // alone it has room
	enter("c", 1, ErrRefused)  // of all
	b()
	c := enter("c", 60, nil)
	enter("c", 41, ErrRefused) // bytes
	a()
	enter("c", 40, nil)
	enter("d", 1, ErrRefused)
	c()
	d := enter("d", 101, nil)
	d()
	enter("d", 1, nil)
}

// endless is a request of so many bytes, of which the rest never comes to an end that the test would wait for.
type endless struct {
	scriptConn
	given int
}

func (e *endless) Read(b []byte) (int, error) {
	if n, err := e.in.Read(b); err == nil {
		return n, nil
	}
	if e.given <= 0 {
		return 0, io.EOF
	}
	n := min(len(b), e.given)
	e.given -= n
	return n, nil
}

// Requests cost nothing before they are let in: a fetch is short, and a push that finds no room is not kept.
// 1 GiB of pushes took a daemon from 31 MB to 1.6 GB: bodies were read before their kind, permission or limit.
func TestRequestsAreLetInBeforeTheyAreRead(t *testing.T) {
	_, m, b := makePart(16*kib, 4*kib)
	st := &memStore{m: m, b: b}
	request := func(kind wire.Kind, size uint32) *endless {
		frame, err := wire.Append(nil, kind, 0)
		if err != nil {
			t.Fatal(err)
		}
		frame = frame[:12]
		binary.LittleEndian.PutUint32(frame[8:], size)
		return &endless{scriptConn{in: bytes.NewReader(frame)}, int(size) + 8}
	}
	long := request(kindFetch, maxRequest+1)
	if err := Serve(t.Context(), "peer", long, st, nil); !errors.Is(err, ErrProtocol) || long.given != maxRequest+1+8 {
		t.Errorf("a fetch of %d bytes: %v, %d bytes left", maxRequest+1, err, long.given)
	}
	g := NewGate(1, 1, 1)
	leave, err := g.enter("other", 1)
	if err != nil {
		t.Fatal(err)
	}
	const size = 32 << 20
	push := request(kindPush, size)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = Serve(t.Context(), "peer", push, st, g)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, ErrRefused) || push.given != 0 {
		t.Errorf("a push without room: %v, %d bytes not taken", err, push.given)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > size/4 {
		t.Errorf("a push of %d bytes without room cost %d", size, got)
	}
	var f refusal
	if k, body, err := wire.Read(&push.out, maxRequest); err != nil || k != kindError || wire.Unmarshal(body, &f) != nil || !errors.Is(f.err(), ErrRefused) {
		t.Errorf("answered with kind %d, %v", k, err)
	}
	if err := Serve(t.Context(), "peer", request(kindPushWhole, 16), st, g); errors.Is(err, ErrRefused) {
		t.Errorf("a small push waits for a large one: %v", err)
	}
	leave()
	if err := Serve(t.Context(), "peer", request(kindPush, 16), st, g); errors.Is(err, ErrRefused) {
		t.Errorf("with room: %v", err)
	}
	if leave, err = g.forSmall().enter("other", 1); err != nil {
		t.Fatal(err)
	}
	defer leave()
	if err := Serve(t.Context(), "peer", request(kindPushWhole, 16), st, g); !errors.Is(err, ErrRefused) {
		t.Errorf("small pushes are not bounded: %v", err)
	}
}

// A mirror that has most of 100 GiB hashes all that again before it says what it lacks.
func TestRoomIsMadeBySize(t *testing.T) {
	if small, large := roomMade(1<<20), roomMade(100<<30); small != idleAfter || large < 6*time.Minute || large > 8*time.Minute {
		t.Errorf("%v and %v", small, large)
	}
}
