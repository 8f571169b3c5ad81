package bubble

import (
	"runtime"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/racing"
)

// TestTickersThatNobodyWaitsFor fire beside others, in many goroutines. In a bare bubble the race detector died of it in seconds.
func TestTickersThatNobodyWaitsFor(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("with one processor no two threads meet")
	}
	Test(t, func(t *testing.T) {
		for range 40 {
			go func() {
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for range 10_000 {
					time.Sleep(time.Millisecond)
					select {
					case <-tick.C:
					default:
					}
				}
			}()
		}
		time.Sleep(15 * time.Second)
	})
}

// TestBubblesOfParallelTests leave the process with the threads that it had.
func TestBubblesOfParallelTests(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Run("all", func(t *testing.T) {
		for range 4 {
			t.Run("one", func(t *testing.T) {
				t.Parallel()
				Test(t, func(t *testing.T) {
					time.Sleep(time.Second)
					if racing.On && runtime.GOMAXPROCS(0) != 1 {
						t.Errorf("%d threads run Go code beside a bubble", runtime.GOMAXPROCS(0))
					}
				})
			})
		}
	})
	if now := runtime.GOMAXPROCS(0); now != before {
		t.Errorf("%d threads run Go code after the last bubble, %d did before", now, before)
	}
}
