package mover

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Line is a way of pushes: one rank's parts to one node. Large ones go one after another over a lane of their own, and so do small ones: every
// commit waits for some of these, and a large one may take seconds.
type Line struct {
	Node replica.NodeName
	Job  replica.JobID
	Rank replica.Rank
}

// track is a half of a line.
type track struct {
	Line
	large bool
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

// Push sends a part over its line once what is under way there is through. awaited tells which parts a commit waits for: those go first.
// Of the others the newest generation alone waits. What is dropped gets no Pushed; what is sent or waits already is dropped too.
func (m *Mover) Push(l Line, p Push, awaited func(transfer.Key) bool) (dropped []Push) {
	on := track{l, p.From.Manifest().Bytes >= tcpFrom}
	pu := m.pushers[on]
	if pu == nil {
		ctx, cancel := context.WithCancel(m.life)
		pu = &pusher{m: m, track: on, queue: newPushLine(), cancel: cancel, turns: m.turnsTo(l.Node)}
		m.pushers[on] = pu
		m.work.Go(func() { defer cancel(); pu.run(ctx) })
	}
	return pu.queue.put(p, awaited)
}

// Prune ends those pushes of a job that wanted does not name any more: a node that is not to mirror a part says "not yet" for as long as it
// is asked, and what is sent holds its place meanwhile. What is dropped is its caller's, and gets no Pushed; what was under way gets one.
func (m *Mover) Prune(job replica.JobID, wanted func(Line, transfer.Key) bool) (dropped []Push) {
	for on, pu := range m.pushers {
		if on.Job == job {
			dropped = append(dropped, pu.queue.prune(func(k transfer.Key) bool { return wanted(on.Line, k) })...)
		}
	}
	return dropped
}

// turnsTo are the turns of large parts to a node. Owned by the caller of Push.
func (m *Mover) turnsTo(n replica.NodeName) chan struct{} {
	if m.turns[n] == nil {
		m.turns[n] = make(chan struct{}, largeAtOnce)
	}
	return m.turns[n]
}

// EndPushes ends the lines of a job. What is under way is broken off.
func (m *Mover) EndPushes(job replica.JobID) {
	for on, pu := range m.pushers {
		if on.Job == job {
			pu.cancel()
			delete(m.pushers, on)
		}
	}
}

// pusher works one half of a line off. Its goroutine ends with EndPushes or Close.
type pusher struct {
	m      *Mover
	track  track
	queue  *pushLine
	cancel context.CancelFunc
	turns  chan struct{} // taken for each lane that a large part is sent over
	moved  moved

	// Owned by run.
	lanes    [2]transfer.Lane // by transport; nil: to be opened
	tcpAfter time.Time        // TCP failed, and is not tried before
}

func (pu *pusher) run(ctx context.Context) {
	defer func() {
		pu.hangUp(transfer.QUIC)
		pu.hangUp(transfer.TCP)
		for _, p, ok := pu.queue.take(ctx); ok; _, p, ok = pu.queue.take(ctx) {
			pu.queue.done()
			p.From.Close()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pu.queue.more:
		}
		for at, p, ok := pu.queue.take(ctx); ok; at, p, ok = pu.queue.take(ctx) {
			if ctx.Err() != nil {
				pu.queue.done()
				p.From.Close()
				return
			}
			err := pu.push(at, p)
			pu.moved.ended(pu.track.Line, p.Key, err) // it may not have come to a try
			pu.queue.done()
			p.From.Close()
			pu.m.cfg.Pushed(Pushed{pu.track.Line, p.Key, err})
		}
	}
}

// push tries twice: a lane that broke since the last part is opened anew.
func (pu *pusher) push(ctx context.Context, p Push) (err error) {
	for range 2 {
		over, dialled, dialErr := pu.open(ctx)
		if dialErr != nil {
			return dialErr
		}
		err = pu.send(ctx, over, p)
		switch {
		case err == nil, ctx.Err() != nil:
			return err // a stream that was broken off is not the lane's end
		case errors.Is(err, transfer.ErrFenced), errors.Is(err, transfer.ErrNotYet):
			continue // the mirror's word, not the lane's
		case over == transfer.TCP && dialled:
			pu.tcpAfter = time.Now().Add(tcpRest)
		}
		pu.hangUp(over)
	}
	return err
}

// open sees to a lane: over TCP for large parts, where it gets through.
func (pu *pusher) open(ctx context.Context) (over transfer.Transport, dialled bool, err error) {
	if pu.m.cfg.TCPLanes > 0 && pu.track.large && !time.Now().Before(pu.tcpAfter) {
		if dialled, err = pu.dial(ctx, transfer.TCP); err == nil {
			return transfer.TCP, dialled, nil
		}
		if ctx.Err() != nil {
			return transfer.TCP, false, fmt.Errorf("%w (%w)", context.Cause(ctx), err) // nothing is known of TCP
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
	l, err := pu.m.cfg.Dial(ctx, pu.track.Node, "", over)
	if err != nil {
		return false, err
	}
	pu.lanes[over] = l
	return true, nil
}

func (pu *pusher) send(ctx context.Context, over transfer.Transport, p Push) error {
	bytes := p.From.Manifest().Bytes
	var before atomic.Uint64 // bytes of earlier tries
	from := &counted{Reader: p.From, far: func(sent uint64) { pu.moved.sent(pu.track.Line, p.Key, sent-before.Load()) }}
	t := transfer.Turns{Around: func(ctx context.Context, try func(context.Context) error) error {
		if pu.track.large {
			select {
			case pu.turns <- struct{}{}:
				defer func() { <-pu.turns }()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		ctx, cancel := context.WithTimeout(ctx, pu.m.pushLimit(bytes))
		defer cancel()
		sent, began := from.sent.Load(), time.Now()
		before.Store(sent)
		pu.queue.answered(false) // this try may be the one that is taken: nothing breaks it off for what an earlier one was told
		err := try(ctx)
		pu.moved.ended(pu.track.Line, p.Key, err)
		pu.queue.answered(errors.Is(err, transfer.ErrNotYet))
		if !ofOther(ctx, err) {
			pu.m.traffic.pushed(way{pu.track.Node, over}, from.sent.Load()-sent, time.Since(began), err, time.Now())
		}
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
		return err
	}}
	if over == transfer.TCP {
		t.Streams, t.More = pu.m.lanes(len(pu.m.cfg.Ways(ctx, pu.track.Node))), func() (func(), bool) {
			select {
			case pu.turns <- struct{}{}:
				return func() { <-pu.turns }, true
			default:
				return nil, false
			}
		}
	}
	return transfer.Push(ctx, pu.lanes[over], p.Key, from, t)
}

// counted counts the bytes that a push reads to send them.
type counted struct {
	transfer.Reader
	sent atomic.Uint64
	far  func(sent uint64)
}

func (c *counted) ReadChunk(i int, dst []byte) ([]byte, error) {
	b, err := c.Reader.ReadChunk(i, dst)
	c.far(c.sent.Add(uint64(len(b))))
	return b, err
}

// Pace holds the bytes back as the part's own reader does.
func (c *counted) Pace() func(bytes int) {
	if p, ok := c.Reader.(transfer.Paced); ok {
		return p.Pace()
	}
	return nil
}

// ofOther tells whether a push ended for a reason that is none of its lane's: the mirror's word, or that it was given up here.
func ofOther(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, transfer.ErrFenced) || transfer.Retryable(err)
}

func (pu *pusher) hangUp(over transfer.Transport) {
	if l := pu.lanes[over]; l != nil {
		l.Close()
		pu.lanes[over] = nil
	}
}

const (
	// tcpFrom is from how many bytes a part is large and goes over TCP. What is smaller saves nothing there that would pay for a second
	// connection.
	tcpFrom = 1 << 20
	// largeAtOnce is over how many lanes large parts are sent to one node at once. So many fill a link, and each part arrives the sooner the
	// fewer share it; with more, the ranks of a large node would take all that a mirror serves at once for one peer (maxServesPerPeer), small
	// parts too, for which every commit waits.
	largeAtOnce = 4
	// tcpRest is how long a push keeps to QUIC after TCP did not get through.
	tcpRest = 30 * time.Second
)

// pushLimit is how long a push of so many bytes may take.
func (m *Mover) pushLimit(bytes uint64) time.Duration {
	return 3*time.Second + time.Duration(float64(bytes)/m.cfg.Slowest*float64(time.Second))
}
