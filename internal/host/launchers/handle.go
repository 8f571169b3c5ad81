package launchers

import (
	"time"

	"github.com/replicad/replicad/internal/session"
)

// Handle takes what a launcher sends, and that the daemon itself was short of something for a connection.
func (p *Pool) Handle(ev session.Event, now time.Time) {
	switch ev := ev.(type) {
	case session.RunHello:
		p.hello(ev, now)
	case session.RunRunning:
		p.running(ev, now)
	case session.RunExited:
		p.exited(ev, now)
	case session.RunLeaving:
		p.leaving(ev.Peer.ID())
	case session.Short:
		p.shortOfAll(ev.Err, now)
	}
}
