package manners

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Class is what a transfer is for. Lower ones go first.
type Class uint8

const (
	Recovery   Class = iota // a job that stands still waits for it
	Mirroring               // copies of what is sealed, for which commits wait
	Background              // lost copies made again
	classes
)

// floors is what a transfer of each class may move at least: so many bytes a second, and what brings it through within a time, whatever its
// size. A job commits no more often than its parts get through to their mirrors, and the loss of a node may cost the training since. So
// nothing ever stalls for the pace alone either: the slowest push that is not given up for another mirror (mover) moves 4 MiB a second.
var floors = [classes]struct{ rate, within uint64 }{{32 << 20, 10}, {32 << 20, 30}, {8 << 20, 300}}

// floor of a transfer of so many bytes, in bytes a second.
func floor(c Class, bytes uint64) uint64 { return max(floors[c].rate, bytes/floors[c].within) }

// rates is what the transfers of each class may move together, in bytes a second, under a limit. least is the sum of the floors of those
// that are under way. Nothing goes at more than its floor while something runs that goes before it.
func rates(limit float64, least [classes]uint64) (list [classes]float64) {
	before := uint64(0)
	for c := range list {
		all := float64(max(floors[c].rate, least[c]))
		switch {
		case before > 0:
			list[c] = all
		case limit != NoLimit:
			list[c] = max(limit, all)
		}
		before += least[c]
	}
	return list
}

const (
	// credit is how far a class that sent nothing may run ahead of its pace. It makes up for sleeps that last too long.
	credit = 5 * time.Millisecond
	// niceness of threads that yield. At 19 a thread that has one of the runtime's processors may wait for a core for a fifth of a second, and what
	// has to be in time waits with it.
	niceness = 10
)

// Pacer has those wait that send, and that take in what is to be mirrored here. Any goroutine may use it.
type Pacer struct {
	mu       sync.Mutex // guards the rest
	limit    float64
	why      string
	underWay int
	least    [classes]uint64 // the sum of the floors of what is under way
	rates    [classes]float64
	next     [classes]time.Time // when the class may send again
	moved    uint64
}

// Limit sets what may leave in a second, as the governor found it.
func (p *Pacer) Limit(limit float64, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit, p.why = limit, why
	p.rates = rates(limit, p.least)
}

// Moved is how many bytes have left.
func (p *Pacer) Moved() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moved
}

// Holding is what is held back now.
type Holding struct {
	Limit    float64 // bytes a second; NoLimit: nothing is
	Why      string
	UnderWay int // transfers
}

// Holding says what is held back.
func (p *Pacer) Holding() Holding {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Holding{Limit: p.limit, Why: p.why, UnderWay: p.underWay}
}

// Flow is a transfer of a class. It is under way from the first stream's beginning to End.
type Flow struct {
	pacer   *Pacer
	class   Class
	floor   uint64
	running bool // guarded by the pacer's lock
}

// Flow makes one, of so many bytes.
func (p *Pacer) Flow(c Class, bytes uint64) *Flow {
	return &Flow{pacer: p, class: c, floor: floor(c, bytes)}
}

// End may come more than once, and without a stream.
func (f *Flow) End() { f.run(false) }

func (f *Flow) run(runs bool) {
	p := f.pacer
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.running == runs {
		return
	}
	f.running = runs
	if runs {
		p.underWay++
		p.least[f.class] += f.floor
	} else {
		p.underWay--
		p.least[f.class] -= f.floor
	}
	p.rates = rates(p.limit, p.least)
}

// Stream begins a stream and returns what is called before each piece that it sends.
func (f *Flow) Stream() func(bytes int) {
	f.run(true)
	return func(bytes int) {
		if wait := f.pacer.take(f.class, bytes, time.Now()); wait > 0 {
			time.Sleep(wait)
		}
	}
}

// Yield gives the goroutine a thread of lower priority for the rest of its life. Such a thread can't be made an ordinary one again without
// privileges: it ends with its goroutine.
func Yield() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), niceness) // an ordinary thread does as well
}

// take says how long to wait before bytes are sent. Waits below a millisecond are left to add up.
func (p *Pacer) take(c Class, bytes int, now time.Time) (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved += uint64(bytes)
	if p.rates[c] == NoLimit {
		return 0
	}
	if earliest := now.Add(-credit); p.next[c].Before(earliest) {
		p.next[c] = earliest
	}
	if wait = p.next[c].Sub(now); wait < time.Millisecond {
		wait = 0
	}
	p.next[c] = p.next[c].Add(time.Duration(float64(bytes) / p.rates[c] * float64(time.Second)))
	return wait
}
