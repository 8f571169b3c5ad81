package leader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/directory"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
	"github.com/zeebo/xxh3"
)

// shelf gives the leader a durable tier.
func (c *chair) shelf() string {
	c.t.Helper()
	dir := c.t.TempDir()
	st, err := directory.Open(c.t.Context(), dir)
	if err != nil {
		c.t.Fatal(err)
	}
	s := tier.New(refusing{st, c}, tier.Settings{Reader: "n1", Cluster: fixture.Cluster})
	c.t.Cleanup(func() { s.Close() })
	c.store, c.disk = s, s
	return dir
}

// refusing is a store that refuses to read some objects.
type refusing struct {
	store.Store
	c *chair
}

func (s refusing) Get(ctx context.Context, key string, most int64) ([]byte, store.Version, error) {
	if s.c.refused != "" && strings.HasSuffix(key, s.c.refused) {
		return nil, "", fmt.Errorf("%s: %w", key, store.ErrRefused)
	}
	return s.Store.Get(ctx, key, most)
}

// writes puts a durable generation of a job of one rank on the shelf.
func (c *chair) writes(name string, cluster replica.ClusterID, id replica.JobID, g replica.Generation, lacks ...replica.Lacking) {
	c.t.Helper()
	if err := c.tries(name, cluster, id, g, lacks...); err != nil {
		c.t.Fatal(err)
	}
}

func (c *chair) tries(name string, cluster replica.ClusterID, id replica.JobID, g replica.Generation, lacks ...replica.Lacking) error {
	c.t.Helper()
	a := tier.Attempt{Name: name, Job: id, Cluster: cluster, Epoch: g.Epoch, Generation: g, Number: 1}
	said, roots, objects, err := c.objects(a, lacks...)
	if err != nil {
		return err
	}
	return c.disk.Commit(c.t.Context(), a, said, roots, objects)
}

// objects writes the objects of a generation of one rank.
func (c *chair) objects(a tier.Attempt, lacks ...replica.Lacking) (tier.Said, map[replica.Part]replica.Digest, []replica.Stored, error) {
	c.t.Helper()
	regions, cluster, id, g := fixture.Geometry(c.t, false), a.Cluster, a.Job, a.Generation
	said := tier.Said{Position: replica.Position(g), Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Lineage: replica.Lineage{{Epoch: 1}}, Lacks: lacks}
	if g.Epoch > 1 {
		said.Lineage = append(said.Lineage, replica.Opened{Epoch: g.Epoch, Start: g.Step})
	}
	roots := map[replica.Part]replica.Digest{}
	var objects []replica.Stored
	for _, p := range []replica.Part{replica.OfGroup(0), replica.OfRank(0)} {
		b := make([]byte, map[replica.PartKind]uint64{replica.ReplicatedPart: regions.ReplicatedBytes, replica.PrivatePart: regions.PrivateBytes}[p.Kind])
		man := replica.Manifest{Cluster: cluster, Era: 1, Job: id, Part: p, Generation: g, Incarnation: 1, Geometry: xxh3.Hash128(regions.DigestInput(p.Kind)).Bytes(),
			Bytes: uint64(len(b)), ChunkBytes: 4096, Lineage: said.Lineage}
		for i := range replica.ChunkCount(man.Bytes, man.ChunkBytes) {
			off, n := replica.ChunkSpan(i, man.Bytes, man.ChunkBytes)
			man.Chunks = append(man.Chunks, xxh3.Hash128(b[off:off+n]).Bytes())
		}
		man.Root = xxh3.Hash128(man.RootInput()).Bytes()
		roots[p] = man.Root
		o, err := c.disk.Write(c.t.Context(), a, tier.ObjectOf("n1", p), nil, tier.Part{Manifest: man, Regions: regions.Regions, Read: func(i int, dst []byte) ([]byte, error) {
			clear(dst)
			return dst, nil
		}})
		if err != nil {
			return said, roots, objects, err
		}
		objects = append(objects, o)
	}
	return said, roots, objects, nil
}

