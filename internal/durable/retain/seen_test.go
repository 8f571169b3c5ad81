package retain

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/replicad/replicad/replica"
)

// TestLookBeforeDeleting: one that is kept counts once a look has found it, and what takes its place is looked at too.
func TestLookBeforeDeleting(t *testing.T) {
	all := func() []Generation {
		return []Generation{{Step: 50, State: Unread}, {Step: 40, State: Good}, {Step: 30, State: Good}, {Step: 20, State: Good}, {Step: 10, State: Good}}
	}
	var looked, read []int
	bad := map[int]bool{1: true, 2: true}
	eyes := func(found map[int]bool) Eyes {
		return Eyes{
			Look: func(i int) (State, error) {
				if looked = append(looked, i); found[i] {
					return Damaged, nil
				}
				return all()[i].State, nil
			},
			Read: func(i int) (State, error) {
				if read = append(read, i); bad[i] {
					return Damaged, nil
				}
				return Good, nil
			},
		}
	}
	for what, c := range map[string]struct {
		found        map[int]bool
		looked, read []int
	}{
		"files are missing": {bad, []int{0, 1, 2, 3}, []int{3}},
		"a byte is another": {nil, []int{0, 1, 2, 3}, []int{1, 2, 3}},
	} {
		looked, read = nil, nil
		gens := all()
		out, err := DecideSeen(gens, Policy{Last: 1}, eyes(c.found))
		if err != nil || !slices.Equal(looked, c.looked) || !slices.Equal(read, c.read) {
			t.Fatalf("%s: looked at %v and read %v, %v", what, looked, read, err)
		}
		if !out[0].Keep || !out[3].Keep || out[4].Keep || gens[0].State != Unread {
			t.Errorf("%s: %+v", what, out)
		}
	}
	refused := errors.New("refused")
	no := func(int) (State, error) { return Unread, refused }
	yes := func(int) (State, error) { return Good, nil }
	for what, eyes := range map[string]Eyes{"looks": {no, yes}, "reads": {yes, no}} {
		if out, err := DecideSeen(all(), Policy{Last: 1}, eyes); out != nil || !errors.Is(err, refused) {
			t.Errorf("%s: decided without an answer: %+v, %v", what, out, err)
		}
	}
	if _, err := DecideSeen(all(), Policy{Last: 4}, Eyes{no, no}); err != nil {
		t.Errorf("nothing goes, and it looks: %v", err)
	}
}

// disk is a generation as it lies there, beside what is known of it.
type disk uint8

const (
	whole  disk = iota
	rotten      // bytes are others: a read finds it
	short       // a file is missing: a look finds it
)

// model is a job's generations, from the oldest.
type model struct {
	gens []Generation
	lies []disk
}

// models are all that a run of so many generations can be, by what is known of each and how it lies there.
func models(n int) (all int) {
	all = 1
	for range n {
		all *= 9
	}
	return all
}

func (m *model) set(at int) {
	for i := range m.gens {
		m.gens[i].State, m.lies[i] = State(at%3), disk(at/3%3)
		at /= 9
	}
}

func (m *model) eyes() Eyes {
	return Eyes{
		Look: func(i int) (State, error) {
			if m.lies[i] == short {
				return Damaged, nil
			}
			return m.gens[i].State, nil
		},
		Read: func(i int) (State, error) {
			if m.lies[i] != whole {
				return Damaged, nil
			}
			return Good, nil
		},
	}
}

// holds tells what is wrong with what was decided: nothing goes unless one that is newer, or of a newer run, stays and is whole.
func (m *model) holds(was []Generation, out []Verdict) error {
	for i, g := range was {
		if out[i].Keep {
			continue
		}
		if !slices.ContainsFunc(m.replaces(g), func(j int) bool { return out[j].Keep && m.lies[j] == whole }) {
			return fmt.Errorf("step %d of run %d goes, and nothing newer that stays is whole", g.Step, g.Run)
		}
	}
	return nil
}

func (m *model) replaces(g Generation) (list []int) {
	for j, other := range m.gens {
		if other.replaces(g) {
			list = append(list, j)
		}
	}
	return list
}

func (m *model) String() (text string) {
	for i, g := range m.gens {
		text += fmt.Sprintf(" %d:%d %v/%s", g.Run, g.Step, g.State, [...]string{"whole", "rotten", "short"}[m.lies[i]])
	}
	return text
}

// TestAGoodOneIsLeft: whatever is known of a job's generations and however they lie there, under each policy, a good one is left wherever there was one.
// The states of a run are those that any sequence of writes, reads, rot and decisions comes to: each has one of nine.
func TestAGoodOneIsLeft(t *testing.T) {
	policies := []Policy{{Last: 1}, {Last: 2}, {Last: 3}, {Last: 1, Best: 2}, {Last: 1, EachEpoch: true}, {Last: 1, Every: 20, Runs: 1}, {Last: 2, Runs: 0}}
	n := 0
	for size := 1; size <= 6; size++ {
		for _, runs := range []int{1, 2} {
			if size < runs {
				continue
			}
			step := map[int]int{5: 7, 6: 211}[size]
			m := model{make([]Generation, size), make([]disk, size)}
			for i := range m.gens { // the first half is of the former run
				m.gens[i] = Generation{Step: replica.Step(10 * (i + 1)), Epoch: 1, Measured: true, Metric: float64(i % 3), Loads: true, LoaderEpoch: uint64(i / 2)}
				if runs == 2 && i < size/2 {
					m.gens[i].Run, m.gens[i].Age = 1, 2
				}
			}
			for at := 0; at < models(size); at += max(step, 1) {
				for p, policy := range policies {
					if p > 2 && (at+p)%5 != 0 { // the newest few are what most go by
						continue
					}
					m.set(at)
					was := slices.Clone(m.gens)
					out, err := DecideSeen(m.gens, policy, m.eyes())
					if err == nil {
						err = m.holds(was, out)
					}
					if err != nil {
						m.set(at)
						t.Fatalf("%v, %+v: %v: %+v", &m, policy, err, out)
					}
					n++
				}
			}
		}
	}
	if n < 1000 {
		t.Errorf("%d decisions were looked at", n)
	}
}

// TestTwelveThatNobodyHasRead: the newest three are rotten, or lack a file, and nobody has read any. Nothing goes for their sake.
func TestTwelveThatNobodyHasRead(t *testing.T) {
	for _, known := range []State{Unread, Good} {
		for _, how := range []disk{rotten, short} {
			m := model{make([]Generation, 12), make([]disk, 12)}
			for i := range m.gens {
				m.gens[i] = Generation{Step: replica.Step(10 * (i + 1)), State: known}
				if i >= 9 {
					m.lies[i] = how
				}
			}
			out, err := DecideSeen(m.gens, Policy{Last: 3}, m.eyes())
			left := 0
			for i := range m.gens {
				if out[i].Keep && m.lies[i] == whole {
					left++
				}
			}
			if want := map[State]int{Unread: 9, Good: 3}[known]; err != nil || left != want {
				t.Errorf("%v: %d whole ones are left, want %d, %v: %+v", &m, left, want, err, out)
			}
		}
	}
}
