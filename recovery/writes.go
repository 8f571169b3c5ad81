package recovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// writingFresh is for how long a node's word counts that a durable write holds up a commit. It repeats it once a second.
const writingFresh = 5 * time.Second

// writes are the durable writes that hold up commits, by the nodes' words.
type writes map[replica.Part]writing

type writing struct {
	Writing
	at time.Duration // when the word came
}

func (w *writes) learn(ev Writing, now time.Duration) {
	if *w == nil {
		*w = writes{}
	}
	(*w)[ev.Part] = writing{ev, now}
}

// waitsForSlots are the durable writes that hold the slots which the next commit lacks.
func (en *ending) waitsForSlots(now time.Duration) (out []waiting) {
	kn := en.known
	if kn.job.Writer == nil {
		return nil
	}
	parts := slices.SortedFunc(maps.Keys(en.writes), func(a, b replica.Part) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Index, b.Index))
	})
	for _, p := range parts {
		w := en.writes[p]
		if w.Generation != kn.job.Writer.Generation || now-w.at > writingFresh || w.at <= en.pace.at && en.pace.epoch == kn.job.Epoch {
			continue // it is over, or something was committed since
		}
		out = append(out, waiting{kind: AwaitSlot, node: w.Node, since: w.at - w.Late, until: never, what: fmt.Sprintf("step %d, %v", w.Generation.Step, p),
			why: fmt.Sprintf(", %d steps; %d MiB of it are written", en.uncommitted(), w.Bytes>>20)})
	}
	return out
}

// uncommitted is how many steps ranks have made since the commit.
func (en *ending) uncommitted() replica.Step {
	kn := en.known
	made := kn.job.Position.Step
	for _, rep := range kn.reports {
		made = max(made, plan.Made(kn.job.Job, kn.job.Epoch, rep.Ranks))
	}
	return made - kn.job.Position.Step
}
