//go:build cgo

package trouble_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/s3"
	"github.com/replicad/replicad/internal/durable/storetest"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/leader/durable"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// TestManyWriters: a generation of many nodes is written to a store that takes few requests a second, by the leader's rule and through each node's own
// tier. Never more nodes write at once than are admitted, and the generation is whole. (With TROUBLE_LONG: 1,000 nodes and 100 requests a second.)
func TestManyWriters(t *testing.T) {
	t.Parallel()
	nodes, rate, atOnce := 100, 1000, 8
	if os.Getenv("TROUBLE_LONG") != "" {
		nodes, rate, atOnce = 1000, 100, 64
	}
	srv := storetest.StartLimited(t, rate)
	f := newFleet(t, srv, nodes)
	f.write(atOnce)
	if most := f.most.Load(); most > int64(atOnce) || most < 2 {
		t.Errorf("%d nodes wrote at once, %d are admitted", most, atOnce)
	}
	slowed, all := 0, srv.Requests(t)
	for _, r := range all {
		if r.Status == 503 {
			slowed++
		}
	}
	t.Logf("%d nodes, at most %d at once, %d requests, of which %d were told to slow down, %v", nodes, f.most.Load(), len(all), slowed, f.took.Round(time.Second))
	found, skipped, err := f.tier("reader").Find(t.Context(), f.job.Name, f.job.ID)
	if err != nil || len(found) != 1 || len(skipped) != 0 {
		t.Fatalf("%d generations, %d were passed over, %v", len(found), len(skipped), err)
	}
	for r := range nodes {
		if _, ok := found[0].Index.Part(replica.OfRank(replica.Rank(r))); !ok {
			t.Fatalf("rank %d is missing", r)
		}
	}
	if n := srv.Unfinished(t); n > 0 {
		t.Errorf("%d uploads were left", n)
	}
}

// fleet is a job with a rank on each of its nodes, and the room of the leader that has it written.
type fleet struct {
	t     *testing.T
	srv   *storetest.Server
	job   *replica.Job
	parts map[replica.Part]tier.Part
	room  *durable.Room
	timed recovery.Clocks

	running, most atomic.Int64
	took          time.Duration
}

func newFleet(t *testing.T, srv *storetest.Server, nodes int) *fleet {
	f := &fleet{t: t, srv: srv, parts: map[replica.Part]tier.Part{}}
	regions := fixture.Geometry(t, false)
	at := fixture.Gen(3, 4)
	f.job = fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Committed, j.Position, j.Options.DurableEvery = at, replica.Position(at), 1
		j.Ranks, j.Parts = nil, nil
		j.Layout = replica.Layout{World: uint32(nodes), Groups: make([]replica.GroupID, nodes)}
		for r := range nodes {
			node, life := replica.NodeName(fmt.Sprintf("node%d", r)), replica.NodeIncarnation(r+1)
			j.Ranks = append(j.Ranks, replica.Claimed{Incarnation: replica.Incarnation(r + 1), Node: node, NodeIncarnation: life})
			of := []replica.Part{replica.OfRank(replica.Rank(r))}
			if r == 0 {
				of = append([]replica.Part{replica.OfGroup(0)}, of...)
			}
			for _, p := range of {
				part := f.part(j, p, at, regions)
				f.parts[p] = part
				j.Parts = append(j.Parts, replica.PartRoot{Part: p, Root: part.Manifest.Root, Holders: []replica.Holder{{Node: node, Incarnation: life}}})
			}
		}
	})
	return f
}

// part is one that is all zeros.
func (f *fleet) part(j *replica.Job, p replica.Part, at replica.Generation, g replica.Geometry) tier.Part {
	b := make([]byte, map[replica.PartKind]uint64{replica.ReplicatedPart: g.ReplicatedBytes, replica.PrivatePart: g.PrivateBytes}[p.Kind])
	m := replica.Manifest{Cluster: fixture.Cluster, Era: 1, Job: j.ID, Part: p, Generation: at, Incarnation: 1, Geometry: xxh3.Hash128(g.DigestInput(p.Kind)).Bytes(), Bytes: uint64(len(b)), ChunkBytes: 4096, Lineage: j.Lineage}
	for i := range replica.ChunkCount(m.Bytes, m.ChunkBytes) {
		off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		m.Chunks = append(m.Chunks, xxh3.Hash128(b[off:off+n]).Bytes())
	}
	m.Root = xxh3.Hash128(m.RootInput()).Bytes()
	return tier.Part{Manifest: m, Regions: g.Regions, Read: func(_ int, dst []byte) ([]byte, error) {
		clear(dst)
		return dst, nil
	}}
}

