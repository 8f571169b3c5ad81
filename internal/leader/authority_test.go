package leader

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/leader/operators"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

// An office is a leader to whom n1, n2 and n3 are linked. The job was created on n1, which holds rank 0; n2 holds rank 1, and n3 has
// nothing to do with it.
type office struct {
	*chair
	by map[replica.NodeName]*nodeLink
	id uint64
}

func newOffice(t *testing.T, change func(*replica.Job)) *office {
	t.Helper()
	c := newChair(t)
	o := &office{chair: c, by: map[replica.NodeName]*nodeLink{"n1": c.node("n1", 11), "n2": c.node("n2", 22), "n3": c.node("n3", 33)}}
	job := fixture.Job()
	job.Creator = "n1"
	if change != nil {
		change(job)
	}
	c.knows(job)
	c.proposed()
	return o
}

// gives has a node pass an order on, and returns the answer, if there is one at once.
func (o *office) gives(from replica.NodeName, m control.Order) control.OperatorReply {
	o.t.Helper()
	told(o.t, o.by[from])
	o.id++
	m.ID, m.UID = o.id, 1000
	if m.Besides() {
		return o.beside(o.t.Context(), from, m)
	}
	o.message(o.t.Context(), o.by[from], m)
	replies := fixture.Only[control.OperatorReply](told(o.t, o.by[from]))
	if len(replies) == 0 {
		return control.OperatorReply{}
	}
	if len(replies) > 1 || replies[0].ID != o.id {
		o.t.Fatalf("%d answers, the first to %d", len(replies), replies[0].ID)
	}
	return replies[0]
}

// A node's key used to be good for every order: one that ran nothing ended jobs, drained others and changed the voters.
func TestUnsignedOrdersConcernTheirOwnNodeAlone(t *testing.T) {
	foreign := map[string]struct {
		from  replica.NodeName
		order control.Order
	}{
		"another's memory":         {"n3", control.Order{Verb: control.Lost, Node: "n2", Why: "x"}},
		"drain of another":         {"n1", control.Order{Verb: control.Drain, Node: "n2", Degrade: true}},
		"clearing of another":      {"n1", control.Order{Verb: control.Clear, Node: "n2"}},
		"a voter more":             {"n1", control.Order{Verb: control.AddVoter, Node: "n1", Addr: "10.0.0.1:7400"}},
		"a voter less":             {"n1", control.Order{Verb: control.RemoveVoter, Node: "n2"}},
		"what this leader doesn't": {"n1", control.Order{Verb: 200}},
	}
	for name, tc := range foreign {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t, func(j *replica.Job) { j.Quarantined = []replica.NodeName{"n2"} })
			before := o.cons.Voters()
			if r := o.gives(tc.from, tc.order); !strings.Contains(r.Refused, "--operator FILE") || !strings.Contains(r.Refused, "REPLICAD_OPERATOR") {
				t.Errorf("answered %+v", r)
			}
			if cmds := o.proposed(); len(cmds) != 0 || o.operators.Busy() || !slices.Equal(o.cons.Voters(), before) {
				t.Errorf("and yet it proposes %v", cmds)
			}
		})
	}
	ours := map[string]struct {
		from  replica.NodeName
		order control.Order
		want  replica.Command
	}{
		"its own drain":    {"n3", control.Order{Verb: control.Drain, Node: "n3", Degrade: true}, replica.Quarantine{Job: fixture.JobID, Node: "n3"}},
		"its own clearing": {"n2", control.Order{Verb: control.Clear, Node: "n2"}, replica.Quarantine{Job: fixture.JobID, Node: "n2", Clear: true}},
	}
	for name, tc := range ours {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t, func(j *replica.Job) {
				if tc.order.Verb == control.Clear {
					j.Quarantined = []replica.NodeName{"n2"}
				}
			})
			r := o.gives(tc.from, tc.order)
			if cmds := o.proposed(); !slices.ContainsFunc(cmds, func(c replica.Command) bool { return reflect.DeepEqual(c, tc.want) }) {
				t.Errorf("proposes %v, want %+v; %+v", cmds, tc.want, r)
			}
		})
	}
	o := newOffice(t, nil)
	if r := o.gives("n3", control.Order{Verb: control.Voters}); !strings.Contains(r.Text, "VOTER") {
		t.Errorf("the list of voters, which changes nothing: %+v", r)
	}
	if r := o.gives("n3", control.Order{Verb: control.EndJob, Job: "none"}); !strings.Contains(r.Refused, `no job "none" runs`) {
		t.Errorf("a job that is not there: %+v", r)
	}
	if r := o.gives("n3", control.Order{Verb: control.Lost, Node: "n3"}); !strings.Contains(r.Refused, "n3 is connected") {
		t.Errorf("its own memory: %+v", r)
	}
}

