package durable

import (
	"strings"
	"time"

	"github.com/replicad/replicad/replica"
)

// LookEvery is how much time lies between two looks at whether the newest durable generation is still where it was written, in the store of an URL. A
// directory may be unmounted or replaced at any time; of a bucket each look costs two requests.
func LookEvery(url string) time.Duration {
	if strings.HasPrefix(url, "file:") {
		return 5 * time.Second
	}
	return time.Minute
}

// path is what looks at the tier's path found: what the log says of a directory stays as it was when somebody moves it, or unmounts its
// file system.
type path struct {
	absent    replica.Generation // the newest durable generation, once a look did not find it
	found     replica.Generation // by the newest look that found one, and when that was written
	since     time.Time
	looking   bool
	lookAt    time.Duration // when the next look is due
	vanishing time.Duration // how long after one that was gone the next is written; zero: the last look found it
}

// due tells whether there is something to look for.
func (p *path) due(r *Room) bool {
	j := r.job
	return r.looks > 0 && !p.looking && !j.Durable.IsZero() && j.Options.DurableEvery > 0 && j.Phase != replica.Ended
}

func (p *path) next(r *Room) (at time.Duration, ok bool) { return p.lookAt, p.due(r) }

// look looks, now and then, whether the newest durable generation is still there.
func (r *Room) look(now time.Duration) {
	if r.path.due(r) && now >= r.path.lookAt {
		r.path.looking = true
		r.do(Look{r.job.Durable})
	}
}

// seen takes note of a look. A generation that is gone is not claimed any more, and the committed one is written at once.
func (r *Room) seen(now time.Duration, ev Seen) {
	p := &r.path
	p.looking, p.lookAt = false, now+r.looks
	if r.job == nil || ev.Generation != r.job.Durable {
		return // of a former one
	}
	switch {
	case ev.Why == nil:
		p.found, p.since = ev.Generation, ev.Since
		if p.absent == ev.Generation {
			r.tell("durable generation %v is back", ev.Generation)
		}
		if !p.absent.IsZero() && r.failing == 0 {
			r.why = ""
		}
		p.absent, p.vanishing = replica.Generation{}, 0
	case p.absent != ev.Generation:
		r.do(Log{"generation " + ev.Generation.String() + " of job " + r.job.Name, ev.Why.Error()})
		if r.fenced { // the other fleet's retention may have deleted it, and nothing is written anew
			p.absent = ev.Generation
			break
		}
		if p.vanishing == 0 {
			r.tell("warning: %v; training goes on, and the newest commit is written anew", ev.Why)
		}
		again := p.vanishing > 0 // what was written anew has gone as well: the leader's directory may be another than the writers'
		p.vanishing = min(max(2*p.vanishing, backoff), backoffMax)
		if again {
			r.triedAt = now
		}
		p.absent, r.why = ev.Generation, ev.Why.Error()
	}
}
