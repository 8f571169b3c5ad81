package holding

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal/journaltest"
)

// A cupboard is a keeper's process: it may end at any call.
type cupboard struct {
	mu     sync.Mutex // guards what follows
	held   map[string]int64
	calls  int
	dies   int // at this call
	named  bool
	done   chan struct{}
	closed bool
}

func newCupboard() *cupboard { return &cupboard{held: map[string]int64{}, done: make(chan struct{})} }

var errGone = errors.New("broken pipe")

func (k *cupboard) do(fn func()) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.calls++; k.calls == k.dies {
		k.endLocked()
	}
	if k.closed {
		return errGone
	}
	fn()
	return nil
}

func (k *cupboard) endLocked() {
	if !k.closed {
		k.closed = true
		close(k.done)
	}
}

func (k *cupboard) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.endLocked()
}

func (k *cupboard) Put(key string, f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	return k.do(func() { k.held[key] = st.Size() })
}

func (k *cupboard) Drop(key string) error { return k.do(func() { delete(k.held, key) }) }
func (k *cupboard) TakeLife() error       { return k.do(func() { k.named = true }) }
func (k *cupboard) Done() <-chan struct{} { return k.done }
func (k *cupboard) Close()                { k.end() }

// holds is what the keeper holds, and whether it speaks for the node's life.
func (k *cupboard) holds() (map[string]int64, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.held), k.named
}

// kept is a custodian at work over keepers that come one after another.
type kept struct {
	*Custodian
	lines fixture.Lines
	tries atomic.Int32 // of finding one
	next  chan Returned
	stop  func()
}

func keeps(t *testing.T, first *cupboard) *kept {
	k := &kept{next: make(chan Returned, 8)}
	back := func(ctx context.Context) (Returned, error) {
		k.tries.Add(1)
		select {
		case r := <-k.next:
			return r, nil
		default:
			return nil, errors.New("no keeper answers")
		}
	}
	k.Custodian = NewCustodian(first, back, journaltest.New(t, &k.lines), filepath.Join(t.TempDir(), "arenas.json"))
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { defer close(over); k.Run(ctx) }()
	k.stop = func() { cancel(); <-over }
	return k
}

// TestAnotherKeeperIsGivenAll ends keepers one after another, at every call of what the next one is given: it has all in the end, and the node's life
// only then. What was parked and dropped while there was none counts, and who waits is told meanwhile.
func TestAnotherKeeperIsGivenAll(t *testing.T) {
	for dies := range 9 {
		bubble.Test(t, func(t *testing.T) {
			first := newCupboard()
			k := keeps(t, first)
			defer k.stop()
			files := map[string]*os.File{"old": parcel(t, 1), "a": parcel(t, 2), "b": parcel(t, 3), "c": parcel(t, 4)}
			k.Holds("old", files["old"])
			first.held["old"] = 1
			k.Put("a", files["a"])
			k.Put("b", files["b"])
			synctest.Wait()
			first.end()
			synctest.Wait()
			if !k.Lost() {
				t.Fatal("its end is not noticed")
			}
			told := false
			k.Put("c", files["c"])
			k.Drop("b")
			files["b"].Close()
			k.After(func() { told = true })
			synctest.Wait()
			if !told {
				t.Error("who asks waits for a keeper that is not there")
			}
			second, third := newCupboard(), newCupboard()
			second.dies = dies // 0: never
			k.next <- second
			k.next <- third
			time.Sleep(time.Minute) // of the bubble
			synctest.Wait()
			last := second
			if dies > 0 && dies <= second.calls {
				last = third
				if held, named := second.holds(); named {
					t.Errorf("keeper that ended at call %d, with %v, speaks for the node's life", dies, held)
				}
			}
			held, named := last.holds()
			if want := map[string]int64{"old": 1, "a": 2, "c": 4}; k.Lost() || !named || !maps.Equal(held, want) {
				t.Errorf("ended at call %d: lost %v, held %v, want %v, life %v", dies, k.Lost(), held, want, named)
			}
			k.Drop("a") // the second keeper may end at this call
			time.Sleep(time.Minute)
			synctest.Wait()
			if ended(second) {
				last = third
			}
			if held, named := last.holds(); len(held) != 2 || !named {
				t.Errorf("ended at call %d, after a drop: %v", dies, held)
			}
		})
	}
}

// TestAKeeperIsLookedForNowAndThen: while none answers it is looked for at growing distances, and the log says why in few lines.
func TestAKeeperIsLookedForNowAndThen(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		first := newCupboard()
		k := keeps(t, first)
		defer k.stop()
		first.end()
		time.Sleep(time.Hour)
		synctest.Wait()
		if hour := int(time.Hour / returnMost); int(k.tries.Load()) < hour/2 || int(k.tries.Load()) > hour+8 || !k.Lost() {
			t.Errorf("%d tries in an hour, lost %v", k.tries.Load(), k.Lost())
		}
		second := newCupboard()
		k.next <- second
		time.Sleep(returnMost)
		synctest.Wait()
		if k.Lost() {
			t.Error("it does not come back")
		}
	})
}

// TestADropThatNobodyHeard: the connection breaks and the keeper stays, with what was dropped meanwhile: that goes too.
func TestADropThatNobodyHeard(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		first := newCupboard()
		k := keeps(t, first)
		defer k.stop()
		for _, key := range []string{"a", "b", "c"} {
			k.Put(key, parcel(t, 1))
		}
		synctest.Wait()
		first.dies = first.calls + 1
		k.Drop("a")
		synctest.Wait() // unheard
		k.Drop("b")
		same := newCupboard()
		same.held = first.held
		k.next <- same
		time.Sleep(time.Minute)
		synctest.Wait()
		if held, _ := same.holds(); !slices.Equal(slices.Collect(maps.Keys(held)), []string{"c"}) {
			t.Errorf("it holds %v, want c", held)
		}
	})
}
