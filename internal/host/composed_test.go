package host

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/leader"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// refusing is a log in which nothing is proposed with success: what it holds is the test's to say.
type refusing struct{ leader.Log }

func (refusing) ID() replica.NodeName { return "n1" }
func (refusing) Leadership() (replica.NodeName, string, uint64, bool) {
	return "n1", "n1:7000", 7, true
}
func (refusing) Propose(context.Context, replica.Command) (uint64, lock.Outcome, error) {
	return 0, lock.Outcome{}, errors.New("this log takes nothing")
}

// composed is a leader that the test drives beside a host: messages move when the test says so.
type composed struct {
	*leader.Stepped
	t    *testing.T
	view lock.View
}

func compose(t *testing.T, term uint64) *composed {
	t.Helper()
	c := &composed{Stepped: leader.NewStepped(refusing{}, fixture.Cluster, term, recovery.DefaultTiming(), journaltest.New(t, io.Discard)), t: t}
	c.follows(func(v *lock.View) { v.Cluster, v.Era, v.Index = fixture.Cluster, 1, 10 })
	return c
}

// follows has the leader find a newer state in its log.
func (c *composed) follows(change func(*lock.View)) {
	v := c.view
	v.Nodes, v.Jobs = maps.Clone(v.Nodes), maps.Clone(v.Jobs)
	if v.Nodes == nil {
		v.Nodes, v.Jobs = map[replica.NodeName]replica.Node{}, map[replica.JobID]*replica.Job{}
	}
	v.Index++
	change(&v)
	c.view = v
	c.Follow(c.t.Context(), v)
}

func (c *composed) knows(job *replica.Job) {
	c.follows(func(v *lock.View) { v.Jobs[job.ID] = job })
}

// node registers and links one.
func (c *composed) node(name replica.NodeName, inc replica.NodeIncarnation) *control.Link {
	n := replica.Node{Name: name, Incarnation: inc, Session: 1}
	c.follows(func(v *lock.View) { v.Nodes[name] = n })
	return c.link(n)
}

func (c *composed) link(n replica.Node) *control.Link {
	near, far := net.Pipe()
	c.t.Cleanup(func() { near.Close(); far.Close() })
	l := control.NewLink(near, control.ToNode)
	c.Link(c.t.Context(), n, l)
	return l
}

// heardBy takes the messages that wait on a link to a node.
func heardBy(t *testing.T, l *control.Link) (msgs []any) {
	t.Helper()
	var in control.Decoder
	for {
		select {
		case frame := <-l.Out:
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
		default:
			return msgs
		}
	}
}
