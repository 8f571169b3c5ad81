package host

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// owner is the process that has an adopted rank's arena. The arena's page names one too, but that is the rank's own word: one that
// lies must not have another process killed in its place.
type owner struct {
	pid    int
	start  uint64
	proven bool // by the list on disk, or by the kernel when it attached again
}

func (h *Host) arenaListPath() string { return filepath.Join(h.cfg.StateDir, "arenas.json") }

// arenaList is what a daemon that starts again must know of.
func (h *Host) arenaList() []holding.Entry {
	list := append([]holding.Entry{}, h.awaited...)
	passing := map[string]bool{} // on their way from a dead process to the next one
	for _, a := range h.attaching {
		if a.arena != nil {
			passing[a.arena.key] = true
			list = append(list, holding.Entry{Key: a.arena.key, Job: a.arena.Spec().Job, Rank: a.hello.Rank, PID: a.peer.PID(), Start: a.peer.StartTime()})
		}
	}
	for _, ref := range h.orphans {
		if s := ref.Spec(); s.Mirror || ref.owner.proven {
			list = append(list, holding.Entry{Key: ref.key, Job: s.Job, Rank: s.Rank, Mirror: s.Mirror, PID: ref.owner.pid, Start: ref.owner.start})
		}
	}
	for id, lj := range h.jobs {
		for r, lr := range lj.ranks {
			if lr.unproven || passing[lr.arena.key] {
				continue // listed it would count as proven
			}
			list = append(list, holding.Entry{Key: lr.arena.key, Job: id, Rank: r, PID: lr.pid, Start: lr.start})
		}
		for _, a := range lj.retired {
			if passing[a.key] {
				continue
			}
			list = append(list, holding.Entry{Key: a.key, Job: id, Rank: a.Spec().Rank})
		}
		for _, mi := range lj.mirrors {
			list = append(list, holding.Entry{Key: mi.arena.key, Job: id, Rank: mi.rank, Mirror: true})
		}
		for _, mk := range lj.making {
			if mk.arena != nil {
				list = append(list, holding.Entry{Key: mk.arena.key, Job: id, Rank: mk.rank, Mirror: true})
			}
		}
	}
	slices.SortFunc(list, func(a, b holding.Entry) int { return cmp.Compare(a.Key, b.Key) })
	return list
}

// Adopt takes back what the keeper holds, before the host runs. Ranks that live re-attach on their own; until every
// listed arena is back, or its process is gone, the node says that it is adopting, which counts as silence.
func (h *Host) Adopt() error {
	list, err := holding.LoadList(h.arenaListPath())
	if err != nil {
		return err
	}
	files, err := h.keeper.All()
	if err != nil {
		return fmt.Errorf("adopt arenas from the keeper at %s: %w", h.cfg.KeeperSocket, err)
	}
	listed := map[string]holding.Entry{}
	for _, e := range list.Arenas {
		listed[e.Key] = e
	}
	for key, f := range files {
		if strings.HasPrefix(key, ledgerPrefix) {
			h.adoptLedger(key, f)
			continue
		}
		a, err := shm.Adopt(f)
		if err != nil {
			h.log.Failed("adopt", key, err.Error())
			f.Close()
			h.keeper.Drop(key) //nolint:errcheck // garbage either way
			continue
		}
		ref := h.newArenaRef(a, key)
		e, known := listed[key]
		ref.owner = h.ownerOf(ref, e, known)
		h.orphans = append(h.orphans, ref)
		delete(listed, key)
	}
	for key, e := range listed {
		if e.PID != 0 && h.processes.Alive(e.PID, e.Start) {
			h.awaited = append(h.awaited, e)
		} else {
			h.log.Note2(nil, "arena_lost", fmt.Sprintf("arena %s came back neither from the keeper nor from a live process", key))
		}
	}
	h.awaitedSince = time.Now()
	return nil
}

