package launchers

import (
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// launcher is a `replicad run` on this node. It runs a process per rank that the daemon names, and reports its end.
type launcher struct {
	peer     session.Peer
	user     int // whose process it is
	request  uint32
	hello    wire.RunHello
	starts   starts
	creating bool
	memory   bool      // it was sent what an arena takes
	heard    time.Time // when it reported last that a process runs or has ended; zero: never
	deaf     bool      // it has not taken up a start, and reported nothing since
	accepted bool
	job      replica.JobID // that it was accepted for: a name may be used again
	idle     time.Time     // since when it was accepted, until it was sent what it waits for
	begun    bool          // it was sent that the job needs no more what it began with
	done     bool
	taught   bool         // it was sent what a program needs
	leaving  bool         // it is to end
	leaveAt  replica.Step // it may once this step is committed
	kept     *kept.Tar    // files that its job is to carry, until that has them; nil: none
}

func newLauncher(ev session.RunHello) *launcher {
	return &launcher{peer: ev.Peer, user: ev.Peer.UID(), request: ev.Header.Request, hello: ev.RunHello, starts: starts{}, kept: ev.Kept}
}

// send queues a message to the launcher.
func (l *launcher) send(typ uint16, e replica.Epoch, body []byte) {
	l.peer.Send(wire.RankHeader{Type: typ, Epoch: e}, body) //nolint:errcheck // a dead peer is Gone
}

// note has a launcher print something. An empty text shows it that its request is looked after.
func (l *launcher) note(e replica.Epoch, text string) {
	l.send(wire.MRunNote, e, wire.Refused{Text: text}.Append(nil))
}

// kill has the launcher kill its process of a rank.
func (l *launcher) kill(e replica.Epoch, r replica.Rank) {
	l.send(wire.MRunStop, e, wire.RunStop{Rank: r, Signal: uint32(syscall.SIGKILL)}.Append(nil))
}

// start has the launcher start a process for a rank.
func (l *launcher) start(job *replica.Job, r replica.Rank, now time.Time) {
	l.starts.asked(r, now)
	start := wire.RunStart{Rank: r, World: job.Layout.World, Group: replica.NoGroup, Early: uint32(l.starts.of(r).tries)}
	if job.Naming == nil {
		start.Group, start.Groups = room.Group(job, r), job.Layout.Groups
	}
	l.send(wire.MRunStart, job.Epoch, start.Append(nil))
}

// began sends a launcher that names what its job begins with, once, that this is read. From the first commit on the job goes by its own
// state.
func (l *launcher) began(job *replica.Job) {
	if l.hello.From != nil && !l.begun && !job.Committed.IsZero() {
		l.begun = true
		l.send(wire.MRunBegun, job.Epoch, nil)
	}
}

// hears notes that the launcher does what it was asked to.
func (l *launcher) hears(now time.Time) { l.heard, l.deaf = now, false }

// withdraw closes the files that no job has taken.
func (l *launcher) withdraw() {
	if l.kept != nil {
		l.kept.Close()
		l.kept = nil
	}
}

func (l *launcher) runs(r replica.Rank) bool { return l.starts.of(r).running }

// maxSeats is how many processes a node could hold: each has a session. A launcher that offers more is not believed.
const maxSeats = session.MaxSessions - 1

// startsAtOnce is how many processes a launcher may be asked for that it has not started yet: it reads a few hundred messages at a time.
const startsAtOnce = 64

func (l *launcher) free() int { return min(int(l.hello.Capacity), maxSeats) - l.starts.running() }

// ready reports whether the launcher may be asked for one more process.
func (l *launcher) ready() bool { return l.free() > 0 && l.starts.unheard() < startsAtOnce }
