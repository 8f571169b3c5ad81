package transfer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// stream is a connection whose reads and writes must make progress, and which a context can interrupt.
//
// Invariant: once interrupted, every read and write ends at once. The flag is stored before the deadline is set, and
// whoever extends a deadline looks at the flag afterwards, so an extension can't undo an interruption.
type stream struct {
	net.Conn
	r           *bufio.Reader // of progress reads
	limit       time.Duration
	readSince   time.Time // reader's: when the read deadline was last extended
	by          time.Time // reader's: when what is being read is to be there; zero: as long as it makes progress
	writeSince  time.Time // writer's
	interrupted atomic.Bool
	stop        func() bool
	whole       bool            // the exchange ended as it should
	pace        func(bytes int) // called before each piece is written; nil: nothing holds them back
}

// newStream wraps c; the caller calls end when done.
func newStream(ctx context.Context, c net.Conn, limit time.Duration) *stream {
	s := &stream{Conn: c, limit: limit}
	s.r = readers.Get().(*bufio.Reader)
	s.r.Reset(progressReader{s})
	s.stop = context.AfterFunc(ctx, s.interrupt)
	return s
}

func (s *stream) interrupt() {
	s.interrupted.Store(true)
	_ = s.SetDeadline(time.Unix(1, 0)) // it can only fail on a closed connection, which is as good
}

// end closes the connection, or keeps it for another exchange. No read or write may be under way.
func (s *stream) end() {
	k, keeps := s.Conn.(Keeper)
	if s.stop() && s.whole && keeps && s.r.Buffered() == 0 && s.SetDeadline(time.Time{}) == nil {
		k.Keep()
	} else {
		_ = s.Close()
	}
	s.r.Reset(nil)
	readers.Put(s.r)
}

type progressReader struct{ s *stream }

// Read extends the deadline before it reads; not each time, since a QUIC stream is read in many small pieces.
func (p progressReader) Read(b []byte) (int, error) {
	s := p.s
	now := time.Now()
	if !s.by.IsZero() && now.After(s.by) {
		return 0, fmt.Errorf("%w: less than %d bytes a second", ErrStalled, slowest)
	}
	if now.Sub(s.readSince) > s.limit/8 {
		s.readSince = now
		_ = s.SetReadDeadline(now.Add(s.limit))
		if s.interrupted.Load() {
			s.interrupt()
		}
	}
	n, err := s.Conn.Read(b)
	return n, s.explain(err)
}

// paced holds back what is sent of a part from now on, where its reader is to be. It is called by the goroutine that sends.
func (s *stream) paced(r Reader) {
	if p, ok := r.(Paced); ok {
		s.pace = p.Pace()
	}
}

// Write writes b whole, in pieces each of which must make progress. It extends the read deadline too: who waits for an
// answer to what is being sent can't expect it before it was sent.
func (s *stream) Write(b []byte) (int, error) {
	piece := 1 << 20
	if s.pace != nil {
		piece = pacedPiece
	}
	for written := 0; ; {
		part := b[written:min(len(b), written+piece)]
		if s.pace != nil && len(part) > chunkHeaderBytes {
			s.pace(len(part))
		}
		if now := time.Now(); now.Sub(s.writeSince) > s.limit/8 {
			s.writeSince = now
			_ = s.SetDeadline(now.Add(s.limit))
			if s.interrupted.Load() {
				s.interrupt()
			}
		}
		n, err := s.Conn.Write(part)
		written += n
		if err != nil || written == len(b) {
			return written, s.explain(err)
		}
	}
}

// limited sets how long the next read may bring no byte.
func (s *stream) limited(limit time.Duration) {
	if s.limit != limit {
		s.limit, s.readSince = limit, time.Time{}
	}
}

// waits extends both deadlines for one that waits for others, who must make progress themselves.
func (s *stream) waits() {
	_ = s.SetDeadline(time.Now().Add(s.limit))
	if s.interrupted.Load() {
		s.interrupt()
	}
}

// explain names a deadline for what it is: a stall.
func (s *stream) explain(err error) error {
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && !s.interrupted.Load() {
		return fmt.Errorf("%w (%v)", ErrStalled, s.limit)
	}
	return err
}

// onlyInterrupted tells whether err is what interrupt caused, and so says nothing about the peer.
func onlyInterrupted(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, ErrStalled) ||
		errors.Is(err, context.Canceled)
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}

// buffer is a pooled chunk buffer with room for a header before the bytes, so that both leave in one write.
type buffer struct {
	b []byte // header room and bytes
}

// buffers are pooled by the power of two they have room for: private parts are kilobytes, chunks megabytes.
var buffers [32]sync.Pool

func getBuffer(n uint64) *buffer {
	class := bits.Len64(max(n, 1) - 1)
	if b, ok := buffers[class].Get().(*buffer); ok {
		return b
	}
	return &buffer{make([]byte, chunkHeaderBytes+1<<class)}
}

func (b *buffer) free() { buffers[bits.Len64(uint64(len(b.b)-chunkHeaderBytes)-1)].Put(b) }

// bytes is the room for n bytes of chunk.
func (b *buffer) bytes(n uint64) []byte {
	return b.b[chunkHeaderBytes : chunkHeaderBytes+n : chunkHeaderBytes+n]
}

// frame is the header's room and n bytes.
func (b *buffer) frame(n uint64) []byte { return b.b[:chunkHeaderBytes+n] }
