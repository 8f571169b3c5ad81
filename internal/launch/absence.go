package launch

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/replicad/replicad/internal/wire"
)

// reasons bounds for how many a daemon is said to be away.
const reasons = 8

// A daemon that stays away is said again after awayAgain, and then each time after twice as long, up to awayMost.
const (
	awayAgain = 30 * time.Second
	awayMost  = time.Hour
)

// absence is what is known of a daemon that is away: a value that is told the time.
type absence struct {
	last  error           // nil: it is there
	told  map[string]bool // what was said of it
	since time.Time
	pause time.Duration // the last between two lines
	next  time.Time     // it is said again
}

// news takes in why the daemon is away, and returns what to say of it: nothing where that was said lately. A daemon that takes the place of one that
// has gone, and refuses or keeps silent, is said as well: it is not one that will come back by itself.
func (a *absence) news(now time.Time, o *Options, err error) string {
	kind, what := "gone", fmt.Sprintf("no daemon on %s (%v): %s", o.Socket, plain(err), o.remedy())
	if refused, ok := errors.AsType[*refusedError](err); ok {
		kind, what = "refuses: "+refused.Text, fmt.Sprintf("socket %s: %v", o.Socket, err)
		if refused.Code == wire.CodeAgain { // it passes, and may have a number that moves
			kind = "refuses for now"
		}
	} else if stranger(err) {
		kind, what = "is another's", fmt.Sprintf("no daemon on %s (%v)", o.Socket, err)
	} else if errors.Is(err, os.ErrPermission) { // there is one, and this user may not ask it: to start one is no remedy
		kind, what = "is closed to this user", fmt.Sprintf("socket %s: %v", o.Socket, err)
	} else if _, ok := errors.AsType[*silence](err); ok {
		kind, what = "is silent", fmt.Sprintf("socket %s: %v", o.Socket, err)
	}
	if a.since.IsZero() {
		a.since, a.pause, a.next = now, awayAgain, now.Add(awayAgain)
	}
	a.last = err
	known := a.told[kind] || kind == "gone" && len(a.told) > 0 || len(a.told) == reasons // the second: a daemon that is started again and again
	switch {
	case !known:
		if a.told == nil {
			a.told = map[string]bool{}
		}
		a.told[kind] = true
		return what
	case now.Before(a.next):
		return ""
	}
	a.pause = min(2*a.pause, awayMost)
	a.next = now.Add(a.pause)
	return fmt.Sprintf("for %v now: %s", now.Sub(a.since).Round(time.Second), what)
}

// plain is an error without the socket that the text around it names.
func plain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		if sys := (*os.SyscallError)(nil); errors.As(op.Err, &sys) {
			return sys.Err
		}
		return op.Err
	}
	return err
}

// remedy says what brings a daemon back.
func (o *Options) remedy() string {
	start := o.Start
	if start == "" {
		start = "replicad daemon"
	}
	return "start it with `" + start + "`, or check --socket"
}
