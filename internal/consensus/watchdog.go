package consensus

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// A watchdog notices log writes and proposals that take too long. hashicorp/raft goes on leading while its disk hangs: the
// heartbeats have goroutines of their own. So the Node hands leadership over (leader.go).
type watchdog struct {
	after   time.Duration
	late    func() time.Duration // how late this process comes to run: a write that waits for a core is no sign of a bad disk
	slow    chan string          // capacity 1: what is slow; one at a time is enough
	freed   chan struct{}        // capacity 1: a write that was slow has returned
	writing atomic.Int64         // log writes that are slow and have not returned
}

func newWatchdog(after time.Duration, late func() time.Duration) *watchdog {
	return &watchdog{after: after, late: late, slow: make(chan string, 1), freed: make(chan struct{}, 1)}
}

// stuck tells whether a log write has been under way for too long.
func (w *watchdog) stuck() bool { return w.writing.Load() > 0 }

// patience is longer on a machine whose cores are all taken.
func (w *watchdog) patience() time.Duration { return w.after + 4*min(w.late(), mostLate) }

// proposal starts watching one; the returned func ends it.
func (w *watchdog) proposal() (stop func() bool) {
	return time.AfterFunc(w.patience(), func() { w.report("a proposal") }).Stop
}

// write starts watching a log write; the returned func ends it.
func (w *watchdog) write() (stop func()) {
	var state atomic.Int32 // 0 under way, 1 slow, 2 returned
	timer := time.AfterFunc(w.patience(), func() {
		w.writing.Add(1)
		if !state.CompareAndSwap(0, 1) { // it returned just now
			w.writing.Add(-1)
			return
		}
		w.report("a log write")
	})
	return func() {
		timer.Stop()
		if state.Swap(2) == 1 {
			w.writing.Add(-1)
			select {
			case w.freed <- struct{}{}:
			default:
			}
		}
	}
}

func (w *watchdog) report(what string) {
	select {
	case w.slow <- what:
	default:
	}
}

// watchedLog times all writes of a log store, and remembers how the newest ended.
type watchedLog struct {
	raft.LogStore
	dog    *watchdog
	writes *writes
}

func (l watchedLog) StoreLog(e *raft.Log) error {
	defer l.dog.write()()
	return l.writes.wroteEntries(l.LogStore.StoreLog(e))
}

func (l watchedLog) StoreLogs(e []*raft.Log) error {
	defer l.dog.write()()
	return l.writes.wroteEntries(l.LogStore.StoreLogs(e))
}

func (l watchedLog) DeleteRange(from, to uint64) error {
	defer l.dog.write()()
	return l.LogStore.DeleteRange(from, to)
}
