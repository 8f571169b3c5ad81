package node

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/bubble"
)

// TestPartsThatDoNotEndAreNamed: once, and not while the daemon runs.
func TestPartsThatDoNotEndAreNamed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		var told [][]string
		p := &parts{cancel: cancel, late: func(names []string) { told = append(told, names) }}
		release := make(chan struct{})
		p.start(ctx, "host", func(context.Context) error { <-release; return nil })
		p.start(ctx, "gossip", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		ended := make(chan struct{})
		go func() { defer close(ended); p.wait(ctx) }()
		wait := func() { time.Sleep(10 * endLate); synctest.Wait() } // virtual time
		wait()
		if told != nil {
			t.Errorf("told of %v before the end", told)
		}
		cancel(errors.New("terminated"))
		wait()
		if len(told) != 1 || !slices.Equal(told[0], []string{"host"}) {
			t.Errorf("told of %v, want host, once", told)
		}
		close(release)
		<-ended
	})
}

// TestAPartThatFailsEndsTheOthers, with its name in the cause.
func TestAPartThatFailsEndsTheOthers(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	p := &parts{cancel: cancel}
	bad := errors.New("no disk")
	p.start(ctx, "host", func(ctx context.Context) error { <-ctx.Done(); return nil })
	p.start(ctx, "leader", func(context.Context) error { return bad })
	p.wait(ctx)
	if err := context.Cause(ctx); !errors.Is(err, bad) || err.Error() != "leader: no disk" {
		t.Errorf("ended for %v", err)
	}
}