// An operator's office has a cluster's certificates.
func withOperators(t *testing.T, o *office) *pki.Operator {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Init(dir, []replica.NodeName{"n1"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	id, err := pki.Load(at("ca.pem"), at("n1.pem"), at("n1-key.pem"), at("gossip.key"))
	if err != nil {
		t.Fatal(err)
	}
	o.cfg.Cluster, o.cfg.Operators = id.Cluster, id.CheckOperator
	o.authority, o.operators = newOperators(o.Leader)
	operator, err := pki.LoadOperator(at("operator.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return operator
}

// sign signs an order over a new challenge of the leader.
func (o *office) sign(by *pki.Operator, through replica.NodeName, m control.Order) control.Order {
	o.t.Helper()
	r := o.gives(through, control.Order{Verb: control.VerbChallenge})
	challenge, err := hex.DecodeString(r.Text)
	if err != nil || len(challenge) != 32 {
		o.t.Fatalf("a challenge: %+v, %v", r, err)
	}
	if m, err = m.SignedBy(o.cfg.Cluster, challenge, by.Sign); err != nil {
		o.t.Fatal(err)
	}
	return m
}

// An order that an operator signed is carried out, once, through the node that it was given on and by the leader whose challenge it has.
func TestSignedOrders(t *testing.T) {
	drained := func(j *replica.Job) { j.Quarantined = []replica.NodeName{"n2"} }
	o := newOffice(t, drained)
	operator := withOperators(t, o)
	order := control.Order{Verb: control.Clear, Node: "n2"}
	signed := o.sign(operator, "n3", order)
	if r := o.gives("n3", signed); r.Refused != "" {
		t.Errorf("refused: %s", r.Refused)
	}
	if clears := proposalsOf[replica.Quarantine](o.chair); len(clears) != 1 || clears[0].Node != "n2" || !clears[0].Clear {
		t.Errorf("proposed %+v", clears)
	}
	refused := func(what string, through replica.NodeName, m control.Order, says string) {
		t.Helper()
		if r := o.gives(through, m); !strings.Contains(r.Refused, says) {
			t.Errorf("%s: %+v, want a refusal with %q", what, r, says)
		}
		if cmds := o.proposed(); len(cmds) != 0 {
			t.Errorf("%s: and yet it proposes %v", what, cmds)
		}
	}
	refused("heard, and given once more", "n3", signed, "challenge")
	refused("given through another node", "n2", o.sign(operator, "n3", order), "challenge")
	late := o.sign(operator, "n3", order)
	o.pass(operators.ChallengeLife + time.Second)
	refused("kept for long", "n3", late, "challenge")

	kept := o.sign(operator, "n3", order)
	o.resign(fmt.Errorf("another leads"))
	o.active = true
	for name, inc := range map[replica.NodeName]replica.NodeIncarnation{"n1": 11, "n2": 22, "n3": 33} {
		if o.view.Nodes == nil {
			o.view.Nodes, o.view.Jobs = map[replica.NodeName]replica.Node{}, map[replica.JobID]*replica.Job{}
		}
		o.by[name] = o.chair.node(name, inc)
	}
	o.knows(fixture.Changed(fixture.Job(), drained))
	o.proposed()
	refused("kept for the next leader", "n3", kept, "challenge")

	for range operators.MaxChallenges {
		kept = o.sign(operator, "n3", order)
	}
	first := kept
	for range operators.MaxChallenges {
		o.sign(operator, "n3", order)
	}
	refused("of too many challenges the first", "n3", first, "challenge")

	stranger := withOperators(t, newOffice(t, nil))
	refused("of another cluster's operator", "n3", o.sign(stranger, "n3", order), "node clear is refused")
	forged := o.sign(operator, "n3", order)
	forged.Proof.Signature = slices.Clone(o.sign(operator, "n3", order).Proof.Signature)
	refused("with the signature of another challenge", "n3", forged, "signature")
}

// The end of a job needs no free leader, and the same authority as every other order; here by a link and on the leader itself.
func TestEndsAreOrdersToo(t *testing.T) {
	th := newThrone(t)
	th.cfg.Operators = func(_, _, signature []byte, _ time.Time) (string, replica.CertEpoch, error) {
		if string(signature) != "eve's" {
			return "", 0, errors.New("nobody's signature")
		}
		return "eve", 1, nil
	}
	for i, name := range []string{"first", "second", "third"} {
		th.create(name, replica.JobID{byte(i + 1)}, replica.Layout{World: 1, Groups: []replica.GroupID{0}}, replica.Options{}) // by n1
	}
	n := th.link("n3", 33)
	free := th.busy()
	defer free()
	id := uint64(0)
	ask := func(m control.Order) control.OperatorReply {
		t.Helper()
		id++
		m.ID = id
		n.say(control.KindOperator, m)
		r, err := control.DecodeAs[control.OperatorReply](n.until(control.KindOperatorReply))
		if err != nil || r.ID != id {
			t.Fatalf("answer %d: %v", r.ID, err)
		}
		return r
	}
	if r := ask(control.Order{Verb: control.EndJob, Job: "first", Why: "x"}); !strings.Contains(r.Refused, "--operator FILE") {
		t.Errorf("by a node that has nothing to do with it: %+v", r)
	}
	challenge, err := hex.DecodeString(ask(control.Order{Verb: control.VerbChallenge}).Text)
	if err != nil {
		t.Fatal(err)
	}
	if r := ask(control.Order{Verb: control.EndJob, Job: "first", Why: "x", Proof: &control.Proof{Challenge: challenge, Signature: []byte("eve's")}}); r.Refused != "" {
		t.Errorf("signed: %+v", r)
	}
	if r, leads := th.BesideHere(t.Context(), control.Order{Verb: control.EndJob, Job: "second", Why: "x"}); r.Refused != "" || !leads {
		t.Errorf("where it was created, and on the leader: %+v, %v", r, leads)
	}
	if r, _ := th.BesideHere(t.Context(), control.Order{Verb: control.VerbChallenge}); len(r.Text) != 64 {
		t.Errorf("a challenge on the leader: %+v", r)
	}
	for _, j := range th.cons.State().Jobs {
		if ended := j.Phase == replica.Ended; ended == (j.Name == "third") {
			t.Errorf("job %s is %v", j.Name, j.Phase)
		}
	}
}

// A job is remembered as that of the node whose launcher asked for it, which the link says and not the node.
func TestCreatorIsTheLinks(t *testing.T) {
	o := newOffice(t, nil)
	o.message(t.Context(), o.by["n3"], control.CreateRequest{ID: 1, Name: "new", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}})
	if jobs := proposalsOf[replica.CreateJob](o.chair); len(jobs) != 1 || jobs[0].Creator != "n3" {
		t.Errorf("proposed %+v", jobs)
	}
}

// What is signed is the whole order: whatever a node on its way changes is refused.
func TestEveryFieldIsSigned(t *testing.T) {
	o := newOffice(t, nil)
	operator := withOperators(t, o)
	order := control.Order{Verb: control.Clear, Job: "job", Why: "enough", Node: "n1", Addr: "10.0.0.1:7400"}
	for i := range reflect.TypeFor[control.Order]().NumField() {
		name := reflect.TypeFor[control.Order]().Field(i).Name
		if slices.Contains([]string{"ID", "UID", "Proof"}, name) { // the daemon's own
			continue
		}
		signed := o.sign(operator, "n3", order)
		n := uint64(50)
		fixture.Fill(reflect.ValueOf(&signed).Elem().Field(i), &n)
		if r := o.gives("n3", signed); !strings.Contains(r.Refused, "signature is not that of operator") {
			t.Errorf("%s was changed on the way: %+v", name, r)
		}
	}
	if cmds := o.proposed(); len(cmds) != 0 {
		t.Errorf("proposed %v", cmds)
	}
}

// The end of a job for the end of a rank's process is believed of the node that holds the rank, that was offered it, or that runs launchers
// while it has never been held.
func TestEndOfARankIsItsNodesToSay(t *testing.T) {
	dead := func(j *replica.Job) {
		*j = *fixture.Closed(j)
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 1, Incarnation: 5}}
	}
	opening := func(j *replica.Job) {
		j.Phase, j.Ranks[1] = replica.Opening, replica.Claimed{}
	}
	for name, tc := range map[string]struct {
		change  func(*replica.Job)
		reports replica.NodeReport
		offered bool
		from    replica.NodeName
		rank    replica.Rank
		ends    bool
	}{
		"held there":                            {from: "n2", rank: 1, ends: true},
		"held elsewhere":                        {from: "n2", rank: 0},
		"held elsewhere, though it offers some": {from: "n3", rank: 1, reports: replica.NodeReport{Launchers: 1, Offers: 3, Starting: []replica.Rank{1}}},
		"no such rank":                          {from: "n2", rank: 2},
		"lost there":                            {change: dead, from: "n2", rank: 1, ends: true},
		"lost elsewhere":                        {change: dead, from: "n3", rank: 1, reports: replica.NodeReport{Launchers: 1, Offers: 3, Starting: []replica.Rank{1}}},
		"held elsewhere, was offered to it":     {from: "n3", rank: 1, offered: true}, // and its holder went on
		"lost elsewhere, offered to it":         {change: dead, from: "n3", rank: 1, offered: true, ends: true},
		"never held, no launcher":               {change: opening, from: "n3", rank: 1},
		"never held, a launcher there":          {change: opening, from: "n3", rank: 1, reports: replica.NodeReport{Launchers: 1}, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t, tc.change)
			led := o.jobs[fixture.JobID]
			led.reports[tc.from] = tc.reports
			if tc.offered {
				led.offered = map[replica.Rank]offered{1: {"n3", 5}}
			}
			o.message(t.Context(), o.by[tc.from], control.EndRequest{Name: "job", Reason: "status 78", Rank: tc.rank})
			if ends := proposalsOf[replica.EndJob](o.chair); (len(ends) == 1) != tc.ends {
				t.Errorf("proposed %v, want an end: %v", ends, tc.ends)
			}
		})
	}
}

