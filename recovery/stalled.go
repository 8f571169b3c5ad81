package recovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

const (
	stallCadences = 3                // commits are overdue after as many cadences, in steps made and in the time that commits take lately
	stallLeast    = 10 * time.Second // and no sooner: a mirror's daemon that is started again takes as long
	stallQuiet    = 5 * time.Second  // a missing part of which no byte moved for so long does not come by itself
	stallSpaces   = 8                // times between commits that are measured
)

// Watchdog finds that a job trains on while nothing of it is committed any more, and which part waits for whom. It looks at the job from
// outside: whatever the cause, each further step is one more that a fault would cost. Its owner gives it what is known, with the time, and does
// what it asks for. A job that makes no steps, one whose cadence is long, and a part that still moves are no stall.
type Watchdog struct {
	epoch  replica.Epoch
	step   replica.Step  // that is committed
	at     time.Duration // when that came, or the epoch was first seen open
	spaces []time.Duration
	live   replica.Step
	made   time.Duration // when live last rose
	rose   bool          // it has, under this leader: the first that is heard of is no step

	gaps  map[gapKey]*gap
	moved map[replica.Part]bool // its mirror was moved in this epoch

	stall *Stall // that was said
}

// Commits is what is known of a job's commits.
type Commits struct {
	Job       *replica.Job
	Cadence   replica.Step      // asked for
	Live      replica.Step      // the newest step that a rank has made in the open epoch
	Candidate replica.Step      // that is to be committed next
	Missing   []replica.Missing // for that
	Waiting   []string          // for it too, for people
	// Linked tells whether a node's daemon is heard; Elsewhere which node could mirror a part instead of another one.
	Linked    func(replica.NodeName) bool
	Elsewhere func(part replica.Part, from replica.NodeName) (to replica.NodeName, ok bool)
	Clocks    *Clocks // the job's
}

// Moving is how far the push of a part to its mirror has come.
type Moving struct {
	From, To   replica.NodeName
	Part       replica.Part
	Generation replica.Generation
	Bytes      uint64 // the most that any try has sent
	Why        string // the newest try failed; empty: none has
}

// gapKey is a part that a node lacks; gap is since when, and what is known of it. Of a wait for no part both are zero.
type gapKey struct {
	part replica.Part
	node replica.NodeName
}

type gap struct {
	missing    replica.Missing
	candidate  replica.Step  // for which it was missing last
	since      time.Duration // when it could have come
	generation replica.Generation
	bytes      uint64
	moved      time.Duration
	writes     time.Duration // when a durable write was last said to hold the part's place; 0: none was
	excused    replica.Step  // up to here ranks are on their way to a candidate that was named meanwhile, further ahead each time
	why        string
}

// Stall is a stall, as it is said.
type Stall struct {
	Since time.Duration // for so long nothing was committed
	Step  replica.Step  // that was
	Steps replica.Step  // made since: what one more fault would cost
	Gaps  []Gap         // what the commit waits for and does not come
}

// Gap is a part that does not come to where it should be.
type Gap struct {
	replica.Missing
	Why  string           // the newest try failed, or what else is waited for
	To   replica.NodeName // mirrors it from now on; empty: nobody does
	Note string           // why nobody does
}

// StallNews is what came of a look.
type StallNews struct {
	Stall *Stall        // nil: commits go on, or the job makes no steps
	Say   bool          // it is new, or worse than was said
	Over  time.Duration // a stall that was said ended after so long; 0: none has
	Moves []Stalled     // for the recovery of the job
}

// Moving takes a node's word of how far a push is. Only who holds the part can push it.
func (w *Watchdog) Moving(now time.Duration, m Moving) {
	g := w.gaps[gapKey{m.Part, m.To}]
	if g == nil || !slices.Contains(g.missing.Holders, m.From) {
		return
	}
	if m.Generation != g.generation || m.Bytes > g.bytes {
		if m.Bytes > 0 {
			g.moved = now
		}
		g.generation, g.bytes = m.Generation, m.Bytes
	}
	g.why = m.Why
}

// Writing takes a node's word that a durable write moves there, and holds the slot which a part lacks. That is no stall, and no reason to move
// a mirror: the part gets its place when the write is through.
func (w *Watchdog) Writing(now time.Duration, ev Writing) {
	if g := w.gaps[gapKey{ev.Part, ev.Node}]; g != nil {
		g.moved, g.writes = now, now
	}
}

