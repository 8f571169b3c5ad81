package retain

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// letters writes a run as its generations from the oldest: g good, u unread, d damaged, x unfinished; a capital one is one that a run went
// on from. Steps are 10, 20, ...; ages fall from one to the next over all runs, which are given from the oldest.
func letters(runs ...string) (gens []Generation) {
	all := len(strings.Join(runs, ""))
	for at, run := range runs {
		for i, c := range run {
			state := map[string]State{"u": Unread, "g": Good, "d": Damaged, "x": Unfinished}[strings.ToLower(string(c))]
			gens = append(gens, Generation{Step: replica.Step(10 * (i + 1)), Epoch: 1, Run: len(runs) - 1 - at, Age: time.Duration(all-len(gens)) * time.Hour, State: state, Resumed: c < 'a'})
		}
	}
	return gens
}

// kept names by run the steps that stay.
func kept(gens []Generation, out []Verdict) string {
	var rows []string
	for i, g := range gens {
		if out[i].Keep {
			rows = append(rows, fmt.Sprintf("%d:%d", g.Run, g.Step))
		}
	}
	return strings.Join(rows, " ")
}

// What the rule comes to, case by case.
func TestDecide(t *testing.T) {
	for what, c := range map[string]struct {
		runs   []string
		policy Policy
		change func([]Generation)
		want   string
		why    string // of the first one that goes, or of the first where none does
	}{
		"what is stripped pushes out none that is whole": {[]string{"gggg"}, Policy{Last: 1}, func(g []Generation) { g[1].Stripped, g[3].Stripped = true, true }, "0:30 0:40",
			"newer ones were read back and are good: 1, of 1 that are kept"},
		"nor a former run": {[]string{"g", "g", "g"}, Policy{Last: 1, Runs: 1}, func(g []Generation) { g[1].Stripped, g[2].Stripped = true, true }, "2:10 1:10 0:10",
			"the newest that was read back and is good"},
		"the newest two":                         {[]string{"gggg"}, Policy{Last: 2}, nil, "0:30 0:40", "newer ones were read back and are good: 3, of 2 that are kept"},
		"one that was not read back counts not":  {[]string{"gggu"}, Policy{Last: 2}, nil, "0:20 0:30 0:40", "newer ones were read back and are good: 2, of 2 that are kept"},
		"nor several":                            {[]string{"gguuu"}, Policy{Last: 2}, nil, "0:10 0:20 0:30 0:40 0:50", "one of the newest 2 that were read back and are good"},
		"nothing was read back":                  {[]string{"uuuu"}, Policy{Last: 2}, nil, "0:10 0:20 0:30 0:40", "it was not read back yet, and 0 of 2 newer ones were"},
		"one newer one was":                      {[]string{"uug"}, Policy{Last: 2}, nil, "0:10 0:20 0:30", "it was not read back yet, and 1 of 2 newer ones were"},
		"as many newer ones were":                {[]string{"ugg"}, Policy{Last: 2}, nil, "0:20 0:30", "newer ones were read back and are good: 2, of 2 that are kept; it never was"},
		"a damaged one counts not":               {[]string{"gd"}, Policy{Last: 1}, nil, "0:10 0:20", "the newest that was read back and is good"},
		"and pushes nothing out":                 {[]string{"gdu"}, Policy{Last: 1}, nil, "0:10 0:20 0:30", "the newest that was read back and is good"},
		"and goes once a newer one is good":      {[]string{"gdg"}, Policy{Last: 2}, nil, "0:10 0:30", "it failed a read, and a newer one is good"},
		"everything is damaged":                  {[]string{"ddd"}, Policy{Last: 1}, nil, "0:10 0:20 0:30", "it failed a read and counts for nothing; it is kept aside, since it is newer than all that are good"},
		"a run went on from it":                  {[]string{"Uuu"}, Policy{Last: 2}, nil, "0:10 0:20 0:30", "a run went on from it, and 0 of 2 newer ones were read back"},
		"until as many were read back":           {[]string{"Ugg"}, Policy{Last: 2}, nil, "0:20 0:30", "newer ones were read back and are good: 2, of 2 that are kept; it never was"},
		"pinned for a time":                      {[]string{"gdg"}, Policy{Last: 1}, func(g []Generation) { g[0].Until, g[0].Open, g[1].Until = time.Hour, true, time.Minute }, "0:10 0:20 0:30", "pinned for 1h0m0s more"},
		"the best of those that nobody has read": {[]string{"uug"}, Policy{Last: 1, Best: 1}, func(g []Generation) { measure(g, 1, 2, 3) }, "0:10 0:20 0:30", "one of the best 1 by its metric, 1"},
		"those of an epoch that nobody has read": {[]string{"uug"}, Policy{Last: 1, EachEpoch: true}, func(g []Generation) { load(g, 1, 1, 2) }, "0:10 0:20 0:30", "the newest of epoch 1 of its loader"},
		"what died unfinished":                   {[]string{"xgx"}, Policy{Last: 1}, nil, "0:20 0:30", "it was never finished, and a newer one was"},
		"multiples":                              {[]string{"gggggg"}, Policy{Last: 1, Every: 20}, nil, "0:20 0:40 0:60", "newer ones were read back and are good: 5, of 1 that are kept"},
		"pinned and read":                        {[]string{"gdug"}, Policy{Last: 1}, func(g []Generation) { g[0].Pinned, g[1].Pinned, g[2].Open = true, true, true }, "0:10 0:20 0:30 0:40", "pinned"},
		"younger":                                {[]string{"ggg"}, Policy{Last: 1, Younger: 150 * time.Minute}, nil, "0:20 0:30", "newer ones were read back and are good: 2, of 1 that are kept"},
		"the newest of each epoch of the loader": {[]string{"ggug"}, Policy{Last: 1, EachEpoch: true}, func(g []Generation) { load(g, 1, 2, 2, 3) }, "0:10 0:20 0:30 0:40", "the newest of epoch 1 of its loader"},
		"of one epoch":                           {[]string{"gggg"}, Policy{Last: 1, EachEpoch: true}, func(g []Generation) { load(g, 1, 1, 2, 2) }, "0:20 0:40", "newer ones were read back and are good: 3, of 1 that are kept"},
		"the smallest metric":                    {[]string{"gggg"}, Policy{Last: 1, Best: 1}, func(g []Generation) { measure(g, 3, 1, 2, math.NaN()) }, "0:20 0:40", "newer ones were read back and are good: 3, of 1 that are kept"},
		"the largest":                            {[]string{"gggg"}, Policy{Last: 1, Best: 1, Largest: true}, func(g []Generation) { measure(g, 3, 1, 2, 1) }, "0:10 0:40", "newer ones were read back and are good: 2, of 1 that are kept"},
		"the best that is known to be good":      {[]string{"ggug"}, Policy{Last: 1, Best: 1}, func(g []Generation) { measure(g, 3, 1, 0, 4) }, "0:20 0:30 0:40", "newer ones were read back and are good: 2, of 1 that are kept"},
		"former runs by the same rule":           {[]string{"gg", "gg", "gg"}, Policy{Last: 1, Runs: 3}, nil, "2:20 1:20 0:20", "newer ones were read back and are good: 1, of 1 that are kept"},
		"one former run":                         {[]string{"Ug", "gg", "gg"}, Policy{Last: 1, Runs: 1}, nil, "1:20 0:20", "of a former run, and 1 are kept"},
		"none but the only good one":             {[]string{"g", "d", "u"}, Policy{Last: 1}, nil, "2:10 1:10 0:10", "the newest that was read back and is good"},
		"the present one has written nothing":    {[]string{"gg", "gg", "x"}, Policy{Last: 1}, nil, "2:10 2:20 1:10 1:20 0:10", "of a former run, and younger than the first of the present one"},
		"nor anything that is good for anything": {[]string{"gg", "d"}, Policy{Last: 1}, nil, "1:10 1:20 0:10", "of a former run, and younger than the first of the present one"},
		"former runs are left alone":             {[]string{"gg", "gg"}, Policy{Last: 1, AllFormerRuns: true}, nil, "1:10 1:20 0:20", "newer ones were read back and are good: 1, of 1 that are kept"},
		"what a former run left unfinished":      {[]string{"gx", "g"}, Policy{Last: 1, Runs: 3}, nil, "1:10 0:10", "it was never finished, and its run is over"},
	} {
		gens := letters(c.runs...)
		if c.change != nil {
			c.change(gens)
		}
		out := Decide(gens, c.policy)
		if got := kept(gens, out); got != c.want {
			t.Errorf("%s: keeps %s, want %s: %+v", what, got, c.want, out)
		}
		first := max(0, slices.IndexFunc(out, func(v Verdict) bool { return !v.Keep }))
		if out[first].Why != c.why {
			t.Errorf("%s: of step %d of run %d it says %q, want %q", what, gens[first].Step, gens[first].Run, out[first].Why, c.why)
		}
	}
	if got := fmt.Sprint(Unread, Good, Damaged, Unfinished, State(9)); got != "unread good damaged unfinished unfinished" {
		t.Error(got)
	}
}

