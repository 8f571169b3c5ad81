package recovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

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
func (l *Leader) waitsForSlots(now time.Duration) (out []waiting) {
	if l.known.job.Writer == nil {
		return nil
	}
	parts := slices.SortedFunc(maps.Keys(l.writes), func(a, b replica.Part) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Index, b.Index))
	})
	for _, p := range parts {
		w := l.writes[p]
		if w.Generation != l.known.job.Writer.Generation || now-w.at > writingFresh || w.at <= l.pace.at && l.pace.epoch == l.known.job.Epoch {
			continue // it is over, or something was committed since
		}
		out = append(out, waiting{kind: AwaitSlot, node: w.Node, since: w.at - w.Late, until: never, what: fmt.Sprintf("step %d, %v", w.Generation.Step, p),
			why: fmt.Sprintf(", %d steps; %d MiB of it are written", l.uncommitted(), w.Bytes>>20)})
	}
	return out
}

// uncommitted is how many steps ranks have made since the commit.
func (l *Leader) uncommitted() replica.Step {
	made := l.known.job.Position.Step
	for _, rep := range l.known.reports {
		made = max(made, Made(l.known.job.Job, l.known.job.Epoch, rep.Ranks))
	}
	return made - l.known.job.Position.Step
}
