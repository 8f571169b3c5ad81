package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/wire"
)

const (
	LinkHandshake = 2 * time.Second        // for hello and welcome; a leader that registers a node writes one log entry meanwhile
	linkWrite     = 3 * time.Second        // for one frame
	LinkBeat      = 200 * time.Millisecond // the leader says something at least so often
	LinkSilent    = time.Second            // without a word the node looks for a leader elsewhere: QUIC would take three times as long to notice
)

var errLinkFull = errors.New("link: the other end does not read")

// Link is one end of the stream between a node and the leader: a bounded queue to its writer, and a reader that hands
// decoded messages on. Send never blocks its caller.
type Link struct {
	conn net.Conn
	to   Direction
	more chan struct{} // something may wait for the writer
	once sync.Once
	Up   chan struct{} // closed by the leader, once its end is in use
	Down chan struct{}
	err  error // why it went down; read after Down is closed
	// Full is told whose message found no place: it is left out. Set before the link is used; nil: nobody is told.
	Full func(of any)

	mu    sync.Mutex // guards queue
	queue queue
}

// NewLink is one end of a link; what is sent on it goes to an end of the given kind.
func NewLink(conn net.Conn, to Direction) *Link {
	return &Link{conn: conn, to: to, more: make(chan struct{}, 1), queue: newQueue(), Up: make(chan struct{}), Down: make(chan struct{})}
}

// Send queues a message. One of a job waits for others of that job alone, and the newest replaces what it makes void; a link on which too much
// of nobody's waits is closed: the node links again and gets the whole state.
func (l *Link) Send(v any) { l.SendFor(laneOf(l.to, v), v) }

// SendFor queues a message of a job, or of whom it is comparable to, that does not say so itself.
func (l *Link) SendFor(of, v any) {
	m := &waiting{of: of}
	if o, ok := v.(Offers); ok {
		m.kind, m.offers = KindOffer, &o
	} else if kept, ok := v.(KVKept); ok && of != nil {
		m.kind, m.kept = KindKept, &kept
	} else {
		var err error
		if m.frames, err = Encode(l.to, v); err != nil {
			l.Close(err)
			return
		}
		m.kind = byType[spoken{l.to, reflect.TypeOf(v)}]
	}
	l.put(m)
}

// SendFrames queues a message whose frames are there already, of a job or (nil) nobody's.
func (l *Link) SendFrames(of, v any, frames [][]byte) {
	l.put(&waiting{of: of, kind: byType[spoken{l.to, reflect.TypeOf(v)}], frames: frames})
}

func (l *Link) put(m *waiting) {
	select {
	case <-l.Down:
		return
	default:
	}
	l.mu.Lock()
	full := l.queue.put(m, byKind[m.kind].newest)
	l.mu.Unlock()
	switch {
	case full && m.of == nil:
		l.Close(errLinkFull)
	case full && l.Full != nil:
		l.Full(m.of)
	}
	select {
	case l.more <- struct{}{}:
	default: // the writer looks anyway
	}
}

// Take takes the next frame out of the queue; nil: none waits.
func (l *Link) Take() []byte {
	l.mu.Lock()
	frame, err := l.queue.take()
	l.mu.Unlock()
	if err != nil {
		l.Close(err)
	}
	return frame
}

// Close ends the link for a reason; the first one counts. It does not wait.
func (l *Link) Close(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.Down)
		l.conn.Close()
	})
}

// Run reads until the link is down; handle decodes and passes on. It returns why the link went down, after its writer ended.
func (l *Link) Run(ctx context.Context, handle func(wire.Kind, []byte) error) error {
	stop := context.AfterFunc(ctx, func() { l.Close(context.Cause(ctx)) })
	defer stop()
	var writer sync.WaitGroup
	writer.Go(l.write)
	for {
		k, body, err := wire.Read(l.conn, MaxLinkFrame)
		if err == nil {
			err = handle(k, body)
		}
		if err != nil {
			l.Close(err)
			break
		}
	}
	writer.Wait()
	return l.err
}

func (l *Link) write() {
	for {
		select {
		case <-l.Down:
			return
		case <-l.more:
		}
		for frame := l.Take(); frame != nil; frame = l.Take() {
			l.conn.SetWriteDeadline(time.Now().Add(linkWrite))
			if _, err := l.conn.Write(frame); err != nil {
				l.Close(fmt.Errorf("write: %w", err))
				return
			}
		}
	}
}

// WriteHello says the first message of a link.
func WriteHello(conn net.Conn, h Hello) error { return wire.Write(conn, KindHello, h) }

// WriteWelcome answers a hello where no link comes of it.
func WriteWelcome(conn net.Conn, w Welcome) error { return wire.Write(conn, KindWelcome, w) }

// ReadHello reads the first message on a link; what is none is an ErrFrame.
func ReadHello(conn net.Conn) (Hello, error) {
	k, body, err := wire.Read(conn, MaxHello)
	if err != nil {
		return Hello{}, err
	}
	if k != KindHello {
		return Hello{}, fmt.Errorf("%w: message %d instead of a hello", wire.ErrFrame, k)
	}
	return DecodeAs[Hello](body)
}

// ReadWelcome reads what answers a hello.
func ReadWelcome(conn net.Conn) (Welcome, error) {
	k, body, err := wire.Read(conn, MaxLinkFrame)
	if err != nil {
		return Welcome{}, fmt.Errorf("welcome: %w", err)
	}
	if k != KindWelcome {
		return Welcome{}, fmt.Errorf("message %d instead of a welcome", k)
	}
	return DecodeAs[Welcome](body)
}
