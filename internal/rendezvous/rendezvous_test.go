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
	s := New(1, 0)
	var got []string
	note := func(who string) func([]byte) { return func(v []byte) { got = append(got, who+"="+string(v)) } }
	check(t, s.Wait(jobA, 1, "k", Token{Rank: 0}, note("a-lost")), nil)
	check(t, s.Wait(jobA, 1, "k", Token{Rank: 1}, note("b")), nil)
	check(t, s.Wait(jobA, 1, "k", Token{Rank: 0}, note("a")), nil) // the client sent it again
	check(t, s.Wait(jobB, 1, "k", Token{Rank: 0}, note("other job")), nil)
	check(t, s.Wait(jobA, 2, "k", Token{Rank: 0}, note("other epoch")), nil)
	value := []byte("v")
	check(t, set(s, jobA, 1, "k", value), nil)
	value[0] = 'x' // the store has its own copy
	check(t, s.Wait(jobA, 1, "k", Token{Rank: 2}, note("c")), nil)
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
	s := New(1, 0)
	done := false
	check(t, s.Wait(jobA, 1, "k", Token{Rank: 0}, func([]byte) {
		check(t, set(s, jobA, 1, "k2", nil), nil)
		check(t, s.Wait(jobA, 1, "k", Token{Rank: 0}, func([]byte) { done = true }), nil)
	}), nil)
	check(t, set(s, jobA, 1, "k", nil), nil)
	if !done {
		t.Fatal("the inner wait was not answered")
	}
}

func TestBarrierIsIdempotentPerMember(t *testing.T) {
	s := New(1, 0)
	released := make(map[string]int)
	come := func(member replica.Rank, as string) error {
		return s.Barrier(jobA, 3, "init", member, 3, func() { released[as]++ })
	}
	for _, m := range []replica.Rank{0, 0, 1, 1} {
		check(t, come(m, fmt.Sprint(m, "-lost")), nil)
	}
	check(t, come(0, "0"), nil)
	check(t, come(1, "1"), nil)
	if len(released) != 0 {
		t.Fatalf("two members of three, and %v were released", released)
	}
	check(t, come(2, "2"), nil)
	if fmt.Sprint(released) != "map[0:1 1:1 2:1]" {
		t.Fatalf("released %v", released)
	}
	check(t, come(1, "1"), nil) // its answer was lost
	if released["1"] != 2 || released["0"] != 1 {
		t.Fatalf("released %v", released)
	}
	check(t, come(3, "3"), ErrMismatch)
	check(t, s.Barrier(jobA, 3, "init", 0, 4, func() {}), ErrMismatch)
	if err := s.Barrier(jobA, 3, "x", 0, 0, func() {}); err == nil {
		t.Fatal("a barrier of nobody was accepted")
	}
}

func TestAdvanceDropsAndRefuses(t *testing.T) {
	s := New(1, 0)
	fail := func([]byte) { t.Error("a waiter of a closed epoch was answered") }
	check(t, set(s, jobA, 1, "old", []byte("v")), nil)
	check(t, s.Wait(jobA, 1, "k", Token{Rank: 0}, fail), nil)
	check(t, set(s, jobA, 2, "early", []byte("v")), nil)
	s.Advance(jobA, 2)
	check(t, set(s, jobA, 1, "k", nil), ErrOldEpoch)
	check(t, s.Wait(jobA, 1, "k", Token{Rank: 0}, fail), ErrOldEpoch)
	check(t, s.Barrier(jobA, 1, "b", 0, 1, func() { fail(nil) }), ErrOldEpoch)
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
	s := New(1, 0)
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
	for err = nil; err == nil; n++ { // and so does a barrier's member count
		err = s.Barrier(jobB, 1, fmt.Sprint("b", n), 0, 64, func() {})
	}
	check(t, err, ErrTooMuch)
	for i := range MaxBarriers {
		check(t, s.Barrier(jobB, 2, fmt.Sprint(i), 0, 2, func() {}), nil)
	}
	check(t, s.Barrier(jobB, 2, "one more", 0, 2, func() {}), ErrTooMuch)
	if was := s.Bytes(jobB); was < MaxBytes || was > MaxBytes+2*MaxBarriers*(barrierBytes+waiterBytes) {
		t.Errorf("the job counts for %d bytes", was)
	}
}

// A rank in a loop over keys that are not there leaves one wait behind, whatever it does; so do processes of it that are gone.
func TestWhatWasGivenUpIsForgotten(t *testing.T) {
	s := New(1, 0)
	answered := 0
	wait := func(r replica.Rank, nonce uint64, key string) {
		check(t, s.Wait(jobA, 1, key, Token{Rank: r, Nonce: nonce}, func([]byte) { answered++ }), nil)
	}
	for i := range 10_000 {
		wait(0, 1, fmt.Sprint("absent ", i))
		wait(1, uint64(i), "k")
	}
	sc := s.jobs[jobA].scopes[1]
	if sc.waiting != 1+maxAsking || len(sc.waits) != 2 || len(sc.asking[0]) != 1 || len(sc.asking[1]) != maxAsking {
		t.Fatalf("%d wait for %d keys, %d and %d by rank", sc.waiting, len(sc.waits), len(sc.asking[0]), len(sc.asking[1]))
	}
	for range 3 { // one that waits for the same key again, each time after it was answered
		check(t, set(s, jobA, 1, "k", []byte("v")), nil)
		_, err := s.Write(jobA, 1, Write{Op: Delete, Key: "k"})
		check(t, err, nil)
		for range 2 * maxAsking {
			wait(1, 7, "k")
		}
	}
	check(t, set(s, jobA, 1, "absent 9999", nil), nil)
	if answered != maxAsking+2+1 || sc.waiting != 1 || len(sc.asking) != 1 {
		t.Errorf("%d answers, and %d wait of %d ranks; want %d, 1 and 1", answered, sc.waiting, len(sc.asking), maxAsking+3)
	}
	wait(1, 7, "absent 9999") // it has given up the other one, and is answered at once
	if answered != maxAsking+4 || sc.waiting != 0 || len(sc.waits)+len(sc.asking) != 0 {
		t.Errorf("%d answers; %d wait for %d keys", answered, sc.waiting, len(sc.waits))
	}
}

// As many barriers as an epoch may have are possible for the largest job that is meant to meet: what is left of one that all came to is little.
func TestManyBarriersOfALargeJob(t *testing.T) {
	const world, some = 10_000, 3
	s := New(1, 0)
	passed := 0
	for i := range some {
		for r := range replica.Rank(world) {
			check(t, s.Barrier(jobA, 1, fmt.Sprint("step ", i), r, world, func() { passed++ }), nil)
		}
	}
	if each := s.Bytes(jobA) / some; passed != some*world || each*MaxBarriers > MaxBytes || each < world/8 {
		t.Errorf("%d of %d passed; %d bytes are left of each barrier", passed, some*world, each)
	}
	check(t, s.Barrier(jobA, 1, "step 0", world-1, world, func() { passed++ }), nil) // its answer was lost
	check(t, s.Barrier(jobA, 1, "step 0", world, world, func() { passed++ }), ErrMismatch)
	if passed != some*world+1 {
		t.Errorf("%d passed", passed)
	}
}
