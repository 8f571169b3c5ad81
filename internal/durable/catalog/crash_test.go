package catalog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/keep"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

var errCrash = errors.New("power is gone")

// most is far above the calls that any of these takes.
const most = 1000

// dies lets a store's client die: the call of number n is the last that is made; where done is set it is carried out, and nobody hears the
// answer. What is after it fails.
func dies(m *memory.Store, n int64, done bool) {
	var calls atomic.Int64
	m.Before = func(memory.Call) error {
		if at := calls.Add(1) - 1; at > n || at == n && !done {
			return errCrash
		}
		return nil
	}
	m.After = func(memory.Call) error {
		if calls.Load() > n {
			return errCrash
		}
		return nil
	}
}

// TestCrashAtEveryCall stops the writer of a second generation after each call, done or not, one request at a time and several. What is
// found afterwards is whole, the first generation is always found, a writer that starts again finishes, and what the dead one left is swept.
func TestCrashAtEveryCall(t *testing.T) {
	for _, lanes := range []int{1, 3} {
		groups := min(lanes, 2)
		for _, done := range []bool{false, true} {
			if lanes > 1 && !done {
				continue // the same places but one
			}
			finished, calls := false, int64(0)
			for ; !finished; calls += racing.Stride {
				if calls > most {
					t.Fatal("the writer never finishes")
				}
				m := memory.New()
				mustWrite(t, over(m, lanes), gen(2), groups)
				dies(m, calls, done)
				_, err := wrote(t.Context(), over(m, lanes), gen(4), groups, 17)
				finished = err == nil && int64(m.Calls()) < most && !died(m)
				what := fmt.Sprintf("%d lanes, stopped at call %d (done: %v): %v", lanes, calls, done, err)
				after := m.Clone()
				c := over(after, lanes)
				found, _ := finds(t, c)
				if len(found) == 0 || found[len(found)-1].Generation != gen(2) || err == nil && len(found) != 2 {
					t.Fatalf("%s: found %d", what, len(found))
				}
				for _, f := range found {
					checkWhole(t, c, f, groups)
				}
				again(t, after, lanes, groups, what)
			}
			t.Logf("%d lanes, done %v: %d places to stop at", lanes, done, calls)
		}
	}
}

// TestCrashOfTheFirst is the same in a store that has nothing yet.
func TestCrashOfTheFirst(t *testing.T) {
	for calls, finished := int64(0), false; !finished; calls += racing.Stride {
		m := memory.New()
		dies(m, calls, calls%2 == 0)
		_, err := wrote(t.Context(), over(m, 1), gen(4), 1, 17)
		finished = !died(m)
		c := over(m.Clone(), 1)
		found, _, ferr := c.Find(t.Context(), durabletest.JobName, durabletest.Job)
		if ferr != nil || err == nil && len(found) != 1 {
			t.Fatalf("call %d: %d found, %v, %v", calls, len(found), err, ferr)
		}
		if _, err := c.List(t.Context(), durabletest.JobName); err != nil {
			t.Fatalf("call %d: %v", calls, err)
		}
		if _, err := wrote(t.Context(), c, gen(4), 1, 18); err != nil {
			t.Fatalf("call %d: writing again: %v", calls, err)
		}
		checkWhole(t, c, find0(t, c)[0], 1)
	}
}

// died tells whether the store's client was stopped.
func died(m *memory.Store) bool {
	_, err := m.Stat(context.Background(), "x")
	return errors.Is(err, errCrash)
}

