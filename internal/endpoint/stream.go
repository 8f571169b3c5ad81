package endpoint

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
)

// Stream is one bidirectional stream of a connection, as a net.Conn. The other side sees it with its first byte.
type Stream struct {
	conn *Conn
	q    *quic.Stream

	// turn holds one token: a Write has it while it writes, Close takes it to end the stream after whole writes only.
	turn  chan struct{}
	close sync.Once
	err   error // of the close
}

var _ net.Conn = (*Stream)(nil)

func newStream(c *Conn, q *quic.Stream) *Stream {
	return &Stream{conn: c, q: q, turn: make(chan struct{}, 1)}
}

func (s *Stream) Read(b []byte) (int, error) {
	n, err := s.q.Read(b)
	if s.conn.class == Bulk {
		s.conn.ep.received.Add(uint64(n))
	}
	return n, explain(err)
}

func (s *Stream) Write(b []byte) (int, error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	n, err := s.q.Write(b)
	if s.conn.class == Bulk {
		s.conn.ep.sent.Add(uint64(n))
	}
	return n, explain(err)
}

// Close ends both directions: what was written is still delivered, what arrives from now on is refused, and blocked calls
// return. A Write that is under way is cut off, and the peer then reads an error, not the end of the stream.
func (s *Stream) Close() error {
	s.close.Do(func() {
		s.q.CancelRead(quic.StreamErrorCode(CodeDone))
		select {
		case s.turn <- struct{}{}:
			s.err = s.q.Close()
			<-s.turn
		default:
			s.q.CancelWrite(quic.StreamErrorCode(CodeDone))
		}
	})
	return s.err
}

// CloseWrite tells the peer that nothing follows; reading goes on.
func (s *Stream) CloseWrite() error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	return explain(s.q.Close())
}

// Abort drops the stream: the peer reads an error, even where all bytes were delivered.
func (s *Stream) Abort(code Code) {
	s.q.CancelRead(quic.StreamErrorCode(code))
	s.q.CancelWrite(quic.StreamErrorCode(code))
}

// Conn is the connection that the stream belongs to.
func (s *Stream) Conn() *Conn { return s.conn }

func (s *Stream) LocalAddr() net.Addr                { return s.conn.q.LocalAddr() }
func (s *Stream) RemoteAddr() net.Addr               { return s.conn.q.RemoteAddr() }
func (s *Stream) SetDeadline(t time.Time) error      { return s.q.SetDeadline(t) }
func (s *Stream) SetReadDeadline(t time.Time) error  { return s.q.SetReadDeadline(t) }
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.q.SetWriteDeadline(t) }

// IsAbort tells whether err is the peer's abort or close of one stream while its connection lives on.
func IsAbort(err error) bool {
	var aborted *quic.StreamError
	return !errors.Is(err, io.EOF) && errors.As(err, &aborted) && aborted.Remote
}
