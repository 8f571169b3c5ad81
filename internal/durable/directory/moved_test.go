package directory

import (
	"bytes"
	"context"
	"crypto/sha256"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/durable/store"
)

// TestASlowDiskMovesByBytes: of a disk that syncs slowly each step is synced, so that it is seen to move; one that is quick syncs whole parts.
func TestASlowDiskMovesByBytes(t *testing.T) {
	for quick, syncs := range map[time.Duration]int64{0: partBytes / step, time.Hour: 2} { // the first step of a disk that nobody knows, and the rest
		s := opened(t, t.TempDir(), newFaults())
		s.quickSync = quick
		b := bytes.Repeat([]byte{7}, partBytes)
		var moved atomic.Int64
		ctx := store.Watching(t.Context(), store.Watch{Moved: func(n int) { moved.Add(int64(n)) }})
		u, err := s.Upload(ctx, "d/k", partBytes)
		if err == nil {
			err = u.Part(ctx, 0, b)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := moved.Load(); got != partBytes+syncs {
			t.Errorf("quick below %v: %d bytes moved, want %d and %d syncs", quick, got, partBytes, syncs)
		}
		if _, err := u.Complete(ctx, sha256.Sum256(b)); err != nil {
			t.Error(err)
		}
	}
}

// TestACallThatHangsIsKnown: also where its caller has gone, until it returns.
func TestACallThatHangsIsKnown(t *testing.T) {
	dir := t.TempDir()
	bubble.Test(t, func(t *testing.T) {
		f := newFaults()
		s := opened(t, dir, f)
		if err := s.Hangs(); err != nil {
			t.Error(err)
		}
		f.frozen = make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Upload(ctx, "d/k", 1)
		if err == nil || s.Hangs() == nil || s.Silent() != "" {
			t.Errorf("it ends with %v; a call hangs: %v; it is silent: %q", err, s.Hangs(), s.Silent())
		}
		f.mu.Lock()
		close(f.frozen)
		f.frozen = nil
		f.mu.Unlock()
		synctest.Wait()
		if err := s.Hangs(); err != nil {
			t.Errorf("it has returned: %v", err)
		}
	})
}
