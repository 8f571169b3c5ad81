// Package launch is `replicad run`: it offers the daemon of its node to run processes of a job's ranks, and runs those that the
// daemon asks for. It decides nothing: a process that ends is reported, and the daemon says whether and where the rank runs again.
//
// While the daemon is away the processes go on; what ended meanwhile is reported after the reconnect, and what still runs is
// named, so that a new daemon starts nothing twice. The launcher's end is its processes' end: each leads a process group
// that is signalled as a whole, and dies with the launcher.
//
// Owner: the goroutine in Run owns every field of launcher; the link's goroutine and one goroutine for each process send it
// what they see. Run returns when all of them have ended.
//
// It imports replica, internal/preload, internal/unixsock and internal/wire and must not import adaptors (session, shm, ...) or internal/node: it is a client.
package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/preload"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Signaled, as the cause of a context, names the signal that is forwarded to the processes; without it they get SIGTERM.
type Signaled struct{ Signal syscall.Signal }

func (s Signaled) Error() string { return s.Signal.String() }

// passed is what the processes get: those that are to end in order know SIGTERM for that.
func (s Signaled) passed() syscall.Signal {
	if s.Signal == syscall.SIGHUP {
		return syscall.SIGTERM
	}
	return s.Signal
}

// ErrNoDaemon: nobody has answered on the socket for as long as Options.Patience.
var ErrNoDaemon = errors.New("no daemon")

// Run runs ranks until the daemon says that the job is done, ctx ends, or there is neither a daemon nor a process any more.
// The code is the job's, or 128 + signal when ctx ended; on an error it is 1. No process of its own runs when it returns.
func Run(ctx context.Context, o Options) (code int, err error) {
	if err := o.Validate(); err != nil {
		return 1, err
	}
	o = o.withDefaults()
	// The parent-death signal of a child fires when the thread that started it ends, so that thread is held.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	linkCtx, closeLink := context.WithCancel(context.WithoutCancel(ctx))
	l := &launcher{
		opt: o, children: map[replica.Rank]*child{}, dismissed: map[*child]bool{}, seats: seats{}, last: map[replica.Rank]outcome{}, ended: map[replica.Rank]wire.RunExited{}, exits: make(chan exited),
		link: &link{socket: o.Socket, daemons: o.Daemons, hello: o.hello(), kept: o.Kept, wait: o.helloWait, events: make(chan linkEvent)},
	}
	l.wg.Go(func() { l.link.run(linkCtx) })
	defer l.wg.Wait()
	defer closeLink()
	if l.preload = l.newPreload(); l.preload != nil {
		defer l.preload.Close()
	}
	return l.loop(ctx)
}

type launcher struct {
	opt  Options
	link *link
	wg   sync.WaitGroup

	preload *preload.Server // what restarts fork from; nil: nothing

	conn      *net.UnixConn                   // nil: the daemon is away
	children  map[replica.Rank]*child         // running ones
	warm      []*child                        // those that wait for a rank
	warmAt    time.Time                       // not before it is another one started
	vain      int                             // how many times in a row such ended by themselves before they were needed
	dismissed map[*child]bool                 // killed because they would not take one
	last      map[replica.Rank]outcome        // how each rank's last process ended
	seats     seats                           // of the processes that run, and of those that ran
	ended     map[replica.Rank]wire.RunExited // reported, and again after each reconnect until the rank is started anew
	exits     chan exited

	away     absence   // of the daemon
	giveUpAt time.Time // zero: a daemon or a process is there

	leaving  *leaving  // a signal that is passed on once the ranks have ended their step; nil: none is
	stopping bool      // no process is started any more; the loop ends with the last one
	done     bool      // the job has ended: the link connects no more
	sayAt    time.Time // when it is said which processes of a finished job still run; zero: it was, or needs not be
	code     int
	err      error
}

