package chaos

import "time"

// bounds are what is too slow, measured on a job without faults but for the death of one rank.
type bounds struct {
	calm    time.Duration // from that death to a whole cluster
	commits time.Duration // without a commit, while ranks train
	rest    uint64        // last steps of a job that are not committed at its end: none, unless its cadence leaves some
}

const (
	calmFactor = 5                // of a calm recovery
	gapFactor  = 4                // of the longest time between two commits, which is an outlier already
	longest    = 25 * time.Second // no fault lasts longer
)

// limits are the configured time limits that a recovery from a kind of fault may have to wait out; ordinary is that of the others.
// Ack, claim and resume_grace are 10, 15 and 10 s; a daemon's silence costs daemon_grace, 10 s.
var limits = map[string]time.Duration{
	nodeLoss: 35 * time.Second, emptied: 45 * time.Second, restoreDaemon: 35 * time.Second, restoreRank: 35 * time.Second,
	launcherKill: 25 * time.Second, launcherStop: 25 * time.Second,
	netPair: 35 * time.Second, netOneWay: 35 * time.Second, netIsolate: 35 * time.Second, netLoss: 35 * time.Second, netDelay: 35 * time.Second,
	mirrorKill: 25 * time.Second, falling: 25 * time.Second, keeperKill: 25 * time.Second, keeperLater: 25 * time.Second,
	busy: 25 * time.Second,
}

const ordinary = 15 * time.Second

// recovery is how long the cluster may take to be whole after the end of faults of these kinds.
func (b bounds) recovery(kinds ...string) time.Duration {
	d := ordinary
	for _, k := range kinds {
		d = max(d, limits[k])
	}
	return d + calmFactor*b.calm
}
