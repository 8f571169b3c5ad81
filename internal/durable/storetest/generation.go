package storetest

import (
	"context"
	"fmt"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// generations does with a store what the durable tier does: two generations are written and committed, listed, read back and read whole, and one is deleted.
// Each step has a catalog of its own, as another process has.
func generations(t *testing.T, b Bed) {
	ctx := ctxOf(t)
	open := func() *catalog.Catalog { return catalog.New(b.Open(t), catalog.Options{Who: "suite", Host: "h"}) }
	var bytes []uint64
	for step := range replica.Step(2) {
		com, err := writeGeneration(ctx, open(), replica.Generation{Epoch: 1, Step: 1 + step}, uint64(1+step))
		want(t, fmt.Sprintf("write step %d", 1+step), err, nil)
		bytes = append(bytes, com.Bytes)
	}
	c := open()
	listed, err := c.List(ctx, durabletest.JobName)
	want(t, "list", err, nil)
	if len(listed) != 2 {
		t.Fatalf("%d generations are listed, 2 were committed: %+v", len(listed), listed)
	}
	found, skipped, err := c.Find(ctx, durabletest.JobName, durabletest.Job)
	want(t, "find", err, nil)
	if len(found) != 2 || len(skipped) != 0 {
		t.Fatalf("%d generations are whole, 2 were committed; passed over: %+v", len(found), skipped)
	}
	for _, f := range found {
		want(t, "read back", open().ReadBackNew(ctx, f.Run, f.Generation), nil)
		var read uint64
		faults, err := open().Verify(ctx, f, func(n, _ uint64) { read = n })
		want(t, "read whole", err, nil)
		if len(faults) != 0 || read < bytes[f.Generation.Step-1] {
			t.Fatalf("step %d: %d bytes of %d were read, faults %+v", f.Generation.Step, read, bytes[f.Generation.Step-1], faults)
		}
	}
	newest := found[0]
	want(t, "delete", open().Delete(ctx, newest.Run, newest.Generation, "the suite"), nil)
	if found, _, err = open().Find(ctx, durabletest.JobName, durabletest.Job); err != nil || len(found) != 1 || found[0].Generation == newest.Generation {
		t.Fatalf("after the deletion of %v %d are whole, %v", newest.Generation, len(found), err)
	}
	for _, file := range newest.Index.Files {
		if n := format.ParseName(file.Key); n.Kind == format.SharedKind {
			continue // the other generation has it, too
		}
		_, err := b.Open(t).Stat(ctx, newest.Run.Under(file.Key))
		want(t, "stat of a deleted file", err, store.ErrAbsent)
	}
	_, err = open().Verify(ctx, found[0], nil)
	want(t, "read the other one whole", err, nil)
}

// writeGeneration does what a job does for a generation, as attempt n.
func writeGeneration(ctx context.Context, c *catalog.Catalog, g replica.Generation, n uint64) (*format.Commit, error) {
	made := durabletest.Make(g, 1)
	fleet := catalog.Fleet{Cluster: durabletest.Cluster, Name: "suite", Epoch: g.Epoch}
	r, err := c.Begin(ctx, format.Run{Job: durabletest.JobName, ID: durabletest.Job, Owner: 7, Began: 1_000_000_000_000})
	if err != nil {
		return nil, err
	}
	if err := c.Claim(ctx, r, fleet); err != nil {
		return nil, err
	}
	part := func(p durabletest.Part) catalog.Part {
		return catalog.Part{Manifest: p.Manifest, Regions: p.Regions, Read: p.Read}
	}
	a := catalog.Attempt{Run: r, Generation: g, Write: n}
	roots := make(map[replica.Part]replica.Digest)
	var files []format.Written
	for i, p := range made.Groups {
		frozen, err := c.WriteFrozen(ctx, r, part(made.Frozen[i]))
		if err != nil {
			return nil, err
		}
		group, err := c.WriteGroup(ctx, a, part(p))
		if err != nil {
			return nil, err
		}
		group.Object = nil // as it comes from another node
		files = append(files, frozen, group)
		roots[p.Manifest.Part] = p.Manifest.Root
	}
	own, err := c.WriteObject(ctx, a, catalog.NodeObject("b"), part(made.Private[0]), part(made.Private[1]))
	if err != nil {
		return nil, err
	}
	for _, p := range made.Private {
		roots[p.Manifest.Part] = p.Manifest.Root
	}
	return c.Commit(ctx, a, fleet, format.Commit{Position: replica.Position(g), Owner: 7, Layout: made.Layout, Lineage: replica.Lineage{{Epoch: 1}}, Geometries: []replica.Digest{{3}}}, roots, append(files, own))
}
