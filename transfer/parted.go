package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// parted is a push whose chunks go over one stream or several, each as it comes to them. The main one ends the push, once the others have:
// what one of those had not been told to have arrived is sent again over it.
type parted struct {
	key    Key
	reader Reader // ReadChunk from several goroutines
	m      *replica.Manifest

	mu      sync.Mutex // guards the rest
	chunks  []int      // to be sent, last first
	besides int        // streams beside the main one that live
	given   []func()   // turns of theirs to give back
	changed chan struct{}
}

func newParted(k Key, r Reader, m *replica.Manifest, wanted bitmap) *parted {
	p := &parted{key: k, reader: r, m: m, changed: make(chan struct{}, 1)}
	for i := len(m.Chunks) - 1; i >= 0; i-- {
		if wanted.has(i) {
			p.chunks = append(p.chunks, i)
		}
	}
	return p
}

// streams is how many streams there may be beside the main one, one for each further wideFrom of bytes at most.
func (p *parted) streams(t Turns) int {
	for p.besides+1 < t.Streams && uint64(len(p.chunks))*uint64(p.m.ChunkBytes) >= wideFrom*uint64(p.besides+1) {
		done, ok := t.More()
		if !ok {
			break
		}
		p.given = append(p.given, done)
		p.besides++
	}
	return p.besides
}

// take takes a chunk to send over s; wait: where there is none, until no other stream could give one back.
func (p *parted) take(ctx context.Context, s *stream, wait bool) (i int, ok bool) {
	for {
		p.mu.Lock()
		if n := len(p.chunks); n > 0 {
			i, p.chunks = p.chunks[n-1], p.chunks[:n-1]
			p.mu.Unlock()
			return i, true
		}
		over := p.besides == 0
		p.mu.Unlock()
		if over || !wait {
			return 0, false
		}
		select {
		case <-p.changed:
		case <-time.After(stallAfter / 4):
			s.waits()
		case <-ctx.Done():
			return 0, false
		}
	}
}

// send sends chunks until there are none, and says so; took is what was taken.
func (p *parted) send(ctx context.Context, s *stream, wait bool) (took []int, err error) {
	s.paced(p.reader)
	buf := getBuffer(min(uint64(p.m.ChunkBytes), p.m.Bytes))
	defer buf.free()
	for i, ok := p.take(ctx, s, wait); ok; i, ok = p.take(ctx, s, wait) {
		took = append(took, i)
		if err := sendChunk(s, p.reader, p.m, i, buf); err != nil {
			return took, err
		}
	}
	var end [chunkHeaderBytes]byte
	chunkHeader{op: opEnd}.put(end[:])
	_, err = s.Write(end[:])
	return took, err
}

func (p *parted) main(ctx context.Context, s *stream) error {
	_, err := p.send(ctx, s, true)
	return err
}

// beside sends over a further stream. Whatever goes wrong there, the main one makes up for it.
func (p *parted) beside(ctx context.Context, l Lane) {
	took, err := p.sendBeside(ctx, l)
	p.mu.Lock()
	if err != nil {
		p.chunks = append(p.chunks, took...)
	}
	p.besides--
	done := p.given[len(p.given)-1]
	p.given = p.given[:len(p.given)-1]
	p.mu.Unlock()
	done()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *parted) sendBeside(ctx context.Context, l Lane) (took []int, err error) {
	c, err := l.Open(ctx)
	if err != nil {
		return nil, err
	}
	s := newStream(ctx, c, stallAfter)
	defer s.end()
	if err := wire.Write(s, kindPushBeside, p.key); err != nil {
		return nil, err
	}
	var ready done
	if err := readAnswer(s.r, kindReady, &ready); err != nil {
		return nil, err
	}
	if took, err = p.send(ctx, s, false); err != nil {
		return took, err
	}
	if err = readAnswer(s.r, kindDone, &ready); err == nil && ready.Root != p.key.Root {
		err = fmt.Errorf("%w: taken for root %v, want %v", ErrProtocol, ready.Root, p.key.Root)
	}
	s.whole = err == nil
	return took, err
}

// incoming is a push that is being received, over one stream or several.
type incoming struct {
	sink  Sink
	m     *replica.Manifest
	lacks bitmap // what was not there at the beginning

	besides atomic.Int32 // streams beside the main one that live
}

func newIncoming(sink Sink, m *replica.Manifest) *incoming {
	in := &incoming{sink: sink, m: m, lacks: newBitmap(len(m.Chunks))}
	for i := range m.Chunks {
		if !sink.Have(i) {
			in.lacks.set(i)
		}
	}
	return in
}

