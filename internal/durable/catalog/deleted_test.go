package catalog

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

// TestReadsBesideADeletion deletes a generation before each call of a reader, whole or by half. It looks damaged then, and is said to be gone.
func TestReadsBesideADeletion(t *testing.T) {
	for what, read := range map[string]func(*testing.T, *Catalog, find.Found) error{
		"get": func(t *testing.T, c *Catalog, f find.Found) error {
			_, err := c.Get(t.Context(), f.Run, f.Generation)
			return err
		},
		"verify": func(t *testing.T, c *Catalog, f find.Found) error {
			faults, err := c.Verify(t.Context(), f, nil)
			if err != nil && len(faults) > 0 {
				t.Errorf("faults of what is gone: %+v", faults)
			}
			return err
		},
		"find": func(t *testing.T, c *Catalog, _ find.Found) error {
			found, skipped, err := c.Find(t.Context(), durabletest.JobName, replica.JobID{})
			for _, s := range skipped {
				if s.State != find.Deleting {
					t.Errorf("%v is passed over as %s: %s", s.Generation, s.State, s.Reason)
				}
			}
			if len(found) == 2 {
				return err
			}
			return errors.Join(err, find.ErrNone)
		},
	} {
		gone := false
		for _, left := range []int{3, 4, most} { // entry, line of the log, COMMIT; a file; all
			for n := int64(0); ; n += racing.Stride {
				m := memory.New()
				c := over(m, 1)
				mustWrite(t, c, gen(2), 1)
				mustWrite(t, c, gen(4), 1)
				found, _ := finds(t, c)
				var calls atomic.Int64
				m.Before = func(memory.Call) error {
					if calls.Add(1)-1 == n {
						m.Before = nil
						_ = over(&stops{Store: m, left: left}, 1).Delete(t.Context(), found[1].Run, gen(2), "test") // it may break off
					}
					return nil
				}
				err := read(t, over(m, 1), found[1])
				if m.Before != nil {
					break
				}
				gone = gone || errors.Is(err, find.ErrNone)
				if err != nil && (damage.Is(err) || !errors.Is(err, find.ErrNone)) {
					t.Errorf("%s, deleted before call %d up to %d: %v", what, n, left, err)
				}
			}
		}
		if !gone {
			t.Errorf("%s: no deletion was noticed", what)
		}
	}
}

// TestARunThatGoesOnIsFound: a job that keeps one generation commits the next and deletes the last, before each call of a reader. One of the two is
// found, whichever of the reader's lists came first.
func TestARunThatGoesOnIsFound(t *testing.T) {
	for _, left := range []int{3, most} { // the deletion may stop once it has said what it does
		again := false
		for n := int64(0); ; n += racing.Stride {
			m := memory.New()
			c := over(m, 1)
			mustWrite(t, c, gen(2), 1)
			was, _ := finds(t, c)
			var calls atomic.Int64
			m.Before = func(memory.Call) error {
				if calls.Add(1)-1 == n {
					m.Before = nil
					mustWrite(t, c, gen(4), 1)
					_ = over(&stops{Store: m, left: left}, 1).Delete(t.Context(), was[0].Run, gen(2), "test") // it may break off
				}
				return nil
			}
			found, skipped, err := over(m, 1).Find(t.Context(), durabletest.JobName, replica.JobID{})
			if m.Before != nil {
				break
			}
			if err != nil || len(found) == 0 {
				t.Errorf("before call %d: found %v, passed over %+v: %v", n, found, skipped, err)
				continue
			}
			again = again || found[0].Generation == gen(4)
		}
		if !again {
			t.Error("the new one was never found")
		}
	}
}

// TestAJobThatWritesFastIsFound: a job commits the next generation and deletes the last in bursts, as a reader sees it that waits for a core in between: a
// look often finds nothing that is still there. The reader looks again for as long as there is anything new.
func TestAJobThatWritesFastIsFound(t *testing.T) {
	for seed := range uint64(20) {
		draw := rand.New(rand.NewPCG(seed, 1))
		m := memory.New()
		c := over(m, 1)
		mustWrite(t, c, gen(2), 1)
		runs, err := c.Runs(t.Context(), durabletest.JobName)
		if err != nil || len(runs) != 1 {
			t.Fatal(runs, err)
		}
		last, busy := replica.Step(2), false
		m.Before = func(memory.Call) error {
			if !busy && draw.IntN(8) == 0 {
				busy = true
				mustWrite(t, c, gen(last+2), 1)
				if err := c.Delete(t.Context(), runs[0], gen(last), "test"); err != nil {
					t.Error(err)
				}
				last, busy = last+2, false
			}
			return nil
		}
		found, _, err := over(m, 1).Find(t.Context(), durabletest.JobName, replica.JobID{})
		if err != nil || len(found) == 0 {
			t.Errorf("seed %d: nothing was found up to step %d: %v", seed, last, err)
		}
	}
}
