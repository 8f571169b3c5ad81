package recovery

import (
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// Ungathered are the nodes that keep a new leader from serving a job's rendezvous: it has not got what they keep of that. Before, a counter would
// count too little, and a key that is set would be missing. A node that holds a rank is waited for however long. Any other is waited for unless it is dead to the job, somebody
// finds it silent, or the leader has waited long enough (late).
func Ungathered(job *replica.Job, nodes map[replica.NodeName]replica.Node, brought func(replica.NodeName) bool, silent func(replica.Holder) bool, late bool) (missing []replica.NodeName) {
	k, holds := plan.NewRecord(job), make(map[replica.Holder]bool)
	for r, c := range job.Ranks {
		if c.Incarnation != 0 && !Faulted(job, replica.Rank(r)) {
			holds[replica.Holder{Node: c.Node, Incarnation: c.NodeIncarnation}] = true
		}
	}
	for name, n := range nodes {
		h := n.Holder()
		if !brought(name) && (holds[h] || !late && !k.HolderGone(h) && !silent(h)) {
			missing = append(missing, name)
		}
	}
	return missing
}
