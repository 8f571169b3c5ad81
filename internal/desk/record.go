package desk

import (
	"fmt"
	"os"
	"strings"

	"github.com/replicad/replicad/internal/control"
)

type (
	// parked says that the keeper has a ledger's file, or that the failure is logged.
	parked struct {
		of   scope
		file *file
	}
	// rewritten is the end of writing what lives in a ledger into a fresh file.
	rewritten struct {
		of    scope
		old   *file
		upTo  int64 // bytes of old whose records fresh has, or replaces
		fresh *file
		err   error
	}
)

func (parked) event()    {}
func (rewritten) event() {}

// Handle takes the end of something that the owner did for the desk.
func (d *Desk) Handle(ev Event) {
	switch ev := ev.(type) {
	case parked:
		d.parked(ev)
	case rewritten:
		d.rewritten(ev)
	}
}

// record writes a settled contribution to its ledger's file. It tells whether the process may hear the answer now: false until the
// keeper has the file, because until then a process could go on whose contribution dies with this daemon. Without memory for the file the
// answer is given all the same: a contribution that only this daemon has is better than a job that stands still.
func (d *Desk) record(r *request) bool {
	s := r.scope()
	l := d.ledgers[s]
	if l.file == nil {
		f, err := newFile(s)
		if err != nil {
			d.log.Retried("rendezvous", s.parkKey(), err.Error())
			return true
		}
		l.file = f
		d.park(s, f)
	}
	f := l.file
	if err := f.append(s, r.entry()); err != nil {
		d.log.Retried("rendezvous", s.parkKey(), err.Error())
		return true
	}
	if f.bloated() {
		d.rewrite(s, l)
	}
	return f.parked
}

// hold has an answer wait until the keeper has the file in which its contribution is. The request stays pending: a process that asks again
// meanwhile is given the same answer. Each process waits for one answer, so few are held.
func (d *Desk) hold(r *request, reply control.KVReply) {
	f := d.ledgers[r.scope()].file
	f.held = append(f.held, reply)
}

func (d *Desk) park(s scope, f *file) { d.owner.Park(s.parkKey(), f.File, parked{s, f}) }

func (d *Desk) parked(ev parked) {
	if l := d.ledgers[ev.of]; l == nil || l.file != ev.file {
		return // its epoch closed, or it was written anew
	}
	held := ev.file.held
	ev.file.parked, ev.file.held = true, nil
	for _, reply := range held {
		if r := d.pending.all[reply.ID]; r != nil {
			d.end(r, reply)
		}
	}
}

// rewrite writes what lives in a ledger anew, beside the owner: a key that is set a million times must not fill the memory.
func (d *Desk) rewrite(s scope, l *ledger) {
	old := l.file
	old.rewriting = true
	all := l.settled()
	live := make([]control.KVEntry, len(all)) // the work must not read what the desk changes
	for i, r := range all {
		live[i] = r.entry()
	}
	ev := rewritten{of: s, old: old, upTo: old.size}
	d.owner.Beside(func() Event {
		ev.fresh, ev.err = fileOf(s, live)
		return ev
	})
}

// rewritten puts the fresh file in the old one's place. The keeper replaces one by the other under one key, so it has all records
// at any time: those that come from now on are answered once it has the fresh one.
func (d *Desk) rewritten(ev rewritten) {
	l := d.ledgers[ev.of]
	if l == nil || l.file != ev.old {
		if ev.fresh != nil {
			ev.fresh.Close()
		}
		return
	}
	err := ev.err
	if err == nil {
		if err = ev.fresh.appendFrom(ev.old, ev.upTo); err != nil {
			ev.fresh.Close()
		}
	}
	if err != nil {
		d.log.Failed("rendezvous", ev.of.parkKey(), err.Error())
		ev.old.rewriting, ev.old.base = false, ev.old.size // until it is twice as large again
		return
	}
	ev.fresh.held = ev.old.held
	l.file = ev.fresh
	ev.old.Close()
	d.park(ev.of, ev.fresh)
}

// dropLedgers drops the ledgers that gone names, and has the keeper drop their files.
func (d *Desk) dropLedgers(gone func(scope) bool) {
	for _, s := range d.ledgers.scopes() {
		if !gone(s) {
			continue
		}
		f := d.ledgers[s].file
		delete(d.ledgers, s)
		if f != nil {
			d.owner.Unpark(s.parkKey())
			f.Close()
		}
	}
}

// Records tells whether the keeper holds a desk's records under that key.
func Records(key string) bool { return strings.HasPrefix(key, filePrefix) }

// Adopt takes back what an earlier daemon recorded, goes on writing to its file, and owns f from now on. False: there is nothing in it, or it
// can't be written on; the log says why, and the keeper should drop it.
func (d *Desk) Adopt(key string, f *os.File) bool {
	back := &file{File: f, parked: true}
	var of scope
	err := back.replay(func(s scope, e control.KVEntry) error {
		if s.parkKey() != key {
			return fmt.Errorf("a record of %s", s.parkKey())
		}
		of = s
		d.ledgers.restore(s, e)
		return nil
	})
	if err != nil {
		d.log.Failed("adopt", key, fmt.Sprintf("the rendezvous' records end after %d bytes: %v", back.size, err))
	}
	if l := d.ledgers[of]; l != nil {
		if err = back.Truncate(back.size); err == nil {
			l.file = back
			return true
		}
		d.log.Failed("adopt", key, err.Error())
	}
	f.Close()
	return false
}

// Close gives back the memory of the records, once nobody asks the desk any more: for a process that goes on. The keeper still has them.
func (d *Desk) Close() {
	for _, l := range d.ledgers {
		if l.file != nil {
			l.file.Close()
		}
	}
}
