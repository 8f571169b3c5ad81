package rendezvous

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

var jobA, jobB = replica.JobID{1}, replica.JobID{2}

// check fails unless err matches want (nil: no error).
func check(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}

func set(s *Store, id replica.JobID, e replica.Epoch, key string, value []byte) error {
	_, err := s.Write(id, e, Write{Op: Set, Key: key, Value: value})
	return err
}

func TestWaitThenSet(t *testing.T) {
	s := New(1)
	var got []string
	note := func(who string) func([]byte) { return func(v []byte) { got = append(got, who+"="+string(v)) } }
	check(t, s.Wait(jobA, 1, "k", "a", note("a-lost")), nil)
	check(t, s.Wait(jobA, 1, "k", "b", note("b")), nil)
	check(t, s.Wait(jobA, 1, "k", "a", note("a")), nil) // the client sent it again
	check(t, s.Wait(jobB, 1, "k", "a", note("other job")), nil)
	check(t, s.Wait(jobA, 2, "k", "a", note("other epoch")), nil)
	value := []byte("v")
	check(t, set(s, jobA, 1, "k", value), nil)
	value[0] = 'x' // the store has its own copy
	check(t, s.Wait(jobA, 1, "k", "c", note("c")), nil)
	if want := []string{"a=v", "b=v", "c=v"}; !slices.Equal(got, want) {
		t.Fatalf("answered %v, want %v", got, want)
	}
	check(t, set(s, jobA, 1, "k", []byte("w")), nil)
	if v, ok := s.Get(jobA, 1, "k"); !ok || string(v) != "w" || len(got) != 3 {
		t.Fatalf("after setting again: %q, %v, answered %v", v, ok, got)
	}
	if _, ok := s.Get(jobB, 1, "k"); ok {
		t.Fatal("one job reads another's key")
	}
}

func TestCallbackMayCallTheStore(t *testing.T) {
	s := New(1)
	done := false
	check(t, s.Wait(jobA, 1, "k", "a", func([]byte) {
		check(t, set(s, jobA, 1, "k2", nil), nil)
		check(t, s.Wait(jobA, 1, "k", "a", func([]byte) { done = true }), nil)
	}), nil)
	check(t, set(s, jobA, 1, "k", nil), nil)
	if !done {
		t.Fatal("the inner wait was not answered")
	}
}

func TestBarrierIsIdempotentPerMember(t *testing.T) {
	s := New(1)
	released := make(map[string]int)
	come := func(member, as string) error {
		return s.Barrier(jobA, 3, "init", member, 3, func() { released[as]++ })
	}
	for _, m := range []string{"0", "0", "1", "1"} {
		check(t, come(m, m+"-lost"), nil)
	}
	check(t, come("0", "0"), nil)
	check(t, come("1", "1"), nil)
	if len(released) != 0 {
		t.Fatalf("two members of three, and %v were released", released)
	}
	check(t, come("2", "2"), nil)
	if fmt.Sprint(released) != "map[0:1 1:1 2:1]" {
		t.Fatalf("released %v", released)
	}
	check(t, come("1", "1"), nil) // its answer was lost
	if released["1"] != 2 || released["0"] != 1 {
		t.Fatalf("released %v", released)
	}
	check(t, come("3", "3"), ErrMismatch)
	check(t, s.Barrier(jobA, 3, "init", "0", 4, func() {}), ErrMismatch)
	if err := s.Barrier(jobA, 3, "x", "0", 0, func() {}); err == nil {
		t.Fatal("a barrier of nobody was accepted")
	}
}

func TestAdvanceDropsAndRefuses(t *testing.T) {
	s := New(1)
	fail := func([]byte) { t.Error("a waiter of a closed epoch was answered") }
	check(t, set(s, jobA, 1, "old", []byte("v")), nil)
	check(t, s.Wait(jobA, 1, "k", "a", fail), nil)
	check(t, set(s, jobA, 2, "early", []byte("v")), nil)
	s.Advance(jobA, 2)
	check(t, set(s, jobA, 1, "k", nil), ErrOldEpoch)
	check(t, s.Wait(jobA, 1, "k", "a", fail), ErrOldEpoch)
	check(t, s.Barrier(jobA, 1, "b", "a", 1, func() { fail(nil) }), ErrOldEpoch)
	if _, ok := s.Get(jobA, 1, "old"); ok {
		t.Error("a key of a closed epoch is still there")
	}
	if _, ok := s.Get(jobA, 2, "early"); !ok {
		t.Error("a key of the new epoch was lost")
	}
	s.Advance(jobA, 1) // an old order changes nothing
	check(t, set(s, jobA, 1, "k", nil), ErrOldEpoch)
	s.Drop(jobA)
	if _, ok := s.Get(jobA, 2, "early"); ok {
		t.Error("a dropped job still answers")
	}
}

func TestLimits(t *testing.T) {
	s := New(1)
	check(t, set(s, jobA, 1, "", nil), ErrTooMuch)
	check(t, set(s, jobA, 1, strings.Repeat("k", MaxKeyBytes+1), nil), ErrTooMuch)
	check(t, set(s, jobA, 1, "k", make([]byte, MaxValueBytes+1)), ErrTooMuch)
	for e := range replica.Epoch(maxEpochs) {
		check(t, set(s, jobA, 1+e, "k", nil), nil)
	}
	check(t, set(s, jobA, 1+maxEpochs, "k", nil), ErrTooMuch)
	s.Advance(jobA, 2)
	check(t, set(s, jobA, 1+maxEpochs, "k", nil), nil)

	big := make([]byte, MaxValueBytes)
	n := 0
	var err error
	for ; err == nil; n++ {
		err = set(s, jobB, 1, fmt.Sprint(n), big)
	}
	check(t, err, ErrTooMuch)
	if most := MaxBytes / MaxValueBytes; n > most+1 {
		t.Fatalf("%d values of %d bytes were kept", n, MaxValueBytes)
	}
	check(t, set(s, jobB, 1, "0", []byte("smaller")), nil) // replacing gives room back
	check(t, set(s, jobB, 1, "new", []byte("fits")), nil)
	for i := range MaxBarriers {
		check(t, s.Barrier(jobB, 1, fmt.Sprint(i), "m", 2, func() {}), nil)
	}
	check(t, s.Barrier(jobB, 1, "one more", "m", 2, func() {}), ErrTooMuch)
}