// loop is the owner goroutine.
func (l *launcher) loop(ctx context.Context) (int, error) {
	done, again := ctx.Done(), (<-chan error)(nil)
	l.giveUpAt = time.Now().Add(l.opt.Patience)
	for !l.stopping || len(l.children) > 0 || len(l.warm) > 0 || len(l.dismissed) > 0 {
		timer := time.NewTimer(l.untilNext(time.Now()))
		select {
		case e := <-l.link.events:
			l.onLink(e)
		case e := <-l.exits:
			l.onExit(e)
		case e := <-l.preloadEvents():
			if !l.stopping {
				l.preload.Learn(time.Now(), e)
			}
		case <-done:
			done, again = nil, l.opt.Again
			l.onSignal(context.Cause(ctx))
		case cause := <-again:
			again = nil
			l.onSignal(cause)
		case now := <-timer.C:
			l.onTime(now)
		}
		timer.Stop()
	}
	return l.code, l.err
}

// preloadEvents never has one where nothing is preloaded.
func (l *launcher) preloadEvents() <-chan preload.Event {
	if l.preload == nil {
		return nil
	}
	return l.preload.Events()
}

func (l *launcher) onLink(e linkEvent) {
	switch {
	case e.conn != nil:
		if l.away.last != nil {
			l.opt.Logf("the daemon on %s is back", l.opt.Socket)
		}
		l.conn, l.away, l.giveUpAt = e.conn, absence{}, time.Time{}
		for _, c := range l.children {
			l.send(wire.MRunRunning, wire.RunExited{Rank: c.rank, PID: c.pid()})
		}
		for _, x := range l.ended {
			l.send(wire.MRunExited, x)
		}
		l.keepWarm(time.Now())
	case e.err != nil:
		l.onAway(e.err)
	default:
		if err := l.onMessage(e.typ, e.body); err != nil {
			l.opt.Logf("message %d of the daemon: %v", e.typ, err)
		}
	}
}

// onAway: the daemon is not there, or will not have us. Processes go on: no daemon's fault stops training.
func (l *launcher) onAway(err error) {
	if l.done {
		l.opt.Logf("the daemon has gone (%v); the job is done, so nobody needs it", err)
		l.conn = nil
		return
	}
	var refused *refusedError
	if errors.As(err, &refused) && (len(l.children) == 0 && refused.Code != wire.CodeAgain || refused.Code == wire.CodeStopped) {
		l.stop(1, fmt.Errorf("job %q: %w", l.opt.Job, err), syscall.SIGTERM)
		return
	}
	if stranger(err) && len(l.children) == 0 {
		l.stop(1, fmt.Errorf("job %q: %w", l.opt.Job, l.opt.nobody(err)), syscall.SIGTERM)
		return
	}
	if news := l.away.news(time.Now(), &l.opt, err); news != "" {
		l.opt.Logf("%s; %s; connecting again", news, l.meanwhile())
	}
	l.conn = nil
	l.passOn()
	l.startPatience()
}

// meanwhile says what becomes of the processes while the daemon is away.
func (l *launcher) meanwhile() string {
	if len(l.children) == 0 {
		return fmt.Sprintf("no process runs yet, and this launcher gives up after %v", l.opt.Patience)
	}
	return fmt.Sprintf("meanwhile %d process(es) go on, but nothing is committed and no lost rank comes back", len(l.children))
}

// startPatience begins to count when neither a daemon nor a process is there.
func (l *launcher) startPatience() {
	if l.conn == nil && len(l.children) == 0 && l.giveUpAt.IsZero() && !l.stopping {
		l.giveUpAt = time.Now().Add(l.opt.Patience)
	}
}

