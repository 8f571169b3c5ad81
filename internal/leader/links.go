package leader

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/leader/durable"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// Serve handles one link from hello to its end, in the caller's goroutine.
func (l *Leader) Serve(ctx context.Context, peer replica.NodeName, conn net.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(control.LinkHandshake))
	h, err := control.ReadHello(conn)
	switch {
	case errors.Is(err, wire.ErrFrame):
		l.refuse(conn, replica.Holder{Node: peer}, fmt.Sprintf("hello: %v: run one release of replicad on all nodes", err))
		return
	case err != nil:
		return // it went away, or said nothing
	case h.Node.Name != peer || h.Cluster != l.cfg.Cluster:
		reason := fmt.Sprintf("hello of node %q, cluster %s on a connection of node %q, cluster %s: give each node its own certificate", h.Node.Name, h.Cluster, peer, l.cfg.Cluster)
		l.audit.Refused("hello", peer, audit.Fields{"refused": reason})
		l.refuse(conn, replica.Holder{Node: peer}, reason)
		return
	}
	name, addr, _, self := l.cons.Leadership()
	if !self {
		control.WriteWelcome(conn, control.Welcome{Reason: control.NotLeader, Leader: name, Address: addr, Raft: l.cfg.Standing().Fit()}) //nolint:errcheck // the node asks the next voter
		return
	}
	out, err := l.register(ctx, h.Node, h.Running)
	if err != nil {
		control.WriteWelcome(conn, control.Welcome{Reason: err.Error()}) //nolint:errcheck // the node comes again
		return
	}
	if out != nil {
		l.audit.Refused("registration", peer, audit.Fields{"refused": out.Error()})
		l.refuse(conn, h.Node.Holder(), out.Error())
		return
	}
	l.cfg.Refused.Linked(h.Node.Holder())
	conn.SetDeadline(time.Time{})
	n := &nodeLink{Link: control.NewLink(conn, control.ToNode), node: h.Node, raft: h.Raft}
	n.Full = func(of any) { l.log.LeftOut(string(peer), of) }
	l.post(leaderLinkUp{n})
	var beside sync.WaitGroup
	beside.Go(func() { l.beats(n) })
	err = n.Run(ctx, func(kind wire.Kind, body []byte) error {
		msg, err := control.Decode(control.ToLeader, kind, body)
		if err != nil {
			return fmt.Errorf("message %d from node %s: %w", kind, peer, err)
		}
		switch m := msg.(type) {
		case control.Order:
			if m.Besides() {
				beside.Go(func() { n.Reply(m.ID, l.beside(ctx, peer, m)) })
				break
			}
			l.postFirst(nodeMessage{n, msg})
		case control.StatusRequest:
			l.postFirst(nodeMessage{n, msg})
		default:
			l.post(nodeMessage{n, msg})
		}
		return nil
	})
	l.post(leaderLinkDown{n, err})
	beside.Wait()
}

// refuse tells a node why it gets no link however often it asks, and the operator of this end too.
func (l *Leader) refuse(conn net.Conn, who replica.Holder, why string) {
	l.cfg.Refused.Add(who, why, time.Now())
	l.log.Retried("refused link", control.Life(who), why)
	control.WriteWelcome(conn, control.Welcome{Reason: why, Refused: true}) //nolint:errcheck // it is refused anyway
}

// register records the node as it is now; what it says afterwards is judged by that entry. refused says why no state after this one
// would take it, and what to do; err that the outcome is not known, or that nothing was proposed. Which claims it is running counts where its
// memory is another than before.
func (l *Leader) register(ctx context.Context, n replica.Node, running []replica.Running) (refused, err error) {
	v := l.cons.State()
	if upTo, revoked := v.Revokes(replica.NodeRole, string(n.Name)); revoked && l.cfg.Newest(replica.NodeRole, string(n.Name)) <= upTo { // its connection is about to end
		return fmt.Errorf("register node %s: its certificate was revoked with all up to epoch %d: `replicad pki renew %s --after %d`, then copy its two files to it", n.Name, upTo, n.Name, upTo), nil
	}
	have, ok := v.Nodes[n.Name]
	if ok && sameNode(have, n) && !deadByRevocation(v, have) {
		return nil, nil
	}
	n.Former = nil // the state machine's to fill in
	if err := config.CheckNode(n); err != nil {
		return fmt.Errorf("register: %w: give it a configuration that `replicad config check` takes", err), nil
	}
	c := replica.RegisterNode{Node: n, Limit: lock.MaxView}
	if ok && have.Incarnation != n.Incarnation {
		c.Running = running
	}
	if err := lock.Fits(l.cons.State(), c); err != nil {
		return err, nil
	}
	if !l.paces.may(n.Name, time.Now()) {
		return fmt.Errorf("register node %s: it has done so %d times within seconds: does something start its daemon again and again, or do two daemons run as this node?", n.Name, registerBurst), nil
	}
	ctx, cancel := context.WithTimeout(ctx, control.LinkHandshake)
	defer cancel()
	_, out, err := l.cons.Propose(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("register node %s, session %d: %w", n.Name, n.Session, err)
	}
	if out.Err == nil {
		life := fmt.Sprintf("incarnation %d, session %d", n.Incarnation, n.Session)
		l.audit.Some("join", n.Name, life, audit.Fields{"node": string(n.Name), "life": life, "addr": n.Addr})
		return nil, nil
	}
	var r *lock.Refused
	remedy := ""
	switch {
	case !errors.As(out.Err, &r) || r.Code != lock.Stale:
	case n.Incarnation == have.Incarnation:
		remedy = ": it runs no more, or twice: stop this daemon"
	default:
		remedy = fmt.Sprintf(": another keeper of node %s has registered since, so what this one holds counts as lost: if two daemons run as node %s, stop one of them; otherwise stop this daemon and its keeper and start them again", n.Name, n.Name)
	}
	return fmt.Errorf("%w%s", out.Err, remedy), nil
}

