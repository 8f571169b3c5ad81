package ranklife

import (
	"fmt"

	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// line is an event as the table has it; empty: the table has no such events. The mark "?" is for requests: the rank waits for an answer.
func line(ev session.Event) string {
	switch ev := ev.(type) {
	case session.Hello:
		what := "hello"
		if ev.File != nil {
			what = "reattach"
		}
		return asks(ev.Header, "%s rank %d of %d", what, ev.Rank, ev.World)
	case session.Attach:
		return asks(ev.Header, "attach")
	case session.Sealed:
		return of(ev.Header, "sealed %s %s", kind(ev.Sealed.Kind), generation(ev.Generation))
	case session.Stopped:
		return of(ev.Header, "stopped at %s, %v", generation(ev.Live.Generation()), ev.Live.Phase())
	case session.Loaded:
		return of(ev.Header, "loaded %s", generation(ev.Generation))
	case session.Pause:
		return of(ev.Header, "stands")
	case session.Leave:
		return of(ev.Header, "leaves")
	case session.Fail:
		return of(ev.Header, "fails: %s", ev.Text)
	case session.Unloadable:
		return of(ev.Header, "unloadable: %s", ev.Text)
	case session.Reject:
		return of(ev.Header, "rejects: %s", ev.Text)
	case session.Exited:
		return "exited"
	case session.Gone:
		return "" // a session that is over moves no rank; when it is noticed depends on the machine
	case session.KV, session.Scope:
		return "" // the rendezvous is for programs: it moves no rank either
	}
	return fmt.Sprintf("%T", ev)
}

func of(h wire.RankHeader, format string, args ...any) string {
	return asks(h, format+" in epoch %d", append(args, h.Epoch)...)
}

func asks(h wire.RankHeader, format string, args ...any) string {
	s := fmt.Sprintf(format, args...)
	if h.Request != 0 {
		s += " ?"
	}
	return s
}

func kind(k uint32) string {
	if names := [...]string{"slot", "ring", "frozen"}; int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprint(k)
}

func generation(g replica.Generation) string { return fmt.Sprintf("%d:%d", g.Epoch, g.Step) }
