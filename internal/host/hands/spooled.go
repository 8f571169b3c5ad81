package hands

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/host/writer"
	"github.com/replicad/replicad/replica"
)

// Spooled answers the leader what former lives of this daemon left in the spool of a job's durable writes, and writes it.
func (h *Hands) Spooled(o control.SpoolOrder) {
	h.Owner.Beside(func(ctx context.Context) any {
		r := control.SpoolReport{ID: o.ID}
		if h.Spool == nil || h.Store == nil {
			return Reply{Msg: r}
		}
		left, passed := writer.LeftBehind(ctx, h.Spool, h.Self, h.Cluster)
		left = slices.DeleteFunc(left, func(n *tier.Spooled) bool { return n.Job != o.Name })
		if len(o.Parts) > 0 {
			r.Wrote, r.Failed = h.finishSpooled(ctx, o, left)
			return Reply{Msg: r}
		}
		for _, why := range passed {
			h.Log.Failed("spool", "what a former life of this daemon left", why)
		}
		r.Passed = passed
		r.Left = told(left)
		return Reply{Msg: r}
	})
}

// mostTold bounds what is told of a spool, in bytes: a frame has a bound, and with many ranks a note has many roots.
const mostTold = control.MaxLinkFrame / 2

// told are the notes for the leader, the newest first, without what is of use here alone.
func told(left []*tier.Spooled) (list [][]byte) {
	slices.SortStableFunc(left, func(a, b *tier.Spooled) int {
		return replica.Generation(b.Said.Position).Compare(replica.Generation(a.Said.Position))
	})
	all := 0
	for _, n := range left {
		told := *n
		told.Pieces = nil
		b, err := told.Seal()
		if all += len(b); err != nil || all > mostTold {
			break
		}
		list = append(list, b)
	}
	return list
}

// finishSpooled writes the parts that the leader wants of one generation, object by object.
func (h *Hands) finishSpooled(ctx context.Context, o control.SpoolOrder, left []*tier.Spooled) (wrote []replica.Stored, failed string) {
	objects, frozen := map[string][]writer.Pick{}, map[string]*writer.Pick{} // a frozen part goes with its group's
	for _, p := range o.Parts {
		at, ok := writer.PickOf(left, o.Job, o.Generation, p)
		if !ok {
			return nil, fmt.Sprintf("%v of generation %v is not in the spool any more", p.Part, o.Generation)
		}
		name := tier.ObjectOf(h.Self, p.Part)
		if p.Part.Kind == replica.FrozenPart {
			frozen[name] = &at
			continue
		}
		objects[name] = append(objects[name], at)
	}
	var why []string
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		n := objects[name][0].Note
		a := tier.Attempt{Name: n.Job, Job: n.ID, Owner: n.Owner, Began: n.Began, Cluster: h.Cluster, Fleet: o.Fleet,
			Epoch: o.Epoch, Generation: n.Generation, Number: o.As}
		s, err := writer.Finish(ctx, writer.Tier{Store: h.Store, Spool: h.Spool, Rate: h.rate}, a, name, frozen[name], objects[name])
		if err != nil {
			why = append(why, err.Error())
			continue
		}
		wrote = append(wrote, s)
	}
	return wrote, strings.Join(why, "; ")
}
