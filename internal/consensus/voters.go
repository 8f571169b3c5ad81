package consensus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/replica"
)

// Raft counts a voter in from the entry that names it on. One that is not there, or another node than was meant, takes the majority
// away, and no entry can then take the voter out again. So nobody is counted in, or out, before the majority that will be has answered.

const (
	askTimeout  = 2 * time.Second // for a node to say how far its log reaches
	undoTimeout = 5 * time.Second // to take out again what could not become a voter
)

// Voters are the members of the Raft cluster, as far as this node's log says; addresses as they were added.
func (n *Node) Voters() []Voter { return n.servers(raft.Voter) }

// Joining are the nodes that are being brought up to date before they vote, or were left so when the leader changed.
func (n *Node) Joining() []Voter { return n.servers(raft.Nonvoter) }

func (n *Node) servers(kind raft.ServerSuffrage) (out []Voter) {
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage == kind {
			out = append(out, Voter{replica.NodeName(s.ID), string(s.Address)})
		}
	}
	return out
}

// AddVoter lets a new node vote, which was started with Join. It must answer at its address under its certificate, and have no log; it
// gets the log as a node without a vote, and votes once it has it. A failure leaves the voters as they were, and that node out. Only
// the leader can.
func (n *Node) AddVoter(ctx context.Context, v Voter) error {
	fail := func(err error) error { return fmt.Errorf("add voter %q at %s: %w", v.Name, v.Addr, err) }
	a := n.newAsker()
	defer a.close()
	if err := n.turn(ctx); err != nil {
		return fail(err)
	}
	defer n.endTurn()
	got, err := n.mayJoin(a, v)
	if err != nil {
		return fail(err)
	}
	if err := a.majority(append(n.Voters(), v), v.Name); err != nil {
		return fail(err)
	}
	id, addr := raft.ServerID(v.Name), raft.ServerAddress(v.Addr)
	err = n.await(ctx, "let it have the log", func(d time.Duration) error { return n.raft.AddNonvoter(id, addr, 0, d).Error() })
	if err == nil && !got.Votes && !got.Learns {
		err = n.invite(ctx, a, v, got, false)
	}
	if err == nil {
		err = n.caughtUp(ctx, a, v)
	}
	if err == nil {
		err = a.majority(append(n.Voters(), v), v.Name)
	}
	if err != nil {
		return fail(errors.Join(err, n.takeOut(ctx, v)))
	}
	if err := n.await(ctx, "let it vote", func(d time.Duration) error { return n.raft.AddVoter(id, addr, 0, d).Error() }); err != nil {
		return fail(err)
	}
	a.awaitVote(ctx, v)
	return nil
}

// takeOut ends the joining of a node that got the log and no vote.
func (n *Node) takeOut(ctx context.Context, v Voter) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if err := n.remove(ctx, v.Name); err != nil {
		return fmt.Errorf("it has the log and no vote, which does no harm: repeat the command, or remove it (replicad voter remove %s): %w", v.Name, err)
	}
	return fmt.Errorf("it was removed again: before another try, stop its daemon, move its Raft directory away and start it with --join")
}

// RemoveVoter takes a voter out for good: its name must not be used again. It is refused where the others would have no majority that
// answers.
func (n *Node) RemoveVoter(ctx context.Context, name replica.NodeName) error {
	if err := n.turn(ctx); err != nil {
		return fmt.Errorf("remove voter %q: %w", name, err)
	}
	defer n.endTurn()
	named := func(v Voter) bool { return v.Name == name }
	if voters := n.Voters(); slices.ContainsFunc(voters, named) {
		a := n.newAsker()
		defer a.close()
		if err := a.majority(slices.DeleteFunc(voters, named), ""); err != nil {
			return fmt.Errorf("remove voter %q: %w", name, err)
		}
	}
	return n.remove(ctx, name)
}

func (n *Node) remove(ctx context.Context, name replica.NodeName) error {
	return n.await(ctx, fmt.Sprintf("remove voter %q", name), func(d time.Duration) error {
		return n.raft.RemoveServer(raft.ServerID(name), 0, d).Error()
	})
}

// mayJoin refuses a node that is not there, not the one that is named, or not new.
func (n *Node) mayJoin(a *asker, v Voter) (answered, error) {
	if i := slices.IndexFunc(n.cfg.Voters, func(c Voter) bool { return c.Name == v.Name }); i >= 0 && n.cfg.Voters[i].Addr != v.Addr {
		return answered{}, fmt.Errorf("the configuration of the leader, node %s, has it at %s, and that counts: give that address, or correct it there", n.cfg.ID, n.cfg.Voters[i].Addr)
	}
	h, err := a.ask(v, nil)
	switch {
	case err != nil:
		return h, fmt.Errorf("it does not answer: %w: its configuration must name %s, and it with that addr, among the voters, and its daemon run with --join", err, n.cfg.ID)
	case (h.last > 0 || h.term > 0) && !slices.Contains(n.Joining(), v):
		return h, fmt.Errorf("it has a log already, up to entry %d in term %d, so it is no new voter: stop its daemon, move its Raft directory away and start it with --join, under a new name if this one has voted before", h.last, h.term)
	}
	return h, nil
}

