package node

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/lock"
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
	signed, err := m.SignedBy(c.id.Cluster, make([]byte, 32), c.operator.Sign)
	if err != nil {
		c.t.Fatal(err)
	}
	r, err := signed.Revocation(c.id.Cluster)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// A daemon believes an operator's signature and no leader's word; what it knows it knows after a restart, from a file that is whole.
func TestRevocationsAreAnOperators(t *testing.T) {
	c, state, log := newCourt(t), t.TempDir(), &fixture.Lines{}
	rechecked := make(chan struct{}, 10)
	tr := newTrust(c.id, state, journaltest.New(t, log), nil, func() { rechecked <- struct{}{} })
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
	by := map[string]int{}
	for _, p := range tr.passedOver() {
		by[p.Operator] = p.Count
		if p.Why == "" || p.Of == "" {
			t.Errorf("passed over: %+v", p)
		}
	}
	if len(by) != 2 || by[""] != 1 || by["operator"] < 3 {
		t.Errorf("passed over, by who is said to have ordered it: %v", by)
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
	again := newTrust(c.load(), state, journaltest.New(t, log), nil, func() {})
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
		if err := newTrust(c.load(), state, journaltest.New(t, log), nil, func() {}).load(); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A node's file of gossip keys is followed; one that can't be read, or that would cut it off, is named once and changes nothing.
// With the key of an operator who is revoked, a node that leads can revoke nobody else. What a node believed before, it believes on; others are
// told that it has to be ordered again, and believe that.
func TestRevocationsByARevokedOperator(t *testing.T) {
	c, state, log := newCourt(t), t.TempDir(), &fixture.Lines{}
	if err := pki.AddOperator(c.dir, "second", time.Now(), 0); err != nil {
		t.Fatal(err)
	}
	const until = 1_900_000_000
	byFirst := c.revocation(control.Order{Verb: control.RevokeNode, Node: "n2", Until: until})
	var err error
	if c.operator, err = pki.LoadOperator(filepath.Join(c.dir, "operator-second.pem")); err != nil {
		t.Fatal(err)
	}
	first := c.revocation(control.Order{Verb: control.RevokeOperator, Operator: "operator", Until: until})
	bySecond := c.revocation(control.Order{Verb: control.RevokeNode, Node: "n2", Until: until})

	was := newTrust(c.load(), state, journaltest.New(t, log), nil, func() {})
	for _, r := range []replica.Revocation{byFirst, first} { // as they came
		if news := was.learn([]replica.Revocation{r}); len(news) != 1 {
			t.Fatalf("%+v is not taken", r)
		}
	}
	was.enforce()
	again := newTrust(c.load(), state, journaltest.New(t, log), nil, func() {})
	if err := again.load(); err != nil || len(again.id.Revoked()) != 2 {
		t.Errorf("after a restart %+v, %v", again.id.Revoked(), err)
	}

	late := newTrust(c.load(), t.TempDir(), journaltest.New(t, log), nil, func() {})
	if news := late.learn([]replica.Revocation{byFirst, first}); len(news) != 1 || news[0].Role != replica.OperatorRole {
		t.Errorf("one who hears both at once believes %+v", news)
	}
	if n := log.Count("have another operator order it again (replicad revoke node n2 --until 1900000000)"); n != 1 {
		t.Errorf("it is said %d times", n)
	}
	for range 3 { // it is told again and again
		late.learn([]replica.Revocation{byFirst, first})
	}
	if p := late.passedOver(); len(p) != 1 || p[0].Operator != "operator" || p[0].Count != 1 || p[0].Of != "node n2, up to epoch 1900000000" || !strings.Contains(p[0].Why, "revoked") {
		t.Errorf("passed over: %+v", p)
	}
	if news := late.learn([]replica.Revocation{bySecond, first}); len(news) != 1 {
		t.Errorf("ordered again: %+v", news)
	}
	if p := late.passedOver(); len(p) != 0 {
		t.Errorf("what is believed by now is said to be passed over: %+v", p)
	}
}

// A leader that lies makes up as many as it likes: few of them are kept, and those are the newest, as one that an operator did order may be.
func TestRevocationsThatAreMadeUpTakeNoMemory(t *testing.T) {
	c := newCourt(t)
	tr := newTrust(c.id, t.TempDir(), journaltest.New(t, &fixture.Lines{}), nil, func() {})
	for i := range 3 * maxPassed {
		tr.learn([]replica.Revocation{{Role: replica.NodeRole, Name: fmt.Sprint("n", i), Epoch: 5}})
	}
	if p := tr.passedOver(); len(tr.passed) != maxPassed || len(p) != 1 || p[0].Count != maxPassed || !strings.Contains(p[0].Of, fmt.Sprint("n", 3*maxPassed-1)) {
		t.Errorf("%d are kept: %+v", len(tr.passed), p)
	}
	if _, kept := tr.passed[passedOver{role: replica.NodeRole, name: "n0"}]; kept {
		t.Error("the oldest is kept")
	}
}

// What no log would have taken is dropped before it is kept or shown, and a line counts it without its text.
func TestRevocationsOfNoFormAreDropped(t *testing.T) {
	c, log := newCourt(t), &fixture.Lines{}
	tr := newTrust(c.id, t.TempDir(), journaltest.New(t, log), nil, func() {})
	good := c.revocation(control.Order{Verb: control.RevokeNode, Node: "n2", Until: 1_900_000_000})
	list := []replica.Revocation{good}
	for _, name := range []string{"", strings.Repeat("n", 1<<20), strings.Repeat("n", replica.MaxNameBytes+1), "n3\nn4 is fine", "\x1b[2Jn3", "n\u202e3"} {
		list = append(list, replica.Revocation{Role: replica.NodeRole, Name: name, Epoch: 5})
	}
	list = append(list, replica.Revocation{Role: replica.OperatorRole + 1, Name: "n3", Epoch: 5}, replica.Revocation{Role: replica.NodeRole, Name: "n3"},
		replica.Revocation{Role: replica.NodeRole, Name: "n3", Epoch: 5, Order: make([]byte, 1<<20)})
	if news := tr.learn(list); len(news) != 1 || news[0].Name != "n2" {
		t.Errorf("%d are news, want the one that an operator signed", len(news))
	}
	if p := tr.passedOver(); len(p) != 0 || len(tr.passed) != 0 {
		t.Errorf("%d are kept", len(tr.passed))
	}
	said, longest := 0, 0
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "revocations that no log takes") && strings.Contains(line, `"level":"warn"`) { // the others are counted with the next one
			said++
		}
		longest = max(longest, len(line))
	}
	if said != 1 || longest > 1<<10 {
		t.Errorf("%d lines name them, want 1; the longest line has %d bytes", said, longest)
	}
}

