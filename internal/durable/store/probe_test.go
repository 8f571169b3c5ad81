package store

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
)

// careless is a store in memory that can ignore what it is asked.
type careless struct {
	Store
	objects         map[string][]byte
	versions        map[string]int
	noNew, noChange bool // these conditions are ignored
	other           bool // it reads other bytes than were put
	silent          bool
}

func (c *careless) URL() string { return "memory://careless" }

func (c *careless) put(key string, b []byte) (Version, error) {
	c.objects[key] = bytes.Clone(b)
	c.versions[key]++
	return c.version(key), nil
}

func (c *careless) version(key string) Version { return Version(strconv.Itoa(c.versions[key])) }

func (c *careless) PutNew(_ context.Context, key string, b []byte) (Version, error) {
	if _, there := c.objects[key]; there && !c.noNew {
		return "", ErrExists
	}
	return c.put(key, b)
}

func (c *careless) PutUnchanged(ctx context.Context, key string, b []byte, was Version) (Version, error) {
	if c.silent {
		<-ctx.Done()
		return "", context.Cause(ctx)
	}
	if _, there := c.objects[key]; (!there || c.version(key) != was) && !c.noChange {
		return "", ErrChanged
	}
	return c.put(key, b)
}

func (c *careless) Get(_ context.Context, key string, _ int64) ([]byte, Version, error) {
	if c.other {
		return []byte("other"), c.version(key), nil
	}
	return c.objects[key], c.version(key), nil
}

func (c *careless) Delete(_ context.Context, key string) error {
	delete(c.objects, key)
	return nil
}

// TestProbe: a store that ignores a condition is found out, and nothing is left in it.
func TestProbe(t *testing.T) {
	for name, tc := range map[string]struct {
		store careless
		want  error
	}{
		"good":                   {careless{}, nil},
		"put if absent ignored":  {careless{noNew: true}, ErrUnconditional},
		"put if changed ignored": {careless{noChange: true}, ErrUnconditional},
		"other bytes":            {careless{other: true}, ErrCorrupt},
	} {
		s := tc.store
		s.objects, s.versions = map[string][]byte{}, map[string]int{}
		err := Probe(t.Context(), &s)
		if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		if errors.Is(err, ErrUnconditional) && (!strings.Contains(err.Error(), "conditions: none") || !strings.Contains(err.Error(), "memory://careless")) {
			t.Errorf("%s: %v has no remedy", name, err)
		}
		if len(s.objects) > 0 {
			t.Errorf("%s: left %v", name, s.objects)
		}
	}
}

// TestProbeOfASilentStore ends in time.
func TestProbeOfASilentStore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		err := Probe(t.Context(), &careless{silent: true, objects: map[string][]byte{}, versions: map[string]int{}})
		if took := time.Since(began); !errors.Is(err, ErrDoubtful) || took != ProbeTime {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
