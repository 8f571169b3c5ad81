package control

import (
	"fmt"
	"maps"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Told is the state that a leader told last, whether this node knows newer jobs from another link or not: what its next change follows.
type Told struct {
	index uint64 // 0: none since the link came up
	nodes map[replica.NodeName]replica.Node
	Jobs  map[replica.JobID]*replica.Job
}

// ToldBy is the state that a view tells.
func ToldBy(v View) Told {
	t := Told{v.Index, v.Nodes, make(map[replica.JobID]*replica.Job, len(v.Jobs))}
	for _, job := range v.Jobs {
		t.Jobs[job.ID] = job
	}
	return t
}

// After is the view that a change leads to.
func (t Told) After(c Change) (View, error) {
	if t.index == 0 || c.After > t.index {
		return View{}, fmt.Errorf("entry %d is known here", t.index)
	}
	v := View{Index: c.Index, Era: c.Era, Nodes: make(map[replica.NodeName]replica.Node, len(t.nodes))}
	maps.Copy(v.Nodes, t.nodes)
	maps.Copy(v.Nodes, c.Nodes)
	jobs := maps.Clone(t.Jobs)
	for _, jc := range c.Jobs {
		is, err := jc.after(jobs)
		if err != nil {
			return View{}, err
		}
		jobs[is.ID] = is
	}
	for _, id := range c.Gone {
		delete(jobs, id)
	}
	v.Jobs = slices.Collect(maps.Values(jobs))
	return v, nil
}
