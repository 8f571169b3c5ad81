package host

import (
	"errors"
	"github.com/replicad/replicad/internal/host/job"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// serves runs what a transfer does beside the host, and handles the host's events meanwhile.
func (d *rig) serves(fn func()) {
	d.t.Helper()
	done := make(chan struct{})
	d.work.Go(func() { defer close(done); fn() })
	late := time.After(fixture.Patience)
	for {
		select {
		case <-done:
			return
		case ev := <-d.in:
			d.handle(ev)
		case <-late:
			d.t.Fatal("a transfer waits for the host for ever")
		}
	}
}

func (d *rig) store() store { return store{d.Host, d.ctx} }

// keyFor is how rank 1 on node n2 asks for a part.
func keyFor(part replica.Part, g replica.Generation, root replica.Digest) transfer.Key {
	return transfer.Key{Cluster: fixture.Cluster, Era: 1, Job: fixture.JobID, Epoch: 3, Part: part, Generation: g, Root: root, Rank: 1, Incarnation: 5}
}

// handedOut6 is the claim of another rank.
func handedOut6(j *replica.Job) { j.NextIncarnation = 6 }

// What a stream names is checked against what this node knows: older is refused for good, newer is "not yet".
func TestTransfersAreChecked(t *testing.T) {
	foreign := errors.New("some error, of no kind that is tried again")
	for what, c := range map[string]struct {
		key  func(*transfer.Key)
		job  func(*replica.Job)
		want error
	}{
		"good":                     {func(k *transfer.Key) {}, nil, nil},
		"another cluster":          {func(k *transfer.Key) { k.Cluster[0]++ }, nil, foreign},
		"another cluster, no job":  {func(k *transfer.Key) { k.Cluster[0]++; k.Job[0]++ }, nil, foreign},
		"unknown job":              {func(k *transfer.Key) { k.Job[0]++ }, nil, transfer.ErrNotYet},
		"newer epoch":              {func(k *transfer.Key) { k.Epoch = 4 }, nil, transfer.ErrNotYet},
		"newer era":                {func(k *transfer.Key) { k.Era = 2 }, nil, transfer.ErrNotYet},
		"older era":                {func(k *transfer.Key) { k.Era = 0 }, nil, transfer.ErrFenced},
		"closed epoch":             {func(k *transfer.Key) { k.Epoch = 2 }, nil, transfer.ErrFenced},
		"its own, just closed":     {func(k *transfer.Key) {}, func(j *replica.Job) { j.ClosedEpoch = 3 }, transfer.ErrFenced},
		"ended":                    {func(k *transfer.Key) {}, func(j *replica.Job) { j.Phase = replica.Ended }, transfer.ErrFenced},
		"former incarnation":       {func(k *transfer.Key) { k.Incarnation = 4 }, nil, transfer.ErrFenced},
		"incarnation to come":      {func(k *transfer.Key) { k.Incarnation = 6 }, nil, transfer.ErrNotYet},
		"handed out to another":    {func(k *transfer.Key) { k.Incarnation = 6 }, handedOut6, transfer.ErrFenced},
		"another rank's":           {func(k *transfer.Key) { k.Rank = 0 }, nil, transfer.ErrFenced},
		"no such rank":             {func(k *transfer.Key) { k.Rank = 2 }, nil, transfer.ErrFenced},
		"no such rank, wraps":      {func(k *transfer.Key) { k.Rank = 1<<32 - 1 }, nil, transfer.ErrFenced},
		"unclaimed, and says zero": {func(k *transfer.Key) { k.Incarnation = 0 }, nil, transfer.ErrFenced},
	} {
		d := newRig(t)
		job := fixture.Job()
		if c.job != nil {
			c.job(job)
		}
		d.put(job)
		k := keyFor(replica.OfRank(1), fixture.Gen(3, 5), replica.Digest{})
		c.key(&k)
		lj, err := d.store().check(k, false)
		kinds := []error{transfer.ErrNotYet, transfer.ErrFenced, transfer.ErrUnknownPart}
		switch {
		case c.want == nil && (err != nil || lj != d.jobs.all[fixture.JobID]):
			t.Errorf("%s: %v", what, err)
		case errors.Is(c.want, foreign) && (err == nil || slices.ContainsFunc(kinds, func(k error) bool { return errors.Is(err, k) })):
			t.Errorf("%s: %v, want an error that is not tried again", what, err)
		case c.want != nil && !errors.Is(c.want, foreign) && !errors.Is(err, c.want):
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}

// What ranks sealed before the fence is taken until the plan exists, from those that hold their ranks alone; nothing is served.
func TestPushesAreTakenUntilThePlan(t *testing.T) {
	for what, c := range map[string]struct {
		key  func(*transfer.Key)
		job  func(*replica.Job)
		want error
	}{
		"closed":             {func(k *transfer.Key) {}, func(j *replica.Job) {}, nil},
		"an epoch before":    {func(k *transfer.Key) { k.Epoch = 2 }, func(j *replica.Job) {}, transfer.ErrFenced},
		"former incarnation": {func(k *transfer.Key) { k.Incarnation = 4 }, func(j *replica.Job) {}, transfer.ErrFenced},
		"planned":            {func(k *transfer.Key) {}, func(j *replica.Job) { j.Phase, j.Epoch = replica.Planned, 4 }, transfer.ErrFenced},
		"the plan's own":     {func(k *transfer.Key) { k.Epoch = 4 }, func(j *replica.Job) { j.Phase, j.Epoch = replica.Planned, 4 }, nil},
		"its plan is closed": {func(k *transfer.Key) {}, func(j *replica.Job) { j.Epoch, j.ClosedEpoch = 4, 4 }, transfer.ErrFenced},
		"ended":              {func(k *transfer.Key) {}, func(j *replica.Job) { j.Phase = replica.Ended }, transfer.ErrFenced},
	} {
		d := newRig(t)
		job := fixture.Closed(fixture.Job())
		c.job(job)
		d.put(job)
		k := keyFor(replica.OfRank(1), fixture.Gen(3, 5), replica.Digest{})
		c.key(&k)
		if _, err := d.store().check(k, true); !errors.Is(err, c.want) {
			t.Errorf("%s: a push: %v, want %v", what, err, c.want)
		}
		if _, err := d.store().check(k, false); what == "closed" && !errors.Is(err, transfer.ErrFenced) {
			t.Errorf("%s: a fetch: %v", what, err)
		}
	}
}

// A part goes to the node that holds the rank it is for, or is to mirror it, and is held while it is read.
func TestOpen(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	info := d.seal(lr.Arena, slot(2), fixture.Gen(3, 5), 7)
	open := func(peer replica.NodeName, k transfer.Key) (r transfer.Reader, err error) {
		d.serves(func() { r, err = d.store().Open(peer, k) })
		return r, err
	}
	k := keyFor(replica.OfGroup(0), fixture.Gen(3, 5), info.Root)
	if r, err := open("n3", k); err == nil {
		r.Close()
		t.Error("a node that neither holds nor mirrors the rank gets its part")
	}
	for what, k := range map[string]transfer.Key{
		"another generation": keyFor(replica.OfGroup(0), fixture.Gen(3, 6), info.Root),
		"another root":       keyFor(replica.OfGroup(0), fixture.Gen(3, 5), replica.Digest{1}),
		"another part":       keyFor(replica.OfRank(0), fixture.Gen(3, 5), info.Root),
	} {
		if _, err := open("n2", k); !errors.Is(err, transfer.ErrUnknownPart) {
			t.Errorf("%s: %v, want %v", what, err, transfer.ErrUnknownPart)
		}
	}
	r, err := open("n2", k)
	if err != nil {
		t.Fatal(err)
	}
	man, chunks := manifestFor(lr.Arena, slot(2), fixture.Gen(3, 5), 7)
	if got := r.Manifest(); got.Root != man.Root || got.Part != replica.OfGroup(0) || !reflect.DeepEqual(got.Lineage, lj.Job.Lineage) || len(got.Regions) != 1 || got.Regions[0].Name != "weight" {
		t.Errorf("manifest %+v", got)
	}
	for i, want := range chunks {
		if got, err := r.ReadChunk(i, nil); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("chunk %d: %d bytes, %v", i, len(got), err)
		}
	}
	if lr.Arena.Readers(slot(2)) != 1 {
		t.Errorf("held by %d readers", lr.Arena.Readers(slot(2)))
	}
	d.serves(func() { r.Close(); r.Close() })
	d.until("the reader's release", func() bool { return len(held(lr.Arena)) == 0 })
	if len(d.in) != 0 || len(held(lr.Arena)) != 0 {
		t.Errorf("closed twice: %d events more, held %v", len(d.in), held(lr.Arena))
	}

	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Plan = &replica.Plan{Mirrors: [][]replica.NodeName{{"n2"}, {"n3"}}} })
	if r, err = open("n3", k); err != nil {
		t.Errorf("the node that is to mirror rank 1 is refused: %v", err)
	} else {
		d.serves(r.Close)
	}
}

