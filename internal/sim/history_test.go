package sim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/replicad/replicad/replica"
)

// A history holds what the clients of an episode asked for and were told: ranks claim seats, commit steps and read where to resume; launchers
// hear of the end. It knows nothing of logs, leaders and daemons. An episode fails if no one order of these operations, in which each lies
// between its call and its return, is what a single register would have answered.
type history struct {
	mu   sync.Mutex // guards the rest
	now  int64      // counts calls and returns: what happens at one moment of virtual time has an order too
	ops  []*operation
	told map[replica.JobID]replica.Epoch // the newest epoch of which a client was told that it is closed
}

// verb is what a client asks for, or is told.
type verb uint8

const (
	claim  verb = iota // a process asks for its rank's seat, and is told epoch and incarnation
	commit             // a rank captures a generation, and is told that it is committed
	read               // a rank asks where to go on, and is told an epoch and a generation
	fenced             // a client is told that an epoch is closed
	ended              // a client is told that the job has ended
)

func (v verb) String() string {
	return [...]string{"claim", "commit", "read", "fenced", "ended"}[v]
}

// operation is one of a client, and what it was told.
type operation struct {
	verb verb
	job  replica.JobID
	rank replica.Rank
	pid  int

	epoch       replica.Epoch
	incarnation replica.Incarnation
	generation  replica.Generation

	call, end int64         // in the history's order; end 0: no answer came
	at        time.Duration // of the call, in virtual time
}

func (o *operation) answered() bool { return o.end != 0 }

func (o *operation) String() string {
	said := ""
	switch o.verb {
	case claim:
		said = fmt.Sprintf("incarnation %d, epoch %d", o.incarnation, o.epoch)
	case commit:
		said = fmt.Sprintf("generation %v", o.generation)
	case read:
		said = fmt.Sprintf("epoch %d goes on from %v, to incarnation %d", o.epoch, o.generation, o.incarnation)
	case fenced:
		said = fmt.Sprintf("epoch %d", o.epoch)
	case ended:
	}
	if !o.answered() {
		said += ", no answer"
	}
	return fmt.Sprintf("[%d, %d] at %v, rank %d, process %d: %v %s", o.call, o.end, o.at.Round(time.Microsecond), o.rank, o.pid, o.verb, said)
}

// call notes that a client asks for something.
func (h *history) call(o operation) *operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now++
	o.call = h.now
	h.ops = append(h.ops, &o)
	return &o
}

// answer notes what a client was told.
func (h *history) answer(o *operation, told func(*operation)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now++
	o.end = h.now
	told(o)
}

// tells notes what a client is told without having asked. Of an epoch that is closed the first one to hear is enough.
func (h *history) tells(o operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o.verb == fenced {
		if o.epoch <= h.told[o.job] {
			return
		}
		if h.told == nil {
			h.told = map[replica.JobID]replica.Epoch{}
		}
		h.told[o.job] = o.epoch
	}
	h.now += 2
	o.call, o.end = h.now-1, h.now
	h.ops = append(h.ops, &o)
}

// client is a rank's process as the history sees it.
type client struct {
	seat    *operation
	resume  *operation
	commits []*operation // that wait for an answer, of one epoch
	fence   replica.Epoch
	done    replica.Word // the position that it was told last
}

func (r *rank) op(v verb) operation {
	return operation{verb: v, job: r.welcome.Job, rank: r.of, pid: r.pid, incarnation: r.inc, at: time.Since(r.w.began)}
}

// claims and claimed are the call and the return of a claim.
func (r *rank) claims() { r.client.seat = r.w.history.call(r.op(claim)) }

func (r *rank) claimed(e replica.Epoch) {
	r.w.history.answer(r.client.seat, func(o *operation) { o.job, o.epoch, o.incarnation = r.welcome.Job, e, r.inc })
}

// asks and goes are the call and the return of a read. One that was broken off tells nobody anything.
func (r *rank) asks() { r.client.resume = r.w.history.call(r.op(read)) }

func (r *rank) goes(g replica.Generation) {
	r.w.history.answer(r.client.resume, func(o *operation) { o.epoch, o.generation = r.epoch, g })
}

// captures is the call of a commit, before the first byte is copied: a daemon may seal what a dead process has copied.
func (r *rank) captures(g replica.Generation) {
	c := &r.client
	if len(c.commits) > 0 && c.commits[0].generation.Epoch != g.Epoch {
		c.commits = nil // those of a former epoch get no answer
	}
	if slices.ContainsFunc(c.commits, func(o *operation) bool { return o.generation == g }) {
		return // it tries again
	}
	o := r.op(commit)
	o.generation = g
	c.commits = append(c.commits, r.w.history.call(o))
}

