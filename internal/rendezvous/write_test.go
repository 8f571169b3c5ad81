package rendezvous

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/replicad/replicad/replica"
)

func TestCounter(t *testing.T) {
	s := New(1, 0)
	add := func(delta, want int64) {
		t.Helper()
		r, err := s.Write(jobA, 1, Write{Op: Add, Key: "n", Delta: delta})
		check(t, err, nil)
		if v, _ := s.Get(jobA, 1, "n"); r.Total != want || string(v) != fmt.Sprint(want) {
			t.Fatalf("adding %d makes %d, and the key reads %q: want %d", delta, r.Total, v, want)
		}
	}
	var got string
	check(t, s.Wait(jobA, 1, "n", Token{Rank: 0}, func(v []byte) { got = string(v) }), nil)
	add(0, 0)
	if got != "0" {
		t.Errorf("who waits for a counter reads %q", got)
	}
	add(3, 3)
	add(-5, -2)
	check(t, set(s, jobA, 1, "n", []byte("40")), nil)
	add(2, 42)
	check(t, set(s, jobA, 1, "n", []byte("many")), nil)
	if _, err := s.Write(jobA, 1, Write{Op: Add, Key: "n", Delta: 1}); err == nil {
		t.Error("1 was added to a word")
	} else {
		check(t, err, ErrNotNumber)
	}
	if v, _ := s.Get(jobA, 1, "n"); string(v) != "many" {
		t.Errorf("a refused addition leaves %q", v)
	}
}

func TestCompareSetAndDelete(t *testing.T) {
	s := New(1, 0)
	cas := func(expect, value, want string, changes bool) {
		t.Helper()
		r, err := s.Write(jobA, 1, Write{Op: CompareSet, Key: "k", Expect: []byte(expect), Value: []byte(value)})
		check(t, err, nil)
		if string(r.Value) != want || (r.Seq != 0) != changes {
			t.Fatalf("%q for %q: %q (write %d), want %q, a change: %v", value, expect, r.Value, r.Seq, want, changes)
		}
	}
	del := func(want int64) {
		t.Helper()
		r, err := s.Write(jobA, 1, Write{Op: Delete, Key: "k"})
		check(t, err, nil)
		if _, ok := s.Get(jobA, 1, "k"); r.Total != want || (r.Seq != 0) != (want == 1) || ok {
			t.Fatalf("deleted %d (write %d), want %d; there: %v", r.Total, r.Seq, want, ok)
		}
	}
	del(0)
	cas("other", "a", "", false)
	cas("", "a", "a", true)
	cas("", "b", "a", false)
	cas("a", "b", "b", true)
	del(1)
	del(0)
	waited := 0
	check(t, s.Wait(jobA, 1, "k", Token{Rank: 0}, func([]byte) { waited++ }), nil)
	if waited != 0 {
		t.Error("a deleted key answers who waits for it")
	}
	cas("", "c", "c", true)
	if waited != 1 {
		t.Errorf("%d answers to who waited for the key", waited)
	}
	if _, err := s.Write(jobA, 1, Write{Op: 9, Key: "k"}); err == nil {
		t.Error("an unknown operation was carried out")
	}
}

