package tier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// What is found, as the catalog has it.
type (
	Found   = catalog.Found
	Skipped = catalog.Skipped
	Listed  = catalog.Listed
)

// Plain says in a few words, for people, why a read failed.
func Plain(err error) string { return catalog.Plain(err) }

// IsDamage tells whether an error says that bytes are not those that were written. A store that refuses to read says nothing of them.
func IsDamage(err error) bool { return catalog.IsDamage(err) }

// StateOf is the state of a generation whose reading failed.
func StateOf(err error) catalog.State {
	if IsDamage(err) {
		return catalog.Damaged
	}
	return catalog.Unreadable
}

// Find lists the generations of a run whose files are all there and whose newest whole read, if there was one, found every byte, the newest
// first; and what it passed over and why. With a zero id it lists those of every run of the name, the last run first. A stripped generation is passed
// over: nothing goes on from it. One that is encrypted to others is passed over where something newer can be gone on from; where it is the newest, that is
// an error, since an older one must not pass for it.
func (t *Tier) Find(ctx context.Context, name string, id replica.JobID) (found []Found, skipped []Skipped, err error) {
	all, skipped, err := t.cat.Find(ctx, name, id)
	for _, s := range skipped {
		if s.State == catalog.Damaged && s.Whole == nil {
			t.markSeen(ctx, s.Run, s.Generation)
		}
	}
	for _, f := range all {
		if err := f.Readable(); err != nil {
			if len(found) == 0 {
				return nil, nil, err
			}
			skipped = append(skipped, Skipped{Run: f.Run, Generation: f.Generation, State: catalog.Encrypted, Reason: err.Error(), Plain: err.Error()})
		} else if f.Stripped {
			skipped = append(skipped, Skipped{Run: f.Run, Generation: f.Generation, State: catalog.Stripped, Reason: stripped, Plain: stripped})
		} else {
			found = append(found, f)
		}
	}
	return found, skipped, err
}

// stripped is why nothing goes on from such a generation.
const stripped = "it was stripped of its optimizer state (replicad ckpt prune --strip-optimizer), so that nothing can go on from it"

// Newer orders generations of one run, the newest first.
func Newer(a, b Found) int {
	return cmp.Or(cmp.Compare(b.Position.Epoch, a.Position.Epoch), cmp.Compare(b.Position.Step, a.Position.Step), b.Generation.Compare(a.Generation))
}

// Rival returns, of what Find lists for a name, a generation of another run than the first, where nothing says which of the two was written last.
func Rival(found []Found) (f Found, ok bool) {
	if len(found) == 0 {
		return f, false
	}
	first := found[0]
	for _, f := range found {
		if f.Commit.Run != first.Commit.Run && (f.Run.Unsure != nil || f.Run.Order >= first.Run.Order) { // one that is unsure may be behind the first
			return f, true
		}
	}
	return f, false
}

// Holds tells whether a generation is committed, and has failed no read since; the error says why not. since is when it
// was committed, by the store's clock; zero: nobody knows.
func (t *Tier) Holds(ctx context.Context, name string, id replica.JobID, g replica.Generation) (since time.Time, err error) {
	since, err = t.cat.Holds(ctx, name, id, g)
	switch {
	case errors.Is(err, catalog.ErrNone):
		return since, fmt.Errorf("durable generation %v of job %s is not in %s: %w", g, name, t.URL(), err)
	case err != nil:
		return since, fmt.Errorf("durable generation %v of job %s: %w", g, name, err)
	}
	return since, nil
}

// Names lists the names of jobs that have runs.
func (t *Tier) Names(ctx context.Context) ([]string, error) {
	return t.cat.Jobs(ctx)
}

// List lists the generations of a name as Names and hints tell of them, and when each was read: it is to be cheap.
func (t *Tier) List(ctx context.Context, name string) ([]Listed, error) {
	return t.cat.ListNamed(ctx, name)
}

// known is what was found last, of which many parts are opened: its index is large where ranks are many. What of it is still there the caller asks.
func (t *Tier) known(id replica.JobID, g replica.Generation) (Found, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last, t.last.Index != nil && t.last.Commit.Run == id && t.last.Generation == g
}

// recall is Look, of what was found last without asking the store for its index.
func (t *Tier) recall(ctx context.Context, name string, id replica.JobID, g replica.Generation) (Found, error) {
	if f, ok := t.known(id, g); ok {
		return f, nil
	}
	f, err := t.Look(ctx, name, id, g)
	if err == nil {
		t.mu.Lock()
		t.last = f
		t.mu.Unlock()
	}
	return f, err
}

