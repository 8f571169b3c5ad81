package session

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
)

// ErrClosed says that a peer's session is over.
var ErrClosed = errors.New("session is closed")

// ErrSlow says that a peer was hung up on because it did not read.
var ErrSlow = errors.New("peer does not read its messages")

// conn is the peer at the other end of a connection.
type conn struct {
	conn     *net.UnixConn
	id       uint64
	pid, uid int
	start    uint64
	launcher atomic.Bool
	greeted  atomic.Bool

	mu     sync.Mutex // guards closed, cause and sending to out
	closed bool
	stays  bool  // the writer leaves the connection open to the reader
	cause  error // why this side hung up
	out    chan message
}

// message is one datagram on its way out; file is a duplicate that the writer closes.
type message struct {
	b    []byte
	file *os.File
}

func newPeer(c *net.UnixConn, id uint64) (*conn, error) {
	cred, err := unixsock.Peer(c)
	if err != nil {
		return nil, fmt.Errorf("credentials of the peer: %w", err)
	}
	start, err := StartTime(int(cred.Pid))
	if err != nil {
		return nil, fmt.Errorf("process of the peer: %w", err)
	}
	// The start time was read just now, and who connected may have ended before: it would be another process' that has its number, which would
	// be killed for what this one does.
	if ended, err := unixsock.PeerEnded(c); err != nil || ended {
		return nil, fmt.Errorf("process %d of the peer: %w", cred.Pid, cmp.Or(err, os.ErrProcessDone))
	}
	return &conn{conn: c, id: id, pid: int(cred.Pid), uid: int(cred.Uid), start: start, out: make(chan message, sendQueue)}, nil
}

func (p *conn) ID() uint64 { return p.id }

func (p *conn) PID() int { return p.pid }

func (p *conn) StartTime() uint64 { return p.start }

func (p *conn) UID() int { return p.uid }

func (p *conn) String() string { return fmt.Sprintf("peer %d (pid %d)", p.id, p.pid) }

func (p *conn) Send(h wire.RankHeader, body []byte) error { return p.SendFile(h, body, nil) }

func (p *conn) SendFile(h wire.RankHeader, body []byte, f *os.File) error {
	if len(body) > wire.MaxRankMessage-wire.RankHeaderBytes {
		return fmt.Errorf("%v: message of type %d with a body of %d bytes, at most %d", p, h.Type, len(body), wire.MaxRankMessage-wire.RankHeaderBytes)
	}
	m := message{b: wire.AppendRank(nil, h, body)}
	if f != nil {
		var err error
		if m.file, err = unixsock.Duplicate(f); err != nil {
			return fmt.Errorf("%v: duplicate the descriptor: %w", p, err)
		}
	}
	err := p.enqueue(m)
	if err != nil && m.file != nil {
		_ = m.file.Close()
	}
	return err
}

func (p *conn) enqueue(m message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("%v: %w", p, ErrClosed)
	}
	select {
	case p.out <- m:
		return nil
	default:
		p.closeLocked(ErrSlow)
		_ = p.conn.Close()
		return fmt.Errorf("%v: %w", p, ErrSlow)
	}
}

func (p *conn) Refuse(req uint32, code int32, text string) {
	_ = p.Send(wire.RankHeader{Type: wire.MRefused, Request: req}, wire.Refused{Code: code, Text: text}.Append(nil)) // a peer that is gone needs no refusal
}

func (p *conn) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeLocked(ErrClosed)
}

// part ends the session of a peer that broke the rules. It must hear why: were the connection closed before all that it sent was read,
// the kernel would reset it, and a client that looks no further would never see the reason. So this side ends its own half alone.
func (p *conn) part(f *fault) {
	p.Refuse(f.request, f.code, f.Error())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stays = !p.closed
	p.closeLocked(ErrClosed)
}

// drain reads what a peer that was refused still sends, until it hangs up; one that does not is hung up on.
func (p *conn) drain() {
	_ = p.conn.SetReadDeadline(time.Now().Add(farewell)) // one that is closed already ends the first read
	for {
		m, files, err := p.receive()
		unixsock.CloseAll(files)
		m.back()
		if _, long := errors.AsType[*fault](err); err != nil && !long {
			break
		}
	}
	_ = p.conn.Close()
}

// hangUp ends the session at once.
func (p *conn) hangUp(cause error) {
	p.mu.Lock()
	p.closeLocked(cause)
	p.mu.Unlock()
	_ = p.conn.Close()
}

func (p *conn) closeLocked(cause error) {
	if !p.closed {
		p.closed, p.cause = true, cause
		_ = p.conn.SetWriteDeadline(time.Now().Add(farewell))
		close(p.out)
	}
}

// why is the reason for the end of the session: this side's if it hung up, else what the reader met.
func (p *conn) why(read error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(read, net.ErrClosed) && p.cause != nil {
		return p.cause
	}
	return read
}

// write sends what is queued until the queue is closed, then closes the connection, or its own half of it.
func (p *conn) write() {
	broken := false
	for m := range p.out {
		if !broken {
			broken = unixsock.Send(p.conn, m.b, m.file) != nil
		}
		if m.file != nil {
			_ = m.file.Close()
		}
		if broken {
			_ = p.conn.Close() // ends the reader, which closes the queue
		}
	}
	p.mu.Lock()
	stays := p.stays
	p.mu.Unlock()
	if stays {
		_ = p.conn.CloseWrite()
	} else {
		_ = p.conn.Close()
	}
}

// datagram is one that was read. Its bytes are the reader's until it gives them back.
type datagram struct {
	b    []byte
	room *[]byte
}

// rooms are what datagrams are read into. A session that says nothing has none: with one each, those of one user would take most of what a
// daemon needs.
var rooms = sync.Pool{New: func() any { b := make([]byte, wire.MaxRankMessage+1); return &b }}

func (d datagram) back() {
	if d.room != nil {
		rooms.Put(d.room)
	}
}

// receive waits for one datagram, and reads it with the descriptors that came along. They are the caller's even beside an error.
func (p *conn) receive() (d datagram, files []*os.File, err error) {
	if err := unixsock.Await(p.conn); err != nil {
		return d, nil, err
	}
	d.room = rooms.Get().(*[]byte)
	b, files, cut, _, err := unixsock.Receive(p.conn, *d.room)
	d.b = b
	switch {
	case errors.Is(err, unix.ECONNRESET):
		err = io.EOF // it hung up with messages of ours unread
	case err == nil && cut:
		err = &fault{code: wire.CodeInvalid, err: fmt.Errorf("message longer than %d bytes", wire.MaxRankMessage)}
	}
	return d, files, err
}