func load(g []Generation, epochs ...uint64) {
	for i, e := range epochs {
		g[i].Loads, g[i].LoaderEpoch = true, e
	}
}

func measure(g []Generation, metrics ...float64) {
	for i, m := range metrics {
		g[i].Measured, g[i].Metric = true, m
	}
}

// words are all of up to so many letters.
func words(most int) []string {
	out, from := []string{""}, 0
	for range most {
		to := len(out)
		for _, w := range out[from:to] {
			for _, c := range "gudxGU" {
				out = append(out, w+string(c))
			}
		}
		from = to
	}
	return out
}

// before tells whether one generation is older than another, as the rule orders them.
func before(a, b Generation) bool {
	return a.Run > b.Run || a.Run == b.Run && (a.Epoch < b.Epoch || a.Epoch == b.Epoch && a.Step < b.Step)
}

// promises are what holds of each decision, whatever the policy; only tells which of some generations it left.
func promises(gens []Generation, p Policy, out []Verdict) error {
	last := max(p.Last, 1)
	newest := map[State]int{}
	for i, g := range gens {
		if j, ok := newest[g.State]; !ok || before(gens[j], g) {
			newest[g.State] = i
		}
	}
	for i, g := range gens {
		better, read := 0, 0 // newer ones of its run that stay and are good; and all that were read back
		elsewhere := false   // a good one of a newer run stays
		for j, other := range gens {
			if j == i || !before(g, other) {
				continue
			}
			if other.Run == g.Run && other.State == Good {
				read++
			}
			if other.State == Good && out[j].Keep {
				if other.Run == g.Run {
					better++
				} else {
					elsewhere = true
				}
			}
		}
		beyond := g.Run > p.Runs && !p.AllFormerRuns && elsewhere
		switch {
		case out[i].Why == "":
			return fmt.Errorf("of step %d of run %d nothing is said", g.Step, g.Run)
		case out[i].Keep:
		case g.Pinned || g.Open || g.Run > 0 && p.AllFormerRuns:
			return fmt.Errorf("step %d of run %d goes, which is pinned, open or no business of the rule", g.Step, g.Run)
		case g.State == Good && newest[Good] == i:
			return fmt.Errorf("step %d of run %d goes, the newest good one", g.Step, g.Run)
		case g.State == Good && better < last && !beyond:
			return fmt.Errorf("step %d of run %d goes, which is good, with %d good ones above it", g.Step, g.Run, better)
		case g.State == Damaged && better == 0 && !beyond:
			return fmt.Errorf("step %d of run %d goes, which nothing good has followed", g.Step, g.Run)
		case g.counts() && better < last && !beyond:
			return fmt.Errorf("step %d of run %d goes, with %d good ones above it", g.Step, g.Run, better)
		case better == 0 && !elsewhere && g.State != Unfinished:
			return fmt.Errorf("step %d of run %d goes, and nothing good that stays is newer", g.Step, g.Run)
		case g.Resumed && g.counts() && read < last && !beyond:
			return fmt.Errorf("step %d of run %d goes, from which a run went on, with %d read back since", g.Step, g.Run, read)
		}
	}
	return nil
}

