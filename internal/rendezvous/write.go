package rendezvous

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/replicad/replicad/replica"
)

// Op is what a Write does.
type Op uint8

// The writes.
const (
	Set        Op = iota + 1 // Value replaces what is there
	Add                      // Delta is added to a decimal number; no key counts as 0
	CompareSet               // Value replaces what is there if that is Expect; no key counts as nothing
	Delete
)

// Token names one call of one process of a rank. Once rises from call to call; 0 is never recognised.
type Token struct {
	Rank  replica.Rank
	Nonce uint64 // of the process
	Once  uint32
}

// Write is one change of a key.
type Write struct {
	Op     Op
	Key    string
	Value  []byte
	Expect []byte
	Delta  int64
	By     Token
}

// Result is what came of a Write.
type Result struct {
	Seq   uint64 // its place in the order of writes; 0: it changed nothing
	Total int64  // Add: the sum. Delete: 1 if there was a key
	Value []byte // CompareSet: what is there now; the caller does not change it
}

// cell is what is known of a key. A deleted one stays, so that an older write that is restored late changes nothing.
type cell struct {
	value []byte // what is read; the writes below make it
	set   bool
	base  written  // the newest Set or Delete
	old   []addend // of earlier leaders, after base, by rising seq
	live  int64    // sum of this leader's additions after base
	adds  int      // how many those are
}

// written is a value as a Set (or CompareSet) or Delete left it.
type written struct {
	seq   uint64
	value []byte
	set   bool
}

type addend struct {
	seq   uint64
	delta int64
}

// call is a write that was taken, and what came of it.
type call struct {
	Token
	seq   uint64
	total int64
}

// Write makes a change and answers those who wait for the key. A Write whose token is that of the rank's newest is the same
// write: it is answered again and changes nothing.
func (s *Store) Write(id replica.JobID, e replica.Epoch, w Write) (Result, error) {
	sc, err := s.open(id, e, w)
	if err != nil {
		return Result{}, err
	}
	was := cell{}
	if c := sc.cells[w.Key]; c != nil {
		was = *c
	}
	if last := sc.calls[w.By.Rank]; w.By.Once != 0 && last.Nonce == w.By.Nonce && last.Once != 0 {
		if last.Once == w.By.Once {
			return Result{Seq: last.seq, Total: last.total, Value: w.Value}, nil
		}
		if int32(w.By.Once-last.Once) < 0 {
			return Result{}, fmt.Errorf("call %d of rank %d: %w: %d", w.By.Once, w.By.Rank, ErrSuperseded, last.Once)
		}
	}
	next, r := was, Result{Seq: s.last + 1}
	switch w.Op {
	case Add:
		if _, err := number(was.value); was.set && err != nil {
			return Result{}, fmt.Errorf("add to key %q: %w", w.Key, err)
		}
		next.live, next.adds = was.live+w.Delta, was.adds+1
	case CompareSet:
		if !bytes.Equal(was.value, w.Expect) {
			return Result{Value: was.value}, nil
		}
		next = cell{base: written{r.Seq, bytes.Clone(w.Value), true}}
		r.Value = next.base.value
	case Delete:
		if !was.set {
			return Result{}, nil
		}
		next, r.Total = cell{base: written{seq: r.Seq}}, 1
	case Set:
		next = cell{base: written{r.Seq, bytes.Clone(w.Value), true}}
	default:
		return Result{}, fmt.Errorf("unknown rendezvous operation %d", w.Op)
	}
	next.fold()
	if w.Op == Add {
		r.Total, _ = number(next.value) // it is one: fold made it
	}
	if err := s.put(id, e, sc, w.Key, next); err != nil {
		return Result{}, err
	}
	s.last++
	if w.By.Once != 0 {
		sc.calls[w.By.Rank] = call{w.By, r.Seq, r.Total}
	}
	sc.wake(w.Key)
	return r, nil
}