// again writes once more what was broken off, as another attempt, sweeps, and compares.
func again(t *testing.T, m *memory.Store, lanes, groups int, what string) {
	t.Helper()
	c := over(m, lanes)
	com, err := wrote(t.Context(), c, gen(4), groups, 18)
	if err != nil {
		t.Fatalf("%s: writing again: %v", what, err)
	}
	found, _ := finds(t, c)
	if len(found) != 2 {
		t.Fatalf("%s: %d are found after writing again", what, len(found))
	}
	m.Age(time.Hour)
	if _, err := c.Sweep(t.Context(), found[0].Run, time.Minute); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	checkWhole(t, c, found[0], groups)
	for _, key := range m.Keys() {
		p, name, ok := find.Split(key)
		if ok && parsed(name).OfGeneration() && parsed(name).Generation == gen(4) && parsed(name).Write != 0 && parsed(name).Write != com.Write {
			t.Fatalf("%s: left over: %s of %v", what, key, p)
		}
	}
	if up, err := m.Unfinished(t.Context(), ""); err != nil || len(up) != 0 {
		t.Fatalf("%s: left over: %v, %v", what, up, err)
	}
}

// TestDoubtAtEveryCall has one call's answer lost, done or not, and all others come through: the write finishes, once.
func TestDoubtAtEveryCall(t *testing.T) {
	for _, done := range []bool{false, true} {
		for n := int64(0); ; n += racing.Stride {
			m := memory.New()
			mustWrite(t, over(m, 1), gen(2), 1)
			var calls atomic.Int64
			m.Before = func(memory.Call) error {
				if calls.Add(1)-1 == n && !done {
					return store.ErrDoubtful
				}
				return nil
			}
			m.After = func(memory.Call) error {
				if calls.Load()-1 == n && done {
					return store.ErrDoubtful
				}
				return nil
			}
			com, err := wrote(t.Context(), over(m, 1), gen(4), 1, 17)
			if err != nil || com.Write != 17 {
				t.Fatalf("call %d (done: %v): %v", n, done, err)
			}
			c := over(m.Clone(), 1)
			found, _ := finds(t, c)
			if len(found) != 2 {
				t.Fatalf("call %d (done: %v): found %d", n, done, len(found))
			}
			checkWhole(t, c, found[0], 1)
			if calls.Load() <= n {
				t.Logf("done %v: %d answers", done, n)
				break
			}
		}
	}
}

// TestCrashWhileDeleting stops a deletion after each call: the other generation is always whole, this one is found whole or not at all, and
// the next sweep finishes what was begun.
func TestCrashWhileDeleting(t *testing.T) {
	for _, done := range []bool{false, true} {
		for n := int64(0); ; n += racing.Stride {
			m := memory.New()
			c := over(m, 1)
			mustWrite(t, c, gen(2), 2)
			mustWrite(t, c, gen(4), 2)
			found, _ := finds(t, c)
			r := found[0].Run
			dies(m, n, done)
			err := over(m, 1).Delete(t.Context(), r, gen(2), "test")
			stopped := died(m)
			after := m.Clone()
			d := over(after, 1)
			found, _ = finds(t, d)
			if len(found) == 0 || found[0].Generation != gen(4) || err == nil && len(found) != 1 {
				t.Fatalf("call %d (done: %v): %d are found: %v", n, done, len(found), err)
			}
			for _, f := range found {
				checkWhole(t, d, f, 2)
			}
			after.Age(time.Hour)
			if _, err := d.Sweep(t.Context(), r, time.Minute); err != nil {
				t.Fatal(err)
			}
			begun := len(find0(t, d)) == 1
			for _, key := range after.Keys() {
				if _, name, ok := find.Split(key); ok && begun && parsed(name).OfGeneration() && parsed(name).Generation == gen(2) {
					t.Fatalf("call %d (done: %v): left over: %s", n, done, key)
				}
			}
			checkWhole(t, d, find0(t, d)[0], 2)
			if !stopped {
				break
			}
		}
	}
}

func find0(t *testing.T, c *Catalog) []find.Found {
	t.Helper()
	found, skipped := finds(t, c)
	if len(skipped) != 0 {
		t.Fatalf("skipped %v", skipped)
	}
	return found
}

