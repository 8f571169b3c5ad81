package consensus

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/replica"
)

// Leadership tells who leads in which term. isSelf: this node does, has applied all that was committed before its term, and
// can write its log.
func (n *Node) Leadership() (leader replica.NodeName, addr string, term uint64, isSelf bool) {
	_, id := n.raft.LeaderWithID()
	term = n.raft.CurrentTerm()
	isSelf = n.raft.State() == raft.Leader && n.ready.Load() == term && n.raft.CurrentTerm() == term && !n.dog.stuck() && n.fsm.failure() == nil
	return replica.NodeName(id), n.addrOf(id), term, isSelf
}

// addrOf is a voter's address as configured; empty if it is not known.
func (n *Node) addrOf(id raft.ServerID) string {
	to, err := n.ServerAddr(id)
	if err != nil {
		return ""
	}
	_, addr, _ := strings.Cut(string(to), "@")
	return addr
}

// watch reacts to leadership edges, leaders seen elsewhere, and the watchdog, until Close.
func (n *Node) watch() {
	for {
		select {
		case <-n.ctx.Done():
			return
		case leads := <-n.notify:
			n.paced(func(p *pace) {
				if leads {
					p.led(true)
				} else {
					p.lost(time.Since(n.began))
				}
			})
			if leads {
				n.takeOver()
			} else {
				n.sayStarved()
			}
			n.news.poke()
		case o := <-n.seen:
			if l, ok := o.Data.(raft.LeaderObservation); ok && l.LeaderID != "" {
				n.paced(func(p *pace) { p.led(l.LeaderID == raft.ServerID(n.cfg.ID)) })
			}
			n.news.poke()
		case m := <-n.marks:
			n.proposeDigest(m)
		case err := <-n.store.broken:
			n.fsm.halt(fmt.Errorf("%w: %w", ErrHalted, err), "the log on disk is damaged; this voter ends its part in the cluster", "dir", n.cfg.Dir)
			_ = n.raft.Shutdown().Error() // it has none
		case what := <-n.dog.slow:
			if n.raft.State() == raft.Leader {
				n.handOver(what)
			}
		case <-n.dog.freed:
			n.streams.mute(false)
			n.news.poke()
		}
	}
}

// paced changes how patient this node is.
func (n *Node) paced(change func(*pace)) {
	n.paceMu.Lock()
	change(&n.pace)
	n.paceMu.Unlock()
	n.adjust(0)
}

// takeOver waits for the barrier of this leadership, after which isSelf is true. A term has one leader, once, so the term is
// enough to tell this leadership from others.
func (n *Node) takeOver() {
	term := n.raft.CurrentTerm()
	leads := func() bool {
		return n.raft.State() == raft.Leader && n.raft.CurrentTerm() == term && n.ctx.Err() == nil
	}
	_ = n.upkeep.call(n.ctx, func() { // refused only when the node closes
		for leads() {
			if err := n.raft.Barrier(n.cfg.Election).Error(); err == nil && leads() {
				for old := n.ready.Load(); old < term && !n.ready.CompareAndSwap(old, term); old = n.ready.Load() {
				}
				n.news.poke()
				return
			}
			select { // a transfer that is under way refuses barriers at once
			case <-time.After(n.cfg.Heartbeat / 10):
			case <-n.ctx.Done():
			}
		}
	})
}

// handOver gives leadership up. Raft's main loop does it, unless that is what hangs in the log write: then this node's
// streams are muted until the write returns, and the others elect a leader because they hear none.
func (n *Node) handOver(what string) {
	if n.dog.stuck() {
		n.cfg.Logger.Error("this leader can't write its log and falls silent, so that another is elected: check the disk of the Raft directory", "dir", n.cfg.Dir, "for", n.dog.after)
		n.streams.mute(true)
		if !n.dog.stuck() { // freed before it was muted: nobody else would undo it
			n.streams.mute(false)
		}
		n.news.poke()
	} else {
		n.cfg.Logger.Warn("leadership is handed over: "+what+" took too long", "limit", n.dog.after)
	}
	_ = n.upkeep.call(n.ctx, func() {
		if err := n.raft.LeadershipTransfer().Error(); err != nil {
			n.cfg.Logger.Warn("leadership was not handed over", "error", err)
		}
	})
}

// Transfer hands leadership to the most up-to-date voter, within two election timeouts.
func (n *Node) Transfer() error {
	return n.transfer("transfer leadership", n.raft.LeadershipTransfer)
}

// TransferTo hands leadership to that voter, which is brought up to date first, within two election timeouts.
func (n *Node) TransferTo(name replica.NodeName) error {
	for _, v := range n.Voters() {
		if v.Name == name {
			return n.transfer(fmt.Sprintf("transfer leadership to %q", name), func() raft.Future {
				return n.raft.LeadershipTransferToServer(raft.ServerID(name), raft.ServerAddress(v.Addr))
			})
		}
	}
	return fmt.Errorf("transfer leadership to %q: it is no voter", name)
}

func (n *Node) transfer(what string, fn func() raft.Future) error {
	limit := 2 * n.cfg.Election
	ctx, cancel := context.WithTimeoutCause(n.ctx, limit, fmt.Errorf("no result within %v", limit))
	defer cancel()
	return n.await(ctx, what, func(time.Duration) error { return fn().Error() })
}

// ID is this node's name.
func (n *Node) ID() replica.NodeName { return n.cfg.ID }

// await calls raft and waits for its answer until ctx ends.
func (n *Node) await(ctx context.Context, what string, fn func(enqueue time.Duration) error) error {
	done := make(chan error, 1)
	if err := n.upkeep.call(ctx, func() { done <- fn(n.enqueueTimeout(ctx)) }); err != nil {
		return fmt.Errorf("%s: %w: %w", what, ErrBusy, err)
	}
	select {
	case err := <-done:
		if err := n.outcome(err); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w: %w", what, ErrUnknown, context.Cause(ctx))
	}
}
