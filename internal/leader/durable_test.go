package leader

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/checkpoint"
	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
	"github.com/zeebo/xxh3"
)

// shelf gives the leader a durable tier.
func (c *chair) shelf() string {
	c.t.Helper()
	dir := c.t.TempDir()
	s, err := checkpoint.Open(c.t.Context(), dir)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { s.Close() })
	c.store, c.disk = s, s
	return dir
}

// writes puts a durable generation of a job of one rank on the shelf.
func (c *chair) writes(name string, cluster replica.ClusterID, id replica.JobID, g replica.Generation, lacks ...replica.Lacking) {
	c.t.Helper()
	regions := fixture.Geometry(c.t, false)
	m := checkpoint.Marker{JobName: name, Job: id, Generation: g, Position: replica.Position(g), Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Lineage: replica.Lineage{{Epoch: 1}}, Lacks: lacks}
	for _, p := range []replica.Part{replica.OfGroup(0), replica.OfRank(0)} {
		b := make([]byte, map[replica.PartKind]uint64{replica.ReplicatedPart: regions.ReplicatedBytes, replica.PrivatePart: regions.PrivateBytes}[p.Kind])
		man := replica.Manifest{Cluster: cluster, Era: 1, Job: id, Part: p, Generation: g, Incarnation: 1, Geometry: xxh3.Hash128(regions.DigestInput(p.Kind)).Bytes(),
			Bytes: uint64(len(b)), ChunkBytes: 4096, Lineage: m.Lineage}
		for i := range replica.ChunkCount(man.Bytes, man.ChunkBytes) {
			off, n := replica.ChunkSpan(i, man.Bytes, man.ChunkBytes)
			man.Chunks = append(man.Chunks, xxh3.Hash128(b[off:off+n]).Bytes())
		}
		man.Root = xxh3.Hash128(man.RootInput()).Bytes()
		info, err := c.disk.WriteShard(c.t.Context(), name, man, regions.Regions, nil, func(i int, dst []byte) ([]byte, error) {
			clear(dst)
			return dst, nil
		})
		if err != nil {
			c.t.Fatal(err)
		}
		m.Shards = append(m.Shards, info)
	}
	if err := c.disk.WriteMarker(c.t.Context(), m); err != nil {
		c.t.Fatal(err)
	}
}

// lost is a job whose whole memory is gone and whose log says that a generation was written to the durable tier.
func lost() *replica.Job {
	return fixture.Closed(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Layout, j.Ranks, j.Mirrors = replica.Layout{World: 1, Groups: []replica.GroupID{0}}, make([]replica.Claimed, 1), make([][]replica.NodeName, 1)
		j.Options.DurableEvery, j.Durable, j.Parts = 5, fixture.Gen(1, 4), nil
	}))
}