// TestPinAgainstDelete lets somebody pin a generation at each call of a deletion, and one delete it at each call of a pin, with a second one
// who deletes: a pin that was taken keeps the generation, and it is whole.
func TestPinAgainstDelete(t *testing.T) {
	for deleters := 1; deleters <= 2; deleters++ {
		for n := int64(0); ; n += racing.Stride {
			m := memory.New()
			c := over(m, 1)
			mustWrite(t, c, gen(2), 1)
			mustWrite(t, c, gen(4), 1)
			found, _ := finds(t, c)
			r := found[0].Run
			var calls atomic.Int64
			var inside atomic.Bool
			var pinErr error
			m.Before = func(memory.Call) error {
				if inside.Load() || calls.Add(1)-1 != n {
					return nil
				}
				inside.Store(true)
				defer inside.Store(false)
				if deleters == 2 {
					half := &stops{Store: m, left: 3}
					_ = over(half, 1).Delete(t.Context(), r, gen(2), "the other one, which dies in between")
				}
				pinErr = over(m, 1).Pin(t.Context(), r, gen(2), "bob", "reads", time.Time{})
				return nil
			}
			err := c.Delete(t.Context(), r, gen(2), "test")
			if calls.Load() <= n {
				break
			}
			d := over(m.Clone(), 1)
			if pinErr == nil {
				if err == nil && len(mustGet(t, d, r)) == 0 {
					t.Fatalf("%d deleters, call %d: pinned, and deleted", deleters, n)
				}
				f, gerr := d.Get(t.Context(), r, gen(2))
				if gerr != nil {
					t.Fatalf("%d deleters, call %d: pinned, and then: %v (delete: %v)", deleters, n, gerr, err)
				}
				checkWhole(t, d, f, 1)
			} else if !errors.Is(pinErr, find.ErrNone) {
				t.Fatalf("%d deleters, call %d: %v", deleters, n, pinErr)
			}
		}
	}
}

func mustGet(t *testing.T, c *Catalog, r find.Run) (list []find.Found) {
	t.Helper()
	if f, err := c.Get(t.Context(), r, gen(2)); err == nil {
		list = append(list, f)
	}
	return list
}

// stops is a client that dies after some calls that change the store.
type stops struct {
	store.Store
	left int
}

func (s *stops) PutNew(ctx context.Context, key string, b []byte) (store.Version, error) {
	if s.left--; s.left < 0 {
		return "", errCrash
	}
	return s.Store.PutNew(ctx, key, b)
}

func (s *stops) Delete(ctx context.Context, key string) error {
	if s.left--; s.left < 0 {
		return errCrash
	}
	return s.Store.Delete(ctx, key)
}

// TestDeleteAtEveryCallOfAPin is the other way round.
func TestDeleteAtEveryCallOfAPin(t *testing.T) {
	for n := int64(0); ; n += racing.Stride {
		m := memory.New()
		c := over(m, 1)
		mustWrite(t, c, gen(2), 1)
		found, _ := finds(t, c)
		r := found[0].Run
		var calls atomic.Int64
		var inside atomic.Bool
		var delErr error
		m.Before = func(memory.Call) error {
			if inside.Load() || calls.Add(1)-1 != n {
				return nil
			}
			inside.Store(true)
			defer inside.Store(false)
			delErr = over(m, 1).Delete(t.Context(), r, gen(2), "test")
			return nil
		}
		err := c.Pin(t.Context(), r, gen(2), "bob", "reads", time.Time{})
		if calls.Load() <= n {
			break
		}
		left := mustGet(t, over(m.Clone(), 1), r)
		if err == nil && len(left) == 0 || errors.Is(delErr, keep.ErrPinned) && len(left) == 0 || delErr == nil && err == nil {
			t.Fatalf("call %d: pin %v, delete %v, left %d", n, err, delErr, len(left))
		}
	}
}