// ownerOf is the process that the list names, where it knows the arena, else the one that the arena's page names.
func (h *Host) ownerOf(ref *arenaRef, e holding.Entry, listed bool) owner {
	if ref.Spec().Mirror {
		return owner{} // the daemon's own
	}
	_, pid, start := ref.Owner()
	named := owner{pid: int(pid), start: start}
	if !listed {
		h.log.Failed("adopt", ref.key, fmt.Sprintf("not in the list of arenas: process %d, which the arena itself names, is watched, and never killed before it has attached again: end it yourself if it must go", pid))
		return named
	}
	if e.PID != 0 && (e.PID != named.pid || e.Start != start) { // 0: that of a retired one, which has ended
		h.log.Failed("adopt", ref.key, fmt.Sprintf("the arena names process %d (started at %d), the list of arenas process %d (started at %d): the list counts", pid, start, e.PID, e.Start))
	}
	return owner{e.PID, e.Start, true}
}

// adopting tells whether an arena may still come back from a live rank.
func (h *Host) adopting() bool {
	h.awaited = slices.DeleteFunc(h.awaited, func(e holding.Entry) bool { return !h.processes.Alive(e.PID, e.Start) })
	return len(h.awaited) > 0
}

// adoptOffered takes an arena that a live rank offers, where the keeper had lost it.
func (h *Host) adoptOffered(ev session.Hello) bool {
	i := slices.IndexFunc(h.awaited, func(e holding.Entry) bool { return e.PID == ev.Peer.PID() && e.Start == ev.Peer.StartTime() })
	if i < 0 {
		return false
	}
	file, err := unixsock.Duplicate(ev.File)
	if err != nil {
		return false
	}
	a, err := shm.Adopt(file)
	if err != nil {
		file.Close()
		h.log.Failed("adopt", h.awaited[i].Key, err.Error())
		return false
	}
	ref := h.newArenaRef(a, h.awaited[i].Key)
	h.custody.Put(ref.key, ref.File())
	h.awaited = slices.Delete(h.awaited, i, i+1)
	inc, _, _ := ref.Owner()
	ref.peer, ref.owner = ev.Peer, owner{ev.Peer.PID(), ev.Peer.StartTime(), true}
	h.attached(ev, ref, inc, 0)
	h.orphans = append(h.orphans, ref)
	h.claimOrphans()
	return true
}

// claimOrphans gives adopted arenas to their jobs, once those are known. Deaths are looked at last: one has the job fenced and
// reported, and until all are in their places arenas would miss the fence, and live ranks be reported as gone.
func (h *Host) claimOrphans() {
	var adopted []*localRank
	var rest, unwanted []*arenaRef
	for _, ref := range h.orphans {
		lj := h.jobs[ref.Spec().Job]
		switch {
		case lj == nil && !h.informed:
			rest = append(rest, ref)
		case lj == nil || lj.job.Phase == replica.Ended && (ref.Spec().Mirror || !h.processes.Alive(ref.owner.pid, ref.owner.start)):
			unwanted = append(unwanted, ref)
		case ref.Spec().Mirror:
			lj.mirrors[lj.mirrorKey(ref.Spec())] = &mirror{lj.mirrorKey(ref.Spec()), ref.Spec().Rank, ref}
		default:
			if lr := h.adoptRank(lj, ref); lr != nil {
				adopted = append(adopted, lr)
			}
		}
	}
	h.orphans = rest
	for _, ref := range unwanted { // once all the others are where the list is made from
		if ref.peer != nil {
			h.turnAway(ref)
		}
		h.forget(ref)
	}
	if len(adopted) > 0 {
		h.saveArenas() // with those that attached again meanwhile
	}
	for _, lr := range adopted {
		if lj := h.jobs[lr.arena.Spec().Job]; lj.ranks[lr.rank] == lr { // else a newer one of the rank came behind it
			h.adoptedRank(lj, lr)
		}
	}
}

