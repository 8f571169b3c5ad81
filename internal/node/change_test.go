package node

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// sent is a message as it comes out at the other end.
func sent[T any](t testing.TB, k wire.Kind, v T) (T, int) {
	t.Helper()
	b, err := wire.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode[T](b)
	if err != nil {
		t.Fatal(err)
	}
	return got, len(b)
}

func patched(t testing.TB, c jobChange, was *replica.Job) (*replica.Job, error) {
	t.Helper()
	got, _ := sent(t, kindChange, change{Jobs: []jobChange{c}})
	return got.Jobs[0].after(map[replica.JobID]*replica.Job{was.ID: was})
}

// Each field of a job arrives when it changes, alone or with all others, and what has not changed is not sent.
func TestEveryChangeOfAJobArrives(t *testing.T) {
	n := uint64(50)
	full := func() *replica.Job {
		j := &replica.Job{}
		fill(reflect.ValueOf(j).Elem(), &n)
		return j
	}
	was := full()
	was.ID = testJob
	all := full()
	all.ID, all.LastIndex = testJob, was.LastIndex+1
	if got, err := patched(t, jobChanged(was, all, false), was); err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("a change of everything arrives as %+v: %v", got, err)
	}
	for i := range reflect.TypeFor[replica.Job]().NumField() {
		name := reflect.TypeFor[replica.Job]().Field(i).Name
		if name == "ID" {
			continue
		}
		is := changed(was, func(j *replica.Job) { fill(reflect.ValueOf(j).Elem().Field(i), &n) })
		if name == "LastIndex" {
			is.LastIndex = was.LastIndex + 5
		}
		c := jobChanged(was, is, false)
		if got, err := patched(t, c, was); err != nil || !reflect.DeepEqual(got, is) {
			t.Errorf("a change of %s arrives as\n%+v, want\n%+v: %v", name, got, is, err)
		}
		for j := range reflect.TypeFor[replica.Job]().NumField() {
			if other := reflect.TypeFor[replica.Job]().Field(j).Name; other != name && other != "ID" && other != "LastIndex" && !reflect.ValueOf(c.Job).Elem().Field(j).IsZero() {
				t.Errorf("a change of %s sends %s too", name, other)
			}
		}
		is = changed(was, func(j *replica.Job) { reflect.ValueOf(j).Elem().Field(i).SetZero() })
		if name == "LastIndex" {
			is.LastIndex = was.LastIndex + 1
		}
		if got, err := patched(t, jobChanged(was, is, false), was); err != nil || fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", *is) {
			t.Errorf("%s made zero arrives as %+v: %v", name, got, err)
		}
	}
	if c := jobChanged(was, changed(was, func(*replica.Job) {}), true); !reflect.DeepEqual(c.Job.Parts, was.Parts) {
		t.Error("the parts are left out, though the nodes heard of the commit in short")
	}
}

// A claim in a job of many ranks costs what a claim is, not what the job is.
func TestAClaimIsToldAlone(t *testing.T) {
	was := largeJob(10_000)
	for what, c := range map[string]struct {
		claims int
		most   int // bytes
	}{"one": {1, 1 << 10}, "a hundred": {100, 16 << 10}, "all": {10_000, 4 << 20}} {
		is := changed(was, func(j *replica.Job) {
			j.Ranks, j.Naming, j.GroupGeometry = slices.Clone(j.Ranks), slices.Clone(j.Naming), slices.Clone(j.GroupGeometry)
			for r := range c.claims {
				j.Ranks[r].Incarnation, j.Naming[r], j.GroupGeometry[r/8] = 1000+replica.Incarnation(r), 7, replica.Digest{9}
			}
		})
		diff := jobChanged(was, is, false)
		if _, size := sent(t, kindChange, change{Jobs: []jobChange{diff}}); size > c.most {
			t.Errorf("%s: %d bytes, at most %d", what, size, c.most)
		}
		before := fmt.Sprint(was.Ranks[0])
		if got, err := patched(t, diff, was); err != nil || !reflect.DeepEqual(got, is) {
			t.Errorf("%s: it arrives otherwise: %v", what, err)
		}
		if fmt.Sprint(was.Ranks[0]) != before {
			t.Errorf("%s: the former job was written to", what)
		}
	}
}

