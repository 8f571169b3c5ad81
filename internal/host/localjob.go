package host

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/exposure"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/admission"
	"github.com/replicad/replicad/internal/host/lacks"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/internal/host/mirrors"
	"github.com/replicad/replicad/internal/host/remarks"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/invariant"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// localJob is this node's part of a job. Owned by the host.
type localJob struct {
	job *replica.Job
	candidacy
	ranks      map[replica.Rank]*localRank
	retired    []*holding.Arena    // of ranks that live elsewhere now, or of an earlier geometry: holders until a newer commit
	mirrors    *mirrors.Held       // parts held for other nodes' ranks: the room's
	spell      journal.CommitSpell // what the log was not told yet of commits
	fenced     replica.Epoch       // fence words raised to
	settleBy   time.Time           // after it, what is unfinished is torn
	settleTime time.Duration       // from the fence to settleBy
	stopBy     time.Time           // after it, ranks that did not stop at the end of the job are killed
	since      stageClock          // since when it is where it is
	clocks     recovery.Keep       // what a leader has handed out of the job's clocks, for the next one
	still      reportClock         // since when there is nothing else to report
	seq        uint64
	reported   replica.NodeReport // as sent last, to send only changes
	bad        []replica.Held     // copies here that failed their digest since the job last ran
	badDisk    []replica.Held     // and durable parts, when they were read here
	lacks      lacks.Book         // what copies of ranks here lack
	said       remarks.Book       // what ranks and launchers here say of the job
	launched   *launchers.Book    // what its launchers here know of it
	exposure   exposure.Watch     // what a fault would cost now
	admission  *admission.Book    // what was read for processes that want its ranks
}

func newLocalJob(job *replica.Job, held *mirrors.Held) *localJob {
	return &localJob{job: job, candidacy: newCandidacy(), ranks: map[replica.Rank]*localRank{}, mirrors: held,
		lacks: lacks.Book{}, launched: launchers.NewBook(), admission: admission.NewBook()}
}

// localRank is a rank whose claim this node holds, or held. Owned by the host.
type localRank struct {
	rank        replica.Rank
	incarnation replica.Incarnation
	arena       *holding.Arena
	halfDone    holding.Left // half done when this daemon got the arena; nil: its captures are joined since
	peer        session.Peer // nil: not attached now
	pid         int
	start       uint64
	life        life
	unproven    bool          // pid and start are the rank's own word: watched, never killed
	finishing   int           // places whose COPIED bytes are being hashed in the dead rank's name
	stoppedAt   time.Time     // since when it is stopped
	torn        replica.Epoch // closed epoch at whose settle timeout its unfinished places were torn
	initial     replica.Epoch // sealed both parts as (initial, init)
	gone        replica.Epoch // let go in this epoch
	loaded      replica.Epoch // acknowledged its roots for the plan of this epoch
	rejected    replica.Epoch // said that what it loaded in this epoch is bad: it is not given it again
	watch
	ending   uint64   // for how many milliseconds its process has said that it may be on its way out
	progress uint64   // while it comes to rest: megabytes that it has in reach
	killed   bool     // by reap
	end      string   // why this daemon ends its process, where the fault is to say so
	leaveTo  uint32   // request to answer with BYE once the job has ended
	ordered  orderKey // the last order sent, so that orders can be derived again and again
	still    stillness
	sealedAt map[replica.Generation]time.Time
}

// superseded reports whether a newer incarnation holds the rank, or nobody will.
func (lr *localRank) superseded(job *replica.Job) bool {
	return room.Superseded(job, lr.rank, lr.incarnation)
}

// view is the job as rooms see it.
func (lj *localJob) view() room.JobView {
	v := room.JobView{Job: lj.job, Candidate: lj.candidate, CandidateAt: lj.candidateAt, WaitsAt: lj.waitsFrom(lj.job.Position), Fenced: lj.fenced, Retired: lj.retired, Mirrors: lj.mirrors.All()}
	for _, r := range slices.Sorted(maps.Keys(lj.ranks)) {
		lr := lj.ranks[r]
		v.Ranks = append(v.Ranks, room.Rank{Rank: r, Incarnation: lr.incarnation, Arena: lr.arena, Alive: lr.alive(), Waits: lr.alive() && lr.stopped() && !lr.superseded(lj.job) && lr.finishing == 0})
	}
	return v
}

// parts lists every sealed part held here.
func (lj *localJob) parts() []holding.Copy { return lj.view().Copies() }

