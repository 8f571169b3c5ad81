package catalog

import (
	"context"
	"fmt"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/read"
)

// Repair writes bad twins anew from those that are whole.
func (c *Catalog) Repair(ctx context.Context, f find.Found, faults []read.Fault) error {
	for _, fault := range faults {
		if !fault.Twin {
			continue
		}
		for _, file := range f.Index.Files {
			good := file.Key
			if fault.Key == file.Key {
				good = file.Twin
			} else if fault.Key != file.Twin {
				continue
			}
			if err := c.objects.Remove(ctx, f.Run.Under(fault.Key)); err != nil {
				return err
			}
			if err := c.objects.Transfer(ctx, f.Run.Under(good), c.objects, f.Run.Under(fault.Key), file); err != nil {
				return fmt.Errorf("repair %s from %s: %w", fault.Key, good, err)
			}
		}
	}
	return nil
}
