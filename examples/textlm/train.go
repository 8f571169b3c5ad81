package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/replicad/replicad/examples/textlm/collective"
	"github.com/replicad/replicad/examples/textlm/model"
	"github.com/replicad/replicad/libreplicad"
	"github.com/replicad/replicad/replica"
)

// Rank is what the loop asks of replicad: methods of [libreplicad.Session]. A baseline run has a twin that keeps nothing.
type Rank interface {
	Join(ctx context.Context) (libreplicad.Order, error)
	SealInitial(ctx context.Context) error
	SealOwn(ctx context.Context) error
	Load() error
	Ready(ctx context.Context) error

	StepEnter(step replica.Step, timeout time.Duration) error
	StepExit(step replica.Step, flags replica.PartFlags) error
	FreezeGood()
	Fail(text string) error
	Fence() <-chan struct{}

	KVSet(ctx context.Context, key string, value []byte) error
	KVGet(ctx context.Context, key string) ([]byte, error)
	Leave(ctx context.Context) error
}

// trainer is one rank of a run.
type trainer struct {
	Rank
	model       *model.Model
	rank, world int
	host        string // where peers reach this rank
	opt         options
	out         *events

	// begin puts another run's state into the model, where the job began with one, and tells whether another rank has what the group has in common; nil: none can.
	begin func(context.Context) (begun, own bool, err error)
}

// train is the whole life of a rank: join an epoch, train in it until it is closed or the last step is done, join the next.
func (t *trainer) train(ctx context.Context) error {
	for {
		order, err := t.join(ctx)
		if err != nil {
			return err
		}
		if err = t.epoch(ctx, order); err == nil {
			t.out.state("done", t.model)
			err = t.patiently(ctx, t.Leave) // returns when every rank leaves, or with ErrFenced where one was lost before that
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, libreplicad.ErrFenced):
			t.out.emit(event{Event: "fenced", Epoch: uint64(order.Epoch)})
		case errors.Is(err, collective.ErrPeer):
			// A peer is gone. That is no fault of ours and we can't know whose: its daemon does. Join waits for the plan.
			t.out.emit(event{Event: "peer-lost", Epoch: uint64(order.Epoch), Text: err.Error()})
		default:
			return errors.Join(err, t.Fail(err.Error()))
		}
	}
}

// join comes back with the state of order.Step in the model and the epoch opened.
func (t *trainer) join(ctx context.Context) (order libreplicad.Order, err error) {
	begun := false
	for {
		err = t.patiently(ctx, func(ctx context.Context) (err error) { order, err = t.Join(ctx); return err })
		if err != nil {
			return order, err
		}
		if order.Action == libreplicad.Init {
			begun, err = t.initial(ctx)
		} else if err = t.Load(); err == nil {
			if begun {
				t.out.state("begun", t.model)
				begun = false
			}
			t.out.emit(event{Event: "joined", Action: order.Action.String(), Epoch: uint64(order.Epoch), Step: uint64(order.Step), Source: order.Source.String()})
			err = t.patiently(ctx, t.Ready)
		}
		switch {
		case errors.Is(err, libreplicad.ErrFenced): // a further fault: another order will come
		case err != nil:
			return order, err
		case order.Action == libreplicad.Load:
			t.out.emit(event{Event: "ready", Epoch: uint64(order.Epoch), Step: uint64(order.Step)})
			return order, nil
		default:
			t.out.emit(event{Event: "joined", Action: order.Action.String(), Epoch: uint64(order.Epoch), Step: uint64(order.Step)})
		}
	}
}

// initial seals the state that a run begins with. model.New initialised it, the same on every replica: there is nothing to broadcast before that.
func (t *trainer) initial(ctx context.Context) (begun bool, err error) {
	own := false
	if t.begin != nil {
		if begun, own, err = t.begin(ctx); err != nil {
			return begun, err
		}
	}
	if own {
		return begun, t.patiently(ctx, t.SealOwn)
	}
	return begun, t.patiently(ctx, t.SealInitial)
}

