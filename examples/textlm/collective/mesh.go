// Package collective sums vectors over the ranks of a run, over plain TCP, with the same bits on every rank: each sends its
// vector to all others of the group and adds what it got in the order of ranks. It stands for NCCL or Gloo.
//
// A Mesh lives for one epoch of the job. Its first failure (a peer's connection ends, or Fail is called because the epoch was
// fenced) frees whoever waits in a collective at once, on all later calls too, but closes nothing: connections end only in
// Close, so that the caller can freeze its good word before its peers notice. One goroutine calls AllReduce and Close; each
// connection has a reader goroutine, and Close waits for them. Vectors travel in the machine's byte order: all ranks run on
// one kind of machine. It imports only the standard library.
package collective

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// ErrPeer marks failures of a peer or its connection, which say nothing bad of this rank.
var ErrPeer = errors.New("collective: a peer is gone")

const (
	magic      = 0x314d4c54 // "TLM1"
	helloBytes = 4 + 4 + 8 + 8
	headBytes  = 4 + 4 + 8
	maxVector  = 64 << 20 // bytes; a longer length is damage
	ahead      = 3        // messages of one peer that may wait here: it is at most one collective ahead
)

// Identity is what both ends of a connection must agree on, and who speaks.
type Identity struct {
	Run   uint64 // names the job
	Epoch uint64
	Rank  int
}

// Mesh connects all ranks of a run in one epoch.
type Mesh struct {
	self  Identity
	peers []*peer // by rank; nil for itself
	wg    sync.WaitGroup

	once sync.Once
	err  error // written before lost is closed
	lost chan struct{}
}

type peer struct {
	rank int
	conn net.Conn
	in   chan []byte // received vectors; the reader blocks when it is full
	free chan []byte // buffers for the reader
	sent uint64      // messages so far
	head [headBytes]byte
}

// Connect meets the other ranks: it accepts those above on ln and dials those below at addr(rank), which may wait for the
// address to be known. It returns when all are there or ctx has ended; ln stays the caller's.
func Connect(ctx context.Context, ln *net.TCPListener, self Identity, world int, addr func(ctx context.Context, rank int) (string, error)) (*Mesh, error) {
	m := &Mesh{self: self, peers: make([]*peer, world), lost: make(chan struct{})}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = ln.SetDeadline(time.Now()) }) // frees Accept; the error is ctx's
	defer stop()

	accepted := make(chan error, 1)
	go func() {
		err := m.accept(ctx, ln)
		if err != nil {
			cancel(err)
		}
		accepted <- err
	}()
	var err error
	for r := 0; r < self.Rank && err == nil; r++ {
		err = m.dial(ctx, r, addr)
	}
	if err != nil {
		cancel(err)
	}
	if e := <-accepted; err == nil {
		err = e
	}
	if err != nil {
		for _, p := range m.peers {
			if p != nil {
				_ = p.conn.Close()
			}
		}
		return nil, fmt.Errorf("collective: rank %d meets epoch %d: %w", self.Rank, self.Epoch, err)
	}
	for _, p := range m.peers {
		if p != nil {
			m.wg.Go(func() { m.read(p) })
		}
	}
	return m, nil
}

func (m *Mesh) dial(ctx context.Context, rank int, addr func(context.Context, int) (string, error)) error {
	to, err := addr(ctx, rank)
	if err != nil {
		return fmt.Errorf("address of rank %d: %w", rank, err)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return fmt.Errorf("rank %d: %w", rank, err)
	}
	who, err := m.greet(ctx, conn)
	if err == nil && who != rank {
		err = fmt.Errorf("%s is rank %d, want %d", to, who, rank)
	}
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("rank %d at %s: %w", rank, to, err)
	}
	m.peers[rank] = newPeer(rank, conn)
	return nil
}

