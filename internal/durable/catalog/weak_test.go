package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

// heedless is a store that ignores conditions, and has keys nobody may overwrite: the test fails.
func heedless(t *testing.T) *memory.Store {
	st := memory.New()
	st.Heedless = true
	st.Overwrote = func(key string) {
		if !strings.HasSuffix(key, "/summary.json") {
			t.Errorf("%s was overwritten", key)
		}
	}
	return st
}

// weak is over for a store without conditions.
func weak(st *memory.Store) *Catalog {
	return with(st, 1, encrypting, ignoring(true))
}

// as writes a generation of a fleet, which carries on from what another wrote.
func as(ctx context.Context, c *Catalog, name string, e replica.Epoch, step replica.Step, n uint64) error {
	_, err := writeAs(ctx, c, replica.Generation{Epoch: e, Step: step}, 1, n, write.Fleet{Cluster: fleet.Cluster, Name: name, Epoch: e})
	return err
}

// raced is how two fleets fared, b and c.
type raced struct {
	epochs        [2]replica.Epoch
	errs          [2]error
	begun, paused bool // there were the calls that race was told of
	st            *memory.Store
}

// race is two fleets that resume a run at once in a store without conditions: the second begins before call begins of the first one, pauses before its
// call pauses, and goes on when the first one has its answer.
func race(t *testing.T, begins, pauses int64) (is raced) {
	st := heedless(t)
	mustWrite(t, weak(st), gen(2), 1)
	r := runOf(t, weak(st))
	ours, theirs := st.Client(), st.Client()
	reached, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var calls, others int64
	theirs.Before = func(memory.Call) error {
		if others++; others == pauses+1 {
			is.paused = true
			once.Do(func() { close(reached) })
			<-release
		}
		return nil
	}
	var running sync.WaitGroup
	ours.Before = func(memory.Call) error {
		if calls++; calls == begins+1 {
			is.begun = true
			running.Go(func() {
				is.epochs[1], _, is.errs[1] = weak(theirs).Resume(t.Context(), r, write.Fleet{Cluster: fleet.Cluster, Name: "c", Epoch: 0}, 1)
				once.Do(func() { close(reached) })
			})
			<-reached
		}
		return nil
	}
	is.epochs[0], _, is.errs[0] = weak(ours).Resume(t.Context(), r, write.Fleet{Cluster: fleet.Cluster, Name: "b", Epoch: 0}, 1)
	close(release)
	running.Wait()
	is.st = st
	return is
}

// check lets who has the run write, a later fleet take it, and the former ones try: all that was written is whole.
func (is raced) check(t *testing.T, what string) {
	t.Helper()
	c, want := weak(is.st.Client()), 2
	for i, err := range is.errs {
		if err == nil {
			want++
			if err := as(t.Context(), c, string("bc"[i]), is.epochs[i], 4, 18); err != nil {
				t.Fatalf("%s: who has it writes: %v", what, err)
			}
		}
	}
	was := max(is.epochs[0], is.epochs[1], 1)
	later, _, err := c.Resume(t.Context(), runOf(t, c), write.Fleet{Cluster: fleet.Cluster, Name: "d", Epoch: 0}, was)
	if err == nil {
		err = as(t.Context(), c, "d", later, 6, 19)
	}
	if err != nil {
		t.Fatalf("%s: a later one: %v", what, err)
	}
	for _, name := range []string{fleet.Name, "b", "c"} {
		if err := as(t.Context(), c, name, was, 8, 20); !errors.Is(err, write.ErrFenced) {
			t.Fatalf("%s: %s writes on: %v", what, name, err)
		}
	}
	found, skipped := finds(t, c)
	if len(found) != want {
		t.Fatalf("%s: %d are found, want %d; passed over %+v", what, len(found), want, skipped)
	}
	for _, f := range found {
		checkWhole(t, c, f, 1)
	}
}

// However two fleets that resume a run fall together in a store that ignores conditions, one of them has it at most, nobody overwrites anything, and
// a later one takes it from both.
func TestTwoFleetsWithoutConditions(t *testing.T) {
	refused, last := [2]int{}, false
	for begins := int64(0); !last; begins++ {
		for pauses, paused := int64(0), true; paused && !last; pauses += racing.Stride {
			is := race(t, begins, pauses)
			if paused, last = is.paused, !is.begun; last {
				continue
			}
			what := fmt.Sprintf("calls %d, %d: %v", begins, pauses, is.errs)
			for i, err := range is.errs {
				if err != nil {
					refused[i]++
				}
				if err != nil && (!errors.Is(err, write.ErrFenced) || !strings.Contains(err.Error(), "resume again")) {
					t.Fatal(what)
				}
			}
			if is.errs == [2]error{} {
				t.Fatalf("%s: both have it, in epochs %d", what, is.epochs)
			}
			is.check(t, what)
		}
	}
	if refused[0] == 0 || refused[1] == 0 {
		t.Errorf("the first one was refused %d times, the second one %d times", refused[0], refused[1])
	}
	t.Logf("the first one was refused %d times, the second one %d times", refused[0], refused[1])
}

