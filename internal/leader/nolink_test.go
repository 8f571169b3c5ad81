package leader

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// serves gives the leader a link on which the peer says what say writes, and returns the welcome.
func (c *chair) serves(peer replica.NodeName, say func(net.Conn)) (control.Welcome, error) {
	c.t.Helper()
	near, far := net.Pipe()
	var serving sync.WaitGroup
	defer serving.Wait()
	defer near.Close()
	serving.Go(func() { c.Serve(c.t.Context(), peer, far) })
	serving.Go(func() { say(near) })
	near.SetReadDeadline(time.Now().Add(fixture.Patience))
	type answer struct {
		welcome control.Welcome
		err     error
	}
	answers := make(chan answer, 1)
	serving.Go(func() { // one read of it all: a deadline between header and body would leave the next read in the middle of a frame
		w, err := control.ReadWelcome(near)
		answers <- answer{w, err}
	})
	for {
		select {
		case ev := <-c.in:
			c.handle(c.t.Context(), ev)
		case a := <-answers:
			return a.welcome, a.err
		}
	}
}

func (c *chair) hello(n replica.Node) (control.Welcome, error) {
	c.t.Helper()
	return c.serves(n.Name, func(conn net.Conn) { control.WriteHello(conn, control.Hello{Cluster: fixture.Cluster, Node: n}) })
}

// elected waits until the chair's own Raft leads.
func (c *chair) elected() {
	c.t.Helper()
	late := time.After(fixture.Patience)
	for {
		if _, _, _, self := c.cons.Leadership(); self {
			return
		}
		select {
		case <-c.cons.Changes():
		case <-time.After(time.Millisecond):
		case <-late:
			c.t.Fatal("no leader")
		}
	}
}

// Whoever gets no link is told why, and so is the operator of the leader: in the log once in a while, and in status.
func TestARefusedLinkSaysWhyAtBothEnds(t *testing.T) {
	c := newChair(t)
	c.elected()
	life := func(inc replica.NodeIncarnation, s replica.Session) replica.Node {
		return replica.Node{Name: "n2", Incarnation: inc, Session: s, Addr: "n2:7000"}
	}
	for i, n := range []replica.Node{life(5, 1), life(5, 2), life(7, 1)} {
		if w, err := c.hello(n); err != nil || !w.OK {
			t.Fatalf("hello %d: %+v, %v", i, w, err)
		}
	}
	frame, err := wire.Append(nil, control.KindHello, control.Hello{Cluster: fixture.Cluster, Node: life(7, 1)})
	if err != nil {
		t.Fatal(err)
	}
	other := append([]byte{}, frame...)
	other[4]++ // its version
	foreign := replica.ClusterID{0xc2}
	for what, c2 := range map[string]struct {
		say  func(net.Conn)
		says []string
		of   replica.Holder
	}{
		"a superseded incarnation": {func(conn net.Conn) {
			control.WriteHello(conn, control.Hello{Cluster: fixture.Cluster, Node: life(5, 3)})
		},
			[]string{"incarnation 5 was superseded by 7", "if two daemons run as node n2, stop one"}, replica.Holder{Node: "n2", Incarnation: 5}},
		"another wire version": {func(conn net.Conn) { conn.Write(other) }, []string{"version 3, this program reads 2", "run one release"}, replica.Holder{Node: "n2"}},
		"another cluster":      {func(conn net.Conn) { control.WriteHello(conn, control.Hello{Cluster: foreign, Node: life(7, 1)}) }, []string{foreign.String(), "its own certificate"}, replica.Holder{Node: "n2"}},
		"no hello":             {func(conn net.Conn) { wire.Write(conn, control.KindBeat, control.Beat{}) }, []string{"instead of a hello"}, replica.Holder{Node: "n2"}},
		"a hello beyond its limit": {func(conn net.Conn) {
			n := life(7, 1)
			n.Labels = map[string]string{"rack": strings.Repeat("x", control.MaxHello)}
			control.WriteHello(conn, control.Hello{Cluster: fixture.Cluster, Node: n})
		}, []string{"at most 65536 here"}, replica.Holder{Node: "n2"}},
		"a label that no configuration may have": {func(conn net.Conn) {
			n := life(7, 2)
			n.Labels = map[string]string{"rack": strings.Repeat("x", 64)}
			control.WriteHello(conn, control.Hello{Cluster: fixture.Cluster, Node: n})
		}, []string{`label "rack"`, "a value of 1 to 63 printable bytes", "replicad config check"}, replica.Holder{Node: "n2", Incarnation: 7}},
		"an address that nobody can dial": {func(conn net.Conn) {
			n := life(7, 2)
			n.Addr = "not an address; $(x)"
			control.WriteHello(conn, control.Hello{Cluster: fixture.Cluster, Node: n})
		}, []string{"not an address", "host:port", "replicad config check"}, replica.Holder{Node: "n2", Incarnation: 7}},
	} {
		t.Run(what, func(t *testing.T) {
			lines, warned := c.log.Count("refused link"), c.log.Count(`"level":"warn"`)
			c.cfg.Refused.Clear()
			c.Leader.log = journaltest.New(t, c.log)
			for range 3 {
				w, err := c.serves("n2", c2.say)
				if err != nil || w.OK || !w.Refused {
					t.Fatalf("answered by %+v, %v", w, err)
				}
				for _, text := range c2.says {
					if !strings.Contains(w.Reason, text) {
						t.Errorf("reason %q does not say %q", w.Reason, text)
					}
				}
			}
			if n := c.log.Count("refused link") - lines; n != 3 || c.log.Count(`"level":"warn"`)-warned != 1 {
				t.Errorf("%d lines, want 3, one of them a warning", n)
			}
			list := c.cfg.Refused.Now(time.Now())
			if len(list) != 1 || list[0].Node != c2.of.Node || list[0].Incarnation != c2.of.Incarnation || list[0].Tries != 3 || !strings.Contains(list[0].Why, c2.says[0]) {
				t.Errorf("status shows %+v", list)
			}
			if list := c.cfg.Refused.Now(time.Now().Add(2 * control.NoLinkKept)); len(list) != 0 {
				t.Errorf("status shows %+v long after the last try", list)
			}
		})
	}
	if n := c.cons.State().Nodes["n2"]; n.Incarnation != 7 || n.Session != 1 {
		t.Errorf("registered is %+v", n)
	}
	if w, err := c.hello(life(7, 1)); err != nil || !w.OK {
		t.Errorf("the registered life is answered by %+v, %v", w, err)
	}
	if list := c.cfg.Refused.Now(time.Now()); len(list) != 0 {
		t.Errorf("status still shows %+v of a node that has a link", list)
	}
}