// What the leader offers is remembered for the claim that it was offered at.
func TestOffersAreRemembered(t *testing.T) {
	o := newOffice(t, func(j *replica.Job) {
		*j = *fixture.Closed(j)
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.NodeDead, Node: "n2", NodeIncarnation: 22}}
	})
	o.message(t.Context(), o.by["n3"], replica.NodeReport{Job: fixture.JobID, Holder: replica.Holder{Node: "n3", Incarnation: 33}, Session: 1, Seq: 1, Fenced: 3, Settled: true, Offers: 1, Spare: true})
	led := o.jobs[fixture.JobID]
	if len(fixture.Only[control.Offers](told(t, o.by["n3"]))) != 1 || !led.mayEnd("n3", 1) {
		t.Fatalf("offered %v", led.offered)
	}
	led.job = fixture.Changed(led.job, func(j *replica.Job) { // n1 was first; and is lost
		j.Ranks = slices.Clone(j.Ranks)
		j.Ranks[1] = replica.Claimed{Incarnation: 6, Node: "n1", NodeIncarnation: 11}
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 1, Incarnation: 6}}
	})
	if led.mayEnd("n3", 1) {
		t.Error("an old offer counts for ever")
	}
}

// A node with nothing to do with a job used to set keys as any of its ranks: the address at which the others meet, for example.
func TestRendezvousIsARanksOwn(t *testing.T) {
	o := newOffice(t, nil)
	o.jobs[fixture.JobID].gathered = true
	set := func(from replica.NodeName, r replica.Rank, key string) control.KVReply {
		t.Helper()
		told(t, o.by[from])
		o.message(t.Context(), o.by[from], control.KVRequest{ID: 1, Op: control.KVSet, Job: fixture.JobID, Epoch: 3, Key: key, Value: []byte(from), Rank: r, Nonce: 5, Once: 1})
		replies := fixture.Only[control.KVReply](told(t, o.by[from]))
		if len(replies) != 1 {
			t.Fatalf("%d replies", len(replies))
		}
		return replies[0]
	}
	if r := set("n1", 0, "addr"); r.Refused != "" || r.Seq == 0 {
		t.Errorf("the rank's own node: %+v", r)
	}
	if r := set("n3", 0, "addr"); !strings.Contains(r.Refused, `rank 0 of job "job" is held on node n1`) {
		t.Errorf("another node in its name: %+v", r)
	}
	if v, ok := o.kv.Get(fixture.JobID, 3, "addr"); !ok || string(v) != "n1" {
		t.Errorf("the key is %q", v)
	}
	for op := control.KVSet; op <= control.KVDelete; op++ {
		o.message(t.Context(), o.by["n3"], control.KVRequest{ID: 1, Op: op, Job: fixture.JobID, Epoch: 3, Key: "addr", Members: 1, Rank: 0, Nonce: 5, Once: 2})
		if replies := fixture.Only[control.KVReply](told(t, o.by["n3"])); len(replies) != 1 || replies[0].Refused == "" || replies[0].Value != nil {
			t.Errorf("operation %d: %+v", op, replies)
		}
	}
	// What it says that it contributed under earlier leaders, once this one serves.
	brings := func(from replica.NodeName) (value string) {
		o.message(t.Context(), o.by[from], control.KVKept{Job: fixture.JobID, Epoch: 3, Entries: []control.KVEntry{{Op: control.KVSet, Key: "port", Value: []byte(from), Rank: 0, Nonce: 6, Once: 1, Seq: 6<<32 | 1}}})
		v, _ := o.kv.Get(fixture.JobID, 3, "port")
		return string(v)
	}
	if v := brings("n3"); v != "" {
		t.Errorf("another node brings %q", v)
	}
	if v := brings("n1"); v != "n1" {
		t.Errorf("the rank's own node brings %q", v)
	}
}

