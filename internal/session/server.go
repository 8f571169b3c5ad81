package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Config of a Server.
type Config struct {
	Path string // of the socket, at most 107 bytes
	// Token is what a hello for that job must carry; empty: nothing. nil: no job has one.
	Token func(job string) string
	// Users, by number, may connect besides this process' own and root. Where there are any the socket is open to all users of the host, and
	// who is none of these is refused by what the kernel says of it.
	Users []int
	Group int // that the socket is given where Users names some; [Everybody], the zero value: all users of the node may connect
	// MaxPeers connected at once; 0: 1024. Each costs two goroutines and a queue. Where there are so many, one that has said nothing yet
	// makes room for the next.
	MaxPeers int
	// PerUser is how many of them one user has at most; 0: all. Where a user has so many, one of its own that has said nothing yet makes room.
	PerUser int
	// HelloWait is how long a connection may take to say who it is; 0: 5 s.
	HelloWait time.Duration
	// MaxDescriptor is where this process stops taking connections in: one whose descriptor has that number or a higher one is told to
	// come again. 0: room is left for Raft, the operator and the disk, 64 descriptors or a quarter of the process' limit.
	MaxDescriptor int
}

// Limits of a server.
const (
	MaxSessions    = 1024 // at once, where a configuration says nothing else
	helloWait      = 5 * time.Second
	spared         = 64  // descriptors that connections leave to others
	eventQueue     = 256 // events not yet taken; then readers block
	sendQueue      = 256 // messages a peer has not read, beside the kernel's buffer; then it is hung up on
	maxWatched     = 16384
	maxRegistering = 4 * replica.MaxRegions // regions of one user's geometries that have begun and not ended
	farewell       = 2 * time.Second        // for a peer that is being closed to take what is queued
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

	saidShort time.Time // Run's goroutine owns it

	mu      sync.Mutex // guards the rest
	ended   bool
	peers   map[*conn]struct{}
	watched map[process]struct{}
	regions map[int]int // of geometries that have begun, by user
	turned  turned
	users   map[int]int // peers by user
}

// Listen takes the socket. Ranks can connect from now on; they are served once Run is called.
func Listen(cfg Config) (*Server, error) {
	if cfg.MaxPeers == 0 {
		cfg.MaxPeers = MaxSessions
	}
	if cfg.MaxPeers < 0 {
		return nil, fmt.Errorf("session: %d peers: want more than 0", cfg.MaxPeers)
	}
	if cfg.PerUser < 0 {
		return nil, fmt.Errorf("session: %d peers of one user: want more than 0", cfg.PerUser)
	}
	if cfg.PerUser == 0 {
		cfg.PerUser = cfg.MaxPeers
	}
	if cfg.HelloWait == 0 {
		cfg.HelloWait = helloWait
	}
	if cfg.MaxDescriptor == 0 {
		most, err := maxDescriptors()
		if err != nil {
			return nil, fmt.Errorf("session: %w", err)
		}
		cfg.MaxDescriptor = most - min(spared, most/4)
	}
	if cfg.Token == nil {
		cfg.Token = func(string) string { return "" }
	}
	ln, err := listen(cfg.Path, len(cfg.Users) > 0, cfg.Group)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Server{cfg: cfg, ln: ln, events: make(chan Event, eventQueue), ctx: ctx, cancel: cancel, peers: make(map[*conn]struct{}), watched: make(map[process]struct{}), regions: make(map[int]int), users: make(map[int]int), turned: turned{}}, nil
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
			if want.Of(err) != want.Nothing {
				s.short(err)
			}
			if want.Of(err) != want.Nothing || errors.Is(err, unix.ECONNABORTED) { // out of descriptors: those in use must be closed first
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
	if err := s.spare(c); err != nil {
		s.short(err)
		s.refuse(c, wire.CodeAgain, err)
		return
	}
	p, err := newPeer(c, s.nextID.Add(1))
	switch {
	case err != nil && want.Of(err) != want.Nothing: // it passes
		s.short(err)
		s.refuse(c, wire.CodeAgain, err)
		return
	case err == nil && p.uid != os.Geteuid() && p.uid != 0 && !slices.Contains(s.cfg.Users, p.uid):
		err = fmt.Errorf("user %d may not use the socket of user %d: name it in rank_users of this node's configuration", p.uid, os.Geteuid())
	}
	if err != nil {
		s.refuse(c, wire.CodeRefused, err)
		return
	}
	if code, err := s.seat(p); err != nil {
		s.refuse(c, code, err)
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

// seat counts a peer in, unless all seats, or all of its user's, are taken by peers that have said who they are.
func (s *Server) seat(p *conn) (code int32, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.cfg.PerUser < s.cfg.MaxPeers && s.users[p.uid] >= s.cfg.PerUser
	if own || len(s.peers) >= s.cfg.MaxPeers {
		silent := s.silent(func(q *conn) bool { return !own || q.uid == p.uid })
		switch {
		case silent == nil && own: // it passes once another process of the user ends: what a recovery starts is started again
			return wire.CodeAgain, fmt.Errorf("user %d has %d sessions with this node's daemon, and may have %d (per_user.sessions): end some of its processes here, or run fewer ranks on this node", p.uid, s.users[p.uid], s.cfg.PerUser)
		case silent == nil:
			return wire.CodeRefused, fmt.Errorf("the daemon has %d sessions, its limit: run fewer ranks on this node", s.cfg.MaxPeers)
		}
		s.unseat(silent)
		silent.hangUp(errSilent)
	}
	s.peers[p] = struct{}{}
	s.users[p.uid]++
	return 0, nil
}

// silent is the one of some peers that has said nothing for longest; nil: all have. s.mu is held.
func (s *Server) silent(of func(*conn) bool) (oldest *conn) {
	for q := range s.peers {
		if !q.greeted.Load() && of(q) && (oldest == nil || q.id < oldest.id) {
			oldest = q
		}
	}
	return oldest
}

// leave counts a peer out.
func (s *Server) leave(p *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unseat(p)
}

// unseat counts a peer out, once. s.mu is held.
func (s *Server) unseat(p *conn) {
	if _, seated := s.peers[p]; !seated {
		return
	}
	delete(s.peers, p)
	if s.users[p.uid]--; s.users[p.uid] == 0 {
		delete(s.users, p.uid)
	}
}

// Users counts the sessions by user.
func (s *Server) Users() map[int]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.users)
}

// register counts regions of a user's geometries that have begun; less than none: of those that have ended.
func (s *Server) register(user, regions int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := s.regions[user]
	if regions > 0 && has+regions > maxRegistering {
		return &fault{code: wire.CodeAgain, err: fmt.Errorf("user %d is registering %d regions at this moment, at most %d: try again later", user, has, maxRegistering)}
	}
	if s.regions[user] = has + regions; has+regions == 0 {
		delete(s.regions, user)
	}
	return nil
}

// spare refuses a connection that takes one of the descriptors that are others'. The kernel gives the lowest number that is free, so
// a high one says that few are.
func (s *Server) spare(c *net.UnixConn) error {
	return unixsock.Control(c, func(fd int) error {
		if fd < s.cfg.MaxDescriptor {
			return nil
		}
		return &fewDescriptors{fd}
	})
}

// fewDescriptors says that a connection would take one of those.
type fewDescriptors struct{ used int }

func (e *fewDescriptors) Error() string {
	return fmt.Sprintf("the daemon has %d descriptors in use, and reserves the rest for its own work: try again later, run fewer ranks on this node, or give the daemon more (LimitNOFILE, ulimit -n)", e.used)
}

func (e *fewDescriptors) Want() want.Kind { return want.Descriptors }

// saysShort is how often the daemon is told that connections meet a want.
const saysShort = time.Second

// short tells the daemon that it could not take a connection in. The goroutine of Run calls it.
func (s *Server) short(err error) {
	if now := time.Now(); now.Sub(s.saidShort) >= saysShort {
		s.saidShort = now
		s.emit(Short{err})
	}
}

// leastDescriptors is how many a daemon should be allowed: Raft's files and sockets take some, and each rank two and its arena.
const leastDescriptors = 256

// CheckDescriptors warns of a limit that a daemon with a few ranks runs into.
func CheckDescriptors() error {
	most, err := maxDescriptors()
	if err != nil {
		return err
	}
	return tooFew(most)
}

func tooFew(most int) error {
	if most >= leastDescriptors {
		return nil
	}
	return fmt.Errorf("this process may have %d open files: the daemon will turn ranks away, and with very few it can write no files either: allow at least %d (LimitNOFILE, ulimit -n)", most, leastDescriptors)
}

// maxDescriptors is how many this process may have.
func maxDescriptors() (int, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("limit of descriptors: %w", err)
	}
	return int(min(l.Cur, 1<<30)), nil
}

