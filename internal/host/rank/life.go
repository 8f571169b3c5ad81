package rank

import "github.com/replicad/replicad/internal/invariant"

// Life is how far the process of a rank is, as its daemon knows.
type Life uint8

const (
	Attached Life = iota // it has its arena, and has not come to rest yet
	Stopped              // it waits in rp_join: its captures are joined
	Training             // it was let go
	Finished             // it has announced that it has finished, and waits for the others
	Dead                 // its process has ended
	Departed             // likewise, after it had finished
)

func (l Life) String() string {
	return [...]string{"attached", "stopped", "training", "finished", "dead", "departed"}[l]
}

// Deed is what moves a rank from one life to another.
type Deed uint8

const (
	Stops   Deed = iota // it reports that it has stopped
	Goes                // it is let go
	Leaves              // it reports that it has finished
	Dies                // its process has ended
	Returns             // it attaches again, to a daemon that was away
	Grows               // it gets another arena between two steps
)

func (d Deed) String() string {
	return [...]string{"stops", "goes", "leaves", "dies", "returns", "grows"}[d]
}

// lives has every way from one life to another; docs/design.md draws it, and a test compares the two. What is not here does not happen.
var lives = map[Life]map[Deed]Life{
	// After a restart of the daemon it is only attached.
	Attached: {Stops: Stopped, Goes: Training, Leaves: Finished, Dies: Dead, Returns: Attached, Grows: Attached},
	Stopped:  {Stops: Stopped, Goes: Training, Leaves: Finished, Dies: Dead, Returns: Stopped},
	Training: {Stops: Stopped, Goes: Training, Leaves: Finished, Dies: Dead, Returns: Training, Grows: Attached},
	Finished: {Stops: Stopped, Goes: Finished, Leaves: Finished, Dies: Departed, Returns: Finished}, // a fault before all have left brings it back
	Dead:     {Returns: Attached},
	Departed: {Returns: Finished},
}

// Does moves the rank on. What the table lacks leaves it as it is.
func (lr *Rank) Does(d Deed) {
	to, ok := lives[lr.Life][d]
	invariant.Holds(ok, "rank %d is %v, and %v", lr.Rank, lr.Life, d)
	if ok {
		lr.Life = to
	}
}

// Alive tells whether the rank has a process here.
func (lr *Rank) Alive() bool { return lr.Life != Dead && lr.Life != Departed }

// Stopped tells whether it waits in rp_join.
func (lr *Rank) Stopped() bool { return lr.Life == Stopped }

// Left tells whether it has announced that it has finished, and nothing brought it back since.
func (lr *Rank) Left() bool { return lr.Life == Finished || lr.Life == Departed }