// largeJob is an open job with all that one of its size has.
func largeJob(world uint32) *replica.Job {
	j := newJob()
	j.Layout = replica.Layout{World: world}
	plan := &replica.Plan{Epoch: 3, Generation: gen(1, 4)}
	j.Ranks, j.Mirrors, j.GroupMirrors, j.GroupGeometry = nil, nil, nil, nil
	for r := range world {
		node := func(i uint32) replica.NodeName { return replica.NodeName(fmt.Sprintf("gpu-node-%05d", (r/8+i)%10_000)) }
		holders := []replica.Holder{{Node: node(0), Incarnation: 1 << 60}, {Node: node(1), Incarnation: 1 << 61}}
		j.Layout.Groups = append(j.Layout.Groups, replica.GroupID(r/8))
		j.Ranks = append(j.Ranks, replica.Claimed{Incarnation: replica.Incarnation(r + 1), Node: node(0), NodeIncarnation: 1 << 60, Nonce: 1<<63 + uint64(r)})
		j.Naming = append(j.Naming, replica.NoGroup)
		j.Mirrors = append(j.Mirrors, []replica.NodeName{node(1)})
		for _, p := range []replica.Part{replica.OfRank(replica.Rank(r)), replica.OfGroup(replica.GroupID(r / 8))} {
			if p.Kind == replica.ReplicatedPart && r%8 != 0 {
				continue
			}
			j.Parts = append(j.Parts, replica.PartRoot{Part: p, Root: replica.Digest{1, byte(r)}, Holders: holders})
			plan.Sources = append(plan.Sources, replica.Source{Part: p, Root: replica.Digest{2, byte(r)}, Tier: replica.PeerRAM, Holders: holders})
		}
		if r%8 == 0 {
			j.GroupGeometry, j.GroupMirrors = append(j.GroupGeometry, replica.Digest{3}), append(j.GroupMirrors, []replica.NodeName{node(1)})
		}
	}
	plan.Layout, plan.Ranks, plan.Mirrors, plan.GroupMirrors = j.Layout, j.Ranks, j.Mirrors, j.GroupMirrors
	j.Plan = plan
	return j
}

// A change that does not follow is refused whole, whatever it says.
func TestAChangeThatDoesNotFollow(t *testing.T) {
	was := newJob()
	is := changed(was, func(j *replica.Job) { j.Ranks = []replica.Claimed{{Incarnation: 9, Node: "n3"}, j.Ranks[1]} })
	good := jobChanged(was, is, false)
	jobs := map[replica.JobID]*replica.Job{was.ID: was}
	for what, change := range map[string]func(*jobChange){
		"of another entry":           func(c *jobChange) { c.Was++ },
		"of a job that is not known": func(c *jobChange) { j := *c.Job; j.ID = replica.JobID{9}; c.Job = &j },
		"without a job":              func(c *jobChange) { c.Job = nil },
		"new, and as it was":         func(c *jobChange) { c.Was = 0 },
		"a rank that there is not":   func(c *jobChange) { c.Ranks = map[replica.Rank]replica.Claimed{2: {}} },
		"a group that there is not":  func(c *jobChange) { c.Geometry = map[replica.GroupID]replica.Digest{1 << 31: {}} },
		"named by nobody":            func(c *jobChange) { c.Naming = map[replica.Rank]replica.GroupID{0: 1} },
	} {
		c := good
		change(&c)
		if got, err := c.after(jobs); err == nil {
			t.Errorf("%s: makes %+v", what, got)
		}
	}
	if _, err := good.after(jobs); err != nil {
		t.Error(err)
	}
}

