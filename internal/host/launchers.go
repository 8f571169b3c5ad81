package host

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// launcher is a `replicad run` on this node. It runs a process per rank that the daemon names, and tells of its end.
type launcher struct {
	peer     session.Peer
	user     int // whose process it is
	request  uint32
	hello    wire.RunHello
	starts   starts
	creating bool
	memory   bool      // it was told what an arena takes
	heard    time.Time // when it said last that a process runs or has ended; zero: never
	deaf     bool      // it has not taken up a start, and said nothing since
	accepted bool
	job      replica.JobID // that it was accepted for: a name may be used again
	idle     time.Time     // since when it was accepted, until it was told what it waits for
	begun    bool          // it was told that the job needs no more what it began with
	done     bool
	taught   bool         // it was told what a program needs
	leaving  bool         // it was told to end
	leaveAt  replica.Step // it may once this step is committed
	kept     *kept.Tar    // files that its job is to carry, until that has them; nil: none
}

func (l *launcher) createRequest(id uint64) control.CreateRequest {
	h := l.hello
	groups, named := h.Groups, h.Flags&wire.RunNameGroups != 0
	unsaid := len(groups) == 0 && !named
	if unsaid {
		groups = make([]replica.GroupID, h.World) // one group: plain data parallelism
	}
	layout := replica.Layout{World: h.World, Groups: groups}
	r := control.CreateRequest{ID: id, Name: h.Job, Owner: uint32(l.user), Token: h.Token, Layout: layout, NameGroups: named, AnyGroups: unsaid, Resume: h.Flags&wire.RunResume != 0, UnlessEnded: h.Flags&wire.RunUnlessEnded != 0, Notes: h.Notes,
		Options: replica.Options{MinCopies: int(h.MinCopies), Cadence: replica.Step(h.Cadence), Slots: int(h.Slots), ChunkBytes: h.ChunkBytes, DurableEvery: replica.Step(h.DurableEvery),
			PrivateCap: uint64(h.PrivateCapMB) << 20, RequireVotes: h.Flags&wire.RunRequireVotes != 0, CollectiveWindow: h.Flags&wire.RunCollectiveWindow != 0,
			LoneAhead: replica.Step(h.LoneAhead), Nondeterministic: nondeterministic(layout, h.Nondeterministic)}}
	if h.From != nil {
		r.From, r.FromFailed = &h.From.Origin, h.From.Failed
	}
	return r
}

// otherJob says how a job that runs is not the one that a launcher asks for; empty: it is.
func (l *launcher) otherJob(job *replica.Job) string {
	r := l.createRequest(0)
	return cmp.Or(r.OtherLayout(job), r.OtherOrigin(job))
}

