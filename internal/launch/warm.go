package launch

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/wire"
)

// A warm process was started before anybody needs it: it has done its imports and waits, on a pipe, to be told which rank it
// is (replicad.wait_rank in Python). It then is the rank's process as any other. Importing takes seconds where recovery takes
// a tenth of one.

// Environment of a process that waits: the descriptor that its place is written to, as one line of a JSON object of further
// environment; what that descriptor is, since a program in between may have closed it and the number may be another file's; and
// the launcher, so that the first Python below it waits, and processes which that one starts don't.
const (
	waitFD     = "REPLICAD_WAIT_FD"
	waitPipe   = "REPLICAD_WAIT_PIPE"
	waitParent = "REPLICAD_WAIT_PARENT"
)

// warmVain is how many times in a row processes may end by themselves before one is needed: then no more of them are started.
const warmVain = 5

// startWarm starts a process that waits. As start, it must run on the launcher's own thread.
func (l *launcher) startWarm() (*child, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	pipe, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", r.Fd()))
	if err != nil {
		w.Close()
		return nil, err
	}
	c, err := l.start(true, append(l.opt.inherited(), waitFD+"=3", waitPipe+"="+pipe, waitParent+"="+strconv.Itoa(os.Getpid())), r)
	if err != nil {
		w.Close()
		return nil, err
	}
	c.place = w
	return c, nil
}

// become tells a warm process which rank it is.
func (c *child) become(o Options, s wire.RunStart, at seat) error {
	place := map[string]string{}
	for _, e := range o.placed(s, at) {
		name, value, _ := strings.Cut(e, "=")
		place[name] = value
	}
	line, err := json.Marshal(place)
	if err != nil {
		return err
	}
	w := c.place
	c.place, c.rank, c.seat, c.began = nil, s.Rank, at, time.Now()
	w.SetWriteDeadline(time.Now().Add(time.Second)) //nolint:errcheck // a line fits the pipe's buffer
	_, err = w.Write(append(line, '\n'))
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("process %d, which waited for a rank, does not take it: %w", c.pid(), err)
	}
	return nil
}

// takeWarm makes a process that waits the rank's; nil if none can be, and for a rank whose last process ended before it attached:
// it may have been one that waited, and that it did may be why (a script in the command that Python is not executed by).
func (l *launcher) takeWarm(s wire.RunStart, at seat) *child {
	for s.Early == 0 && len(l.warm) > 0 {
		c := l.warm[0]
		l.warm = l.warm[1:]
		err := c.become(l.opt, s, at)
		if err == nil {
			l.vain = 0
			return c
		}
		l.opt.Logf("rank %d: %v", s.Rank, err)
		l.dismissed[c] = true
		c.signal(syscall.SIGKILL, time.Time{})
		l.inVain(time.Now())
	}
	return nil
}

// keepWarm starts processes until as many wait as are wanted.
func (l *launcher) keepWarm(now time.Time) {
	if l.stopping || l.vain >= warmVain || now.Before(l.warmAt) {
		return
	}
	for len(l.warm) < l.opt.Warm {
		c, err := l.startWarm()
		if err != nil {
			l.opt.Logf("a process to wait for a rank: %v", err)
			l.inVain(now)
			return
		}
		l.warm = append(l.warm, c)
		l.wg.Go(func() { l.exits <- exited{c, c.wait()} })
		l.opt.Logf("process %d waits for a rank%s", c.pid(), c.origin())
	}
	l.warmAt = time.Time{}
}

// inVain counts processes that did not wait until a rank needed them: another one is started later, or none where it is always so.
func (l *launcher) inVain(now time.Time) {
	if !l.warmAt.IsZero() {
		return // as others did, or were taken, a moment ago
	}
	if l.vain++; l.vain < warmVain {
		l.warmAt = now.Add(l.opt.warmAgain)
		return
	}
	l.opt.Logf("processes that were to wait for a rank ended by themselves %d times in a row: --warm starts no more of them, and ranks that are lost start as without it. "+
		"Their output says why; where the command is a script, or a program that starts Python (`conda run`), let it `exec python ...`, so that Python itself waits", l.vain)
}

// warmExited takes note of the end of a process that never was a rank's; false if it was.
func (l *launcher) warmExited(c *child, status int32, now time.Time) bool {
	if l.dismissed[c] {
		delete(l.dismissed, c)
		return true
	}
	for i, w := range l.warm {
		if w == c {
			l.warm = append(l.warm[:i:i], l.warm[i+1:]...)
			c.place.Close()
			if !l.stopping {
				l.opt.Logf("process %d, which waited for a rank, ended with status %d", c.pid(), status)
				l.inVain(now)
			}
			return true
		}
	}
	return false
}
