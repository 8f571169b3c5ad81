package host

import (
	"errors"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/adoption"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// sharded is a job of two slots in which this node (n1, rank 0) mirrors group 1, which rank 1 on n2 makes, planned at T.
func sharded(d *rig, T replica.Generation) (job *replica.Job, push func(g replica.Generation, seed uint64) (transfer.Key, replica.Manifest, [][]byte)) {
	job = fixture.Job()
	job.Phase, job.Epoch, job.ClosedEpoch, job.Options.Slots = replica.Planned, 4, 3, 2
	job.Layout = replica.Layout{World: 2, Groups: []replica.GroupID{0, 1}}
	job.GroupMirrors, job.GroupGeometry = [][]replica.NodeName{{"n2"}, {"n1"}}, make([]replica.Digest, 2)
	from := d.arena(shm.Spec{Rank: 1, Geometry: fixture.Geometry(d.t, false), Slots: 2})
	push = func(g replica.Generation, seed uint64) (transfer.Key, replica.Manifest, [][]byte) {
		man, chunks := manifestFor(from, slot(0), g, seed)
		man.Part, man.Regions, man.Rank = replica.OfGroup(1), from.Geometry().Of(replica.ReplicatedPart), 1
		man.Root = shm.Root(&man)
		k := keyFor(replica.OfGroup(1), g, man.Root)
		k.Epoch = 4
		return k, man, chunks
	}
	_, man, _ := push(T, uint64(T.Step))
	job.GroupGeometry[1] = man.Geometry
	job.Plan = &replica.Plan{Epoch: 4, Generation: T, Layout: job.Layout, Ranks: job.Ranks, Mirrors: job.Mirrors, GroupMirrors: job.GroupMirrors,
		Sources: []replica.Source{{Part: replica.OfGroup(1), Root: man.Root, Tier: replica.PeerRAM, Holders: []replica.Holder{{Node: "n2", Incarnation: 22}}}}}
	return job, push
}

// opened is that job resumed at T.
func opened(job *replica.Job, T replica.Generation) *replica.Job {
	return fixture.Changed(job, func(j *replica.Job) {
		j.Phase, j.Committed, j.Position, j.Lineage = replica.Open, T, replica.Position{Epoch: 4, Step: T.Step}, append(job.Lineage[:2:2], replica.Opened{Epoch: 4, Start: T.Step})
	})
}

// A mirror is given the committed part by its maker's push and asked to fetch it for a plan. It takes it once, whichever comes first, and has
// a place for the candidate.
func TestAMirrorTakesAPartOnce(t *testing.T) {
	T := fixture.Gen(3, 5)
	for _, pushFirst := range []bool{true, false} {
		d := newRig(t)
		job, push := sharded(d, T)
		lj := d.put(job)
		k, man, chunks := push(T, 5)
		fill := func(s transfer.Sink) {
			t.Helper()
			for i, b := range chunks {
				if err := s.Put(i, b); err != nil {
					t.Fatal(err)
				}
			}
		}
		f := &fetch.Parts{Fetcher: d.hands.Fetches, Job: job, Plan: job.Plan, Rank: 1, Incarnation: 5}
		if pushFirst {
			sink, done, err := d.accept("n2", k, man)
			if err != nil {
				t.Fatal(err)
			}
			d.notify(d.mirrors, act.Changed{Job: lj.Job.ID})
			d.serves(func() {
				if _, _, err := d.hands.Fetches.Stage(d.ctx, lj.Job.ID, lj.Mirrors.Arena(k.Part), man, f); !errors.Is(err, holding.ErrBrought) {
					t.Errorf("a fetch that was begun before gets a place beside the push: %v", err)
				}
			})
			fill(sink)
			d.serves(func() { err = done(nil) })
			if err != nil {
				t.Fatal(err)
			}
		} else {
			ref, err := d.mirrorFor(lj, man)
			if err != nil {
				t.Fatal(err)
			}
			var at shm.Place
			var s *shm.Staging
			d.serves(func() { at, s, err = d.hands.Fetches.Stage(d.ctx, lj.Job.ID, ref, man, f) })
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := d.accept("n2", k, man); !errors.Is(err, transfer.ErrNotYet) {
				t.Errorf("a push of what is being fetched: %v, want it to come again", err)
			}
			fill(s)
			if err := s.Seal(); err != nil {
				t.Fatal(err)
			}
			ref.Unstage(at, s)
			if sink, _, err := d.accept("n2", k, man); err != nil || !sink.Have(0) {
				t.Errorf("a push of what is here: %v", err)
			}
		}
		open := opened(job, T)
		d.views(control.View{Index: open.LastIndex, Term: 9, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{open}})
		c := fixture.Gen(4, 6)
		d.leaderSays(replica.Candidate{Job: fixture.JobID, Term: 9, N: 1, Position: replica.Position(c), Generation: c})
		k, man, _ = push(c, 6)
		if _, _, err := d.accept("n2", k, man); err != nil {
			t.Errorf("pushed first %v: the mirror takes no candidate: %v", pushFirst, err)
		}
	}
}

// What lies in a mirror twice all the same, a daemon of before having taken it so, is freed once for the candidate.
func TestWhatLiesTwiceGivesWay(t *testing.T) {
	T := fixture.Gen(3, 5)
	d := newRig(t)
	job, push := sharded(d, T)
	lj := d.put(opened(job, T))
	_, man, chunks := push(T, 5)
	ref, err := d.mirrorFor(lj, man)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		s, err := ref.Stage(slot(i), man)
		for n := 0; err == nil && n < len(chunks); n++ {
			err = s.Put(n, chunks[n])
		}
		if err == nil {
			err = s.Seal()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c := fixture.Gen(4, 6)
	d.leaderSays(replica.Candidate{Job: fixture.JobID, Term: 9, N: 1, Position: replica.Position(c), Generation: c})
	k, man, _ := push(c, 6)
	if _, _, err := d.accept("n2", k, man); err != nil {
		t.Errorf("the mirror takes no candidate: %v", err)
	}
	if _, _, ok := ref.At(shm.Slot, T); !ok {
		t.Error("both copies of the committed part are gone")
	}
}

// A push of a former candidate that stalls holds a slot of two. The next candidate breaks it off, and finds the place when it comes again.
func TestAStalledPushGivesWayToTheCandidate(t *testing.T) {
	T := fixture.Gen(3, 5)
	d := newRig(t)
	job, push := sharded(d, T)
	lj := d.put(opened(job, T))
	name := func(n uint64, g replica.Generation) {
		d.leaderSays(replica.Candidate{Job: fixture.JobID, Term: 9, N: n, Position: replica.Position(g), Generation: g})
	}
	k, man, chunks := push(T, 5)
	d.pushed(k, man, chunks)
	former, next := fixture.Gen(4, 6), fixture.Gen(4, 8)
	name(1, former)
	k, man, chunks = push(former, 6)
	stalled, done, err := d.accept("n2", k, man)
	if err != nil {
		t.Fatal(err)
	}
	name(2, next)
	k2, man2, _ := push(next, 8)
	if _, _, err := d.accept("n2", k2, man2); !errors.Is(err, transfer.ErrNotYet) {
		t.Fatalf("the candidate: %v, want it to come again", err)
	}
	ref := lj.Mirrors.Arena(k.Part)
	d.until("the former one is broken off", func() bool { return len(staged(ref)) == 0 })
	if err := stalled.Put(0, chunks[0]); err == nil {
		t.Error("a chunk of the former one is still taken")
	}
	if _, _, err := d.accept("n2", k2, man2); err != nil {
		t.Errorf("the candidate, when it comes again: %v", err)
	}
	d.serves(func() {
		if err := done(nil); err == nil {
			t.Error("the former one is sealed")
		}
	})
	if len(staged(ref)) != 1 {
		t.Error("the end of the former push has taken the candidate's place")
	}
}

// Of two slots one holds what is committed, and one the candidate that was pinned when the epoch closed. A plan at a third generation
// takes the candidate's place: a pin of an epoch that was planned over means nothing.
func TestAPlanFindsAPlaceBesideThePinnedCandidate(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Options.Slots = 2 }))
	lr := d.attach(lj, 0)
	lr.Arena = d.arena(shm.Spec{Rank: 0, Geometry: fixture.Geometry(t, false), Slots: 2})
	C, X, T := lj.Job.Committed, fixture.Gen(3, 6), fixture.Gen(3, 8)
	d.both(lr.Arena, 0, C)
	d.both(lr.Arena, 1, X)
	d.leaderSays(replica.Candidate{Job: fixture.JobID, Term: 9, N: 1, Position: replica.Position(X), Generation: X})
	if info, err := lr.Arena.Sealed(slot(1)); err != nil || info.PinN == 0 {
		t.Fatalf("the candidate is not pinned: %+v, %v", info, err)
	}
	man, _ := manifestFor(lr.Arena, slot(0), T, 77)
	planned := fixture.Changed(fixture.Closed(lj.Job), func(j *replica.Job) {
		j.Phase, j.Epoch = replica.Planned, 4
		j.Plan = &replica.Plan{Epoch: 4, Generation: T, Layout: j.Layout, Ranks: j.Ranks, Sources: []replica.Source{{Part: replica.OfGroup(0), Root: man.Root}}}
	})
	lj.Job = planned
	f := &fetch.Parts{Fetcher: d.hands.Fetches, Job: planned, Plan: planned.Plan, Rank: 0, Incarnation: lr.Incarnation}
	d.serves(func() {
		if at, _, err := d.hands.Fetches.Stage(d.ctx, lj.Job.ID, lr.Arena, man, f); err != nil || at != slot(1) {
			t.Errorf("staged in %v, %v; want the former candidate's slot", at, err)
		}
	})
	if _, _, ok := lr.Arena.At(shm.Slot, C); !ok {
		t.Error("what is committed was given up")
	}
}

