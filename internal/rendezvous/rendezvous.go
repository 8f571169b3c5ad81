// Package rendezvous is what the ranks of an epoch need to meet: a key-value store with waiting, and barriers.
//
// It is soft state on the Raft leader, per job and epoch: nothing of it is logged. A new leader starts empty, and the
// daemons send again what their ranks set and wait for; so everything here is idempotent per member, and a repeated wait
// replaces the earlier one. One goroutine owns a Store; no method blocks, and the callbacks run inside the call that
// completes them (they may call the Store again). Invariant: once Advance named an epoch, nothing of an older one is kept,
// answered or accepted.
//
// Keys, values, waiters and epochs are capped, so that a rank in a loop can't fill the leader. It imports replica alone and
// must not import wire, session or anything of the network.
package rendezvous

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/replicad/replicad/replica"
)

// Limits per job and epoch. The key and value sizes are libreplicad's contract with ranks.
const (
	MaxKeyBytes   = 255
	MaxValueBytes = 32 << 10
	MaxKeys       = 1 << 18  // a few a rank of the largest job that is meant to meet through one leader
	MaxBytes      = 64 << 20 // keys and values together
	MaxWaiters    = replica.MaxRanks
	MaxBarriers   = 1 << 12
	maxEpochs     = 4 // epochs of one job at once: a leader may hear of the next before it has applied it
)

var (
	// ErrOldEpoch marks a call for an epoch that Advance has passed: it is refused for good.
	ErrOldEpoch = errors.New("epoch is closed")
	// ErrTooMuch marks a call that one of the limits refuses.
	ErrTooMuch = errors.New("rendezvous limit")
	// ErrMismatch marks a barrier whose members don't agree on how many they are.
	ErrMismatch = errors.New("members disagree")
)

// Store holds the rendezvous of all jobs. Not safe for concurrent use.
type Store struct {
	jobs map[replica.JobID]*job
}

type job struct {
	oldest replica.Epoch // what Advance said last
	scopes map[replica.Epoch]*scope
}

type scope struct {
	values   map[string][]byte
	bytes    int
	waits    map[string]*waiters[func([]byte)]
	waiting  int // waiters of keys and barriers
	barriers map[string]*barrier
}

type barrier struct {
	members int
	came    map[string]struct{}
	waiters[func()]
}

// waiters are callbacks by who waits, called in order of arrival.
type waiters[F any] struct {
	order []string
	fns   map[string]F
}

// put adds or replaces; it tells whether who is new.
func (w *waiters[F]) put(who string, fn F) bool {
	_, had := w.fns[who]
	if w.fns == nil {
		w.fns = make(map[string]F)
	}
	if !had {
		w.order = append(w.order, who)
	}
	w.fns[who] = fn
	return !had
}

// New returns an empty Store.
func New() *Store { return &Store{jobs: make(map[replica.JobID]*job)} }

// scope finds or makes the scope of an epoch.
func (s *Store) scope(id replica.JobID, e replica.Epoch) (*scope, error) {
	j := s.jobs[id]
	if j == nil {
		j = &job{scopes: make(map[replica.Epoch]*scope)}
		s.jobs[id] = j
	}
	if e < j.oldest {
		return nil, fmt.Errorf("rendezvous of job %v, epoch %d: %w: the job is at epoch %d", id, e, ErrOldEpoch, j.oldest)
	}
	sc := j.scopes[e]
	if sc == nil {
		if len(j.scopes) >= maxEpochs {
			return nil, fmt.Errorf("rendezvous of job %v, epoch %d: %w: %d epochs are open", id, e, ErrTooMuch, len(j.scopes))
		}
		sc = &scope{values: make(map[string][]byte), waits: make(map[string]*waiters[func([]byte)]), barriers: make(map[string]*barrier)}
		j.scopes[e] = sc
	}
	return sc, nil
}

func checkKey(key string) error {
	if len(key) == 0 || len(key) > MaxKeyBytes {
		return fmt.Errorf("%w: key of %d bytes, want 1 to %d", ErrTooMuch, len(key), MaxKeyBytes)
	}
	return nil
}

