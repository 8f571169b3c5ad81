package leader

import (
	"encoding/hex"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// A revoked operator's signature is good for nothing at the leader, by the log alone.
func TestLeaderRefusesRevokedOperators(t *testing.T) {
	th := newThrone(t)
	th.cfg.Operators = func(_, _, signature []byte, _ time.Time) (string, replica.CertEpoch, error) {
		switch string(signature) {
		case "eve's":
			return "eve", 7, nil
		case "eve's next":
			return "eve", 8, nil
		}
		return "", 0, errors.New("nobody's signature")
	}
	n := th.link("n3", 33)
	id := uint64(0)
	ask := func(m control.Order, signature string) control.OperatorReply {
		t.Helper()
		send := func(m control.Order) control.OperatorReply {
			id++
			m.ID = id
			n.say(control.KindOperator, m)
			r, err := control.DecodeAs[control.OperatorReply](n.until(control.KindOperatorReply))
			if err != nil || r.ID != id {
				t.Fatalf("answer %d: %v", r.ID, err)
			}
			return r
		}
		challenge, err := hex.DecodeString(send(control.Order{Verb: control.VerbChallenge}).Text)
		if err != nil {
			t.Fatal(err)
		}
		if signature != "" {
			m.Proof = &control.Proof{Challenge: challenge, Certificate: []byte("certificate"), Signature: []byte(signature)}
		}
		return send(m)
	}
	now := replica.CertEpoch(time.Now().Unix())
	for name, tc := range map[string]struct {
		order     control.Order
		signature string
		want      string
	}{
		"unsigned":           {control.Order{Verb: control.RevokeOperator, Operator: "mallory", Until: 7}, "", "--operator FILE"},
		"of the signer":      {control.Order{Verb: control.RevokeOperator, Operator: "eve", Until: 7}, "eve's", "signed this order"},
		"of nobody":          {control.Order{Verb: control.RevokeOperator, Until: 7}, "eve's", "want 1 to 63 characters"},
		"in no epoch":        {control.Order{Verb: control.RevokeOperator, Operator: "mallory"}, "eve's", "is a clock wrong"},
		"far ahead":          {control.Order{Verb: control.RevokeOperator, Operator: "mallory", Until: now + 100_000}, "eve's", "is a clock wrong"},
		"beyond the limit":   {control.Order{Verb: control.RevokeOperator, Operator: "mallory", Until: 1<<40 + 1, Degrade: true}, "eve's", "want 1 to 1099511627776"},
		"of the leader":      {control.Order{Verb: control.RevokeNode, Node: "n1", Until: 7}, "eve's", "n1 leads"},
		"of an unknown node": {control.Order{Verb: control.RevokeNode, Node: "n9", Until: 7}, "eve's", `no node "n9"`},
	} {
		if r := ask(tc.order, tc.signature); !strings.Contains(r.Refused, tc.want) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if len(th.cons.State().Revoked) != 0 {
		t.Fatalf("revoked %+v", th.cons.State().Revoked)
	}
	if r := ask(control.Order{Verb: control.RevokeOperator, Operator: "eve", Until: 7, Degrade: true}, "eve's"); !strings.Contains(r.Text, "pki operator eve --after 7") {
		t.Errorf("with force: %+v", r)
	}
	if list := th.cons.State().Revoked; len(list) != 1 || !list[0].Of(replica.OperatorRole, "eve") || string(list[0].Signature) != "eve's" || len(list[0].Order) == 0 {
		t.Errorf("in the log %+v", list)
	}
	if r := ask(control.Order{Verb: control.Clear, Node: "n1"}, "eve's"); !strings.Contains(r.Refused, "was revoked") || !strings.Contains(r.Refused, "pki operator eve --after 7") {
		t.Errorf("revoked: %+v", r)
	}
	if r := ask(control.Order{Verb: control.Clear, Node: "n1"}, "eve's next"); !strings.Contains(r.Refused, "no running job excludes") {
		t.Errorf("the next certificate: %+v", r)
	}
}

// A revoked node's link ends with the entry, its old connection registers nothing, and its next certificate ends its death.
func TestRevokedNodeIsTurnedOut(t *testing.T) {
	th := newThrone(t)
	newest := make(chan replica.CertEpoch, 1)
	newest <- 7
	th.cfg.Newest = func(_ replica.Role, name string) replica.CertEpoch {
		e := <-newest
		newest <- e
		if name != "n2" {
			return 100
		}
		return e
	}
	th.cfg.Learn = func(list []replica.Revocation) []replica.Revocation { return list }
	n2 := th.link("n2", 22)
	n2.until(control.KindView)
	th.create("job", replica.JobID{1}, replica.Layout{World: 1, Groups: []replica.GroupID{0}}, replica.Options{})
	if _, out, err := th.cons.Propose(th.ctx, replica.Revoke{Revocation: replica.Revocation{Role: replica.NodeRole, Name: "n2", Epoch: 7}}); err != nil || out.Err != nil {
		t.Fatal(err, out.Err)
	}
	n2.SetReadDeadline(time.Now().Add(fixture.Patience))
	for {
		if _, _, err := wire.Read(n2, control.MaxLinkFrame); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("its link stands")
			}
			break
		}
	}
	dead := func() bool { return len(th.cons.State().Jobs[replica.JobID{1}].Faults) > 0 }
	if !dead() {
		t.Error("no job knows that it is dead")
	}
	hello := func() control.Welcome {
		t.Helper()
		near, far := net.Pipe()
		th.links.Go(func() { th.Serve(th.ctx, "n2", far) })
		defer near.Close()
		s := &seat{near, t}
		s.say(control.KindHello, control.Hello{Cluster: fixture.Cluster, Node: replica.Node{Name: "n2", Incarnation: 22, Session: 1, Addr: "n2:7000"}})
		_, b := s.next()
		w, err := control.DecodeAs[control.Welcome](b)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	if w := hello(); w.OK || !w.Refused || !strings.Contains(w.Reason, "pki renew n2 --after 7") || !dead() {
		t.Errorf("by its old connection: %+v", w)
	}
	<-newest
	newest <- 8
	if w := hello(); !w.OK || dead() {
		t.Errorf("renewed: %+v, dead %v", w, dead())
	}
}

// The leader names the nodes none of whose certificates is good.
func TestRevokedNodesAreNamed(t *testing.T) {
	l := &Leader{cfg: Config{Newest: func(_ replica.Role, name string) replica.CertEpoch {
		return map[string]replica.CertEpoch{"n2": 7, "n3": 8}[name]
	}}}
	for _, name := range []string{"n2", "n3", "n4"} {
		l.view.Revoked = append(l.view.Revoked, replica.Revocation{Role: replica.NodeRole, Name: name, Epoch: 7})
	}
	l.view.Revoked = append(l.view.Revoked, replica.Revocation{Role: replica.OperatorRole, Name: "n5", Epoch: 7})
	l.view.Nodes = map[replica.NodeName]replica.Node{"n1": {}, "n2": {}, "n3": {}, "n4": {}, "n5": {}}
	if got := l.revokedNodes(); !slices.Equal(got, []replica.NodeName{"n2", "n4"}) {
		t.Errorf("%v", got)
	}
}
