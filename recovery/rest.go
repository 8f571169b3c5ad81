package recovery

import (
	"time"

	"github.com/replicad/replicad/replica"
)

// sign is what was last seen of a process, and since when it has been so: a deadline counts from there, and never from what others do.
type sign struct {
	of replica.Incarnation
	// What changes as a process gets on with coming to rest.
	attached bool
	stopped  bool
	live     replica.Word
	initial  replica.Epoch
	ordered  replica.Epoch
	loaded   replica.Epoch
	ending   uint64 // milliseconds
	progress uint64 // the most so far, of a process without state of the job: what a survivor maps says nothing of its way to rp_join

	first time.Duration // when it was first seen
	at    time.Duration // when one of these last changed
}

// learnSigns takes the signs of life of a node's ranks from its report. Of a process that this leader has not heard of before the node says for
// how long it has been so.
func (kn *known) learnSigns(r replica.NodeReport) {
	for _, rr := range r.Ranks {
		was, known := kn.signs[rr.Rank]
		if known && was.of > rr.Incarnation || !rr.Alive {
			continue
		}
		is := sign{of: rr.Incarnation, attached: rr.Attached, stopped: rr.Stopped, live: rr.Live, initial: rr.Initial, ordered: rr.Ordered, loaded: rr.Loaded, ending: rr.EndingMS}
		if rr.Loaded == 0 || r.Phase == replica.Planned {
			is.progress = rr.Progress
		}
		if known && was.of == is.of {
			is.progress = max(is.progress, was.progress) // memory that comes and goes is no way forward
			is.first, is.at = was.first, was.at
			if is != was {
				is.at = kn.now
			}
		} else {
			is.at = kn.now - millis(rr.StillMS)
			is.first = is.at
		}
		kn.signs[rr.Rank] = is
	}
}