// Two mirror arenas of one part come back: that with the newer part is the mirror, and nothing half done stays in it. The other one is
// listed, and goes with the next commit.
func TestTwoMirrorsOfOnePartComeBack(t *testing.T) {
	for _, newerFirst := range []bool{true, false} {
		d := newRig(t)
		T := fixture.Gen(3, 5)
		job, _ := sharded(d, T)
		lj := d.put(opened(job, T))
		spec := shm.Spec{Rank: 1, Geometry: fixture.Geometry(t, false), Slots: 2, Mirror: true}
		older, newer := d.arena(spec), d.arena(spec)
		d.seal(older, slot(0), fixture.Gen(3, 4), 4)
		d.seal(newer, slot(0), T, 5)
		d.stage(newer, slot(1), fixture.Gen(3, 6), 6)
		order := []*holding.Arena{older, newer}
		if newerFirst {
			order = []*holding.Arena{newer, older}
		}
		d.notify(d.adoption, adoption.Kept{Arenas: order})
		d.notify(d.adoption, act.Changed{})
		key := room.Mirrored(lj.Job, newer.Spec())
		if lj.Mirrors.Arena(key) != newer || len(lj.Retired) != 1 || lj.Retired[0] != older {
			t.Errorf("newer first %v: the mirror has generation %v", newerFirst, lj.Mirrors.Arena(key).NewestSealed(shm.Slot))
		}
		if st := newer.Word(slot(1)).State(); st != replica.SlotFree {
			t.Errorf("newer first %v: what the dead daemon was writing is %v", newerFirst, st)
		}
		if list := d.arenaList(); len(list) != 2 {
			t.Errorf("newer first %v: listed %+v", newerFirst, list)
		}
	}
}