// What lies in a durable tier that can't be read nobody knows: the job is not ended, and status says what it waits for.
func TestUnreadDurableTierEndsNoJob(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, c *chair)
		says  string
	}{
		{"none", func(*testing.T, *chair) {}, "the leader runs without its durable tier"},
		{"unreadable", func(t *testing.T, c *chair) {
			if err := os.WriteFile(filepath.Join(c.shelf(), "job"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not a directory"},
		{"shard unreadable", func(t *testing.T, c *chair) {
			dir := c.shelf()
			c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
			shard := filepath.Join(dir, "job", fixture.JobID.String(), "1-4", "COMMIT")
			if err := os.Remove(shard); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("COMMIT", shard); err != nil { // too many levels of symbolic links
				t.Fatal(err)
			}
		}, "durable generation job/" + fixture.JobID.String() + "/1-4: "},
		{"not mounted", func(t *testing.T, c *chair) { c.shelf() }, "has nothing of the job, though durable generation " + fixture.Gen(1, 4).String() + " was written: mount it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newChair(t)
			c.timing.Collect = 0 // nothing fails together here
			tc.spoil(t, c)
			c.knows(lost())
			c.settle()
			if st := c.said(); len(st) != 1 || !strings.Contains(strings.Join(st[0].Waiting, "\n"), "the durable tier can't be read, it is tried again: ") || !strings.Contains(strings.Join(st[0].Waiting, "\n"), tc.says) {
				t.Errorf("status says it waits for %q, want %q", st[0].Waiting, tc.says)
			}
			if ends := proposalsOf[replica.EndJob](c); len(ends) != 0 {
				t.Errorf("it is ended: %s", ends[0].Reason)
			}
		})
	}
}

// A tier that was read and has the job's generation only damaged is another matter: waiting mends nothing.
func TestDamagedDurableTierEndsTheJob(t *testing.T) {
	c := newChair(t)
	dir := c.shelf()
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
	if err := os.Remove(filepath.Join(dir, "job", fixture.JobID.String(), "1-4", "group-0.safetensors")); err != nil {
		t.Fatal(err)
	}
	led := c.knows(lost())
	found, err := c.durableFound(t.Context(), led.job)
	if err != nil || len(found) != 1 || !strings.Contains(found[0].Bad, "group-0.safetensors is missing") {
		t.Errorf("found %v, %v", found, err)
	}
	if n := c.log.Count("durable_skipped"); n != 1 {
		t.Errorf("%d skipped generations are logged", n)
	}
}

// settle lets the leader handle what its goroutines brought, but for outcomes.
func (c *chair) settle() {
	c.t.Helper()
	c.work.Wait()
	for range len(c.in) {
		if ev, ok := (<-c.in).(scanned); ok {
			c.handle(c.t.Context(), ev)
		}
	}
}

// A write that fails is tried again after a while that grows, per job, until one succeeds: what ails a disk takes a person, and
// each try writes the shards again.
func TestFailedDurableWritesBackOff(t *testing.T) {
	c := newChair(t)
	job := fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Options.DurableEvery, j.Committed, j.Position = 5, fixture.Gen(3, 9), replica.Position{Epoch: 3, Step: 9}
	})
	led := c.knows(job)
	look := func(j *replica.Job) {
		led.job = j
		c.durable(t.Context(), led)
	}
	n1 := c.node("n1", 11)
	said := func(want ...string) {
		t.Helper()
		news := fixture.Only[control.Tell](told(t, n1))
		if len(news) != len(want) {
			t.Fatalf("launchers are told %+v, want %q", news, want)
		}
		for i, w := range want {
			if news[i].Job != fixture.JobID || !strings.Contains(news[i].Text, w) {
				t.Errorf("launchers are told %+v, want %q", news[i], w)
			}
		}
	}
	begun := func() int { return len(proposalsOf[replica.BeginDurable](c)) }
	fail := func() {
		look(fixture.Changed(led.job, func(j *replica.Job) { j.Writer = &replica.DurableWrite{Generation: j.Committed} }))
		look(fixture.Changed(led.job, func(j *replica.Job) { j.Writer = nil }))
	}
	if look(job); begun() != 1 {
		t.Fatal("no write is begun though one is due")
	}
	said()
	led.durableError = "no space left"
	fail()
	said("durable writes fail: no space left")
	led.failing = 0
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		fail()
		if led.failing != want*time.Second {
			t.Fatalf("tried again after %v, want %v", led.failing, want*time.Second)
		}
	}
	said("durable writes fail: no space left") // once, however often they do
	if look(led.job); begun() != 0 {
		t.Error("a write is begun right after the eighth one that failed")
	}
	led.writeFrom = time.Now().Add(-time.Hour)
	if look(led.job); begun() != 1 {
		t.Error("no write is begun an hour after one failed")
	}
	look(fixture.Changed(led.job, func(j *replica.Job) { j.Writer = &replica.DurableWrite{Generation: j.Committed} }))
	led.durableError = "disk full"
	look(fixture.Changed(led.job, func(j *replica.Job) { j.Writer, j.Durable = nil, j.Committed }))
	if led.durableError != "" {
		t.Errorf("after a write that succeeded status says %q", led.durableError)
	}
	said("durable writes work again: step 9 is written")
	if led.failing != 0 {
		t.Errorf("after a write that succeeded the next one waits %v", led.failing)
	}
	led.job = fixture.Changed(led.job, func(j *replica.Job) { j.Committed, j.Position.Step = fixture.Gen(3, 15), 15 })
	if fail(); led.failing != time.Second {
		t.Errorf("the next failure is followed by %v", led.failing)
	}
	look(fixture.Changed(led.job, func(j *replica.Job) {
		j.Writer = &replica.DurableWrite{Generation: j.Committed, Shards: []replica.Shard{{Part: replica.OfRank(1), Node: "n9"}}}
	}))
	led.writeFrom = time.Now().Add(-durableAbsence - time.Second)
	if look(led.job); !strings.Contains(led.durableError, "node n9 is to write private 1 and has no link") {
		t.Errorf("of a writer that is away status says %q", led.durableError)
	}
}

