package host

import "github.com/replicad/replicad/internal/invariant"

// life is how far the process of a rank is, as its daemon knows.
type life uint8

const (
	attached life = iota // it has its arena, and has not come to rest yet
	stopped              // it waits in rp_join: its captures are joined
	training             // it was let go
	finished             // it has said that it has finished, and waits for the others
	dead                 // its process has ended
	departed             // likewise, after it had finished
)

func (l life) String() string {
	return [...]string{"attached", "stopped", "training", "finished", "dead", "departed"}[l]
}

// deed is what moves a rank from one life to another.
type deed uint8

const (
	stops   deed = iota // it says that it has stopped
	goes                // it is let go
	leaves              // it says that it has finished
	dies                // its process has ended
	returns             // it attaches again, to a daemon that was away
	grows               // it gets another arena between two steps
)

func (d deed) String() string {
	return [...]string{"stops", "goes", "leaves", "dies", "returns", "grows"}[d]
}

// lives has every way from one life to another; docs/design.md draws it, and a test compares the two. What is not here does not happen.
var lives = map[life]map[deed]life{
	attached: {stops: stopped, goes: training, leaves: finished, dies: dead, returns: attached, grows: attached}, // after a restart of the daemon it is only that
	stopped:  {stops: stopped, goes: training, leaves: finished, dies: dead, returns: stopped},
	training: {stops: stopped, goes: training, leaves: finished, dies: dead, returns: training, grows: attached},
	finished: {stops: stopped, goes: finished, leaves: finished, dies: departed, returns: finished}, // a fault before all have left brings it back
	dead:     {returns: attached},
	departed: {returns: finished},
}

// does moves the rank on. What the table lacks leaves it as it is.
func (lr *localRank) does(d deed) {
	to, ok := lives[lr.life][d]
	invariant.Holds(ok, "rank %d is %v, and %v", lr.rank, lr.life, d)
	if ok {
		lr.life = to
	}
}

// alive tells whether the rank has a process here.
func (lr *localRank) alive() bool { return lr.life != dead && lr.life != departed }

// stopped tells whether it waits in rp_join.
func (lr *localRank) stopped() bool { return lr.life == stopped }

// left tells whether it has said that it has finished, and nothing brought it back since.
func (lr *localRank) left() bool { return lr.life == finished || lr.life == departed }
