// Package rendezvous is what the ranks of an epoch need to meet: a key-value store with waiting, and barriers.
//
// It is soft state on the Raft leader, per job and epoch: nothing of it is logged. A new leader starts empty, and the daemons
// bring it what their ranks contributed (Restore) before they ask anything. Each write has a place in one order, given by the
// leader that took it, so the same writes make the same values in whatever order they are brought, and however often. A write
// that may have been taken already is recognised by its Token. One goroutine owns a Store; no method blocks, and the callbacks
// run inside the call that completes them (they may call the Store again). Invariant: once Advance named an epoch, nothing of
// an older one is kept, answered or accepted.
//
// Keys, values, waiters and epochs are capped, so that a rank in a loop can't fill the leader. It imports replica alone and
// must not import wire, session or anything of the network.
package rendezvous

import (
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Limits per job and epoch. The key and value sizes are libreplicad's contract with ranks.
const (
	MaxKeyBytes   = 255
	MaxValueBytes = 32 << 10
	MaxKeys       = 1 << 18  // a few a rank of the largest job that is meant to meet through one leader
	MaxBytes      = 64 << 20 // keys and values together
	MaxWaiters    = 1 << 17
	MaxBarriers   = 1 << 12
	maxEpochs     = 2 // epochs of one job at once: a leader may hear of the next before it has applied it
	maxAsking     = 4 // processes of one rank that wait for a key: one, and some that are gone
)

var (
	// ErrOldEpoch marks a call for an epoch that Advance has passed: it is refused for good.
	ErrOldEpoch = errors.New("epoch is closed")
	// ErrTooMuch marks a call that one of the limits refuses.
	ErrTooMuch = errors.New("rendezvous limit")
	// ErrMismatch marks a barrier whose members don't agree on how many they are.
	ErrMismatch = errors.New("members disagree")
	// ErrNotNumber marks an addition to a value that is not a decimal number.
	ErrNotNumber = errors.New("not a decimal number")
	// ErrSuperseded marks a write whose caller has made a later one: nobody waits for its result.
	ErrSuperseded = errors.New("superseded by a later call")
)

// Store holds the rendezvous of all jobs. Not safe for concurrent use.
type Store struct {
	began uint64 // no write before this Store's first has a higher number
	last  uint64 // number of the last write
	jobs  map[replica.JobID]*job
}

type job struct {
	oldest replica.Epoch // what Advance said last
	scopes map[replica.Epoch]*scope
}

type scope struct {
	cells    map[string]*cell
	bytes    int
	calls    map[replica.Rank]call // each rank's newest write
	waits    map[string]*waiters[process, func([]byte)]
	asking   map[replica.Rank][]asking // newest last
	waiting  int                       // waiters of keys and barriers
	barriers map[string]*barrier
}

type barrier struct {
	members int
	count   int     // that came
	came    big.Int // by rank: it stays, since members come again and strangers are refused
	done    bool    // all came, to this leader or an earlier one
	waiters[replica.Rank, func()]
}

// asking is the key that a process of a rank waits for: it asks for one at a time.
type asking struct {
	process
	key string
}

// process is one process of a rank.
type process struct {
	rank  replica.Rank
	nonce uint64
}

// waiters are callbacks by who waits, called in order of arrival.
type waiters[W comparable, F any] struct {
	order []W
	fns   map[W]F
}

// put adds or replaces; it tells whether who is new.
func (w *waiters[W, F]) put(who W, fn F) bool {
	_, had := w.fns[who]
	if w.fns == nil {
		w.fns = make(map[W]F)
	}
	if !had {
		w.order = append(w.order, who)
	}
	w.fns[who] = fn
	return !had
}

// drop forgets one who waits; it tells whether there was one.
func (w *waiters[W, F]) drop(who W) bool {
	if _, had := w.fns[who]; !had {
		return false
	}
	delete(w.fns, who)
	w.order = slices.DeleteFunc(w.order, func(o W) bool { return o == who })
	return true
}

// New returns the empty Store of a leader. Terms rise from leader to leader, which makes a later leader's writes later. last is what Last said of the
// Store before, if the same leader had one: it may lead again in the same term.
func New(term, last uint64) *Store {
	last = max(last, term<<32)
	return &Store{began: last, last: last, jobs: make(map[replica.JobID]*job)}
}

// Last is the number of the last write.
func (s *Store) Last() uint64 { return s.last }

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
		sc = &scope{cells: make(map[string]*cell), calls: make(map[replica.Rank]call), waits: make(map[string]*waiters[process, func([]byte)]), asking: make(map[replica.Rank][]asking), barriers: make(map[string]*barrier)}
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

// Get returns the value of a key; the caller does not change it.
func (s *Store) Get(id replica.JobID, e replica.Epoch, key string) ([]byte, bool) {
	j := s.jobs[id]
	if j == nil || j.scopes[e] == nil {
		return nil, false
	}
	if c := j.scopes[e].cells[key]; c != nil && c.set {
		return c.value, true
	}
	return nil, false
}

// Wait calls fn with the key's value: at once if it is there, else when it is set. A process waits for one key at a time: a later wait
// replaces the one before, of which it has given up the answer. An error means that fn will never be called; neither will it once the epoch
// is dropped.
func (s *Store) Wait(id replica.JobID, e replica.Epoch, key string, by Token, fn func([]byte)) error {
	if err := checkKey(key); err != nil {
		return err
	}
	sc, err := s.scope(id, e)
	if err != nil {
		return err
	}
	who := process{by.Rank, by.Nonce}
	c := sc.cells[key]
	there := c != nil && c.set
	sc.giveUp(by.Rank, func(a asking) bool { return a.process == who && (there || a.key != key) })
	if there {
		fn(c.value)
		return nil
	}
	w := sc.waits[key]
	if w == nil {
		w = &waiters[process, func([]byte)]{}
	}
	if _, again := w.fns[who]; !again && sc.waiting >= MaxWaiters {
		return fmt.Errorf("%w: %d waiters of job %v in epoch %d", ErrTooMuch, sc.waiting, id, e)
	}
	sc.waits[key] = w
	if !w.put(who, fn) {
		return nil
	}
	sc.waiting++
	if list := sc.asking[by.Rank]; len(list) >= maxAsking {
		oldest := list[0]
		sc.giveUp(by.Rank, func(a asking) bool { return a == oldest })
	}
	sc.asking[by.Rank] = append(sc.asking[by.Rank], asking{who, key})
	return nil
}

// giveUp forgets what processes of a rank wait for.
func (sc *scope) giveUp(r replica.Rank, which func(asking) bool) {
	list := slices.DeleteFunc(sc.asking[r], func(a asking) bool {
		if !which(a) {
			return false
		}
		w := sc.waits[a.key]
		if w != nil && w.drop(a.process) {
			sc.waiting--
		}
		if w != nil && len(w.order) == 0 {
			delete(sc.waits, a.key)
		}
		return true
	})
	if sc.asking[r] = list; len(list) == 0 {
		delete(sc.asking, r)
	}
}

// Barrier calls fn once members different members came, at once if they already have. A member that comes again replaces
// its callback and counts once, however often it comes and whenever.
func (s *Store) Barrier(id replica.JobID, e replica.Epoch, name string, member replica.Rank, members int, fn func()) error {
	sc, b, err := s.barrier(id, e, name, member, members)
	if err != nil {
		return err
	}
	again := b.came.Bit(int(member)) == 1
	if !again && b.count == b.members {
		return fmt.Errorf("barrier %q of job %v, epoch %d: %w: rank %d came after all %d members had", name, id, e, ErrMismatch, member, members)
	}
	if b.done {
		sc.come(b, member)
		fn()
		return nil
	}
	if !again && sc.waiting >= MaxWaiters {
		return fmt.Errorf("%w: %d waiters of job %v in epoch %d", ErrTooMuch, sc.waiting, id, e)
	}
	sc.come(b, member)
	if b.put(member, fn) {
		sc.waiting++
	}
	if b.count == b.members {
		sc.release(b)
	}
	return nil
}

// RestoreBarrier says that the member was let through the barrier by an earlier leader: so may all others be who still come.
func (s *Store) RestoreBarrier(id replica.JobID, e replica.Epoch, name string, member replica.Rank, members int) error {
	sc, b, err := s.barrier(id, e, name, member, members)
	if err != nil {
		return err
	}
	if b.count < b.members {
		sc.come(b, member)
	}
	sc.release(b)
	return nil
}

// come counts a member that is new.
func (sc *scope) come(b *barrier, member replica.Rank) {
	if b.came.Bit(int(member)) == 1 {
		return
	}
	sc.bytes += b.grows(member)
	b.came.SetBit(&b.came, int(member), 1)
	b.count++
}

// grows is by how many bytes a barrier does when a member comes.
func (b *barrier) grows(member replica.Rank) int {
	return max(0, 8*(int(member)/64+1-len(b.came.Bits())))
}

// barrier finds or makes a barrier.
func (s *Store) barrier(id replica.JobID, e replica.Epoch, name string, member replica.Rank, members int) (*scope, *barrier, error) {
	if err := checkKey(name); err != nil {
		return nil, nil, err
	}
	if members < 1 || members > replica.MaxRanks {
		return nil, nil, fmt.Errorf("barrier %q: %d members, want 1 to %d", name, members, replica.MaxRanks)
	}
	if member >= replica.MaxRanks {
		return nil, nil, fmt.Errorf("barrier %q: rank %d, want less than %d", name, member, replica.MaxRanks)
	}
	sc, err := s.scope(id, e)
	if err != nil {
		return nil, nil, err
	}
	b := sc.barriers[name]
	size, last := 0, member
	if b == nil {
		if len(sc.barriers) >= MaxBarriers {
			return nil, nil, fmt.Errorf("%w: job %v has %d barriers in epoch %d", ErrTooMuch, id, len(sc.barriers), e)
		}
		b, size, last = &barrier{members: members}, barrierBytes+len(name), max(member, replica.Rank(members-1))
	}
	if more := size + b.grows(last); more > 0 && sc.bytes > MaxBytes-more {
		return nil, nil, fmt.Errorf("%w: barrier %q of job %v, epoch %d, has no room for %d members beside %d bytes, at most %d", ErrTooMuch, name, id, e, members, sc.bytes, MaxBytes)
	}
	sc.barriers[name], sc.bytes = b, sc.bytes+size
	if b.members != members {
		return nil, nil, fmt.Errorf("barrier %q of job %v, epoch %d: %w: rank %d names %d members, the first named %d", name, id, e, ErrMismatch, member, members, b.members)
	}
	return sc, b, nil
}

// release lets everybody through who waits at a barrier, and everybody who comes from now on.
func (sc *scope) release(b *barrier) {
	w := b.waiters
	b.done, b.waiters = true, waiters[replica.Rank, func()]{}
	sc.waiting -= len(w.order)
	for _, who := range w.order {
		w.fns[who]()
	}
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

// What something counts for beside its bytes, about.
const (
	cellBytes    = 64
	barrierBytes = 192
	waiterBytes  = 512
)

// Cost is what a request may add to Bytes, about: a key that is set, a member of a barrier, one who waits.
func Cost(key string, value []byte) int { return cellBytes + len(key) + len(value) + waiterBytes }

// Bytes is how much memory the rendezvous of a job takes, all epochs together, about.
func (s *Store) Bytes(id replica.JobID) (n int) {
	if j := s.jobs[id]; j != nil {
		for _, sc := range j.scopes {
			n += sc.bytes + waiterBytes*sc.waiting
		}
	}
	return n
}

// Drop forgets a job that has ended.
func (s *Store) Drop(id replica.JobID) { delete(s.jobs, id) }
