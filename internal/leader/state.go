package leader

import (
	"bytes"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// nodeLink is a registered node's link.
type nodeLink struct {
	*control.Link
	node   replica.Node
	raft   control.Standing // as its hello said
	orders sync.Map         // by id of an order under way, the func(OperatorReply) that is told what becomes of it
}

// Await has done called with the answer to an order; from any goroutine.
func (n *nodeLink) Await(id uint64, done func(control.OperatorReply)) { n.orders.Store(id, done) }

// Answer sends what became of an order to who gave it and to the audit log; from any goroutine.
func (n *nodeLink) Answer(id uint64, r control.OperatorReply) {
	if done, ok := n.orders.LoadAndDelete(id); ok {
		done.(func(control.OperatorReply))(r)
	}
	n.Reply(id, r)
}

// Reply sends an operator's answer; from any goroutine.
func (n *nodeLink) Reply(id uint64, r control.OperatorReply) {
	r.ID, r.Refused, r.Text = id, control.Readable(r.Refused), control.Readable(r.Text)
	n.Send(r)
}

// links are those of registered nodes, and what goes to all of them.
type links struct {
	of    map[replica.NodeName]*nodeLink
	index uint64     // of the state that the nodes have, but for commits in short
	whole wholeState // for links that come up
}

// news sends every node what changed since the last news, commits in short, and returns in how many bytes. All get the same frames.
func (a *links) news(news control.Change, short []control.Progress) (sent int) {
	news.After = a.index // nothing happened in between that is worth a message
	if len(news.Nodes)+len(news.Jobs)+len(news.Gone)+len(news.Revoked) > 0 {
		a.index = news.Index
		sent = a.all(nil, news)
	}
	for _, p := range short {
		sent += a.all(nil, p) // nobody's, as the news are: they stay in order
	}
	return sent
}

// all sends every node something of a job or (nil) nobody's, which is encoded once.
func (a *links) all(of, v any) (sent int) {
	frames, err := control.Encode(control.ToNode, v)
	for _, n := range a.of {
		if err != nil {
			n.Close(err)
			continue
		}
		n.SendFrames(of, v, frames)
		for _, f := range frames {
			sent += len(f)
		}
	}
	return sent
}

// wholeFor is for how long an encoded state serves links that come up; what happened since follows it as a change. To encode a large one
// takes a good part of a second, and after an election every node links.
const wholeFor = 5 * time.Second

// wholeState is a state as it was encoded.
type wholeState struct {
	view   lock.View
	frames [][]byte
	at     time.Duration
}

// encode has the whole state ready, as it is or was lately.
func (a *links) encode(v lock.View, term uint64, now time.Duration) error {
	if a.whole.frames != nil && now-a.whole.at < wholeFor {
		return nil
	}
	f, err := control.Encode(control.ToNode, viewMessage(v, term))
	if err == nil {
		a.whole = wholeState{v, f, now}
	}
	return err
}

// state sends a node the whole state, as it was lately and then what happened since, though that be nothing. A node judges what it holds by
// the second, or it would find a rank of its own that was claimed meanwhile superseded.
func (a *links) state(n *nodeLink, v lock.View, term uint64, now time.Duration) {
	if err := a.encode(v, term, now); err != nil {
		n.Close(err)
		return
	}
	n.SendFrames(nil, control.View{}, a.whole.frames)
	news := newsSince(a.whole.view, v)
	for id, job := range v.Jobs {
		if was := a.whole.view.Jobs[id]; was != job {
			news.Jobs = append(news.Jobs, control.JobChanged(was, job, false))
		}
	}
	n.Send(news)
}

// resign ends all of them.
func (a *links) resign(why error) {
	for _, n := range a.of {
		n.Close(why)
	}
	clear(a.of)
	a.index, a.whole = 0, wholeState{}
}

func viewMessage(state lock.View, term uint64) control.View {
	v := control.View{Index: state.Index, Term: term, Era: state.Era, Nodes: state.Nodes, Revoked: state.Revoked}
	for _, j := range state.Jobs {
		v.Jobs = append(v.Jobs, j)
	}
	return v
}

// sameNode tells whether two registrations are of one life and session of a node, reached the same way.
func sameNode(a, b replica.Node) bool {
	return a.Incarnation == b.Incarnation && a.Session == b.Session && a.Addr == b.Addr && slices.Equal(a.Addrs, b.Addrs) && a.Boot == b.Boot && a.Voter == b.Voter && maps.Equal(a.Labels, b.Labels)
}

// nodesSince are the nodes that are new, or not what they were.
func nodesSince(was, is map[replica.NodeName]replica.Node) map[replica.NodeName]replica.Node {
	var out map[replica.NodeName]replica.Node
	for name, n := range is {
		if old, known := was[name]; !known || !sameNode(old, n) {
			if out == nil {
				out = map[replica.NodeName]replica.Node{}
			}
			out[name] = n
		}
	}
	return out
}

// newsSince is what happened between two states, but for the jobs that changed.
func newsSince(was, is lock.View) control.Change {
	c := control.Change{After: was.Index, Index: is.Index, Era: is.Era, Nodes: nodesSince(was.Nodes, is.Nodes)}
	for id := range was.Jobs {
		if is.Jobs[id] == nil {
			c.Gone = append(c.Gone, id)
		}
	}
	if !sameRevoked(was.Revoked, is.Revoked) {
		c.Revoked = is.Revoked
	}
	return c
}

// sameRevoked tells whether two lists of the state are one: the state machine replaces what it changes.
func sameRevoked(a, b []replica.Revocation) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.EqualFunc(a, b, func(x, y replica.Revocation) bool {
		return x.Of(y.Role, y.Name) && x.Epoch == y.Epoch && bytes.Equal(x.Certificate, y.Certificate)
	}))
}
