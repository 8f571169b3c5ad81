package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// ErrUnconditional: the store takes a put whose condition does not hold.
var ErrUnconditional = errors.New("the store ignores the conditions of a put")

// ProbePrefix begins the keys of what Probe puts. A daemon that was killed in the middle leaves one object of a few bytes there.
const ProbePrefix = ".probe-"

// ProbeTime is how long Probe may take: a daemon that starts waits for it.
const ProbeTime = 2 * time.Second

// Probe tries whether a store does what its conditions say, which no documentation of a server is believed about. It takes at most
// two seconds beside the removal of what it put.
func Probe(ctx context.Context, s Store) error { return ProbeWithin(ctx, s, ProbeTime) }

// ProbeWithin is Probe with another bound: a store that asks many for fewer requests takes longer.
func ProbeWithin(ctx context.Context, s Store, most time.Duration) error {
	key := ProbePrefix + rand.Text()
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("%w: the probe took more than %v", ErrDoubtful, most))
	defer cancel()
	err := probe(ctx, s, key)
	sweep, stop := context.WithTimeout(context.WithoutCancel(ctx), most/2) // also after the time is over
	defer stop()
	if left := s.Delete(sweep, key); err == nil && left != nil {
		err = fmt.Errorf("remove %s: %w", key, left)
	}
	if err != nil {
		return fmt.Errorf("probe of %s: %w", s.URL(), err)
	}
	return nil
}

func probe(ctx context.Context, s Store, key string) error {
	one, two, three := []byte("one "+key), []byte("two "+key), []byte("three "+key)
	if _, err := s.PutUnchanged(ctx, key, one, "none"); !errors.Is(err, ErrChanged) {
		return unconditional("put if unchanged, where nothing is", err)
	}
	first, err := s.PutNew(ctx, key, one)
	if err != nil {
		return fmt.Errorf("put if absent: %w", err)
	}
	if _, err := s.PutNew(ctx, key, two); !errors.Is(err, ErrExists) {
		return unconditional("put if absent, where an object is", err)
	}
	second, err := s.PutUnchanged(ctx, key, two, first)
	if err != nil {
		return fmt.Errorf("put if unchanged: %w", err)
	}
	if _, err := s.PutUnchanged(ctx, key, three, first); !errors.Is(err, ErrChanged) {
		return unconditional("put if unchanged, where it has changed", err)
	}
	got, version, err := s.Get(ctx, key, MaxSmall)
	switch {
	case err != nil:
		return err
	case !bytes.Equal(got, two) || version != second:
		return fmt.Errorf("%w: %s reads %.100q, version %q, after %.100q was put, version %q", ErrCorrupt, key, got, version, two, second)
	}
	return nil
}

// unconditional is what a condition that did not hold was answered with, if not by saying so.
func unconditional(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%w: %s, was carried out. Two fleets could overwrite each other's checkpoints there: take another store, or set store: {conditions: none}, which keeps fleets apart by what the server lists (docs/stores.md)", ErrUnconditional, what)
}