// What a leader tells as changes and in short is, at a node that has heard all since its link came up, the state that it would be told whole;
// whenever the link came up.
func TestChangesLeadToTheState(t *testing.T) {
	c, d := newChair(t), newDesk(t)
	c.node("n1", 11)
	late := c.node("n9", 99)
	c.view.Nodes = map[replica.NodeName]replica.Node{}
	st := lock.New(testCluster)
	c.view = st.View()
	index := uint64(0)
	apply := func(cmds ...replica.Command) {
		t.Helper()
		before := c.view
		for _, cmd := range cmds {
			index++
			if out := st.Apply(index, cmd); out.Err != nil {
				t.Fatalf("entry %d, %+v: %v", index, cmd, out.Err)
			}
		}
		c.view = st.View()
		c.follow(t.Context(), before)
	}
	holder := func(i int) replica.Holder {
		return replica.Holder{Node: replica.NodeName(fmt.Sprint("h", i)), Incarnation: replica.NodeIncarnation(i + 1)}
	}
	hears := func(l *nodeLink, up bool) {
		t.Helper()
		if up {
			d.handle(linkUp{link: d.link, leader: "n1", welcome: welcome{OK: true, Term: 7}})
			c.tellAll(l)
		}
		for _, msg := range told(t, l) {
			switch msg.(type) {
			case view, change, progress:
				d.leaderSays(msg)
			}
		}
		if asks := only[askView](d.says()); len(asks) != 0 {
			t.Errorf("entry %d: the node asks for the whole state", index)
		}
		if !reflect.DeepEqual(d.nodes, c.view.Nodes) || len(d.told.jobs) != len(c.view.Jobs) {
			t.Errorf("entry %d: the node knows nodes %v and %d jobs; want %v and %d", index, d.nodes, len(d.told.jobs), c.view.Nodes, len(c.view.Jobs))
		}
		for id, job := range c.view.Jobs {
			have := *d.jobs[id].job
			if c.jobs[id].short {
				have.Parts = job.Parts // commits do not bring them
			}
			if fmt.Sprintf("%+v", have) != fmt.Sprintf("%+v", *job) && !reflect.DeepEqual(&have, job) {
				t.Errorf("entry %d: the node has\n%+v, want\n%+v", index, have, *job)
			}
		}
	}
	link := c.links["n1"]
	apply(replica.RegisterNode{Node: replica.Node{Name: "h0", Incarnation: 1, Session: 1, Addr: "h0:1"}})
	told(t, link)
	hears(link, true)
	apply(replica.RegisterNode{Node: replica.Node{Name: "h1", Incarnation: 2, Session: 1, Addr: "h1:1"}})
	hears(link, false)
	const world = 6
	id := func(i int) replica.JobID { return replica.JobID{1, byte(i)} }
	for i := range 40 { // more than are remembered
		groups := make([]replica.GroupID, world)
		for r := range groups {
			groups[r] = replica.GroupID(r / 2)
		}
		apply(replica.CreateJob{ID: id(i), Name: fmt.Sprint("job", i), Layout: replica.Layout{World: world, Groups: groups}}, replica.Begin{Job: id(i), Epoch: 1})
		hears(link, false)
		for r := range world {
			apply(replica.Claim{Job: id(i), Rank: replica.Rank(r), Holder: holder(r % 2), Group: groups[r], Geometry: replica.Digest{1, byte(r / 2)}, Nonce: uint64(r + 1)})
			if r%2 == 0 {
				hears(link, false)
			}
		}
		apply(replica.RegisterNode{Node: replica.Node{Name: "h1", Incarnation: 2, Session: replica.Session(i + 2), Addr: "h1:1"}})
		if i%10 == 5 {
			if i%20 == 5 {
				c.pass(2 * wholeFor)
			}
			told(t, late) // a node that linked only now
			hears(late, true)
			told(t, link)
			link, late = late, link
		}
		apply(replica.ReportFault{Job: id(i), Fault: replica.Fault{Epoch: 1, Kind: replica.Exception, Rank: 1, Incarnation: 2, Detail: "x"}})
		hears(link, false)
		apply(replica.EndJob{Job: id(i), Reason: "enough"})
		hears(link, false)
	}
	if len(d.told.jobs) != 32 {
		t.Errorf("%d jobs are known, want those that are remembered", len(d.told.jobs))
	}
}

