package consensus

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

func sampleView() lock.View {
	id := replica.JobID{1, 2, 3}
	layout := replica.Layout{World: 2, Groups: []replica.GroupID{0, 0}}
	ranks := []replica.Claimed{{Incarnation: 1, Node: "n1", NodeIncarnation: 4, Nonce: 1}, {Incarnation: 2, Node: "n1", NodeIncarnation: 4, Nonce: 2}}
	return lock.View{
		Index: 9, Cluster: testCluster, Era: 1,
		Nodes: map[replica.NodeName]replica.Node{"n1": {Name: "n1", Incarnation: 4, Session: 2, Addr: "h:1", Labels: map[string]string{"rack": "a"}}},
		Jobs: map[replica.JobID]*replica.Job{id: {
			ID: id, Name: "job", Era: 1, Layout: layout, Options: replica.Options{}.WithDefaults(), Phase: replica.Open,
			Epoch: 3, ClosedEpoch: 2, Lineage: replica.Lineage{{Epoch: 1}, {Epoch: 3, Start: 5}}, LastIndex: 9, Ranks: ranks, NextIncarnation: 2, GroupGeometry: make([]replica.Digest, 1),
			Mirrors: make([][]replica.NodeName, 2), GroupMirrors: make([][]replica.NodeName, 1),
			Plan: &replica.Plan{Epoch: 3, Generation: replica.Generation{Epoch: 1, Step: 5}, Layout: layout, Ranks: ranks},
		}},
	}
}

