package host

import (
	"context"
	"encoding/json"
	"os"
	"sync"

	"github.com/replicad/replicad/internal/atomicfile"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/unixsock"
)

// custodian carries descriptors to the keeper and the list of arenas to the disk, beside the host: either may take seconds. One
// goroutine (run) does both, so that they happen in the order in which the host asked: what after is told of lasts.
//
// What waits is bounded by the arenas and the ledgers: each is brought once and taken away once, of the lists only the newest is written, and
// of those who wait there is one to an arena or ledger. A ledger that is written anew is brought again, which its growth bounds.
type custodian struct {
	keeper vault
	log    *journal.Journal
	save   func([]arenaEntry) error
	wake   chan struct{} // capacity 1

	mu   sync.Mutex // guards what follows
	todo errands
}

// vault is the part of shm.Keeper that the custodian needs; calls may take seconds.
type vault interface {
	Put(key string, f *os.File) error
	Drop(key string) error
}

type errands struct {
	moves []move
	list  []arenaEntry // the newest; nil: it is written
	then  []func()
}

// move brings a descriptor to the keeper, or has it taken away there.
type move struct {
	key  string
	file *os.File // a duplicate of its own; nil: taken away
}

func newCustodian(k vault, log *journal.Journal, save func([]arenaEntry) error) *custodian {
	return &custodian{keeper: k, log: log, save: save, wake: make(chan struct{}, 1)}
}

func (c *custodian) ask(change func(*errands)) {
	c.mu.Lock()
	change(&c.todo)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// put has the descriptor of an arena or a ledger parked, in place of what is parked under that key. Where the keeper is gone an arena lives on in
// the daemon and in its rank: less survives the daemon's death then, which is no reason to turn a rank away.
func (c *custodian) put(key string, file *os.File) {
	f, err := unixsock.Duplicate(file)
	if err != nil {
		c.log.Failed("keeper", "park "+key, err.Error())
		return
	}
	c.ask(func(e *errands) { e.moves = append(e.moves, move{key, f}) })
}

func (c *custodian) drop(key string) {
	c.ask(func(e *errands) { e.moves = append(e.moves, move{key: key}) })
}

func (c *custodian) write(list []arenaEntry) {
	c.ask(func(e *errands) { e.list = list })
}

// after calls fn, on the custodian's goroutine, once everything asked for so far was done, or failed and was logged.
func (c *custodian) after(fn func()) {
	c.ask(func(e *errands) { e.then = append(e.then, fn) })
}

// run works until ctx ends, and does before it returns what was asked for until then.
func (c *custodian) run(ctx context.Context) {
	for over := false; !over; {
		select {
		case <-c.wake:
		case <-ctx.Done():
			over = true
		}
		c.work()
	}
}

func (c *custodian) work() {
	c.mu.Lock()
	todo := c.todo
	c.todo = errands{}
	c.mu.Unlock()
	for _, m := range todo.moves {
		if m.file == nil {
			if err := c.keeper.Drop(m.key); err != nil {
				c.log.Failed("keeper", m.key, err.Error())
			}
			continue
		}
		if err := c.keeper.Put(m.key, m.file); err != nil {
			c.log.Failed("keeper", "park "+m.key, err.Error())
		}
		m.file.Close()
	}
	if todo.list != nil {
		if err := c.save(todo.list); err != nil {
			c.log.Failed("state", "save the list of arenas", err.Error())
		}
	}
	for _, fn := range todo.then {
		fn()
	}
}

// saveArenas has the list of arenas written. What has not found its place yet is on it as before, and what is about to be handed
// out is on it already.
func (h *Host) saveArenas() { h.custody.write(h.arenaList()) }

// writeArenas writes the list, fsynced and renamed.
func (h *Host) writeArenas(entries []arenaEntry) error {
	b, err := json.MarshalIndent(arenaList{Magic: arenaListMagic, Version: arenaListVersion, Arenas: entries}, "", " ")
	if err != nil {
		return err
	}
	return atomicfile.Write(h.arenaListPath(), b)
}

// forget gives up an arena: keeper, list, memory.
func (h *Host) forget(ref *arenaRef) {
	if ref == nil {
		return
	}
	h.custody.drop(ref.key)
	ref.drop()
	h.saveArenas()
}

// closed is the end of giving back an arena's memory, which takes time: the last one to let go of gigabytes frees them.
type arenaClosed struct{}

// unmap gives back an arena's memory, beside the host.
func (h *Host) unmap(a *shm.Arena) {
	h.work.Go(func() {
		a.Close() //nolint:errcheck // unmapping; nothing is lost
		h.Post(arenaClosed{})
	})
}
