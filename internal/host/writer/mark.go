package writer

import (
	"github.com/replicad/replicad/internal/checkpoint"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// mark has the commit marker written that the leader orders.
func (r *Room) mark(o control.MarkerOrder) {
	v, ok := r.owner.Job(o.Job)
	if !ok || v.Job.Writer == nil || v.Job.Writer.Generation != o.Generation {
		return
	}
	if err := r.owner.Undurable(); err != nil {
		r.effects = append(r.effects, Unmarked{control.MarkedReport{Job: o.Job, Generation: o.Generation, Failed: err.Error()}})
		return
	}
	r.effects = append(r.effects, Mark{marker(v.Job, o)})
}

// marker is the commit marker of a job's durable write.
func marker(job *replica.Job, o control.MarkerOrder) checkpoint.Marker {
	geometries, recipe := laidOut(job)
	mark := checkpoint.Marker{JobName: job.Name, Job: job.ID, Generation: o.Generation, Position: job.Writer.Position, Layout: job.Layout, Options: job.Options, Lineage: job.Lineage, Condemned: job.Condemned, Geometries: geometries, Recipe: recipe, Grown: job.Grown, Owner: job.Owner, Lacks: o.Lacks}
	for _, s := range o.Shards {
		mark.Shards = append(mark.Shards, s.Info)
	}
	return mark
}

// laidOut is how what a job has committed is laid out: while it grows, as before.
func laidOut(job *replica.Job) (geometries []replica.Digest, recipe []byte) {
	if g := job.Growth; g != nil {
		return g.Geometries, g.Recipe
	}
	return job.GroupGeometry, job.Recipe
}
