package recovery

import (
	"time"

	"github.com/replicad/replicad/recovery/plan"
)

// DoNotRequeue begins the reason of a job that ended because starting it again would only end the same way.
const DoNotRequeue = plan.DoNotRequeue

// Budget bounds how often a job is recovered without getting anywhere. What comes back after a replay is the program's or
// the data's fault, and requeuing it would only burn machines.
type Budget struct {
	Recoveries int           // without a new committed step, within Window
	Window     time.Duration // older recoveries are forgotten, up to four times the budget
}

// slowly is how many times the budget ends a job whose recoveries take so long that few of them lie within the window.
const slowly = 4

// DefaultBudget is what a Leader uses.
func DefaultBudget() Budget { return Budget{Recoveries: 16, Window: 10 * time.Minute} }

// Spent tells whether the recoveries since the committed step last rose, given by when they began and oldest first, use the budget up.
func (b Budget) Spent(began []time.Duration, now time.Duration) bool {
	n := 0
	for _, at := range began {
		if now-at <= b.Window {
			n++
		}
	}
	return n > b.Recoveries || len(began) > slowly*b.Recoveries
}
