// Package leadertest makes leaders for the tests of what talks to one: the real rules, over a log that the test writes itself.
package leadertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"testing"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/leader"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// refusing is a log in which nothing is proposed with success: what it holds is the test's to say.
type refusing struct{ leader.Log }

func (refusing) ID() replica.NodeName { return "n1" }
func (refusing) Voters() []consensus.Voter {
	return []consensus.Voter{{Name: "n1", Addr: "n1:7000"}}
}
func (refusing) Joining() []consensus.Voter { return nil }
func (refusing) Leadership() (replica.NodeName, string, uint64, bool) {
	return "n1", "n1:7000", 7, true
}
func (refusing) Propose(context.Context, replica.Command) (uint64, lock.Outcome, error) {
	return 0, lock.Outcome{}, errors.New("this log takes nothing")
}

// Leader is a leader that the test drives: messages move when the test says so.
type Leader struct {
	*leader.Stepped
	View lock.View // the state that it applied last

	t *testing.T
}

// New returns a leader of fixture.Cluster in a term, which knows no node and no job.
func New(t *testing.T, term uint64) *Leader {
	t.Helper()
	l := &Leader{Stepped: leader.NewStepped(refusing{}, fixture.Cluster, term, config.Default().Timing, journaltest.New(t, io.Discard)), t: t}
	l.Applies(func(v *lock.View) { v.Cluster, v.Era, v.Index = fixture.Cluster, 1, 10 })
	return l
}

// Applies has the leader find a newer state in its log.
func (l *Leader) Applies(change func(*lock.View)) {
	v := l.View
	v.Nodes, v.Jobs = maps.Clone(v.Nodes), maps.Clone(v.Jobs)
	if v.Nodes == nil {
		v.Nodes, v.Jobs = map[replica.NodeName]replica.Node{}, map[replica.JobID]*replica.Job{}
	}
	v.Index++
	change(&v)
	l.View = v
	l.Follow(l.t.Context(), v)
}

// Knows has the leader find a job, or a job's newer state, in its log.
func (l *Leader) Knows(job *replica.Job) {
	l.Applies(func(v *lock.View) { v.Jobs[job.ID] = job })
}

// Node registers a node, and returns the leader's end of its link.
func (l *Leader) Node(name replica.NodeName, inc replica.NodeIncarnation) *control.Link {
	n := replica.Node{Name: name, Incarnation: inc, Session: 1}
	l.Applies(func(v *lock.View) { v.Nodes[name] = n })
	return l.Linked(n)
}

// Linked links a registered node, and returns the leader's end.
func (l *Leader) Linked(n replica.Node) *control.Link {
	near, far := net.Pipe()
	l.t.Cleanup(func() { near.Close(); far.Close() })
	end := control.NewLink(near, control.ToNode)
	l.Link(l.t.Context(), n, end)
	return end
}

// Said takes the messages that wait on the leader's end of a link, without the welcome.
func Said(t *testing.T, end *control.Link) (msgs []any) {
	t.Helper()
	var in control.Decoder
	for frame := end.Take(); frame != nil; frame = end.Take() {
		k, b, err := wire.Read(bytes.NewReader(frame), control.MaxLinkFrame)
		if err != nil {
			t.Fatal(err)
		}
		if k == control.KindWelcome {
			continue
		}
		msg, err := in.Decode(k, b)
		if err != nil {
			t.Fatalf("kind %d: %v", k, err)
		}
		if msg != nil {
			msgs = append(msgs, msg)
		}
	}
	return msgs
}
