package write

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// ErrFenced marks what a fleet may not do any more: another one claimed the epoch, or a later one.
var ErrFenced = errors.New("another fleet owns the run")

func (f Fleet) put(claim *format.Claim) bool {
	return claim.Cluster == f.Cluster && claim.Fleet == f.Name
}

// owner is the claim that took a run last, as a fleet sees it: of several of one epoch its own; nil: nobody has, as far as can be read.
// Where the claim that took the run is gone, the first that is there is its owner's: nobody else claims an epoch without taking it.
func owner(claims []find.Holding, fleet Fleet) (own *format.Claim) {
	var first *format.Claim
	for _, h := range claims {
		if h.Said == nil {
			continue
		}
		if first == nil {
			first = h.Said
		}
		if h.Said.Takes && (own == nil || h.Epoch > own.Epoch || fleet.put(h.Said)) {
			own = h.Said
		}
	}
	return cmp.Or(own, first)
}

// rival is a claim of another fleet that took the run in the same epoch; nil: there is none, as always with conditions.
func rival(claims []find.Holding, fleet Fleet, e replica.Epoch) *find.Holding {
	i := slices.IndexFunc(claims, func(h find.Holding) bool {
		return h.Epoch == e && h.Said != nil && h.Said.Takes && !fleet.put(h.Said)
	})
	if i < 0 {
		return nil
	}
	return &claims[i]
}

// riddle is the newest claim that cannot be read, of an epoch from e on: who put it may have taken the run. nil: there is none.
func riddle(claims []find.Holding, e replica.Epoch) *find.Holding {
	for i := len(claims) - 1; i >= 0 && claims[i].Epoch >= e; i-- {
		if claims[i].Said == nil {
			return &claims[i]
		}
	}
	return nil
}

// newestClaim is the newest epoch that anybody has claimed; 0: none.
func newestClaim(claims []find.Holding) replica.Epoch {
	if len(claims) == 0 {
		return 0
	}
	return claims[len(claims)-1].Epoch
}

// may is what a fleet may do in its epoch: nil, commit; ErrNone, claim it first, and take the run with it where takes; ErrFenced,
// nothing. Any other error: nobody knows whose the run is.
//
// A claim of a later epoch by a fleet that does not own the run was put while the owner took it. It changes nothing. Of fleets that took
// the run in one epoch, none does anything.
func may(claims []find.Holding, fleet Fleet) (takes bool, err error) {
	own := owner(claims, fleet)
	mine := slices.ContainsFunc(claims, func(h find.Holding) bool { return h.Said != nil && fleet.put(h.Said) })
	from := replica.Epoch(0) // a claim behind the owner's may have taken the run from it, and so may one beside it
	if own != nil {
		from = own.Epoch
	}
	open := riddle(claims, from)
	switch {
	case own != nil && !fleet.put(own) && own.Epoch >= fleet.Epoch:
		return false, fenced(own, newestClaim(claims))
	case own != nil && fleet.put(own) && rival(claims, fleet, own.Epoch) != nil:
		other := rival(claims, fleet, own.Epoch)
		return false, fenced(other.Said, other.Epoch)
	case (own == nil || !fleet.put(own)) && !mine && fleet.Epoch > newestClaim(claims):
		return true, notClaimed(fleet)
	case open != nil:
		return false, open.Unread()
	case own == nil || !fleet.put(own):
		return false, fenced(own, newestClaim(claims))
	case slices.ContainsFunc(claims, func(h find.Holding) bool { return h.Epoch == fleet.Epoch }):
		return false, nil
	}
	return false, notClaimed(fleet)
}

func notClaimed(fleet Fleet) error {
	return fmt.Errorf("nobody has claimed epoch %d: %w", fleet.Epoch, find.ErrNone)
}

// fenced names whose the run is, and what can be done.
func fenced(own *format.Claim, at replica.Epoch) error {
	who := fmt.Sprintf("somebody has claimed epoch %d, and the claim cannot be read", at)
	if own != nil {
		who = fmt.Sprintf("%s (cluster %v) has claimed epoch %d", own.Fleet, own.Cluster, own.Epoch)
	}
	return fmt.Errorf("%w: %s: let that one go on; or end it, and start this one again with --resume, or without as a new run", ErrFenced,
		who)
}

// Claim gives a fleet an epoch of a run that it owns, and the run where nobody has claimed its epoch or a later one. Who loses gets
// ErrFenced, with the owner's name. The run becomes the last of its name.
func (c *Writer) Claim(ctx context.Context, r find.Run, fleet Fleet) error {
	if err := c.claimed(ctx, r, fleet); err != nil {
		return fmt.Errorf("claim epoch %d of run %s of job %s: %w", fleet.Epoch, r.Run, r.Job, err)
	}
	return nil
}

