package chaos

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

const (
	fallPause = 1300 * time.Millisecond // for so long a leader's daemon is stopped: longer than an election
	fallAfter = 5 * time.Second         // and at least so long leads the one after it
)

// beginFalling kills the daemon of a mirror and, while it is away, stops whoever leads, again and again. What leaders do about the mirror has a bound that
// is longer than each of them leads: it holds only if its time goes on from one to the next.
func (r *runner) beginFalling(ctx context.Context, f Fault) (act, error) {
	n := r.cluster.Node(r.role(f))
	if n == nil {
		return act{text: f.Kind + ": none, every holder runs a rank"}, nil
	}
	text := fmt.Sprintf("%s: daemon of %s killed, away %.1f s, and leaders fall", f.Kind, n.Name, f.For.Seconds())
	r.rec.note("FAULT     " + text)
	n.Daemon.Kill()
	var err error
	for end := time.Now().Add(f.For); err == nil && time.Now().Before(end); {
		if err = r.pause(ctx, min(fallAfter+4*f.Lead, time.Until(end))); err != nil || !time.Now().Before(end) {
			break
		}
		leader := r.cluster.Node(r.leader())
		if leader == n {
			continue // nobody knows yet who leads
		}
		text += ", " + leader.Name
		r.rec.note("FAULT     " + leader.Name + " led, and is stopped")
		leader.Daemon.Signal(syscall.SIGSTOP)
		err = r.pause(ctx, fallPause)
		leader.Daemon.Signal(syscall.SIGCONT)
	}
	return act{text, func() error { return r.restart(n) }}, err
}