// A write that is sent again is the same write, with the same answer; a process that is not that one's has its own numbers.
func TestTokens(t *testing.T) {
	s := New(1, 0)
	write := func(w Write, by Token) (Result, error) {
		w.By = by
		return s.Write(jobA, 1, w)
	}
	add := Write{Op: Add, Key: "n", Delta: 1}
	first, err := write(add, Token{2, 77, 1})
	check(t, err, nil)
	if r, err := write(add, Token{2, 77, 1}); err != nil || r.Seq != first.Seq || r.Total != 1 {
		t.Errorf("sent again: %+v, %v, at first %+v", r, err, first)
	}
	if r, err := write(add, Token{3, 77, 1}); err != nil || r.Total != 2 {
		t.Errorf("another rank's: %+v, %v", r, err)
	}
	if r, err := write(add, Token{2, 78, 1}); err != nil || r.Total != 3 {
		t.Errorf("another process' of the rank: %+v, %v", r, err)
	}
	cas := Write{Op: CompareSet, Key: "k", Value: []byte("a")}
	won, err := write(cas, Token{2, 78, 2})
	check(t, err, nil)
	check(t, set(s, jobA, 1, "k", nil), nil)
	if r, err := write(cas, Token{2, 78, 2}); err != nil || r.Seq != won.Seq || string(r.Value) != "a" {
		t.Errorf("a swap sent again: %+v, %v, at first %+v", r, err, won)
	}
	if v, _ := s.Get(jobA, 1, "k"); len(v) != 0 {
		t.Errorf("it was carried out again: %q", v)
	}
	_, err = write(add, Token{2, 78, 1})
	check(t, err, ErrSuperseded)
	if _, err := write(Write{Op: Delete, Key: "k"}, Token{2, 78, 3}); err != nil {
		t.Error(err)
	}
	check(t, set(s, jobA, 1, "k", []byte("new")), nil)
	if r, err := write(Write{Op: Delete, Key: "k"}, Token{2, 78, 3}); err != nil || r.Total != 1 {
		t.Errorf("a deletion sent again: %+v, %v", r, err)
	}
	if _, ok := s.Get(jobA, 1, "k"); !ok {
		t.Error("it deleted again")
	}
	if _, err := s.Write(jobA, 2, Write{Op: Add, Key: "n", By: Token{2, 78, ^uint32(0)}}); err != nil {
		t.Error(err)
	}
	if r, err := s.Write(jobA, 2, Write{Op: Add, Key: "n", Delta: 5, By: Token{2, 78, 1}}); err != nil || r.Total != 5 {
		t.Errorf("numbers that began anew: %+v, %v", r, err)
	}
}

// twin is what a Store must hold: every write that was taken, carried out one after the other.
func twin(log []taken) map[string]string {
	slices.SortFunc(log, func(a, b taken) int { return cmp.Compare(a.r.Seq, b.r.Seq) })
	keys := map[string]string{}
	for _, w := range log {
		switch w.w.Op {
		case Add:
			n, _ := strconv.ParseInt(keys[w.w.Key], 10, 64)
			keys[w.w.Key] = fmt.Sprint(n + w.w.Delta)
		case Delete:
			delete(keys, w.w.Key)
		default:
			keys[w.w.Key] = string(w.w.Value)
		}
	}
	return keys
}

type taken struct {
	w Write
	r Result
}

// Through three leaders: whatever each is brought of what the earlier ones took, in whatever order and however often, also
// late, it holds what the writes make one after the other.
func TestRestoredIsWhatWasTaken(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var log []taken
		once := map[replica.Rank]uint32{}
		for term := uint64(1); term <= 3; term++ {
			s := New(term, 0)
			known := slices.Clone(log)
			rng.Shuffle(len(known), func(i, j int) { known[i], known[j] = known[j], known[i] })
			late := known[len(known)-rng.IntN(len(known)/4+1):]
			bring := func(list []taken) {
				for _, k := range list {
					for range 1 + rng.IntN(2) {
						check(t, s.Restore(jobA, 1, k.w, k.r), nil)
					}
				}
			}
			bring(known[:len(known)-len(late)])
			for range 30 {
				rank := replica.Rank(rng.IntN(3))
				once[rank]++
				w := Write{Op: Op(1 + rng.IntN(4)), Key: string(rune('a' + rng.IntN(4))), Value: fmt.Append(nil, rng.IntN(9)), Delta: rng.Int64N(9) - 4, By: Token{rank, 7, once[rank]}}
				if v, ok := s.Get(jobA, 1, w.Key); ok && rng.IntN(2) == 0 {
					w.Expect = bytes.Clone(v)
				}
				r, err := s.Write(jobA, 1, w)
				check(t, err, nil)
				if again, err := s.Write(jobA, 1, w); r.Seq != 0 && (err != nil || again.Seq != r.Seq || again.Total != r.Total) {
					t.Fatalf("seed %d: %+v sent again comes to %+v, %v", seed, w, again, err)
				}
				if w.Expect = nil; r.Seq != 0 {
					log = append(log, taken{w, r})
				}
			}
			bring(late)
			bring(log) // the same leader knows its own
			want := twin(slices.Clone(log))
			for _, key := range []string{"a", "b", "c", "d"} {
				got, ok := s.Get(jobA, 1, key)
				if is, there := want[key]; ok != there || string(got) != is {
					t.Fatalf("seed %d, term %d: key %s is %q (%v), want %q (%v)", seed, term, key, got, ok, is, there)
				}
			}
			if sc := s.jobs[jobA].scopes[1]; sc.bytes != bytesOf(sc) {
				t.Fatalf("seed %d: %d bytes are accounted for, %d are there", seed, sc.bytes, bytesOf(sc))
			}
		}
	}
}

