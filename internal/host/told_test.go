package host

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/leader/leadertest"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// What a leader tells as changes and in short is, at a node that has heard all since its link came up, the state that it would be told whole;
// whenever the link came up.
func TestChangesLeadToTheState(t *testing.T) {
	c, d := leadertest.New(t, 7), newRig(t)
	st := lock.New(fixture.Cluster)
	c.Applies(func(v *lock.View) { *v = st.View() })
	index := uint64(0)
	apply := func(cmds ...replica.Command) {
		t.Helper()
		for _, cmd := range cmds {
			index++
			if out := st.Apply(index, cmd); out.Err != nil {
				t.Fatalf("entry %d, %+v: %v", index, cmd, out.Err)
			}
		}
		c.Applies(func(v *lock.View) { *v = st.View() })
	}
	holder := func(i int) replica.Holder {
		return replica.Holder{Node: replica.NodeName(fmt.Sprint("h", i)), Incarnation: replica.NodeIncarnation(i + 1)}
	}
	var link *control.Link
	hears := func(up bool) {
		t.Helper()
		if up {
			link = c.Linked(replica.Node{Name: "n1", Incarnation: 11, Session: 1})
			d.handle(LinkUp{Link: d.link, Leader: "n1", Welcome: control.Welcome{OK: true, Term: 7}})
		}
		for _, msg := range leadertest.Said(t, link) {
			switch msg.(type) {
			case control.View, control.Change, control.Progress:
				d.leaderSays(msg)
			}
		}
		if asks := fixture.Only[control.AskView](d.says()); len(asks) != 0 {
			t.Errorf("entry %d: the node asks for the whole state", index)
		}
		if !reflect.DeepEqual(d.nodes, c.View.Nodes) || len(d.told.Jobs) != len(c.View.Jobs) {
			t.Errorf("entry %d: the node knows nodes %v and %d jobs; want %v and %d", index, d.nodes, len(d.told.Jobs), c.View.Nodes, len(c.View.Jobs))
		}
		for id, job := range c.View.Jobs {
			have := *d.jobs.all[id].Job
			if fmt.Sprintf("%+v", have) != fmt.Sprintf("%+v", *job) && !reflect.DeepEqual(&have, job) {
				t.Errorf("entry %d: the node has\n%+v, want\n%+v", index, have, *job)
			}
		}
	}
	apply(replica.RegisterNode{Node: replica.Node{Name: "h0", Incarnation: 1, Session: 1, Addr: "h0:1"}})
	hears(true)
	apply(replica.RegisterNode{Node: replica.Node{Name: "h1", Incarnation: 2, Session: 1, Addr: "h1:1"}})
	hears(false)
	const world = 6
	id := func(i int) replica.JobID { return replica.JobID{1, byte(i)} }
	for i := range 40 { // more than are remembered
		groups := make([]replica.GroupID, world)
		for r := range groups {
			groups[r] = replica.GroupID(r / 2)
		}
		apply(replica.CreateJob{ID: id(i), Name: fmt.Sprint("job", i), Layout: replica.Layout{World: world, Groups: groups}}, replica.Begin{Job: id(i), Epoch: 1})
		hears(false)
		for r := range world {
			apply(replica.Claim{Job: id(i), Rank: replica.Rank(r), Holder: holder(r % 2), Group: groups[r], Geometry: replica.Digest{1, byte(r / 2)}, Nonce: uint64(r + 1)})
			if r%2 == 0 {
				hears(false)
			}
		}
		apply(replica.RegisterNode{Node: replica.Node{Name: "h1", Incarnation: 2, Session: replica.Session(i + 2), Addr: "h1:1"}})
		if i%10 == 5 {
			if i%20 == 5 {
				c.Pass(t.Context(), time.Minute) // the state is encoded anew
			}
			hears(true) // a link that came up only now
		}
		apply(replica.ReportFault{Job: id(i), Fault: replica.Fault{Epoch: 1, Kind: replica.Exception, Rank: 1, Incarnation: 2, Detail: "x"}})
		hears(false)
		apply(replica.EndJob{Job: id(i), Reason: "enough"})
		hears(false)
	}
	if len(d.told.Jobs) != 32 {
		t.Errorf("%d jobs are known, want those that are remembered", len(d.told.Jobs))
	}
}

