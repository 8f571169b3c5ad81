package launchers

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

// maxFailures bounds what is remembered of a rank's exceptions in one step.
const maxFailures = 8

var addresses = regexp.MustCompile(`0x[0-9a-fA-F]+`)

// Failed takes the exception that a rank reports of a step. Where it is the one that ended an earlier epoch at the same step the
// launchers print that at once: no restart mends it.
func (v View) Failed(r replica.Rank, e replica.Epoch, s replica.Step, text string) {
	job := v.job.Record()
	if !v.job.Launched().again(r, failure{e, s, addresses.ReplaceAllString(text, "0x...")}) {
		return
	}
	first, _, _ := strings.Cut(text, "\n")
	note := fmt.Sprintf("rank %d: the same exception at step %d as before the last restart: %s", r, s, clip(first))
	v.pool.log.RankNote(job, r, "same_exception", note)
	v.Note(note + "; it will come again each time: end the job (replicad job end " + job.Name + ") and mend the program")
}

// again enters a failure, and reports whether it has ended an earlier epoch.
func (b *Book) again(r replica.Rank, is failure) bool {
	before := slices.DeleteFunc(b.failures[r], func(f failure) bool { return f.step != is.step })
	again := slices.ContainsFunc(before, func(f failure) bool { return f.text == is.text && f.epoch != is.epoch })
	if !slices.Contains(before, is) {
		before = append(before, is)
	}
	b.failures[r] = before[max(0, len(before)-maxFailures):]
	return again
}