// goodAlone are the verdicts on the good ones where nothing else is there.
func goodAlone(gens []Generation, p Policy) []Verdict {
	return Decide(slices.DeleteFunc(slices.Clone(gens), func(g Generation) bool { return g.State != Good }), p)
}

// Every run of up to five generations, and every run of up to two after one of up to three, under every small policy.
func TestPromises(t *testing.T) {
	var cases [][]string
	for _, w := range words(5) {
		cases = append(cases, []string{w})
	}
	for _, a := range words(3) {
		for _, b := range words(2) {
			cases = append(cases, []string{a, b})
		}
	}
	n := 0
	for _, runs := range cases {
		gens := letters(runs...)
		for last := 1; last <= 2; last++ {
			for former := range 2 {
				p := Policy{Last: last, Runs: former}
				if len(runs) == 1 && former == 1 {
					continue
				}
				out := Decide(gens, p)
				if err := promises(gens, p, out); err != nil {
					t.Fatalf("%q, %+v: %v", runs, p, err)
				}
				left := slices.Clone(gens)
				again := Decide(only(left, out), p)
				if slices.ContainsFunc(again, func(v Verdict) bool { return !v.Keep }) {
					t.Fatalf("%q, %+v: %+v, and of what is left %+v", runs, p, out, again)
				}
				if len(runs) > 1 {
					n++
					continue
				}
				alone := goodAlone(gens, p)
				at := 0
				for i, g := range gens {
					if g.State == Good {
						if at++; out[i].Keep != alone[at-1].Keep {
							t.Fatalf("%q, %+v: step %d is judged otherwise without what is not known to be good: %+v", runs, p, g.Step, out)
						}
					}
				}
				n++
			}
		}
	}
	if n < 50_000 {
		t.Errorf("%d decisions were looked at", n)
	}
}

