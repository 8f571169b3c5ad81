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

// floors is what each transfer of a class may move at least, in bytes a second. So nothing ever stalls for the pace alone, however many share
// it: the slowest push that is not given up for another mirror (mover) moves half of that.
var floors = [classes]float64{32 << 20, 8 << 20, 8 << 20}

// rates is what the transfers of each class may move together, in bytes a second, under a limit, where so many of each are under way.
// Nothing goes at more than its floor while something runs that goes before it.
func rates(limit float64, underWay [classes]int) (list [classes]float64) {
	before := 0
	for c := range list {
		floor := floors[c] * float64(max(1, underWay[c]))
		switch {
		case before > 0:
			list[c] = floor
		case limit != NoLimit:
			list[c] = max(limit, floor)
		}
		before += underWay[c]
	}
	return list
}

const (
	// credit is how far a class that sent nothing may run ahead of its pace. It makes up for sleeps that last too long.
	credit = 5 * time.Millisecond
	// niceness of threads that send while ranks train. Where daemons share two cores with a rank, its median step takes 2.1 times what it does in calm,
	// 1.6 times with all of them at 5, and 1.2 times at 10 (bench donor/crowded). At 19 a thread that has one of the runtime's processors may wait
	// for a core for a fifth of a second, and what has to be in time waits with it.
	niceness = 10
)

// Pacer has those that send wait. Any goroutine may use it.
type Pacer struct {
	mu       sync.Mutex // guards the rest
	limit    float64
	why      string
	trains   bool
	underWay [classes]int
	rates    [classes]float64
	next     [classes]time.Time // when the class may send again
	moved    uint64
}

// Limit sets what may leave in a second, as the governor found it; trains: ranks train here.
func (p *Pacer) Limit(limit float64, why string, trains bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit, p.why, p.trains = limit, why, trains
	p.rates = rates(limit, p.underWay)
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
func (p *Pacer) Holding() (h Holding) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h = Holding{Limit: p.limit, Why: p.why}
	for _, n := range p.underWay {
		h.UnderWay += n
	}
	return h
}

// Flow is a transfer of a class. It is under way from the first stream's beginning to End.
type Flow struct {
	pacer   *Pacer
	class   Class
	running bool // guarded by the pacer's lock
}

// Flow makes one.
func (p *Pacer) Flow(c Class) *Flow { return &Flow{pacer: p, class: c} }

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
		p.underWay[f.class]++
	} else {
		p.underWay[f.class]--
	}
	p.rates = rates(p.limit, p.underWay)
}

// Stream begins a stream and returns what its goroutine calls before each piece that it sends. Where ranks train that yields the goroutine's
// thread for good.
func (f *Flow) Stream() func(bytes int) {
	f.run(true)
	yielded := false
	return func(bytes int) {
		wait, trains := f.pacer.take(f.class, bytes, time.Now())
		if trains && !yielded {
			yielded = true
			Yield()
		}
		if wait > 0 {
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
func (p *Pacer) take(c Class, bytes int, now time.Time) (wait time.Duration, trains bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved += uint64(bytes)
	if p.rates[c] == NoLimit {
		return 0, p.trains
	}
	if earliest := now.Add(-credit); p.next[c].Before(earliest) {
		p.next[c] = earliest
	}
	if wait = p.next[c].Sub(now); wait < time.Millisecond {
		wait = 0
	}
	p.next[c] = p.next[c].Add(time.Duration(float64(bytes) / p.rates[c] * float64(time.Second)))
	return wait, p.trains
}