func bytesOf(sc *scope) (n int) {
	for key, c := range sc.cells {
		n += c.size(key)
	}
	return n
}

// What a process was answered by the last leader it is answered by the next one, if it asks again.
func TestTokensAreRestored(t *testing.T) {
	old, s := New(1, 0), New(2, 0)
	w := Write{Op: Add, Key: "n", Delta: 4, By: Token{1, 7, 3}}
	r, err := old.Write(jobA, 1, w)
	check(t, err, nil)
	check(t, s.Restore(jobA, 1, w, r), nil)
	if again, err := s.Write(jobA, 1, w); err != nil || again.Seq != r.Seq || again.Total != r.Total {
		t.Errorf("asked again: %+v, %v, at first %+v", again, err, r)
	}
	if v, _ := s.Get(jobA, 1, "n"); string(v) != "4" {
		t.Errorf("the counter reads %q", v)
	}
	s.Advance(jobA, 2)
	check(t, s.Restore(jobA, 1, w, r), ErrOldEpoch)
}

func TestRestoreWakesWaiters(t *testing.T) {
	s := New(2, 0)
	got := ""
	check(t, s.Wait(jobA, 1, "k", Token{Rank: 0}, func(v []byte) { got = string(v) }), nil)
	check(t, s.Restore(jobA, 1, Write{Op: Delete, Key: "k"}, Result{Seq: 1<<32 | 2}), nil)
	check(t, s.Restore(jobA, 1, Write{Op: Set, Key: "k", Value: []byte("older")}, Result{Seq: 1<<32 | 1}), nil)
	if got != "" {
		t.Fatalf("a key that was deleted is read as %q", got)
	}
	check(t, s.Restore(jobA, 1, Write{Op: Set, Key: "k", Value: []byte("v")}, Result{Seq: 1<<32 | 3}), nil)
	if got != "v" {
		t.Errorf("who waited reads %q", got)
	}
}

// A barrier that let one member through lets all others through who come again, and no stranger.
func TestBarrierStaysComplete(t *testing.T) {
	s := New(2, 0)
	let := map[replica.Rank]int{}
	come := func(member replica.Rank) error {
		return s.Barrier(jobA, 1, "up", member, 3, func() { let[member]++ })
	}
	check(t, come(0), nil)
	if len(let) != 0 {
		t.Fatal("one of three was let through")
	}
	check(t, s.RestoreBarrier(jobA, 1, "up", 2, 3), nil)
	check(t, s.RestoreBarrier(jobA, 1, "up", 2, 3), nil)
	check(t, come(1), nil)
	check(t, come(2), nil)
	check(t, come(0), nil)
	if fmt.Sprint(let) != "map[0:2 1:1 2:1]" {
		t.Errorf("let through: %v", let)
	}
	check(t, come(3), ErrMismatch)
	check(t, s.RestoreBarrier(jobA, 1, "up", 1, 4), ErrMismatch)
}
