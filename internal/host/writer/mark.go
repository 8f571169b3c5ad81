package writer

import (
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/replica"
)

// mark has the commit marker written that the leader orders.
func (r *Room) mark(o control.MarkerOrder) {
	v, ok := r.owner.Job(o.Job)
	if !ok || v.Job.Writer == nil || v.Job.Writer.Number != o.Number {
		return
	}
	if err := r.owner.Undurable(); err != nil {
		r.answer(Mark{Attempt: tier.Attempt{Job: o.Job, Generation: o.Generation, Number: o.Number}}, err.Error(), false)
		return
	}
	m := Mark{Attempt: tier.AttemptOf(v.Job, r.owner.Cluster()), Said: said(v.Job, o), Keep: o.Keep, Roots: map[replica.Part]replica.Digest{}}
	for _, s := range v.Job.Writer.Shards {
		m.Roots[s.Part] = s.Root
	}
	for _, s := range o.Shards {
		m.Objects = append(m.Objects, s.Info)
	}
	r.effects = append(r.effects, m)
}

// answer tells the leader what became of a marker.
func (r *Room) answer(m Mark, failed string, fenced bool) {
	r.effects = append(r.effects, act.Send{Msg: control.MarkedReport{Job: m.Job, Generation: m.Generation, Number: m.Number, Failed: failed, Fenced: fenced}})
}

// said is what the commit of a job's durable write says beside its files.
func said(job *replica.Job, o control.MarkerOrder) tier.Said {
	geometries, recipe := laidOut(job)
	s := tier.Said{Owner: job.Owner, Position: job.Writer.Position, Layout: job.Layout, Options: job.Options, Lineage: job.Lineage, Condemned: job.Condemned,
		Geometries: geometries, Recipe: recipe, Grown: job.Grown, From: job.From, Lacks: o.Lacks}
	for _, r := range o.Said {
		remark(&s, r)
	}
	return s
}

// remark puts in what somebody has said.
func remark(s *tier.Said, r replica.Remark) {
	switch r.Kind {
	case replica.Note:
		put(&s.Notes, r.Name, r.Text)
	case replica.Version:
		put(&s.Provenance, r.Name, r.Text)
	case replica.Metric:
		put(&s.Metrics, r.Name, tier.Metric(r.Value))
	case replica.LoaderEpoch:
		if e := uint64(r.Value); s.Loader == nil || *s.Loader < e { // of several loaders the one that is farthest
			s.Loader = &e
		}
	}
}

func put[V any](m *map[string]V, name string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[name] = v
}

// laidOut is how what a job has committed is laid out: while it grows, as before.
func laidOut(job *replica.Job) (geometries []replica.Digest, recipe []byte) {
	if g := job.Growth; g != nil {
		return g.Geometries, g.Recipe
	}
	return job.GroupGeometry, job.Recipe
}