// adoptRank puts an arena in its rank's place; nil where that is taken by a newer one.
func (h *Host) adoptRank(lj *localJob, ref *arenaRef) *localRank {
	inc, _, _ := ref.Owner()
	rank := ref.Spec().Rank
	if old := lj.ranks[rank]; old != nil {
		if old.incarnation >= inc {
			lj.retired = append(lj.retired, ref)
			return nil
		}
		lj.retired = append(lj.retired, old.arena)
	}
	left := recovery.HasFinished(lj.job) // it said so to the daemon before
	lr := &localRank{left: left, rank: rank, incarnation: inc, arena: ref, pid: ref.owner.pid, start: ref.owner.start, unproven: !ref.owner.proven, alive: true, peer: ref.peer, sealedAt: map[replica.Generation]time.Time{}, pushed: map[pushKey]pushState{}}
	lj.ranks[rank] = lr
	ref.RaiseFence(lj.fenced)
	ref.SetCommitted(lj.job.Position) // it may have moved while no daemon was here to say so
	if good := ref.Good(); good.Epoch() < lj.job.Epoch || lj.job.Phase == replica.Open || lj.job.Phase == replica.Closed {
		lr.loaded = good.Epoch() // in the epoch that is planned it says so again; good may be of the initial state there, or of one that is rejected
	}
	return lr
}

// turnAway tells a rank that came back that nobody knows its job.
func (h *Host) turnAway(ref *arenaRef) {
	inc, _, _ := ref.Owner()
	ref.RaiseFence(replica.MaxEpoch) // no epoch is to come
	o := wire.Order{Action: wire.OrderStop, Code: wire.CodeStopped, Text: fmt.Sprintf("job %s is not known: it was ended, or its cluster has lost it", ref.Spec().Job)}
	ref.peer.Send(wire.RankHeader{Type: wire.MOrder, Incarnation: inc}, o.Append(nil)) //nolint:errcheck // a dead peer is Gone
}

// keepSaid remembers what a rank says before its job is known: of each kind the newest, and of the seals one for each place, so that
// there is a bound. An earlier one of a kind means nothing beside a later one: the words and places of the arena are the truth.
func (a *arenaRef) keepSaid(ev session.Event) {
	if s, ok := ev.(session.Sealed); ok && !a.Has(shm.Place{Kind: shm.PlaceKind(s.Sealed.Kind), Index: int(s.Sealed.Index)}) {
		return
	}
	a.said = append(slices.DeleteFunc(a.said, func(old session.Event) bool {
		if of, ok := old.(session.Sealed); ok {
			is, ok := ev.(session.Sealed)
			return ok && of.Sealed.Kind == is.Sealed.Kind && of.Sealed.Index == is.Sealed.Index
		}
		return reflect.TypeOf(old) == reflect.TypeOf(ev)
	}), ev)
}

func (h *Host) adoptedRank(lj *localJob, lr *localRank) {
	h.checkInitial(lj, lr)
	said := lr.arena.said
	lr.arena.said = nil
	for _, ev := range said { // before its death is looked at: it may have left
		h.rankSays(lj, lr, ev)
	}
	if lj.ranks[lr.rank] != lr {
		return // given up by what it said
	}
	alive := h.processes.Alive(lr.pid, lr.start)
	h.log.Adopted(lj.job, lr.rank, lr.pid, alive)
	if err := h.sessions.Watch(lr.pid, lr.start); err != nil {
		h.log.Failed("watch", lr.arena.key, err.Error())
	}
	if !alive {
		h.rankDied(lj, lr)
	}
}

// AwaitAdoption returns once no arena can come back any more that has not.
func (h *Host) AwaitAdoption(ctx context.Context) error {
	for {
		waiting := true
		if !h.do(ctx, func() { waiting = h.adopting() }) {
			return context.Cause(ctx)
		}
		if !waiting {
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