// A commit in short, and then a change: the parts of the commit come with it.
func TestPartsComeWithTheNextChange(t *testing.T) {
	c := newChair(t)
	n := c.node("n2", 22)
	next := func(j *replica.Job) {
		before := c.view
		c.view.Index++
		c.view.Jobs = map[replica.JobID]*replica.Job{j.ID: j}
		c.follow(t.Context(), before)
	}
	next(newJob())
	is := changed(c.view.Jobs[testJob], func(j *replica.Job) {
		j.Position.Step, j.Committed.Step, j.Parts = 6, 6, []replica.PartRoot{{Part: replica.OfGroup(0), Root: replica.Digest{6}}}
	})
	next(is)
	told(t, n)
	next(closed(is))
	next(changed(closed(is), func(j *replica.Job) { j.Degraded = true }))
	changes := only[change](told(t, n))
	if len(changes) != 2 || len(changes[0].Jobs) != 1 || !reflect.DeepEqual(changes[0].Jobs[0].Job.Parts, is.Parts) {
		t.Errorf("after a commit in short the nodes are told %+v", changes)
	} else if changes[1].Jobs[0].Job.Parts != nil || changes[1].After != changes[0].Index {
		t.Errorf("and then %+v", changes[1])
	}
}

// A node that lacks what a change follows asks for the whole state, once, and takes nothing of the change.
func TestAGapIsFilledByTheWholeState(t *testing.T) {
	d := newDesk(t)
	job := newJob()
	d.handle(linkUp{link: d.link, leader: "n2", welcome: welcome{OK: true, Term: 7}})
	d.says()
	node := func(s replica.Session) map[replica.NodeName]replica.Node {
		return map[replica.NodeName]replica.Node{"n2": {Name: "n2", Incarnation: 22, Session: s}}
	}
	early := change{After: 10, Index: 11, Era: 1, Nodes: node(5)}
	d.leaderSays(early) // before any view
	if asks := only[askView](d.says()); len(asks) != 1 {
		t.Errorf("a change before any view: it asks %d times", len(asks))
	}
	d.views(view{Index: 10, Era: 1, Nodes: node(1), Jobs: []*replica.Job{job}})
	is := changed(job, func(j *replica.Job) { j.Degraded = true })
	gap := change{After: 12, Index: 13, Era: 1, Nodes: node(6), Jobs: []jobChange{jobChanged(job, is, false)}}
	other := change{After: 10, Index: 13, Era: 1, Nodes: node(7), Jobs: []jobChange{jobChanged(job, is, false), jobChanged(is, changed(is, func(*replica.Job) {}), false)}}
	other.Jobs[1].Was += 7
	for what, bad := range map[string]change{"one is missing": gap, "its second job is another's": other} {
		for range 3 {
			d.leaderSays(bad)
		}
		if asks := only[askView](d.says()); len(asks) != 1 {
			t.Errorf("%s: it asks %d times", what, len(asks))
		}
		if d.nodes["n2"].Session != 1 || d.jobs[job.ID].job.Degraded {
			t.Errorf("%s: half of it is done", what)
		}
		d.views(view{Index: 10, Era: 1, Nodes: node(1), Jobs: []*replica.Job{job}})
	}
	good := change{After: 9, Index: 13, Era: 1, Nodes: node(8), Jobs: []jobChange{jobChanged(job, is, false)}}
	d.leaderSays(good)
	if d.nodes["n2"].Session != 8 || !d.jobs[job.ID].job.Degraded || len(only[askView](d.says())) != 0 {
		t.Error("a change that follows is not taken")
	}

	c := newChair(t)
	n := c.node("n2", 22)
	c.knows(job)
	c.message(t.Context(), n, askView{})
	if v := only[view](told(t, n)); len(v) != 1 || v[0].Index != c.view.Index || len(v[0].Jobs) != 1 {
		t.Errorf("asked for the whole state, the leader sends %+v", v)
	}
}

