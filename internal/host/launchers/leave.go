package launchers

import (
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// leaving takes a launcher's report that it is to end: its ranks end the step that they are in first, and have it committed. The launcher
// itself bounds how long it waits for that.
func (p *Pool) leaving(peer uint64) {
	l := p.all[peer]
	if l == nil {
		return
	}
	l.leaving = true
	if job := p.owner.Named(l.hello.Job); job != nil && job.Record().Phase == replica.Open {
		l.leaveAt = lock.LastDue(job.Record(), p.Of(job).last(l))
	}
	p.LetGo()
}

// last is the step that is to be committed before a launcher's ranks end; 0: none of them trains. Where other nodes have ranks it is one
// step further than these are in, because ranks are within one step of each other and all launchers may be ended at once. A rank that ends
// with its own step takes the step along that another one is in.
func (v View) last(l *launcher) replica.Step {
	in := v.stepOf(l)
	if in > 0 && len(l.starts.ranks()) < int(v.job.Record().Layout.World) {
		in++
	}
	return in
}

// stepOf is the newest step that the ranks of a launcher are in; 0: none of them trains.
func (v View) stepOf(l *launcher) (in replica.Step) {
	for _, r := range l.starts.ranks() {
		rank, _ := v.job.Rank(r)
		if !rank.Trains {
			continue
		}
		at := rank.Word.Step()
		if rank.Word.Phase() == replica.Idle {
			at++
		}
		if rank.Word.Epoch() == v.job.Record().Epoch {
			in = max(in, at)
		}
	}
	return in
}

// LetGo lets the launchers end that wait for a step: it is committed, or nothing will be soon.
func (p *Pool) LetGo() {
	for _, l := range p.all {
		if !l.leaving {
			continue
		}
		job := p.owner.Named(l.hello.Job)
		if job != nil && job.Record().Phase == replica.Open && job.Record().Position.Step < l.leaveAt && p.Of(job).stepOf(l) > 0 {
			continue
		}
		l.leaving = false
		l.send(wire.MRunLeave, 0, nil)
	}
}
