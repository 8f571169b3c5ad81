package host

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/adoption"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// arenaList is what a daemon that starts again must know of.
func (h *Host) arenaList() []holding.Entry {
	// An empty list is written, nil is not.
	list := append([]holding.Entry{}, h.adoption.Listed()...)
	passing := map[string]bool{} // on their way from a dead process to the next one
	for _, e := range h.admission.Listed() {
		passing[e.Key] = true
		list = append(list, e)
	}
	for _, j := range h.jobs.all {
		list = append(list, j.Listed(func(key string) bool { return passing[key] })...)
	}
	for i := range list {
		if list[i].PID != 0 {
			list[i].Boot = h.self.Boot
		}
	}
	slices.SortFunc(list, func(a, b holding.Entry) int { return cmp.Compare(a.Key, b.Key) })
	return list
}

// Adopt takes back what the keeper holds, before the host runs. Ranks that live re-attach on their own; until every
// listed arena is back, or its process is gone, the node says that it is adopting, which counts as silence.
func (h *Host) Adopt() error {
	list, err := holding.LoadList(arenaListPath(h.cfg))
	if err != nil {
		return err
	}
	files, err := h.keeper.All()
	if err != nil {
		return fmt.Errorf("adopt arenas from the keeper at %s: %w", h.cfg.KeeperSocket, err)
	}
	kept := adoption.Kept{Listed: list.Arenas}
	for _, key := range slices.Sorted(maps.Keys(files)) {
		f := files[key]
		if key == holding.PromiseKey { // the voter's: a further keeper is to have it too
			h.hands.Custody.Holds(key, f)
			continue
		}
		if desk.Records(key) {
			if h.desk.Adopt(key, f) {
				h.hands.Custody.Holds(key, f)
			} else {
				h.keeper.Drop(key) //nolint:errcheck // there is nothing in it
			}
			continue
		}
		a, err := shm.Adopt(f)
		if err != nil {
			h.log.Failed("adopt", key, err.Error())
			f.Close()
			h.keeper.Drop(key) //nolint:errcheck // garbage either way
			continue
		}
		ref := h.hands.Hold(a, key)
		h.hands.Custody.Holds(key, ref.File())
		kept.Arenas = append(kept.Arenas, ref)
	}
	h.notify(h.adoption, kept)
	return nil
}

// reattach takes back a rank whose daemon was away.
func (h *Host) reattach(ev session.Hello) {
	defer ev.File.Close()
	for _, j := range h.jobs.all {
		if j.Back(ev) {
			return
		}
	}
	if ref, ok := h.adoption.Back(ev.Peer, ev.Hello.Rank); ok {
		inc, _, _ := ref.Owner()
		h.admission.Back(ev, ref, inc, 0)
		return
	}
	if h.adoptOffered(ev) {
		return
	}
	ev.Peer.Refuse(ev.Header.Request, wire.CodeStopped, fmt.Sprintf("no arena of job %q, rank %d belongs to process %d here: the rank was "+
		"taken over or the job has ended", ev.Hello.Job, ev.Hello.Rank, ev.Peer.PID()))
}

// adoptOffered takes an arena that a live rank offers, where the keeper had lost it.
func (h *Host) adoptOffered(ev session.Hello) bool {
	if !h.adoption.Awaits(ev.Peer, ev.Hello.Rank) {
		return false
	}
	file, err := unixsock.Duplicate(ev.File)
	if err != nil {
		return false
	}
	a, err := shm.Adopt(file)
	if err != nil {
		file.Close()
		h.log.Failed("adopt", fmt.Sprintf("rank %d of job %q", ev.Hello.Rank, ev.Hello.Job), err.Error())
		return false
	}
	key, ok := h.adoption.Key(ev.Peer, ev.Hello.Rank, a.Spec())
	if !ok {
		h.hands.Unmap(a)
		return false
	}
	ref := h.hands.Hold(a, key)
	h.hands.Custody.Put(key, ref.File())
	ref.Process = holding.Process{PID: ev.Peer.PID(), Start: ev.Peer.StartTime(), Proven: true}
	inc, _, _ := ref.Owner()
	h.admission.Back(ev, ref, inc, 0)
	h.notify(h.adoption, adoption.Offered{Arena: ref, Peer: ev.Peer})
	return true
}

// turnAway tells a rank that came back that nobody knows its job.
func turnAway(e adoption.GiveUp) {
	inc, _, _ := e.Arena.Owner()
	e.Arena.RaiseFence(replica.MaxEpoch) // no epoch is to come
	o := wire.Order{Action: wire.OrderStop, Code: wire.CodeStopped, Text: fmt.Sprintf("job %s is not known: it was ended, or its cluster has lost it", e.Arena.Spec().Job)}
	e.Peer.Send(wire.RankHeader{Type: wire.MOrder, Incarnation: inc}, o.Append(nil)) //nolint:errcheck // a dead peer is Gone
}

// AwaitAdoption returns once no arena can come back any more that has not.
func (h *Host) AwaitAdoption(ctx context.Context) error {
	for {
		var state adoptionState
		if !h.ask(ctx, &state) {
			return h.gone(ctx)
		}
		if !state.waiting {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(adoptionPoll):
		}
	}
}

const adoptionPoll = 20 * time.Millisecond

// adoptionState asks whether arenas may still come back.
type adoptionState struct{ waiting bool }

func (q *adoptionState) serve(h *Host) {
	h.turn(h.adoption, time.Now())
	q.waiting = h.adoption.Awaiting()
}
