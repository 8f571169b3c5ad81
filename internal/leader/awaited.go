package leader

import (
	"strings"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// sayAwaited tells the launchers of a job, and the log, who is waited for, once that has lasted for claim_timeout.
func (l *Leader) sayAwaited(led *ledJob) {
	now := l.now()
	texts := led.recovery.Overlong(now, l.timing.Claim)
	if !led.recovery.Clocks.SayAwaited(now, l.timing.Claim, len(texts) > 0) {
		return
	}
	text := "waiting: " + strings.Join(texts, "; ")
	l.tell(led.job.ID, text)
	l.log.Note2(led.job, "awaited", text)
}

// putOff tells the rules that a rank's word has to wait at the rendezvous; missing are nodes that have not brought what they keep, none where the
// rank's own node is in another life than its claim.
func (l *Leader) putOff(led *ledJob, from *nodeLink, r replica.Rank, missing []replica.NodeName) {
	if c := led.job.Ranks[r]; len(missing) == 0 && (c.Incarnation == 0 || c.Node != from.node.Name || recovery.Vacated(led.job, r)) {
		return // another node starts a process for the rank: that ends by itself
	}
	if len(missing) == 0 {
		missing = []replica.NodeName{""}
	}
	for _, n := range missing {
		led.recovery.Learn(l.now(), recovery.PutOff{Rank: r, Missing: n})
	}
	led.due = true // judged by the next tick: thousands of ranks may ask
}
