package objects

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
)

// Writer makes all requests.
type Writer struct {
	*Reader
	note func(error)
	weak bool // the store ignores conditions
}

// PutOnce puts an object where none is. there is what lies in its place, if that is something else.
func (c *Writer) PutOnce(ctx context.Context, key string, b []byte) (there []byte, err error) {
	err = c.Again(ctx, func() error {
		err := c.putNew(ctx, key, b)
		if err == nil || !unclear(err) && !errors.Is(err, store.ErrExists) {
			return err
		}
		got, _, gerr := c.st.Get(ctx, key, format.MaxDocument)
		switch {
		case gerr == nil && bytes.Equal(got, b):
			return nil // an answer was lost, or somebody put the very same
		case gerr == nil:
			there = got
			return fmt.Errorf("%s: %w", key, store.ErrExists)
		case errors.Is(gerr, store.ErrAbsent) && errors.Is(err, store.ErrExists):
			return fmt.Errorf("%w: %s was there and is gone", store.ErrDoubtful, key)
		case unclear(gerr):
			return gerr
		}
		return err
	})
	return there, err
}

// putNew is the store's, and looks first where that ignores the condition: what somebody put long ago is not overwritten. Of two that put
// at once the last one stays.
func (c *Writer) putNew(ctx context.Context, key string, b []byte) error {
	if c.weak {
		if _, err := c.st.Stat(ctx, key); !errors.Is(err, store.ErrAbsent) {
			return cmp.Or(err, fmt.Errorf("%s: %w", key, store.ErrExists))
		}
	}
	_, err := c.st.PutNew(ctx, key, b)
	return err
}

// Swap changes a hint: change gets what is there, nil for nothing or for what cannot be read, and returns nil to leave it.
func (c *Writer) Swap(ctx context.Context, key string, change func(was []byte) ([]byte, error)) error {
	for range Tries {
		was, v, err := c.Get(ctx, key)
		if err != nil && !errors.Is(err, store.ErrAbsent) {
			return err
		}
		absent := err != nil
		b, err := change(was)
		if err != nil || b == nil {
			return err
		}
		if absent {
			_, err = c.st.PutNew(ctx, key, b)
		} else {
			_, err = c.st.PutUnchanged(ctx, key, b, v)
		}
		if err == nil || !unclear(err) && !errors.Is(err, store.ErrExists) && !errors.Is(err, store.ErrChanged) {
			return err
		}
	}
	return fmt.Errorf("%s: %w: others change it", key, store.ErrChanged)
}

// Remove deletes an object. What is gone is no error.
func (c *Writer) Remove(ctx context.Context, key string) error {
	return c.Again(ctx, func() error { return c.st.Delete(ctx, key) })
}

// Unfinished lists the uploads below a prefix that were never completed.
func (c *Writer) Unfinished(ctx context.Context, prefix string) ([]store.Pending, error) {
	return c.st.Unfinished(ctx, prefix)
}

// Abort ends an upload that was never completed.
func (c *Writer) Abort(ctx context.Context, u store.Pending) error {
	return c.Again(ctx, func() error { return c.st.AbortPending(ctx, u) })
}

// Note reports a hint that failed: a store says only once that it is another one now.
func (c *Writer) Note(err error) {
	if err != nil && c.note != nil {
		c.note(err)
	}
}

// Replace puts a small object where none is, or one that is not good.
func (c *Writer) Replace(ctx context.Context, key string, b []byte, good func(there []byte) bool) (wrote bool, err error) {
	there, _, err := c.Get(ctx, key)
	switch {
	case err == nil && good(there):
		return false, nil
	case err == nil:
		if err := c.Remove(ctx, key); err != nil {
			return false, err
		}
	case !errors.Is(err, store.ErrAbsent):
		return false, err
	}
	there, err = c.PutOnce(ctx, key, b)
	if there != nil && good(there) { // another copy was first
		return false, nil
	}
	return err == nil, err
}