// Look takes in what is known now.
func (w *Watchdog) Look(now time.Duration, c Commits) (news StallNews) {
	if c.Job.Phase != replica.Open || c.Job.Epoch != w.epoch {
		*w = Watchdog{epoch: c.Job.Epoch, step: c.Job.Position.Step, at: now, live: c.Live, made: now}
		return news
	}
	if at, ok := c.Clocks.before(commitClock(c.Job)); ok && c.Job.Position.Step == w.step {
		w.at = min(w.at, at)
	}
	if c.Live > w.live {
		w.rose = w.rose || w.live > 0
		w.live, w.made = c.Live, now
	}
	if c.Job.Position.Step != w.step {
		if w.stall != nil {
			news.Over = now - w.at
		} else {
			w.spaces = append(w.spaces, now-w.at)
			w.spaces = w.spaces[max(0, len(w.spaces)-stallSpaces):]
			c.usual(w.spaces)
		}
		if len(w.gaps) > 0 || w.stall != nil {
			c.Clocks.EndAll(func(k replica.Clock) bool { return k.Kind == clockGap || k.Kind == measureStalled })
		}
		w.step, w.at, w.gaps, w.stall = c.Job.Position.Step, now, nil, nil
		return news
	}
	w.note(now, c)
	said := replica.Clock{Kind: measureStalled, Epoch: w.epoch, Of: uint64(w.step)}
	if steps := c.Clocks.Measure(said); w.stall == nil && steps > 0 { // an earlier leader has said it
		w.stall = &Stall{Step: w.step, Steps: replica.Step(steps)}
	}
	if w.stall == nil && !w.overdue(c) {
		return news
	}
	s := &Stall{Since: now - w.at, Step: w.step, Steps: w.live - min(w.live, w.step)}
	for _, k := range slices.SortedFunc(maps.Keys(w.gaps), func(a, b gapKey) int {
		return cmp.Or(cmp.Compare(a.part.Kind, b.part.Kind), cmp.Compare(a.part.Index, b.part.Index), cmp.Compare(a.node, b.node))
	}) {
		if g := w.gaps[k]; g.candidate == c.Candidate && now-max(g.since, g.moved) >= stallQuiet {
			s.Gaps = append(s.Gaps, w.act(g, c, &news))
		}
	}
	if len(s.Gaps) == 0 && w.stall == nil {
		return news // it is late, and still on its way
	}
	if len(s.Gaps) == 0 {
		s.Gaps = w.stall.Gaps // what was done about it is under way
	}
	news.Stall, news.Say = s, w.stall == nil || len(news.Moves) > 0 || s.Steps >= 2*w.stall.Steps || w.stall.Gaps != nil && s.others(w.stall)
	switch {
	case news.Say:
		w.stall = s
		c.Clocks.Set(said, uint64(max(s.Steps, 1)))
	case w.stall.Gaps == nil:
		w.stall.Gaps = s.Gaps
	}
	return news
}

// usual notes the usual time between two commits, where more than stallLeast comes of it.
func (c Commits) usual(spaces []time.Duration) {
	k := replica.Clock{Kind: measureSpaces, Epoch: c.Job.Epoch}
	is := slices.Sorted(slices.Values(spaces))[len(spaces)/2].Round(time.Second)
	if was := millis(c.Clocks.Measure(k)); stallCadences*max(is, was) > stallLeast && is != was {
		c.Clocks.Set(k, uint64(is.Milliseconds()))
	}
}

// overdue tells whether the job has made steps for so long, and so many, that a commit should have come.
func (w *Watchdog) overdue(c Commits) bool {
	limit := stallLeast
	if n := len(w.spaces); n > 0 {
		limit = max(limit, stallCadences*slices.Sorted(slices.Values(w.spaces))[n/2])
	} else {
		limit = max(limit, stallCadences*millis(c.Clocks.Measure(replica.Clock{Kind: measureSpaces, Epoch: w.epoch})))
	}
	return w.rose && w.live >= w.step+stallCadences*c.Cadence && w.made-w.at >= limit
}

