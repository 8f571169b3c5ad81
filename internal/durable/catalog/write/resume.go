package write

import (
	"context"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// Resume takes a run for a fleet before it opens its job, with a claim of the epoch behind was and behind every claim that is there. The
// fleet that had it commits no more: nobody can tell from here whether it lives. r is as it was when its generations were looked for: a
// fleet that has claimed an epoch since resumes the run at this very moment, and has won. Then the error is ErrFenced, with its name.
//
// over is the claim of another fleet that was there, and in whose epoch nothing was committed, as far as was says; none: there was none.
// Several are of one epoch, whatever was committed in it: the store has no conditions.
func (c *Writer) Resume(ctx context.Context, r find.Run, fleet Fleet, was replica.Epoch) (e replica.Epoch, over []format.Claim,
	err error) {
	if e, over, err = c.resume(ctx, r, fleet, was); err != nil {
		err = fmt.Errorf("claim the next epoch of run %s of job %s: %w", r.Run, r.Job, err)
	}
	return e, over, err
}

func (c *Writer) resume(ctx context.Context, r find.Run, fleet Fleet, was replica.Epoch) (e replica.Epoch, over []format.Claim,
	err error) {
	claims, err := c.find.Claims(ctx, r)
	if err != nil {
		return 0, nil, err
	}
	own, at := owner(claims, fleet), newestClaim(claims)
	if own != nil && fleet.put(own) && own.Epoch > was && own.Epoch == at && rival(claims, fleet, at) == nil && riddle(claims, at) == nil {
		return own.Epoch, nil, nil // a leader of this fleet took it, and opened nothing yet
	}
	if h := riddle(claims, r.Claimed+1); h != nil {
		return 0, nil,
			fmt.Errorf("%w: epoch %d was claimed while this one looked for its generations, and by whom cannot be read: %w. Resume again",
				ErrFenced, h.Epoch, h.Err)
	}
	if at > r.Claimed {
		return 0, nil, fmt.Errorf("%w. If that fleet is gone, resume again", fenced(own, at))
	}
	fleet.Epoch = max(was, at) + 1
	if err := c.putClaim(ctx, r, fleet, true); err != nil {
		return 0, nil, err
	}
	if c.weak {
		if err := c.alone(ctx, r, fleet, claims); err != nil {
			return 0, nil, err
		}
	}
	if own == nil || own.Epoch <= was && rival(claims, Fleet{own.Cluster, own.Fleet, own.Epoch}, own.Epoch) == nil {
		return fleet.Epoch, nil, nil
	}
	for _, h := range claims {
		if h.Epoch != own.Epoch || h.Said == nil || !h.Said.Takes || fleet.put(h.Said) {
			continue
		}
		over = append(over, *h.Said)
		why := fmt.Sprintf("%s takes the run from %s, which had claimed epoch %d at %s", fleet.Name, h.Said.Fleet, h.Epoch,
			time.UnixMilli(h.Said.At).UTC().Format(time.RFC3339))
		if h.Epoch > was {
			why += " and committed nothing in it"
		}
		_ = c.hints.Log(ctx, r.Job, format.Log{Verb: "resume", Run: r.Run, Why: why}) // the claim says it too
	}
	return fleet.Epoch, over, nil
}
