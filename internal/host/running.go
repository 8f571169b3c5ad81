package host

import (
	"cmp"
	"context"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Running are the claims that this daemon serves, as a hello to a leader names them: of each the process lives, by the kernel's word and not the
// rank's own, and its arena is here. False: ctx has ended, or the daemon ends, and no further leader is to count on it.
func (h *Host) Running(ctx context.Context) (claims []replica.Running, ok bool) {
	var r running
	ok = h.ask(ctx, &r)
	return r.claims, ok && !r.goes
}

type running struct {
	claims []replica.Running
	goes   bool
}

func (r *running) serve(h *Host) {
	r.goes = h.leaving.goes
	r.claims = h.adoption.Running()
	for _, j := range h.jobs.all {
		r.claims = append(r.claims, j.Running()...)
	}
	slices.SortFunc(r.claims, func(a, b replica.Running) int {
		return cmp.Or(slices.Compare(a.Job[:], b.Job[:]), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Incarnation, b.Incarnation))
	})
}
