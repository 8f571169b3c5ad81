package leader

import (
	"bytes"
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
func (l *Leader) revoke(ctx context.Context, from *nodeLink, m control.Order, by string) {
	role, name, _ := m.Revokes()
	if err := l.mayRevoke(role, name, m.Until); err != nil {
		from.answer(m.ID, control.Refusal(err.Error()))
		return
	}
	costs := l.revocationCosts(role, name, m.Until, by)
	r, err := m.Revocation(l.cfg.Cluster)
	c := replica.Revoke{Revocation: r}
	if err == nil {
		err = lock.Fits(l.cons.State(), c)
	}
	switch {
	case err != nil:
		from.answer(m.ID, control.Refusal(err.Error()))
		return
	case !l.revoking.CompareAndSwap(false, true):
		from.answer(m.ID, control.Refusal("another revocation is under way: ask again when it has ended"))
		return
	}
	l.work.Go(func() {
		answer := l.doRevoke(ctx, m, c, role, name, costs)
		l.revoking.Store(false) // whoever reads the answer may ask for the next one
		from.answer(m.ID, answer)
	})
}

// doRevoke brings a revocation into the log, unless it costs what the operator has not accepted.
func (l *Leader) doRevoke(ctx context.Context, m control.Order, c replica.Revoke, role replica.Role, name string, costs []string) control.OperatorReply {
	if role == replica.NodeRole {
		if err := l.cons.MajorityWithout(replica.NodeName(name)); err != nil {
			costs = append(costs, err.Error())
		}
	}
	if len(costs) > 0 && !m.Degrade {
		return control.Refusal(fmt.Sprintf("%v %s is not revoked: %s; or accept that with --force", role, name, strings.Join(costs, "; ")))
	}
	ctx, cancel := context.WithTimeout(ctx, ProposeTimeout)
	defer cancel()
	_, out, err := l.cons.Propose(ctx, c)
	switch {
	case err != nil && errors.Is(err, consensus.ErrUnknown):
		return control.Refusal(unknown(err))
	case err != nil:
		return control.Refusal(err.Error())
	case out.Err != nil:
		return control.Refusal(out.Err.Error())
	}
	return control.OperatorReply{Text: l.revokedText(role, name, m.Until)}
}

// mayRevoke refuses what would not be what the operator means, whatever it may cost.
func (l *Leader) mayRevoke(role replica.Role, name string, until replica.CertEpoch) error {
	if err := replica.CheckName(name); err != nil {
		return fmt.Errorf("%v %w", role, err)
	}
	if until == 0 {
		return fmt.Errorf("certificates of %v %s up to epoch 0: want 1 or more: is a clock wrong?", role, name)
	}
	if upTo, some := l.view.Revokes(role, name); some && upTo == until {
		return nil // it is ordered again, by another operator
	}
	if newest := l.cfg.Newest(role, name); newest > until {
		return fmt.Errorf("%v %s has a certificate of epoch %d, later than %d, which would stay valid: revoke with --until %d", role, name, newest, until, newest)
	}
	return nil
}

// revocationCosts are sentences on what is lost with the certificates of a name, but for a majority of voters.
func (l *Leader) revocationCosts(role replica.Role, name string, until replica.CertEpoch, by string) (costs []string) {
	if last := replica.CertEpoch(time.Now().Add(revokeAhead).Unix()); until > last && until != l.cfg.Newest(role, name) { // after 1970
		costs = append(costs, fmt.Sprintf("epoch %d is more than a day from now, and no certificate of this name is good before %s: is a clock wrong?", until, pki.EpochTime(until-replica.CertEpoch(revokeAhead/time.Second)).UTC().Format(time.RFC3339)))
	}
	if role == replica.OperatorRole {
		if by == "operator "+name {
			costs = append(costs, fmt.Sprintf("operator %s signed this order, and could sign no other afterwards: have another operator sign it (`replicad pki operator NAME` makes one)", name))
		}
		return costs
	}
	node := replica.NodeName(name)
	voter := slices.ContainsFunc(l.cons.Voters(), func(v consensus.Voter) bool { return v.Name == node })
	if _, known := l.view.Nodes[node]; !known && !voter {
		costs = append(costs, fmt.Sprintf("no node %q is registered in this cluster (replicad status has the names)", name))
	}
	if node == l.cons.ID() {
		costs = append(costs, fmt.Sprintf("%s leads: stop its daemon, and ask again once another leads", name))
	}
	for _, led := range l.jobs {
		if led.job.Phase == replica.Ended {
			continue
		}
		without := led.loss(node)
		for _, text := range []string{without.Unseated(), without.Cost()} {
			if text != "" {
				costs = append(costs, fmt.Sprintf("job %s: %s", led.job.Name, text))
			}
		}
	}
	slices.Sort(costs)
	return costs
}

func (l *Leader) revokedText(role replica.Role, name string, until replica.CertEpoch) string {
	head := fmt.Sprintf("the certificates of %v %s up to epoch %d (%s) are revoked: every daemon refuses them once it hears of it", role, name, until, pki.EpochTime(until).UTC().Format(time.RFC3339))
	unseen := ""
	if l.cfg.Newest(role, name) == 0 {
		unseen = "\n  this leader has seen none with an epoch since it started: one of a later epoch (openssl x509 -noout -subject -in FILE) would stay valid: revoke again with --until EPOCH"
	}
	if role == replica.OperatorRole {
		return head + fmt.Sprintf("; `replicad pki operator %s --after %d` makes a valid one", name, until) + unseen
	}
	text := head + fmt.Sprintf("; `replicad pki renew %s --after %d` makes a valid one", name, until) + unseen
	if slices.ContainsFunc(l.cons.Voters(), func(v consensus.Voter) bool { return string(v.Name) == name }) {
		text += fmt.Sprintf("\n  it still counts as a voter: `replicad voter remove %s` unless it comes back", name)
	}
	return text + "\n  if its key is in foreign hands, so are the gossip key and job_secret: change them too (docs/nodes.md)"
}

// revokedNodes are the registered nodes of which this leader has seen no certificate that is good.
func (l *Leader) revokedNodes() (names []replica.NodeName) {
	for _, r := range l.view.Revoked {
		if _, registered := l.view.Nodes[replica.NodeName(r.Name)]; registered && r.Role == replica.NodeRole && l.cfg.Newest(r.Role, r.Name) <= r.Epoch {
			names = append(names, replica.NodeName(r.Name))
		}
	}
	return names
}

// turnOut ends the links of nodes that were revoked just now, before anything that is on its way there is taken for a sign of life.
func (l *Leader) turnOut(ctx context.Context, news []replica.Revocation) {
	for _, r := range news {
		name := replica.NodeName(r.Name)
		if n := l.links[name]; n != nil && r.Role == replica.NodeRole { // one with a later certificate links again
			n.Close(fmt.Errorf("the certificate of node %s was revoked up to epoch %d", name, r.Epoch))
			delete(l.links, name)
			l.lost(ctx, name)
		}
	}
}

// deadByRevocation tells whether a node that is here again counts as dead to some job since its certificate was revoked: nothing but its
// registration ends that.
func deadByRevocation(v lock.View, n replica.Node) bool {
	if _, revoked := v.Revokes(replica.NodeRole, string(n.Name)); !revoked {
		return false
	}
	for _, j := range v.Jobs {
		if j.Phase != replica.Ended && lock.HolderGone(j, n.Holder()) {
			return true
		}
	}
	return false
}

// sameRevoked tells whether two lists of the state are one: the state machine replaces what it changes.
func sameRevoked(a, b []replica.Revocation) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.EqualFunc(a, b, func(x, y replica.Revocation) bool {
		return x.Of(y.Role, y.Name) && x.Epoch == y.Epoch && bytes.Equal(x.Certificate, y.Certificate)
	}))
}
