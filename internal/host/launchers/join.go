package launchers

import (
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// hello takes a launcher in, or refuses it.
func (p *Pool) hello(ev session.RunHello, now time.Time) {
	l := newLauncher(ev)
	p.all[ev.Peer.ID()] = l
	if err := replica.CheckJobName(l.hello.Job); err != nil {
		p.refuse(l, wire.CodeInvalid, "job "+err.Error())
		return
	}
	if text := p.unkeepable(l); text != "" {
		p.refuse(l, wire.CodeRefused, text)
		return
	}
	p.serve(l, now)
}

func (p *Pool) refuse(l *launcher, code int32, text string) {
	p.log.RefusedLauncher(l.hello.Job, l.user, l.peer.PID(), text)
	p.audit.Refused("launcher", p.self, audit.Fields{"job": l.hello.Job, "pid": fmt.Sprint(l.peer.PID()), "refused": text})
	l.peer.Refuse(l.request, code, text)
	l.withdraw()
	delete(p.all, l.peer.ID())
}

// Created takes the leader's answer to a create.
func (p *Pool) Created(reply control.CreateReply, now time.Time) {
	l := p.creates[reply.ID]
	if l == nil {
		return
	}
	if reply.Waits {
		l.note(0, reply.Text)
		return
	}
	delete(p.creates, reply.ID)
	if p.all[l.peer.ID()] != l {
		return // it is gone
	}
	l.creating = false
	switch {
	case reply.Retry: // the next tick asks again
	case reply.Refused != "":
		p.refuse(l, wire.CodeRefused, reply.Refused)
	default:
		p.serve(l, now)
	}
}

// Resend repeats to a new leader the creates of the launchers that are here.
func (p *Pool) Resend() {
	for id, l := range p.creates {
		if p.all[l.peer.ID()] != l {
			delete(p.creates, id)
			continue
		}
		p.owner.Send(p.request(l, id))
	}
}

// Serve brings each launcher as far as its job allows now.
func (p *Pool) Serve(now time.Time) {
	for _, l := range p.all {
		p.serve(l, now)
	}
}

// Empty reports whether no launcher is here, and none has left something under way.
func (p *Pool) Empty() bool { return len(p.all)+len(p.creates) == 0 }

// serve brings a launcher to its job: creates that, accepts the launcher, starts the ranks it prefers while the job opens.
func (p *Pool) serve(l *launcher, now time.Time) {
	if !p.owner.Informed() || l.done {
		return
	}
	job := p.owner.Named(l.hello.Job)
	if before := l.hello.Joined; !l.accepted && before != (replica.JobID{}) && (job == nil || job.Record().ID != before) {
		p.late(l, now)
		return
	}
	if job != nil {
		p.Of(job).serve(l, now)
		return
	}
	if l.accepted {
		p.over(l)
		return
	}
	if code, text := p.tooMany(l, nil); text != "" {
		p.refuse(l, code, text)
		return
	}
	p.askFor(l)
}

func (v View) serve(l *launcher, now time.Time) {
	job := v.job.Record()
	if !l.accepted && !v.join(l, now) {
		return
	}
	l.began(job)
	if job.Stop != nil {
		v.pool.over(l)
		return
	}
	l.idles(job, now)
	if job.Phase != replica.Opening || l.hello.Spare {
		return
	}
	for _, r := range l.hello.Ranks {
		wanted := int(r) < len(job.Ranks) && job.Ranks[r].Incarnation == 0
		if wanted && l.ready() && l.starts.may(r, now) && (!l.starts.of(r).held || survivors(job)) {
			l.start(job, r, now)
		}
	}
}

// join accepts a launcher for the job; false: it is refused, or the leader is asked first.
func (v View) join(l *launcher, now time.Time) bool {
	p, job := v.pool, v.job.Record()
	if text := room.Foreign(job, l.user); text != "" {
		p.refuse(l, wire.CodeRefused, text)
		return false
	}
	if text := l.otherJob(job); text != "" {
		p.refuse(l, wire.CodeRefused, text)
		return false
	}
	if code, text := p.tooMany(l, job); text != "" {
		p.refuse(l, code, text)
		return false
	}
	if stop := job.Stop; stop != nil && l.hello.Joined == (replica.JobID{}) {
		if stop.End {
			p.refuse(l, wire.CodeAgain, fmt.Sprintf("job %q is being ended (%s): step %d is written to the durable tier first, and "+
				"then --resume goes on from there",
				job.Name, stop.Reason, job.Committed.Step))
			return false
		}
		p.askFor(l) // it has come to go on with the job
		return false
	}
	l.origin(job)
	p.accept(l, job, now)
	if differ := otherOptions(l.create(0).Options, job.Options); len(differ) > 0 {
		l.note(job.Epoch, fmt.Sprintf("warning: job %q runs already, and these flags have no effect on it: %s; end the job first to "+
			"change them",
			job.Name, strings.Join(differ, ", ")))
	}
	return true
}

// askFor asks the leader for the launcher's job.
func (p *Pool) askFor(l *launcher) {
	if !l.creating && p.owner.MayCreate(uint32(l.user)) {
		l.creating = true
		id := p.owner.NextRequest()
		p.creates[id] = l
		p.owner.Send(p.request(l, id))
	}
}

// origin has a launcher that joins a job print what that began with, before it is accepted: `replicad exec` waits for no more than that.
func (l *launcher) origin(job *replica.Job) {
	switch from := job.From; {
	case from == nil || l.hello.Joined != (replica.JobID{}): // it has printed it when it came first
	case room.Adopted(job): // --resume has found a state of the job's own, which the leader reports
	case job.Committed.IsZero():
		l.note(job.Epoch, fmt.Sprintf("from: %v (world %d, now %d)", from, from.World, job.Layout.World))
	default:
		l.note(job.Epoch, fmt.Sprintf("from: the job began with %v, and goes on from its own state since (step %d)", from,
			job.Position.Step))
	}
}

// accept answers a launcher that it is of a job.
func (p *Pool) accept(l *launcher, job *replica.Job, now time.Time) {
	l.accepted, l.job, l.idle = true, job.ID, now
	known := p.owner.Known(job.ID)
	if known != nil && len(l.hello.Notes) > 0 {
		p.owner.Remark(job.ID, l.hello.Notes)
	}
	welcome := wire.Welcome{ABI: wire.RankABI, Cluster: p.cluster, Job: job.ID, Era: p.owner.Era(), ChunkBytes: room.ChunkBytes(job)}
	head := wire.RankHeader{Type: wire.MRunOK, Request: l.request, Epoch: job.Epoch}
	l.peer.Send(head, welcome.Append(nil)) //nolint:errcheck // a dead peer is Gone
	if known != nil {
		p.Of(known).take(l)
	}
}
