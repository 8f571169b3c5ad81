package plan

import (
	"slices"

	"github.com/replicad/replicad/replica"
)

// Fresh is the same input for another state of the job, with nothing counted yet.
func (in *Input) Fresh(job *replica.Job) *Input {
	return &Input{Job: job, Nodes: in.Nodes, Reports: in.Reports, Connected: in.Connected, AwaySince: in.AwaySince, Now: in.Now,
		Grace: in.Grace, Least: in.Least, Durable: in.Durable, Scanned: in.Scanned, Unread: in.Unread, Misfit: in.Misfit}
}

// Fenced is the input with the answers that the nodes would give to a fence. Nodes that have answered the fence of this recovery said all that
// they hold. Of any other the record says what it has pinned, and its newest report, which the next steps overtake, what it has got since of
// the same generations: nobody frees these before the next commit.
func (in *Input) Fenced() *Input {
	out, j := in.Fresh(in.Job), in.Record()
	out.Reports, out.Connected = make(map[replica.NodeName]replica.NodeReport, len(in.Nodes)), make(map[replica.NodeName]bool, len(in.Nodes))
	pinned := in.pinned()
	for n, node := range in.Nodes {
		h := node.Holder()
		rep, ok := in.Acknowledged(n)
		if !ok || j.Phase == replica.Open {
			last := in.Reports[n]
			if last.Holder != h {
				last = replica.NodeReport{}
			}
			rep = replica.NodeReport{Job: j.ID, Holder: h, Parts: slices.DeleteFunc(pinned[h], func(p replica.Held) bool {
				return slices.ContainsFunc(last.Bad, func(bad replica.Held) bool { // it was given up
					return bad.Part == p.Part && bad.Generation == p.Generation && bad.Root == p.Root
				})
			})}
			for _, p := range last.Parts {
				if known := j.Root(p.Generation, p.Part); !known.IsZero() && p.Root == known {
					rep.Parts = append(rep.Parts, p)
				}
			}
		}
		rep.Session, rep.Fenced, rep.Settled = node.Session, j.ClosedEpoch, true
		out.Reports[n], out.Connected[n] = rep, true
	}
	return out
}

// pinned is by life of a node what the record says that it holds.
func (in *Input) pinned() map[replica.Holder][]replica.Held {
	out, j := make(map[replica.Holder][]replica.Held), in.Job
	add := func(g replica.Generation, parts []replica.PartRoot) {
		for _, p := range parts {
			for _, h := range p.Holders {
				out[h] = append(out[h], replica.Held{Part: p.Part, Generation: g, Root: p.Root, Mirror: true})
			}
		}
	}
	add(j.Committed, j.Parts)
	if j.Previous != nil {
		add(j.Previous.Generation, j.Previous.Parts)
	}
	return out
}
