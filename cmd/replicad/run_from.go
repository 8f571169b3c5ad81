package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/replicad/replicad/internal/durable/ckpt"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/internal/wire"
)

// origin finds the generation that --from names. What can't be found now may be that of a job which runs already, and goes on without it: the leader
// judges that, and has the reason. A name that can't be one is refused here.
func (f *runFlags) origin(ctx context.Context, std stdio) (from *wire.From, err error) {
	if f.from == "" {
		if f.fromJob != "" {
			return nil, usage.Wrong(errors.New("--from-job names a job of the place that --from names: give both"))
		}
		return nil, nil
	}
	finder := place.Finder{Notes: std.err, Keyring: new(place.Keyring)}
	if from, f.lease, err = ckpt.Origin(ctx, finder, f.from, f.fromJob); err != nil {
		return nil, usage.Wrong(fmt.Errorf("--from: %w", err))
	}
	return from, nil
}
