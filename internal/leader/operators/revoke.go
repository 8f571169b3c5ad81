package operators

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// revokeAhead is how far ahead of the leader's clock a revocation reaches without --force: what it covers is refused however new it is.
const revokeAhead = 24 * time.Hour

// revoke ends the certificates of a node or an operator for an operator, by whom. What would cost the cluster its majority, a job copies or the
// last operator is refused, with nothing done, unless the operator says that it may.
func (r *Room) revoke(ctx context.Context, from Asker, m control.Order, by string) {
	role, name, _ := m.Revokes()
	if err := r.mayRevoke(role, name, m.Until); err != nil {
		from.Answer(m.ID, control.Refusal(err.Error()))
		return
	}
	costs := r.revocationCosts(role, name, m.Until, by)
	revocation, err := m.Revocation(r.cluster)
	c := replica.Revoke{Revocation: revocation}
	if err == nil {
		err = lock.Fits(r.log.State(), c)
	}
	switch {
	case err != nil:
		from.Answer(m.ID, control.Refusal(err.Error()))
		return
	case !r.revoking.CompareAndSwap(false, true):
		from.Answer(m.ID, control.Refusal("another revocation is under way: ask again when it has ended"))
		return
	}
	r.owner.Beside(func() {
		answer := r.doRevoke(ctx, m, c, role, name, costs)
		r.revoking.Store(false) // whoever reads the answer may ask for the next one
		from.Answer(m.ID, answer)
	})
}

// doRevoke brings a revocation into the log, unless it costs what the operator has not accepted.
func (r *Room) doRevoke(ctx context.Context, m control.Order, c replica.Revoke, role replica.Role, name string, costs []string) control.OperatorReply {
	if role == replica.NodeRole {
		if err := r.log.MajorityWithout(replica.NodeName(name)); err != nil {
			costs = append(costs, err.Error())
		}
	}
	if len(costs) > 0 && !m.Degrade {
		return control.Refusal(fmt.Sprintf("%v %s is not revoked: %s; or accept that with --force", role, name, strings.Join(costs, "; ")))
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	_, out, err := r.log.Propose(ctx, c)
	switch {
	case err != nil && errors.Is(err, consensus.ErrUnknown):
		return control.Refusal(Unknown(err))
	case err != nil:
		return control.Refusal(err.Error())
	case out.Err != nil:
		return control.Refusal(out.Err.Error())
	}
	return control.OperatorReply{Text: r.revokedText(role, name, m.Until)}
}

// mayRevoke refuses what would not be what the operator means, whatever it may cost.
func (r *Room) mayRevoke(role replica.Role, name string, until replica.CertEpoch) error {
	if err := replica.CheckName(name); err != nil {
		return fmt.Errorf("%v %w", role, err)
	}
	if until == 0 {
		return fmt.Errorf("certificates of %v %s up to epoch 0: want 1 or more: is a clock wrong?", role, name)
	}
	if upTo, some := r.owner.View().Revokes(role, name); some && upTo == until {
		return nil // it is ordered again, by another operator
	}
	if newest := r.newest(role, name); newest > until {
		return fmt.Errorf("%v %s has a certificate of epoch %d, later than %d, which would stay valid: revoke with --until %d", role, name, newest, until, newest)
	}
	return nil
}

// revocationCosts are sentences on what is lost with the certificates of a name, but for a majority of voters.
func (r *Room) revocationCosts(role replica.Role, name string, until replica.CertEpoch, by string) (costs []string) {
	if last := replica.CertEpoch(r.owner.Date().Add(revokeAhead).Unix()); until > last && until != r.newest(role, name) { // after 1970
		costs = append(costs, fmt.Sprintf("epoch %d is more than a day from now, and no certificate of this name is good before %s: is a clock wrong?", until, pki.EpochTime(until-replica.CertEpoch(revokeAhead/time.Second)).UTC().Format(time.RFC3339)))
	}
	if role == replica.OperatorRole {
		if by == "operator "+name {
			costs = append(costs, fmt.Sprintf("operator %s signed this order, and could sign no other afterwards: have another operator sign it (`replicad pki operator NAME` makes one)", name))
		}
		return costs
	}
	node := replica.NodeName(name)
	voter := slices.ContainsFunc(r.log.Voters(), func(v consensus.Voter) bool { return v.Name == node })
	if _, known := r.owner.View().Nodes[node]; !known && !voter {
		costs = append(costs, fmt.Sprintf("no node %q is registered in this cluster (replicad status has the names)", name))
	}
	if node == r.log.ID() {
		costs = append(costs, fmt.Sprintf("%s leads: stop its daemon, and ask again once another leads", name))
	}
	for _, job := range r.owner.Running() {
		without := r.owner.Without(job.ID, node)
		for _, text := range []string{without.Unseated(), without.Cost()} {
			if text != "" {
				costs = append(costs, fmt.Sprintf("job %s: %s", job.Name, text))
			}
		}
	}
	slices.Sort(costs)
	return costs
}

func (r *Room) revokedText(role replica.Role, name string, until replica.CertEpoch) string {
	head := fmt.Sprintf("the certificates of %v %s up to epoch %d (%s) are revoked: every daemon refuses them once it hears of it", role, name, until, pki.EpochTime(until).UTC().Format(time.RFC3339))
	unseen := ""
	if r.newest(role, name) == 0 {
		unseen = "\n  this leader has seen none with an epoch since it started: one of a later epoch (openssl x509 -noout -subject -in FILE) would stay valid: revoke again with --until EPOCH"
	}
	if role == replica.OperatorRole {
		return head + fmt.Sprintf("; `replicad pki operator %s --after %d` makes a valid one", name, until) + unseen
	}
	text := head + fmt.Sprintf("; `replicad pki renew %s --after %d` makes a valid one", name, until) + unseen
	if slices.ContainsFunc(r.log.Voters(), func(v consensus.Voter) bool { return string(v.Name) == name }) {
		text += fmt.Sprintf("\n  it still counts as a voter: `replicad voter remove %s` unless it comes back", name)
	}
	return text + "\n  if its key is in foreign hands, so are the gossip key and job_secret: change them too (docs/nodes.md)"
}