// What the log says of a durable directory stays as it was when that directory is moved or unmounted: a look finds out, and what is
// not at the path is not claimed, until it is back or a newer one was written.
func TestDurableGenerationThatIsGoneIsNotClaimed(t *testing.T) {
	c := newChair(t)
	dir := c.shelf()
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(3, 6))
	led := c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Options.DurableEvery, j.Durable, j.Committed, j.Position = 5, fixture.Gen(3, 6), fixture.Gen(3, 6), replica.Position{Epoch: 3, Step: 6}
	}))
	n1 := c.node("n1", 11)
	look := func() {
		t.Helper()
		c.pass(durableLook)
		c.durable(t.Context(), led)
		c.work.Wait()
		for range len(c.in) {
			if ev, ok := (<-c.in).(durableSeen); ok {
				c.handle(t.Context(), ev)
			}
		}
	}
	says := func(durable replica.Generation, why string, news string) {
		t.Helper()
		st := c.said()[0]
		if st.Durable != durable || !strings.Contains(st.DurableError, why) || why == "" && st.DurableError != "" {
			t.Errorf("status says durable %v, %q; want %v, %q", st.Durable, st.DurableError, durable, why)
		}
		told := fixture.Only[control.Tell](told(t, n1))
		if news == "" && len(told) != 0 || news != "" && (len(told) != 1 || !strings.Contains(told[0].Text, news)) {
			t.Errorf("launchers are told %+v, want %q", told, news)
		}
	}
	look()
	says(fixture.Gen(3, 6), "", "")
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		look()
	}
	says(replica.Generation{}, dir, "warning: durable directory "+dir)
	if n := c.log.Count(`"what":"durable"`); n != 1 {
		t.Errorf("%d lines in the log, want one", n)
	}
	if n := len(proposalsOf[replica.BeginDurable](c)); n != 0 {
		t.Error("a generation is written that has its marker: the log refuses that")
	}
	if err := os.Rename(dir+".old", dir); err != nil {
		t.Fatal(err)
	}
	look()
	says(fixture.Gen(3, 6), "", "durable generation "+fixture.Gen(3, 6).String()+" is back")

	// Another directory in its place: the next commit is written though no multiple of durable_every has passed.
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	led.job = fixture.Changed(led.job, func(j *replica.Job) { j.Committed, j.Position.Step = fixture.Gen(3, 9), 9 })
	if lock.DurableDue(led.job, led.durableNow()) {
		t.Fatal("the write is due anyway")
	}
	look()
	says(replica.Generation{}, "is not in "+dir, "warning: durable generation")
	c.proposed()
	led.writeFrom = time.Time{}
	c.durable(t.Context(), led)
	if n := len(proposalsOf[replica.BeginDurable](c)); n != 1 {
		t.Errorf("%d writes are begun, want one", n)
	}
	led.job = fixture.Changed(led.job, func(j *replica.Job) { j.Writer = &replica.DurableWrite{Generation: fixture.Gen(3, 9)} })
	c.durable(t.Context(), led)
	led.job = fixture.Changed(led.job, func(j *replica.Job) { j.Writer, j.Durable = nil, fixture.Gen(3, 9) })
	c.durable(t.Context(), led)
	says(fixture.Gen(3, 9), "", "")

	// What was written anew is not there either, as where the leader's directory is another than the writers': it is tried more and more
	// rarely, and people were told.
	for i, want := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
		led.job = fixture.Changed(led.job, func(j *replica.Job) { j.Durable.Step, j.Committed.Step = 10+replica.Step(i), 10+replica.Step(i) })
		if look(); led.vanishing != want*time.Second {
			t.Fatalf("written again after %v, want %v", led.vanishing, want*time.Second)
		}
		if led.job = fixture.Changed(led.job, func(j *replica.Job) { j.Committed.Step = 100 }); len(c.begins(led)) != 0 {
			t.Error("it is written again at once")
		}
	}
	says(replica.Generation{}, "is not in "+dir, "")
	if err := c.disk.WriteMarker(t.Context(), checkpoint.Marker{}); !errors.Is(err, checkpoint.ErrMoved) { // the first write here since
		t.Fatal(err)
	}
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(3, 50))
	led.job = fixture.Changed(led.job, func(j *replica.Job) { j.Durable = fixture.Gen(3, 50) })
	if look(); led.vanishing != 0 {
		t.Errorf("with the newest in its place the next write waits %v", led.vanishing)
	}
	says(fixture.Gen(3, 50), "", "")
}

