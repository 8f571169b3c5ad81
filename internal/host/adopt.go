package host

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// orphan is an arena that was adopted before its job is known.
type orphan struct {
	*holding.Arena
	peer session.Peer    // of its rank, where that came back
	said []session.Event // by the rank meanwhile: told again once the job is known
}

func (h *Host) arenaListPath() string { return filepath.Join(h.cfg.StateDir, "arenas.json") }

// arenaList is what a daemon that starts again must know of.
func (h *Host) arenaList() []holding.Entry {
	list := append([]holding.Entry{}, h.awaited...)
	passing := map[string]bool{} // on their way from a dead process to the next one
	for _, a := range h.attaching {
		if a.arena != nil {
			passing[a.arena.Key()] = true
			list = append(list, holding.Entry{Key: a.arena.Key(), Job: a.arena.Spec().Job, Rank: a.hello.Rank, PID: a.peer.PID(), Start: a.peer.StartTime(), For: a.hello.Job})
		}
	}
	for _, ref := range h.orphans {
		if s := ref.Spec(); s.Mirror || ref.Process.Proven {
			list = append(list, holding.Entry{Key: ref.Key(), Job: s.Job, Rank: s.Rank, Mirror: s.Mirror, PID: ref.Process.PID, Start: ref.Process.Start})
		}
	}
	for id, lj := range h.jobs {
		for r, lr := range lj.ranks {
			if lr.unproven || passing[lr.arena.Key()] {
				continue // listed it would count as proven
			}
			list = append(list, holding.Entry{Key: lr.arena.Key(), Job: id, Rank: r, PID: lr.pid, Start: lr.start})
		}
		for _, a := range lj.retired {
			if passing[a.Key()] {
				continue
			}
			list = append(list, holding.Entry{Key: a.Key(), Job: id, Rank: a.Spec().Rank})
		}
		for _, m := range append(lj.mirrors.All(), lj.mirrors.Coming()...) {
			list = append(list, holding.Entry{Key: m.Arena.Key(), Job: id, Rank: m.Rank, Mirror: true})
		}
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
		if desk.Records(key) {
			if h.desk.Adopt(key, f) {
				h.custody.Holds(key, f)
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
		ref := holding.New(a, key, h.unmap)
		h.custody.Holds(key, ref.File())
		e, known := listed[key]
		if odd := ref.Identify(e, known); odd != "" {
			h.log.Failed("adopt", key, odd)
		}
		h.orphans = append(h.orphans, &orphan{Arena: ref})
		delete(listed, key)
	}
	for key, e := range listed {
		if e.PID != 0 && e.Boot == h.self.Boot && h.processes.Alive(e.PID, e.Start) {
			h.awaited = append(h.awaited, e)
		} else {
			h.log.Note2(nil, "arena_lost", fmt.Sprintf("arena %s came back neither from the keeper nor from a live process", key))
		}
	}
	h.awaitedSince = time.Now()
	return nil
}

// adopting tells whether an arena may still come back from a live rank. A process that is stopped, or hangs, never brings it, and its node
// would count as silent for as long: as any rank that stands still it is killed after hang_first. Whom to kill is the list's word.
func (h *Host) adopting() bool {
	waited := time.Since(h.awaitedSince)
	h.awaited = slices.DeleteFunc(h.awaited, func(e holding.Entry) bool {
		if !h.processes.Alive(e.PID, e.Start) {
			return true
		}
		if waited < h.cfg.Timing.HangFirst {
			return false
		}
		how := "hangs"
		if h.processes.Halted(e.PID, e.Start) {
			how = "is stopped by a signal"
		}
		h.log.Note2(nil, "arena_lost", fmt.Sprintf("process %d of rank %d, which alone has arena %s, has not brought it in %v: it %s, and is killed", e.PID, e.Rank, e.Key, waited.Round(time.Second), how))
		if err := h.processes.Kill(e.PID, e.Start); err != nil {
			h.log.Failed("kill", e.Key, err.Error())
		}
		return true
	})
	return len(h.awaited) > 0
}

// adoptOffered takes an arena that a live rank offers, where the keeper had lost it.
func (h *Host) adoptOffered(ev session.Hello) bool {
	awaits := func(rank replica.Rank, of func(holding.Entry) bool) int { // a process may have several ranks, of several jobs
		return slices.IndexFunc(h.awaited, func(e holding.Entry) bool {
			return e.PID == ev.Peer.PID() && e.Start == ev.Peer.StartTime() && e.Rank == rank && of(e)
		})
	}
	if awaits(ev.Hello.Rank, func(holding.Entry) bool { return true }) < 0 {
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
	i := awaits(a.Spec().Rank, func(e holding.Entry) bool { return e.Job == a.Spec().Job && a.Spec().Rank == ev.Hello.Rank })
	if i < 0 {
		h.unmap(a)
		return false
	}
	ref := &orphan{Arena: holding.New(a, h.awaited[i].Key, h.unmap), peer: ev.Peer}
	h.custody.Put(ref.Key(), ref.File())
	h.awaited = slices.Delete(h.awaited, i, i+1)
	inc, _, _ := ref.Owner()
	ref.Process = holding.Process{PID: ev.Peer.PID(), Start: ev.Peer.StartTime(), Proven: true}
	h.attached(ev, ref.Arena, inc, 0)
	h.orphans = append(h.orphans, ref)
	h.claimOrphans()
	return true
}

// handedNothing no longer awaits an arena from a process that asks for one: the daemon before died as it handed it out, and the keeper too.
func (h *Host) handedNothing(ev session.Hello) {
	h.awaited = slices.DeleteFunc(h.awaited, func(e holding.Entry) bool {
		never := e.For != "" && e.For == ev.Hello.Job && e.Rank == ev.Hello.Rank && e.PID == ev.Peer.PID() && e.Start == ev.Peer.StartTime()
		if never {
			h.log.Note2(nil, "arena_lost", fmt.Sprintf("arena %s was never handed to its process, which asks for another", e.Key))
		}
		return never
	})
}

// claimOrphans gives adopted arenas to their jobs, once those are known. Deaths are looked at last: one has the job fenced and
// reported, and until all are in their places arenas would miss the fence, and live ranks be reported as gone.
func (h *Host) claimOrphans() {
	type inPlace struct {
		lr *localRank
		of *orphan
	}
	var adopted []inPlace
	var rest, unwanted []*orphan
	for _, ref := range h.orphans {
		lj := h.jobs[ref.Spec().Job]
		switch {
		case lj == nil && !h.informed:
			rest = append(rest, ref)
		case lj == nil || lj.job.Phase == replica.Ended && (ref.Spec().Mirror || !h.processes.Alive(ref.Process.PID, ref.Process.Start)):
			unwanted = append(unwanted, ref)
		case ref.Spec().Mirror:
			h.adoptMirror(lj, ref.Arena)
		default:
			if lr := h.adoptRank(lj, ref); lr != nil {
				adopted = append(adopted, inPlace{lr, ref})
			}
		}
	}
	h.orphans = rest
	for _, ref := range unwanted { // once all the others are where the list is made from
		if ref.peer != nil {
			h.turnAway(ref)
		}
		h.forget(ref.Arena)
	}
	if len(adopted) > 0 {
		h.saveArenas() // with those that attached again meanwhile
	}
	for _, a := range adopted {
		if lj := h.jobs[a.of.Spec().Job]; lj.ranks[a.lr.rank] == a.lr { // else a newer one of the rank came behind it
			h.adoptedRank(lj, a.lr, a.of)
		}
	}
}

// adoptMirror puts a mirror's arena in its place. Where another one has that, the older of the two is a holder until the next commit, like that
// of a rank that lives elsewhere now.
func (h *Host) adoptMirror(lj *localJob, a *holding.Arena) {
	if other := h.mirrors.Adopt(lj.job.ID, room.Mirrored(lj.job, a.Spec()), a); other != nil {
		lj.retired = append(lj.retired, other)
	}
	turn(h.mirrors, time.Now(), h.doMirror)
}

// adoptRank puts an arena in its rank's place; nil where that is taken by a newer one.
func (h *Host) adoptRank(lj *localJob, ref *orphan) *localRank {
	inc, _, _ := ref.Owner()
	rank := ref.Spec().Rank
	if old := lj.ranks[rank]; old != nil {
		if old.incarnation >= inc {
			lj.retired = append(lj.retired, ref.Arena)
			return nil
		}
		lj.retired = append(lj.retired, old.arena)
	}
	is := attached
	if recovery.HasFinished(lj.job) { // it said so to the daemon before
		is = finished
	}
	lr := &localRank{life: is, rank: rank, incarnation: inc, arena: ref.Arena, pid: ref.Process.PID, start: ref.Process.Start, unproven: !ref.Process.Proven, peer: ref.peer, sealedAt: map[replica.Generation]time.Time{}}
	lr.halfDone = ref.HalfDone()
	lj.ranks[rank] = lr
	h.reserve(ref.Arena)
	ref.RaiseFence(lj.fenced)
	ref.SetCommitted(lj.job.Position) // it may have moved while no daemon was here to say so
	if good := ref.Good(); good.Epoch() < lj.job.Epoch || lj.job.Phase == replica.Open || lj.job.Phase == replica.Closed {
		lr.loaded = good.Epoch() // in the epoch that is planned it says so again; good may be of the initial state there, or of one that is rejected
	}
	return lr
}

// turnAway tells a rank that came back that nobody knows its job.
func (h *Host) turnAway(ref *orphan) {
	inc, _, _ := ref.Owner()
	ref.RaiseFence(replica.MaxEpoch) // no epoch is to come
	o := wire.Order{Action: wire.OrderStop, Code: wire.CodeStopped, Text: fmt.Sprintf("job %s is not known: it was ended, or its cluster has lost it", ref.Spec().Job)}
	ref.peer.Send(wire.RankHeader{Type: wire.MOrder, Incarnation: inc}, o.Append(nil)) //nolint:errcheck // a dead peer is Gone
}

// keepSaid remembers what a rank says before its job is known: of each kind the newest, and of the seals one for each place, so that
// there is a bound. An earlier one of a kind means nothing beside a later one: the words and places of the arena are the truth.
func (o *orphan) keepSaid(ev session.Event) {
	if s, ok := ev.(session.Sealed); ok && !o.Has(shm.Place{Kind: shm.PlaceKind(s.Sealed.Kind), Index: int(s.Sealed.Index)}) {
		return
	}
	o.said = append(slices.DeleteFunc(o.said, func(old session.Event) bool {
		if of, ok := old.(session.Sealed); ok {
			is, ok := ev.(session.Sealed)
			return ok && of.Sealed.Kind == is.Sealed.Kind && of.Sealed.Index == is.Sealed.Index
		}
		return reflect.TypeOf(old) == reflect.TypeOf(ev)
	}), ev)
}

func (h *Host) adoptedRank(lj *localJob, lr *localRank, of *orphan) {
	h.checkInitial(lj, lr)
	said := of.said
	of.said = nil
	for _, ev := range said { // before its death is looked at: it may have left
		h.rankSays(lj, lr, ev)
	}
	if lj.ranks[lr.rank] != lr {
		return // given up by what it said
	}
	alive := h.processes.Alive(lr.pid, lr.start)
	h.log.Adopted(lj.job, lr.rank, lr.pid, alive)
	if err := h.sessions.Watch(lr.pid, lr.start); err != nil {
		h.log.Failed("watch", lr.arena.Key(), err.Error())
	}
	if !alive {
		h.rankDied(lj, lr)
	}
}

// AwaitAdoption returns once no arena can come back any more that has not.
func (h *Host) AwaitAdoption(ctx context.Context) error {
	for {
		var adoption adoptionState
		if !h.ask(ctx, &adoption) {
			return h.gone(ctx)
		}
		if !adoption.waiting {
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

func (q *adoptionState) serve(h *Host) { q.waiting = h.adopting() }