// note keeps account of what is missing, and since when. A part that its maker has not come to yet is missing in time. What was missing
// for a candidate that was given up is not there because of that.
func (w *Watchdog) note(now time.Duration, c Commits) {
	missing := c.Missing
	if len(missing) == 0 && len(c.Waiting) > 0 {
		missing = []replica.Missing{{}}
	}
	seen := make(map[gapKey]bool, len(missing))
	for _, m := range missing {
		k := gapKey{m.Part, m.Node}
		g := w.gaps[k]
		if g == nil {
			if m.Node != "" && (m.Mirror && len(m.Holders) == 0 || !m.Mirror && c.Live < c.Candidate) {
				continue
			}
			if w.gaps == nil {
				w.gaps = make(map[gapKey]*gap)
			}
			g = &gap{}
			w.gaps[k] = g
		}
		g.since = c.Clocks.Since(now, replica.Clock{Kind: clockGap, Epoch: w.epoch, Node: k.node, Part: k.part})
		if g.writes > 0 && now-g.writes < stallQuiet {
			g.excused = c.Candidate
		}
		if c.Live < g.excused {
			g.moved = now
		}
		seen[k], g.missing, g.candidate = true, m, c.Candidate
	}
	maps.DeleteFunc(w.gaps, func(k gapKey, g *gap) bool {
		over := !seen[k] && (g.candidate == c.Candidate || k == gapKey{})
		if over {
			c.Clocks.End(replica.Clock{Kind: clockGap, Epoch: w.epoch, Node: k.node, Part: k.part})
		}
		return over
	})
}

// act says what is done about a part that does not come: its mirror moves, once a part and epoch, where another node can take it. A node
// whose daemon is away keeps what it mirrors for daemon_grace, which is the recovery's to watch.
func (w *Watchdog) act(g *gap, c Commits, news *StallNews) Gap {
	out := Gap{Missing: g.missing, Why: g.why}
	switch m := g.missing; {
	case m.Node == "":
		out.Why = strings.Join(c.Waiting[:min(len(c.Waiting), 4)], "; ")
	case !c.Linked(m.Node):
		out.Note = "its daemon has no link to the leader: start it"
	case !m.Mirror:
		out.Note = "its log says why"
	case w.moved[m.Part]:
		out.Note = "its mirror was moved in this epoch already: see to the node, or add one"
	default:
		to, ok := c.Elsewhere(m.Part, m.Node)
		if !ok {
			out.Note = "no other node can mirror it: see to the node, or add one"
			break
		}
		if w.moved == nil {
			w.moved = make(map[replica.Part]bool)
		}
		w.moved[m.Part], out.To = true, to
		news.Moves = append(news.Moves, Stalled{Epoch: w.epoch, Part: m.Part, Node: m.Node})
	}
	return out
}

// others tells whether it waits for something that another one did not.
func (s *Stall) others(than *Stall) bool {
	return slices.ContainsFunc(s.Gaps, func(g Gap) bool {
		return !slices.ContainsFunc(than.Gaps, func(o Gap) bool { return o.Part == g.Part && o.Node == g.Node })
	})
}

// String is the stall in one line.
func (s Stall) String() string {
	text := fmt.Sprintf("nothing has been committed for %v: one more fault would cost the %d steps since step %d", s.Since.Round(time.Second), s.Steps, s.Step)
	for i, g := range s.Gaps {
		if i == stallShown {
			return text + fmt.Sprintf("; and %d more parts", len(s.Gaps)-i)
		}
		text += "; " + g.String()
	}
	return text
}

// stallShown bounds the parts that a line names.
const stallShown = 4

// String says which part waits for whom, why, and what is done about it.
func (g Gap) String() string {
	if g.Node == "" {
		return "the commit waits for " + g.Why
	}
	text := fmt.Sprintf("rank %d on node %s has not sealed %v", g.Rank, g.Node, g.Part)
	if g.Mirror {
		text = fmt.Sprintf("%v lies on %s, and its mirror, node %s, does not take it", g.Part, plan.Joined(g.Holders), g.Node)
	}
	if g.Why != "" {
		text += " (" + g.Why + ")"
	}
	if g.To != "" {
		return text + fmt.Sprintf(": node %s mirrors it from now on", g.To)
	}
	return text + ": " + g.Note
}

// shunned are the nodes that do not take a part which they mirror, by the watchdog's word, in an epoch.
type shunned struct {
	epoch replica.Epoch
	by    map[replica.Part]replica.NodeName
}

// has tells whether a node is to mirror a part no more while another one can.
func (s *shunned) has(e replica.Epoch, part replica.Part, n replica.NodeName) bool {
	return s.epoch == e && n != "" && s.by[part] == n
}

// with is what is shunned in an epoch, and one more.
func (s *shunned) with(ev Stalled) shunned {
	more := shunned{ev.Epoch, map[replica.Part]replica.NodeName{}}
	if s.epoch == ev.Epoch {
		maps.Copy(more.by, s.by)
	}
	more.by[ev.Part] = ev.Node
	return more
}

// learnStalled takes the watchdog's word that a node does not take a part which it mirrors: training moves that mirror.
func (tr *trust) learnStalled(ev Stalled) {
	if tr.known.job != nil && ev.Epoch == tr.known.job.Epoch {
		tr.shunned = tr.shunned.with(ev)
	}
}