// hears takes what the daemon has written into the control page: how far the epoch is committed, and which epoch is closed.
func (r *rank) hears() {
	c := &r.client
	if done := r.arena.Committed(); done != c.done {
		c.done = done
		c.commits = slices.DeleteFunc(c.commits, func(o *operation) bool {
			if o.generation.Epoch != done.Epoch() || o.generation.Step > done.Step() {
				return false
			}
			r.w.history.answer(o, func(*operation) {})
			return true
		})
	}
	if fence := r.fence(); fence != c.fence {
		c.fence = fence
		if fence != replica.MaxEpoch { // that one says that the process is nobody's, and nothing of the job
			o := r.op(fenced)
			o.epoch = fence
			r.w.history.tells(o)
		}
	}
}

// object is what the operations of a history are on: it says what it would be after one more. False: it would not have answered so.
type object interface {
	takes(*operation) (object, bool)
}

// register is what a job promises its clients, if they asked one after another.
type register struct {
	epoch     replica.Epoch      // the newest that ranks were let go in
	closed    replica.Epoch      // the newest of which a client was told that it is closed
	committed replica.Generation // the newest
	ended     bool
}

func (s register) takes(o *operation) (object, bool) {
	ok := !s.ended
	switch o.verb {
	case claim: // no winner is told of an epoch that was over
		ok = ok && o.epoch >= s.epoch
	case commit: // of the open epoch, or the first state; one without an answer is made good by a resume, after its epoch
		first := s.committed.IsZero()
		ok = ok && (first || o.generation.Epoch == s.epoch) && (!o.answered() || o.generation.Epoch > s.closed)
		if first || o.generation.Step > s.committed.Step {
			s.committed = o.generation
		}
	case read: // exactly the newest generation; epochs rise
		ok = ok && o.epoch >= s.epoch && o.epoch > s.closed && o.generation == s.committed
		s.epoch = o.epoch
	case fenced:
		ok, s.closed = true, max(s.closed, o.epoch)
	case ended:
		ok, s.ended = true, true
	}
	return s, ok
}

// seat is that of a rank: the incarnation that won it last. Each is won once, and nobody else is let go.
type seat replica.Incarnation

func (s seat) takes(o *operation) (object, bool) {
	is := seat(o.incarnation)
	return is, o.verb == claim && is > s || o.verb == read && is == s
}

// relevant are those operations on a job's register that say all. A claim or read without an answer changes nothing that anybody was told. A
// commit without one counts only where a read returns its generation, and one of several is enough: what is left out could as well not have
// happened. Of the claims, commits or reads with one and the same answer, two say what all say: the answer held by the first return and
// still did at the last call. A search would try each subset of them.
func relevant(ops []*operation) (list []*operation) {
	type answer struct {
		verb       verb
		epoch      replica.Epoch
		generation replica.Generation
	}
	type pair struct{ first, last operation }
	pairs, returned := map[answer]*pair{}, map[replica.Generation]bool{}
	for _, o := range ops {
		if !o.answered() {
			continue
		}
		if o.verb == read {
			returned[o.generation] = true
		}
		k := answer{o.verb, o.epoch, o.generation}
		p := pairs[k]
		if p == nil {
			p = &pair{*o, *o}
			pairs[k] = p
			list = append(list, &p.first)
			continue
		}
		p.first.call, p.first.end = min(p.first.call, o.call), min(p.first.end, o.end)
		p.last.call, p.last.end = max(p.last.call, o.call), max(p.last.end, o.end)
	}
	for k, p := range pairs {
		if p.first.call != p.last.call {
			list = append(list, &p.last)
		}
		if k.verb == commit {
			delete(returned, k.generation)
		}
	}
	for _, o := range ops {
		if !o.answered() && o.verb == commit && returned[o.generation] {
			delete(returned, o.generation) // calls come in their order: this is the first
			list = append(list, o)
		}
	}
	return list
}

// judge looks at all that the clients of one job were told: each object by itself.
func judge(ops []*operation) (result porcupine.CheckResult, why string) {
	result, why = explain(register{}, relevant(ops))
	seats := map[replica.Rank][]*operation{}
	for _, o := range ops {
		if o.answered() && (o.verb == claim || o.verb == read) {
			seats[o.rank] = append(seats[o.rank], o)
		}
	}
	for _, of := range seats {
		if r, w := explain(seat(0), of); result == porcupine.Ok || r == porcupine.Illegal {
			result, why = r, w
		}
	}
	return result, why
}

