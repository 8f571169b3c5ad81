package recovery

import "github.com/replicad/replicad/replica"

// Gathered tells whether a new leader has what the nodes keep of a job's rendezvous: before that a counter would count too little, and a key that
// is set would be missing. A node that holds a rank is waited for however long. Any other is waited for unless it is dead to the job, somebody
// finds it silent, or the leader has waited long enough (late).
func Gathered(job *replica.Job, nodes map[replica.NodeName]replica.Node, brought func(replica.NodeName) bool, silent func(replica.Holder) bool, late bool) bool {
	k, holds := newRecord(job), make(map[replica.Holder]bool)
	for r, c := range job.Ranks {
		if c.Incarnation != 0 && !Faulted(job, replica.Rank(r)) {
			holds[replica.Holder{Node: c.Node, Incarnation: c.NodeIncarnation}] = true
		}
	}
	for name, n := range nodes {
		h := n.Holder()
		if !brought(name) && (holds[h] || !late && !k.holderGone(h) && !silent(h)) {
			return false
		}
	}
	return true
}
