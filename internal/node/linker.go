package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/host"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

const (
	linkDial    = 500 * time.Millisecond // to connect: a dead node must not cost more than the next voter's answer
	linkShun    = 2 * time.Second        // for which a voter whose link just went down is not the first to be asked, and has linkGlance
	linkGlance  = 100 * time.Millisecond // to connect to it: it may be there still, but mostly it is dead
	linkRefused = 200 * time.Millisecond // at most before a voter that refused this node is asked again; twice as long each time, up to
	linkAloof   = 5 * time.Second        // this: what it wants changes by an operator's hand, and each try costs it a handshake
)

var (
	errLeaderSilent = errors.New("link: no word from the leader")
	errLeaderMoved  = errors.New("link: this node's Raft follows another leader")
	errGoes         = errors.New("link: this daemon ends")
)

// dialer opens a stream to a node for the linker: over the endpoint, or a pipe where the leader is this node.
type dialer func(ctx context.Context, node replica.NodeName, addr string) (net.Conn, error)

// linker keeps one link to whoever leads, for the host. It has one goroutine, run.
type linker struct {
	hello  func() (h control.Hello, ok bool)                          // false: this daemon ends, and is to be counted on by no further leader
	self   func() (leader replica.NodeName, addr string, term uint64) // what this node's own Raft says; empty: nothing
	moved  func() <-chan struct{}                                     // closed when it may say otherwise; nil: it always says the same
	voters []voterAddr
	dial   dialer
	post   func(host.Event)       // blocks; false once the host has ended
	failed func(voterAddr, error) // why a voter took no link, other than that it does not lead
	// raft is this daemon's part in Raft, heard takes in what a voter that does not lead says of its own; nil: nobody asks.
	raft  func() control.Standing
	heard func(replica.NodeName, control.Standing)
}

type voterAddr struct {
	name replica.NodeName
	addr string
}

// run links, again and again, until ctx ends or the daemon goes. Targets: the leader that this node's own Raft names, else the voters in turn; a
// redirect is followed at once, but no redirect's redirect: while leadership moves voters may name each other. The one whose
// link was lost is given a glance only, whoever still names it: where it died the others learn that later than this node. A voter
// that refused this node is left alone for a while, longer each time; all others are asked as before.
func (k *linker) run(ctx context.Context) {
	hint, next := voterAddr{}, 0
	away := map[replica.NodeName]aloof{}
	lost, lostAt := replica.NodeName(""), time.Time{}
	shunned := func(n replica.NodeName) bool { return n == lost && time.Since(lostAt) < linkShun }
	for turn := 0; ctx.Err() == nil; turn++ {
		target, redirected := hint, hint.addr != ""
		hint = voterAddr{}
		if !redirected {
			if name, addr, _ := k.self(); addr != "" && !shunned(name) {
				target = voterAddr{name, addr}
			} else {
				target, next = k.following(next, away)
			}
		}
		if wait := time.Until(away[target.name].until); wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
		patience := linkDial
		if shunned(target.name) {
			patience = linkGlance
		}
		w, err := k.once(ctx, target, patience)
		if ctx.Err() != nil || errors.Is(err, errGoes) {
			return
		}
		if err == nil && w.OK {
			lost, lostAt = target.name, time.Now()
		}
		if err == nil && !w.OK && w.Reason != control.NotLeader {
			err = fmt.Errorf("link to %s: %s", target.name, w.Reason)
		}
		switch {
		case w.Refused || final(err):
			away[target.name] = away[target.name].again(time.Now())
			err = fmt.Errorf("this node is refused: %w", err)
		case err == nil:
			delete(away, target.name)
		}
		if err != nil {
			k.failed(target, err)
		}
		if err == nil && !w.OK && w.Address != "" && w.Leader != target.name && !redirected {
			hint = voterAddr{w.Leader, w.Address}
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(linkRetry(turn)):
		}
	}
}

// following is the voter whose turn it is: the first from next on that is not left alone, or the one whose time is over first.
func (k *linker) following(next int, away map[replica.NodeName]aloof) (voterAddr, int) {
	best, now := next, time.Now()
	for i := next; i < next+len(k.voters); i++ {
		until := away[k.voters[i%len(k.voters)].name].until
		if !until.After(now) {
			best = i
			break
		}
		if until.Before(away[k.voters[best%len(k.voters)].name].until) {
			best = i
		}
	}
	return k.voters[best%len(k.voters)], best + 1
}

