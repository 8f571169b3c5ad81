package chaos

import (
	"bytes"
	"context"
	"fmt"
	"os"
)

// votesAgain is what a voter's log says once it was taken in.
const votesAgain = "this voter votes again"

// beginEmptied loses a voter with its disk. It is started again as on its first day, with --bootstrap: it must come in as a learner, under its name, and vote
// again. The fault ends then, so that the next one finds a majority that votes.
func (r *runner) beginEmptied(ctx context.Context, f Fault) (act, error) {
	i := int(f.Pick) % voters
	n := r.cluster.Nodes[i]
	text := fmt.Sprintf("%s: voter %s lost with its disk, away %.1f s, back with --bootstrap", f.Kind, n.Name, f.For.Seconds())
	r.rec.note("FAULT     " + text)
	if err := r.lose(n); err != nil {
		return act{}, err
	}
	return act{text, func() error {
		log := r.cluster.Log(n.Name + "-daemon")
		before, _ := os.Stat(log)
		if err := r.cluster.Afresh(n); err != nil {
			return err
		}
		if err := r.await(ctx, r.bounds.recovery(emptied), "the vote of "+n.Name+", which lost its disk", func() bool { return says(log, before, votesAgain) }); err != nil {
			return err
		}
		return r.relaunch(i)
	}}, nil
}

// says tells whether a log holds a text, behind what it was.
func says(log string, was os.FileInfo, text string) bool {
	b, err := os.ReadFile(log)
	if err != nil || was != nil && int64(len(b)) < was.Size() {
		return false
	}
	if was != nil {
		b = b[was.Size():]
	}
	return bytes.Contains(b, []byte(text))
}