// stepsMost is how many steps a search may take. One that finds an order takes a few for each operation.
const stepsMost = 1 << 20

// explain searches an order for the operations on an object. Where there is none, why has the first operation that the longest order leaves out.
func explain(o object, ops []*operation) (result porcupine.CheckResult, why string) {
	var steps atomic.Int64
	model := porcupine.Model{
		Init: func() any { return o },
		Step: func(state, input, _ any) (bool, any) {
			if steps.Add(1) > stepsMost {
				return false, state
			}
			next, ok := state.(object).takes(input.(*operation))
			return ok, next
		},
	}
	var list []porcupine.Operation
	for _, o := range ops {
		p := porcupine.Operation{ClientId: o.pid, Input: o, Call: o.call, Return: o.end}
		if !o.answered() {
			p.Return = math.MaxInt64
		}
		list = append(list, p)
	}
	switch {
	case porcupine.CheckOperations(model, list):
		return porcupine.Ok, ""
	case steps.Load() > stepsMost:
		return porcupine.Unknown, ""
	}
	_, info := porcupine.CheckOperationsVerbose(model, list, 0)
	in, last := map[any]bool{}, "the beginning"
	if orders := info.PartialLinearizationsOperations()[0]; len(orders) > 0 {
		longest := slices.MaxFunc(orders, func(a, b []porcupine.Operation) int { return cmp.Compare(len(a), len(b)) })
		for _, p := range longest {
			in[p.Input], last = true, fmt.Sprint(p.Input)
		}
	}
	slices.SortFunc(list, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	left := list[slices.IndexFunc(list, func(p porcupine.Operation) bool { return !in[p.Input] })]
	return porcupine.Illegal, fmt.Sprintf("%v, after %s", left.Input, last)
}

// unknownHistories is the row of the table that must stay away.
const unknownHistories = "histories: unknown"

// linear fails an episode whose clients were told what no order of their operations explains.
func (w *world) linear() {
	h := &w.history
	h.mu.Lock()
	defer h.mu.Unlock()
	jobs := map[replica.JobID][]*operation{}
	for _, o := range h.ops {
		jobs[o.job] = append(jobs[o.job], o)
		report.happens("operations: " + o.verb.String())
	}
	delete(jobs, replica.JobID{}) // claims without an answer
	for id, ops := range jobs {
		result, why := judge(ops)
		report.happens("histories: " + strings.ToLower(string(result)))
		if result != porcupine.Illegal {
			continue
		}
		for _, o := range ops {
			w.tracef("history: %v", o)
		}
		w.failf("the history of job %v is not linearizable: nothing explains %s", id, why)
	}
}

// TestHistoriesThatAreWrong: what clients must never be told is found, and beside each such history is one that is as it should be.
func TestHistoriesThatAreWrong(t *testing.T) {
	gen := func(e replica.Epoch, s replica.Step) replica.Generation { return replica.Generation{Epoch: e, Step: s} }
	// Ranks 0 and 1 attach, seal their first state, resume in epoch 1 and commit step 1. Numbers are call and return.
	begin := []operation{
		{verb: claim, rank: 0, incarnation: 1, call: 1, end: 3}, {verb: claim, rank: 1, incarnation: 2, call: 2, end: 4},
		{verb: commit, rank: 0, generation: gen(1, 0), call: 5}, {verb: commit, rank: 1, generation: gen(1, 0), call: 6},
		{verb: read, rank: 0, incarnation: 1, epoch: 1, generation: gen(1, 0), call: 7, end: 9}, {verb: read, rank: 1, incarnation: 2, epoch: 1, generation: gen(1, 0), call: 8, end: 10},
		{verb: commit, rank: 0, generation: gen(1, 1), call: 11, end: 13}, {verb: commit, rank: 1, generation: gen(1, 1), call: 12, end: 14},
	}
	closes := func(e replica.Epoch, at int64) operation {
		return operation{verb: fenced, epoch: e, call: at, end: at + 1}
	}
	commits := func(g replica.Generation, call, end int64) operation {
		return operation{verb: commit, generation: g, call: call, end: end}
	}
	resumes := func(e replica.Epoch, g replica.Generation, inc replica.Incarnation, call, end int64) operation {
		return operation{verb: read, incarnation: inc, epoch: e, generation: g, call: call, end: end}
	}
	claims := func(inc replica.Incarnation, e replica.Epoch, call, end int64) operation {
		return operation{verb: claim, incarnation: inc, epoch: e, call: call, end: end}
	}
	for name, tc := range map[string]struct {
		wrong, right []operation
		names        string // of the operation that nothing explains
	}{
		"lost commit": {
			wrong: []operation{commits(gen(1, 2), 15, 16), closes(1, 17), resumes(2, gen(1, 1), 1, 19, 20)},
			right: []operation{commits(gen(1, 2), 15, 0), closes(1, 17), resumes(2, gen(1, 1), 1, 19, 20)}, // nobody was told of it
			names: "read epoch 2",
		},
		"two winners of one claim": {
			wrong: []operation{closes(1, 15), claims(3, 1, 17, 19), claims(3, 1, 18, 20)},
			right: []operation{closes(1, 15), claims(4, 1, 17, 19), claims(3, 1, 18, 20)},
			names: "claim incarnation 3",
		},
		"stale read": {
			wrong: []operation{closes(1, 15), resumes(2, gen(1, 1), 1, 17, 18), commits(gen(2, 2), 19, 20), {verb: read, rank: 1, incarnation: 2, epoch: 2, generation: gen(1, 1), call: 21, end: 22}},
			right: []operation{closes(1, 15), resumes(2, gen(1, 1), 1, 17, 18), commits(gen(2, 2), 20, 21), {verb: read, rank: 1, incarnation: 2, epoch: 2, generation: gen(1, 1), call: 19, end: 22}},
			names: "read epoch 2",
		},
		"a read of what nobody captured": {
			wrong: []operation{closes(1, 15), resumes(2, gen(1, 5), 1, 17, 18)},
			right: []operation{commits(gen(1, 5), 15, 0), closes(1, 16), resumes(2, gen(1, 5), 1, 18, 19)},
			names: "read epoch 2 goes on from (1,5)",
		},
		"epochs that fall": {
			wrong: []operation{closes(1, 15), resumes(3, gen(1, 1), 1, 17, 18), {verb: read, rank: 1, incarnation: 2, epoch: 2, generation: gen(1, 1), call: 19, end: 20}},
			right: []operation{closes(1, 15), resumes(3, gen(1, 1), 1, 17, 18), {verb: read, rank: 1, incarnation: 2, epoch: 3, generation: gen(1, 1), call: 19, end: 20}},
			names: "read epoch 2",
		},
		"a commit of a closed epoch": {
			wrong: []operation{closes(1, 15), commits(gen(1, 2), 17, 18)},
			right: []operation{commits(gen(1, 2), 15, 18), closes(1, 16)},
			names: "commit generation (1,2)",
		},
		"a claim of an epoch that is over": {
			wrong: []operation{closes(1, 15), resumes(2, gen(1, 1), 1, 17, 18), claims(3, 1, 19, 20)},
			right: []operation{closes(1, 15), {verb: read, rank: 1, incarnation: 2, epoch: 2, generation: gen(1, 1), call: 17, end: 19}, claims(3, 1, 18, 20)},
			names: "claim incarnation 3, epoch 1",
		},
		"a former owner is let go": {
			wrong: []operation{closes(1, 15), claims(3, 1, 17, 18), resumes(2, gen(1, 1), 1, 19, 20)},
			right: []operation{closes(1, 15), claims(3, 1, 17, 18), resumes(2, gen(1, 1), 3, 19, 20)},
			names: "to incarnation 1",
		},
		"a commit after the end": {
			wrong: []operation{{verb: ended, call: 15, end: 16}, commits(gen(1, 2), 17, 18)},
			right: []operation{commits(gen(1, 2), 15, 18), {verb: ended, call: 16, end: 17}},
			names: "commit generation (1,2)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			history := func(then []operation) (list []*operation) {
				for _, o := range slices.Concat(begin, then) {
					list = append(list, &o)
				}
				return list
			}
			if result, why := judge(history(tc.wrong)); result != porcupine.Illegal || !strings.Contains(why, tc.names) {
				t.Errorf("the wrong one is %v, want Illegal, for %s: %s", result, tc.names, why)
			}
			if result, why := judge(history(tc.right)); result != porcupine.Ok {
				t.Errorf("the right one is %v, want Ok: %s", result, why)
			}
		})
	}
}

// TestSearchesHaveABound: a history that would be searched for ever is said to be unknown.
func TestSearchesHaveABound(t *testing.T) {
	var ops []*operation
	for i := range replica.Incarnation(30) { // all overlap: any subset may have come before the read, which none explains
		ops = append(ops, &operation{verb: claim, incarnation: i + 1, call: 1, end: 10})
	}
	ops = append(ops, &operation{verb: read, incarnation: 31, call: 2, end: 9})
	if result, why := explain(seat(0), ops); result != porcupine.Unknown {
		t.Errorf("%v, want Unknown: %s", result, why)
	}
}