// An arena that is given up is unmapped after its last reader only.
func TestArenaOutlivesItsGivingUp(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.seal(lr.Arena, slot(0), fixture.Gen(3, 5), 7)
	at, ok := lj.View().Find(nil, replica.OfGroup(0), fixture.Gen(3, 5), lj.View().Copies()[0].Info.Root)
	if !ok {
		t.Fatal("a sealed part is not found")
	}
	r, err := d.hands.Open(lj.Job, at)
	if err != nil {
		t.Fatal(err)
	}
	delete(lj.Ranks, 0)
	d.forget(lr.Arena)
	if _, err := r.ReadChunk(0, nil); err != nil {
		t.Errorf("the reader lost its arena: %v", err)
	}
	d.serves(r.Close)
	d.until("the end of the mapping after its last reader", func() bool { return lr.Arena.Word(slot(0)) == 0 })
}

// private is a private part of rank 1 as its node would push it.
func (d *rig) private(lj *job.Job, g replica.Generation, seed uint64) (transfer.Key, replica.Manifest, [][]byte) {
	from := d.arena(shm.Spec{Rank: 1, Geometry: fixture.Geometry(d.t, false)})
	man, chunks := manifestFor(from, ring(0), g, seed)
	man.Regions = from.Geometry().Of(replica.PrivatePart)
	return keyFor(replica.OfRank(1), g, man.Root), man, chunks
}