// Two lives of a node with a link at once are most likely two daemons; a daemon that links anew is none.
func TestASecondLifeIsLogged(t *testing.T) {
	c := newChair(t)
	old := c.node("n2", 22)
	next := func(inc replica.NodeIncarnation, s replica.Session) int {
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close(); far.Close() })
		n := old.node
		n.Incarnation, n.Session = inc, s
		c.linkUp(t.Context(), &nodeLink{Link: control.NewLink(near, control.ToNode), node: n})
		return c.log.Count(`"event":"superseded"`)
	}
	if n := next(22, 2); n != 0 {
		t.Errorf("%d lines about a daemon that was started anew", n)
	}
	if n := next(23, 1); n != 1 {
		t.Errorf("%d lines about a second life, want 1", n)
	}
}

// Each registration is an entry of the log: a node that makes one after the other is held to a pace, and no other node is.
func TestRegistrationsHaveAPace(t *testing.T) {
	var p paces
	now := time.Now()
	some := func(n replica.NodeName, tries int, now time.Time) (may int) {
		for range tries {
			if p.may(n, now) {
				may++
			}
		}
		return may
	}
	if n := some("n1", 100, now); n != registerBurst {
		t.Errorf("%d registrations at once, want %d", n, registerBurst)
	}
	if n := some("n2", 1, now); n != 1 {
		t.Error("another node pays for it")
	}
	if n := some("n1", 100, now.Add(3*registerEvery)); n != 3 {
		t.Errorf("%d after as long as three take, want 3", n)
	}
	if n := some("n1", 100, now.Add(time.Hour)); n != registerBurst {
		t.Errorf("%d after an hour, want %d", n, registerBurst)
	}
	for i := range 3 * registerNodes {
		some(replica.NodeName(fmt.Sprint("x", i)), 1, now.Add(2*time.Hour+time.Duration(i)*time.Millisecond))
	}
	if len(p.due) > registerNodes {
		t.Errorf("%d are remembered, at most %d", len(p.due), registerNodes)
	}

	c := newChair(t)
	c.elected()
	var w control.Welcome
	for s := range replica.Session(registerBurst + 1) {
		var err error
		if w, err = c.hello(replica.Node{Name: "n2", Incarnation: 5, Session: s + 1, Addr: "n2:7000"}); err != nil {
			t.Fatal(err)
		}
	}
	if w.OK || !w.Refused || !strings.Contains(w.Reason, "times within seconds") {
		t.Errorf("one more is answered by %+v", w)
	}
}

// What would not fit is refused before anything of its size lies in the log.
func TestTooMuchIsNotProposed(t *testing.T) {
	c := newChair(t)
	c.accounts.most.Ranks = replica.MaxRanks
	n := c.node("n2", 22)
	c.knows(fixture.Job())
	c.proposed()
	groups := make([]replica.GroupID, 1_000_000)
	c.create(t.Context(), n, control.CreateRequest{ID: 1, Name: "big", Layout: replica.Layout{World: 1_000_000, Groups: groups}})
	if r := fixture.Only[control.CreateReply](told(t, n)); len(r) != 1 || r[0].Retry || !strings.Contains(r[0].Refused, "1000000 ranks in 1 groups") || !strings.Contains(r[0].Refused, "fewer ranks") {
		t.Errorf("a job of a million ranks is answered by %+v", r)
	}
	if r := c.act(t.Context(), control.Order{Job: "job", Why: strings.Repeat("x", 9<<20)}); !strings.Contains(r.Refused, "a reason of 9437184 bytes: want at most 8192") {
		t.Errorf("a reason of 9 MB is answered by %.200q", r.Refused)
	}
	if cmds := c.proposed(); len(cmds) != 0 {
		t.Errorf("proposed %.200v", cmds)
	}
	short := c.entry(proposal{cmd: replica.EndJob{Reason: strings.Repeat("x", 9<<20)}})
	if r := short.(replica.EndJob).Reason; len(r) != lock.MaxReason {
		t.Errorf("a reason of %d bytes goes into the log", len(r))
	}
}
