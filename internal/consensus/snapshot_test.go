package consensus

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

func sampleView() lock.View {
	id := replica.JobID{1, 2, 3}
	return lock.View{
		Index: 9, Cluster: testCluster, Era: 1,
		Nodes: map[replica.NodeName]replica.Node{"n1": {Name: "n1", Incarnation: 4, Session: 2, Addr: "h:1", Labels: map[string]string{"rack": "a"}}},
		Jobs: map[replica.JobID]*replica.Job{id: {
			ID: id, Name: "job", Era: 1, Layout: replica.Layout{World: 2, Groups: []replica.GroupID{0, 0}}, Phase: replica.Open,
			Epoch: 3, ClosedEpoch: 2, LastIndex: 9, Ranks: make([]replica.Claimed, 2), GroupGeometry: make([]replica.Digest, 1),
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
		"groups missing":    {func(v *lock.View) { v.Jobs[job].Layout.Groups = nil }, "groups"},
		"group too high":    {func(v *lock.View) { v.Jobs[job].Layout.Groups[1] = 1 << 31 }, "group"},
		"phase":             {func(v *lock.View) { v.Jobs[job].Phase = 77 }, "phase"},
		"epochs":            {func(v *lock.View) { v.Jobs[job].ClosedEpoch = 4 }, "epoch"},
		"ranks missing":     {func(v *lock.View) { v.Jobs[job].Ranks = nil }, "ranks"},
		"group geometry":    {func(v *lock.View) { v.Jobs[job].GroupGeometry = make([]replica.Digest, 9) }, "groups"},
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

func FuzzSnapshot(f *testing.F) {
	b, err := encodeSnapshot(sampleView())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{})
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := decodeSnapshot(b, testCluster)
		if err != nil {
			return
		}
		if err := checkView(v); err != nil {
			t.Error(err)
		}
		s := lock.FromView(v) // what passed must be safe to go on from
		s.Apply(v.Index+1, register("n9"))
		if _, err := encodeSnapshot(s.View()); err != nil {
			t.Error(err)
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
