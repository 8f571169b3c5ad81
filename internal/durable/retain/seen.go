package retain

// Eyes are what a decision asks before anything goes. An error of either means that the store did not say: nothing is decided then.
type Eyes struct {
	// Look says the state of a generation that stays, without reading it: its former one, unless what it consists of is not all there.
	Look func(i int) (State, error)
	// Read reads a generation whole, and says its state.
	Read func(i int) (State, error)
}

// DecideSeen is Decide, where State is what was found of a generation once. Before anything goes, each generation that stays and counts is looked at,
// and for all that goes one that is newer, stays and is good is read whole. What they find takes the place of the former state in gens: one that is not
// good any more pushes nothing out.
func DecideSeen(gens []Generation, p Policy, eyes Eyes) ([]Verdict, error) {
	looked, read := make([]bool, len(gens)), make([]bool, len(gens))
	ask := func(i int, done []bool, is func(int) (State, error)) (news bool, err error) {
		state, err := is(i)
		if err != nil {
			return false, err
		}
		was := gens[i].State
		gens[i].State, done[i] = state, true
		return state != was, nil
	}
	for {
		out := Decide(gens, p)
		goes := func(i int) bool { return !out[i].Keep && gens[i].State != Unfinished }
		again, deletes := false, false
		for i := range gens {
			deletes = deletes || goes(i)
		}
		for i := range gens {
			if !deletes || looked[i] || !out[i].Keep || !gens[i].counts() {
				continue
			}
			news, err := ask(i, looked, eyes.Look)
			if err != nil {
				return nil, err
			}
			again = again || news
		}
		for i := range gens {
			if again || !goes(i) {
				continue
			}
			w := witness(gens, out, i)
			if w < 0 { // the rule lets nothing go without one
				out[i] = Verdict{true, "nothing that is newer was read back and is good"}
				continue
			}
			if read[w] {
				continue
			}
			news, err := ask(w, read, eyes.Read)
			if err != nil {
				return nil, err
			}
			again = again || news
		}
		if !again {
			return out, nil
		}
	}
}

// witness is the generation that has to be whole for one to go: the newest good one of its run that stays, or of the nearest newer run.
func witness(gens []Generation, out []Verdict, of int) int {
	best := -1
	for i, g := range gens {
		if i == of || !out[i].Keep || g.State != Good || !g.replaces(gens[of]) {
			continue
		}
		if best < 0 || g.Run > gens[best].Run || g.Run == gens[best].Run && (gens[best].Stripped && !g.Stripped || gens[best].Stripped == g.Stripped && g.newer(gens[best])) {
			best = i
		}
	}
	return best
}

// newer tells whether a generation was written behind another one of its run.
func (g Generation) newer(than Generation) bool {
	return g.Epoch > than.Epoch || g.Epoch == than.Epoch && g.Step > than.Step
}

// replaces tells whether a generation may be what another one goes for.
func (g Generation) replaces(other Generation) bool {
	if g.Run == other.Run {
		return g.Stripped == other.Stripped && g.newer(other)
	}
	return g.Run < other.Run && !g.Stripped
}
