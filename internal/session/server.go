package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
)

// Config of a Server.
type Config struct {
	Path string // of the socket, at most 107 bytes
	// Token is what a hello for that job must carry; empty: nothing. nil: no job has one.
	Token func(job string) string
	// Users, by number, may connect besides this process' own and root. Where there are any the socket is open to all users of the host, and
	// who is none of these is refused by what the kernel says of it.
	Users []int
	// MaxPeers connected at once; 0: 1024. Each costs two goroutines and a queue.
	MaxPeers int
}

// Limits of a server.
const (
	defaultMaxPeers = 1024
	eventQueue      = 256 // events not yet taken; then readers block
	sendQueue       = 256 // messages a peer has not read, beside the kernel's buffer; then it is hung up on
	maxWatched      = 16384
	farewell        = 2 * time.Second // for a peer that is being closed to take what is queued
)

// Server is the daemon's end of the socket. Its methods are safe for concurrent use.
type Server struct {
	cfg    Config
	ln     *net.UnixListener
	events chan Event
	ctx    context.Context // of everything it runs; ends with Run or Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	nextID atomic.Uint64

	mu      sync.Mutex // guards the rest
	ended   bool
	peers   map[*Peer]struct{}
	watched map[process]struct{}
}

// Listen takes the socket. Ranks can connect from now on; they are served once Run is called.
func Listen(cfg Config) (*Server, error) {
	if cfg.MaxPeers == 0 {
		cfg.MaxPeers = defaultMaxPeers
	}
	if cfg.MaxPeers < 0 {
		return nil, fmt.Errorf("session: %d peers: want more than 0", cfg.MaxPeers)
	}
	if cfg.Token == nil {
		cfg.Token = func(string) string { return "" }
	}
	ln, err := listen(cfg.Path, len(cfg.Users) > 0)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Server{cfg: cfg, ln: ln, events: make(chan Event, eventQueue), ctx: ctx, cancel: cancel, peers: make(map[*Peer]struct{}), watched: make(map[process]struct{})}, nil
}

// Events are to be taken by one goroutine until Run has returned; the channel is never closed.
func (s *Server) Events() <-chan Event { return s.events }

// Run serves until ctx ends, then hangs up on every peer and returns when all goroutines have ended. It is called once.
func (s *Server) Run(ctx context.Context) error {
	defer s.Close()
	defer context.AfterFunc(ctx, s.stop)()
	for {
		c, err := s.ln.AcceptUnix()
		if s.ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return nil
		}
		if err != nil {
			if retryAccept(err) { // out of descriptors: those in use must be closed first
				if !s.pause(100 * time.Millisecond) {
					return nil
				}
				continue
			}
			return fmt.Errorf("session: accept on %s: %w", s.cfg.Path, err)
		}
		s.admit(c)
	}
}

// Close ends Run, or frees the socket if it was never called.
func (s *Server) Close() {
	s.stop()
	s.tasks.Wait()
}

func (s *Server) stop() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.cancel()
	_ = s.ln.Close()
}

func (s *Server) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// start runs fn as one of the server's goroutines, unless it has ended.
func (s *Server) start(fn func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.tasks.Go(fn)
	return true
}

// emit hands an event to the daemon; false once the server has ended.
func (s *Server) emit(ev Event) bool {
	select {
	case s.events <- ev:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// admit checks who connected and starts its goroutines.
func (s *Server) admit(c *net.UnixConn) {
	p, err := newPeer(c, s.nextID.Add(1))
	if err == nil && p.uid != os.Geteuid() && p.uid != 0 && !slices.Contains(s.cfg.Users, p.uid) {
		err = fmt.Errorf("user %d may not use the socket of user %d: name it in rank_users of this node's configuration", p.uid, os.Geteuid())
	}
	if err != nil {
		refuseNow(c, fmt.Sprintf("session: %v", err))
		return
	}
	s.mu.Lock()
	full := len(s.peers) >= s.cfg.MaxPeers
	if !full {
		s.peers[p] = struct{}{}
	}
	s.mu.Unlock()
	if full {
		refuseNow(c, fmt.Sprintf("the daemon has %d sessions, its limit: raise max_peers or run fewer ranks on this node", s.cfg.MaxPeers))
		return
	}
	if !s.start(p.write) {
		_ = c.Close()
		return
	}
	if !s.start(func() { s.read(p) }) {
		p.hangUp(errServerEnded)
	}
}

// refuseNow says why to a connection that gets no session.
func refuseNow(c *net.UnixConn, text string) {
	_ = c.SetWriteDeadline(time.Now().Add(farewell))
	_, _ = c.Write(wire.AppendRank(nil, wire.RankHeader{Type: wire.MRefused}, wire.Refused{Code: wire.CodeRefused, Text: text}.Append(nil)))
	_ = c.Close()
}

var errServerEnded = errors.New("the daemon is stopping")

// read turns a peer's messages into events until the session ends.
func (s *Server) read(p *Peer) {
	defer context.AfterFunc(s.ctx, func() { p.hangUp(errServerEnded) })()
	var d dialog
	err := func() error {
		buf := make([]byte, wire.MaxRankMessage+1)
		for {
			b, files, err := p.receive(buf)
			if err != nil {
				unixsock.CloseAll(files)
				return err
			}
			ev, err := d.take(s.cfg.Token, p, b, &files)
			unixsock.CloseAll(files)
			if err != nil {
				return err
			}
			if ev != nil && !s.emit(ev) {
				if h, ok := ev.(Hello); ok && h.File != nil {
					_ = h.File.Close()
				}
				return errServerEnded
			}
		}
	}()
	if f, ok := errors.AsType[*fault](err); ok {
		p.Refuse(f.request, f.code, f.Error())
	}
	p.Close()
	s.mu.Lock()
	delete(s.peers, p)
	s.mu.Unlock()
	if d.greeted {
		s.emit(Gone{p, p.why(err)})
	}
}
