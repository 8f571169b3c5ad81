package operators

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

const voterTimeout = 15 * time.Second // for a change of voters; what can't be ended by then is undone

// changeVoters lists, adds or removes voters; one change at a time, beside the leader.
func (r *Room) changeVoters(ctx context.Context, from Asker, m control.Order) {
	voters, joining := r.log.Voters(), r.log.Joining()
	at := slices.IndexFunc(voters, func(v consensus.Voter) bool { return v.Name == m.Node })
	joins := slices.ContainsFunc(joining, func(v consensus.Voter) bool { return v.Name == m.Node })
	switch {
	case m.Verb == control.Voters:
		from.Answer(m.ID, control.OperatorReply{Text: r.owner.VotersText()})
		return
	case m.Verb == control.AddVoter && (replica.CheckName(string(m.Node)) != nil || m.Addr == ""):
		from.Answer(m.ID, control.Refusal(fmt.Sprintf("voter %q at %q: want a node's name and the addr of its configuration", m.Node, m.Addr)))
		return
	case m.Verb == control.AddVoter && at >= 0:
		from.Answer(m.ID, control.Refusal(fmt.Sprintf("%s votes already, at %s", m.Node, voters[at].Addr)))
		return
	case m.Verb == control.RemoveVoter && at < 0 && !joins:
		from.Answer(m.ID, control.Refusal(fmt.Sprintf("%q is no voter: see replicad voter list", m.Node)))
		return
	case m.Verb == control.RemoveVoter && len(voters) == 1 && !joins:
		from.Answer(m.ID, control.Refusal(fmt.Sprintf("%s is the only voter: add another first", m.Node)))
		return
	case m.Verb == control.RemoveVoter && m.Node == r.log.ID():
		from.Answer(m.ID, control.Refusal(fmt.Sprintf("%s leads: stop its daemon, and ask again once another leads", m.Node)))
		return
	case !r.voting.CompareAndSwap(false, true):
		from.Answer(m.ID, control.Refusal("another change of voters is under way: ask again when it has ended"))
		return
	}
	r.owner.Beside(func() {
		defer r.voting.Store(false)
		ctx, cancel := context.WithTimeout(ctx, voterTimeout)
		defer cancel()
		var err error
		text := fmt.Sprintf("%s votes now; name it in the voters of every node's configuration before that node's next start", m.Node)
		if m.Verb == control.AddVoter {
			err = r.log.AddVoter(ctx, consensus.Voter{Name: m.Node, Addr: m.Addr})
		} else {
			text = fmt.Sprintf("%s votes no more, and must never vote again under this name; take it out of the voters of every node's configuration before that node's next start", m.Node)
			err = r.log.RemoveVoter(ctx, m.Node)
		}
		switch {
		case errors.Is(err, consensus.ErrUnknown):
			from.Answer(m.ID, control.Refusal(fmt.Sprintf("the outcome is unknown (%v): see replicad voter list", err)))
		case err != nil:
			from.Answer(m.ID, control.Refusal(err.Error()))
		default:
			r.owner.VotersChanged(text)
			from.Answer(m.ID, control.OperatorReply{Text: text})
		}
	})
}