func (d *rig) accept(peer replica.NodeName, k transfer.Key, man replica.Manifest) (sink transfer.Sink, done func(error) error, err error) {
	d.serves(func() { sink, done, err = d.store().Accept(peer, k, man) })
	return sink, done, err
}

// A mirror takes a part from the node of the rank that makes it, once, and answers the candidate with it.
// pushed has n2 push a part, from its offer to its seal.
func (d *rig) pushed(k transfer.Key, man replica.Manifest, chunks [][]byte) {
	d.t.Helper()
	sink, done, err := d.accept("n2", k, man)
	if err != nil {
		d.t.Fatal(err)
	}
	for i, b := range chunks {
		if err := sink.Put(i, b); err != nil {
			d.t.Fatal(err)
		}
	}
	d.serves(func() { err = done(nil) })
	if err != nil {
		d.t.Fatal(err)
	}
}

func TestAccept(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	k, man, chunks := d.private(lj, fixture.Gen(3, 6), 3)
	lj.Candidate = fixture.Candidate(1, 6)
	for what, c := range map[string]struct {
		peer replica.NodeName
		part replica.Part
	}{"not the rank's node": {"n3", replica.OfRank(1)}, "another rank's part": {"n2", replica.OfRank(0)}, "another group's": {"n2", replica.OfGroup(1)}} {
		bad, m := k, man
		bad.Part, m.Part = c.part, c.part
		if _, _, err := d.accept(c.peer, bad, m); err == nil || errors.Is(err, transfer.ErrNotYet) {
			t.Errorf("%s: %v, want a refusal", what, err)
		}
	}
	if len(lj.Mirrors.All()) != 0 {
		t.Error("a refused push made an arena")
	}
	d.pushed(k, man, chunks)
	d.until("the pin", func() bool { return lj.Answered[replica.OfRank(1)] })
	if got := partsOf(fixture.Only[replica.Pinned](d.says())); len(got) != 1 || got[0].Part != replica.OfRank(1) || !got[0].Mirror || got[0].Root != man.Root {
		t.Errorf("pinned %+v", got)
	}
	if list, err := d.loadArenas(); err != nil || len(list.Arenas) != 1 || !list.Arenas[0].Mirror || list.Arenas[0].Rank != 1 {
		t.Errorf("the list on disk: %+v, %v", list, err)
	}
	if !d.parked()[lj.Mirrors.Arena(replica.OfRank(1)).Key()] {
		t.Error("the mirror's arena is not with the keeper")
	}

	sink, done, err := d.accept("n2", k, man) // the answer was lost
	if err != nil {
		t.Fatal(err)
	}
	for i := range chunks {
		if !sink.Have(i) {
			t.Errorf("chunk %d is asked for again", i)
		}
	}
	if err := done(nil); err != nil {
		t.Error(err)
	}
	if sealed := lj.View().Copies(); len(sealed) != 1 {
		t.Errorf("%d parts are held", len(sealed))
	}
}

