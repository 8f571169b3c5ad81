package manners

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

const (
	// LookEvery is how often the governor should look. It knows the times of steps no better than that.
	LookEvery = 200 * time.Millisecond
	// felt is from which part of a step on a slowdown counts. A window of steps is known to 5 per cent (window.whole).
	felt = 1.08
	// calmRate is up to how many bytes a second do not count as a transfer.
	calmRate = 8 << 20
	// calmWindows is how many calm windows are kept of a job, and calmLeast how many make a measure.
	calmWindows, calmLeast = 16, 3
	// The limit begins at start where calm steps are known. It never falls below least: less than that is no use to anybody, so what steps
	// take at least is taken for calm. That is how a job is judged which is never left alone, or has become slower by itself.
	start, least = 256 << 20, 16 << 20
	// forgotten is after what time nothing is known any more of a job that does not train here.
	forgotten = 10 * time.Minute
	// most is a limit that binds nobody: beyond it there is none.
	most = 16 << 30
)

// Job is a job of which ranks train here: a number of its own, and the newest step of theirs.
type Job struct {
	ID   replica.JobID
	Step replica.Step
}

// NoLimit is a limit that holds nothing back.
const NoLimit = 0

// Governor finds out how many bytes a second may leave without the ranks here feeling it. It is TCP's rule (RFC 5681), with the time of
// steps in the place of losses, as LEDBAT (RFC 6817) has the delay of packets: who sends in the background takes what is left over. The limit doubles until
// a job's steps take longer than in calm. Then it is halved, and grows by a little from there.
//
// The zero value has seen nothing. Its owner calls Look, and nobody else may.
type Governor struct {
	jobs    map[replica.JobID]*pace
	limit   float64 // bytes a second
	blind   bool    // it is not known what steps take in calm
	careful bool    // a slowdown was felt: the limit grows by a little
	why     string  // of the newest cut
}

// Look takes in where the jobs are that train here, and how many bytes have left in all. It returns how many may leave in a second, and why
// no more do.
func (g *Governor) Look(now time.Duration, jobs []Job, moved uint64) (limit float64, why string) {
	if g.jobs == nil {
		g.jobs = map[replica.JobID]*pace{}
	}
	hurt, blind, rate, judged := "", false, 0.0, time.Duration(0)
	for _, j := range jobs {
		p := g.jobs[j.ID]
		if p == nil {
			p = new(pace)
			g.jobs[j.ID] = p
		}
		w, ok := p.look(mark{now, j.Step, moved})
		if ok && w.rate() <= calmRate {
			p.learn(w)
		} else if ok {
			judged, rate = max(judged, w.took), max(rate, w.rate())
			if p.late(w) {
				hurt = fmt.Sprintf("steps take %v here, and %v without transfers", w.each().Round(time.Millisecond/10), p.usual().Round(time.Millisecond/10))
			}
			if g.limit == least && w.whole() {
				p.learn(w)
			}
		}
		blind = blind || !p.known()
	}
	for id, p := range g.jobs {
		if now-p.seen.at > forgotten {
			delete(g.jobs, id)
		}
	}
	switch {
	case len(jobs) == 0:
		return NoLimit, ""
	case blind:
		g.limit, g.careful, g.why = least, false, "it is not known yet how long steps take here without transfers"
	case g.blind || g.limit == 0:
		g.limit, g.why = start, ""
	case hurt != "":
		g.limit, g.careful, g.why = max(least, min(g.limit, rate)/2), true, hurt
	case judged == 0 || rate < g.limit/2: // the limit holds nobody back
	case g.careful: // as fast whether windows are short or long
		g.limit += min(g.limit/4, least*judged.Seconds()/LookEvery.Seconds())
	default:
		g.limit *= 2
	}
	g.blind = blind
	if g.limit >= most {
		g.limit = most
		return NoLimit, ""
	}
	return g.limit, g.why
}

// mark is where a job was at some time, and how many bytes had left by then.
type mark struct {
	at    time.Duration
	step  replica.Step
	moved uint64
}

// window is what lies between two marks.
type window struct {
	took  time.Duration
	steps replica.Step
	moved uint64
	ended bool // with a step, and not in the middle of one
}

func (w window) rate() float64 { return float64(w.moved) / max(w.took, 1).Seconds() }

// each is what of the window falls to a step: what it took, at least.
func (w window) each() time.Duration { return w.share(w.took) }

func (w window) share(t time.Duration) time.Duration {
	if w.ended {
		return t / time.Duration(w.steps)
	}
	return t / time.Duration(w.steps+1)
}

// whole tells whether the window says how long steps take: each of its ends is known to a step, or to a look, which is a twentieth of it.
func (w window) whole() bool {
	return w.ended && w.took >= LookEvery && w.took >= 20*min(LookEvery, w.each())
}

// pace is how fast the steps of a job are.
type pace struct {
	seen  mark            // at the newest look
	from  mark            // where the window begins
	begun bool            // it does: a step has begun since the job was seen to train
	calm  []time.Duration // what a step took in the newest calm windows, oldest first
}

// look takes in where the job is, and returns a window that has ended. Windows begin and end at looks that found another step than the one
// before, so that of long steps whole ones are counted. One that is late by now ends before its step does.
func (p *pace) look(m mark) (w window, ok bool) {
	was := p.seen
	p.seen = m
	if m.step < was.step || m.at-was.at > 5*LookEvery { // it went back, or did not train meanwhile
		p.begun = false
		return w, false
	}
	if m.step == was.step && !p.begun {
		return w, false
	}
	w = window{m.at - p.from.at, m.step - p.from.step, m.moved - p.from.moved, m.step > was.step}
	switch {
	case !p.begun:
		p.from, p.begun = m, true
		return w, false
	case w.whole():
		p.from = m
		return w, true
	case w.rate() > calmRate && p.late(w):
		p.begun = false
		return w, true
	}
	return w, false
}

func (p *pace) learn(w window) {
	if len(p.calm) == calmWindows {
		p.calm = slices.Delete(p.calm, 0, 1)
	}
	p.calm = append(p.calm, w.each())
}

func (p *pace) known() bool { return len(p.calm) >= calmLeast }

// usual is what a step takes in calm: the median.
func (p *pace) usual() time.Duration { return p.quantile(0.5) }

func (p *pace) quantile(q float64) time.Duration {
	list := slices.Sorted(slices.Values(p.calm))
	return list[int(math.Round(q*float64(len(list)-1)))]
}

// late tells whether steps surely take longer than in calm. What they do at times in calm too is nobody's fault. Where the window's ends lie
// is known to a look, or to a step; a step that is under way counts as if it ended now.
func (p *pace) late(w window) bool {
	if !p.known() || w.took < LookEvery {
		return false
	}
	return w.each() > max(time.Duration(felt*float64(p.usual())), p.quantile(0.9))+w.share(min(LookEvery, p.usual()))
}
