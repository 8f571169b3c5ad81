package launchers

import (
	"cmp"
	"fmt"
	"reflect"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// create is the job that the launcher's flags ask for.
func (l *launcher) create(id uint64) control.CreateRequest {
	h := l.hello
	groups, named := h.Groups, h.Flags&wire.RunNameGroups != 0
	open := len(groups) == 0 && !named
	if open {
		groups = make([]replica.GroupID, h.World) // one group: plain data parallelism
	}
	layout := replica.Layout{World: h.World, Groups: groups}
	r := control.CreateRequest{
		ID: id, Name: h.Job, Owner: uint32(l.user), Token: h.Token, Layout: layout, NameGroups: named, AnyGroups: open, Notes: h.Notes,
		Resume: h.Flags&wire.RunResume != 0, UnlessEnded: h.Flags&wire.RunUnlessEnded != 0,
		Options: replica.Options{
			MinCopies: int(h.MinCopies), Cadence: replica.Step(h.Cadence), Slots: int(h.Slots), ChunkBytes: h.ChunkBytes,
			DurableEvery: replica.Step(h.DurableEvery), PrivateCap: uint64(h.PrivateCapMB) << 20, LoneAhead: replica.Step(h.LoneAhead),
			RequireVotes: h.Flags&wire.RunRequireVotes != 0, CollectiveWindow: h.Flags&wire.RunCollectiveWindow != 0,
			Nondeterministic: nondeterministic(layout, h.Nondeterministic),
		},
	}
	if h.From != nil {
		r.From, r.FromFailed = &h.From.Origin, h.From.Failed
	}
	return r
}

// request is what the leader is asked for a launcher: where that names no durable writes this node's configuration does.
func (p *Pool) request(l *launcher, id uint64) control.CreateRequest {
	r := l.create(id)
	switch every := &r.Options.DurableEvery; {
	case *every == replica.DurableNever:
		*every = 0
	case *every == 0 && p.cfg.HasTier():
		*every = replica.DurableAuto
	}
	return r
}

// otherJob is how a job that runs is not the one that a launcher asks for; empty: it is.
func (l *launcher) otherJob(job *replica.Job) string {
	r := l.create(0)
	return cmp.Or(r.OtherLayout(job), r.OtherOrigin(job))
}

// nondeterministic is the option that the named groups make; nil: none. A layout that is wrong is refused elsewhere.
func nondeterministic(l replica.Layout, named []replica.GroupID) []bool {
	if len(named) == 0 || l.Check() != nil {
		return nil
	}
	out := make([]bool, l.NumGroups())
	for _, g := range named {
		if int(g) < len(out) {
			out[g] = true
		}
	}
	return out
}

// otherOptions names the flags of a launcher that differ from the job that runs: those took effect when it was created.
func otherOptions(want, have replica.Options) (differ []string) {
	check := func(flag string, w, h any, given bool) {
		if given && !reflect.DeepEqual(w, h) {
			differ = append(differ, fmt.Sprintf("%s %v (the job runs with %v)", flag, w, h))
		}
	}
	check("--min-copies", want.MinCopies, have.MinCopies, want.MinCopies != 0)
	check("--cadence", want.Cadence, have.Cadence, want.Cadence != 0)
	check("--slots", want.Slots, have.Slots, want.Slots != 0)
	check("--chunk-mb", want.ChunkBytes>>20, have.ChunkBytes>>20, want.ChunkBytes != 0)
	check("--durable-every", replica.DurableText(want.DurableEvery), replica.DurableText(have.DurableEvery), want.DurableEvery != 0)
	check("--private-cap-mb", want.PrivateCap>>20, have.PrivateCap>>20, want.PrivateCap != 0)
	check("--require-votes", want.RequireVotes, have.RequireVotes, want.RequireVotes)
	check("--lone-ahead", want.LoneAhead, have.LoneAhead, want.LoneAhead != 0)
	check("--collective-window", want.CollectiveWindow, have.CollectiveWindow, want.CollectiveWindow)
	check("--nondeterministic", groupsOf(want.Nondeterministic), groupsOf(have.Nondeterministic), want.Nondeterministic != nil)
	return differ
}

func groupsOf(set []bool) (groups []int) {
	for g, in := range set {
		if in {
			groups = append(groups, g)
		}
	}
	return groups
}