// A node that lacks what a change follows asks for the whole state, once, and takes nothing of the change.
func TestAGapIsFilledByTheWholeState(t *testing.T) {
	d := newRig(t)
	job := fixture.Job()
	d.handle(LinkUp{Link: d.link, Leader: "n2", Welcome: control.Welcome{OK: true, Term: 7}})
	d.says()
	node := func(s replica.Session) map[replica.NodeName]replica.Node {
		return map[replica.NodeName]replica.Node{"n2": {Name: "n2", Incarnation: 22, Session: s}}
	}
	early := control.Change{After: 10, Index: 11, Era: 1, Nodes: node(5)}
	d.leaderSays(early) // before any view
	if asks := fixture.Only[control.AskView](d.says()); len(asks) != 1 {
		t.Errorf("a change before any view: it asks %d times", len(asks))
	}
	d.views(control.View{Index: 10, Era: 1, Nodes: node(1), Jobs: []*replica.Job{job}})
	is := fixture.Changed(job, func(j *replica.Job) { j.Degraded = true })
	gap := control.Change{After: 12, Index: 13, Era: 1, Nodes: node(6), Jobs: []control.JobChange{control.JobChanged(job, is, false)}}
	other := control.Change{After: 10, Index: 13, Era: 1, Nodes: node(7), Jobs: []control.JobChange{control.JobChanged(job, is, false), control.JobChanged(is, fixture.Changed(is, func(*replica.Job) {}), false)}}
	other.Jobs[1].Was += 7
	for what, bad := range map[string]control.Change{"one is missing": gap, "its second job is another's": other} {
		for range 3 {
			d.leaderSays(bad)
		}
		if asks := fixture.Only[control.AskView](d.says()); len(asks) != 1 {
			t.Errorf("%s: it asks %d times", what, len(asks))
		}
		if d.nodes["n2"].Session != 1 || d.jobs.all[job.ID].Job.Degraded {
			t.Errorf("%s: half of it is done", what)
		}
		d.views(control.View{Index: 10, Era: 1, Nodes: node(1), Jobs: []*replica.Job{job}})
	}
	good := control.Change{After: 9, Index: 13, Era: 1, Nodes: node(8), Jobs: []control.JobChange{control.JobChanged(job, is, false)}}
	d.leaderSays(good)
	if d.nodes["n2"].Session != 8 || !d.jobs.all[job.ID].Job.Degraded || len(fixture.Only[control.AskView](d.says())) != 0 {
		t.Error("a change that follows is not taken")
	}

	c := leadertest.New(t, 7)
	c.Knows(job)
	link := c.Node("n2", 22)
	leadertest.Said(t, link)
	c.Message(t.Context(), "n2", control.AskView{})
	if v := fixture.Only[control.View](leadertest.Said(t, link)); len(v) != 1 || v[0].Index != c.View.Index || len(v[0].Jobs) != 1 {
		t.Errorf("asked for the whole state, the leader sends %+v", v)
	}
}

// A view may be some seconds old: until the change behind it has come, nothing is judged by it. A daemon that was started anew found its own
// rank's claim, of a moment ago, missing there.
func TestAViewAloneIsNotJudged(t *testing.T) {
	d := newRig(t)
	d.informed = false
	nodes := d.nodes
	d.handle(LinkUp{Link: d.link, Leader: "n2", Welcome: control.Welcome{OK: true, Term: 7}})
	now := fixture.Job()
	before := *now
	before.LastIndex, before.Ranks = 9, []replica.Claimed{{Incarnation: 3, Node: "n3", NodeIncarnation: 33}, now.Ranks[1]}
	d.leaderSays(control.View{Index: 9, Era: 1, Nodes: nodes, Jobs: []*replica.Job{&before}})
	if d.informed || len(d.jobs.all) != 0 {
		t.Error("a view is judged before the change behind it")
	}
	d.leaderSays(control.Change{After: 9, Index: 12, Era: 1, Jobs: []control.JobChange{control.JobChanged(&before, now, false)}})
	if !d.informed || !reflect.DeepEqual(d.jobs.all[now.ID].Job, now) || !reflect.DeepEqual(d.nodes, nodes) {
		t.Error("the state is not known after the change behind it")
	}
}