func (l *launcher) onMessage(typ uint16, body []byte) error {
	switch typ {
	case wire.MRunStart:
		s, err := wire.ParseRunStart(body)
		if err != nil {
			return err
		}
		l.onStart(s)
	case wire.MRunStop:
		s, err := wire.ParseRunStop(body)
		if err != nil {
			return err
		}
		l.onStop(s)
	case wire.MRunNote:
		n, err := wire.ParseRefused(body)
		if err != nil {
			return err
		}
		if n.Text != "" {
			l.opt.Logf("%s", n.Text)
		}
		if !l.giveUpAt.IsZero() { // it looks for what the job is to go on from
			l.giveUpAt = time.Now().Add(l.opt.Patience)
		}
	case wire.MRunBegun:
		if l.opt.Begun != nil {
			l.opt.Begun()
		}
	case wire.MRefused: // the daemon hangs up next
		r, err := wire.ParseRefused(body)
		if err != nil {
			return err
		}
		l.opt.Logf("the daemon refused what this launcher sent: %s", r.Text)
	case wire.MRunLeave:
		l.passOn()
	case wire.MRunDone:
		d, err := wire.ParseRefused(body)
		if err != nil {
			return err
		}
		l.onDone(d)
	default:
		return errors.New("not one for launchers: ignored")
	}
	return nil
}

func (l *launcher) onStart(s wire.RunStart) {
	if l.stopping || l.leaving != nil {
		return
	}
	if c := l.children[s.Rank]; c != nil {
		l.send(wire.MRunRunning, wire.RunExited{Rank: c.rank, PID: c.pid()})
		return
	}
	delete(l.ended, s.Rank)
	if err := l.admit(s); err != nil {
		l.opt.Logf("rank %d: %v", s.Rank, err)
		l.report(wire.RunExited{Rank: s.Rank, Status: statusCannotRun})
		return
	}
	l.sayEarly(s)
	at := l.seats.take(l.opt, s.Rank, l.taken())
	c, err := l.takeWarm(s, at), error(nil)
	waited := c != nil
	if !waited {
		// A process that ended before it attached may have done so because it was forked.
		if c, err = l.start(s.Early == 0, l.opt.environ(s, at)); err == nil {
			c.rank, c.seat = s.Rank, at
		}
	}
	if err != nil {
		l.opt.Logf("rank %d: start %q: %v", s.Rank, l.opt.Command[0], err)
		l.report(wire.RunExited{Rank: s.Rank, Status: startStatus(err)})
		return
	}
	l.children[s.Rank] = c
	l.giveUpAt = time.Time{}
	if !waited {
		l.wg.Go(func() { l.exits <- exited{c, c.wait()} })
	}
	l.opt.Logf("rank %d: process %d runs%s", s.Rank, c.pid(), c.origin())
	l.send(wire.MRunRunning, wire.RunExited{Rank: c.rank, PID: c.pid()})
	if waited {
		l.warmAt = time.Now().Add(l.opt.warmAgain) // the cores are the recovery's first
	}
}

// earlySaid is how many processes of a rank end in a row before they have a session until it is said: the first may have met an accident.
const earlySaid = 2

// sayEarly tells a program that fails while it starts from a rank that was lost: its job recovers nothing, and nobody waits for that.
func (l *launcher) sayEarly(s wire.RunStart) {
	if last, known := l.last[s.Rank]; known && s.Early >= earlySaid {
		l.opt.Logf("rank %d ended %d times in a row before it had a session, the last time with status %d after %.1f s: "+
			"the program fails as it starts, and its own output above says why; it is started again", s.Rank, s.Early, last.status, last.ran.Seconds())
	}
}

// taken are the seats of the processes that run.
func (l *launcher) taken() (local []int) {
	for _, c := range l.children {
		local = append(local, c.seat.local)
	}
	return local
}

// admit tells why a start is refused: the daemon and this launcher disagree, so the daemon must hear of it.
func (l *launcher) admit(s wire.RunStart) error {
	switch {
	case int(s.World) != l.opt.World || uint32(s.Rank) >= s.World:
		return fmt.Errorf("the daemon's job has %d ranks, this launcher was given --world %d: use one number everywhere", s.World, l.opt.World)
	case len(l.children) >= l.opt.Capacity:
		return fmt.Errorf("%d processes run already, as many as --capacity allows", len(l.children))
	}
	return nil
}

func (l *launcher) onStop(s wire.RunStop) {
	c := l.children[s.Rank]
	if c == nil {
		return
	}
	sig := syscall.Signal(s.Signal)
	if sig <= 0 || sig > 64 {
		sig = syscall.SIGTERM
	}
	l.opt.Logf("rank %d: the daemon stops process %d (%v)", s.Rank, c.pid(), sig)
	c.signal(sig, time.Now().Add(l.opt.Grace))
}