func TestStandingAtTheRendezvous(t *testing.T) {
	dead := func(j *replica.Job) {
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 1, Incarnation: 5}}
	}
	nobodys := func(j *replica.Job) { j.Ranks[1] = replica.Claimed{} }
	starts := func(nodes ...replica.NodeName) func(*office) {
		return func(o *office) {
			for _, n := range nodes {
				o.jobs[fixture.JobID].reports[n] = replica.NodeReport{Starting: []replica.Rank{1}}
			}
		}
	}
	for name, tc := range map[string]struct {
		change func(*replica.Job)
		before func(*office)
		from   replica.NodeName
		want   standing
	}{
		"its holder":                          {from: "n2", want: own},
		"another":                             {from: "n3", want: strange},
		"another that says that it starts it": {before: starts("n3"), from: "n3", want: strange},
		"its holder's next life":              {before: func(o *office) { o.by["n2"] = o.chair.node("n2", 23) }, from: "n2", want: early},
		"lost, its own node":                  {change: dead, from: "n2", want: own},
		"lost, any node":                      {change: dead, from: "n3", want: own},
		"lost, starting there":                {change: dead, before: starts("n3"), from: "n3", want: own},
		"lost, starting elsewhere":            {change: dead, before: starts("n3"), from: "n2", want: early},
		"lost, starting on both":              {change: dead, before: starts("n3", "n2"), from: "n2", want: own},
		"lost, was starting on a node that is gone": {change: dead, before: func(o *office) {
			starts("n3")(o)
			delete(o.links.of, "n3")
		}, from: "n2", want: own},
		"never held, any node":           {change: nobodys, from: "n3", want: own},
		"never held, starting elsewhere": {change: nobodys, before: starts("n2"), from: "n3", want: early},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t, tc.change)
			if tc.before != nil {
				tc.before(o)
			}
			if got := o.standing(o.jobs[fixture.JobID], o.by[tc.from], 1); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
	}
}

