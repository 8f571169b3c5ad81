package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// lean holds the preferences that flags give to a run. Where the place of a bug is known, an aimed run meets it in some tens of episodes, not
// in thousands. Everything that no flag names stays random. Without flags a seed draws the same episode as before.
var lean struct {
	moments []moment
	kinds   []kind
	layouts []int
	world   uint32
	slots   int
	cadence uint32
	warm    bool
	takes   time.Duration
	durable uint32
}

// leaning is a flag of lean. It keeps its text for the line that plays an episode again.
type leaning struct {
	text string
	take func(string) error
}

func (l *leaning) String() string { return l.text }

func (l *leaning) Set(text string) error {
	l.text = text
	return l.take(text)
}

func init() {
	for name, f := range map[string]struct {
		usage string
		take  func(string) error
	}{
		"aim":     {"`moments` that three faults in four are aimed at, by the first words of their names: push,plan", into(&lean.moments, moments, func(m moment) string { first, _, _ := strings.Cut(m.String(), " "); return first })},
		"break":   {"`kinds` that three faults in four are of: rank killed,node lost", into(&lean.kinds, kinds, kind.String)},
		"layout":  {"of the groups, some `of` one,pairs,twins,shards", into(&lean.layouts, layouts, func(l int) string { return [...]string{"one", "pairs", "twins", "shards"}[l] })},
		"world":   {"`ranks` that all jobs have, from 2 to 64", number(&lean.world)},
		"slots":   {"that all jobs have, from 2 to 4", number(&lean.slots)},
		"cadence": {"that all jobs have", number(&lean.cadence)},
		"warm":    {"`true`: processes are there in no time in all jobs", func(s string) (err error) { lean.warm, err = strconv.ParseBool(s); return err }},
		"takes":   {"how `long` a group's part is on its way in all jobs", func(s string) (err error) { lean.takes, err = time.ParseDuration(s); return err }},
		"disk":    {"`steps` between durable generations in all jobs", number(&lean.durable)},
	} {
		flag.Var(&leaning{take: f.take}, name, f.usage)
	}
}

// into parses a list of names of the values below end.
func into[T ~int | ~uint8](of *[]T, end T, name func(T) string) func(string) error {
	return func(list string) error {
		for word := range strings.SplitSeq(list, ",") {
			was := len(*of)
			for v := T(0); v < end; v++ {
				if name(v) == word {
					*of = append(*of, v)
				}
			}
			if len(*of) == was {
				return fmt.Errorf("there is no %q", word)
			}
		}
		return nil
	}
}

// number parses a number.
func number[T ~int | ~uint32](n *T) func(string) error {
	return func(s string) error {
		_, err := fmt.Sscan(s, n)
		return err
	}
}

// leans returns the flags of lean that were given; empty: none.
func leans() (given string) {
	flag.Visit(func(f *flag.Flag) {
		if _, ok := f.Value.(*leaning); ok {
			given += fmt.Sprintf(" -%s='%s'", f.Name, f.Value)
		}
	})
	return strings.TrimSpace(given)
}

// leanAim replaces three draws in four by a preferred one. An episode in which only daemons fail keeps its kinds.
func leanAim(rng *rand.Rand, a *aim, daemonsOnly bool) {
	if len(lean.moments) > 0 && rng.IntN(4) > 0 {
		a.moment = pick(rng, lean.moments...)
	}
	if len(lean.kinds) > 0 && !daemonsOnly && rng.IntN(4) > 0 {
		a.kind = pick(rng, lean.kinds...)
	}
}

// leanBefore moves the fault before a live capture away from candidates, in three draws of four. The leader asks for a live capture only where
// the live state is newer than the candidate.
func leanBefore(rng *rand.Rand, a *aim, m moment) {
	if m == living && slices.Contains(lean.moments, m) && rng.IntN(4) > 0 {
		a.moment = anytime
	}
}

// leanLayout returns a preferred layout, or the drawn one.
func leanLayout(rng *rand.Rand, drawn int) int {
	if len(lean.layouts) == 0 {
		return drawn
	}
	return pick(rng, lean.layouts...)
}

// leanShape sets the fields that flags fix.
func leanShape(s *shape) {
	if lean.world > 0 {
		s.world = lean.world
	}
	if lean.slots > 0 {
		s.slots = lean.slots
	}
	if lean.cadence > 0 {
		s.cadence = lean.cadence
	}
	s.warm = s.warm || lean.warm
	if lean.takes > 0 {
		s.takes = lean.takes
	}
	if lean.durable > 0 {
		s.durable = lean.durable
	}
}