// only are the generations that stay.
func only(gens []Generation, out []Verdict) (left []Generation) {
	for i, g := range gens {
		if out[i].Keep {
			left = append(left, g)
		}
	}
	return left
}

// Any policy, and any order of what is known: the verdicts keep the promises, and are each generation's own.
func TestPromisesOfAnyPolicy(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 3))
	for range 20_000 {
		var runs []string
		for range 1 + rng.IntN(5) {
			run := ""
			for range rng.IntN(6) {
				run += string("gudxGU"[rng.IntN(6)])
			}
			runs = append(runs, run)
		}
		gens := letters(runs...)
		for i := range gens {
			g := &gens[i]
			g.Pinned, g.Open, g.Measured, g.Loads = rng.IntN(9) == 0, rng.IntN(9) == 0, rng.IntN(2) == 0, rng.IntN(2) == 0
			g.Metric, g.LoaderEpoch, g.Epoch = float64(rng.IntN(3)), uint64(rng.IntN(3)), replica.Epoch(1+g.Step/30)
		}
		p := Policy{Last: rng.IntN(4), Every: replica.Step(rng.IntN(3) * 10), EachEpoch: rng.IntN(2) == 0, Best: rng.IntN(3), Largest: rng.IntN(2) == 0,
			Younger: time.Duration(rng.IntN(6)) * time.Hour, Runs: rng.IntN(4), AllFormerRuns: rng.IntN(4) == 0}
		out := Decide(gens, p)
		if err := promises(gens, p, out); err != nil {
			t.Fatalf("%q, %+v: %v: %+v", runs, p, err, out)
		}
		order := rng.Perm(len(gens))
		shuffled := make([]Generation, len(gens))
		for i, at := range order {
			shuffled[at] = gens[i]
		}
		for i, at := range order {
			if got := Decide(shuffled, p)[at]; got != out[i] {
				t.Fatalf("%q, %+v: step %d of run %d: %+v in another order, %+v in this", runs, p, gens[i].Step, gens[i].Run, got, out[i])
			}
		}
	}
}
