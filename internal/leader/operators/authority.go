package operators

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// Authority judges who may give an order. Safe for concurrent use.
type Authority struct {
	cluster replica.ClusterID
	state   func() lock.View
	check   Check
	audit   Audit
	given   challenges
}

// Check names who signed an order, of which the certificate, the bytes and the signature are given.
type Check func(certificate, message, signature []byte, now time.Time) (name string, epoch replica.CertEpoch, err error)

// Audit takes what was ordered and what came of it.
type Audit interface {
	Refused(what string, node replica.NodeName, fields audit.Fields)
	Note(what string, fields audit.Fields)
	Some(what string, node replica.NodeName, key string, fields audit.Fields) bool
}

// NewAuthority returns one that has handed out no challenge. state is the newest state that was applied.
func NewAuthority(cluster replica.ClusterID, state func() lock.View, check Check, a Audit) *Authority {
	return &Authority{cluster: cluster, state: state, check: check, audit: a}
}

// Challenge hands out what the next order through a node may be signed over.
func (a *Authority) Challenge(node replica.NodeName, now time.Duration) string {
	return hex.EncodeToString(a.given.hand(node, now))
}

// Forget ends all challenges: another node leads.
func (a *Authority) Forget() { a.given.forget() }

// Admit lets an order pass, in whose name, or reports why not, and writes that down. done does so of what comes of the order.
func (a *Authority) Admit(node replica.NodeName, m control.Order, now time.Duration, date time.Time) (who string, done func(control.OperatorReply), err error) {
	fields := audit.Fields{"verb": m.Verb.String(), "through": string(node), "node": string(m.Node), "job": m.Job, "addr": m.Addr, "why": m.Why, "operator": m.Operator}
	if m.Until != 0 {
		fields["until"] = fmt.Sprint(m.Until)
	}
	if m.Degrade {
		fields["degrade"] = "yes"
	}
	result := maps.Clone(fields)
	who, err = a.authority(node, m, now, date)
	if err != nil {
		fields["by"], fields["refused"] = userOfNode(node, m), err.Error()
		a.audit.Refused("order", node, fields)
		return "", nil, err
	}
	fields["by"], result["by"] = who, who
	written := true
	if m.Proof != nil {
		a.audit.Note("order", fields)
	} else { // a node that gives orders to itself all day must not fill the disk
		written = a.audit.Some("order", node, fmt.Sprint(m.Verb, m.Node, m.Job), fields)
	}
	return who, func(r control.OperatorReply) {
		if result["refused"], result["text"] = r.Refused, r.Text; written {
			a.audit.Note("order done", result)
		}
	}, nil
}

func userOfNode(node replica.NodeName, m control.Order) string {
	return fmt.Sprintf("user %d of node %s", m.UID, node)
}

// authority says in whose name an order is carried out: an operator's, who signed it, or that of the user of an admin socket, who may do
// with it what concerns its own node alone. A node's key by itself is good for no more than that.
func (a *Authority) authority(node replica.NodeName, m control.Order, now time.Duration, date time.Time) (who string, err error) {
	if m.Proof == nil {
		if text := beyond(a.state(), node, m); text != "" {
			return "", fmt.Errorf("%s: %s", text, remedyOperator)
		}
		return userOfNode(node, m), nil
	}
	if !a.given.take(node, m.Proof.Challenge, now) {
		return "", errors.New("the order is signed over a challenge that this leader has not handed out through this node, or that was used or is a minute old: ask again")
	}
	message, err := m.Signed(a.cluster, m.Proof.Challenge)
	if err != nil {
		return "", err
	}
	name, epoch, err := a.check(m.Proof.Certificate, message, m.Proof.Signature, date)
	if err != nil {
		return "", fmt.Errorf("%v is refused: %w", m.Verb, err)
	}
	if upTo, revoked := a.state().Revokes(replica.OperatorRole, name); revoked && epoch <= upTo { // by the log, whoever has heard of it
		return "", fmt.Errorf("%v is refused: the certificate of operator %q, epoch %d, was revoked with all up to epoch %d: `replicad pki operator %s --after %d` makes a valid one", m.Verb, name, epoch, upTo, name, upTo)
	}
	return "operator " + name, nil
}

// beyond says how an order that nobody signed concerns more than the node on whose admin socket it was given. Empty: it does not.
func beyond(v lock.View, node replica.NodeName, m control.Order) string {
	switch m.Verb {
	case control.Lost, control.Drain, control.Clear:
		if m.Node != node {
			return fmt.Sprintf("node %s may not order %v %s", node, m.Verb, m.Node)
		}
		return ""
	case control.EndJob, control.StopJob, control.SaveJob:
		job, ok := v.JobByName(m.Job)
		if !ok || job.Creator == node || slices.ContainsFunc(job.Ranks, func(c replica.Claimed) bool { return c.Incarnation != 0 && c.Node == node }) {
			return "" // of no job it does nothing, and says so
		}
		return fmt.Sprintf("job %s was not created on node %s, which holds none of its ranks, so that node may not order %v", m.Job, node, m.Verb)
	default:
		return fmt.Sprintf("%v concerns the whole cluster", m.Verb)
	}
}

const (
	// MaxChallenges are handed out to a node and not used yet; the oldest goes.
	MaxChallenges = 8
	// ChallengeLife is longer than a command line takes to sign.
	ChallengeLife = time.Minute
)

// challenges are what the next orders through each node may be signed over, oldest first. Safe for concurrent use; zero has none.
type challenges struct {
	mu sync.Mutex
	of map[replica.NodeName][]challenge
}

type challenge struct {
	bytes []byte
	until time.Duration
}

// hand hands out one more to a node.
func (c *challenges) hand(to replica.NodeName, now time.Duration) []byte {
	b := make([]byte, 32)
	rand.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[replica.NodeName][]challenge{}
	}
	out := append(c.of[to], challenge{b, now + ChallengeLife})
	c.of[to] = out[max(0, len(out)-MaxChallenges):]
	return b
}

// take tells whether this one was handed out to the node, not long ago, and nobody has used it yet. It is used up.
func (c *challenges) take(from replica.NodeName, b []byte, now time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.of[from]
	i := slices.IndexFunc(out, func(o challenge) bool { return bytes.Equal(o.bytes, b) })
	if i < 0 {
		return false
	}
	good := now <= out[i].until
	c.of[from] = slices.Delete(out, i, i+1)
	return good
}

func (c *challenges) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of = nil
}

// remedyOperator ends every refusal for want of authority.
const remedyOperator = "sign it as an operator: --operator FILE names the certificate that `replicad pki init` wrote (operator.pem, its key beside it), or REPLICAD_OPERATOR, or pki.operator of the configuration"