// lies is the one path below the directory of the tests' job that a pattern names.
func lies(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "job", "*", pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found[0]
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
		}, "has nothing of the job, though durable generation"},
		{"shard unreadable", func(t *testing.T, c *chair) {
			c.shelf()
			c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
			c.refused = "commits/step-00000004.e1.json"
		}, "/step-00000004.e1: "},
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
	if err := os.Remove(lies(t, dir, "step-00000004.e1/group-0.w1.safetensors")); err != nil {
		t.Fatal(err)
	}
	led := c.knows(lost())
	found, err := c.durableFound(t.Context(), led.job)
	if err != nil || len(found) != 1 || !strings.Contains(found[0].Bad, "group-0.w1.safetensors: is missing") {
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

// What the log says of a durable directory stays as it was when that directory is moved: what is not at the path is not claimed, until it is
// back or a newer one was written.
func TestDurableGenerationThatIsGoneIsNotClaimed(t *testing.T) {
	c := newChair(t)
	dir := c.shelf()
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(3, 6))
	led := c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Options.DurableEvery, j.Durable, j.Committed, j.Position = 5, fixture.Gen(3, 6), fixture.Gen(3, 6), replica.Position{Epoch: 3, Step: 6}
	}))
	n1 := c.node("n1", 11)
	says := func(durable replica.Generation, why string, news string) {
		t.Helper()
		c.pass(time.Minute)
		c.durableTurn(t.Context(), led)
		c.work.Wait()
		for range len(c.in) {
			if ev, ok := (<-c.in).(durableSeen); ok {
				c.handle(t.Context(), ev)
			}
		}
		st := c.said()[0]
		if st.Durable != durable || !strings.Contains(st.DurableError, why) || why == "" && st.DurableError != "" {
			t.Errorf("status says durable %v, %q; want %v, %q", st.Durable, st.DurableError, durable, why)
		}
		told := fixture.Only[control.Tell](told(t, n1))
		if news == "" && len(told) != 0 || news != "" && (len(told) != 1 || !strings.Contains(told[0].Text, news)) {
			t.Errorf("launchers are told %+v, want %q", told, news)
		}
	}
	says(fixture.Gen(3, 6), "", "")
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	move(dir, dir+".old")
	says(replica.Generation{}, dir, "warning: durable generation (3,6) of job job: ")
	says(replica.Generation{}, dir, "")
	if n := c.log.Count(`"what":"durable"`); n != 1 {
		t.Errorf("%d lines in the log, want one", n)
	}
	move(dir+".old", dir)
	says(fixture.Gen(3, 6), "", "durable generation "+fixture.Gen(3, 6).String()+" is back")

	move(dir, dir+".old")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	says(replica.Generation{}, "is not in file://"+dir, "warning: durable generation")
	if err := c.tries("job", fixture.Cluster, fixture.JobID, fixture.Gen(3, 50)); !errors.Is(err, directory.ErrMoved) { // the first write here since
		t.Fatal(err)
	}
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(3, 50))
	c.knows(fixture.Changed(led.job, func(j *replica.Job) { j.Durable = fixture.Gen(3, 50) }))
	says(fixture.Gen(3, 50), "", "")
}

// What the room proposes goes into the log, its orders to the nodes, and what becomes of the end of a write back to it.
func TestDurableWriteGoesThroughTheLog(t *testing.T) {
	c := newChair(t)
	n1 := c.node("n1", 11)
	led := c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Options.DurableEvery = 5 }))
	c.durableTurn(t.Context(), led)
	if begun := proposalsOf[replica.BeginDurable](c); len(begun) != 1 || begun[0].Write.Generation != fixture.Gen(3, 5) {
		t.Fatalf("begun: %+v, want the write of (3,5)", begun)
	}
	c.knows(fixture.Changed(led.job, func(j *replica.Job) {
		j.Writer = &replica.DurableWrite{Generation: fixture.Gen(3, 5), Writer: "n1", Shards: []replica.Shard{{Part: replica.OfGroup(0), Node: "n1"}}}
	}))
	c.message(t.Context(), n1, control.ShardReport{Job: fixture.JobID, Generation: fixture.Gen(3, 5), Part: replica.OfGroup(0)})
	if orders := fixture.Only[control.MarkerOrder](told(t, n1)); len(orders) != 1 || len(orders[0].Shards) != 1 {
		t.Fatalf("the writer is told %+v, want the marker of one part", orders)
	}
	c.message(t.Context(), n1, control.MarkedReport{Job: fixture.JobID, Generation: fixture.Gen(3, 5)})
	for range 2 {
		ends := proposalsOf[replica.EndDurable](c)
		if len(ends) != 1 || !ends[0].Done {
			t.Fatalf("ended by %+v, want once as written", ends)
		}
		c.outcome(t.Context(), proposalOutcome{job: fixture.JobID, cmd: ends[0], err: consensus.ErrUnknown, rule: fromDriver})
		c.durableTurn(t.Context(), led)
	}
}