// TestCopyCrash stops a copy after each call of the target: the target has the generation whole or not at all, and the next copy finishes.
func TestCopyCrash(t *testing.T) {
	src := memory.New()
	c := over(src, 1)
	mustWrite(t, c, gen(2), 2)
	found, _ := finds(t, c)
	for n := int64(0); ; n += racing.Stride {
		dst := memory.New()
		dies(dst, n, n%2 == 0)
		_, err := c.Copy(t.Context(), found[0], over(dst, 1))
		stopped := died(dst)
		d := over(dst.Clone(), 1)
		copied, _, ferr := d.Find(t.Context(), durabletest.JobName, replica.JobID{})
		if ferr != nil || err == nil && len(copied) != 1 {
			t.Fatalf("call %d: %v, %v", n, err, ferr)
		}
		for _, f := range copied {
			checkWhole(t, d, f, 2)
		}
		if _, err := c.Copy(t.Context(), found[0], d); err != nil {
			t.Fatalf("call %d: again: %v", n, err)
		}
		copied, _ = finds(t, d)
		checkWhole(t, d, copied[0], 2)
		if !stopped {
			break
		}
	}
	if pins, err := c.Pinned(t.Context(), found[0].Run, gen(2)); err != nil || len(pins) != 0 {
		t.Errorf("the copies' leases stay: %v, %v", pins, err)
	}
}

