package place

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable"
	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

// OpenStore opens the store that a URL or a path names. What a URL does not say, the environment does, as for Amazon's own tools. A store
// that
// does not do what it is asked is named on notes at once: a command that waits for one is not silent.
func OpenStore(ctx context.Context, url string, notes io.Writer) (store.Store, error) {
	n := notices{to: notes, now: time.Now}
	return durable.Open(ctx, url, durable.Settings{Notice: n.print})
}

// noticeEvery is how much time lies between two lines about a store.
const noticeEvery = time.Second

// notices prints what goes on with a store, one line a second at most: a hundred parts may fail at once.
type notices struct {
	to  io.Writer
	now func() time.Time

	mu   sync.Mutex // guards last
	last time.Time
}

func (n *notices) print(s remote.Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := n.now(); now.Sub(n.last) >= noticeEvery {
		n.last = now
		console.Printf(n.to, "%s\n", noticeText(s))
	}
}

func noticeText(s remote.Notice) string {
	what := "replicad: the store is asked to " + strings.TrimSpace(s.Op+" "+s.Key)
	if s.Err == nil {
		return what + ": " + s.Far
	}
	text := fmt.Sprintf("%s: %v", what, s.Err)
	if s.Attempt > 0 {
		text += fmt.Sprintf("; attempt %d, the next one in %v", s.Attempt, s.Again.Round(100*time.Millisecond))
	}
	return text
}
