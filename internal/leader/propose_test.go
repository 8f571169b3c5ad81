package leader

import (
	"errors"
	"testing"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// What nodes ask for waits in a line of bounded length while Raft is busy; what finds it full is refused, and may be tried again,
// after the event at hand. The leader's own rules have room when nodes have none.
func TestProposalsWaitInABoundedLine(t *testing.T) {
	c := newChair(t)
	for range mostProposals {
		c.proposals.slots <- struct{}{}
	}
	var busy, other int
	done := func(_ lock.Outcome, err error) {
		if errors.Is(err, consensus.ErrBusy) {
			busy++
		} else {
			other++
		}
	}
	for i := range maxWaiting + 5 {
		c.propose(t.Context(), fixture.JobID, replica.Claim{Job: fixture.JobID, Nonce: uint64(i)}, fromDriver, done)
	}
	if len(c.proposals.waiting) != maxWaiting || busy != 0 {
		t.Fatalf("%d wait, %d were refused inside the event", len(c.proposals.waiting), busy)
	}
	c.turnAway(t.Context())
	if busy != 5 || len(c.proposals.turned) != 0 {
		t.Errorf("%d were refused, want 5", busy)
	}
	c.propose(t.Context(), fixture.JobID, replica.SetCopies{Job: fixture.JobID}, fromCommitter, nil)
	if len(c.proposals.waiting) != maxWaiting+1 {
		t.Errorf("a rule's proposal finds no place beside those of nodes: %d wait", len(c.proposals.waiting))
	}
	for range mostProposals {
		<-c.proposals.slots
	}
	for len(c.proposals.waiting) > 0 {
		c.nextProposals(t.Context())
		c.work.Wait()
		for len(c.in) > 0 {
			c.handle(t.Context(), <-c.in)
		}
	}
	c.work.Wait()
	for len(c.in) > 0 {
		c.handle(t.Context(), <-c.in)
	}
	if other != maxWaiting || len(c.proposals.slots) != 0 {
		t.Errorf("%d of %d got an outcome, %d slots are taken", other, maxWaiting, len(c.proposals.slots))
	}
}