// Restore brings back a write that an earlier leader took as r. A write of this leader's own is known already.
func (s *Store) Restore(id replica.JobID, e replica.Epoch, w Write, r Result) error {
	if r.Seq > s.began {
		return nil
	}
	sc, err := s.open(id, e, w)
	if err != nil {
		return err
	}
	next := cell{}
	if c := sc.cells[w.Key]; c != nil {
		next = *c
	}
	if r.Seq > next.base.seq {
		at, known := slices.BinarySearchFunc(next.old, r.Seq, func(a addend, seq uint64) int { return cmp.Compare(a.seq, seq) })
		switch {
		case w.Op == Delete:
			next.base, next.old = written{seq: r.Seq}, slices.Clone(next.old[at:])
		case w.Op != Add:
			next.base, next.old = written{r.Seq, bytes.Clone(w.Value), true}, slices.Clone(next.old[at:])
		case !known:
			next.old = slices.Insert(slices.Clone(next.old), at, addend{r.Seq, w.Delta})
		}
		next.fold()
		if err := s.put(id, e, sc, w.Key, next); err != nil {
			return err
		}
		sc.wake(w.Key)
	}
	if w.By.Once != 0 && sc.calls[w.By.Rank].seq < r.Seq {
		sc.calls[w.By.Rank] = call{w.By, r.Seq, r.Total}
	}
	return nil
}

// open checks a write's sizes and finds its scope.
func (s *Store) open(id replica.JobID, e replica.Epoch, w Write) (*scope, error) {
	if err := checkKey(w.Key); err != nil {
		return nil, err
	}
	if n := len(w.Value) + len(w.Expect); n > MaxValueBytes {
		return nil, fmt.Errorf("%w: value of key %q has %d bytes, at most %d", ErrTooMuch, w.Key, n, MaxValueBytes)
	}
	return s.scope(id, e)
}

// fold computes the value from the writes.
func (c *cell) fold() {
	c.value, c.set = c.base.value, c.base.set
	if len(c.old) == 0 && c.adds == 0 {
		return
	}
	sum, _ := number(c.value) // additions were taken after it, so it is one, or nothing
	for _, a := range c.old {
		sum += a.delta
	}
	c.value, c.set = strconv.AppendInt(nil, sum+c.live, 10), true
}

// size is what a cell of that key counts for.
func (c *cell) size(key string) int {
	n := cellBytes + len(key) + len(c.value) + 16*len(c.old)
	if c.adds > 0 || len(c.old) > 0 {
		n += len(c.base.value) // kept beside what was added to it
	}
	return n
}

// put replaces a cell within the limits.
func (s *Store) put(id replica.JobID, e replica.Epoch, sc *scope, key string, next cell) error {
	size := sc.bytes + next.size(key)
	c := sc.cells[key]
	if c != nil {
		size -= c.size(key)
	} else if len(sc.cells) >= MaxKeys {
		return fmt.Errorf("%w: job %v has %d keys in epoch %d", ErrTooMuch, id, len(sc.cells), e)
	}
	if size > MaxBytes {
		return fmt.Errorf("%w: job %v would keep %d bytes in epoch %d, at most %d", ErrTooMuch, id, size, e, MaxBytes)
	}
	if c == nil {
		c = &cell{}
		sc.cells[key] = c
	}
	*c, sc.bytes = next, size
	return nil
}

// wake answers those who wait for a key, if it is there now.
func (sc *scope) wake(key string) {
	c, w := sc.cells[key], sc.waits[key]
	if w == nil || !c.set {
		return
	}
	value := c.value // a callback may change the key
	delete(sc.waits, key)
	sc.waiting -= len(w.order)
	for _, who := range w.order {
		sc.giveUp(who.rank, func(a asking) bool { return a == asking{who, key} }) // it has its answer
	}
	for _, who := range w.order {
		w.fns[who](value)
	}
}

// number reads a counter's value.
func number(value []byte) (int64, error) {
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("value %.40q: %w", value, ErrNotNumber)
	}
	return n, nil
}