// errSilent says that a connection never said who it is.
var errSilent = errors.New("no hello came: a client must send its hello as soon as it is connected")

// errUnended says that a geometry was begun, and not ended in time.
var errUnended = errors.New("regions came, and no attach followed: send both without a pause")

var errServerEnded = errors.New("the daemon is stopping")

// read turns a peer's messages into events until the session ends.
func (s *Server) read(p *conn) {
	defer context.AfterFunc(s.ctx, func() { p.hangUp(errServerEnded) })()
	var d dialog
	begun := 0                                                  // regions of a geometry that has not ended
	_ = p.conn.SetReadDeadline(time.Now().Add(s.cfg.HelloWait)) // a connection that is closed already ends the first read
	err := func() error {
		for {
			m, files, err := p.receive()
			if err != nil {
				unixsock.CloseAll(files)
				m.back()
				if errors.Is(err, os.ErrDeadlineExceeded) {
					err = &fault{code: wire.CodeTimeout, err: errSilent}
					if begun > 0 {
						err = &fault{code: wire.CodeTimeout, err: errUnended}
					}
				}
				return err
			}
			ev, err := d.take(s.cfg.Token, p, m.b, &files)
			unixsock.CloseAll(files)
			m.back()
			if n := len(d.regions); err == nil && n != begun {
				if err = s.register(p.uid, n-begun); err == nil {
					if begun == 0 {
						_ = p.conn.SetReadDeadline(time.Now().Add(6 * s.cfg.HelloWait)) // for all of it: a client sends it in one go
					} else if n == 0 {
						_ = p.conn.SetReadDeadline(time.Time{})
					}
					begun = n
				}
			}
			if err != nil {
				return err
			}
			if d.greeted && !p.greeted.Swap(true) {
				_ = p.conn.SetReadDeadline(time.Time{})
			}
			if ev != nil && !s.emit(ev) {
				if h, ok := ev.(Hello); ok && h.File != nil {
					_ = h.File.Close()
				}
				if h, ok := ev.(RunHello); ok && h.Kept != nil {
					h.Kept.Close()
				}
				return errServerEnded
			}
		}
	}()
	_ = s.register(p.uid, -begun) // never refused
	d.regions = nil
	f, faulty := errors.AsType[*fault](err)
	if faulty {
		p.part(f)
	} else {
		p.Close()
		s.leave(p) // whoever hears that it has gone may start another process in its place
	}
	if d.greeted {
		s.emit(Gone{p, p.why(err)})
	}
	if faulty {
		if partedBy(f) {
			s.turnAway(p.uid, p.pid, f.code, f)
		}
		p.drain()
		s.leave(p)
	}
}