func TestGossipKeysAreFollowed(t *testing.T) {
	c, log, g := newCourt(t), &fixture.Lines{}, &neighbours{}
	f := &certificate{id: c.id, log: journaltest.New(t, log), gossip: g}
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
	if log.Count("so this node would hear no other node") != 1 || len(g.set) != 3 || string(c.id.GossipKeys()[0]) != string(now[0]) {
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

// FuzzRevoked: a list that is taken is one that a log takes, and is written as it was read.
func FuzzRevoked(f *testing.F) {
	for _, s := range []string{`[]`, `null`, `[{"role":1,"name":"a","epoch":3}]`, `[{"role":2,"name":"ada","epoch":1,"certificate":"AA==","order":"AQ==","signature":"Ag=="}]`, `[{"role":1,"name":"a","epoch":3},{"role":1,"name":"a","epoch":4}]`, `[]x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseRevoked(b)
		if err != nil {
			return
		}
		if err := lock.CheckRevoked(list); err != nil {
			t.Fatalf("%s is taken: %v", b, err)
		}
		again, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := parseRevoked(again); err != nil || len(back) != len(list) || len(list) > 0 && !reflect.DeepEqual(back, list) {
			t.Fatalf("%s comes back as %s: %v", b, again, err)
		}
	})
}
