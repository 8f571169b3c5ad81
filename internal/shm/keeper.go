package shm

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/replica"
)

// KeeperServer holds descriptors by key. Its memory is the node's memory, so its incarnation is the node's. A keeper under which no daemon has
// started takes the incarnation of a daemon that runs already and whose keeper has ended: what the node holds is with that daemon then.
type KeeperServer struct {
	socket      string
	ln          *net.UnixListener
	incarnation replica.NodeIncarnation
	uid         int
	firstWait   time.Duration // for a connection's first message
	accept      func() (*net.UnixConn, error)

	mu      sync.Mutex // guards the rest
	session replica.Session
	held    map[string]*os.File
	current *net.UnixConn // the daemon that started last: the only one served
}

// maxKeeperConns bounds connections: one daemon, and one that is going away.
const maxKeeperConns = 8

// acceptAgain is the time between two tries to take a connection while this process has no descriptor left.
const acceptAgain = 100 * time.Millisecond

// RunKeeper is ListenKeeper and Run: a keeper process' whole life.
func RunKeeper(ctx context.Context, socket string) error {
	k, err := ListenKeeper(socket)
	if err != nil {
		return err
	}
	return k.Run(ctx)
}

// ListenKeeper takes the socket and mints the incarnation. Daemons can dial from now on; they are served once Run is called.
func ListenKeeper(socket string) (*KeeperServer, error) {
	ln, err := listenKeeper(socket)
	if err != nil {
		return nil, err
	}
	k := &KeeperServer{socket: socket, ln: ln, uid: os.Geteuid(), firstWait: keeperTimeout, accept: ln.AcceptUnix, held: make(map[string]*os.File)}
	for k.incarnation == 0 {
		var b [8]byte
		_, _ = rand.Read(b[:])
		k.incarnation = replica.NodeIncarnation(binary.LittleEndian.Uint64(b[:]))
	}
	return k, nil
}

// Run holds descriptors for the daemons that dial, until ctx ends: then they are gone, and with them the arenas that no rank
// maps. It serves the daemon that started last; an older one that is still connected is hung up on.
func (k *KeeperServer) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var conns sync.WaitGroup
	stop := context.AfterFunc(ctx, func() { _ = k.ln.Close() })
	defer stop()
	defer func() {
		cancel()
		conns.Wait()
		for _, f := range k.held {
			_ = f.Close()
		}
		_ = k.ln.Close()
	}()
	room := make(chan struct{}, maxKeeperConns)
	for {
		c, err := k.accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return nil
		}
		if want.Of(err) != want.Nothing { // what it holds must not be lost for that: the connections that there are end some time
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(acceptAgain):
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("keeper on %s: accept: %w", k.socket, err)
		}
		select {
		case room <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		conns.Go(func() {
			defer func() { <-room }()
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			defer c.Close()
			k.serve(c)
		})
	}
}

// listenKeeper listens on the socket, which is the keeper's alone.
func listenKeeper(socket string) (*net.UnixListener, error) {
	ln, err := unixsock.Listen("unixpacket", socket)
	if errors.Is(err, unixsock.ErrInUse) {
		return nil, fmt.Errorf("keeper %w: one keeper is enough for a node", err)
	}
	if err != nil {
		return nil, fmt.Errorf("keeper %w", err)
	}
	return ln, nil
}

// serve answers one daemon until it hangs up, breaks the rules, or another has started.
func (k *KeeperServer) serve(c *net.UnixConn) {
	if cred, err := unixsock.Peer(c); err != nil || int(cred.Uid) != k.uid { // not root either: in a container that may be a rank
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(k.firstWait)) // one that says nothing takes a daemon's place
	for {
		m, f, err := receiveKeeper(c)
		if err != nil {
			return
		}
		_ = c.SetReadDeadline(time.Time{})
		if err := k.answer(c, m, f); err != nil {
			return
		}
	}
}

// answer carries out one message; f is the keeper's from here on. An error ends the connection.
func (k *KeeperServer) answer(c *net.UnixConn, m keeperMessage, f *os.File) error {
	if f != nil && m.typ != keepPut {
		_ = f.Close()
		return errors.New("a descriptor where none belongs")
	}
	items, refusal, err := k.apply(c, m, f)
	if err != nil {
		return err
	}
	_ = c.SetWriteDeadline(time.Now().Add(keeperTimeout))
	for _, it := range items {
		err = errors.Join(err, sendKeeper(c, keeperMessage{typ: keepItem, key: it.key}, it.file), it.file.Close())
	}
	if err != nil {
		return err
	}
	k.mu.Lock()
	done := keeperMessage{typ: keepDone, incarnation: k.incarnation, session: k.session, text: refusal}
	k.mu.Unlock()
	return sendKeeper(c, done, nil)
}

type item struct {
	key  string
	file *os.File
}

// apply changes what is held. The items are duplicates, for the caller to send and close.
func (k *KeeperServer) apply(c *net.UnixConn, m keeperMessage, f *os.File) (items []item, refusal string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch m.typ {
	case keepStart:
		k.serveOnly(c)
		k.session++
		return nil, "", nil
	case keepBack:
		if refusal = k.foreign(m); refusal == "" {
			k.serveOnly(c)
		}
		return nil, refusal, nil
	}
	if k.current != c {
		if f != nil {
			_ = f.Close()
		}
		return nil, "", errors.New("not the daemon that started last")
	}
	switch m.typ {
	case keepPut:
		if f == nil || m.key == "" {
			if f != nil {
				_ = f.Close()
			}
			return nil, "", errors.New("put without a key or a descriptor")
		}
		if old, ok := k.held[m.key]; ok {
			_ = old.Close()
		} else if len(k.held) >= MaxKept {
			_ = f.Close()
			return nil, fmt.Sprintf("the keeper holds %d descriptors, its limit", MaxKept), nil
		}
		k.held[m.key] = f
	case keepDrop:
		if old, ok := k.held[m.key]; ok {
			_ = old.Close()
			delete(k.held, m.key)
		}
	case keepAll:
		for key, f := range k.held {
			d, err := unixsock.Duplicate(f)
			if err != nil {
				for _, it := range items {
					_ = it.file.Close()
				}
				return nil, fmt.Sprintf("duplicate a descriptor: %v", err), nil
			}
			items = append(items, item{key, d})
		}
	case keepLife:
		if refusal = k.foreign(m); refusal == "" {
			k.incarnation, k.session = m.incarnation, m.session
		}
		return nil, refusal, nil
	default:
		return nil, "", fmt.Errorf("unknown message type %d", m.typ)
	}
	return items, "", nil
}

// serveOnly has the daemon at the other end served from now on, and no other.
func (k *KeeperServer) serveOnly(c *net.UnixConn) {
	if k.current != nil && k.current != c {
		_ = k.current.Close()
	}
	k.current = c
}

// foreign says why a daemon that runs already can't have this keeper: another daemon has started under it. Empty: none has, or this very one.
func (k *KeeperServer) foreign(m keeperMessage) string {
	switch {
	case m.incarnation == 0 || m.session == 0:
		return "a running daemon has an incarnation and a session"
	case k.session == 0 || k.incarnation == m.incarnation && k.session == m.session:
		return ""
	}
	return fmt.Sprintf("serves incarnation %d, session %d", k.incarnation, k.session)
}
