package holding

import (
	"context"
	"os"
	"sync"

	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/unixsock"
)

// Custodian carries descriptors to the keeper and the list of arenas to the disk, beside those who ask: either may take seconds. One
// goroutine (Run) does both, so that they happen in the order in which they were asked for: what After is told of lasts.
//
// What waits is bounded by the arenas and the ledgers: each is brought once and taken away once, of the lists only the newest is written, and
// of those who wait there is one to an arena or ledger. A ledger that is written anew is brought again, which its growth bounds.
//
// Where the keeper ends beside it, the custodian brings another one all that is parked (returns.go).
type Custodian struct {
	keeper Vault
	back   Return
	log    *journal.Journal
	list   string        // the list's path
	wake   chan struct{} // capacity 1

	mu     sync.Mutex // guards what follows
	todo   errands
	parked map[string]*os.File // what the keeper is to hold; each file is its owner's, who has it dropped before it is closed
	owed   map[string]bool     // what was dropped while no keeper heard it
	lost   bool                // no keeper holds what is parked
}

// PromiseKey is where a keeper holds what its node's voter has promised, and PromiseFile how /proc calls that: it stays when jobs have ended.
const (
	PromiseKey  = "voter's promises"
	PromiseFile = "replicad-promises"
)

// Vault is the part of shm.Keeper that the custodian needs; calls may take seconds.
type Vault interface {
	Put(key string, f *os.File) error
	Drop(key string) error
	// Done is closed when the keeper has gone, or has hung up.
	Done() <-chan struct{}
}

type errands struct {
	moves []move
	list  []Entry // the newest; nil: it is written
	then  []func()
}

// move brings a descriptor to the keeper, or has it taken away there.
type move struct {
	key  string
	file *os.File // a duplicate of its own; nil: taken away
}

// NewCustodian makes one that writes the list of arenas to the file at list. It works once Run does. back finds another keeper where k ends; nil:
// there is none.
func NewCustodian(k Vault, back Return, log *journal.Journal, list string) *Custodian {
	return &Custodian{keeper: k, back: back, log: log, list: list, wake: make(chan struct{}, 1), parked: map[string]*os.File{}, owed: map[string]bool{}}
}

func (c *Custodian) ask(change func(*errands)) {
	c.mu.Lock()
	change(&c.todo)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Holds says that the keeper has the descriptor already: an earlier daemon parked it.
func (c *Custodian) Holds(key string, file *os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parked[key] = file
}

// Put has the descriptor of an arena or a ledger parked, in place of what is parked under that key. Where the keeper is gone an arena lives on in
// the daemon and in its rank until there is another keeper, which is no reason to turn a rank away.
func (c *Custodian) Put(key string, file *os.File) {
	f, err := unixsock.Duplicate(file)
	if err != nil {
		c.log.Failed("keeper", "park "+key, err.Error())
		return
	}
	c.ask(func(e *errands) {
		c.parked[key] = file
		e.moves = append(e.moves, move{key, f})
	})
}

// Drop has the keeper drop what is parked under the key.
func (c *Custodian) Drop(key string) {
	c.ask(func(e *errands) {
		delete(c.parked, key)
		e.moves = append(e.moves, move{key: key})
	})
}

// Write has the list of arenas written, unless a newer one has come by then. An empty list is not nil.
func (c *Custodian) Write(list []Entry) {
	c.ask(func(e *errands) { e.list = list })
}

// After calls fn, on the custodian's goroutine, once everything asked for so far was done, or failed and was logged.
func (c *Custodian) After(fn func()) {
	c.ask(func(e *errands) { e.then = append(e.then, fn) })
}

// Lost tells whether no keeper holds what is parked: the last one has ended, and the next one has not taken all of it yet.
func (c *Custodian) Lost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// Run works until ctx ends, and does before it returns what was asked for until then.
func (c *Custodian) Run(ctx context.Context) {
	r := newReturning(c)
	defer r.end()
	for over := false; !over; {
		select {
		case <-c.wake:
		case <-r.gone:
			r.lost(ctx)
			continue
		case a := <-r.came:
			r.arrived(a)
			continue
		case <-r.again:
			r.attempt(ctx)
			continue
		case <-ctx.Done():
			over = true
		}
		c.work()
	}
}

func (c *Custodian) work() {
	c.mu.Lock()
	todo, lost := c.todo, c.lost
	c.todo = errands{}
	c.mu.Unlock()
	for _, m := range todo.moves {
		c.move(m, lost)
	}
	if todo.list != nil {
		if err := writeList(c.list, todo.list); err != nil {
			c.log.Failed("state", "save the list of arenas", err.Error())
		}
	}
	for _, fn := range todo.then {
		fn()
	}
}

// move has the keeper hold or drop a descriptor. What it does not hear while it is lost, the next one is told.
func (c *Custodian) move(m move, lost bool) {
	if m.file != nil {
		defer m.file.Close()
		if lost {
			return
		}
		if err := c.keeper.Put(m.key, m.file); err != nil {
			c.log.Failed("keeper", "park "+m.key, err.Error())
		}
		return
	}
	var err error
	if !lost {
		err = c.keeper.Drop(m.key)
	}
	if err != nil {
		c.log.Failed("keeper", m.key, err.Error())
	}
	if lost || err != nil {
		c.mu.Lock()
		c.owed[m.key] = true
		c.mu.Unlock()
	}
}
