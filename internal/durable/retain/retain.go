package retain

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

// State is what is known of a generation's bytes.
type State uint8

// The states. The zero value promises nothing.
const (
	Unread     State = iota // committed, and nobody has read it whole, or the disk refused the last read
	Good                    // the newest whole read found every digest as it was written
	Damaged                 // a read found bytes that are not those that were written, or a file is gone
	Unfinished              // without its commit marker
)

func (s State) String() string {
	return [...]string{"unread", "good", "damaged", "unfinished"}[min(s, Unfinished)]
}

// Generation is one generation of a name, as far as the rule asks.
type Generation struct {
	Step  replica.Step
	Epoch replica.Epoch
	// Run counts runs of the name from the newest: 0 is the one that writes now, 1 the one that was committed last before it.
	Run   int
	Age   time.Duration // since its marker was written
	Size  uint64        // in bytes
	State State
	// Metric counts where Measured; LoaderEpoch where Loads.
	Metric      float64
	Measured    bool
	LoaderEpoch uint64
	Loads       bool
	Pinned      bool          // by a person
	Open        bool          // somebody reads it now
	Until       time.Duration // for how long a person has pinned it; 0: not for a time
	Resumed     bool          // a run went on from it
	Stripped    bool          // it has no optimizer state: nothing can go on from it
}

// Policy says what to keep. The zero value keeps the newest good generation of each run.
type Policy struct {
	Last          int           // of each run, the newest good ones; at least 1
	Every         replica.Step  // and those of each multiple of so many steps; 0: none
	EachEpoch     bool          // and the newest of each epoch of the loader
	Best          int           // and so many by the metric
	Largest       bool          // of Best: the largest is the best, not the smallest
	Younger       time.Duration // and those that are younger; 0: none
	Runs          int           // former runs that go by the same rule; of older ones nothing is kept
	AllFormerRuns bool          // former runs are not looked at: nothing of them is deleted
}

// For is the policy of a rule as people write it, with so many former runs.
func For(k replica.Keep, runs int) Policy {
	return Policy{Last: k.Last, Every: replica.Step(k.Every), EachEpoch: k.Epochs, Best: k.Best.N, Largest: k.Best.Largest(), Younger: time.Duration(k.Younger) * time.Second, Runs: runs}
}

// Verdict is what becomes of a generation, and why, in words that follow "kept: " or "deleted: ".
type Verdict struct {
	Keep bool
	Why  string
}

// Decide judges each generation of a name. The verdicts are in the order of gens, which may be any.
func Decide(gens []Generation, p Policy) []Verdict {
	p.Last = max(p.Last, 1)
	out := make([]Verdict, len(gens))
	r := rule{gens: gens, policy: p, out: out}
	for _, run := range r.runs() {
		r.run(run)
	}
	r.former()
	return out
}

// rule is one use of it.
type rule struct {
	gens   []Generation
	policy Policy
	out    []Verdict
}

// runs are the generations of each run, by their place in gens: the newest run first, and in it the newest generation. Those that are stripped are a run
// of their own: they go by the same rules, and push none out that a job can go on from.
func (r *rule) runs() [][]int {
	order := make([]int, len(r.gens))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := r.gens[a], r.gens[b]
		return cmp.Or(cmp.Compare(x.Run, y.Run), compareBool(x.Stripped, y.Stripped), cmp.Compare(y.Epoch, x.Epoch), cmp.Compare(y.Step, x.Step))
	})
	var out [][]int
	for at, i := range order {
		if before := order[max(at-1, 0)]; at == 0 || r.gens[i].Run != r.gens[before].Run || r.gens[i].Stripped != r.gens[before].Stripped {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], i)
	}
	return out
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func (r *rule) keep(i int, format string, args ...any) {
	if !r.out[i].Keep {
		r.out[i] = Verdict{true, fmt.Sprintf(format, args...)}
	}
}

func (r *rule) drop(i int, format string, args ...any) {
	r.out[i] = Verdict{false, fmt.Sprintf(format, args...)}
}

// counts tells whether a generation may be gone on from, as far as is known.
func (g Generation) counts() bool { return g.State == Good || g.State == Unread }

// held tells whether somebody keeps it, or reads it.
func (g Generation) held() bool { return g.Pinned || g.Open || g.Until > 0 }

// run judges the generations of one run, newest first. Good ones alone push others out.
func (r *rule) run(run []int) {
	newer := make([]int, len(run)) // good ones
	good := 0
	for at, i := range run {
		if newer[at] = good; r.gens[i].State == Good {
			good++
		}
		r.newest(i, newer[at])
	}
	r.chosen(run)
	finished := false
	for at, i := range run {
		switch r.gens[i].State {
		case Good, Unread:
			r.past(i, newer[at])
		case Damaged:
			r.damaged(i, newer[at] > 0)
		case Unfinished:
			r.unfinished(i, finished)
		}
		finished = finished || r.gens[i].State != Unfinished
	}
}