// onDone: ranks of a finished job end by themselves, when they have done what their program does after it (a last save, say); those
// of a stopped one are told to.
func (l *launcher) onDone(d wire.Refused) {
	code := int(d.Code)
	if code == wire.DoneStopped {
		l.opt.Logf("job %q is stopped: %s", l.opt.Job, d.Text)
		l.done = true
		l.stop(0, nil, syscall.SIGTERM)
		return
	}
	if code < 0 || code > 255 {
		code = 1
	}
	if code == wire.ExitRefused {
		l.opt.Logf("this launcher ends (%d), and its job does not: %s", code, d.Text)
	} else {
		l.opt.Logf("job %q is done (%d): %s", l.opt.Job, code, d.Text)
	}
	l.done = true
	if code != 0 {
		l.stop(code, nil, syscall.SIGTERM)
		return
	}
	l.stop(0, nil, 0)
	l.passOn()
	l.sayAt = time.Now().Add(l.opt.Grace)
}

func (l *launcher) onExit(e exited) {
	if l.warmExited(e.child, e.status, time.Now()) {
		return
	}
	delete(l.children, e.child.rank)
	l.last[e.child.rank] = outcome{e.status, time.Since(e.child.began)}
	l.opt.Logf("rank %d: process %d ended with status %d", e.child.rank, e.child.pid(), e.status)
	l.report(wire.RunExited{Rank: e.child.rank, Status: e.status, PID: e.child.pid()})
	if l.stopping && l.code == 0 && l.err == nil && e.status != 0 && !e.child.signaled {
		l.code = 1
		l.opt.Logf("rank %d failed when the job had finished: what a program does after leaving it (a last save, say) is not done again; do it before", e.child.rank)
	}
	if len(l.children) == 0 {
		l.passOn()
	}
	l.startPatience()
}

// leaving is a signal that waits for the ranks to end the step that they are in.
type leaving struct {
	signal Signaled
	until  time.Time
}

// onSignal passes a signal on; of SIGTERM, and of SIGHUP, the ranks end the step first that they are in, so that it is not lost.
func (l *launcher) onSignal(cause error) {
	s := Signaled{syscall.SIGTERM}
	errors.As(cause, &s)
	if s.Signal != syscall.SIGTERM && s.Signal != syscall.SIGHUP || l.stopping || l.conn == nil || len(l.children) == 0 {
		l.signalled(s)
		return
	}
	if l.leaving != nil { // after a hangup: the ranks have no more time than they had
		l.leaving.signal = s
	} else {
		l.leaving = &leaving{s, time.Now().Add(l.opt.Grace)}
		l.send(wire.MRunLeaving, wire.RunExited{})
	}
	if s.Signal == syscall.SIGHUP {
		l.opt.Logf("%v: the terminal has gone (run --nohup goes on without it): %d process(es) get %v once they have ended the step that they are in, at the latest in %v", s.Signal, len(l.children), s.passed(), l.opt.Grace)
	} else {
		l.opt.Logf("%v: %d process(es) get it too, once they have ended the step that they are in, at the latest in %v; another %v ends all at once", s.Signal, len(l.children), time.Until(l.leaving.until).Round(time.Second), s.Signal)
	}
}

// passOn passes on a signal that waits.
func (l *launcher) passOn() {
	if w := l.leaving; w != nil {
		l.leaving = nil
		l.signalled(w.signal)
	}
}

// signalled tells the processes to end.
func (l *launcher) signalled(s Signaled) {
	l.opt.Logf("%v: %d process(es) get %v, and SIGKILL after %v", s.Signal, len(l.children), s.passed(), l.opt.Grace)
	switch {
	case !l.stopping && l.conn != nil:
		l.opt.Logf("job %q is kept in memory: the same command goes on with it, and `replicad job end %s` ends it", l.opt.Job, l.opt.Job)
	case l.stopping && l.code == 0 && len(l.children) > 0:
		l.code = 128 + int(s.Signal) // what they still do for a finished job is cut short
	}
	l.stop(128+int(s.Signal), nil, s.passed())
}

