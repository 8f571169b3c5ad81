package host

import (
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/replica"
)

// Open holds a copy, to be read as a part of the job.
func (h rooms) Open(job *replica.Job, at holding.Copy) (*holding.Reader, error) {
	return h.hands.Open(job, at)
}

// Undurable says why this node can write nothing that lasts; nil: it can.
func (h rooms) Undurable() error {
	if h.hands.Store == nil {
		return mover.ErrNoDisk
	}
	return nil
}

// Hangs says which call to the store was given up and has not returned; nil: none.
func (h rooms) Hangs() error { return h.hands.Store.Hangs() }

// Store names the store, for people.
func (h rooms) Store() string {
	if h.cfg.InBucket() {
		return h.cfg.Durable
	}
	return "the file system of durable_dir"
}

// Cluster is the node's.
func (h rooms) Cluster() replica.ClusterID { return h.cluster }

// Lacking is what a generation of a job lacks, by the word of the ranks here.
func (h rooms) Lacking(id replica.JobID, g replica.Generation) []replica.Lacking {
	j := h.jobs.of(id)
	if j == nil {
		return nil
	}
	return j.Lacking(g)
}
