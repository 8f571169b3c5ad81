package find

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Newer compares two generations of a run: by position, then by name.
func Newer(p replica.Position, g replica.Generation, q replica.Position, h replica.Generation) int {
	return cmp.Or(cmp.Compare(p.Epoch, q.Epoch), cmp.Compare(p.Step, q.Step), g.Compare(h))
}

// Skipped is a generation that Find passed over.
type Skipped struct {
	Run        Run
	Generation replica.Generation
	State      State // Damaged, Unreadable, Unfinished or Deleting
	Reason     string
	Plain      string // the reason in a few words
	// Whole is the generation where all its files are there and its newest whole read failed: another read may find that it was mended.
	// Nil: there is nothing to read.
	Whole *Found
}

// Where names it as Found.Where does.
func (s *Skipped) Where() string { return s.Run.Under(format.StepName(s.Generation)) }

func passedOver(r Run, g replica.Generation, s State, why error, whole *Found) Skipped {
	return Skipped{Run: r, Generation: g, State: s, Reason: why.Error(), Plain: damage.Plain(why), Whole: whole}
}

// Find lists the generations of a run whose files are all there, and whose newest whole read, if there was one, found every byte. It lists
// what it passed over too, and why. With a zero id it lists those of every run of the name, the last run first. Within a run the newest
// position comes first, and behind all others what a later epoch left aside.
//
// An error means that the store did not answer: what lies there is not known then, and an older generation must not pass for the newest.
func (c *Finder) Find(ctx context.Context, job string, id replica.JobID) (found []Found, skipped []Skipped, err error) {
	runs, err := c.Runs(ctx, job)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range runs {
		if id != (replica.JobID{}) && r.ID != id && !(r.ID == (replica.JobID{}) && strings.HasSuffix(r.Run, id.String()[:8])) {
			continue
		}
		f, s, err := c.findIn(ctx, r, id)
		if err != nil {
			return nil, nil, fmt.Errorf("find generations of job %s in %s: %w", job, c.URL(), err)
		}
		found, skipped = append(found, f...), append(skipped, s...)
	}
	// COMMITs may say more than was known
	slices.SortStableFunc(found, func(a, b Found) int { return cmp.Compare(b.Run.Order, a.Run.Order) })
	return found, skipped, nil
}

// How often a run is looked at, at most, where generations are deleted beside the look and newer ones written: a job that keeps one deletes
// one with each commit. Of a reader that waits long for a core all that it listed may be gone, again and again; each look has a newer list.
const (
	looks     = 5
	looksVain = 100 // none has found any
)

// findIn looks at one run. A generation that was deleted beside the look has made room for a newer one, and the list may lack both. Where a
// new list has it, the run is looked at again.
func (c *Finder) findIn(ctx context.Context, r Run, id replica.JobID) (found []Found, skipped []Skipped, err error) {
	b, err := c.bookOf(ctx, r)
	for i := 0; (i < looks || len(found) == 0 && i < looksVain) && err == nil && b != nil; i++ {
		found, skipped, err = c.findBy(ctx, b, r, id)
		if err != nil || len(found) > 0 && !slices.ContainsFunc(skipped, func(s Skipped) bool { return s.State == Deleting }) {
			return found, skipped, err
		}
		was := b
		if b, err = c.bookOf(ctx, r); b != nil && !b.adds(was) {
			break
		}
	}
	return found, skipped, err
}

// bookOf lists a run; nil: it is gone.
func (c *Finder) bookOf(ctx context.Context, r Run) (*book, error) {
	b, _, err := c.book(ctx, r.Job, r.Job+"/"+r.Run)
	if err != nil || b == nil || b.place != r.Place {
		return nil, err
	}
	return b, nil
}