func TestSnapshotRoundTrip(t *testing.T) {
	want := sampleView()
	b, err := encodeSnapshot(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeSnapshot(b, testCluster)
	if err != nil {
		t.Fatal(err)
	}
	again, err := encodeSnapshot(got)
	if err != nil || !bytes.Equal(again, b) {
		t.Errorf("the decoded view is encoded otherwise (%v)", err)
	}
	if j := got.Jobs[replica.JobID{1, 2, 3}]; j == nil || j.Name != "job" || got.Nodes["n1"].Labels["rack"] != "a" || got.Index != 9 {
		t.Errorf("got %+v", got)
	}
}

func TestSnapshotRefuses(t *testing.T) {
	job := replica.JobID{1, 2, 3}
	for name, c := range map[string]struct {
		change func(*lock.View)
		text   string
	}{
		"other cluster":     {func(v *lock.View) { v.Cluster = replica.ClusterID{7} }, "cluster"},
		"era 0":             {func(v *lock.View) { v.Era = 0 }, "era"},
		"node misnamed":     {func(v *lock.View) { v.Nodes["n2"] = replica.Node{Name: "n1"} }, "n2"},
		"job misfiled":      {func(v *lock.View) { v.Jobs[replica.JobID{5}] = v.Jobs[job] }, "wrongly"},
		"nil job":           {func(v *lock.View) { v.Jobs[replica.JobID{5}] = nil }, "wrongly"},
		"job name":          {func(v *lock.View) { v.Jobs[job].Name = "../x" }, "name"},
		"job of the future": {func(v *lock.View) { v.Jobs[job].LastIndex = 10 }, "later"},
		"world too large":   {func(v *lock.View) { v.Jobs[job].Layout.World = replica.MaxRanks + 1 }, "world"},
		"planned, no plan":  {func(v *lock.View) { v.Jobs[job].Phase, v.Jobs[job].Plan = replica.Planned, nil }, "plan"},
		"open, no plan":     {func(v *lock.View) { v.Jobs[job].Plan = nil }, "plan"},
		"closed, a plan":    {func(v *lock.View) { v.Jobs[job].Phase = replica.Closed }, "plan"},
		"plan of old":       {func(v *lock.View) { v.Jobs[job].Plan.Epoch = 2 }, "plan for epoch 2"},
		"plan of one rank":  {func(v *lock.View) { v.Jobs[job].Plan.Ranks = v.Jobs[job].Ranks[:1] }, "1 ranks"},
		"plan's mirrors":    {func(v *lock.View) { v.Jobs[job].Plan.Mirrors = make([][]replica.NodeName, 1) }, "mirrors of 1 ranks"},
		"mirrors missing":   {func(v *lock.View) { v.Jobs[job].Mirrors = nil }, "mirrors of 0 ranks"},
		"group mirrors":     {func(v *lock.View) { v.Jobs[job].GroupMirrors = nil }, "0 groups"},
		"naming in a group": {func(v *lock.View) { v.Jobs[job].Naming = make([]replica.GroupID, 2) }, "named"},
		"lineage":           {func(v *lock.View) { v.Jobs[job].Lineage[0].Epoch = 3; v.Jobs[job].Lineage[1].Epoch = 2 }, "lineage"},
		"lineage ahead":     {func(v *lock.View) { v.Jobs[job].Lineage[1].Epoch = 4 }, "lineage"},
		"lone vote":         {func(v *lock.View) { v.Jobs[job].Disputed = []replica.Dispute{{Votes: make([]replica.Vote, 1)}} }, "1 votes"},
		"disputed group": {func(v *lock.View) {
			v.Jobs[job].Disputed = []replica.Dispute{{Group: 1, Votes: make([]replica.Vote, 2)}}
		}, "group 1"},
		"options": {func(v *lock.View) { v.Jobs[job].Options.MinCopies = 0 }, "min_copies"},
		"one name twice": {func(v *lock.View) {
			j := *v.Jobs[job]
			j.ID = replica.JobID{5}
			v.Jobs[j.ID] = &j
		}, "both called"},
		"groups missing": {func(v *lock.View) { v.Jobs[job].Layout.Groups = nil }, "groups"},
		"group too high": {func(v *lock.View) { v.Jobs[job].Layout.Groups[1] = 1 << 31 }, "group"},
		"growth":         {func(v *lock.View) { v.Jobs[job].Growth = &replica.Growth{Geometries: make([]replica.Digest, 9)} }, "growth"},
		"recipe":         {func(v *lock.View) { v.Jobs[job].Recipe = make([]byte, replica.MaxRecipe+1) }, "recipe"},
		"phase":          {func(v *lock.View) { v.Jobs[job].Phase = 77 }, "phase"},
		"epochs":         {func(v *lock.View) { v.Jobs[job].ClosedEpoch = 4 }, "epoch"},
		"ranks missing":  {func(v *lock.View) { v.Jobs[job].Ranks = nil }, "ranks"},
		"group geometry": {func(v *lock.View) { v.Jobs[job].GroupGeometry = make([]replica.Digest, 9) }, "groups"},
	} {
		t.Run(name, func(t *testing.T) {
			v := sampleView()
			c.change(&v)
			b, err := encodeSnapshot(v)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := decodeSnapshot(b, testCluster); err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v", err)
			}
		})
	}
	b, err := wire.Append(nil, wire.KindSnapshot, snapshot{snapshotVersion + 1, sampleView()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decodeSnapshot(b, testCluster); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("a later version: %v", err)
	}
}

// TestPlannedWithoutPlan: a snapshot whose job is planned and has no plan once made the state machine panic.
func TestPlannedWithoutPlan(t *testing.T) {
	v := sampleView()
	j := v.Jobs[replica.JobID{1, 2, 3}]
	j.Phase, j.Plan = replica.Planned, nil
	b, err := encodeSnapshot(v)
	if err != nil {
		t.Fatal(err)
	}
	f := newFSM(testCluster, func() {}, func(string, ...any) {})
	if err := f.Restore(io.NopCloser(bytes.NewReader(b))); err == nil || !strings.Contains(err.Error(), "plan") {
		t.Errorf("restored: %v", err)
	}
}

// A body is the CBOR of a frame, so that mutations reach the parser behind the frame's checksum.
type body []byte

func (b body) MarshalCBOR() ([]byte, error) { return b, nil }

// FuzzSnapshot: what a restored snapshot lets through, commands may index. A command's job is the snapshot's, where it names one.
func FuzzSnapshot(f *testing.F) {
	bodyOf := func(frame []byte, err error) []byte {
		if err != nil {
			f.Fatal(err)
		}
		return frame[12 : len(frame)-8]
	}
	job := replica.JobID{1, 2, 3}
	at := replica.Generation{Epoch: 3, Step: 6}
	for _, c := range []replica.Command{
		register("n9"), replica.Begin{Epoch: 4}, replica.Claim{Rank: 1, Expect: 2, Holder: replica.Holder{Node: "n1", Incarnation: 4}, Geometry: replica.Digest{1}, Nonce: 9},
		replica.ReportFault{Fault: replica.Fault{Epoch: 3, Kind: replica.ProcessDead, Rank: 1, Incarnation: 2}}, replica.Condemn{Generation: replica.Generation{Epoch: 1, Step: 5}},
		replica.ApplyPlan{Plan: *sampleView().Jobs[job].Plan}, replica.Resume{Epoch: 3, Copies: 1, Spread: true}, replica.CommitRoots{Position: replica.Position(at), Generation: at},
		replica.Commit{Position: replica.Position(at), Generation: at, Parts: []replica.PartRoot{{Part: replica.OfGroup(0), Root: replica.Digest{1}}}}, replica.SetMirrors{Mirrors: make([][]replica.NodeName, 2)},
		replica.ReportDispute{Epoch: 3, Dispute: replica.Dispute{Generation: at, Votes: []replica.Vote{{Rank: 0, Root: replica.Digest{1}}, {Rank: 1, Root: replica.Digest{2}}}}},
		replica.BeginDurable{Write: replica.DurableWrite{Generation: at}}, replica.Quarantine{Node: "n1"}, replica.EndJob{}, replica.StopJob{Reason: "x"},
		replica.NewEra{Era: 2, Epochs: map[replica.JobID]replica.Epoch{job: 9}}, replica.CreateJob{ID: replica.JobID{7}, Name: "job2", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}},
	} {
		v := sampleView()
		for _, phase := range []replica.JobPhase{replica.Open, replica.Planned, replica.Closed, replica.Opening, replica.Ended} {
			if v.Jobs[job].Phase = phase; phase != replica.Open && phase != replica.Planned {
				v.Jobs[job].Plan = nil
			}
			f.Add(bodyOf(encodeSnapshot(v)), bodyOf(wire.EncodeCommand(c)), bodyOf(wire.EncodeCommand(replica.Condemn{Generation: at})))
		}
	}
	for _, hurt := range []func(*replica.Job){ // each made a command panic, before it was refused
		func(j *replica.Job) { j.Phase, j.Plan = replica.Planned, nil },
		func(j *replica.Job) { j.Plan = nil },
		func(j *replica.Job) { j.Phase, j.Plan, j.Mirrors = replica.Closed, nil, nil },
		func(j *replica.Job) {
			j.Phase, j.Plan, j.Naming = replica.Opening, nil, []replica.GroupID{1, replica.NoGroup}
		},
	} {
		v := sampleView()
		v.Jobs[job].Ranks[1].Incarnation, v.Jobs[job].Previous = 0, &replica.Earlier{}
		hurt(v.Jobs[job])
		claim := replica.Claim{Rank: 1, Holder: replica.Holder{Node: "n1", Incarnation: 4}, Geometry: replica.Digest{1}}
		f.Add(bodyOf(encodeSnapshot(v)), bodyOf(wire.EncodeCommand(replica.Condemn{Generation: at})), bodyOf(wire.EncodeCommand(claim)))
		part := func(p replica.Part) replica.PartRoot {
			return replica.PartRoot{Part: p, Root: replica.Digest{1}, Holders: []replica.Holder{{Node: "n1", Incarnation: 4}}}
		}
		spread := replica.Resume{Epoch: 3, Copies: 1, Spread: true, Parts: []replica.PartRoot{part(replica.OfGroup(0)), part(replica.OfRank(0)), part(replica.OfRank(1))}}
		f.Add(bodyOf(encodeSnapshot(v)), bodyOf(wire.EncodeCommand(spread)), bodyOf(wire.EncodeCommand(claim)))
	}
	f.Fuzz(func(t *testing.T, view, first, second []byte) {
		snap, err := wire.Append(nil, wire.KindSnapshot, body(view))
		if err != nil {
			return // no CBOR
		}
		fsm := newFSM(testCluster, func() {}, func(string, ...any) {})
		if fsm.Restore(io.NopCloser(bytes.NewReader(snap))) != nil {
			return
		}
		for _, b := range [][]byte{first, second} {
			frame, err := wire.Append(nil, wire.KindCommand, body(b))
			if err != nil {
				continue
			}
			c, err := wire.DecodeCommand(frame)
			if err != nil {
				continue
			}
			to := reflect.New(reflect.TypeOf(c)).Elem()
			to.Set(reflect.ValueOf(c))
			for id := range fsm.state.View().Jobs {
				if named := to.FieldByName("Job"); named.IsValid() && named.Type() == reflect.TypeFor[replica.JobID]() {
					named.Set(reflect.ValueOf(id))
				}
				break
			}
			if fsm.state.View().Index == math.MaxUint64 {
				return
			}
			fsm.state.Apply(fsm.state.View().Index+1, to.Interface().(replica.Command))
		}
		v := fsm.state.View()
		b, err := encodeSnapshot(v) // what it has become must be read again
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeSnapshot(b, testCluster)
		if err != nil {
			t.Fatalf("its own snapshot is refused: %v", err)
		}
		if back, err := encodeSnapshot(again); err != nil || !bytes.Equal(back, b) { // digests are compared
			t.Errorf("its own snapshot is read as another state (%v)", err)
		}
	})
}

func FuzzBoltHead(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 8192))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := parseBoltHead(b); err == nil && (m.pageSize < 512 || m.pageSize > boltMaxPage) {
			t.Errorf("page size %d", m.pageSize)
		}
	})
}

// FuzzOwner: what is read is written and read again as the same.
func FuzzOwner(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte(`{"format":1,"cluster":"0c000000-0000-0000-0000-000000000000","node":"n1"}` + "\n"))
	f.Add([]byte(`{"format":1,"cluster":null,"node":"n1"} {}`))
	f.Add(make([]byte, maxOwner+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseOwner(b)
		if err != nil {
			if o != (owner{}) {
				t.Errorf("%+v beside an error", o)
			}
			return
		}
		again, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > maxOwner {
			return // escapes take more room than what they stand for
		}
		if back, err := parseOwner(again); err != nil || back != o {
			t.Errorf("%+v comes back as %+v: %v", o, back, err)
		}
	})
}
