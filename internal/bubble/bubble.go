// Package bubble runs tests in virtual time. It is testing/synctest, and works around a fault of Go's race detector there. It is imported by tests
// alone and must not import anything of this module but racing.
package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/replicad/replicad/internal/racing"
)

// Test runs f in a bubble of its own, as synctest.Test does. Under the race detector one thread at a time runs Go code meanwhile.
//
// The timers of a bubble share one context of the race detector. A ticker that nobody waits for fires in the goroutine that looks at its channel, while
// the bubble's first goroutine fires others: two threads use the context at once, and the test binary dies with a segmentation violation, or with
// "ThreadSanitizer: CHECK failed". Seen with Go 1.26.8; https://go.dev/issue/78156 is open. With one thread there are never two.
func Test(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if racing.On {
		alone.enter()
		defer alone.leave()
	}
	synctest.Test(t, f)
}

// alone holds the process at one thread while any bubble of it is open: parallel tests have one each.
var alone limit

type limit struct {
	mu     sync.Mutex // guards the rest
	open   int
	before int
}

func (l *limit) enter() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == 0 {
		l.before = runtime.GOMAXPROCS(1)
	}
	l.open++
}

func (l *limit) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open--; l.open == 0 {
		runtime.GOMAXPROCS(l.before)
	}
}