// chosen keeps what the other rules of the policy ask for. One that was not read back stays as if it were good, and pushes none out that is.
func (r *rule) chosen(run []int) {
	epochs := make(map[uint64]bool) // of the loader, that have a good one
	for _, i := range run {
		g := r.gens[i]
		if !g.counts() {
			continue
		}
		if r.policy.Every > 0 && g.Step%r.policy.Every == 0 {
			r.keep(i, "its step is a multiple of %d", r.policy.Every)
		}
		if r.policy.Younger > 0 && g.Age < r.policy.Younger {
			r.keep(i, "younger than %v", r.policy.Younger)
		}
		if r.policy.EachEpoch && g.Loads && !epochs[g.LoaderEpoch] {
			r.keep(i, "the newest of epoch %d of its loader", g.LoaderEpoch)
			epochs[g.LoaderEpoch] = g.State == Good
		}
	}
	r.best(run)
}

// best keeps the best by the metric: so many of the good ones, and those of the others that would be among them.
func (r *rule) best(run []int) {
	measured := slices.DeleteFunc(slices.Clone(run), func(i int) bool {
		g := r.gens[i]
		return !g.counts() || !g.Measured || math.IsNaN(g.Metric)
	})
	slices.SortStableFunc(measured, func(a, b int) int { // of equal ones the newest first
		c := cmp.Compare(r.gens[a].Metric, r.gens[b].Metric)
		if r.policy.Largest {
			return -c
		}
		return c
	})
	good := 0 // that are better
	for _, i := range measured {
		if good == r.policy.Best {
			return
		}
		r.keep(i, "one of the best %d by its metric, %v", r.policy.Best, r.gens[i].Metric)
		if r.gens[i].State == Good {
			good++
		}
	}
}

// newest keeps one that may be gone on from until so many newer ones of its run are good.
func (r *rule) newest(i, newer int) {
	g := r.gens[i]
	switch {
	case !g.counts() || newer >= r.policy.Last:
	case g.State == Good && newer == 0:
		r.keep(i, "the newest that was read back and is good")
	case g.State == Good:
		r.keep(i, "one of the newest %d that were read back and are good", r.policy.Last)
	case g.Resumed:
		r.keep(i, "a run went on from it, and %d of %d newer ones were read back", newer, r.policy.Last)
	default:
		r.keep(i, "it was not read back yet, and %d of %d newer ones were", newer, r.policy.Last)
	}
}

// past judges one that may be gone on from, and that no rule of the policy keeps.
func (r *rule) past(i, newer int) {
	g := r.gens[i]
	switch {
	case g.Pinned:
		r.keep(i, "pinned")
	case g.Until > 0:
		r.keep(i, "pinned for %v more", g.Until.Round(time.Second))
	case g.Open:
		r.keep(i, "it is being read")
	case r.out[i].Keep:
	case g.State == Good:
		r.drop(i, "newer ones were read back and are good: %d, of %d that are kept", newer, r.policy.Last)
	default:
		r.drop(i, "newer ones were read back and are good: %d, of %d that are kept; it never was", newer, r.policy.Last)
	}
}

// damaged judges one that failed a read: it counts for nothing, and goes as soon as nobody can gain from mending it.
func (r *rule) damaged(i int, newer bool) {
	g := r.gens[i]
	switch {
	case g.Pinned:
		r.keep(i, "pinned, though it failed a read")
	case g.Until > 0:
		r.keep(i, "pinned for %v more, though it failed a read", g.Until.Round(time.Second))
	case g.Open:
		r.keep(i, "it is being read")
	case newer:
		r.drop(i, "it failed a read, and a newer one is good")
	default:
		r.keep(i, "it failed a read and counts for nothing; it is kept aside, since it is newer than all that are good")
	}
}

// unfinished judges one without a marker; finished: a newer one of its run has its marker.
func (r *rule) unfinished(i int, finished bool) {
	switch g := r.gens[i]; {
	case g.held():
		r.keep(i, "somebody keeps it")
	case finished:
		r.drop(i, "it was never finished, and a newer one was")
	default:
		r.keep(i, "it may still be written")
	}
}

// former judges former runs again: those beyond the policy's go whole. Nothing of a former run goes that is younger than the present run's
// first generation: until that was written, the former run is what there is.
func (r *rule) former() {
	began, wrote := r.began()
	good := false // of a newer run, and kept
	for _, run := range r.runs() {
		kept := slices.ContainsFunc(run, func(i int) bool { return r.gens[i].State == Good && r.out[i].Keep && !r.gens[i].Stripped })
		for _, i := range run {
			switch g := r.gens[i]; {
			case g.Run == 0:
			case r.policy.AllFormerRuns:
				r.keep(i, "of a former run")
			case !wrote || g.Age <= began:
				r.keep(i, "of a former run, and younger than the first of the present one")
			case g.Run > r.policy.Runs && good && !g.held():
				r.drop(i, "of a former run, and %d are kept", r.policy.Runs)
			case g.State == Unfinished && !g.held():
				r.drop(i, "it was never finished, and its run is over")
			}
		}
		good = good || kept
	}
}

// began is how old the first finished generation of the present run is; false: there is none.
func (r *rule) began() (age time.Duration, wrote bool) {
	for _, g := range r.gens {
		if g.Run == 0 && g.State != Unfinished && g.State != Damaged {
			age, wrote = max(age, g.Age), true
		}
	}
	return age, wrote
}