// A resume that died at any call keeps nobody out, and what was written before and after it is whole.
func TestAResumeThatDiedWithoutConditions(t *testing.T) {
	for _, done := range []bool{false, true} {
		for calls, finished := int64(0), false; !finished; calls += racing.Stride {
			st := heedless(t)
			mustWrite(t, weak(st), gen(2), 1)
			r, dead := runOf(t, weak(st)), st.Client()
			dies(dead, calls, done)
			_, _, err := weak(dead).Resume(t.Context(), r, write.Fleet{Cluster: fleet.Cluster, Name: "b", Epoch: 0}, 1)
			finished = !died(dead)
			c := weak(st.Client())
			e, _, again := c.Resume(t.Context(), runOf(t, c), write.Fleet{Cluster: fleet.Cluster, Name: "c", Epoch: 0}, 1)
			if again == nil {
				again = as(t.Context(), c, "c", e, 4, 18)
			}
			if again != nil {
				t.Fatalf("died at call %d (done: %v): %v; the next: %v", calls, done, err, again)
			}
			found, _ := finds(t, c)
			if len(found) != 2 {
				t.Fatalf("died at call %d (done: %v): %d are found", calls, done, len(found))
			}
			for _, f := range found {
				checkWhole(t, c, f, 1)
			}
		}
	}
}

// The fleet that had a run goes on in another epoch while one resumes it: its claim, and the other's, lie under keys of their own.
func TestTheFormerFleetWithoutConditions(t *testing.T) {
	for at := int64(0); ; at += racing.Stride {
		st := heedless(t)
		mustWrite(t, weak(st), gen(2), 1)
		r, ours, calls := runOf(t, weak(st)), st.Client(), int64(0)
		var former error
		ours.Before = func(memory.Call) error {
			if calls++; calls == at+1 {
				former = as(t.Context(), weak(st), fleet.Name, 2, 4, 18)
			}
			return nil
		}
		e, _, err := weak(ours).Resume(t.Context(), r, write.Fleet{Cluster: fleet.Cluster, Name: "b", Epoch: 0}, 1)
		for _, err := range []error{err, former} {
			if err != nil && !errors.Is(err, write.ErrFenced) {
				t.Fatalf("at call %d: %v", at, err)
			}
		}
		if err == nil && e == 2 && former == nil && calls > at {
			t.Fatalf("at call %d both have epoch 2", at)
		}
		if calls <= at {
			break
		}
	}
}

// There are no hints that several would write, claims go with a copy, and a list shows what there is.
func TestWhatLiesThereWithoutConditions(t *testing.T) {
	st := heedless(t)
	c := weak(st)
	mustWrite(t, c, gen(2), 1)
	keys := st.Keys()
	if slices.ContainsFunc(keys, func(k string) bool { return strings.HasSuffix(k, "/last.json") || strings.HasSuffix(k, "/best.json") }) {
		t.Errorf("there are hints: %q", keys)
	}
	found, _ := finds(t, c)
	to := memory.New()
	if _, err := c.Copy(t.Context(), found[0], over(to, 1)); err != nil {
		t.Fatal(err)
	}
	claims := func(keys []string) (list []string) {
		for _, k := range keys {
			if strings.Contains(k, "/epochs/") {
				list = append(list, k)
			}
		}
		return list
	}
	if a, b := claims(keys), claims(to.Keys()); len(a) != 1 || !slices.Equal(a, b) {
		t.Errorf("claims %q were copied as %q", a, b)
	}
	if r := runOf(t, over(to, 1)); r.Claimed != 1 || r.Cluster != fleet.Cluster {
		t.Errorf("the copy is %+v", r)
	}
	if list, err := c.List(t.Context(), durabletest.JobName); err != nil || len(list) != 1 || list[0].State != find.Unread {
		t.Errorf("listed: %+v, %v", list, err)
	}
	if _, err := c.Sweep(t.Context(), found[0].Run, time.Minute); err != nil {
		t.Error(err)
	}
}

// A claim that is withdrawn between its listing and its reading counts for nothing: the newest one is that before it.
func TestAClaimThatIsWithdrawn(t *testing.T) {
	st := heedless(t)
	c := weak(st)
	mustWrite(t, c, gen(2), 1)
	if e, _, err := c.Resume(t.Context(), runOf(t, c), write.Fleet{Cluster: fleet.Cluster, Name: "b"}, 1); err != nil || e != 2 {
		t.Fatal(e, err)
	}
	key := runOf(t, c).Key(format.Name{Kind: format.ClaimKind, Epoch: 2, Fleet: format.FleetKey(fleet.Cluster, "b")})
	reader := st.Client()
	reader.Before = func(call memory.Call) error {
		if call.Verb == "Get" && call.Key == key {
			return st.Delete(t.Context(), key)
		}
		return nil
	}
	if r := runOf(t, weak(reader)); r.Claimed != 1 || r.Cluster != fleet.Cluster {
		t.Errorf("the newest claim is of epoch %d", r.Claimed)
	}
	if e, _, err := c.Resume(t.Context(), runOf(t, c), write.Fleet{Cluster: fleet.Cluster, Name: "b"}, 1); err != nil || e != 2 {
		t.Fatal(e, err)
	}
	if _, err := weak(reader).Owns(t.Context(), runOf(t, c), fleet); err != nil {
		t.Errorf("whose run it is may not commit: %v", err)
	}
}