// begins has the leader look at its durable write and lists what it begins.
func (c *chair) begins(led *ledJob) []replica.BeginDurable {
	c.durable(c.t.Context(), led)
	return proposalsOf[replica.BeginDurable](c)
}

// The log may not say what became of the end of a durable write. It is proposed again, or no other write would begin for two minutes, and a
// job whose ranks have left would wait for as long.
func TestTheEndOfADurableWriteIsProposedAgain(t *testing.T) {
	c := newChair(t)
	n1 := c.node("n1", 11)
	led := c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Writer = &replica.DurableWrite{Generation: fixture.Gen(3, 5), Writer: "n1", Shards: []replica.Shard{{Part: replica.OfGroup(0), Node: "n1"}}}
	}))
	c.durable(t.Context(), led)
	c.proposed()
	c.message(t.Context(), n1, control.MarkedReport{Job: fixture.JobID, Generation: fixture.Gen(3, 5)})
	again := func(out lock.Outcome, err error) []replica.EndDurable {
		c.outcome(t.Context(), proposalOutcome{job: fixture.JobID, cmd: replica.EndDurable{Job: fixture.JobID, Generation: fixture.Gen(3, 5), Done: true}, out: out, err: err, rule: fromDriver})
		c.durable(t.Context(), led)
		return proposalsOf[replica.EndDurable](c)
	}
	if ends := proposalsOf[replica.EndDurable](c); len(ends) != 1 {
		t.Fatalf("a marker is answered by %+v", ends)
	}
	for range 2 {
		if ends := again(lock.Outcome{}, consensus.ErrUnknown); len(ends) != 1 || !ends[0].Done {
			t.Errorf("nobody knows whether it was applied, and it proposes %+v", ends)
		}
	}
	if c.durable(t.Context(), led); len(proposalsOf[replica.EndDurable](c)) != 0 {
		t.Error("it is proposed again while it is on its way")
	}
	if ends := again(lock.Outcome{Err: &lock.Refused{}}, nil); len(ends) != 0 {
		t.Errorf("it was refused, and it proposes %+v", ends)
	}
	led.job = fixture.Changed(led.job, func(j *replica.Job) { j.Writer, j.Durable = nil, fixture.Gen(3, 5) })
	if ends := again(lock.Outcome{}, consensus.ErrUnknown); len(ends) != 0 {
		t.Errorf("the write is over, and it proposes %+v", ends)
	}
}

// A shard of hundreds of gigabytes takes its disk longer than any limit for all: with one, no generation of such a job was ever durable.
func TestADurableWriteThatGoesOnIsNotGivenUp(t *testing.T) {
	c := newChair(t)
	c.node("n1", 11)
	led := c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Writer = &replica.DurableWrite{Generation: fixture.Gen(3, 5), Writer: "n1", Shards: []replica.Shard{{Part: replica.OfGroup(0), Node: "n1"}}}
	}))
	c.durable(t.Context(), led)
	c.proposed()
	late := func() { led.writeFrom = time.Now().Add(-durableTimeout - time.Second) }
	givenUp := func() bool {
		c.durable(t.Context(), led)
		return len(proposalsOf[replica.EndDurable](c)) > 0
	}
	for written := range 3 {
		late()
		c.shard(t.Context(), "n1", control.ShardReport{Job: fixture.JobID, Generation: fixture.Gen(3, 5), Part: replica.OfGroup(0), Written: uint64(written+1) << 30})
		if givenUp() {
			t.Fatal("a write that its node has just reported progress of is given up")
		}
	}
	late()
	c.shard(t.Context(), "n2", control.ShardReport{Job: fixture.JobID, Generation: fixture.Gen(3, 5), Part: replica.OfGroup(0), Written: 9 << 30}) // not its shard
	if !givenUp() || !strings.Contains(led.durableError, "no byte of it was written for 2m0s") {
		t.Errorf("of a write without progress status says %q", led.durableError)
	}
}
