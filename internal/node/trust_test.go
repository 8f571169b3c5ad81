package node

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/membership"
	"github.com/replicad/replicad/replica"
)

// court is a cluster's identity, of node n1, with its first operator.
type court struct {
	t        *testing.T
	id       *pki.Identity
	operator *pki.Operator
	dir      string
}

func newCourt(t *testing.T) *court {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Init(dir, []replica.NodeName{"n1", "n2"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	c := &court{t: t, dir: dir}
	c.id = c.load()
	var err error
	if c.operator, err = pki.LoadOperator(filepath.Join(dir, "operator.pem")); err != nil {
		t.Fatal(err)
	}
	return c
}

// load is the identity as a new start of the daemon has it.
func (c *court) load() *pki.Identity {
	c.t.Helper()
	at := func(name string) string { return filepath.Join(c.dir, name) }
	id, err := pki.Load(at("ca.pem"), at("n1.pem"), at("n1-key.pem"), at("gossip.key"))
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

// revocation is what a leader makes of an order.
func (c *court) revocation(m control.Order) replica.Revocation {
	c.t.Helper()
	signed, err := Sign(m, c.operator, make([]byte, 32))
	if err != nil {
		c.t.Fatal(err)
	}
	l := &leader{cluster: c.id.Cluster}
	cmd, err := l.revocation(signed)
	if err != nil {
		c.t.Fatal(err)
	}
	return cmd.Revocation
}

// A daemon believes an operator's signature and no leader's word; what it knows it knows after a restart, from a file that is whole.
func TestRevocationsAreAnOperators(t *testing.T) {
	c, state, log := newCourt(t), t.TempDir(), &fixture.Lines{}
	rechecked := make(chan struct{}, 10)
	tr := newTrust(c.id, state, newTestJournal(t, log), nil, func() { rechecked <- struct{}{} })
	if err := tr.load(); err != nil {
		t.Fatal(err)
	}
	good := c.revocation(control.Order{Verb: control.RevokeNode, Node: "n2", Until: 1_900_000_000})
	bad := map[string]func(*replica.Revocation){
		"of another node":     func(r *replica.Revocation) { r.Name = "n1" },
		"up to a later epoch": func(r *replica.Revocation) { r.Epoch++ },
		"of an operator":      func(r *replica.Revocation) { r.Role = replica.OperatorRole },
		"without a signature": func(r *replica.Revocation) { r.Signature = nil },
		"by nobody":           func(r *replica.Revocation) { r.Certificate = nil },
		"of another order":    func(r *replica.Revocation) { r.Order[len(r.Order)/2] ^= 1 },
		"that is a drain": func(r *replica.Revocation) {
			*r = c.revocation(control.Order{Verb: control.Drain, Node: "n2", Until: r.Epoch})
			r.Role, r.Name, r.Epoch = replica.NodeRole, "n2", 1_900_000_000
		},
		"of another cluster's": func(r *replica.Revocation) {
			*r = newCourt(t).revocation(control.Order{Verb: control.RevokeNode, Node: "n2", Until: r.Epoch})
		},
	}
	for name, change := range bad {
		r := good
		r.Order = slices.Clone(good.Order)
		change(&r)
		if news := tr.learn([]replica.Revocation{r}); len(news) != 0 || len(c.id.Revoked()) != 0 {
			t.Errorf("one %s is taken: %+v", name, c.id.Revoked())
		}
	}
	if n := log.Count("no operator ordered it"); n == 0 {
		t.Error("nobody is told")
	}
	eve := c.revocation(control.Order{Verb: control.RevokeOperator, Operator: "eve", Until: 5})
	if news := tr.learn([]replica.Revocation{good, eve}); len(news) != 2 || log.Count(`"event":"revoked"`) != 2 {
		t.Errorf("news %+v", news)
	}
	if news := tr.learn([]replica.Revocation{good, eve}); len(news) != 0 {
		t.Errorf("again: %+v", news)
	}
	<-tr.news
	tr.enforce()
	<-rechecked
	file := filepath.Join(state, revokedFile)
	again := newTrust(c.load(), state, newTestJournal(t, log), nil, func() {})
	if err := again.load(); err != nil {
		t.Fatal(err)
	}
	if list := revokedStatus(again.id); !slices.Equal(list, []control.RevokedStatus{{Role: "node", Name: "n2", Epoch: 1_900_000_000}, {Role: "operator", Name: "eve", Epoch: 5}}) {
		t.Errorf("after a restart %+v", list)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"half":             string(whole[:len(whole)/2]),
		"nothing":          "",
		"without a proof":  `[{"role":1,"name":"n2","epoch":7}]`,
		"a field too many": strings.Replace(string(whole), `"role"`, `"rule":1,"role"`, 1),
		"another's epoch":  strings.Replace(string(whole), "1900000000", "1900000001", 1),
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := newTrust(c.load(), state, newTestJournal(t, log), nil, func() {}).load(); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A revoked operator's signature is good for nothing at the leader, by the log alone.
func TestLeaderRefusesRevokedOperators(t *testing.T) {
	th := newThrone(t)
	th.operators = func(_, _, signature []byte, _ time.Time) (string, replica.CertEpoch, error) {
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
		send := func(m control.Order) (r control.OperatorReply) {
			id++
			m.ID = id
			n.say(control.KindOperator, m)
			reply, err := control.DecodeAs[control.StatusReply](n.until(control.KindStatusReply))
			if err == nil {
				err = json.Unmarshal(reply.JSON, &r)
			}
			if err != nil || reply.ID != id {
				t.Fatalf("answer %d: %v", reply.ID, err)
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
	if r := ask(control.Order{Verb: control.Clear, Node: "n1"}, "eve's next"); !strings.Contains(r.Refused, "kept out of no running job") {
		t.Errorf("the next certificate: %+v", r)
	}
}

// No certificate that is good is beyond revocation: up to the newest that was seen without a word, further ahead with --force; the answer says
// where one may be that this leader has not seen.
func TestRevocationReachesWhatIsGood(t *testing.T) {
	ahead := replica.CertEpoch(time.Now().Add(25 * time.Hour).Unix()) // as a CA's clock that is ahead issues one
	seen := map[string]replica.CertEpoch{"n2": ahead, "mallory": 7}
	l := &leader{newest: func(_ replica.Role, name string) replica.CertEpoch { return seen[name] }}
	for name, tc := range map[string]struct {
		of            string
		until         replica.CertEpoch
		refused, cost string
	}{
		"none":             {"eve", 0, "is a clock wrong", ""},
		"below the newest": {"n2", ahead - 1, "--until " + fmt.Sprint(ahead), ""},
		"the newest":       {"n2", ahead, "", ""},
		"far ahead":        {"eve", 17_954_582_951, "", "is a clock wrong"},
		"past the newest":  {"n2", ahead + 1, "", "is a clock wrong"},
		"now":              {"mallory", 8, "", ""},
	} {
		err := l.mayRevoke(replica.OperatorRole, tc.of, tc.until)
		if (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
			t.Errorf("%s: %v, want %q", name, err, tc.refused)
		}
		if err != nil {
			continue
		}
		costs := strings.Join(l.revocationCosts(replica.OperatorRole, tc.of, tc.until, "operator x"), "; ")
		if (costs == "") != (tc.cost == "") || !strings.Contains(costs, tc.cost) {
			t.Errorf("%s: costs %q, want %q", name, costs, tc.cost)
		}
	}
	for name, unseen := range map[string]bool{"eve": true, "mallory": false} {
		if text := l.revokedText(replica.OperatorRole, name, 9); strings.Contains(text, "has seen none") != unseen || unseen && !strings.Contains(text, "--until") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// Status marks a node whose newest certificate is revoked, and no operator of its name.
func TestRevokedNodesAreMarked(t *testing.T) {
	l := &leader{newest: func(_ replica.Role, name string) replica.CertEpoch {
		return map[string]replica.CertEpoch{"n2": 7, "n3": 8}[name]
	}}
	for _, name := range []string{"n2", "n3", "n4"} {
		l.view.Revoked = append(l.view.Revoked, replica.Revocation{Role: replica.NodeRole, Name: name, Epoch: 7})
	}
	l.view.Revoked = append(l.view.Revoked, replica.Revocation{Role: replica.OperatorRole, Name: "n5", Epoch: 7})
	l.view.Nodes = map[replica.NodeName]replica.Node{"n1": {}, "n2": {}, "n3": {}, "n4": {}, "n5": {}}
	if got := l.revokedNodes(); !slices.Equal(got, []replica.NodeName{"n2", "n4"}) {
		t.Errorf("%v", got)
	}
	d := newDesk(t)
	for _, n := range d.statusOf(control.LeaderStatus{Jobs: []control.JobStatus{}, Revoked: []replica.NodeName{"n2"}}).Nodes {
		if n.Revoked != (n.Name == "n2") {
			t.Errorf("%+v", n)
		}
	}
}

// A revoked node's link ends with the entry, its old connection registers nothing, and its next certificate ends its death.
func TestRevokedNodeIsTurnedOut(t *testing.T) {
	th := newThrone(t)
	newest := make(chan replica.CertEpoch, 1)
	newest <- 7
	th.newest = func(_ replica.Role, name string) replica.CertEpoch {
		e := <-newest
		newest <- e
		if name != "n2" {
			return 100
		}
		return e
	}
	th.learn = func(list []replica.Revocation) []replica.Revocation { return list }
	n2 := th.link("n2", 22)
	n2.until(control.KindView)
	th.create("job", replica.JobID{1}, replica.Layout{World: 1, Groups: []replica.GroupID{0}}, replica.Options{})
	if _, out, err := th.cons.Propose(th.ctx, replica.Revoke{Revocation: replica.Revocation{Role: replica.NodeRole, Name: "n2", Epoch: 7}}); err != nil || out.Err != nil {
		t.Fatal(err, out.Err)
	}
	n2.SetReadDeadline(time.Now().Add(patience)) //nolint:errcheck // a pipe takes it
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
		th.links.Go(func() { th.serve(th.ctx, "n2", far) })
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

// A node's file of gossip keys is followed; one that can't be read, or that would cut it off, is named once and changes nothing.
func TestGossipKeysAreFollowed(t *testing.T) {
	c, log, g := newCourt(t), &fixture.Lines{}, &neighbours{}
	f := &certificate{id: c.id, log: newTestJournal(t, log), gossip: g}
	look := func() { f.look(time.Now()) }
	look()
	if len(g.set) != 0 {
		t.Errorf("without a change: %+v", g.set)
	}
	for i, step := range []func(string) ([][]byte, error){pki.AddGossipKey, pki.UseGossipKey, pki.DropGossipKeys} {
		keys, err := step(c.dir)
		if err != nil {
			t.Fatal(err)
		}
		look()
		look()
		if len(g.set) != i+1 || len(g.set[i]) != len(keys) || g.set[i][0].Name != pki.Fingerprint(keys[0]) || string(g.set[i][0].Secret) != string(keys[0]) {
			t.Errorf("step %d: %+v", i, g.set)
		}
	}
	if log.Count(`"event":"gossip_keys"`) != 3 || log.Count(`"without":["n2"]`) == 0 {
		t.Errorf("%s", &log.B)
	}
	now := c.id.GossipKeys()
	for _, k := range now {
		if log.Count(hex.EncodeToString(k)) != 0 {
			t.Error("a key is in the log")
		}
	}
	if err := os.WriteFile(filepath.Join(c.dir, "gossip.key"), []byte(strings.Repeat("ab", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	look()
	look()
	look()
	if log.Count("so this node would hear nobody") != 1 || len(g.set) != 3 || string(c.id.GossipKeys()[0]) != string(now[0]) {
		t.Errorf("%s", &log.B)
	}
}

// neighbours are gossip with a neighbour that has one key, which is none of ours.
type neighbours struct{ set [][]membership.Key }

func (r *neighbours) SetKeys(k []membership.Key) error { r.set = append(r.set, k); return nil }
func (r *neighbours) Members() []membership.Member {
	return []membership.Member{{Name: "n2", Alive: true, Keys: "00000000"}, {Name: "old", Alive: true}, {Name: "dead", Keys: "00000000"}}
}

// Nobody's peers wait for an idle timeout because its gossip key, or anything but its state directory, changed.
func TestResetKeyStays(t *testing.T) {
	dir := t.TempDir()
	first, err := resetKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := resetKey(dir)
	if err != nil || first != again || first == [32]byte{} {
		t.Errorf("%x, then %x, %v", first, again, err)
	}
	if other, err := resetKey(t.TempDir()); err != nil || other == first {
		t.Errorf("another node's is the same, %v", err)
	}
	if st, err := os.Stat(filepath.Join(dir, resetFile)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}
