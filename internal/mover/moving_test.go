package mover

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// TestMovingIsTheMostOfAnyTry: what a push has sent rises while it gets further, a try that begins anew is no progress, and why the newest failed
// is there while it is tried again.
func TestMovingIsTheMostOfAnyTry(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var refuses atomic.Bool // the mirror serves on goroutines of its own
		refuses.Store(true)
		at := newPlace()
		m, told := among(t, nil, &peer{name: "n2", store: &part{take: func(transfer.Key) (*place, error) {
			if refuses.Load() {
				return nil, transfer.ErrNotYet
			}
			return at, nil
		}}})
		p := newPart(3 * chunk)
		line := Line{Node: "n2", Job: p.man.Job, Rank: 1}
		m.Push(line, Push{Key: p.key(), From: p}, always)
		time.Sleep(time.Second)
		now := m.Moving(p.man.Job, p.man.Generation)
		if len(now) != 1 || now[0].Line != line || now[0].Part != p.man.Part || !strings.Contains(now[0].Why, transfer.ErrNotYet.Error()) || now[0].Bytes > p.man.Bytes {
			t.Fatalf("of a part that is not taken yet: %+v", now)
		}
		first := now[0].Bytes
		time.Sleep(5 * time.Second)
		if now = m.Moving(p.man.Job, p.man.Generation); now[0].Bytes != first {
			t.Errorf("%d bytes, and %d with each try: nothing got further", first, now[0].Bytes)
		}
		refuses.Store(false)
		next(t, told, nil)
		if now = m.Moving(p.man.Job, p.man.Generation); now[0].Bytes != p.man.Bytes || now[0].Why != "" {
			t.Errorf("of a part that was taken: %+v", now)
		}
		if other := m.Moving(p.man.Job, replica.Generation{Epoch: 3, Step: 41}); len(other) != 0 {
			t.Errorf("of another generation: %+v", other)
		}
		m.EndPushes(p.man.Job)
		if now = m.Moving(p.man.Job, p.man.Generation); len(now) != 0 {
			t.Errorf("of a job that has ended: %+v", now)
		}
	})
}