// Set stores a copy of value and answers those who wait for the key. Setting again replaces.
func (s *Store) Set(id replica.JobID, e replica.Epoch, key string, value []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if len(value) > MaxValueBytes {
		return fmt.Errorf("%w: value of key %q has %d bytes, at most %d", ErrTooMuch, key, len(value), MaxValueBytes)
	}
	sc, err := s.scope(id, e)
	if err != nil {
		return err
	}
	old, had := sc.values[key]
	size := sc.bytes + len(value) - len(old)
	if !had {
		size += len(key)
		if len(sc.values) >= MaxKeys {
			return fmt.Errorf("%w: job %v has %d keys in epoch %d", ErrTooMuch, id, len(sc.values), e)
		}
	}
	if size > MaxBytes {
		return fmt.Errorf("%w: job %v would keep %d bytes in epoch %d, at most %d", ErrTooMuch, id, size, e, MaxBytes)
	}
	value = bytes.Clone(value)
	sc.values[key], sc.bytes = value, size
	if w := sc.waits[key]; w != nil {
		delete(sc.waits, key)
		sc.waiting -= len(w.order)
		for _, who := range w.order {
			w.fns[who](value)
		}
	}
	return nil
}

// Get returns the value of a key; the caller does not change it.
func (s *Store) Get(id replica.JobID, e replica.Epoch, key string) ([]byte, bool) {
	j := s.jobs[id]
	if j == nil || j.scopes[e] == nil {
		return nil, false
	}
	v, ok := j.scopes[e].values[key]
	return v, ok
}

// Wait calls fn with the key's value: at once if it is there, else when it is set. A second wait of the same who for the
// same key replaces the first. An error means that fn will never be called; neither will it once the epoch is dropped.
func (s *Store) Wait(id replica.JobID, e replica.Epoch, key string, who string, fn func([]byte)) error {
	if err := checkKey(key); err != nil {
		return err
	}
	sc, err := s.scope(id, e)
	if err != nil {
		return err
	}
	if v, ok := sc.values[key]; ok {
		fn(v)
		return nil
	}
	w := sc.waits[key]
	if w == nil {
		w = &waiters[func([]byte)]{}
	}
	if _, again := w.fns[who]; !again && sc.waiting >= MaxWaiters {
		return fmt.Errorf("%w: %d waiters of job %v in epoch %d", ErrTooMuch, sc.waiting, id, e)
	}
	sc.waits[key] = w
	if w.put(who, fn) {
		sc.waiting++
	}
	return nil
}

// Barrier calls fn once members different members came, at once if they already have. A member that comes again replaces
// its callback and counts once, however often it comes and whenever.
func (s *Store) Barrier(id replica.JobID, e replica.Epoch, name string, member string, members int, fn func()) error {
	if err := checkKey(name); err != nil {
		return err
	}
	if members < 1 || members > replica.MaxRanks {
		return fmt.Errorf("barrier %q: %d members, want 1 to %d", name, members, replica.MaxRanks)
	}
	sc, err := s.scope(id, e)
	if err != nil {
		return err
	}
	b := sc.barriers[name]
	if b == nil {
		if len(sc.barriers) >= MaxBarriers {
			return fmt.Errorf("%w: job %v has %d barriers in epoch %d", ErrTooMuch, id, len(sc.barriers), e)
		}
		b = &barrier{members: members, came: make(map[string]struct{})}
		sc.barriers[name] = b
	}
	if b.members != members {
		return fmt.Errorf("barrier %q of job %v, epoch %d: %w: %q says %d members, the first said %d", name, id, e, ErrMismatch, member, members, b.members)
	}
	_, again := b.came[member]
	if done := len(b.came) == b.members; done {
		if !again {
			return fmt.Errorf("barrier %q of job %v, epoch %d: %w: %q came after all %d members had", name, id, e, ErrMismatch, member, members)
		}
		fn()
		return nil
	}
	if !again && sc.waiting >= MaxWaiters {
		return fmt.Errorf("%w: %d waiters of job %v in epoch %d", ErrTooMuch, sc.waiting, id, e)
	}
	b.came[member] = struct{}{}
	if b.put(member, fn) {
		sc.waiting++
	}
	if len(b.came) == b.members {
		w := b.waiters
		b.waiters = waiters[func()]{}
		sc.waiting -= len(w.order)
		for _, who := range w.order {
			w.fns[who]()
		}
	}
	return nil
}

// Advance drops everything of the job's epochs before e, waiters included, and refuses them from now on.
func (s *Store) Advance(id replica.JobID, e replica.Epoch) {
	j := s.jobs[id]
	if j == nil {
		j = &job{scopes: make(map[replica.Epoch]*scope)}
		s.jobs[id] = j
	}
	if e <= j.oldest {
		return
	}
	j.oldest = e
	for old := range j.scopes {
		if old < e {
			delete(j.scopes, old)
		}
	}
}

// Drop forgets a job that has ended.
func (s *Store) Drop(id replica.JobID) { delete(s.jobs, id) }