// stop starts nothing any more and ends the loop with the last process. The first verdict stands. With sig 0 processes of ranks end
// by themselves.
func (l *launcher) stop(code int, err error, sig syscall.Signal) {
	if !l.stopping {
		l.stopping, l.code, l.err, l.giveUpAt = true, code, err, time.Time{}
	}
	if sig != 0 {
		l.leaving = nil // they get it now
	}
	now := time.Now()
	for _, c := range l.warm { // they hold nothing that could be lost
		c.signal(syscall.SIGKILL, now)
	}
	for _, c := range l.children {
		if sig != 0 {
			c.signal(sig, now.Add(l.opt.Grace))
		}
	}
}

// byThemselves lists the ranks whose processes run and have not been told to end.
func (l *launcher) byThemselves() (ranks []replica.Rank) {
	for r, c := range l.children {
		if !c.signaled {
			ranks = append(ranks, r)
		}
	}
	slices.Sort(ranks)
	return ranks
}

func (l *launcher) onTime(now time.Time) {
	if !l.sayAt.IsZero() && !now.Before(l.sayAt) {
		l.sayAt = time.Time{} // once
		if ranks := l.byThemselves(); len(ranks) > 0 {
			l.opt.Logf("job %q is finished; waiting for the processes of ranks %v to end", l.opt.Job, ranks)
		}
	}
	if w := l.leaving; w != nil && !now.Before(w.until) {
		l.passOn()
	}
	if !l.warmAt.IsZero() {
		l.keepWarm(now)
	}
	if l.preload != nil && !l.stopping {
		l.preload.Step(now)
	}
	for _, c := range l.children {
		if !c.killAt.IsZero() && !now.Before(c.killAt) {
			l.opt.Logf("rank %d: process %d has not ended: %v", c.rank, c.pid(), syscall.SIGKILL)
			c.signal(syscall.SIGKILL, now)
		}
	}
	if !l.giveUpAt.IsZero() && !now.Before(l.giveUpAt) {
		err := l.away.last
		if err == nil {
			err = errors.New("it does not answer")
		}
		l.stop(1, fmt.Errorf("given up after %v: %w", l.opt.Patience, l.opt.nobody(err)), 0)
	}
}

// untilNext is the time to the next thing that onTime has to do.
func (l *launcher) untilNext(now time.Time) time.Duration {
	next := now.Add(time.Hour)
	if !l.giveUpAt.IsZero() {
		next = l.giveUpAt
	}
	if !l.warmAt.IsZero() && l.warmAt.Before(next) && !l.stopping {
		next = l.warmAt
	}
	if l.leaving != nil && l.leaving.until.Before(next) {
		next = l.leaving.until
	}
	if !l.sayAt.IsZero() && l.sayAt.Before(next) {
		next = l.sayAt
	}
	if l.preload != nil && !l.stopping {
		if at := l.preload.Next(); !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	for _, c := range l.children {
		if !c.killAt.IsZero() && c.killAt.Before(next) {
			next = c.killAt
		}
	}
	return max(next.Sub(now), 0)
}

// report tells the daemon of an end, now and after each reconnect until the rank is started anew.
func (l *launcher) report(x wire.RunExited) {
	l.ended[x.Rank] = x
	l.send(wire.MRunExited, x)
}

// send writes to the daemon if it is there. After a failed write nothing more goes to this connection. Where the daemon has hung up, the link reads
// first what it said before that; else the connection is closed. Either way the link then connects anew, and all is said again.
func (l *launcher) send(typ uint16, body wire.RunExited) {
	if l.conn == nil {
		return
	}
	if err := send(l.conn, typ, body.Append(nil)); err != nil {
		l.opt.Logf("daemon on %s: %v", l.opt.Socket, err)
		l.conn = nil
	}
}