// A view may be some seconds old: until the change behind it has come, nothing is judged by it. A daemon that was started anew found its own
// rank's claim, of a moment ago, missing there.
func TestAViewAloneIsNotJudged(t *testing.T) {
	d := newDesk(t)
	d.informed = false
	nodes := d.nodes
	d.handle(linkUp{link: d.link, leader: "n2", welcome: welcome{OK: true, Term: 7}})
	now := newJob()
	before := *now
	before.LastIndex, before.Ranks = 9, []replica.Claimed{{Incarnation: 3, Node: "n3", NodeIncarnation: 33}, now.Ranks[1]}
	d.leaderSays(view{Index: 9, Era: 1, Nodes: nodes, Jobs: []*replica.Job{&before}})
	if d.informed || len(d.jobs) != 0 {
		t.Error("a view is judged before the change behind it")
	}
	d.leaderSays(change{After: 9, Index: 12, Era: 1, Jobs: []jobChange{jobChanged(&before, now, false)}})
	if !d.informed || !reflect.DeepEqual(d.jobs[now.ID].job, now) || !reflect.DeepEqual(d.nodes, nodes) {
		t.Error("the state is not known after the change behind it")
	}
}

// A view of 80,000 ranks, larger than any frame, goes over a link.
func TestALargeViewPasses(t *testing.T) {
	c := newChair(t)
	job := largeJob(80_000)
	c.view.Jobs[job.ID] = job
	if err := c.encode(); err != nil {
		t.Fatal(err)
	}
	frames, total := c.whole.frames, 0
	for _, f := range frames {
		total += len(f)
		if len(f) > pieceBytes+1<<10 {
			t.Fatalf("a frame of %d bytes", len(f))
		}
	}
	if total <= maxLinkFrame || len(frames) > linkQueue {
		t.Fatalf("%d bytes in %d frames: want more than fit into one of %d, and fewer than %d", total, len(frames), maxLinkFrame, linkQueue)
	}
	near, far := net.Pipe()
	var links sync.WaitGroup
	links.Go(func() {
		defer far.Close()
		if k, _, err := wire.Read(far, maxHello); err != nil || k != kindLinkHello {
			t.Errorf("kind %d: %v", k, err)
			return
		}
		l := &nodeLink{newLink(far), replica.Node{Name: "n2", Incarnation: 22}}
		c.view.Nodes["n2"] = l.node
		links.Go(func() { c.linkUp(t.Context(), l) })
		l.run(t.Context(), func(wire.Kind, []byte) error { return nil }) //nolint:errcheck // it ends with the test
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var got *view
	k := &linker{hello: func() linkHello { return linkHello{Node: replica.Node{Name: "n2"}} }, self: func() (replica.NodeName, string, uint64) { return "", "", 0 },
		dial: func(context.Context, replica.NodeName, string) (net.Conn, error) { return near, nil },
		post: func(ev memberEvent) {
			if said, ok := ev.(fromLeader); ok {
				if v, ok := said.msg.(view); ok {
					got = &v
					cancel()
				}
			}
		}}
	_, err := k.once(ctx, voterAddr{"n1", "n1:7000"}, linkDial)
	links.Wait()
	if got == nil || err != nil || len(got.Jobs) != 1 || !reflect.DeepEqual(got.Jobs[0], job) {
		t.Errorf("the view does not arrive as it is: %v", err)
	}
}

// Whatever a leader says may be large: the status of a large job is.
func TestALargeAnswerComesInPieces(t *testing.T) {
	c := newChair(t)
	n := c.node("n2", 22)
	want := statusReply{ID: 7, JSON: bytes.Repeat([]byte("status "), 4<<20)}
	n.send(kindStatusReply, want)
	var a assembly
	for len(n.out) > 0 {
		k, b, err := wire.Read(bytes.NewReader(<-n.out), maxLinkFrame)
		if err != nil || k != kindPiece {
			t.Fatalf("kind %d: %v", k, err)
		}
		p, err := decode[piece](b)
		if err != nil {
			t.Fatal(err)
		}
		k, b, whole, err := a.add(p)
		if err != nil || whole != (len(n.out) == 0) {
			t.Fatal(whole, err)
		}
		if whole {
			if got, err := decodeFromLeader(k, b); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("it arrives otherwise: %v", err)
			}
		}
	}
}

func TestPiecesThatDoNotFit(t *testing.T) {
	p := func(k wire.Kind, total uint64, bytes string) piece { return piece{k, total, []byte(bytes)} }
	for what, list := range map[string][]piece{
		"beyond the largest":  {p(kindView, wire.MaxState+1, "x")},
		"an empty one":        {p(kindView, 5, "abc"), p(kindView, 5, "")},
		"more than announced": {p(kindView, 5, "abc"), p(kindView, 5, "def")},
		"of another kind":     {p(kindView, 5, "abc"), p(kindChange, 5, "de")},
		"of another total":    {p(kindView, 5, "abc"), p(kindView, 6, "de")},
		"pieces of pieces":    {p(kindPiece, 3, "abc")},
		"nothing announced":   {p(kindView, 0, "a")},
	} {
		var a assembly
		var err error
		for _, p := range list {
			if _, _, _, err = a.add(p); err != nil {
				break
			}
		}
		if err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	var a assembly
	for range 2 { // one message after the other
		for i, p := range []piece{p(kindView, 5, "ab"), p(kindView, 5, "cde")} {
			k, body, whole, err := a.add(p)
			if err != nil || whole != (i == 1) || whole && (k != kindView || string(body) != "abcde") {
				t.Errorf("piece %d: kind %d, %q, whole %v, %v", i, k, body, whole, err)
			}
		}
	}
}

// FuzzPieces: what pieces are joined to is what they hold, and no announcement costs memory.
func FuzzPieces(f *testing.F) {
	for _, p := range [][2]piece{{{kindView, 3, []byte("ab")}, {kindView, 3, []byte("c")}}, {{kindView, 1 << 40, []byte("a")}, {kindChange, 0, nil}}} {
		f.Add(body(f, kindPiece, p[0]), body(f, kindPiece, p[1]))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var a assembly
		var all []byte
		for _, b := range [][]byte{first, second} {
			p, err := decode[piece](b)
			if err != nil {
				return
			}
			all = append(all, p.Bytes...)
			k, body, whole, err := a.add(p)
			if err != nil {
				return
			}
			if cap(a.body) > 2*len(all)+1<<10 {
				t.Fatalf("%d bytes are allocated for %d", cap(a.body), len(all))
			}
			if whole {
				if k != p.Kind || !bytes.Equal(body, all) || uint64(len(all)) != p.Total {
					t.Fatalf("kind %d of %d bytes out of %d", k, len(body), len(all))
				}
				all = nil
			}
		}
	})
}

// FuzzChange: a change from a peer that does not follow is an error, never a panic, and one that does leaves the job that it follows alone.
func FuzzChange(f *testing.F) {
	was := newJob()
	for _, is := range []*replica.Job{closed(was), changed(was, func(j *replica.Job) { j.Ranks = []replica.Claimed{{Incarnation: 9, Node: "n3"}, j.Ranks[1]} })} {
		b, err := wire.Marshal(change{After: 1, Index: 2, Jobs: []jobChange{jobChanged(was, is, false)}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	want := fmt.Sprintf("%+v", *was)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decode[change](b)
		if err != nil {
			return
		}
		for _, jc := range c.Jobs {
			is, err := jc.after(map[replica.JobID]*replica.Job{was.ID: was})
			if (is == nil) != (err != nil) {
				t.Fatalf("%+v beside %v", is, err)
			}
		}
		if got := fmt.Sprintf("%+v", *was); got != want {
			t.Fatalf("the former job is now %s", got)
		}
	})
}
