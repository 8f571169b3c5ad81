package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// serves gives the leader a link on which the peer says what say writes, and returns the welcome.
func (c *chair) serves(peer replica.NodeName, say func(net.Conn)) (welcome, error) {
	c.t.Helper()
	near, far := net.Pipe()
	var serving sync.WaitGroup
	defer serving.Wait()
	defer near.Close()
	serving.Go(func() { c.serve(c.t.Context(), peer, far) })
	serving.Go(func() { say(near) })
	near.SetReadDeadline(time.Now().Add(patience)) //nolint:errcheck // a dead pipe fails the read
	for {
		select {
		case ev := <-c.in:
			c.handle(c.t.Context(), ev)
		default:
		}
		near.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) //nolint:errcheck // as above
		k, body, err := wire.Read(near, maxLinkFrame)
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			continue // the leader has an event first
		}
		if err != nil || k != kindWelcome {
			return welcome{}, fmt.Errorf("kind %d: %w", k, err)
		}
		return decode[welcome](body)
	}
}

func (c *chair) hello(n replica.Node) (welcome, error) {
	c.t.Helper()
	return c.serves(n.Name, func(conn net.Conn) { wire.Write(conn, kindLinkHello, linkHello{testCluster, n}) })
}

// elected waits until the chair's own Raft leads.
func (c *chair) elected() {
	c.t.Helper()
	late := time.After(patience)
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
	frame, err := wire.Append(nil, kindLinkHello, linkHello{testCluster, life(7, 1)})
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
		"a superseded incarnation": {func(conn net.Conn) { wire.Write(conn, kindLinkHello, linkHello{testCluster, life(5, 3)}) },
			[]string{"incarnation 5 was superseded by 7", "if two daemons run as node n2, stop one"}, replica.Holder{Node: "n2", Incarnation: 5}},
		"another wire version": {func(conn net.Conn) { conn.Write(other) }, []string{"version 2, this program reads 1", "run one release"}, replica.Holder{Node: "n2"}},
		"another cluster":      {func(conn net.Conn) { wire.Write(conn, kindLinkHello, linkHello{foreign, life(7, 1)}) }, []string{foreign.String(), "its own certificate"}, replica.Holder{Node: "n2"}},
		"no hello":             {func(conn net.Conn) { wire.Write(conn, kindBeat, beat{}) }, []string{"instead of a hello"}, replica.Holder{Node: "n2"}},
		"a hello beyond its limit": {func(conn net.Conn) {
			n := life(7, 1)
			n.Labels = map[string]string{"rack": strings.Repeat("x", maxHello)}
			wire.Write(conn, kindLinkHello, linkHello{testCluster, n})
		}, []string{"at most 65536 here"}, replica.Holder{Node: "n2"}},
	} {
		t.Run(what, func(t *testing.T) {
			lines, warned := c.log.count("refused link"), c.log.count(`"level":"warn"`)
			c.leader.refused.clear()
			c.leader.log.retries = limiter{}
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
			if n := c.log.count("refused link") - lines; n != 3 || c.log.count(`"level":"warn"`)-warned != 1 {
				t.Errorf("%d lines, want 3, one of them a warning", n)
			}
			list := c.leader.refused.now(time.Now())
			if len(list) != 1 || list[0].Node != c2.of.Node || list[0].Incarnation != c2.of.Incarnation || list[0].Tries != 3 || !strings.Contains(list[0].Why, c2.says[0]) {
				t.Errorf("status shows %+v", list)
			}
			if list := c.leader.refused.now(time.Now().Add(2 * noLinkKept)); len(list) != 0 {
				t.Errorf("status shows %+v long after the last try", list)
			}
		})
	}
	if w, err := c.hello(life(7, 1)); err != nil || !w.OK {
		t.Errorf("the registered life is answered by %+v, %v", w, err)
	}
	if list := c.leader.refused.now(time.Now()); len(list) != 0 {
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
		c.linkUp(t.Context(), &nodeLink{newLink(near), n})
		return c.log.count(`"event":"superseded"`)
	}
	if n := next(22, 2); n != 0 {
		t.Errorf("%d lines about a daemon that was started anew", n)
	}
	if n := next(23, 1); n != 1 {
		t.Errorf("%d lines about a second life, want 1", n)
	}
}

// The operator of the refused node reads the reason there, and where its own certificate has expired, that.
func TestARefusedNodeKnowsItsOwnCertificate(t *testing.T) {
	log := &lines{}
	at := time.Now().Add(-time.Minute)
	d := &daemon{cfg: &config.Config{Node: "n2", PKI: config.PKI{Cert: filepath.Join("pki", "n2.pem")}}, log: newTestJournal(t, log), id: &pki.Identity{NotAfter: at}}
	refused := fmt.Errorf("welcome: %w", endpoint.ErrIdentity)
	for range 3 {
		d.linkFailed(voterAddr{"a", "a:7000"}, refused)
	}
	d.linkFailed(voterAddr{"b", "b:7000"}, context.DeadlineExceeded)
	list := d.baseStatus().NoLink
	if len(list) != 2 || list[0].Node != "a" || list[0].Tries != 3 || list[1].Why != context.DeadlineExceeded.Error() {
		t.Fatalf("status shows %+v", list)
	}
	for _, text := range []string{"n2.pem expired at " + at.Format(time.RFC3339), "replicad pki renew"} {
		if !strings.Contains(list[0].Why, text) || log.count(text) != 3 {
			t.Errorf("status says %q, the log holds %d lines with %q", list[0].Why, log.count(text), text)
		}
	}
	if n := log.count(`"level":"warn"`); n != 2 {
		t.Errorf("%d warnings, want one for each voter", n)
	}
	d.id.NotAfter = time.Now().Add(time.Hour)
	d.linkFailed(voterAddr{"a", "a:7000"}, refused)
	if why := d.baseStatus().NoLink[0].Why; why != refused.Error() {
		t.Errorf("with a good certificate it says %q", why)
	}
}

// What is remembered of failures is bounded.
func TestNoLinksAreBounded(t *testing.T) {
	var l noLinks
	now := time.Now()
	for i := range 10 * limitKinds {
		l.add(replica.Holder{Node: "n", Incarnation: replica.NodeIncarnation(i + 1)}, "no", now)
	}
	if n := len(l.now(now)); n != limitKinds {
		t.Errorf("%d are kept, want %d", n, limitKinds)
	}
	later := now.Add(2 * noLinkKept)
	l.add(replica.Holder{Node: "m"}, "no", later)
	if list := l.now(later); len(list) != 1 || list[0].Node != "m" {
		t.Errorf("later %+v are kept", list)
	}
}