// whole takes all chunks in order. What comes though the sink has it is dropped.
func (in *incoming) whole(s *stream) error {
	buf := getBuffer(min(uint64(in.m.ChunkBytes), in.m.Bytes))
	defer buf.free()
	var header [chunkHeaderBytes]byte
	for i := range in.m.Chunks {
		h, err := readChunkHeader(s.r, &header)
		if err == nil && (h.op != opChunk || uint64(h.index) != uint64(i)) {
			err = in.strange(s, h)
		}
		if err == nil {
			err = in.chunk(s, i, h.length, buf)
		}
		if err != nil {
			return unended(fmt.Errorf("chunk %d of %d: %w", i, len(in.m.Chunks), err))
		}
	}
	return nil
}

// some takes chunks that were lacking, in any order, until the peer says that there are no more on this stream. The main one ends last, and may
// have to wait until those beside it do, or their chunks come again.
func (in *incoming) some(s *stream, main bool) error {
	buf := getBuffer(min(uint64(in.m.ChunkBytes), in.m.Bytes))
	defer buf.free()
	var header [chunkHeaderBytes]byte
	for n := 0; ; n++ {
		if main {
			limit := stallAfter
			if in.besides.Load() > 0 {
				limit = idleAfter
			}
			s.limited(limit)
		}
		h, err := readChunkHeader(s.r, &header)
		switch {
		case err != nil:
			return unended(fmt.Errorf("after %d chunks: %w", n, err))
		case h.op == opEnd && h.length == 0:
			return nil
		case h.op != opChunk || uint64(h.index) >= uint64(len(in.m.Chunks)) || !in.lacks.has(int(h.index)) || n >= 2*len(in.m.Chunks):
			return in.strange(s, h)
		}
		if err := in.chunk(s, int(h.index), h.length, buf); err != nil {
			return unended(fmt.Errorf("chunk %d of %d: %w", h.index, len(in.m.Chunks), err))
		}
	}
}

// strange is the error of a header that is not to come now.
func (in *incoming) strange(s *stream, h chunkHeader) error {
	if h.op == opFail {
		return readRefusal(s.r)
	}
	return fmt.Errorf("%w: op %d of chunk %d, %d bytes", ErrProtocol, h.op, h.index, h.length)
}

// unended is an error of a stream that must not end yet.
func unended(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w (%w)", io.ErrUnexpectedEOF, err)
	}
	return err
}

// chunk takes the bytes of a chunk, whose header has come.
func (in *incoming) chunk(s *stream, i int, length uint32, buf *buffer) error {
	_, n := replica.ChunkSpan(i, in.m.Bytes, in.m.ChunkBytes)
	if uint64(length) != n {
		return fmt.Errorf("%w: %d bytes, want %d", ErrProtocol, length, n)
	}
	b := buf.bytes(n)
	got, err := readHashed(s, b)
	if err != nil {
		return err
	}
	if got != in.m.Chunks[i] {
		return fmt.Errorf("%w: digest %v, want %v", ErrCorrupt, got, in.m.Chunks[i])
	}
	if !in.lacks.has(i) {
		return nil
	}
	if err := in.sink.Put(i, b); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	return nil
}

// offered is a push that a peer may send more streams of.
type offered struct {
	peer replica.NodeName
	key  Key
}

// receive says what is wanted and takes it, while further streams of the peer's may bring of it.
func (g *Gate) receive(peer replica.NodeName, k Key, in *incoming, s *stream) error {
	if g != nil {
		at := offered{peer, k}
		g.mu.Lock()
		_, taken := g.pushes[at]
		if !taken {
			g.pushes[at] = in
		}
		g.mu.Unlock()
		if !taken {
			defer func() {
				g.mu.Lock()
				defer g.mu.Unlock()
				delete(g.pushes, at)
			}()
		}
	}
	if err := wire.Write(s, kindWant, &want{in.lacks}); err != nil {
		return err
	}
	return in.some(s, true)
}

// serveBeside takes what comes of a push beside its main stream.
func serveBeside(s *stream, peer replica.NodeName, body []byte, g *Gate) error {
	var k Key
	if err := wire.Unmarshal(body, &k); err != nil {
		return err
	}
	var in *incoming
	if g != nil {
		g.mu.Lock()
		in = g.pushes[offered{peer, k}]
		g.mu.Unlock()
	}
	if in == nil {
		return answerError(s, fmt.Errorf("%w: no push of %v %v is under way", ErrUnknownPart, k.Part, k.Generation))
	}
	s.limit = stallAfter
	in.besides.Add(1)
	if err := wire.Write(s, kindReady, done{}); err != nil {
		in.besides.Add(-1)
		return err
	}
	err := in.some(s, false)
	in.besides.Add(-1)
	if err != nil {
		return answerError(s, err)
	}
	err = wire.Write(s, kindDone, done{k.Root})
	s.whole = err == nil
	return err
}