// caughtUp waits until a node has all that was committed, and what was added meanwhile took it less than an election. One that has started again since it was
// invited, and takes no entries any more, is not waited for: it has to be invited anew.
func (n *Node) caughtUp(ctx context.Context, a *asker, v Voter) error {
	tick := time.NewTicker(max(n.cfg.Heartbeat/10, time.Millisecond))
	defer tick.Stop()
	for {
		began, goal := time.Now(), n.raft.CommitIndex()
		for {
			h, err := a.ask(v, nil)
			if err == nil && h.Needs {
				return fmt.Errorf("it has started again meanwhile, with its log up to entry %d of %d, and waits for another invite", h.last, goal)
			}
			if err == nil && h.last >= goal {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("it has the log up to entry %d of %d, and does not catch up: %w", h.last, goal, errors.Join(context.Cause(ctx), err))
			}
		}
		if time.Since(began) < n.cfg.Election {
			return nil
		}
	}
}

// An asker asks nodes how far their logs reach. It has a transport of its own, which takes no streams that come in.
type asker struct {
	n     *Node
	trans *raft.NetworkTransport
}

func (n *Node) newAsker() *asker {
	layer := &dialOnly{streams: n.streams, life: n.ctx, closed: make(chan struct{})}
	return &asker{n, raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Logger: n.cfg.Logger, Stream: layer, MaxPool: 1, Timeout: askTimeout, MaxRPCsInFlight: 1})}
}

func (a *asker) close() {
	a.trans.CloseStreams()
	_ = a.trans.Close() // it has no error
}

// MajorityWithout fails unless a majority of the voters answers now without that one, which goes on counting as one.
func (n *Node) MajorityWithout(name replica.NodeName) error {
	voters := n.Voters()
	others := slices.DeleteFunc(slices.Clone(voters), func(v Voter) bool { return v.Name == name })
	if len(others) == len(voters) {
		return nil
	}
	a := n.newAsker()
	defer a.close()
	silent := a.silent(others, "")
	if answer := len(others) - len(silent); 2*answer <= len(voters) {
		text := fmt.Sprintf("without %s %d of the %d voters answer, and without a majority the cluster commits nothing", name, answer, len(voters))
		if len(silent) > 0 {
			text += ": first bring back " + strings.Join(silent, ", ")
		}
		return fmt.Errorf("%s: add a voter, or remove that one first (replicad voter)", text)
	}
	return nil
}

// majority fails unless most of the voters that would be answer now, this node among them.
func (a *asker) majority(voters []Voter, joins replica.NodeName) error {
	silent := a.silent(voters, joins)
	if answer := len(voters) - len(silent); 2*answer <= len(voters) {
		return fmt.Errorf("of the %d voters that there would be %d answer, and without a majority the cluster would never commit again: first bring back %s", len(voters), answer, strings.Join(silent, ", "))
	}
	return nil
}

// silent names the voters that do not answer now, or do not vote, and why; of the one that joins an answer is enough.
func (a *asker) silent(voters []Voter, joins replica.NodeName) (silent []string) {
	errs := make([]error, len(voters))
	var asked sync.WaitGroup
	for i, v := range voters {
		if v.Name == a.n.cfg.ID {
			continue
		}
		asked.Go(func() {
			if to := a.n.addrOf(raft.ServerID(v.Name)); to != "" {
				v.Addr = to
			}
			got, err := a.ask(v, nil)
			if err == nil && !got.Votes && v.Name != joins {
				err = errors.New("it answers, and does not vote yet: see replicad status there")
			}
			errs[i] = err
		})
	}
	asked.Wait()
	for i, err := range errs {
		if err != nil {
			silent = append(silent, fmt.Sprintf("%s (%v)", voters[i].Name, err))
		}
	}
	return silent
}

// dialOnly is streams for a second transport: it dials, and leaves what comes in to raft's.
type dialOnly struct {
	*streams
	life   context.Context // with it the streams that it dialed end
	closed chan struct{}
	once   sync.Once
}

func (d *dialOnly) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	conn, err := d.dial(d.life, to, timeout)
	if err != nil {
		return nil, err
	}
	return &askStream{conn, context.AfterFunc(d.life, func() { conn.Close() })}, nil
}

// askStream ends with the node: nobody waits then for an answer.
type askStream struct {
	net.Conn
	stop func() bool
}

func (s *askStream) Close() error {
	s.stop()
	return s.Conn.Close()
}

func (d *dialOnly) Accept() (net.Conn, error) {
	<-d.closed
	return nil, net.ErrClosed
}

func (d *dialOnly) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}