// What happened is in the audit log of the leader's node, with who asked.
func TestAuditOfTheLeader(t *testing.T) {
	o := newOffice(t, nil)
	operator := withOperators(t, o)
	path := filepath.Join(t.TempDir(), journal.AuditFile)
	log, err := audit.Open(path, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	o.Leader.audit = &journal.Auditor{Log: log}
	o.authority, o.operators = newOperators(o.Leader)
	for range 3 { // one that insists
		o.gives("n3", control.Order{Verb: control.Drain, Node: "n1"})
	}
	o.gives("n3", control.Order{Verb: control.EndJob, Job: "none"})
	o.gives("n3", o.sign(operator, "n3", control.Order{Verb: control.AddVoter, Node: "n1", Addr: "n1:7000"}))
	o.gives("n2", control.Order{Verb: control.Clear, Node: "n2"})
	o.message(t.Context(), o.by["n3"], control.EndRequest{Name: "job", Reason: "x", Rank: 1})
	o.message(t.Context(), o.by["n3"], control.ClaimRequest{ID: 1, Claim: replica.Claim{Job: fixture.JobID, Holder: replica.Holder{Node: "n2", Incarnation: 22}}})
	o.message(t.Context(), o.by["n2"], control.KVRequest{ID: 1, Op: control.KVSet, Job: fixture.JobID, Epoch: 3, Key: "k", Rank: 0})
	o.jobs[fixture.JobID].gathered = true
	o.message(t.Context(), o.by["n2"], control.KVRequest{ID: 1, Op: control.KVSet, Job: fixture.JobID, Epoch: 3, Key: "k", Rank: 0})
	o.message(t.Context(), o.by["n2"], control.CreateRequest{ID: 1, Name: "job", Layout: replica.Layout{World: 7}})
	for late := time.After(fixture.Patience); ; {
		if _, _, _, leads := o.cons.Leadership(); leads {
			break
		}
		select {
		case <-o.cons.Changes():
		case <-late:
			t.Fatal("a voter alone does not lead")
		}
	}
	if out, err := o.register(t.Context(), replica.Node{Name: "n9", Incarnation: 99, Session: 1, Addr: "n9:7000"}, nil); out != nil || err != nil {
		t.Fatal(err)
	}
	log.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(data)) {
		var l struct {
			Event  string
			Fields map[string]string
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSpace(fmt.Sprint(l.Event, " ", l.Fields["what"], " ", l.Fields["by"], l.Fields["from"], " ", l.Fields["verb"])))
	}
	for i := range got {
		got[i] = strings.Join(strings.Fields(got[i]), " ")
	}
	want := []string{"refused order user 1000 of node n3n3 node drain", "order user 1000 of node n3 job end", "order done user 1000 of node n3 job end",
		"order operator operator voter add", "order done operator operator voter add", "order user 1000 of node n2 node clear", "order done user 1000 of node n2 node clear",
		"refused job end node n3n3", "refused claim n3", "refused rendezvous n2", "refused create n2", "join"}
	if !slices.Equal(got, want) {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if r, err := audit.Verify(path); err != nil || len(r.Breaks) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A node makes no job and claims no rank without the job's token, as the leader itself knows it; another job's is none.
func TestLeaderAsksForTheJobsToken(t *testing.T) {
	c := newChair(t)
	c.cfg.Token = func(job string) string { return "token of " + job }
	n2 := c.node("n2", 22)
	led := c.knows(fixture.Job())
	layout := replica.Layout{World: 1, Groups: []replica.GroupID{0}}
	claim := replica.Claim{Job: led.job.ID, Rank: 0, Holder: n2.node.Holder()}

	for _, token := range []string{"", "token of other"} {
		c.message(t.Context(), n2, control.CreateRequest{ID: 1, Name: "new", Layout: layout, Token: token})
		c.message(t.Context(), n2, control.ClaimRequest{ID: 2, Claim: claim, Token: token})
		replies := told(t, n2)
		create, claimed := fixture.Only[control.CreateReply](replies), fixture.Only[control.ClaimReply](replies)
		if len(create) != 1 || !strings.Contains(create[0].Refused, "job_secret") || len(claimed) != 1 || !strings.Contains(claimed[0].Refused, "job_secret") {
			t.Errorf("token %q: %+v", token, replies)
		}
		for _, cmd := range c.proposed() {
			switch cmd.(type) {
			case replica.CreateJob, replica.Claim:
				t.Errorf("token %q: proposed %+v", token, cmd)
			}
		}
	}
	c.message(t.Context(), n2, control.CreateRequest{ID: 3, Name: "new", Layout: layout, Owner: 61001, Token: "token of new"})
	c.message(t.Context(), n2, control.ClaimRequest{ID: 4, Claim: claim, Token: "token of " + led.job.Name})
	got := c.proposed()
	if !slices.ContainsFunc(got, func(cmd replica.Command) bool {
		v, ok := cmd.(replica.CreateJob)
		return ok && v.Name == "new" && v.Owner == 61001
	}) || !slices.Contains(got, replica.Command(claim)) {
		t.Errorf("with its tokens: proposed %+v", got)
	}
}

// The command that makes a job names its slots, as they follow from its layout: a log that is read again by a program with other defaults makes
// the same job.
func TestLeaderNamesTheSlots(t *testing.T) {
	one, apart := replica.Layout{World: 2, Groups: []replica.GroupID{0, 0}}, replica.Apart(2)
	for name, tc := range map[string]struct {
		ask  control.CreateRequest
		want int
	}{
		"replicas":         {control.CreateRequest{Layout: one}, 4},
		"shards":           {control.CreateRequest{Layout: apart}, 2},
		"no mirrors":       {control.CreateRequest{Layout: apart, Options: replica.Options{MinCopies: 1}}, 4},
		"not known yet":    {control.CreateRequest{Layout: replica.Layout{World: 2}, NameGroups: true}, 2},
		"the user's words": {control.CreateRequest{Layout: apart, Options: replica.Options{Slots: 3}}, 3},
	} {
		c := newChair(t)
		n2 := c.node("n2", 22)
		tc.ask.ID, tc.ask.Name = 1, "new"
		c.message(t.Context(), n2, tc.ask)
		made := 0
		for _, cmd := range c.proposed() {
			if v, ok := cmd.(replica.CreateJob); ok {
				if made++; v.Options.Slots != tc.want {
					t.Errorf("%s: %d slots, want %d", name, v.Options.Slots, tc.want)
				}
			}
		}
		if made != 1 {
			t.Errorf("%s: %d jobs proposed", name, made)
		}
	}
}