func (c *Writer) claimed(ctx context.Context, r find.Run, fleet Fleet) error {
	claims, err := c.find.Claims(ctx, r)
	if err != nil {
		return err
	}
	takes, err := may(claims, fleet)
	if errors.Is(err, find.ErrNone) {
		if err := c.putClaim(ctx, r, fleet, takes); err != nil {
			return err
		}
		if takes && !c.weak {
			return nil
		}
		if claims, err = c.find.Claims(ctx, r); err != nil { // somebody may have taken the run meanwhile
			return err
		}
		_, err = may(claims, fleet)
	}
	return err
}

// putClaim puts a claim of a fleet's epoch where none is. Another's is ErrFenced.
func (c *Writer) putClaim(ctx context.Context, r find.Run, fleet Fleet, takes bool) error {
	runs, err := c.find.Runs(ctx, r.Job)
	if err != nil {
		return err
	}
	order := uint64(1)
	for _, other := range runs {
		switch {
		case other.Place == r.Place:
			order = max(order, other.Order)
		case other.Order >= order:
			order = other.Order + 1
		}
	}
	claim := format.Claim{Run: r.ID, Epoch: fleet.Epoch, Cluster: fleet.Cluster, Fleet: fleet.Name, Takes: takes, Order: order,
		At: c.now().UnixMilli()}
	b, err := claim.Seal()
	if err != nil {
		return err
	}
	there, err := c.objects.PutOnce(ctx, r.Key(c.claimName(fleet)), b)
	if there == nil {
		return err
	}
	other, err := format.ParseClaim(there, r.Place, r.ID, fleet.Epoch)
	if err != nil {
		return (&find.Holding{Epoch: fleet.Epoch, Err: fmt.Errorf("%s: %w", r.Key(c.claimName(fleet)), err)}).Unread()
	}
	if !fleet.put(other) {
		return fenced(other, other.Epoch)
	}
	return nil
}

// claimName names the claim of a fleet.
func (c *Writer) claimName(fleet Fleet) format.Name {
	n := format.Name{Kind: format.ClaimKind, Epoch: fleet.Epoch}
	if c.weak {
		n.Fleet = format.FleetKey(fleet.Cluster, fleet.Name)
	}
	return n
}

// alone lists the claims of a run once more when a fleet that resumes it has put its own, where that could not be refused. was are those
// that it saw before. Where others have come, or nobody knows, the fleet's is withdrawn, and the error is ErrFenced: the other one may have
// seen none.
func (c *Writer) alone(ctx context.Context, r find.Run, fleet Fleet, was []find.Holding) error {
	now, err := c.find.Claims(ctx, r)
	if err != nil {
		err = fmt.Errorf("%w: nobody knows whether another fleet resumes the run: %w. Resume again", ErrFenced, err)
	}
	key := r.Key(c.claimName(fleet))
	for _, h := range now {
		if h.Key != key && !slices.ContainsFunc(was, func(w find.Holding) bool { return w.Key == h.Key }) {
			err = fmt.Errorf("%w. If that fleet is gone, resume again", fenced(h.Said, h.Epoch))
		}
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
		defer cancel()
		_ = c.objects.Remove(ctx, key) // one that stays is passed over by the next resume, which names it
	}
	return err
}

// withdrawTime bounds the withdrawal of a claim: a launcher waits for it.
const withdrawTime = 10 * time.Second

// Owns reports whether a fleet may commit in an epoch: it has claimed it, and nobody else has taken the run since. ErrNone: nobody has
// claimed it. order is the run's, as its claims say.
func (c *Writer) Owns(ctx context.Context, r find.Run, fleet Fleet) (order uint64, err error) {
	claims, err := c.find.Claims(ctx, r)
	if err != nil {
		return 0, err
	}
	order = r.Order
	for _, h := range claims {
		if h.Said != nil {
			order = max(order, h.Said.Order)
		}
	}
	_, err = may(claims, fleet)
	return order, err
}

// Fleet is who owns an epoch of a run, and commits in it. The epoch is the job's present one: a generation that was restored in it keeps
// the name that it has from an earlier one.
type Fleet struct {
	Cluster replica.ClusterID
	Name    string // unique, so that two fleets of one cluster are told apart: for people, and a nonce
	Epoch   replica.Epoch
}