// TestCopyHealsFromTheTwin: a copy takes frozen parts from whichever twin is whole, and completes nothing else.
func TestCopyHealsFromTheTwin(t *testing.T) {
	src := memory.New()
	c := over(src, 1)
	mustWrite(t, c, gen(2), 1)
	found, _ := finds(t, c)
	src.Bend(found[0].Run.Under(found[0].Frozen[0]), func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	dst := memory.New()
	d := over(dst, 1)
	if _, err := c.Copy(t.Context(), found[0], d); err != nil {
		t.Fatal(err)
	}
	copied, _ := finds(t, d)
	checkWhole(t, d, copied[0], 1)
	src.Bend(found[0].Run.Under(found[0].Index.Files[1].Key), func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	if _, err := c.Copy(t.Context(), found[0], over(memory.New(), 1)); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a damaged source: %v", err)
	}
}

// TestFrozenIsMended: a twin that rotted, or went, is written anew from memory by the first write of another daemon life, and after a read
// that failed.
func TestFrozenIsMended(t *testing.T) {
	m := memory.New()
	c := over(m, 1)
	mustWrite(t, c, gen(2), 1)
	found, _ := finds(t, c)
	a, b := found[0].Run.Under(found[0].Frozen[0]), found[0].Run.Under(found[0].Frozen[1])
	m.Bend(a, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	m.Bend(b, func([]byte) []byte { return nil })
	if _, err := over(m, 1).OpenShard(t.Context(), found[0], replica.FrozenOf(0)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Verify(t.Context(), found[0], nil); err == nil {
		t.Error("verified with both twins bad")
	}
	mustWrite(t, c, gen(4), 1)
	for _, f := range find0(t, c) {
		checkWhole(t, c, f, 1)
	}
}

// TestFrozenOfAnotherCluster: a fleet with another pki that goes on with a run shares its frozen parts, and harms no generation that names them.
func TestFrozenOfAnotherCluster(t *testing.T) {
	m := memory.New()
	mustWrite(t, over(m, 1), gen(2), 1)
	before := m.Keys()
	c := over(m, 1)
	found, _ := finds(t, c)
	p := part(durabletest.Make(gen(4), 1).Frozen[0])
	p.Manifest.Cluster, p.Manifest.Era, p.Manifest.Incarnation = replica.ClusterID{9}, 7, 8
	w, err := c.WriteFrozen(t.Context(), found[0].Run, p)
	if err != nil || w.File.Key != found[0].Frozen[0] {
		t.Fatal(w.File, err)
	}
	if after := m.Keys(); len(after) != len(before) {
		t.Errorf("%v, was %v", after, before)
	}
	checkWhole(t, c, find0(t, c)[0], 1)
}

// TestFrozenOfAnotherProgram: a file that has the very part stays as it is, though this program would write another header. What a newer
// program wrote in a way that this one can't read is not touched.
func TestFrozenOfAnotherProgram(t *testing.T) {
	clean := memory.New()
	mustWrite(t, over(clean, 1), gen(2), 1)
	found, _ := finds(t, over(clean, 1))
	r, keys := found[0].Run, found[0].Frozen
	rewrite := func(m *memory.Store, change func(meta map[string]string)) {
		for _, key := range keys {
			m.Replace(r.Under(key), func(b []byte) []byte {
				n := 8 + binary.LittleEndian.Uint64(b)
				h, err := safetensors.ParseHeader(b[8:n], uint64(len(b))-n)
				if err != nil {
					t.Fatal(err)
				}
				change(h.Metadata)
				head, err := safetensors.AppendHeader(h.Metadata, h.Tensors)
				if err != nil {
					t.Fatal(err)
				}
				return append(head, b[n:]...)
			})
		}
	}
	m := clean.Clone()
	rewrite(m, func(meta map[string]string) { meta["by"] = strings.Repeat("another program ", 10) })
	was, _, err := m.Get(t.Context(), r.Under(keys[0]), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	c := over(m, 1)
	mustWrite(t, c, gen(4), 1)
	if is, _, err := m.Get(t.Context(), r.Under(keys[0]), 1<<20); err != nil || !bytes.Equal(is, was) {
		t.Errorf("the file was replaced: %v", err)
	}
	f, err := c.Get(t.Context(), r, gen(4))
	if err != nil {
		t.Fatal(err)
	}
	checkWhole(t, c, f, 1)
	m = clean.Clone()
	rewrite(m, func(meta map[string]string) { meta["version"] = "99" })
	if _, err := wrote(t.Context(), over(m, 1), gen(4), 1, 17); !errors.Is(err, format.ErrNewer) {
		t.Errorf("over a newer program's file: %v", err)
	}
}

// TestSweepSpares: what is younger than the grace stays, and so does everything where a COMMIT can't be read.
func TestSweepSpares(t *testing.T) {
	m := memory.New()
	c := over(m, 1)
	mustWrite(t, c, gen(2), 1)
	found, _ := finds(t, c)
	r := found[0].Run
	made := durabletest.Make(gen(4), 1)
	if _, err := c.WriteGroup(t.Context(), write.Attempt{Run: r, Generation: gen(4), Write: 18}, part(made.Groups[0])); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Upload(t.Context(), r.Under("step-00000004.e1/node-b.w18.safetensors"), 10); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Sweep(t.Context(), r, time.Hour); err != nil || len(s.Objects) != 0 || s.Uploads != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	m.Age(2 * time.Hour)
	broken := m.Clone()
	broken.Bend(r.Under("commits/step-00000002.e1.json"), func(b []byte) []byte { return b[:10] })
	for st, want := range map[*memory.Store]int{m: 1, broken: 1} {
		s, err := over(st, 1).Sweep(t.Context(), r, time.Hour)
		if err != nil || len(s.Objects) != want || s.Uploads != 1 {
			t.Errorf("%+v, %v", s, err)
		}
	}
	checkWhole(t, c, find0(t, c)[0], 1)
	log, unreadable, err := c.Logs(t.Context(), durabletest.JobName, 10)
	if err != nil || unreadable != 0 || len(log) != 2 || log[0].Verb != "sweep" || log[0].Who != "ada" {
		t.Errorf("%+v, %d, %v", log, unreadable, err)
	}
}

// TestPinsEnd: a lease keeps a generation until it ends, and no longer.
func TestPinsEnd(t *testing.T) {
	m := memory.New()
	c := over(m, 1)
	mustWrite(t, c, gen(2), 1)
	found, _ := finds(t, c)
	r := found[0].Run
	lease, err := c.Lease(t.Context(), r, gen(2), "loads")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), r, gen(2), "test"); !errors.Is(err, keep.ErrPinned) {
		t.Errorf("leased, and deleted: %v", err)
	}
	if found, _ := finds(t, c); len(found) != 1 {
		t.Error("a deletion that was refused leaves something behind")
	}
	late := New(m, Options{Who: "late", Now: func() time.Time { return now.Add(2 * time.Hour) }})
	if pins, err := late.Pinned(t.Context(), r, gen(2)); err != nil || len(pins) != 0 {
		t.Errorf("an hour later: %v, %v", pins, err)
	}
	for after, want := range map[time.Duration]int{time.Hour: 1, keep.LeaseTime + time.Hour + time.Second: 0} {
		swept := m.Clone()
		swept.Age(after)
		sweeper := New(swept, Options{Who: "late", Now: func() time.Time { return now.Add(-after) }})
		if _, err := sweeper.Sweep(t.Context(), r, time.Hour); err != nil || len(leases(swept)) != want {
			t.Errorf("swept after %v there are the leases %q, %v", after, leases(swept), err)
		}
	}
	if err := lease.End(t.Context()); err != nil || len(leases(m)) != 0 {
		t.Errorf("a lease ends with %v, there are %q", err, leases(m))
	}
	if err := lease.End(t.Context()); err != nil {
		t.Errorf("a lease that was swept ends with %v", err)
	}
	if err := c.Unpin(t.Context(), r, gen(2), "nobody"); !errors.Is(err, find.ErrNone) {
		t.Error(err)
	}
	if err := c.Delete(t.Context(), r, gen(2), "test"); err != nil {
		t.Error(err)
	}
	if err := c.Pin(t.Context(), r, gen(2), "ada", "", time.Time{}); !errors.Is(err, find.ErrNone) {
		t.Errorf("pinned what is gone: %v", err)
	}
}

// A target that is damaged is written anew, whatever is wrong with it, and counts as read. A source that is damaged itself harms none.
func TestCopyMendsItsTarget(t *testing.T) {
	src := memory.New()
	c := over(src, 1)
	mustWrite(t, c, gen(2), 1)
	found, _ := finds(t, c)
	f := found[0]
	whole := memory.New()
	if mended, err := c.Copy(t.Context(), f, over(whole, 1)); err != nil || mended {
		t.Fatalf("a copy: mended %v, %v", mended, err)
	}
	if mended, err := c.Copy(t.Context(), f, over(whole, 1)); err != nil || mended {
		t.Fatalf("the same again: mended %v, %v", mended, err)
	}
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	short := func(b []byte) []byte { return b[:len(b)/2] }
	gone := func([]byte) []byte { return nil }
	cases := 0
	for _, key := range whole.Keys() {
		n := format.ParseName(strings.TrimPrefix(key, f.Run.Prefix()))
		switch n.Kind {
		case format.ShardKind, format.SharedKind, format.IndexKind, format.CommitKind:
		default:
			continue
		}
		for what, how := range map[string]func([]byte) []byte{"flipped": flip, "short": short, "gone": gone} {
			for _, marked := range []bool{false, true} {
				if what == "flipped" && !marked && (n.Kind == format.ShardKind || n.Kind == format.SharedKind) {
					continue // its checksum is the store's, which nobody has found to lie
				}
				cases++
				dst := whole.Clone()
				d := over(dst, 1)
				dst.Bend(key, how)
				if marked {
					if err := d.MarkRead(t.Context(), f, store.ErrCorrupt); err != nil {
						t.Fatal(err)
					}
				}
				// Without a COMMIT there is no generation to be mended.
				if mended, err := c.Copy(t.Context(), f, d); err != nil || mended == (n.Kind == format.CommitKind && what == "gone") {
					t.Errorf("%s is %s, marked %v: mended %v, %v", key, what, marked, mended, err)
					continue
				}
				got, skipped := finds(t, d)
				if len(got) != 1 || len(skipped) != 0 {
					t.Errorf("%s was %s: found %d, %v", key, what, len(got), skipped)
					continue
				}
				checkWhole(t, d, got[0], 1)
			}
		}
	}
	if cases < 20 {
		t.Errorf("%d cases", cases)
	}
	key := f.Run.Under(f.Index.Files[len(f.Index.Files)-1].Key)
	dst := whole.Clone()
	src.Bend(key, flip)
	dst.Bend(key, short)
	if _, err := c.Copy(t.Context(), f, over(dst, 1)); !errors.Is(err, store.ErrCorrupt) || !slices.Contains(dst.Keys(), key) {
		t.Errorf("from a source that is damaged: %v", err)
	}
}

// leases are the keys of pins that readers have.
func leases(m *memory.Store) (keys []string) {
	for _, k := range m.Keys() {
		if strings.Contains(k, "/pins/") && strings.Contains(k, "-reader-") {
			keys = append(keys, k)
		}
	}
	return keys
}

// A reader that takes long keeps what it reads for as long as it reads, and no longer.
func TestALeaseIsRenewed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := memory.New()
		c := New(m, Options{Who: "Ada L."})
		mustWrite(t, c, gen(2), 1)
		found, _ := finds(t, c)
		err := c.Leased(t.Context(), found[0], "loads", nil, func() error {
			time.Sleep(10 * keep.LeaseTime)
			if err := c.Delete(t.Context(), found[0].Run, gen(2), "test"); !errors.Is(err, keep.ErrPinned) {
				t.Errorf("leased, and deleted: %v", err)
			}
			return nil
		})
		if err != nil || len(leases(m)) != 0 {
			t.Errorf("it ends with %v, there are %q", err, leases(m))
		}
		if err := c.Delete(t.Context(), found[0].Run, gen(2), "test"); err != nil {
			t.Error(err)
		}
		if err := c.Leased(t.Context(), found[0], "loads", nil, func() error { t.Error("it reads what is gone"); return nil }); !errors.Is(err, find.ErrNone) {
			t.Errorf("what is gone is leased: %v", err)
		}
	})
}

