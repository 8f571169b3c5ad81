package place

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/remote"
)

// A store that does not do what it is asked is named, one line a second at most.
func TestNoticesOfAStore(t *testing.T) {
	var b strings.Builder
	clock := time.Unix(1e9, 0)
	n := notices{to: &b, now: func() time.Time { return clock }}
	for range 3 {
		n.print(remote.Notice{Op: "list", Key: "lm/", Err: errors.New("nothing has moved for 10s")})
	}
	clock = clock.Add(noticeEvery)
	n.print(remote.Notice{Op: "get", Key: "lm/last.json", Attempt: 2, Err: errors.New("503 SlowDown"), Again: 1234 * time.Millisecond})
	clock = clock.Add(noticeEvery)
	n.print(remote.Notice{Op: "list", Far: "20 names in 20 pages so far, in 20s"})
	want := "replicad: the store is asked to list lm/: nothing has moved for 10s\nreplicad: the store is asked to get lm/last.json: 503 SlowDown; attempt 2, the next one in 1.2s\n" +
		"replicad: the store is asked to list: 20 names in 20 pages so far, in 20s\n"
	if b.String() != want {
		t.Errorf("prints %q, want %q", b.String(), want)
	}
}