// accept takes one connection from each higher rank. A stranger, or a rank of another epoch, is dropped.
func (m *Mesh) accept(ctx context.Context, ln *net.TCPListener) error {
	for missing := len(m.peers) - 1 - m.self.Rank; missing > 0; {
		conn, err := ln.Accept()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			if conn != nil {
				_ = conn.Close()
			}
			return fmt.Errorf("wait for %d more ranks on %v: %w", missing, ln.Addr(), err)
		}
		who, err := m.greet(ctx, conn)
		if err != nil || who <= m.self.Rank || m.peers[who] != nil {
			_ = conn.Close()
			continue
		}
		m.peers[who] = newPeer(who, conn)
		missing--
	}
	return nil
}

// greet exchanges identities and returns the other's rank.
func (m *Mesh) greet(ctx context.Context, conn net.Conn) (int, error) {
	limit := time.Now().Add(5 * time.Second)
	if d, ok := ctx.Deadline(); ok && d.Before(limit) {
		limit = d
	}
	_ = conn.SetDeadline(limit)
	var b [helloBytes]byte
	binary.LittleEndian.PutUint32(b[0:], magic)
	binary.LittleEndian.PutUint32(b[4:], uint32(m.self.Rank))
	binary.LittleEndian.PutUint64(b[8:], m.self.Run)
	binary.LittleEndian.PutUint64(b[16:], m.self.Epoch)
	if _, err := conn.Write(b[:]); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return 0, err
	}
	who := binary.LittleEndian.Uint32(b[4:])
	run, epoch := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	if binary.LittleEndian.Uint32(b[0:]) != magic || run != m.self.Run || epoch != m.self.Epoch || uint64(who) >= uint64(len(m.peers)) {
		return 0, fmt.Errorf("hello of run %x epoch %d rank %d, want run %x epoch %d", run, epoch, who, m.self.Run, m.self.Epoch)
	}
	return int(who), conn.SetDeadline(time.Time{})
}

func newPeer(rank int, conn net.Conn) *peer {
	p := &peer{rank: rank, conn: conn, in: make(chan []byte, ahead), free: make(chan []byte, ahead)}
	for range ahead {
		p.free <- nil
	}
	return p
}

// read receives vectors until the connection ends, which it reports as the mesh's failure.
func (m *Mesh) read(p *peer) {
	r := bufio.NewReaderSize(p.conn, 64<<10)
	var head [headBytes]byte
	for n := uint64(1); ; n++ {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			m.Fail(fmt.Errorf("%w: rank %d: %w", ErrPeer, p.rank, err))
			return
		}
		size, number := binary.LittleEndian.Uint32(head[4:]), binary.LittleEndian.Uint64(head[8:])
		if binary.LittleEndian.Uint32(head[0:]) != magic || size > maxVector || number != n {
			m.Fail(fmt.Errorf("%w: rank %d sent a damaged header (message %d of %d bytes, want message %d)", ErrPeer, p.rank, number, size, n))
			return
		}
		var buf []byte
		select {
		case buf = <-p.free:
		case <-m.lost:
			return
		}
		if cap(buf) < int(size) {
			buf = make([]byte, size)
		}
		buf = buf[:size]
		if _, err := io.ReadFull(r, buf); err != nil {
			m.Fail(fmt.Errorf("%w: rank %d: %w", ErrPeer, p.rank, err))
			return
		}
		select {
		case p.in <- buf:
		case <-m.lost:
			return
		}
	}
}

// Fail makes every present and later collective return err; the first call wins. It closes nothing. Any goroutine may call it.
func (m *Mesh) Fail(err error) {
	m.once.Do(func() {
		m.err = err
		close(m.lost)
	})
}

// Err is the first failure seen so far, or nil.
func (m *Mesh) Err() error {
	select {
	case <-m.lost:
		return m.err
	default:
		return nil
	}
}

// Close ends all connections, which makes the peers' meshes fail too, and waits for the readers.
func (m *Mesh) Close() {
	m.Fail(net.ErrClosed)
	for _, p := range m.peers {
		if p != nil {
			_ = p.conn.Close()
		}
	}
	m.wg.Wait()
}
