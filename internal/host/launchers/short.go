package launchers

import (
	"fmt"
	"iter"
	"time"

	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/replica"
)

// Short notes a want that a rank of the job met on this node, and notifies log, launchers and leader.
func (v View) Short(r replica.Rank, kind want.Kind, why string, now time.Time) {
	p, job := v.pool, v.job.Record()
	text, due := p.short.meets(job.Name, kind, why, now)
	if due {
		text = fmt.Sprintf("node %s is short of %s; the rank waits for it, or goes to another node that has a process for it", p.self, text)
		p.log.RankNote(job, r, "short", text)
		v.Note(fmt.Sprintf("rank %d: %s", r, text))
	}
	p.owner.Report(job.ID)
}

// shortOfAll notes a want that met a connection of nobody knows which job.
func (p *Pool) shortOfAll(err error, now time.Time) {
	text, due := p.short.meets("", want.Of(err), err.Error(), now)
	for _, job := range p.owner.All() {
		if due && job.Record().Phase != replica.Ended {
			p.Of(job).Note(fmt.Sprintf("node %s is short of %s; a process that can't reach the daemon for that tries again", p.self, text))
		}
		p.owner.Report(job.Record().ID)
	}
	if due {
		p.log.Failed("short", string(p.self), text)
	}
}

// MayTry reports whether a process of the job may try again for what this node was short of.
func (v View) MayTry(now time.Time) bool { return !v.pool.short.waits(v.job.Record().Name, now) }

// Found notes that a process of the job has got what this node was short of.
func (v View) Found() { v.pool.short.found(v.job.Record().Name) }

// Retries goes over the shortages after which the processes that wait may try again, and reports of each whether the node is short no more.
func (p *Pool) Retries(now time.Time) iter.Seq[bool] {
	return func(yield func(bool) bool) {
		for name, s := range p.short {
			if now.Before(s.again) {
				continue
			}
			over := now.After(s.until)
			if over {
				delete(p.short, name)
			}
			if !yield(over) {
				return
			}
		}
	}
}
