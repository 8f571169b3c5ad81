package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

var errUnreachable = errors.New("no daemon answers there")

// lane moves parts over pipes.
type lane struct {
	d  *daemon
	to replica.NodeName
	*dice
}

func (d *daemon) dial(_ context.Context, _ []string, to replica.NodeName, _ transfer.Transport) (transfer.Lane, error) {
	if d.m.w.machines[to].running() == nil || d.m.w.net.cut(d.m.name, to) {
		return nil, fmt.Errorf("node %s: %w", to, errUnreachable)
	}
	return &lane{d, to, d.m.w.dice(fmt.Sprintf("lane %d of %s to %s", d.lanes.Add(1), d.m.name, to), d.life())}, nil
}

func (l *lane) Peer() replica.NodeName { return l.to }
func (l *lane) Close()                 {}

func (l *lane) Open(ctx context.Context) (net.Conn, error) {
	near, far, there, err := l.d.pipe(ctx, l.to, true)
	if err != nil {
		return nil, err
	}
	wait := l.delay()
	there.work.Go(func() {
		defer far.Close()
		time.Sleep(wait)
		transfer.Serve(there.ctx, l.d.m.name, far, parts{there.m.w.deafened(there.m, there.host.Parts()), there.m, l.d.m}, there.gate) //nolint:errcheck // the near end sees it
	})
	return near, nil
}

// parts is what a node serves to another, and takes from it: the script sees both begin.
type parts struct {
	transfer.Store
	here, peer *machine
}

func (p parts) Open(peer replica.NodeName, k transfer.Key) (transfer.Reader, error) {
	r, err := p.Store.Open(peer, k)
	if err == nil && p.here.w.phase(k.Epoch, replica.Planned)() {
		p.here.w.see(sight{moment: fetching, at: p.here, from: p.peer, on: p.here.w.phase(k.Epoch, replica.Planned)})
	}
	return r, err
}

func (p parts) Accept(peer replica.NodeName, k transfer.Key, m replica.Manifest) (transfer.Sink, func(error) error, error) {
	sink, done, err := p.Store.Accept(peer, k, m)
	if err != nil || k.Part.Kind != replica.ReplicatedPart {
		return sink, done, err
	}
	p.here.pushed.Add(1)
	p.here.w.see(sight{moment: pushing, at: p.here, from: p.peer, on: func() bool { return p.here.pushed.Load() > 0 }})
	return sink, func(err error) error {
		p.here.pushed.Add(-1)
		return done(err)
	}, nil
}
