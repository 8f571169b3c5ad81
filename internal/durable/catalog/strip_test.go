package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/keep"
	"github.com/replicad/replicad/internal/durable/catalog/move"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

// trained writes a generation of a job with an optimizer.
func trained(ctx context.Context, t testing.TB, c *Catalog, g replica.Generation, groups int) find.Found {
	t.Helper()
	f := fleet
	f.Epoch = g.Epoch
	com, err := writeMade(ctx, c, durabletest.Make(g, groups, durabletest.Trained()...), 17, f)
	if err != nil {
		t.Fatal(err)
	}
	found, err := c.Get(ctx, find0(t.(*testing.T), c)[0].Run, com.Generation)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// bytesOf reads the regions of a part, by name.
func bytesOf(t testing.TB, c *Catalog, f find.Found, part replica.Part) map[string][]byte {
	t.Helper()
	sh, err := c.OpenShard(t.Context(), f, part)
	if err != nil {
		t.Fatal(err)
	}
	defer sh.Close()
	got, err := read.Regions(sh, func(replica.Region) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// checkStripped compares all that stays of a generation with what was written.
func checkStripped(t testing.TB, c *Catalog, f find.Found, groups int) {
	t.Helper()
	gone := map[string]bool{"optim.weight.exp_avg": true, "optim.param.0.1.exp_avg": true, "optim.groups.0.lr": true}
	made := durabletest.Make(f.Generation, groups, durabletest.Trained()...)
	for _, p := range append(append(made.Groups, made.Frozen...), made.Private...) {
		got := bytesOf(t, c, f, p.Manifest.Part)
		kept := 0
		for _, r := range p.Regions {
			if !safetensors.Belongs(r, p.Manifest.Part.Kind) {
				continue
			}
			b, ok := got[r.Name]
			if ok == gone[r.Name] {
				t.Fatalf("%v: %s is there: %v", p.Manifest.Part, r.Name, ok)
			}
			if ok && !bytes.Equal(b, p.Bytes[r.Offset:r.Offset+r.Bytes]) {
				t.Fatalf("%v: %s has other bytes", p.Manifest.Part, r.Name)
			}
			if ok {
				kept++
			}
		}
		if kept != len(got) || kept == 0 {
			t.Fatalf("%v: %d regions, want %d", p.Manifest.Part, len(got), kept)
		}
	}
	if faults, err := c.Verify(t.Context(), f, nil); err != nil || len(faults) > 0 {
		t.Fatal(faults, err)
	}
	for _, x := range f.Index.Tensors {
		if gone[x.Name] {
			t.Fatalf("the index lists %s", x.Name)
		}
	}
}

// What stays of a stripped generation is what was written, tensor by tensor; it is listed and read as before, and smaller.
func TestStrip(t *testing.T) {
	for _, groups := range []int{1, 2} {
		m := memory.New()
		c := over(m, 4)
		mustWrite(t, c, gen(2), groups)
		was := trained(t.Context(), t, c, gen(4), groups)
		rest := m.Keys()
		freed, err := c.Strip(t.Context(), was, "test", true)
		if want := uint64(groups) * (140 + 3600 + 4); err != nil || freed != want || len(m.Keys()) != len(rest) {
			t.Fatalf("would free %d, want %d: %v; %d keys", freed, want, err, len(m.Keys()))
		}
		if freed, err = c.Strip(t.Context(), was, "test", false); err != nil || freed != uint64(groups)*(140+3600+4) {
			t.Fatal(freed, err)
		}
		found := find0(t, over(m, 1))
		f := found[0]
		if len(found) != 2 || f.Generation != gen(4) || !f.Stripped || f.Write == was.Write || f.Bytes+freed/2 > was.Bytes || f.Read.IsZero() || f.Metrics["loss"] != 1 {
			t.Fatalf("%+v", f)
		}
		checkStripped(t, c, f, groups)
		checkWhole(t, c, found[1], groups)
		list, err := c.List(t.Context(), durabletest.JobName)
		if err != nil || len(list) != 2 || list[0].State != find.Good || !list[0].Row.Stripped || list[0].Row.Bytes != f.Bytes || list[1].Row.Stripped {
			t.Fatalf("%+v, %v", list, err)
		}
		for _, key := range m.Keys() {
			if _, name, ok := find.Split(key); ok && parsed(name).Generation == gen(4) && parsed(name).Write == was.Write {
				t.Errorf("left: %s", key)
			}
		}
		logs, _, err := c.Logs(t.Context(), durabletest.JobName, 10)
		if err != nil || logs[len(logs)-1].Verb != "strip" || logs[len(logs)-1].Generations[0] != gen(4) {
			t.Errorf("%+v, %v", logs, err)
		}
		if _, err := c.Strip(t.Context(), f, "test", false); !errors.Is(err, move.ErrNothing) {
			t.Errorf("stripped again: %v", err)
		}
		if _, err := c.Strip(t.Context(), found[1], "test", false); !errors.Is(err, move.ErrNothing) {
			t.Errorf("nothing to strip: %v", err)
		}
		to := over(memory.New(), 4)
		if _, err := c.Copy(t.Context(), f, to); err != nil {
			t.Fatal(err)
		}
		checkStripped(t, to, find0(t, to)[0], groups)
	}
}

// A pinned generation stays as it is, and so does one that cannot be read.
func TestStripLeavesAlone(t *testing.T) {
	m := memory.New()
	c := over(m, 1)
	f := trained(t.Context(), t, c, gen(4), 1)
	if err := c.Pin(t.Context(), f.Run, f.Generation, "ada", "paper", time.Time{}); err != nil {
		t.Fatal(err)
	}
	before := len(m.Keys())
	for _, dry := range []bool{true, false} {
		if _, err := c.Strip(t.Context(), f, "test", dry); !errors.Is(err, keep.ErrPinned) || !strings.Contains(err.Error(), "ada") || len(m.Keys()) != before {
			t.Fatal(err)
		}
	}
	if err := c.Unpin(t.Context(), f.Run, f.Generation, "ada"); err != nil {
		t.Fatal(err)
	}
	m.Bend(f.Run.Under(f.Index.Files[1].Key), func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	if _, err := c.Strip(t.Context(), f, "test", false); !damage.Is(err) {
		t.Fatal(err)
	}
	if g := find0(t, c)[0]; g.Stripped || g.Write != f.Write {
		t.Fatalf("%+v", g)
	}
}

// TestStripAtEveryCall stops somebody who strips after each call, done or not: the one generation or the other is there whole, whoever strips again finishes,
// and what is left over is swept.
func TestStripAtEveryCall(t *testing.T) {
	for _, done := range []bool{false, true} {
		n, full, bare := int64(0), 0, 0
		for finished := false; !finished; n += racing.Stride {
			if n > most {
				t.Fatal("it never finishes")
			}
			m := memory.New()
			f := trained(t.Context(), t, over(m, 1), gen(4), 1)
			dies(m, n, done)
			_, err := over(m, 1).Strip(t.Context(), f, "test", false)
			finished = !died(m)
			after := m.Clone()
			c := over(after, 1)
			what := fmt.Sprintf("call %d (done: %v): %v", n, done, err)
			for range 2 {
				got := find0(t, c)
				list, lerr := c.List(t.Context(), durabletest.JobName)
				if len(got) != 1 || lerr != nil || len(list) != 1 || list[0].Row.Stripped != got[0].Stripped || list[0].Row.Bytes != got[0].Bytes {
					t.Fatalf("%s: %d found, listed %+v, %v", what, len(got), list, lerr)
				}
				if err == nil && !got[0].Stripped {
					t.Fatalf("%s: it is not stripped", what)
				}
				if got[0].Stripped {
					bare++
					checkStripped(t, c, got[0], 1)
					continue
				}
				full++
				if faults, err := c.Verify(t.Context(), got[0], nil); err != nil || len(faults) > 0 {
					t.Fatalf("%s: %v, %v", what, faults, err)
				}
				if _, err := c.Strip(t.Context(), got[0], "again", false); err != nil {
					t.Fatalf("%s: again: %v", what, err)
				}
			}
			after.Age(time.Hour)
			last := find0(t, c)[0]
			if _, err := c.Sweep(t.Context(), last.Run, time.Minute); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			checkStripped(t, c, last, 1)
			for _, key := range after.Keys() {
				if _, name, ok := find.Split(key); ok && parsed(name).Write != 0 && parsed(name).Write != last.Write && parsed(name).Kind != format.ReadKind {
					t.Fatalf("%s: left over: %s", what, key)
				}
			}
		}
		if full == 0 || bare == 0 {
			t.Errorf("done %v: %d whole ones, %d stripped ones", done, full, bare)
		}
		t.Logf("done %v: %d places to stop at", done, n)
	}
}

// TestPinAgainstStrip lets somebody pin a generation, or delete it, at each call of one who strips it.
func TestPinAgainstStrip(t *testing.T) {
	kept := 0
	for n := int64(0); ; n += racing.Stride {
		m := memory.New()
		f := trained(t.Context(), t, over(m, 1), gen(4), 1)
		var calls atomic.Int64
		var inside atomic.Bool
		stripped := false // when it was pinned
		m.Before = func(memory.Call) error {
			if inside.Load() || calls.Add(1)-1 != n {
				return nil
			}
			inside.Store(true)
			defer inside.Store(false)
			d := over(m, 1)
			com, err := d.ReadCommit(t.Context(), f.Run, f.Generation)
			if err == nil {
				stripped = com.Stripped
				err = d.Pin(t.Context(), f.Run, f.Generation, "bob", "paper", time.Time{})
			}
			return err
		}
		_, err := over(m, 1).Strip(t.Context(), f, "test", false)
		if calls.Load() <= n {
			break
		}
		c := over(m.Clone(), 1)
		g := find0(t, c)[0]
		if g.Stripped {
			checkStripped(t, c, g, 1)
		} else if faults, err := c.Verify(t.Context(), g, nil); err != nil || len(faults) > 0 {
			t.Fatalf("call %d: %v, %v", n, faults, err)
		}
		switch {
		case !g.Stripped && errors.Is(err, keep.ErrPinned):
			kept++
		case !stripped:
			t.Fatalf("call %d: pinned whole, and stripped: %v", n, err)
		case err != nil:
			t.Fatalf("call %d: %v", n, err)
		}
	}
	if kept == 0 {
		t.Error("no pin was seen")
	}
	for n := int64(0); ; n += racing.Stride {
		m := memory.New()
		f := trained(t.Context(), t, over(m, 1), gen(4), 1)
		var calls atomic.Int64
		var inside atomic.Bool
		m.Before = func(memory.Call) error {
			if inside.Load() || calls.Add(1)-1 != n {
				return nil
			}
			inside.Store(true)
			defer inside.Store(false)
			return over(m, 1).Delete(t.Context(), f.Run, f.Generation, "test")
		}
		_, _ = over(m, 1).Strip(t.Context(), f, "test", false)
		if calls.Load() <= n {
			break
		}
		c := over(m.Clone(), 1)
		if found, skipped, err := c.Find(t.Context(), durabletest.JobName, durabletest.Job); err != nil || len(found) != 0 {
			t.Fatalf("call %d: deleted, and found: %v, %v, %v", n, found, skipped, err)
		}
	}
}

// A read of the former files that fails once they are gone is no damage of what took their place.
func TestReadOfWhatWasStripped(t *testing.T) {
	m := memory.New()
	c := over(m, 1)
	f := trained(t.Context(), t, c, gen(4), 1)
	if _, err := c.Strip(t.Context(), f, "test", false); err != nil {
		t.Fatal(err)
	}
	_, err := c.Verify(t.Context(), f, nil)
	if !errors.Is(err, store.ErrAbsent) {
		t.Fatal(err)
	}
	if err := c.MarkRead(t.Context(), f, err); err != nil {
		t.Fatal(err)
	}
	g := find0(t, c)[0]
	if err := c.MarkRead(t.Context(), g, errors.New("rotten")); err != nil {
		t.Fatal(err)
	}
	if _, skipped := finds(t, c); len(skipped) != 1 {
		t.Errorf("damage of a stripped generation is not seen: %v", skipped)
	}
}
