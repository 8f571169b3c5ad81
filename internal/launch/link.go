package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// The launcher's connection: how often it is tried again, and how long a daemon may take to answer or to read.
const (
	retryFirst  = 50 * time.Millisecond
	retryLast   = time.Second
	sendTimeout = 5 * time.Second
)

// link keeps one connection to the daemon, connecting again until the job is done; its run goroutine owns it. What happens goes to
// events, which blocks: the reader waits for the launcher, never the other way round.
type link struct {
	socket  string
	daemons []uint32      // users whose daemon may serve it, besides root and this one
	hello   wire.RunHello // names the job that it was accepted for from then on
	kept    *os.File      // goes with each hello; nil: nothing does
	wait    time.Duration // for the answer to the hello
	events  chan linkEvent
	over    bool // the daemon has said that the job is done: a daemon that is started again would make a new job of the name
}

// linkEvent is exactly one of: connected (conn), a message (typ and body), or not connected any more (err).
type linkEvent struct {
	conn *net.UnixConn
	typ  uint16
	body []byte
	err  error
}

// refusedError is the daemon's answer to the hello.
type refusedError struct{ wire.Refused }

func (e *refusedError) Error() string { return "the daemon refused: " + e.Text }

// silence is a daemon's that took the connection: it is there, and waits for something itself.
type silence struct{ wait time.Duration }

func (e *silence) Error() string {
	return fmt.Sprintf("the daemon is there and has not answered the hello within %v: it knows no leader, or the leader waits for its durable_dir: replicad status says which", e.wait)
}

// Is makes it a kind of ErrNoDaemon, for programs.
func (e *silence) Is(target error) bool { return target == ErrNoDaemon }

// stranger tells whether somebody answers on the socket who is not to be believed: no daemon that comes back changes that.
func stranger(err error) bool {
	_, is := errors.AsType[*unixsock.StrangerError](err)
	return is
}

// run returns when ctx is done, or when a connection ends after its daemon has said that the job is done.
func (l *link) run(ctx context.Context) {
	delay := retryFirst
	for ctx.Err() == nil {
		up, err := l.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if up {
			delay = retryFirst
		}
		if !l.emit(ctx, linkEvent{err: err}) || l.over {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
		delay = min(2*delay, retryLast)
	}
}

// once connects and relays until the connection ends; up tells whether the daemon had accepted the hello.
func (l *link) once(ctx context.Context) (up bool, err error) {
	dialing, cancel := context.WithTimeout(ctx, l.wait)
	conn, err := unixsock.Dial(dialing, "unixpacket", l.socket, l.daemons...)
	cancel()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(l.wait)); err != nil {
		return false, err
	}
	unsent := unixsock.Send(conn, wire.AppendRank(nil, wire.RankHeader{Type: wire.MRunHello, Request: 1}, l.hello.Append(nil)), l.kept)
	buf := make([]byte, wire.MaxRankMessage)
	for {
		n, err := conn.Read(buf)                // also where nobody took the hello: why was said before that
		if errors.Is(err, syscall.ECONNRESET) { // it says so once; what the daemon said before comes after that
			n, err = conn.Read(buf)
		}
		if err != nil && unsent != nil {
			return false, unsent
		}
		if !up && errors.Is(err, os.ErrDeadlineExceeded) {
			return false, &silence{l.wait}
		}
		if err != nil {
			return up, fmt.Errorf("connection to the daemon: %w", err)
		}
		h, body, err := wire.ParseRank(buf[:n])
		if err != nil {
			return up, err
		}
		if !up && h.Type != wire.MRunNote { // what the job began with is said before
			job, err := accepted(h, body)
			if err != nil {
				return false, err
			}
			l.hello.Joined = job
			if err := conn.SetDeadline(time.Time{}); err != nil {
				return false, err
			}
			up = true
			if !l.emit(ctx, linkEvent{conn: conn}) {
				return true, ctx.Err()
			}
			continue
		}
		if !up { // who asks for the job is looked after
			if err := conn.SetDeadline(time.Now().Add(l.wait)); err != nil {
				return false, err
			}
		}
		if h.Type == wire.MRunDone {
			_, err := wire.ParseRefused(body)
			l.over = l.over || err == nil
		}
		if !l.emit(ctx, linkEvent{typ: h.Type, body: append([]byte(nil), body...)}) {
			return true, ctx.Err()
		}
	}
}

// accepted checks the reply to the hello, and returns the job.
func accepted(h wire.RankHeader, body []byte) (job replica.JobID, err error) {
	switch h.Type {
	case wire.MRunOK:
		w, err := wire.ParseWelcome(body)
		if err == nil && w.ABI != wire.RankABI {
			err = fmt.Errorf("the daemon speaks version %d, this launcher %d: use one release of replicad", w.ABI, wire.RankABI)
		}
		return w.Job, err
	case wire.MRefused:
		r, err := wire.ParseRefused(body)
		if err != nil {
			return job, err
		}
		return job, &refusedError{r}
	}
	return job, fmt.Errorf("the daemon answered the hello with message %d", h.Type)
}

func (l *link) emit(ctx context.Context, e linkEvent) bool {
	select {
	case l.events <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// send says something to the daemon. One that does not read is hung up on. One that has hung up may have said why: that is left to the reader, whom
// the end of the connection follows.
func send(conn *net.UnixConn, typ uint16, body []byte) error {
	err := conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	if err == nil {
		_, err = conn.Write(wire.AppendRank(nil, wire.RankHeader{Type: typ}, body))
	}
	if err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		conn.Close()
	}
	return err
}