// Look finds one generation, whether or not its newest read failed.
func (t *Tier) Look(ctx context.Context, name string, id replica.JobID, g replica.Generation) (f Found, err error) {
	r, err := t.cat.At(ctx, name, id)
	if err != nil {
		return f, err
	}
	if f, err = t.cat.Get(ctx, r, g); IsDamage(err) {
		t.markSeen(ctx, r, g)
	}
	return f, err
}

// markSeen marks a generation in which a look has found damage: Prune and lists believe marks.
func (t *Tier) markSeen(ctx context.Context, r catalog.Run, g replica.Generation) {
	if t.Prove(ctx) == nil { // else Silent says why
		t.note(t.cat.MarkSeen(ctx, r, g))
	}
}

// Keep pins a generation for good.
func (t *Tier) Keep(ctx context.Context, name string, id replica.JobID, g replica.Generation, why string) error {
	r, err := t.cat.At(ctx, name, id)
	if err != nil {
		return err
	}
	return t.cat.Pin(ctx, r, g, "save", why, time.Time{})
}

// Reader reads a part. Several goroutines may call ReadChunk, which reads chunk i into dst, grown if it is too short, and checks it against its
// digest. After an error dst must not be used again.
type Reader = interface {
	Manifest() replica.Manifest
	Regions() []replica.Region
	ReadChunk(i int, dst []byte) ([]byte, error)
	Close()
}

// Open opens a part of a generation. A generation whose newest read failed is store.ErrCorrupt. While the part is open, Prune keeps the
// generation. A read that fails twice is noted beside the generation.
func (t *Tier) Open(ctx context.Context, name string, id replica.JobID, g replica.Generation, part replica.Part) (Reader, error) {
	f, err := t.recall(ctx, name, id, g)
	if err != nil {
		return nil, err
	}
	if _, err := t.cat.Holds(ctx, f.Job, f.Commit.Run, f.Generation); err != nil {
		return nil, err
	}
	let, err := t.hold(ctx, f)
	if err != nil {
		return nil, err
	}
	sh, err := t.cat.OpenShard(ctx, f, part)
	if err != nil {
		let()
		t.suspect(ctx, f, err)
		return nil, corrupt(err)
	}
	return &opened{Reader: sh, t: t, ctx: ctx, of: f, let: let}, nil
}

// Manifest is the part's, taken over by the tier's cluster.
func (o *opened) Manifest() replica.Manifest {
	m := o.Reader.Manifest()
	if own := o.t.settings.Cluster; own != (replica.ClusterID{}) {
		m.Cluster = own
	}
	return m
}

// opened is a part that is being read.
type opened struct {
	Reader
	t   *Tier
	ctx context.Context // of whoever opened it
	of  Found
	let func()
}

func (o *opened) ReadChunk(i int, dst []byte) ([]byte, error) {
	b, err := o.Reader.ReadChunk(i, dst)
	if err != nil {
		o.t.suspect(o.ctx, o.of, err)
		err = corrupt(err)
	}
	return b, err
}

func (o *opened) Close() {
	o.Reader.Close()
	o.let()
}

// corrupt marks damage of every kind with one word.
func corrupt(err error) error {
	if IsDamage(err) && !errors.Is(err, store.ErrCorrupt) {
		return fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	return err
}

// suspect takes in that a read of a generation failed, for whatever it was made: the mark says so.
func (t *Tier) suspect(ctx context.Context, f Found, err error) {
	if IsDamage(err) && ctx.Err() == nil {
		t.note(t.cat.MarkDamaged(ctx, f, err))
	}
}

// How says how to read a generation back.
type How = catalog.How

// ReadBack reads a generation whole, and leaves beside it what that found. Damage is believed where a second read finds it again. A store that
// refuses to read leaves the former mark.
func (t *Tier) ReadBack(ctx context.Context, f Found, how How) error {
	let, err := t.hold(ctx, f)
	if err != nil {
		return err
	}
	defer let()
	faults, err := t.cat.VerifyAs(ctx, f, how, nil)
	if err != nil && !IsDamage(err) {
		return err
	}
	t.note(t.cat.MarkRead(ctx, f, err))
	for _, fault := range faults {
		if fault.Twin {
			t.note(fmt.Errorf("%s: %s: its twin is whole, and it is written anew", fault.Key, fault.What))
		}
		if fault.Beside {
			t.note(fmt.Errorf("files that run %s of job %s carries: %s: the state is whole without them", f.Run.Run, f.Job, fault.What))
		}
	}
	if err == nil && len(faults) > 0 {
		t.note(t.cat.Repair(ctx, f, faults))
	}
	return err
}

// Written is when a generation was written, by its writer's clock, for people; zero: nobody knows.
func Written(f Found) time.Time {
	if f.At <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(f.At)
}