// lost tells the rules that a node's link is gone, which is no evidence of its death.
func (l *Leader) lost(ctx context.Context, name replica.NodeName) {
	for id, led := range l.jobs {
		l.commitEffects(ctx, id, led, led.committer.Voided(name))
		l.recoverStep(ctx, id, led, recovery.NodeGone{Node: name})
	}
}

func (l *Leader) linkUp(ctx context.Context, n *nodeLink) {
	if !l.active {
		n.Close(errors.New("not the leader"))
		return
	}
	if old := l.links.of[n.node.Name]; old != nil {
		if old.node.Incarnation != n.node.Incarnation {
			l.log.Superseded(old.node, n.node)
		}
		old.Close(errors.New("superseded by a newer link of the node"))
		l.lost(ctx, n.node.Name) // what was sent on it may not have arrived: an offer would be waited for until claim_timeout
	}
	l.links.of[n.node.Name] = n
	l.voters.Heard(n.node.Name, n.raft)
	delete(l.leaving, n.node.Name) // a daemon that ends says so on each link
	l.spools.up(n.node.Name, n.Link)
	l.agentsLinked(n.node.Name)
	delete(l.suspicions, n.node.Holder())
	if err := l.links.encode(l.view, l.term, l.now()); err != nil { // before the welcome: a node that is welcome hears something each second, or goes elsewhere
		n.Close(err)
		return
	}
	n.Send(control.Welcome{OK: true, Term: l.term, Era: l.view.Era})
	l.links.state(n, l.view, l.term, l.now())
	close(n.Up)
	for id, led := range l.jobs {
		led.handing.Due = true
		if led.candidate.Job == id && led.job.Phase == replica.Open {
			n.Send(led.candidate)
		}
		l.recoverStep(ctx, id, led, recovery.NodeUp{Holder: n.node.Holder(), Session: n.node.Session})
	}
}

// claimed answers a claim.
func (l *Leader) claimed(from *nodeLink, m control.ClaimRequest, r control.ClaimReply) {
	fields := audit.Fields{"job": m.Claim.Job.String(), "rank": fmt.Sprint(m.Claim.Rank), "node": string(from.node.Name), "refused": r.Refused}
	if r.Refused != "" {
		l.audit.Refused("claim", from.node.Name, fields)
	} else {
		fields["incarnation"] = fmt.Sprint(r.Incarnation)
		l.audit.Note("claim", fields)
	}
	from.SendFor(m.Claim.Job, r)
}

