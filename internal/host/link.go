package host

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/agents"
	"github.com/replicad/replicad/internal/host/growth"
	"github.com/replicad/replicad/internal/host/mirrors"
	"github.com/replicad/replicad/internal/host/push"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/writer"
	"github.com/replicad/replicad/replica"
)

// linkage is the link to the leader, and what the leader has told this node. Owned by run.
type linkage struct {
	link         *control.Link    // nil while no leader is known
	leader       replica.NodeName // of link
	term         uint64
	era          replica.Era
	nodes        map[replica.NodeName]replica.Node
	informed     bool                  // a view came since start: jobs can be judged
	told         control.Told          // by the leader of link
	asked        bool                  // for a whole view, which has not come
	questions    map[uint64]chan<- any // to the leader, not answered
	unlinked     time.Time             // since when there is no link to a leader; zero: there is one
	saidNoLeader time.Time             // when the log was told so, zero: not yet
	suspects     []control.Suspect     // what the last round of probes gave cause for
}

// send sends the leader something. Without a link it is dropped: resend repeats what still matters.
func (l *linkage) send(v any) {
	if l.link != nil {
		l.link.Send(v)
	}
}

// suspected tells the leader which nodes the last round of probes gave cause to suspect. A leader that comes meanwhile is told
// too (resend): where the lost node led, a witness's word waits for its successor, not for the next round.
func (l *linkage) suspected(s []control.Suspect) {
	l.suspects = s
	for _, s := range s {
		l.send(s)
	}
}

// answered passes an answer of the leader's on to who asked.
func (l *linkage) answered(id uint64, reply any) {
	if answer := l.questions[id]; answer != nil {
		delete(l.questions, id)
		answer <- reply
	}
}

// unanswered ends all that was asked: no answer will come.
func (l *linkage) unanswered() {
	for id, ch := range l.questions {
		delete(l.questions, id)
		close(ch)
	}
}

