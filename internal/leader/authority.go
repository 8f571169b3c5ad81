package leader

import (
	"bytes"
	"context"
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
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

const (
	maxChallenges = 8           // handed out to a node and not used yet; the oldest goes
	challengeLife = time.Minute // longer than a command line takes to sign
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
	out := append(c.of[to], challenge{b, now + challengeLife})
	c.of[to] = out[max(0, len(out)-maxChallenges):]
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

// beside does what a node passes on of these; from any goroutine.
func (l *Leader) beside(ctx context.Context, node replica.NodeName, m control.Order) control.OperatorReply {
	if m.Verb == control.VerbChallenge {
		return control.OperatorReply{Text: hex.EncodeToString(l.challenges.hand(node, l.now()))}
	}
	_, done, err := l.admit(node, m)
	if err != nil {
		return control.Refusal(err.Error())
	}
	r := l.act(ctx, m)
	done(r)
	return r
}

// ordered takes any other order: who may not give it is told so, and nothing is done.
func (l *Leader) ordered(ctx context.Context, from *nodeLink, m control.Order) {
	who := ""
	if m.Verb != control.Voters { // which changes nothing
		var done func(control.OperatorReply)
		var err error
		if who, done, err = l.admit(from.node.Name, m); err != nil {
			from.reply(m.ID, control.Refusal(err.Error()))
			return
		}
		from.orders.Store(m.ID, done)
	}
	l.operate(ctx, from, m, who)
}

// admit lets an order pass, in whose name, or says why not, and writes that down; done does so of what comes of it. From any goroutine.
func (l *Leader) admit(node replica.NodeName, m control.Order) (who string, done func(control.OperatorReply), err error) {
	fields := audit.Fields{"verb": m.Verb.String(), "through": string(node), "node": string(m.Node), "job": m.Job, "addr": m.Addr, "why": m.Why, "operator": m.Operator}
	if m.Until != 0 {
		fields["until"] = fmt.Sprint(m.Until)
	}
	if m.Degrade {
		fields["degrade"] = "yes"
	}
	result := maps.Clone(fields)
	who, err = l.authority(node, m)
	if err != nil {
		fields["by"], fields["refused"] = userOfNode(node, m), err.Error()
		l.audit.Refused("order", node, fields)
		return "", nil, err
	}
	fields["by"], result["by"] = who, who
	written := true
	if m.Proof != nil {
		l.audit.Note("order", fields)
	} else { // a node that gives orders to itself all day must not fill the disk
		written = l.audit.Some("order", node, fmt.Sprint(m.Verb, m.Node, m.Job), fields)
	}
	return who, func(r control.OperatorReply) {
		if result["refused"], result["text"] = r.Refused, r.Text; written {
			l.audit.Note("order done", result)
		}
	}, nil
}

func userOfNode(node replica.NodeName, m control.Order) string {
	return fmt.Sprintf("user %d of node %s", m.UID, node)
}

// authority says in whose name an order is carried out: an operator's, who signed it, or that of the user of an admin socket, who may do
// with it what concerns its own node alone. A node's key by itself is good for no more than that.
func (l *Leader) authority(node replica.NodeName, m control.Order) (who string, err error) {
	if m.Proof == nil {
		if text := beyond(l.cons.State(), node, m); text != "" {
			return "", fmt.Errorf("%s: %s", text, remedyOperator)
		}
		return userOfNode(node, m), nil
	}
	if !l.challenges.take(node, m.Proof.Challenge, l.now()) {
		return "", errors.New("the order is signed over a challenge that this leader has not handed out through this node, or that was used or is a minute old: ask again")
	}
	message, err := m.Signed(l.cfg.Cluster, m.Proof.Challenge)
	if err != nil {
		return "", err
	}
	name, epoch, err := l.cfg.Operators(m.Proof.Certificate, message, m.Proof.Signature, time.Now())
	if err != nil {
		return "", fmt.Errorf("%v is refused: %w", m.Verb, err)
	}
	if upTo, revoked := l.cons.State().Revokes(replica.OperatorRole, name); revoked && epoch <= upTo { // by the log, whoever has heard of it
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

// endedBy ends a job for a node that has seen a process of a rank end for good. What a node reports of its launchers is its own word: it
// counts while a rank has never been claimed, for then launchers begin by themselves and nothing has been trained. Later a node speaks for
// ranks that it holds, and for those that this leader has offered it.
func (l *Leader) endedBy(ctx context.Context, from *nodeLink, m control.EndRequest) {
	job, ok := l.view.JobByName(m.Name)
	if !ok {
		return
	}
	fields := audit.Fields{"job": m.Name, "rank": fmt.Sprint(m.Rank), "by": "node " + string(from.node.Name), "why": m.Reason}
	if led := l.jobs[job.ID]; led == nil || !led.mayEnd(from.node.Name, m.Rank) {
		fields["refused"] = "the node neither holds that rank nor runs a process for it"
		l.audit.Refused("job end", from.node.Name, fields)
		return
	}
	l.audit.Note("job end", fields)
	l.propose(ctx, job.ID, replica.EndJob{Job: job.ID, Reason: m.Reason, Keep: true}, fromDriver, nil)
}

func (led *ledJob) mayEnd(node replica.NodeName, r replica.Rank) bool {
	if int(r) >= len(led.job.Ranks) {
		return false
	}
	c := led.job.Ranks[r]
	switch {
	case c.Incarnation == 0:
		return led.reports[node].Launchers > 0
	case c.Node == node:
		return true
	}
	return recovery.Vacated(led.job, r) && led.offered[r] == offered{node, c.Incarnation}
}

// offered is the newest offer of a rank to a node.
type offered struct {
	node   replica.NodeName
	expect replica.Incarnation
}

// standing is what a node's word in the name of a rank counts for at the rendezvous.
type standing uint8

const (
	strange standing = iota // another node holds the rank
	early                   // the rank is elsewhere as far as this leader knows; what it knows may be on its way to change
	own
)

// standing judges it. A rank that is held is spoken for by the node that holds it, in the life in which it claimed. Before the claim, when
// processes meet for the epoch to come, several nodes may run one for the rank: a node that says so counts, and one that says nothing (its
// processes were started by torchrun, say) only while no other says so.
func (l *Leader) standing(led *ledJob, from *nodeLink, r replica.Rank) standing {
	if c := led.job.Ranks[r]; c.Incarnation != 0 && !recovery.Vacated(led.job, r) {
		switch {
		case c.Node != from.node.Name:
			return strange
		case c.NodeIncarnation != from.node.Incarnation:
			return early // this leader reads the entry that registered that life a moment later: it moved the claim, or put it at fault
		}
		return own
	}
	if slices.Contains(led.reports[from.node.Name].Starting, r) {
		return own
	}
	for n, rep := range led.reports {
		if l.links[n] != nil && slices.Contains(rep.Starting, r) {
			return early
		}
	}
	return own
}