// requestFor is what the leader is asked for a launcher: where that says nothing of durable writes this node's configuration does.
func (h *Host) requestFor(l *launcher, id uint64) control.CreateRequest {
	r := l.createRequest(id)
	switch every := &r.Options.DurableEvery; {
	case *every == replica.DurableNever:
		*every = 0
	case *every == 0 && h.cfg.HasTier():
		*every = replica.DurableAuto
	}
	return r
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

// otherOptions names the flags of a launcher that say something else than the job that runs: those took effect when it was created.
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

func (h *Host) runHello(ev session.RunHello) {
	l := &launcher{peer: ev.Peer, user: ev.Peer.UID(), request: ev.Header.Request, hello: ev.RunHello, starts: starts{}, kept: ev.Kept}
	h.launchers[ev.Peer.ID()] = l
	if err := replica.CheckJobName(l.hello.Job); err != nil {
		h.refuseLauncher(l, wire.CodeInvalid, "job "+err.Error())
		return
	}
	if text := h.unkeepable(l); text != "" {
		h.refuseLauncher(l, wire.CodeRefused, text)
		return
	}
	h.serveLauncher(l)
}

func (h *Host) refuseLauncher(l *launcher, code int32, text string) {
	h.log.RefusedLauncher(l.hello.Job, l.user, l.peer.PID(), text)
	h.audit.Refused("launcher", h.self.Name, audit.Fields{"job": l.hello.Job, "pid": fmt.Sprint(l.peer.PID()), "refused": text})
	l.peer.Refuse(l.request, code, text)
	l.withdraws()
	delete(h.launchers, l.peer.ID())
}

// saidHello tells the launchers of a process's job that it has connected.
func saidHello(all map[uint64]*launcher, hello wire.Hello) {
	for _, l := range all {
		if l.hello.Job == hello.Job {
			l.starts.hello(hello.Rank)
		}
	}
}

// launching tells whether a launcher here waits for the job to be created.
func (h *Host) launching(job string) bool {
	for _, l := range h.launchers {
		if l.hello.Job == job && !l.done {
			return true
		}
	}
	return false
}

func (h *Host) created(l *launcher, refused string) {
	l.creating = false
	if refused != "" {
		h.refuseLauncher(l, wire.CodeRefused, refused)
		return
	}
	h.serveLauncher(l)
}

func (h *Host) serveLaunchers() {
	for _, l := range h.launchers {
		h.serveLauncher(l)
	}
}

// serveLauncher brings a launcher to its job: creates that, accepts the launcher, starts the ranks it prefers while the job opens.
func (h *Host) serveLauncher(l *launcher) {
	if !h.informed || l.done {
		return
	}
	lj := h.jobNamed(l.hello.Job)
	if before := l.hello.Joined; !l.accepted && before != (replica.JobID{}) && (lj == nil || lj.job.ID != before) {
		h.launcherLate(l)
		return
	}
	if lj == nil {
		if l.accepted {
			h.launcherDone(l)
			return
		}
		if code, text := h.tooMany(l, nil); text != "" {
			h.refuseLauncher(l, code, text)
			return
		}
		h.askFor(l)
		return
	}
	job := lj.job
	if !l.accepted {
		if text := foreign(job, l.user); text != "" {
			h.refuseLauncher(l, wire.CodeRefused, text)
			return
		}
		if text := l.otherJob(job); text != "" {
			h.refuseLauncher(l, wire.CodeRefused, text)
			return
		}
		if code, text := h.tooMany(l, job); text != "" {
			h.refuseLauncher(l, code, text)
			return
		}
		if stop := job.Stop; stop != nil && l.hello.Joined == (replica.JobID{}) {
			if stop.End {
				h.refuseLauncher(l, wire.CodeAgain, fmt.Sprintf("job %q is being ended (%s): step %d is written to the durable tier first, and then --resume goes on from there", job.Name, stop.Reason, job.Committed.Step))
				return
			}
			h.askFor(l) // it has come to go on with the job
			return
		}
		h.sayOrigin(l, job)
		h.acceptLauncher(l, job)
		if differ := otherOptions(l.createRequest(0).Options, job.Options); len(differ) > 0 {
			text := fmt.Sprintf("warning: job %q runs already, and these flags have no effect on it: %s; end the job first to change them", job.Name, strings.Join(differ, ", "))
			l.note(job.Epoch, text)
		}
	}
	h.sayBegun(l, job)
	if job.Stop != nil {
		h.launcherDone(l)
		return
	}
	h.sayIdle(job, l, time.Now())
	if job.Phase != replica.Opening || l.hello.Spare {
		return
	}
	for _, r := range l.hello.Ranks {
		if int(r) < len(job.Ranks) && job.Ranks[r].Incarnation == 0 && l.ready() && l.starts.may(r, time.Now()) && (!l.starts.of(r).held || survivors(job)) {
			h.startRank(lj, l, r)
		}
	}
}

// askFor asks the leader for the launcher's job.
func (h *Host) askFor(l *launcher) {
	if !l.creating && h.mayAsk(uint32(l.user), replica.JobID{}) {
		l.creating = true
		id := h.nextRequest()
		h.creates[id] = l
		h.send(h.requestFor(l, id))
	}
}

func (h *Host) startRank(lj *localJob, l *launcher, r replica.Rank) {
	l.starts.asked(r, time.Now())
	start := wire.RunStart{Rank: r, World: lj.job.Layout.World, Group: replica.NoGroup, Early: uint32(l.starts.of(r).tries)}
	if lj.job.Naming == nil {
		start.Group, start.Groups = room.Group(lj.job, r), lj.job.Layout.Groups
	}
	l.peer.Send(wire.RankHeader{Type: wire.MRunStart, Epoch: lj.job.Epoch}, start.Append(nil)) //nolint:errcheck // a dead peer is Gone
}

func (l *launcher) runs(r replica.Rank) bool {
	return l.starts.of(r).running
}

// maxSeats is how many processes a node could hold: each has a session. A launcher that offers more is not believed.
const maxSeats = session.MaxSessions - 1

// startsAtOnce is how many processes a launcher may be asked for that it has not started yet: it reads a few hundred messages at a time.
const startsAtOnce = 64

func (l *launcher) free() int { return min(int(l.hello.Capacity), maxSeats) - l.starts.running() }

// ready tells whether the launcher may be asked for one more process.
func (l *launcher) ready() bool { return l.free() > 0 && l.starts.unheard() < startsAtOnce }

// offers counts the processes that this node could still start for a job.
func (h *Host) offers(job *replica.Job) (n int, spare bool) {
	if h.shortages.of(job.Name, time.Now()) != "" {
		return 0, false // a process that is started now may find no room
	}
	spare = true
	free := map[int]int{} // by user
	for _, l := range h.launchers {
		if l.accepted && l.hello.Job == job.Name && !l.deaf && !l.done {
			free[l.user] += max(0, l.free())
			spare = spare && l.hello.Spare
		}
	}
	for user, f := range free {
		n += min(f, h.seats(user))
	}
	return min(n, maxSeats), spare && n > 0
}

// seats is for how many more processes of a user there are sessions here: its launchers have one each, and so have the processes that they run.
func (h *Host) seats(user int) int {
	n := h.cfg.PerUser.Sessions
	if n == 0 {
		return maxSeats
	}
	for _, l := range h.launchers {
		if l.user == user {
			n -= 1 + l.starts.running()
		}
	}
	return max(0, n)
}

// tooMany says that a launcher names more ranks to be started here than its user has sessions for; empty: it does not. That is judged where they
// would be started: not of one that comes back, whose processes run, nor of a spare, nor for a job that has trained. job is nil where there is none yet.
func (h *Host) tooMany(l *launcher, job *replica.Job) (code int32, text string) {
	if l.hello.Joined != (replica.JobID{}) || l.hello.Spare || job != nil && job.Phase != replica.Opening {
		return 0, ""
	}
	named, seats := min(len(l.hello.Ranks), int(l.hello.Capacity)), h.seats(l.user)
	if named <= seats {
		return 0, ""
	}
	most := cmp.Or(h.cfg.PerUser.Sessions, session.MaxSessions)
	if code = wire.CodeAgain; named >= most { // however many processes end: the launcher has a session too
		code = wire.CodeRefused
	}
	return code, fmt.Sprintf("job %q: its launcher names %d ranks to start here, and user %d has sessions for %d more processes on this node, of %d (per_user.sessions): name fewer ranks, or end some of this user's processes here", l.hello.Job, named, l.user, seats, most)
}

// launchersOf counts the launchers of a job here.
func (h *Host) launchersOf(job *replica.Job) (n int) {
	for _, l := range h.launchers {
		if l.accepted && l.job == job.ID && !l.done {
			n++
		}
	}
	return n
}

// starting lists the ranks for which a launcher here runs a process that has not attached: of their claims nothing is known yet. One that
// has attached and is dead is none of them, though its launcher has not said yet that it ended.
func (h *Host) starting(lj *localJob) (ranks []replica.Rank, pids []uint64, halted []replica.Rank) {
	at := map[replica.Rank]start{}
	for _, l := range h.launchers {
		if !l.accepted || l.hello.Job != lj.job.Name {
			continue
		}
		for _, r := range l.starts.ranks() {
			if l.starts.silent(r, l.heard, time.Now(), h.takeUp()) {
				continue // its launcher does not answer
			}
			if lr, p := lj.ranks[r], l.starts.of(r); !p.attached && (lr == nil || !lr.alive()) {
				at[r] = p
			}
		}
	}
	for _, r := range slices.Sorted(maps.Keys(at)) {
		ranks, pids = append(ranks, r), append(pids, at[r].pid)
		if at[r].halted {
			halted = append(halted, r)
		}
	}
	return ranks, pids, halted
}

// hears notes that the launcher does what it was asked to.
func (l *launcher) hears() { l.heard, l.deaf = time.Now(), false }

// runRunning: a launcher names its processes after each reconnect, those that attached before among them.
func (h *Host) runRunning(p session.Peer, rank replica.Rank, pid uint64) {
	l := h.launchers[p.ID()]
	if l == nil {
		return
	}
	l.starts.runs(rank, pid, time.Now())
	l.hears()
	if lj := h.jobNamed(l.hello.Job); lj != nil {
		h.takeOffers(lj) // it may be asked for the next one
		if lr := lj.ranks[rank]; lr != nil && lr.alive() && uint64(lr.pid) == pid {
			l.starts.entry(rank).attached = true
		}
	}
}

func (h *Host) runExited(ev session.RunExited) {
	l := h.launchers[ev.Peer.ID()]
	if l == nil {
		return
	}
	r := ev.RunExited.Rank
	l.hears()
	l.starts.over(r)
	h.log.Exited(l.hello.Job, r, ev.RunExited.PID, ev.RunExited.Status)
	lj := h.jobNamed(l.hello.Job)
	if lj == nil {
		h.serveLauncher(l)
		return
	}
	h.endedBy(lj, l, ev.RunExited)
	if lr := lj.ranks[r]; lr != nil && uint64(lr.pid) == ev.RunExited.PID {
		h.rankDied(lj, lr)
	} else if !l.starts.of(r).attached { // else the rank was a child of the launcher's process, or has been taken over
		h.endedEarly(lj, l, r, ev.RunExited.Status)
	}
	h.takeOffers(lj)
	h.report(lj)
}

// endedEarly counts a process that ended before it attached: it was started in vain, and will be again.
func (h *Host) endedEarly(lj *localJob, l *launcher, r replica.Rank, status int32) {
	c := lj.job.Ranks[r]
	elsewhere := c.Incarnation != 0 && c.Node != h.self.Name && !recovery.Vacated(lj.job, r)
	if l.starts.strange(r, status) && !elsewhere && lj.job.Phase != replica.Ended && !l.done && !survivors(lj.job) {
		if lj.job.Phase == replica.Opening && l.starts.running() > 0 {
			l.starts.entry(r).held = true
			l.note(lj.job.Epoch, fmt.Sprintf("rank %d's process ended with status 0 and never connected to the daemon; it is started again once another process of the job has attached", r))
			return
		}
		stranger(h, lj, l, r)
		return
	}
	if kind := h.wanted(lj, r, status); kind != want.Nothing {
		l.starts.again(r, time.Now())
		h.short(lj, r, kind, fmt.Sprintf("a process for rank %d ended with status %d before it attached", r, status))
		return
	}
	if elsewhere {
		return // it came too late: a process elsewhere has the rank
	}
	tries := l.starts.early(r, time.Now(), h.cfg.Timing.Start)
	h.log.StartFailed(lj.job, r, status, tries, startTries)
	if tries < startTries || lj.job.Phase == replica.Ended || l.done {
		return
	}
	why := fmt.Sprintf("rank %d ended %d times in a row on node %s before it attached, the last time with status %d", r, tries, h.self.Name, status)
	was := l.starts.of(r)
	if was.refused != "" {
		why += ": " + was.refused
	}
	why += "; its own output says why"
	if was.turned || !survivors(lj.job) {
		h.unfit(lj, l, r, why)
		return
	}
	h.endForGood(lj, r, why)
}

// wanted is what a process that ended before it attached was short of, as its status says, or what this node is short of. Nothing: it failed.
func (h *Host) wanted(lj *localJob, r replica.Rank, status int32) want.Kind {
	switch {
	case status < 0:
		return want.Kind(-max(status, -int32(want.Something)))
	case status == wire.StatusWant, h.shortages.of(lj.job.Name, time.Now()) != "" && status != wire.StatusFinal:
		return want.Something
	}
	return want.Nothing
}

// killStuck ends the processes here that were started and have neither attached nor met anybody since (an import from a file system
// that hangs, for example): the epoch that waits for them has no steps to tell a hang by. Where a job begins and no other rank has attached, nobody
// waits for one: the program may take as long as it needs before its session, and its launcher is told.
func (h *Host) killStuck() {
	limit := h.cfg.Timing.Start
	starting := map[*localJob][]replica.Rank{} // which looks at all launchers: a user may have hundreds of them
	for _, l := range h.launchers {
		lj := h.jobNamed(l.hello.Job)
		if lj == nil || !l.accepted {
			continue
		}
		if _, known := starting[lj]; !known {
			starting[lj], _, _ = h.starting(lj)
		}
		for _, r := range starting[lj] {
			switch {
			case h.heardOf(lj, r):
				l.starts.excused(r, time.Now())
			case recovery.StartAwaited(lj.job, r) && l.starts.stuck(r, time.Now(), limit):
				why := fmt.Sprintf("killed, since it had not attached after %v (timing.start of this node's configuration)", limit)
				l.starts.refused(r, why, false)
				h.log.RankNote(lj.job, r, "stuck", why)
				l.note(lj.job.Epoch, fmt.Sprintf("rank %d: %s; it is started again", r, why))
				l.peer.Send(wire.RankHeader{Type: wire.MRunStop, Epoch: lj.job.Epoch}, wire.RunStop{Rank: r, Signal: uint32(syscall.SIGKILL)}.Append(nil)) //nolint:errcheck // a dead peer is Gone
			}
		}
	}
}

// heardOf tells whether a process for a rank waits for this daemon's word: at the rendezvous, or to attach.
func (h *Host) heardOf(lj *localJob, r replica.Rank) bool {
	if h.desk.Waits(lj.job.ID, r) {
		return true
	}
	for _, a := range h.attaching { // one that was welcomed and has not asked to attach yet builds its model
		if a.hello.Job == lj.job.Name && a.hello.Rank == r && (a.attach != 0 || !a.welcomed) {
			return true
		}
	}
	return false
}

// note has a launcher print something. An empty text tells it that its request is looked after.
func (l *launcher) note(e replica.Epoch, text string) {
	l.peer.Send(wire.RankHeader{Type: wire.MRunNote, Epoch: e}, wire.Refused{Text: text}.Append(nil)) //nolint:errcheck // a dead peer is Gone
}

// tellLaunchers passes on what the leader has to say of their job.
func (h *Host) tellLaunchers(news control.Tell) {
	if lj := h.jobs[news.Job]; lj != nil {
		lj.exposure.Told(time.Now())
		h.noteAll(lj, news.Text)
	}
}

// rankAttached tells the job's launchers that the process of a rank has its arena.
func (h *Host) rankAttached(job string, r replica.Rank) {
	for _, l := range h.launchers {
		if l.hello.Job == job {
			l.starts.attached(r)
		}
	}
}

// launcherGone forgets a launcher; its processes are found by their own sessions.
func (h *Host) launcherGone(l *launcher) {
	l.withdraws()
	delete(h.launchers, l.peer.ID())
	h.notify(h.agents, act.Gone{Peer: l.peer})
	for _, lj := range h.jobs {
		if lj.job.Name == l.hello.Job {
			h.report(lj)
		}
	}
}

// stopLeftovers ends the processes of a finished job that are no ranks of it: the launcher waits for all others to end by themselves. They
// have not attached, or are superseded.
func (h *Host) stopLeftovers(lj *localJob, l *launcher) {
	for _, r := range l.starts.ranks() {
		lr := lj.ranks[r]
		left, here := lr != nil && lr.left(), lr != nil && lr.alive()
		if left || !here && l.starts.of(r).attached { // or it has just ended: its status is its own
			continue
		}
		l.peer.Send(wire.RankHeader{Type: wire.MRunStop, Epoch: lj.job.Epoch}, wire.RunStop{Rank: r}.Append(nil)) //nolint:errcheck // a dead peer is Gone
	}
}

// acceptLauncher says that it is of a job.
func (h *Host) acceptLauncher(l *launcher, job *replica.Job) {
	l.accepted, l.job, l.idle = true, job.ID, time.Now()
	if lj := h.jobs[job.ID]; lj != nil && len(l.hello.Notes) > 0 {
		lj.said.Say(replica.ByLauncher, 0, l.hello.Notes)
		h.saySaid(lj)
	}
	l.peer.Send(wire.RankHeader{Type: wire.MRunOK, Request: l.request, Epoch: job.Epoch}, wire.Welcome{ABI: wire.RankABI, Cluster: h.cluster, Job: job.ID, Era: h.era, ChunkBytes: room.ChunkBytes(job)}.Append(nil)) //nolint:errcheck // a dead peer is Gone
	if lj := h.jobs[job.ID]; lj != nil {
		l.offers(h, lj)
	}
}

// launcherLate answers one that was accepted for a job that has ended while no daemon was there to tell it.
func (h *Host) launcherLate(l *launcher) {
	if lj := h.jobs[l.hello.Joined]; lj != nil {
		h.acceptLauncher(l, lj.job)
		h.launcherDone(l)
		return
	}
	job := &replica.Job{ID: l.hello.Joined, Name: l.hello.Job}
	h.acceptLauncher(l, job)
	h.sayDone(l, job, 1, fmt.Sprintf("job %v ended while this node's daemon was away, and nobody knows any more how: %q is another job now, or none; the same command starts it again", job.ID, job.Name))
}

// launcherDone tells a launcher how its job ended, or is ending: 0 finished, 1 stopped for good, wire.ExitDoNotRequeue; wire.DoneStopped of one
// that may go on.
func (h *Host) launcherDone(l *launcher) {
	lj := h.jobs[l.job]
	if lj == nil || !over(lj.job) {
		return
	}
	reason := lj.job.EndReason
	if stop := lj.job.Stop; stop != nil {
		if reason = stop.Reason; !stop.End {
			h.sayDone(l, lj.job, wire.DoneStopped, fmt.Sprintf("%s; step %d stays in memory for a while, and the same command goes on with it", reason, lj.job.Committed.Step))
			return
		}
		reason += fmt.Sprintf("; step %d is being written to the durable tier first", lj.job.Committed.Step)
	}
	code := int32(1)
	switch {
	case recovery.HasFinished(lj.job):
		code = 0
		h.stopLeftovers(lj, l)
	case strings.HasPrefix(reason, recovery.DoNotRequeue):
		code = wire.ExitDoNotRequeue
	}
	h.sayDone(l, lj.job, code, reason)
}

// over tells whether a job has ended, or was stopped: its ranks are to end.
func over(job *replica.Job) bool { return job.Phase == replica.Ended || job.Stop != nil }

func (h *Host) sayDone(l *launcher, job *replica.Job, code int32, text string) {
	l.done = true
	h.sayUnkept(l, job)
	l.peer.Send(wire.RankHeader{Type: wire.MRunDone, Epoch: job.Epoch}, wire.Refused{Code: code, Text: text}.Append(nil)) //nolint:errcheck // a dead peer is Gone
}