func (f *fleet) Linked(replica.NodeName) bool               { return true }
func (f *fleet) Clocks() *recovery.Clocks                   { return &f.timed }
func (f *fleet) Parted() bool                               { return false }
func (f *fleet) Unattended() bool                           { return false }
func (f *fleet) Lacks(replica.Generation) []replica.Lacking { return nil }

// tier is a node's.
func (f *fleet) tier(node string) *tier.Tier {
	f.t.Helper()
	st, err := s3.Open(s3.Settings{Bucket: f.srv.Bucket, Prefix: "ck", Endpoint: f.srv.URL, AccessKey: storetest.Access, SecretKey: storetest.Secret})
	if err != nil {
		f.t.Error(err)
		return nil
	}
	s := tier.New(st, tier.Settings{Reader: node})
	f.t.Cleanup(func() { _ = s.Close() })
	return s
}

// write has the room write the generation, and carries out what it wants.
func (f *fleet) write(atOnce int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 9*time.Minute)
	defer cancel()
	var beside sync.WaitGroup
	defer beside.Wait()
	events := make(chan durable.Event, 4*len(f.job.Ranks))
	began := time.Now()
	f.room = durable.New(f, 0, atOnce)
	f.room.Learn(0, durable.Changed{Job: f.job})
	begun := map[replica.NodeName]bool{}
	for {
		for _, e := range f.room.Step(time.Since(began)) {
			switch e := e.(type) {
			case durable.Propose:
				switch c := e.Command.(type) {
				case replica.BeginDurable:
					f.job = fixture.Changed(f.job, func(j *replica.Job) {
						j.Writer = &c.Write
						j.Writer.Number = 1
					})
					events <- durable.Changed{Job: f.job}
				case replica.EndDurable:
					if f.took = time.Since(began); !c.Done {
						f.t.Fatalf("the write has failed: %s", f.room.Why())
					}
					return
				}
			case durable.Turn:
				if !begun[e.Node] {
					begun[e.Node] = true
					beside.Go(func() { f.gives(ctx, e.Node, events) })
				}
			case durable.Mark:
				beside.Go(func() { f.commits(ctx, e, events) })
			}
		}
		var timer <-chan time.Time
		if at, ok := f.room.Next(); ok {
			timer = time.After(max(at-time.Since(began), 0))
		}
		select {
		case ev := <-events:
			f.room.Learn(time.Since(began), ev)
		case <-timer:
		case <-ctx.Done():
			f.t.Fatal("nothing more happens")
		}
	}
}

// gives has a node write its objects, and report them.
func (f *fleet) gives(ctx context.Context, node replica.NodeName, events chan<- durable.Event) {
	for _, r := range f.objects(ctx, node) { // the next node may begin once it hears of the last one
		events <- r
	}
}

// objects writes the objects of a node, one after the other.
func (f *fleet) objects(ctx context.Context, node replica.NodeName) (reports []durable.Event) {
	n := f.running.Add(1)
	defer f.running.Add(-1)
	for was := f.most.Load(); n > was && !f.most.CompareAndSwap(was, n); was = f.most.Load() {
	}
	s := f.tier(string(node))
	defer s.Close()
	for _, sh := range f.job.Writer.Shards {
		if sh.Node != node {
			continue
		}
		info, err := s.Write(ctx, tier.AttemptOf(f.job, fixture.Cluster), tier.ObjectOf(node, sh.Part), nil, f.parts[sh.Part])
		r := control.ShardReport{Job: f.job.ID, Generation: f.job.Writer.Generation, Number: 1, Part: sh.Part, Info: info}
		if err != nil {
			r.Failed = err.Error()
		}
		reports = append(reports, durable.Shard{From: node, ShardReport: r})
	}
	return reports
}

// commits has the generation exist.
func (f *fleet) commits(ctx context.Context, m durable.Mark, events chan<- durable.Event) {
	s := f.tier(string(m.Node))
	defer s.Close()
	roots := map[replica.Part]replica.Digest{}
	for _, sh := range f.job.Writer.Shards {
		roots[sh.Part] = sh.Root
	}
	var objects []replica.Stored
	for _, sh := range m.Order.Shards {
		objects = append(objects, sh.Info)
	}
	said := tier.Said{Position: f.job.Position, Layout: f.job.Layout, Lineage: f.job.Lineage}
	r := control.MarkedReport{Job: f.job.ID, Generation: m.Order.Generation, Number: 1}
	if err := s.Commit(ctx, tier.AttemptOf(f.job, fixture.Cluster), said, roots, objects); err != nil {
		r.Failed = err.Error()
	}
	events <- durable.Marked{From: m.Node, MarkedReport: r}
}