// What is pushed while the job is closed is held and reported, so that the plan may count on it.
func TestAcceptWhileClosed(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Closed(fixture.Job()))
	k, man, chunks := d.private(lj, fixture.Gen(3, 6), 3)
	d.pushed(k, man, chunks)
	want := replica.Held{Part: replica.OfRank(1), Generation: fixture.Gen(3, 6), Root: man.Root, Mirror: true, Rank: 1, Producer: man.Incarnation}
	d.until("the report", func() bool {
		return slices.ContainsFunc(fixture.Only[replica.NodeReport](d.says()), func(r replica.NodeReport) bool { return slices.Contains(r.Parts, want) })
	})
}

// A push that breaks off gives its place back, and nobody else's: by the time the host hears of it the place may hold the
// next push, sealed and counted on.
func TestBrokenPushFreesOnlyItsOwn(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	k, man, chunks := d.private(lj, fixture.Gen(3, 6), 3)
	_, done, err := d.accept("n2", k, man)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	d.work.Go(func() { ended <- done(errors.New("the stream broke")) })
	late := <-d.in // the place is free by now, and the host has not heard
	a := lj.Mirrors.Arena(replica.OfRank(1))
	s, err := a.Stage(ring(0), man)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range chunks {
		if err := s.Put(i, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Seal(); err != nil {
		t.Fatal(err)
	}
	d.handle(late)
	if err := <-ended; err == nil {
		t.Error("a broken push is answered as done")
	}
	if _, err := a.Sealed(ring(0)); err != nil {
		t.Errorf("the next push's part is gone: %v", err)
	}
}

// mirrorFor asks for a mirror's arena as a transfer does.
func (d *rig) mirrorFor(lj *job.Job, man replica.Manifest) (ref *holding.Arena, err error) {
	d.t.Helper()
	d.serves(func() { ref, err = d.mirrorArena(d.ctx, lj.Job.ID, 1, man) })
	return ref, err
}

func TestMirrorArenas(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	group := d.arena(shm.Spec{Rank: 1, Geometry: fixture.Geometry(t, true)})
	d.seal(group, frozenPlace, fixture.Gen(1, 0), 99)
	man := func(p shm.Place) replica.Manifest {
		m, _ := manifestFor(group, p, fixture.Gen(3, 6), 3)
		m.Part.Index = map[shm.PlaceKind]uint32{shm.Slot: 0, shm.Ring: 1, shm.Frozen: 0}[p.Kind]
		m.Regions = group.Geometry().Of(p.PartKind())
		return m
	}
	lj.Job.GroupGeometry = []replica.Digest{man(slot(0)).Geometry}
	if _, err := d.mirrorFor(lj, man(frozenPlace)); !errors.Is(err, transfer.ErrNotYet) {
		t.Errorf("a frozen part before what binds it: %v, want %v", err, transfer.ErrNotYet)
	}
	big := man(ring(0))
	lj.Job.Options.PrivateCap = big.Bytes - 1
	if _, err := d.mirrorFor(lj, big); err == nil {
		t.Error("a private part beyond the cap gets memory")
	}
	lj.Job.Options.PrivateCap = big.Bytes
	lie := man(ring(0))
	lie.Regions = slices.Clone(lie.Regions)
	lie.Regions[0].Name = "another"
	if _, err := d.mirrorFor(lj, lie); err == nil {
		t.Error("regions that do not make the geometry get memory")
	}
	other := man(slot(0))
	other.Geometry[0]++
	if _, err := d.mirrorFor(lj, other); err == nil {
		t.Error("a geometry that is not the group's gets memory")
	}
	if len(lj.Mirrors.All()) != 0 {
		t.Fatalf("mirrors of refused manifests: %v", lj.Mirrors.All())
	}
	p, err := d.mirrorFor(lj, man(ring(0)))
	if err != nil {
		t.Fatal(err)
	}
	g, err := d.mirrorFor(lj, man(slot(0)))
	if err != nil {
		t.Fatal(err)
	}
	if h := p.Header(); h.Slots != 0 || h.Ring == 0 {
		t.Errorf("a private part's mirror has %d slots, %d ring places", h.Slots, h.Ring)
	}
	if h := g.Header(); h.Slots != 4 || h.Ring != 0 || h.FrozenBytes == 0 {
		t.Errorf("a group's mirror has %d slots, %d ring places, %d bytes of frozen", h.Slots, h.Ring, h.FrozenBytes)
	}
	for what, m := range map[string]replica.Manifest{"private": man(ring(0)), "replicated": man(slot(0)), "frozen": man(frozenPlace)} {
		want := g
		if what == "private" {
			want = p
		}
		if again, err := d.mirrorFor(lj, m); err != nil || again != want {
			t.Errorf("the next %s part gets another arena: %v", what, err)
		}
	}
	if k := room.Mirrored(lj.Job, g.Spec()); k != replica.OfGroup(0) {
		t.Errorf("adopted, the group's mirror would be taken for %v", k)
	}
	if k := room.Mirrored(lj.Job, p.Spec()); k != replica.OfRank(1) {
		t.Errorf("adopted, the private part's mirror would be taken for %v", k)
	}
}

// A mirrored replicated part counts only beside the frozen part that it binds.
func TestMirrorCountsWithItsFrozenPart(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	a := d.mirrorOf(lj, replica.OfGroup(0), 1, true)
	lj.Candidate = fixture.Candidate(1, 6)
	d.seal(a, slot(0), fixture.Gen(3, 6), 3)
	d.answerCandidate(lj)
	d.report(lj)
	said := d.says()
	if got := fixture.Only[replica.Pinned](said); len(got) != 0 || len(pins(t, a)) != 0 {
		t.Errorf("pinned %+v without its frozen part", got)
	}
	if got := fixture.Only[replica.NodeReport](said); len(got) != 1 || len(got[0].Parts) != 0 {
		t.Errorf("reported %+v without its frozen part", got)
	}
	s := d.seal(a, frozenPlace, fixture.Gen(1, 0), 98) // of another root
	if d.answerCandidate(lj); len(fixture.Only[replica.Pinned](d.says())) != 0 {
		t.Errorf("another frozen part, of root %v, will do", s.Root)
	}
	a.Free(frozenPlace)
	d.seal(a, frozenPlace, fixture.Gen(1, 0), 99)
	d.answerCandidate(lj)
	d.report(lj)
	said = d.says()
	if got := partsOf(fixture.Only[replica.Pinned](said)); len(got) != 1 || got[0].Part != replica.OfGroup(0) || !got[0].Mirror {
		t.Errorf("pinned %+v beside its frozen part", got)
	}
	if got := fixture.Only[replica.NodeReport](said); len(got) != 1 || len(got[0].Parts) != 1 {
		t.Errorf("reported %+v beside its frozen part", got)
	}
}

// A frozen part that lies here in the arena of a process that has gone is of no use to the mirror of the group: the arena that has the
// group's part must have it too. A push that was answered with that other copy left the mirror's part uncounted, and the job's commits
// waiting for it until the job's end.
func TestFrozenPartIsPutBesideWhatBindsIt(t *testing.T) {
	d := newRig(t)
	old := d.arena(shm.Spec{Rank: 0, Geometry: fixture.Geometry(t, true)})
	d.seal(old, frozenPlace, fixture.Gen(1, 0), 99)
	frozen, frozenChunks := manifestFor(old, frozenPlace, fixture.Gen(1, 0), 99)
	group, groupChunks := manifestFor(old, slot(0), fixture.Gen(3, 6), 7)
	frozen.Regions, group.Regions = old.Geometry().Of(replica.FrozenPart), old.Geometry().Of(replica.ReplicatedPart)
	lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Ranks[0].Node, j.Ranks[0].NodeIncarnation = "n2", 22
		j.GroupMirrors, j.GroupGeometry = [][]replica.NodeName{{"n1"}}, []replica.Digest{group.Geometry}
	}))
	lj.Candidate = fixture.Candidate(1, 6)
	lj.Retired = append(lj.Retired, old)
	for _, m := range []struct {
		man    *replica.Manifest
		chunks [][]byte
	}{{&group, groupChunks}, {&frozen, frozenChunks}} {
		k := transfer.Key{Cluster: fixture.Cluster, Era: 1, Job: fixture.JobID, Epoch: 3, Part: m.man.Part, Generation: m.man.Generation, Root: m.man.Root, Rank: 0, Incarnation: 4}
		d.pushed(k, *m.man, m.chunks)
	}
	d.until("the pin", func() bool { return lj.Answered[replica.OfGroup(0)] })
}
