package fetch

import (
	"context"
	"errors"
	"fmt"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Admission judges, on the node's goroutine, whether a part is still to be written here.
type Admission interface{ Admit(Node) error }

// Stage takes a place for a part that is to be written by the daemon, and looks for bytes of it that the arena has already: that
// reads and hashes up to the whole part. It is admitted before and after.
func (f *Fetcher) Stage(ctx context.Context, job replica.JobID, arena *holding.Arena, manifest replica.Manifest, of Admission) (
	p shm.Place, s *shm.Staging, err error,
) {
	q := placeWanted{job: job, arena: arena, manifest: manifest, of: of}
	if err := f.Ask(ctx, &q); err != nil {
		return p, nil, err
	}
	if q.err != nil {
		return p, nil, q.err
	}
	err = f.Reuse(q.staging)
	again := admissionWanted{of: of}
	if err == nil {
		err = f.Ask(ctx, &again)
	}
	if err = errors.Join(err, again.err); err != nil {
		q.staging.Abort()
		f.report(ctx, &placeBack{arena, q.place, q.staging})
		return p, nil, err
	}
	return q.place, q.staging, nil
}

// placeWanted takes a place for what is admitted, admissionWanted asks once more, and placeBack gives the place back.
type (
	placeWanted struct {
		job      replica.JobID
		arena    *holding.Arena
		manifest replica.Manifest
		of       Admission

		place   shm.Place
		staging *shm.Staging
		err     error
	}
	admissionWanted struct {
		of  Admission
		err error
	}
	placeBack struct {
		arena   *holding.Arena
		place   shm.Place
		staging *shm.Staging
	}
)

func (q *placeWanted) Serve(n Node) {
	if q.err = q.of.Admit(n); q.err == nil {
		q.place, q.staging, q.err = n.Take(q.job, q.arena, q.manifest)
	}
}

func (q *admissionWanted) Serve(n Node) { q.err = q.of.Admit(n) }

func (q *placeBack) Serve(Node) { q.arena.Unstage(q.place, q.staging) }

// wasRead waits for a reading of the place that has begun since the fence, and tells whether there was one and it found no fault.
func (f *Fetcher) wasRead(ctx context.Context, job replica.JobID, arena *holding.Arena, p shm.Place) bool {
	q := readingWanted{job: job, arena: arena, place: p}
	if f.Ask(ctx, &q) != nil || q.reading == nil {
		return false
	}
	select {
	case <-q.reading.Done():
		return q.reading.Good()
	case <-ctx.Done():
		return false
	}
}

// Verify reads a sealed place whole and compares every digest. One that fails is freed and reported, as the part of the plan that is lost.
func (f *Fetcher) Verify(ctx context.Context, job replica.JobID, arena *holding.Arena, p shm.Place, lost replica.Held) bool {
	begin := verifyBegin{job: job, arena: arena, place: p}
	if f.Ask(ctx, &begin) != nil || !begin.sealed {
		return false
	}
	err := arena.Verify(p)
	f.report(ctx, &verifyEnd{job, begin.copy, arena, p, lost, err})
	if err != nil {
		f.Log.Failed("digest", arena.Key(), fmt.Sprintf("%v: given up, it is fetched from another holder", err))
	}
	return err == nil
}

// verifyBegin holds a place that is sealed; verifyEnd lets go of it, and frees it where it was found bad.
type (
	verifyBegin struct {
		job   replica.JobID
		arena *holding.Arena
		place shm.Place

		sealed bool
		copy   holding.Copy
	}
	verifyEnd struct {
		job   replica.JobID
		copy  holding.Copy // none where the arena is none of the job's any more
		arena *holding.Arena
		place shm.Place
		lost  replica.Held
		err   error
	}
)

func (q *verifyBegin) Serve(n Node) {
	v, _ := n.Job(q.job)
	for _, c := range v.Copies() {
		if c.Arena == q.arena && c.Place == q.place {
			q.copy = c
		}
	}
	q.sealed = q.arena.HoldSealed(q.place)
}

func (q *verifyEnd) Serve(n Node) {
	q.arena.Release(q.place)
	if q.err == nil {
		return
	}
	q.arena.Free(q.place)
	n.Spoiled(q.job, q.lost, false)
	if q.copy.Arena != nil {
		n.GivenUp(q.job, q.copy)
	}
}

// report has a request served whatever became of ctx. Where the node has ended its arenas have, too.
func (f *Fetcher) report(ctx context.Context, r Request) {
	f.Ask(context.WithoutCancel(ctx), r) //nolint:errcheck // there is nobody to report to
}

// Free is nil if a place of a kind is free in an arena: what was lost had a place, and takes none from what has come since.
func (f *Fetcher) Free(ctx context.Context, a *holding.Arena, k shm.PlaceKind) error {
	q := freeWanted{arena: a, kind: k}
	if err := f.Ask(ctx, &q); err != nil {
		return err
	}
	if !q.free {
		return fmt.Errorf("arena %s: no place is free for what it has lost: it waits for one, or for the next commit", a.Key())
	}
	return nil
}

// freeWanted asks whether a place of a kind is free in an arena.
type freeWanted struct {
	arena *holding.Arena
	kind  shm.PlaceKind
	free  bool
}

func (q *freeWanted) Serve(Node) {
	for _, p := range q.arena.Places() {
		q.free = q.free || p.Kind == q.kind && q.arena.Word(p).State() == replica.SlotFree
	}
}
