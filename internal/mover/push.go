package mover

import (
	"context"
	"errors"
	"time"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Line is a way of pushes: one rank's parts to one node, in order, over one lane.
type Line struct {
	Node replica.NodeName
	Job  replica.JobID
	Rank replica.Rank
}

// Push is a sealed part on its way to a mirror.
type Push struct {
	Key transfer.Key
	// From is closed at the end of the push, from a goroutine of the mover's. What Push drops is its caller's to give back.
	From transfer.Reader

	awaited bool // by a commit; the line's
}

// Pushed is the end of a push.
type Pushed struct {
	Line Line
	Key  transfer.Key
	Err  error // nil: the mirror has sealed the part
}

// Push sends a part over its line once those before it are through. awaited tells which parts a commit waits for: those go first, and are
// dropped last where the line is full. What is dropped gets no Pushed.
func (m *Mover) Push(l Line, p Push, awaited func(transfer.Key) bool) (dropped []Push) {
	pu := m.pushers[l]
	if pu == nil {
		ctx, cancel := context.WithCancel(m.life)
		pu = &pusher{m: m, line: l, queue: newPushLine(), cancel: cancel}
		m.pushers[l] = pu
		m.work.Go(func() { defer cancel(); pu.run(ctx) })
	}
	return pu.queue.put(p, awaited)
}

// EndPushes ends the lines of a job. What is under way is broken off.
func (m *Mover) EndPushes(job replica.JobID) {
	for l, pu := range m.pushers {
		if l.Job == job {
			pu.cancel()
			delete(m.pushers, l)
		}
	}
}

// pusher works a line off. Its goroutine ends with EndPushes or Close.
type pusher struct {
	m      *Mover
	line   Line
	queue  *pushLine
	cancel context.CancelFunc

	// Owned by run.
	lanes    [2]transfer.Lane // by transport; nil: to be opened
	tcpAfter time.Time        // TCP failed, and is not tried before
}

func (pu *pusher) run(ctx context.Context) {
	defer func() {
		pu.hangUp(transfer.QUIC)
		pu.hangUp(transfer.TCP)
		for p, ok := pu.queue.take(); ok; p, ok = pu.queue.take() {
			p.From.Close()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pu.queue.more:
		}
		for p, ok := pu.queue.take(); ok; p, ok = pu.queue.take() {
			if ctx.Err() != nil {
				p.From.Close()
				return
			}
			err := pu.push(ctx, p)
			p.From.Close()
			pu.m.cfg.Pushed(Pushed{pu.line, p.Key, err})
		}
	}
}

// push tries twice: a lane that broke since the last part is opened anew.
func (pu *pusher) push(ctx context.Context, p Push) (err error) {
	for range 2 {
		over, dialled, dialErr := pu.open(ctx, p.From.Manifest().Bytes)
		if dialErr != nil {
			return dialErr
		}
		err = pu.send(ctx, pu.lanes[over], p)
		switch {
		case err == nil, ctx.Err() != nil:
			return err
		case errors.Is(err, transfer.ErrFenced), errors.Is(err, transfer.ErrNotYet):
			continue // the mirror's word, not the lane's
		case over == transfer.TCP && dialled:
			pu.tcpAfter = time.Now().Add(tcpRest)
		}
		pu.hangUp(over)
	}
	return err
}

// open sees to a lane for a part of so many bytes: over TCP where the part is worth it and TCP gets through.
func (pu *pusher) open(ctx context.Context, bytes uint64) (over transfer.Transport, dialled bool, err error) {
	if pu.m.cfg.TCPLanes > 0 && bytes >= tcpFrom && !time.Now().Before(pu.tcpAfter) {
		if dialled, err = pu.dial(ctx, transfer.TCP); err == nil {
			return transfer.TCP, dialled, nil
		}
		pu.tcpAfter = time.Now().Add(tcpRest)
	}
	dialled, err = pu.dial(ctx, transfer.QUIC)
	return transfer.QUIC, dialled, err
}

func (pu *pusher) dial(ctx context.Context, over transfer.Transport) (dialled bool, err error) {
	if pu.lanes[over] != nil {
		return false, nil
	}
	l, err := pu.m.cfg.Dial(ctx, pu.line.Node, over)
	if err != nil {
		return false, err
	}
	pu.lanes[over] = l
	return true, nil
}

func (pu *pusher) send(ctx context.Context, l transfer.Lane, p Push) error {
	ctx, cancel := context.WithTimeout(ctx, pushLimit(p.From.Manifest().Bytes))
	defer cancel()
	return transfer.Push(ctx, l, p.Key, p.From)
}

func (pu *pusher) hangUp(over transfer.Transport) {
	if l := pu.lanes[over]; l != nil {
		l.Close()
		pu.lanes[over] = nil
	}
}

const (
	// tcpFrom is from how many bytes a part goes over TCP. What is smaller saves nothing there that would pay for a second connection.
	tcpFrom = 1 << 20
	// tcpRest is how long a push keeps to QUIC after TCP did not get through.
	tcpRest = 30 * time.Second
)

// pushSlowest is the pace in bytes a second below which a push is given up: what waits behind it grows old meanwhile.
const pushSlowest = 32 << 20

// pushLimit is how long a push of so many bytes may take. With one limit for all, a large shard would never reach its mirror, and
// nothing would be committed any more.
func pushLimit(bytes uint64) time.Duration {
	return 3*time.Second + time.Duration(float64(bytes)/pushSlowest*float64(time.Second))
}
