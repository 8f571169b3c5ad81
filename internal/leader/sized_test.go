//go:build !race

package leader

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// Large values, in one goroutine: the race detector takes ten times as long for them and has nothing to see.

// An answer to status passes a link, whatever the size of a job: what takes the most room is left out, and it says so.
func TestStatusPassesALink(t *testing.T) {
	small := control.JobStatus{Name: "small", Holdings: []control.Holding{{Node: "n1"}}}
	large := control.JobStatus{Name: "large", Ranks: make([]control.RankStatus, 30_000), Parts: make([]control.PartStatus, 30_000), Holdings: make([]control.Holding, 100_000)}
	long := replica.NodeName(strings.Repeat("n", 63))
	for i := range large.Holdings {
		large.Holdings[i].Node = long
	}
	sent := func(jobs ...control.JobStatus) control.LeaderStatus {
		b, err := wire.Marshal(control.LeaderStatus{Jobs: jobs}.Fit())
		got, err2 := control.DecodeAs[control.LeaderStatus](b)
		if err := errors.Join(err, err2); err != nil || len(b) > control.MaxStatus {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		return got
	}
	got := sent(small, large)
	if j := got.Jobs[0]; j.LeftOut != "" || len(j.Holdings) != 1 {
		t.Errorf("of the small job something is left out: %+v", j)
	}
	if j := got.Jobs[1]; j.LeftOut != "holdings" || len(j.Holdings) != 0 || len(j.Ranks) != 30_000 || len(j.Parts) != 30_000 {
		t.Errorf("of the large job %q is left out, with %d holdings, %d parts and %d ranks", j.LeftOut, len(j.Holdings), len(j.Parts), len(j.Ranks))
	}
	large.Ranks = make([]control.RankStatus, 300_000)
	for i := range large.Ranks {
		large.Ranks[i].Node = long
	}
	if got = sent(large); got.Jobs[0].LeftOut != "holdings, parts, ranks" {
		t.Errorf("a larger one, without %q", got.Jobs[0].LeftOut)
	}
	few := control.JobStatus{Name: "few", Ranks: make([]control.RankStatus, 2), Holdings: make([]control.Holding, replica.MaxRanks+1), Waiting: []string{"bad \xff name"}}
	if got = sent(few); got.Jobs[0].LeftOut != "holdings" || len(got.Jobs[0].Ranks) != 2 || got.Jobs[0].Waiting[0] != "bad \ufffd name" {
		t.Errorf("more than a list may hold, and a text that is no UTF-8: without %q, %q", got.Jobs[0].LeftOut, got.Jobs[0].Waiting)
	}
}

// TestEndedJobsStaySmall: however many jobs have ended, and however large they were, a view stays a small part of what a link
// reads, and so does a snapshot.
func TestEndedJobsStaySmall(t *testing.T) {
	const world, jobs = 1000, 300
	st := lock.New(replica.ClusterID{1})
	index := uint64(0)
	apply := func(c replica.Command) {
		t.Helper()
		index++
		if out := st.Apply(index, c); out.Err != nil {
			t.Fatalf("%T: %v", c, out.Err)
		}
	}
	holder := replica.Holder{Node: "a", Incarnation: 1}
	apply(replica.RegisterNode{Node: replica.Node{Name: "a", Incarnation: 1, Session: 1, Addr: "127.0.0.1:1"}})
	for i := range jobs {
		id := replica.JobID{1, byte(i >> 8), byte(i)}
		apply(replica.CreateJob{ID: id, Name: fmt.Sprintf("job-%d", i), Layout: replica.Layout{World: world, Groups: make([]replica.GroupID, world)}})
		apply(replica.Begin{Job: id, Epoch: 1})
		if i < 2 {
			for r := range replica.Rank(world) {
				apply(replica.Claim{Job: id, Rank: r, Holder: holder, Geometry: replica.Digest{1}, Nonce: uint64(r) + 1})
			}
		}
		apply(replica.EndJob{Job: id, Reason: strings.Repeat("why ", 1<<20)})
	}
	v := st.View()
	if _, ok := v.Jobs[replica.JobID{1, byte((jobs - 1) >> 8), byte((jobs - 1) & 0xff)}]; len(v.Jobs) != 32 || !ok {
		t.Errorf("%d jobs are left, the newest among them: %t; want 32", len(v.Jobs), ok)
	}
	l := &Leader{view: v}
	frame, err := wire.Append(nil, control.KindView, viewMessage(l.view, l.term))
	if err != nil || len(frame) > 512<<10 {
		t.Errorf("a view of %d bytes, %v", len(frame), err)
	}
	// A snapshot of a version that kept them all whole is cut down when it is read.
	old := v
	old.Jobs = map[replica.JobID]*replica.Job{}
	for i := range 50 {
		id := replica.JobID{2, byte(i)}
		old.Jobs[id] = &replica.Job{ID: id, Name: "old", Phase: replica.Ended, Epoch: 7, Ranks: make([]replica.Claimed, world), LastIndex: uint64(i), NextIncarnation: 9000}
	}
	got := lock.FromView(old).View()
	if len(got.Jobs) != 32 || got.ForgottenEpoch != 7 || got.ForgottenIncarnation != 9000 || got.Jobs[replica.JobID{2, 49}] == nil || got.Jobs[replica.JobID{2, 49}].Ranks != nil || len(old.Jobs) != 50 {
		t.Errorf("after a restore: %d jobs, forgotten up to epoch %d, incarnation %d", len(got.Jobs), got.ForgottenEpoch, got.ForgottenIncarnation)
	}
}

// A view of 80,000 ranks, larger than any frame, is told in frames that a link takes.
func TestALargeViewIsFrames(t *testing.T) {
	c := newChair(t)
	job := fixture.LargeJob(80_000)
	c.view.Jobs[job.ID] = job
	if err := c.links.encode(c.view, c.term, c.now()); err != nil {
		t.Fatal(err)
	}
	frames, total := c.links.whole.frames, 0
	for _, f := range frames {
		total += len(f)
		if len(f) > control.PieceBytes+1<<10 {
			t.Fatalf("a frame of %d bytes", len(f))
		}
	}
	if total <= control.MaxLinkFrame || len(frames) > control.LinkQueue {
		t.Fatalf("%d bytes in %d frames: want more than fit into one of %d, and fewer than %d", total, len(frames), control.MaxLinkFrame, control.LinkQueue)
	}
}
