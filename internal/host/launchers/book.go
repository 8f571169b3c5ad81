package launchers

import (
	"time"

	"github.com/replicad/replicad/internal/host/carried"
	"github.com/replicad/replicad/replica"
)

// Book is what the launchers of a job know of it beyond their own life. It belongs to the job.
type Book struct {
	outage   *outage                    // that the job has not come out of yet; nil: none
	failures map[replica.Rank][]failure // the exceptions of each rank's newest step that had one
	untaken  map[replica.Rank]*untaken  // offers that no launcher here is known to have taken up
	carried  carried.Book               // files that launchers give the job to carry in the durable tier
}

// NewBook returns an empty book.
func NewBook() *Book {
	return &Book{failures: map[replica.Rank][]failure{}, untaken: map[replica.Rank]*untaken{}}
}

// Close closes the files that the job was given.
func (b *Book) Close() { b.carried.Close() }

// outage is a closed epoch, as this node saw it close.
type outage struct{ began time.Time }

// failure is an exception that a rank reported, as far as it can be known from another one.
type failure struct {
	epoch replica.Epoch
	step  replica.Step
	text  string
}

// untaken is an offer of the leader that no launcher here is known to have taken up.
type untaken struct {
	expect replica.Incarnation
	since  time.Time
	by     *launcher // that was asked to start a process; nil: none yet
	asked  time.Time
}
