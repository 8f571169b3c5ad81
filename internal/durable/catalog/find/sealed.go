package find

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
)

// ErrLocked marks what is encrypted and can't be read, since no key of it was given.
var ErrLocked = sealed.ErrLocked

// lockedTo is what Readable says.
func (c *Finder) lockedTo(f Found) error {
	return fmt.Errorf("step %d of %s/%s is encrypted to %s: %w: name its key's file in durable_identities, or for ckpt and --from in "+
		"--identity or REPLICAD_IDENTITY",
		f.Generation.Step, c.URL(), f.Job, short(f.Sealed.Recipients), ErrLocked)
}

// What is shown of recipients: those of age's second kind have 1,959 letters each.
const (
	recipientsShown = 3
	recipientShown  = 62 // as many as one of the first kind has
)

func short(recipients []string) string {
	var list []string
	for i, r := range recipients {
		if i == recipientsShown {
			list = append(list, fmt.Sprintf("%d more", len(recipients)-i))
			break
		}
		if len(r) > recipientShown {
			r = r[:recipientShown] + "..."
		}
		list = append(list, r)
	}
	return strings.Join(list, ", ")
}

// readIndex reads the index of a generation. locked says why it can't be read; then it lists the files alone, which COMMIT says.
func (c *Finder) readIndex(ctx context.Context, f Found) (x *format.Index, locked, err error) {
	key := f.Run.Under(f.Commit.Index.Key)
	b, _, err := c.objects.Get(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	x, err = c.ParseIndex(b, &f.Commit)
	if errors.Is(err, ErrLocked) {
		com := &f.Commit
		return &format.Index{Job: com.Job, Run: com.Run, Generation: com.Generation, Write: com.Write, Files: com.Sealed.Files},
			c.lockedTo(f), nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", key, err)
	}
	return x, nil, nil
}

// ParseIndex is format's, with the catalog's keys.
func (c *Finder) ParseIndex(b []byte, com *format.Commit) (*format.Index, error) {
	return format.ParseIndex(b, com, func(b []byte) ([]byte, error) {
		out, err := c.keys.OpenBytes(b)
		return out, damage.Corrupted(err)
	})
}
