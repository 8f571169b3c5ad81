package ckpt

import (
	"context"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/place"
)

// Diff compares the generations that two places mean, each kept meanwhile.
func Diff(ctx context.Context, ws [2]*place.Place) (fs [2]catalog.Found, list []catalog.Difference, err error) {
	err = ws[0].Leased(ctx, "ckpt diff", nil, func(f0 catalog.Found) error {
		return ws[1].Leased(ctx, "ckpt diff", nil, func(f1 catalog.Found) (err error) {
			fs = [2]catalog.Found{f0, f1}
			list, err = catalog.Diff(ctx, ws[0].Cat, f0, ws[1].Cat, f1)
			return err
		})
	})
	return fs, list, err
}