// epoch trains from order on until every rank has done the last step. Any error ends the epoch for this rank.
func (t *trainer) epoch(ctx context.Context, order libreplicad.Order) error {
	mesh, err := t.meet(ctx, order)
	if err != nil {
		return err
	}
	defer mesh.Close()
	defer t.FreezeGood() // runs first: no peer sees a closed connection before the good word is frozen
	defer t.onFence(func() { mesh.Fail(libreplicad.ErrFenced) })()

	groups := model.Groups{Tensor: mesh.Group(t.replicaPeers()...), Data: mesh.Group(t.shardPeers()...)}
	pace := newPacer(t.opt.pace)
	for step := order.Step + 1; uint64(step) <= t.opt.steps; step++ {
		// Forward and backward: collectives, random numbers, running statistics. The weights of the step before may still be
		// being copied meanwhile.
		loss, err := t.model.Backprop(groups, func() { t.stopAt(step, "forward") })
		if err != nil {
			return err
		}
		// The optimizer window: weights, moments and counters change only here. A closed epoch doesn't open it.
		if err := t.StepEnter(step, 10*time.Second); err != nil {
			return err
		}
		t.stopAt(step, "window")
		t.model.Update()
		if mesh.Err() != nil {
			t.FreezeGood() // a step is vouched for only if no collective is known to have failed once it is complete
		}
		if err := t.StepExit(step, 0); err != nil {
			return err
		}
		t.out.emit(event{Event: "step", Epoch: uint64(order.Epoch), Step: uint64(step), Loss: &loss})
		if every := t.opt.digests; every > 0 && uint64(step)%every == 0 {
			t.out.state("state", t.model)
		}
		pace.wait()
	}
	return t.finish(ctx)
}

// finish waits until every rank has done the last step: until then a closed connection would look like a lost peer. What comes
// after is Leave's: a fault before every rank has left brings the work back.
func (t *trainer) finish(ctx context.Context) error {
	if err := t.KVSet(ctx, "done/"+strconv.Itoa(t.rank), []byte("done")); err != nil {
		return err
	}
	for r := range t.world {
		if _, err := t.KVGet(ctx, "done/"+strconv.Itoa(r)); err != nil {
			return err
		}
	}
	return nil
}

// meet connects this epoch's collectives: each rank publishes a fresh address under the epoch's rendezvous.
func (t *trainer) meet(ctx context.Context, order libreplicad.Order) (*collective.Mesh, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(t.host, "0"))
	if err != nil {
		return nil, fmt.Errorf("listen for collectives on %q (REPLICAD_HOST): %w", t.host, err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	defer t.onFence(cancel)()
	if err := t.KVSet(ctx, "collective/"+strconv.Itoa(t.rank), []byte(ln.Addr().String())); err != nil {
		return nil, t.unmet(err)
	}
	id := collective.Identity{Run: binary.LittleEndian.Uint64(order.Job[:]), Epoch: uint64(order.Epoch), Rank: t.rank}
	mesh, err := collective.Connect(ctx, ln.(*net.TCPListener), id, t.world, func(ctx context.Context, r int) (string, error) {
		b, err := t.KVGet(ctx, "collective/"+strconv.Itoa(r))
		return string(b), err
	})
	return mesh, t.unmet(err)
}

// unmet tells a closed epoch from a peer that did not come, which is a peer that is gone.
func (t *trainer) unmet(err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-t.Fence():
		return errors.Join(libreplicad.ErrFenced, err)
	default:
		return fmt.Errorf("%w: %w", collective.ErrPeer, err)
	}
}

// onFence has do called when the epoch is closed. The returned function ends the watch.
func (t *trainer) onFence(do func()) (stop func()) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-t.Fence():
			do()
		case <-end:
		}
	})
	return func() { close(end); wg.Wait() }
}

// patiently calls what waits for others, for as long as it takes, and says now and then that it does.
func (t *trainer) patiently(ctx context.Context, call func(context.Context) error) error {
	for {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := call(short)
		patient := short.Err() != nil && ctx.Err() == nil // before cancel, which sets it too
		cancel()
		if err == nil || !patient {
			return err
		}
		t.out.emit(event{Event: "waiting", Text: err.Error()})
	}
}

// replicaPeers are the shards of this rank's replica.
func (t *trainer) replicaPeers() (ranks []int) {
	first := t.rank / t.opt.shards * t.opt.shards
	for r := first; r < first+t.opt.shards; r++ {
		ranks = append(ranks, r)
	}
	return ranks
}

// shardPeers are the replicas of this rank's shard: its replica group.
func (t *trainer) shardPeers() (ranks []int) {
	for r := t.rank % t.opt.shards; r < t.world; r += t.opt.shards {
		ranks = append(ranks, r)
	}
	return ranks
}

// pacer spaces steps out.
type pacer struct {
	every time.Duration
	next  time.Time
}

func newPacer(every time.Duration) *pacer { return &pacer{every, time.Now().Add(every)} }

func (p *pacer) wait() {
	if p.every <= 0 {
		return
	}
	now := time.Now()
	if d := p.next.Sub(now); d > 0 {
		time.Sleep(d)
		p.next = p.next.Add(p.every)
	} else {
		p.next = now.Add(p.every) // late: don't catch up in a burst
	}
}
