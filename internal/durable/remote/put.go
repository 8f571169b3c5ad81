package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/replicad/replicad/internal/durable/store"
)

// Small is a conditional put of a small object.
type Small struct {
	Bytes []byte
	Was   store.Version // that it replaces; empty: there must be none
	Lost  error         // what a condition that does not hold means: store.ErrExists or store.ErrChanged
	Send  func(ctx context.Context) (store.Version, error)
	Fetch func(ctx context.Context) ([]byte, store.Version, error) // what is there
}

// Put makes a conditional put. After an answer that leaves it in doubt it reads back before it goes on: its own bytes there are its success,
// and what was there before lets it try again. A request that is still on its way can do no harm then, since at most one of two holds its
// condition.
func (c *Call) Put(p Small) (store.Version, error) {
	doubt := false
	for {
		var v store.Version
		f := c.Once(func(ctx context.Context) (err error) {
			v, err = p.Send(ctx)
			return err
		})
		switch {
		case f == nil:
			return v, nil
		case !doubt && (f.Class == Exists || f.Class == Absent):
			return "", c.Fail(f, p.Lost)
		case f.Class.doubts(), f.Class == Contended, f.Class == Exists, f.Class == Absent:
			doubt = doubt || f.Class.doubts()
			v, settled, err := c.readBack(p, doubt)
			if settled {
				return v, err
			}
			if f.Class == Exists || f.Class == Absent {
				f = &Failure{Class: Contended, Text: f.Text, Err: f.Err} // what was there has gone again: that is no answer for good
			}
		}
		if !c.Again(f) {
			if doubt && f.Class != Over {
				return "", c.Fail(f, store.ErrDoubtful)
			}
			if doubt {
				return "", fmt.Errorf("%w: %w", store.ErrDoubtful, c.Fail(f))
			}
			return "", c.Fail(f)
		}
	}
}

// readBack tells what a put in doubt has come to, if that can be told.
func (c *Call) readBack(p Small, doubt bool) (v store.Version, settled bool, err error) {
	var got []byte
	f := c.Repeat(func(ctx context.Context) (err error) {
		got, v, err = p.Fetch(ctx)
		return err
	})
	there := f == nil
	switch {
	case f != nil && f.Class != Absent:
		return "", false, nil // the put is told about, not this
	case there && doubt && bytes.Equal(got, p.Bytes):
		return v, true, nil
	case there && v == p.Was, !there && p.Was == "":
		return "", false, nil // as before: it was not carried out, or not yet
	case doubt && p.Was != "":
		return "", true, c.Fail(nil, store.ErrDoubtful, errors.New("a third content is there")) // ours may have been there in between
	}
	return "", true, c.Fail(nil, p.Lost)
}

// CheckSmall tells whether an object may be put in one request.
func CheckSmall(key string, b []byte) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	if len(b) > store.MaxSmall {
		return fmt.Errorf("%s has %d bytes, want at most %d for one put", key, len(b), store.MaxSmall)
	}
	return nil
}
