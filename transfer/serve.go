package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Serve answers one stream of an authenticated peer: one fetch or one push, once the gate lets it in. It closes the stream and returns
// what went wrong, for the log; a peer that has enough and hangs up is no error.
func Serve(ctx context.Context, peer replica.NodeName, c net.Conn, st Store, g *Gate) error {
	_, err := serveOne(ctx, peer, c, idleAfter, st, g)
	return err
}

// ServeAll answers one exchange after another on a connection that is a stream of its own, until one fails or the peer hangs up.
func ServeAll(ctx context.Context, peer replica.NodeName, c net.Conn, st Store, g *Gate) error {
	k := &kept{Conn: c}
	for {
		if whole, err := serveOne(ctx, peer, k, restAfter, st, g); !whole || err != nil {
			return err
		}
	}
}

// kept is a connection whose owner closes it.
type kept struct{ net.Conn }

func (kept) Keep()        {}
func (kept) Close() error { return nil }

// serveOne waits so long for a request and answers it; whole: the connection is good for another.
func serveOne(ctx context.Context, peer replica.NodeName, c net.Conn, rest time.Duration, st Store, g *Gate) (whole bool, err error) {
	s := newStream(ctx, c, rest)
	defer s.end()
	h, err := wire.ReadHeader(s.r, wire.MaxBody)
	s.limit = idleAfter
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	if err == nil {
		err = serve(s, peer, h, st, g)
	}
	if err != nil {
		return false, fmt.Errorf("serve %s: %w", peer, err)
	}
	return s.whole, nil
}

// serve keeps nothing of a request that is longer than its kind may be, or has no room.
func serve(s *stream, peer replica.NodeName, h wire.Header, st Store, g *Gate) error {
	most := uint32(maxRequest)
	switch h.Kind {
	case kindFetch, kindPushBeside:
	case kindPush:
		most = maxPush
	case kindPushWhole:
		most, g = maxPush, g.forSmall()
	default:
		return fmt.Errorf("%w: request of kind %d", ErrProtocol, h.Kind)
	}
	if h.Bytes > most {
		return fmt.Errorf("%w: request of %d bytes, at most %d", ErrProtocol, h.Bytes, most)
	}
	leave, err := g.enter(peer, uint64(h.Bytes))
	if err != nil {
		if skipped := h.Skip(s.r); skipped != nil { // a peer that is still writing would not read the answer
			return skipped
		}
		return answerError(s, err)
	}
	defer leave()
	body, err := h.Body(s.r)
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	switch h.Kind {
	case kindFetch:
		return serveFetch(s, peer, body, st)
	case kindPushBeside:
		return serveBeside(s, peer, body, g)
	}
	return servePush(s, peer, h.Kind == kindPushWhole, body, st, g)
}

func serveFetch(s *stream, peer replica.NodeName, body []byte, st Store) error {
	var k Key
	if err := wire.Unmarshal(body, &k); err != nil {
		return err
	}
	r, err := st.Open(peer, k)
	if err != nil {
		return answerError(s, err)
	}
	defer r.Close()
	s.paced(r)
	m := r.Manifest()
	if err := wire.Write(s, wire.KindManifest, &m); err != nil {
		return err
	}
	buf := getBuffer(min(uint64(m.ChunkBytes), m.Bytes))
	defer buf.free()
	var header [chunkHeaderBytes]byte
	for {
		h, err := readChunkHeader(s.r, &header)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if h == (chunkHeader{op: opHave}) {
			if err := sendHave(s, r, len(m.Chunks)); err != nil {
				return err
			}
			continue
		}
		if h.op != opGet || h.length != 0 || uint64(h.index) >= uint64(len(m.Chunks)) {
			return fmt.Errorf("%w: request op %d for chunk %d of %d", ErrProtocol, h.op, h.index, len(m.Chunks))
		}
		if err := sendChunk(s, r, &m, int(h.index), buf); err != nil {
			return err
		}
	}
}

// sendHave says which chunks there are: of a part that is not on its way any more, all.
func sendHave(s *stream, r Reader, chunks int) error {
	on, receiving := r.(Receiving)
	has := newBitmap(chunks)
	for i := range chunks {
		if !receiving || on.Has(i) {
			has.set(i)
		}
	}
	reply := make([]byte, chunkHeaderBytes, chunkHeaderBytes+len(has))
	chunkHeader{op: opHave, length: uint32(len(has))}.put(reply)
	_, err := s.Write(append(reply, has...))
	return err
}

// sendChunk reads chunk i and sends it. A chunk that can't be read any more is answered with a refusal that ends the stream.
func sendChunk(s *stream, r Reader, m *replica.Manifest, i int, buf *buffer) error {
	_, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
	room := buf.bytes(n)
	b, err := r.ReadChunk(i, room)
	if err == nil && uint64(len(b)) != n {
		err = fmt.Errorf("%d bytes, want %d", len(b), n)
	}
	if err != nil {
		err = fmt.Errorf("read chunk %d: %w", i, err)
		var fail [chunkHeaderBytes]byte
		chunkHeader{op: opFail, index: uint32(i)}.put(fail[:])
		if _, werr := s.Write(fail[:]); werr != nil {
			return errors.Join(err, werr)
		}
		return answerError(s, err)
	}
	frame := buf.frame(n)
	chunkHeader{op: opChunk, index: uint32(i), length: uint32(n)}.put(frame)
	if n > 0 && &b[0] != &room[0] {
		copy(room, b)
	}
	_, err = s.Write(frame)
	return err
}

// answerError tells the peer why and returns err.
func answerError(s *stream, err error) error {
	if werr := wire.Write(s, kindError, refuse(err)); werr != nil {
		return errors.Join(err, werr)
	}
	return err
}