// aloof is a voter that has refused this node so many times in a row, and is not asked before a moment.
type aloof struct {
	times int
	until time.Time
}

// again spreads the moment, so that many nodes refused for one reason do not come at once.
func (a aloof) again(now time.Time) aloof {
	pause := min(linkRefused<<min(a.times, 10), linkAloof)
	return aloof{a.times + 1, now.Add(pause/2 + rand.N(pause/2))}
}

// final tells whether a link failed for something that no further try changes: the certificate or release of one end.
func final(err error) bool {
	var closed *endpoint.CloseError
	return errors.Is(err, endpoint.ErrIdentity) || errors.Is(err, wire.ErrVersion) ||
		errors.As(err, &closed) && closed.Remote && (closed.Code == endpoint.CodeRefused || closed.Code == endpoint.CodeNoClass)
}

// linkRetry is 20 to 60 ms, spread so that nodes don't come all at once.
func linkRetry(turn int) time.Duration {
	return 20*time.Millisecond + time.Duration(turn*7%5)*10*time.Millisecond
}

// once runs one link until it goes down; err is nil where the far end answered the hello.
func (k *linker) once(ctx context.Context, target voterAddr, patience time.Duration) (control.Welcome, error) {
	if _, ok := k.hello(); !ok { // the former link has ended: what its leader said is known
		return control.Welcome{}, errGoes
	}
	dialCtx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := k.dial(dialCtx, target.name, target.addr)
	if err != nil {
		return control.Welcome{}, fmt.Errorf("link to %s at %s: %w", target.name, target.addr, err)
	}
	l := control.NewLink(conn, control.ToLeader)
	defer l.Close(nil)
	conn.SetDeadline(time.Now().Add(control.LinkHandshake))
	hello, ok := k.hello() // again: a dial takes its time, in which processes end, and the daemon may give up
	if !ok {
		return control.Welcome{}, errGoes
	}
	if err := control.WriteHello(conn, hello); err != nil {
		return control.Welcome{}, fmt.Errorf("link to %s: hello: %w", target.name, err)
	}
	w, err := control.ReadWelcome(conn)
	if err != nil {
		return control.Welcome{}, fmt.Errorf("link to %s: %w", target.name, err)
	}
	if !w.OK {
		if k.heard != nil && w.Reason == control.NotLeader {
			k.heard(target.name, w.Raft)
		}
		return w, nil
	}
	conn.SetDeadline(time.Time{})
	k.post(host.LinkUp{Link: l, Welcome: w, Leader: target.name})
	quiet := time.AfterFunc(control.LinkSilent, func() { l.Close(errLeaderSilent) })
	defer quiet.Stop()
	var looking sync.WaitGroup
	defer looking.Wait() // it ends with the link
	looking.Go(func() { k.leaveFormer(l, target.name, w.Term) })
	if k.raft != nil {
		looking.Go(func() { keepTelling(l, hello.Raft, k.raft) })
	}
	var in control.Decoder
	err = l.Run(ctx, func(kind wire.Kind, body []byte) error {
		quiet.Stop() // what takes its time from here on is this node
		defer quiet.Reset(control.LinkSilent)
		msg, err := in.Decode(kind, body)
		if err != nil {
			return fmt.Errorf("message %d from leader %s: %w", kind, target.name, err)
		}
		if msg != nil {
			k.post(host.FromLeader{Link: l, Msg: msg})
		}
		return nil
	})
	k.post(host.LinkDown{Link: l, Err: err})
	return w, nil
}

// leaveFormer closes a link once this node's own Raft follows another leader of a later term: a voter knows that before the
// silence of the former one has lasted.
func (k *linker) leaveFormer(l *control.Link, leader replica.NodeName, term uint64) {
	for {
		var moved <-chan struct{}
		if k.moved != nil {
			moved = k.moved() // before it is asked, or a change in between would be missed
		}
		if name, _, now := k.self(); name != "" && name != leader && now > term {
			l.Close(errLeaderMoved)
			return
		}
		select {
		case <-l.Down:
			return
		case <-moved:
		}
	}
}

// raftMoved is closed when raftLeader may say otherwise; nil where this node has no vote.
func (d *daemon) raftMoved() <-chan struct{} {
	if d.cons == nil {
		return nil
	}
	return d.cons.Moved()
}