// message handles what a registered node says.
func (l *Leader) message(ctx context.Context, from *nodeLink, msg any) {
	name := from.node.Name
	switch m := msg.(type) {
	case replica.NodeReport:
		if led := l.jobs[m.Job]; led != nil && led.job.Phase != replica.Ended && m.Holder == from.node.Holder() && m.Session == from.node.Session {
			led.reports[name] = m
			l.commitEffects(ctx, m.Job, led, led.committer.Reported(m))
			l.recoverStep(ctx, m.Job, led, recovery.Report{NodeReport: m})
			l.fenced(led)
			l.parting(ctx, led)
		}
	case replica.Ledger:
		if led := l.jobs[m.Job]; led != nil {
			kept(ctx, l, led, name, m)
		}
	case replica.Pinned:
		if led := l.jobs[m.Job]; led != nil && m.Holder == from.node.Holder() && m.Session == from.node.Session {
			led.pinnedAt = time.Now()
			l.log.Pinned(name, m)
			led.rhythm.pinned(l.now(), led.candidate, m)
			l.commitEffects(ctx, m.Job, led, led.committer.Pinned(m))
		}
	case replica.Passed:
		if led := l.jobs[m.Job]; led != nil && m.Holder == from.node.Holder() && m.Session == from.node.Session {
			l.log.Passed(name, m)
			l.commitEffects(ctx, m.Job, led, led.committer.Passed(m))
		}
	case control.Evidence: // a node speaks for its own ranks alone; what it thinks of other nodes goes through suspect
		if led := l.jobs[m.Job]; led != nil && !m.Fault.OfNode() && int(m.Fault.Rank) < len(led.job.Ranks) && led.job.Ranks[m.Fault.Rank].Node == name {
			l.recoverStep(ctx, m.Job, led, recovery.Evidence{Fault: m.Fault})
		}
	case control.Rejected:
		if led := l.jobs[m.Job]; led != nil && int(m.Rank) < len(led.job.Ranks) && led.job.Ranks[m.Rank].Node == name {
			l.recoverStep(ctx, m.Job, led, recovery.Rejected{Epoch: m.Epoch, Rank: m.Rank, Incarnation: m.Incarnation, Why: m.Why})
		}
	case control.CorruptCopy:
		if led := l.jobs[m.Job]; led != nil {
			l.recoverStep(ctx, m.Job, led, recovery.Corrupt{From: name, By: m.Node, Part: m.Part, Generation: m.Generation, Root: m.Root})
		}
		if to := l.links.of[m.Node]; to != nil {
			to.Send(m)
		}
	case control.CopyReport: // of its own copies alone
		l.copyReport(ctx, from, m)
	case replica.RegionReport: // of its own ranks alone, as evidence
		if led := l.jobs[m.Job]; led != nil && int(m.Rank) < len(led.job.Ranks) && led.job.Ranks[m.Rank].Node == name {
			l.recoverStep(ctx, m.Job, led, recovery.Regions{RegionReport: m})
		}
	case control.Unreached:
		l.unreached(ctx, name, m)
	case control.PushReport:
		l.pushes(name, m)
	case control.Standing:
		l.voters.Heard(name, m)
	case control.UnheardAnswer:
		l.unheard(name, m)
	case control.AskView:
		l.links.state(from, l.view, l.term, l.now())
	case control.Suspect:
		l.suspect(ctx, name, m)
	case control.ClaimRequest:
		if m.Claim.Holder != from.node.Holder() {
			l.claimed(from, m, control.ClaimReply{ID: m.ID, Refused: fmt.Sprintf("a claim for node %s on the link of node %s", m.Claim.Holder.Node, name)})
			return
		}
		if job, ok := l.view.Jobs[m.Claim.Job]; ok && !l.proved(job.Name, m.Token) {
			l.claimed(from, m, control.ClaimReply{ID: m.ID, Refused: fmt.Sprintf("a claim of rank %d of job %s without the job's token as the leader knows it: give all nodes the same job_secret", m.Claim.Rank, job.Name)})
			return
		}
		l.propose(ctx, m.Claim.Job, m.Claim, fromDriver, func(out lock.Outcome, err error) {
			r := control.ClaimReply{ID: m.ID, Incarnation: out.Incarnation}
			if err == nil {
				err = out.Err
			} else {
				r.Retry = true
			}
			if err != nil {
				r.Refused = err.Error()
			}
			l.claimed(from, m, r)
		})
	case control.CreateRequest:
		l.create(ctx, from, m)
	case control.KVRequest:
		l.rendezvous(from, m)
	case control.KVKept:
		l.kept(from, m)
	case control.ShardReport:
		if led := l.jobs[m.Job]; led != nil {
			l.durableLearns(ctx, led, durable.Shard{From: name, ShardReport: m})
		}
	case control.SaidReport:
		if led := l.jobs[m.Job]; led != nil {
			l.durableLearns(ctx, led, durable.Said{SaidReport: m})
		}
	case control.MarkedReport:
		if led := l.jobs[m.Job]; led != nil {
			l.durableLearns(ctx, led, durable.Marked{From: name, MarkedReport: m})
		}
	case control.SpoolReport:
		l.spools.answer(name, m)
	case control.AgentsReport:
		l.agentsReported(name, m)
	case control.Leaving:
		l.leaves(ctx, from, m)
	case control.EndRequest:
		l.endedBy(ctx, from, m)
	case control.Order:
		l.operators.Order(ctx, name, from, m)
	case control.StatusRequest:
		l.answerStatus(from, m)
	}
}