// findBy looks at what a list of a run has.
func (c *Finder) findBy(ctx context.Context, b *book, r Run, id replica.JobID) (found []Found, skipped []Skipped, err error) {
	if r.ID == (replica.JobID{}) {
		r.ID = id // run.json is damaged: each COMMIT says it too
	}
	var coms []*format.Commit
	for g := range b.commits {
		if b.trash[g] {
			skipped = append(skipped, passedOver(r, g, Deleting, errors.New("it is being deleted"), nil))
			continue
		}
		coms = append(coms, &format.Commit{Generation: g})
	}
	reasons := make([]error, len(coms))
	err = c.objects.Each(ctx, len(coms), func(ctx context.Context, i int) error {
		com, err := c.ReadCommit(ctx, r, coms[i].Generation)
		if err == nil {
			coms[i] = com
			return nil
		}
		err = c.OrDeleted(ctx, r, coms[i].Generation, err)
		reasons[i] = err
		if damage.Unread(err) || errors.Is(err, ErrNone) {
			return nil
		}
		return damage.Fatal(err)
	})
	if err != nil {
		return nil, nil, err
	}
	var whole []*format.Commit
	for i, com := range coms {
		if reasons[i] == nil {
			whole = append(whole, com)
		} else {
			skipped = append(skipped, passedOver(r, com.Generation, stateOf(reasons[i]), reasons[i], nil))
		}
	}
	unfinished, err := c.loose(ctx, r, b)
	if err != nil {
		return nil, nil, err
	}
	skipped = append(skipped, unfinished...)
	for _, com := range whole {
		r.Order = max(r.Order, com.Order)
	}
	for _, f := range inOrder(r, whole) {
		if f.Run.ID == (replica.JobID{}) {
			f.Run.ID = f.Commit.Run
		}
		err := c.files(ctx, &f)
		err = c.OrDeleted(ctx, r, f.Generation, err)
		if ferr := damage.Fatal(err); ferr != nil && !damage.Unread(err) && !errors.Is(err, ErrNone) {
			return nil, nil, ferr
		}
		if err != nil {
			skipped = append(skipped, passedOver(r, f.Generation, stateOf(err), err, nil))
			continue
		}
		if read, ok := b.reads[f.Generation]; ok {
			f.Read, f.Touched = time.Unix(read.At, 0),
				f.newest.After(b.marked[f.Generation]) || b.commits[f.Generation].Modified.After(b.marked[f.Generation])
			if !read.Good { // it counts for nothing until a read finds it whole
				skipped = append(skipped, passedOver(r, f.Generation, Damaged, c.whyBad(ctx, r.Place, read), &f))
				continue
			}
		}
		found = append(found, f)
	}
	slices.SortFunc(skipped, func(a, b Skipped) int { return b.Generation.Compare(a.Generation) })
	return found, skipped, nil
}

// loose is what objects mean that lie behind the newest COMMIT and have none of their own: a write that was never finished, or a COMMIT
// that is gone. A record of a read, the summary or last.json names a COMMIT that there was.
func (c *Finder) loose(ctx context.Context, r Run, b *book) (skipped []Skipped, err error) {
	if len(b.loose) == 0 {
		return nil, nil
	}
	raw, _, err := c.objects.Get(ctx, r.Under(format.SummaryKey))
	last, _, lerr := c.objects.Get(ctx, r.Job+"/"+format.LastKey)
	if damage.CantTell(err) || damage.CantTell(lerr) {
		return nil, cmp.Or(err, lerr)
	}
	rows, h := &format.Summary{}, &format.Hint{}
	if s, err := format.ParseSummary(raw, r.Place); err == nil {
		rows = s
	}
	if l, err := format.ParseHint(last); err == nil && l.Run == r.Run {
		h = l
	}
	for g, n := range b.loose {
		had := g == h.Generation || slices.ContainsFunc(rows.Rows, func(row format.Row) bool { return row.Generation == g })
		why, err := c.lostCommit(ctx, b, g, had)
		if err != nil {
			return nil, err
		}
		if why != nil {
			skipped = append(skipped, passedOver(r, g, Damaged, why, nil))
			continue
		}
		skipped = append(skipped, passedOver(r, g, Unfinished, fmt.Errorf("%d objects and no commit: it was never finished", n), nil))
	}
	return skipped, nil
}

// lostCommit is the damage where a generation's COMMIT is gone; nil: as far as is known it had none, or it is being deleted. had: a hint
// names it.
func (c *Finder) lostCommit(ctx context.Context, b *book, g replica.Generation, had bool) (why error, err error) {
	if _, read := b.reads[g]; b.trash[g] || !read && !had {
		return nil, nil
	}
	name := format.Name{Kind: format.CommitKind, Generation: g}
	_, err = c.objects.Stat(ctx, b.place.Key(name))
	switch {
	case errors.Is(err, store.ErrAbsent):
		return damage.Lying(name.String(), err), nil
	case damage.CantTell(err):
		return nil, err
	}
	return nil, nil // it has come since the list
}

// stateOf is the state of a generation that could not be looked at whole.
func stateOf(err error) State {
	switch {
	case damage.Unread(err), errors.Is(err, format.ErrNewer):
		return Unreadable
	case errors.Is(err, ErrNone):
		return Deleting
	}
	return Damaged
}

// inOrder sorts the commits of a run: newest position first, and behind all what is no ancestor of the newest.
func inOrder(r Run, coms []*format.Commit) (list []Found) {
	slices.SortFunc(coms, func(a, b *format.Commit) int { return Newer(b.Position, b.Generation, a.Position, a.Generation) })
	for _, com := range coms {
		f := Found{Commit: *com, Run: r}
		newest := coms[0]
		f.Abandoned = com != newest && len(newest.Lineage) > 0 && (!newest.Lineage.Valid(com.Generation) ||
			slices.Contains(newest.Condemned, com.Generation))
		list = append(list, f)
	}
	slices.SortStableFunc(list, func(a, b Found) int {
		return cmp.Compare(map[bool]int{true: 1}[a.Abandoned], map[bool]int{true: 1}[b.Abandoned])
	})
	return list
}