// report sends the node's full account of a job when it changed, or when one is due.
func (h *Host) report(lj *localJob) {
	if h.link == nil {
		return
	}
	r := replica.NodeReport{Job: lj.job.ID, Holder: h.holder(), Session: h.self.Session, Fenced: lj.fenced, Settled: true, Epoch: lj.job.Epoch, Phase: lj.job.Phase}
	for _, lr := range lj.ranks {
		a := lr.arena
		rr := replica.RankReport{Rank: lr.rank, Incarnation: lr.incarnation, Alive: lr.alive(), Attached: lr.peer != nil, PID: uint64(lr.pid), Live: a.Step(), Good: a.Good(),
			Settled: lr.settled(), Stopped: lr.stopped() && lr.alive(), Initial: lr.initial, Loaded: lr.loaded, Left: lr.left(), Hung: lr.hangs(a.Step()), Halted: lr.halted, Progress: lr.progress, EndingMS: lr.ending}
		rr.Stopped = rr.Stopped && !lr.outgrown(lj.job) // its process is about to end
		rr.Growth = h.growing.Of(lj.job.ID, lr.rank)
		h.loads(lj.job, lr, &rr)
		rr.Whole = rr.Live.Phase() == replica.Idle && rr.Good.Generation() == rr.Live.Generation() && rr.Stopped
		r.Settled = r.Settled && rr.Settled
		r.Ranks = append(r.Ranks, rr)
	}
	r.Ranks = append(r.Ranks, h.orphaned(lj)...)
	for _, l := range lj.parts() {
		if l.Held.Part.Kind != replica.FrozenPart && l.Whole() {
			r.Parts = append(r.Parts, l.Held)
		}
	}
	if lj.job.Phase == replica.Open {
		lj.bad, lj.badDisk = nil, nil
		r.Candidate = lj.goesOnWith(lj.job, lj.parts())
	}
	r.Lacks = lj.lacks.Report()
	r.Bad, r.BadDisk = slices.Clone(lj.bad), slices.Clone(lj.badDisk)
	h.launchers.Of(lj).Fill(&r, time.Now())
	if extra := lj.settleTime - h.cfg.Timing.Settle; extra > 0 {
		r.SettleMS = uint64(lj.settleTime.Milliseconds())
	}
	sortReport(&r)
	r.Seq = lj.reported.Seq
	if reflect.DeepEqual(r, lj.reported) {
		return
	}
	lj.seq++
	r.Seq = lj.seq
	sent := lj.timed(r, time.Since(h.began))
	invariant.Holds(r.Seq > lj.reported.Seq, "report %d of job %s follows report %d", r.Seq, lj.job.Name, lj.reported.Seq)
	lj.reported = r
	h.send(sent)
}

// takenForDead tells whether a job has this node down as dead or silent, though it reads that. Its reports end that, if they come after the
// fault: it repeats them meanwhile.
func (h *Host) takenForDead(job *replica.Job) bool {
	return slices.ContainsFunc(job.Faults, func(f replica.Fault) bool {
		return f.OfNode() && f.Kind.IsCondition() && f.Node == h.self.Name && f.NodeIncarnation == h.self.Incarnation
	})
}

// orphaned are the claims of this node that no process of it has: it went, or was refused its arena, between the two, or
// the daemon was away then. Nobody else would ever report their deaths.
func (h *Host) orphaned(lj *localJob) (dead []replica.RankReport) {
	for r, c := range lj.job.Ranks {
		rank := replica.Rank(r)
		if c.Incarnation == 0 || c.Node != h.self.Name || c.NodeIncarnation != h.self.Incarnation || h.admission.Claiming(lj.job.Name, rank) {
			continue
		}
		if lr := lj.ranks[rank]; lr == nil || lr.incarnation < c.Incarnation {
			dead = append(dead, replica.RankReport{Rank: rank, Incarnation: c.Incarnation, Settled: true})
		}
	}
	return dead
}

func (h *Host) holder() replica.Holder { return h.self.Holder() }

// settled tells whether nothing of the rank can be sealed any more: it waits in rp_join with its captures joined, or what it
// had not finished in time was torn, or it is dead with every place sealed, torn or free. A process that has loaded nothing yet
// (it prefaults its arena, say) has nothing to finish: its node is not held for silent meanwhile.
func (lr *localRank) settled() bool {
	if lr.alive() {
		return lr.stopped() || lr.loaded == 0 || lr.torn != 0 && lr.torn >= lr.arena.Fence()
	}
	return lr.finishing == 0
}

// reconcile brings everything local in line with the job's replicated state. It is idempotent; every view calls it, and
// whatever happens locally that could make an order, a restore or a pin possible.
func (h *Host) reconcile(lj *localJob) {
	lj.clocks.Follow(time.Since(h.began), lj.job)
	h.fence(lj)
	h.killHung(lj)
	h.supersede(lj)
	h.notify(h.growing, act.Changed{Job: lj.job.ID})
	h.notify(h.restores, act.Changed{Job: lj.job.ID})
	h.notify(h.mirrors, act.Changed{Job: lj.job.ID})
	h.order(lj)
	lj.said.Learn(lj.job)
	h.saySaid(lj) // before the reports of what is written
	h.notify(h.writer, act.Changed{Job: lj.job.ID})
	h.answerCandidate(lj)
	h.retain(lj)
	lj.lacks.Learn(lj.job)
	h.report(lj)
	if invariant.On {
		lj.check()
	}
}

// saySaid sends the leader what ranks and launchers here report of the generation that is being written.
func (h *Host) saySaid(lj *localJob) {
	if list, news := lj.said.Report(lj.job); news {
		h.send(control.SaidReport{Job: lj.job.ID, Number: lj.job.Writer.Number, Said: list})
	}
}

// sortReport puts a report in one order, so that equal ones compare equal.
func sortReport(r *replica.NodeReport) {
	slices.SortFunc(r.Ranks, func(a, b replica.RankReport) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	slices.SortFunc(r.Parts, func(a, b replica.Held) int {
		return cmp.Or(cmp.Compare(a.Part.Kind, b.Part.Kind), cmp.Compare(a.Part.Index, b.Part.Index), a.Generation.Compare(b.Generation), cmp.Compare(a.Rank, b.Rank))
	})
}