// unheard are the registered nodes that did not answer this one's newest probe.
func (h *Host) unheard() (names []replica.NodeName) {
	for name := range h.nodes {
		if name != h.self.Name && !h.hears(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// remedy is what it takes to have a leader, as the journal's NoLeader names it.
func (h *Host) remedy() string {
	if h.notVoting != nil {
		if why := h.notVoting(); len(why) > 0 {
			return strings.Join(why, "; ")
		}
	}
	n := len(h.cfg.Voters)
	return fmt.Sprintf("%d of the %d voters must run and reach each other, and this node must reach them", n/2+1, n)
}

func (h *Host) linked(ev LinkUp) {
	h.link, h.leader, h.term = ev.Link, ev.Leader, ev.Welcome.Term
	h.told, h.asked = control.Told{}, false
	h.lastReport = time.Time{}
	h.link.Full = func(of any) { h.log.LeftOut(string(ev.Leader), of) }
	h.log.Linked(ev.Leader, ev.Welcome.Term)
	if !h.saidNoLeader.IsZero() {
		h.log.LeaderAgain(ev.Leader, time.Since(h.unlinked))
	}
	h.unlinked, h.saidNoLeader = time.Time{}, time.Time{}
	h.resend()
}

func (h *Host) linkLost(ev LinkDown) {
	if h.link != ev.Link {
		return // it was replaced
	}
	h.link, h.unlinked = nil, time.Now()
	h.log.Unlinked(ev.Err)
	for _, j := range h.jobs.all {
		j.Unlinked(time.Now())
	}
	h.unanswered()
}

func (h *Host) leaderSays(msg any) {
	switch msg := msg.(type) {
	case control.View:
		h.learn(msg.Revoked)
		h.told, h.asked = control.ToldBy(msg), false // it may be some seconds old; a change comes right behind it
	case control.Change:
		h.changed(msg)
	case control.Progress:
		if job := h.told.Jobs[msg.Job]; job != nil {
			h.told.Jobs[msg.Job] = msg.After(job)
		}
		if j := h.jobs.of(msg.Job); j != nil {
			j.Progressed(msg)
		}
	case replica.Candidate:
		if j := h.jobs.of(msg.Job); j != nil {
			j.Name(msg)
		}
	case replica.Ledger:
		if j := h.jobs.of(msg.Job); j != nil {
			j.TakeClocks(msg)
		}
	case control.Offers:
		if j := h.jobs.of(msg.Job); j != nil {
			h.launchers.Of(j).Offered(msg, time.Now())
		}
	case control.CaptureOrder:
		if j := h.jobs.of(msg.Job); j != nil {
			j.CaptureNow(msg.Generation)
		}
	case control.MirrorOrder:
		h.notify(h.push, push.Asked{MirrorOrder: msg})
	case control.UnheardQuestion:
		h.send(control.UnheardAnswer{ID: msg.ID, Nodes: h.unheard()})
	case control.GrowthRefused:
		h.notify(h.growing, growth.Refused{Job: msg.Job, Rank: msg.Rank, Ask: msg.Ask, Why: msg.Why})
	case control.RelayOrder:
		h.notify(h.mirrors, mirrors.Relay{RelayOrder: msg})
	case control.CorruptCopy:
		if j := h.jobs.of(msg.Job); j != nil {
			j.Recheck(msg)
		}
	case control.RegionsOrder:
		h.regions(msg)
	case control.Tell:
		if j := h.jobs.of(msg.Job); j != nil {
			j.Told(msg.Text, time.Now())
		}
	case control.ClaimReply:
		h.admission.Claimed(msg)
	case control.CreateReply:
		h.launchers.Created(msg, time.Now())
	case control.AgentRound:
		h.notify(h.agents, agents.Told{AgentRound: msg})
	case control.KVReply:
		h.desk.Reply(msg)
	case control.SpoolOrder:
		h.hands.Spooled(msg)
	case control.MarkerOrder:
		h.notify(h.writer, writer.Ordered{MarkerOrder: msg})
	case control.WriteTurn:
		h.notify(h.writer, writer.Turned{WriteTurn: msg})
	case control.MayLeave:
		h.leaving.may(msg)
	case control.StatusReply:
		h.answered(msg.ID, msg)
	case control.OperatorReply:
		h.answered(msg.ID, msg)
	}
}

// viewed takes over the leader's state and brings everything local in line with it.
func (h *Host) viewed(v control.View) {
	h.era, h.nodes, h.informed = v.Era, v.Nodes, true
	known := make(map[replica.JobID]bool, len(v.Jobs))
	for _, record := range v.Jobs {
		h.jobs.follow(record)
		known[record.ID] = true
	}
	for id, j := range h.jobs.all {
		if !known[id] {
			j.Unknown(v.Index)
		}
	}
	h.notify(h.adoption, act.Changed{})
	for _, j := range h.jobs.all {
		j.Reconcile()
	}
	h.desk.JobsTold() // behind reconcile: who waited is held against the fences that it raised
	h.launchers.Serve(time.Now())
	h.admission.Serve(time.Now())
	for id, j := range h.jobs.all {
		if !known[id] && v.Index >= j.Job.LastIndex && len(j.View().Arenas()) == 0 && !h.launchers.Launching(j.Job.Name) {
			h.jobs.drop(id)
		}
	}
}

// changed makes of the state that the leader told last the one that it tells now. A change that does not follow what is known here is
// passed over whole, and the whole state asked for.
func (h *Host) changed(c control.Change) {
	h.learn(c.Revoked) // whatever it follows: revocations are never taken back
	if h.asked {
		return // it comes
	}
	v, err := h.told.After(c)
	if err != nil {
		h.log.Failed("view", fmt.Sprintf("change from entry %d to %d by leader %s", c.After, c.Index, h.leader), err.Error()+": the whole state is asked for")
		h.asked = true
		h.send(control.AskView{})
		return
	}
	v.Term = h.term
	h.told = control.ToldBy(v)
	h.viewed(v)
}

// resend repeats to a new leader whatever waits for an answer.
func (h *Host) resend() {
	for _, j := range h.jobs.all { // first of all: since when things last goes with what is said of them
		if l, ok := j.Clocks(); ok {
			h.send(l)
		}
	}
	h.admission.Resend()
	h.launchers.Resend()
	for _, s := range h.suspects {
		h.send(s)
	}
	if h.leaving.words != nil {
		h.send(control.Leaving{Goes: h.leaving.goes})
	}
	h.notify(h.agents, act.Linked{}) // before what the desk repeats, which ends with that all is said: a round may begin then
	h.desk.Resend()
	h.notify(h.scrub, act.Linked{})
	h.notify(h.writer, act.Linked{})
	for _, j := range h.jobs.all {
		j.Linked()
	}
}

// leaderless has the log name that no leader is heard, and why, once that has lasted longer than an election, and again now and then. The
// launchers here print it once.
func (h *Host) leaderless(now time.Time) {
	if h.link == nil && now.Sub(h.unlinked) >= noLeaderAfter && (h.saidNoLeader.IsZero() || now.Sub(h.saidNoLeader) >= noLeaderAgain) {
		var why []string
		if h.notVoting != nil {
			why = h.notVoting()
		}
		remedy := h.log.NoLeader(now.Sub(h.unlinked), h.cfg.Voters, why)
		for _, j := range h.jobs.all {
			if h.saidNoLeader.IsZero() && !room.Over(j.Job) {
				h.launchers.Of(j).Note(fmt.Sprintf("warning: no leader for %v: nothing is committed, and no lost rank is replaced; training goes on: %s", now.Sub(h.unlinked).Round(time.Second), remedy))
			}
		}
		h.saidNoLeader = now
	}
}