// A store that takes no pin is read, and somebody hears of it.
func TestALeaseThatIsRefused(t *testing.T) {
	m := memory.New()
	c := over(m, 1)
	mustWrite(t, c, gen(2), 1)
	found, _ := finds(t, c)
	m.Before = func(call memory.Call) error {
		if call.Changes() {
			return store.ErrRefused
		}
		return nil
	}
	var why error
	read := errors.New("it was read")
	if err := c.Leased(t.Context(), found[0], "loads", func(err error) { why = err }, func() error { return read }); !errors.Is(err, read) || !errors.Is(why, store.ErrRefused) {
		t.Errorf("it ends with %v; refused: %v", err, why)
	}
}

// TestMarkedReads: what a read came to is what a list says, until the next one.
func TestMarkedReads(t *testing.T) {
	m := memory.New()
	at := now
	c := New(m, Options{Who: "Ada L.", Now: func() time.Time { return at }})
	mustWrite(t, c, gen(2), 1)
	found, _ := finds(t, c)
	for _, step := range []struct {
		err  error
		want find.State
	}{{nil, find.Good}, {errors.New("step-00000002.e1/group-0.w17.safetensors: chunk 9"), find.Damaged}, {nil, find.Good}} {
		at = at.Add(time.Minute)
		if err := c.MarkRead(t.Context(), found[0], step.err); err != nil {
			t.Fatal(err)
		}
		list, err := c.List(t.Context(), durabletest.JobName)
		if err != nil || len(list) != 1 || list[0].State != step.want || !list[0].Read.Equal(at) || (step.err != nil) != (list[0].Why != "") {
			t.Errorf("%+v, %v", list, err)
		}
		again, skipped := finds(t, c)
		if len(again)+len(skipped) != 1 || (len(again) == 1) != (step.err == nil) || step.err != nil && (skipped[0].Whole == nil || !strings.Contains(skipped[0].Reason, "chunk 9")) {
			t.Errorf("found %d, skipped %+v", len(again), skipped)
		}
	}
	n := 0
	for _, key := range m.Keys() {
		if _, name, ok := find.Split(key); ok && parsed(name).Kind == parsed("reads/step-00000002.e1.1.good-a.json").Kind {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d records of reads", n)
	}
}
