package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/replica"
)

// keeperTimeout bounds one exchange with a keeper, which only ever looks up a map: a keeper that takes longer is stopped or broken.
const keeperTimeout = 5 * time.Second

// Keeper is a daemon's connection to its node's keeper. Safe for concurrent use; calls are served one after another.
type Keeper struct {
	socket      string
	incarnation replica.NodeIncarnation
	session     replica.Session

	turn chan struct{} // capacity 1: held during an exchange
	conn *net.UnixConn
	once sync.Once

	watched *os.File      // conn's socket once more: watching it leaves what is read from conn alone
	done    chan struct{} // closed by the watch, which Close waits for
}

// DialKeeper connects and says that a daemon has started: the session number rises, and an older daemon loses its connection.
func DialKeeper(ctx context.Context, socket string) (*Keeper, error) {
	k, done, err := dialKeeper(ctx, socket, keeperMessage{typ: keepStart})
	if err == nil {
		k.incarnation, k.session = done.incarnation, done.session
	}
	return k, err
}

// ReturnToKeeper connects a daemon that runs already, and has lost its keeper or the connection, to the keeper that answers now. One under which
// another daemon has started refuses. The daemon brings its descriptors, and then its life (TakeLife).
func ReturnToKeeper(ctx context.Context, socket string, inc replica.NodeIncarnation, s replica.Session) (*Keeper, error) {
	k, _, err := dialKeeper(ctx, socket, keeperMessage{typ: keepBack, incarnation: inc, session: s})
	if err == nil {
		k.incarnation, k.session = inc, s
	}
	return k, err
}

// TakeLife has the keeper take this daemon's incarnation and session for its own. It comes last, as a seal does: a daemon that dies before has
// died with its keeper, and the next one finds another life of the node.
func (k *Keeper) TakeLife() error {
	_, _, err := k.exchange(keeperMessage{typ: keepLife, incarnation: k.incarnation, session: k.session}, nil)
	return err
}

func dialKeeper(ctx context.Context, socket string, first keeperMessage) (k *Keeper, done keeperMessage, err error) {
	c, err := unixsock.Dial(ctx, "unixpacket", socket)
	if s, ok := errors.AsType[*unixsock.StrangerError](err); ok {
		return nil, done, fmt.Errorf("keeper at %s runs as user %d, this daemon as %d: start both as the same user", socket, s.UID, os.Geteuid())
	}
	if err != nil {
		return nil, done, fmt.Errorf("keeper at %s: %w", socket, err)
	}
	k = &Keeper{socket: socket, conn: c, turn: make(chan struct{}, 1)}
	if err := k.watch(); err != nil {
		return nil, done, errors.Join(fmt.Errorf("keeper at %s: %w", socket, err), c.Close())
	}
	defer context.AfterFunc(ctx, k.Close)()
	if done, _, err = k.exchange(first, nil); err != nil {
		k.Close()
		return nil, done, err
	}
	return k, done, nil
}

// Incarnation is the node's: minted at random when its keeper started.
func (k *Keeper) Incarnation() replica.NodeIncarnation { return k.incarnation }

// Session counts daemon starts under this keeper, from 1; this connection's.
func (k *Keeper) Session() replica.Session { return k.session }

// Put has the keeper hold a duplicate of f under key, in place of what it held there. f stays the caller's.
func (k *Keeper) Put(key string, f *os.File) error {
	if err := checkKey(key); err != nil {
		return err
	}
	_, _, err := k.exchange(keeperMessage{typ: keepPut, key: key}, f)
	return err
}

// Drop has the keeper let go of what it holds under key, if anything.
func (k *Keeper) Drop(key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	_, _, err := k.exchange(keeperMessage{typ: keepDrop, key: key}, nil)
	return err
}

// All returns duplicates of everything the keeper holds. They are the caller's.
func (k *Keeper) All() (map[string]*os.File, error) {
	_, files, err := k.exchange(keeperMessage{typ: keepAll}, nil)
	return files, err
}

// Done is closed when the keeper has gone, or has hung up, and by Close.
func (k *Keeper) Done() <-chan struct{} { return k.done }

// Close hangs up; what the keeper holds it goes on holding.
func (k *Keeper) Close() {
	k.once.Do(func() {
		_ = k.conn.Close()
		_ = k.watched.Close()
		<-k.done
	})
}

// watch has done closed when the other end has gone. Nothing tells of that otherwise until the next call, which may be hours away.
func (k *Keeper) watch() error {
	var fd int
	err := unixsock.Control(k.conn, func(c int) (err error) {
		fd, err = unix.FcntlInt(uintptr(c), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("duplicate the connection: %w", err)
	}
	k.watched, k.done = os.NewFile(uintptr(fd), k.socket), make(chan struct{})
	raw, err := k.watched.SyscallConn()
	if err != nil {
		return errors.Join(err, k.watched.Close())
	}
	go func() {
		defer close(k.done)
		_ = raw.Read(hungUp) // ends with the other end, or with Close
	}()
	return nil
}

// refusal is why the keeper does not do as it is asked. It goes on serving.
type refusal string

func (r refusal) Error() string { return string(r) }

// hungUp tells whether the other end of a connection has gone, whatever of its replies still waits to be read.
func hungUp(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

func checkKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("keeper key %q: want 1 to %d bytes", key, MaxKey)
	}
	for i := range len(key) {
		if key[i] == 0 {
			return fmt.Errorf("keeper key %q: NUL at %d", key, i)
		}
	}
	return nil
}

// exchange sends one message and collects the reply. Where that fails it hangs up: a reply that comes late would be taken for the next one's.
func (k *Keeper) exchange(m keeperMessage, f *os.File) (done keeperMessage, files map[string]*os.File, err error) {
	k.turn <- struct{}{}
	defer func() { <-k.turn }()
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			if !errors.As(err, new(refusal)) {
				k.Close()
			}
			files, err = nil, fmt.Errorf("keeper at %s: %w", k.socket, err)
		}
	}()
	if err := k.conn.SetDeadline(time.Now().Add(keeperTimeout)); err != nil {
		return done, nil, err
	}
	if err := sendKeeper(k.conn, m, f); err != nil {
		return done, nil, err
	}
	files = make(map[string]*os.File)
	for {
		r, f, err := receiveKeeper(k.conn)
		switch {
		case err != nil:
			return done, files, err
		case r.typ == keepItem && f != nil && files[r.key] == nil && len(files) < MaxKept:
			files[r.key] = f
		case r.typ == keepDone && f == nil && r.text == "":
			return r, files, nil
		case r.typ == keepDone && f == nil:
			return done, files, refusal(r.text)
		default:
			if f != nil {
				_ = f.Close()
			}
			return done, files, fmt.Errorf("unexpected reply of type %d", r.typ)
		}
	}
}
