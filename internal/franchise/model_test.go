package franchise

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

// The model: voters with logs, of which a majority committed two entries; what became of each; and an order in which they start again. Judge is the real
// one, and a leader is any that could win: the one with the shortest log, so that what may be lost is.

type fate uint8

const (
	up      fate = iota // its log is whole
	down                // it comes at the end
	emptied             // its log is lost, and it starts with --bootstrap
	old                 // an old copy of its log was put back
	taken               // one of when a leader was taking it in
	fates
)

type memory uint8

const (
	keepers memory = iota // all remember
	ran                   // those that are up have run throughout
	nothing               // the whole cluster started again, and with it all keepers
	memories
)

const (
	first  = 1 // the entry that names the voters
	second = 2 // committed by all
	third  = 3 // committed by a majority: of the first so many voters
)

type mVoter struct {
	name    replica.NodeName
	mark    Mark
	log     []int
	kept    Mark
	knows   bool
	seen    map[replica.NodeName]Mark
	running bool
	votes   bool
	needs   bool
	began   bool
	taken   bool
	least   Mark
	floor   uint64
}

type model struct {
	voters  []*mVoter
	names   []replica.NodeName
	history bool // a log with a history is on a disk, of a voter that runs or not
	strict  bool // nothing that was committed may be lost
	wrong   string
	next    int
	led     bool
}

func (m *model) fail(format string, args ...any) {
	if m.wrong == "" {
		m.wrong = fmt.Sprintf(format, args...)
	}
}

func newModel(n int, fate []fate, mem memory) *model {
	m := &model{next: third}
	majority := n/2 + 1
	faults, holder := 0, false
	for i := range n {
		m.names = append(m.names, replica.NodeName(fmt.Sprintf("v%d", i)))
	}
	full, prefix := Mark{0, 3, 3, 3}, Mark{0, 2, 2, 2}
	for i := range n {
		v := &mVoter{name: m.names[i], mark: prefix, log: []int{first, second}, seen: map[replica.NodeName]Mark{}}
		if i < majority {
			v.mark, v.log = full, []int{first, second, third}
		}
		promised := v.mark
		switch fate[i] {
		case emptied:
			v.mark, v.log = Mark{}, nil
		case old, taken:
			v.taken = fate[i] == taken
			if v.mark, v.log = prefix, []int{first, second}; i >= majority {
				v.mark, v.log = Mark{0, 1, 1, 1}, []int{first}
			}
		default:
			holder = holder || i < majority
		}
		m.history = m.history || v.mark.Disk() == History
		if fate[i] != up {
			faults++
		}
		if remembers := mem == keepers || mem == ran && fate[i] == up; remembers {
			for j := range majority {
				if j != i && (i == 0 || i < majority && j == 0) { // the leader saw them acknowledge, and they saw the leader
					v.seen[m.names[j]] = full
				}
			}
		}
		if mem == keepers && fate[i] != emptied { // with the disk goes the keeper's socket
			v.kept, v.knows = promised, true
		}
		if mem == ran && fate[i] == up {
			v.running, v.votes = true, true
		}
		m.voters = append(m.voters, v)
	}
	m.strict = holder && (mem == keepers || faults <= (n-1)/2)
	return m
}

func (m *model) answers(of *mVoter) map[replica.NodeName]Answer {
	heard := map[replica.NodeName]Answer{}
	for _, v := range m.voters {
		if v.running && v != of {
			heard[v.name] = Answer{Log: v.mark, OfYou: v.seen[of.name], Members: m.names, Forgot: v.needs}
		}
	}
	return heard
}

// settle goes on until nothing changes any more, and then lets time pass once, if it may: a whole cluster starts again at once.
func (m *model) settle(passes bool) {
	for late := false; m.wrong == ""; {
		changed := false
		for _, v := range m.voters {
			if !v.running || v.votes {
				continue
			}
			own := Own{Name: v.name, Log: v.mark, Kept: v.kept, Knows: v.knows, Members: m.names, Bootstrap: true, Began: v.began, Late: late, Taken: v.taken}
			d := Judge(own, m.answers(v))
			switch d.Do {
			case Begin:
				if m.history {
					m.fail("%s begins a history, and there is one", v.name)
				}
				v.mark, v.log, v.began, changed = Mark{0, 1, 1, 1}, []int{first}, true, true
			case Vote:
				v.votes, v.least, v.floor, changed = true, d.Least, d.Floor, true
			case Learn:
				v.needs = true
			default:
			}
		}
		changed = m.elect() || changed
		if !changed && (late || !passes) {
			return
		}
		late = !changed
	}
}

// elect has the candidate with the shortest log lead that could win, and it takes in those that need it.
func (m *model) elect() (changed bool) {
	byLog := slices.Clone(m.voters)
	slices.SortStableFunc(byLog, func(a, b *mVoter) int {
		switch {
		case a.mark.EndsBefore(b.mark):
			return -1
		case b.mark.EndsBefore(a.mark):
			return 1
		}
		return 0
	})
	var term uint64
	for _, v := range m.voters {
		term = max(term, v.mark.Term, v.floor)
	}
	term++
	for _, c := range byLog {
		var with []*mVoter
		for _, v := range m.voters {
			bound := v.least
			if !v.mark.EndsBefore(bound) {
				bound = Mark{}
			}
			if v.running && v.votes && !c.mark.EndsBefore(v.mark) && !c.mark.EndsBefore(bound) {
				with = append(with, v)
			}
		}
		if !c.running || !c.votes || !slices.Contains(with, c) || 2*len(with) <= len(m.voters) {
			continue
		}
		if m.strict && !slices.Contains(c.log, third) {
			m.fail("%s leads, and has not all that was committed: %v", c.name, c.log)
		}
		took := m.lead(c, term)
		changed = took || !m.led
		m.led = true
		return changed
	}
	return false
}

// lead commits one entry, and takes in who needs it where the majority without that one can agree to it.
func (m *model) lead(c *mVoter, term uint64) (took bool) {
	m.next++
	c.log = append(slices.Clone(c.log), m.next)
	c.mark = Mark{0, term, term, uint64(len(c.log))}
	voting := 0
	for _, v := range m.voters {
		if v.running && v.votes {
			v.log, v.mark, voting = slices.Clone(c.log), c.mark, voting+1
		}
	}
	for _, v := range m.voters {
		if v.running && v.needs && 2*voting > len(m.voters)-1 {
			v.log, v.mark, v.needs, v.taken, v.votes, v.floor, took = slices.Clone(c.log), c.mark, false, false, true, term, true
		}
	}
	return took
}

func (m *model) start(i int, passes bool) {
	m.voters[i].running = true
	m.settle(passes)
}

// orders calls fn for each order of n things.
func orders(n int, fn func([]int)) {
	var rec func(order []int, left []int)
	rec = func(order, left []int) {
		if len(left) == 0 {
			fn(order)
			return
		}
		for i := range left {
			rest := slices.Delete(slices.Clone(left), i, i+1)
			rec(append(slices.Clone(order), left[i]), rest)
		}
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	rec(nil, all)
}

// explore runs each case, or one in every so many, and returns the first that goes wrong.
func explore(n, every int) (cases int, wrong string) {
	number := 0
	for code := range pow(int(fates), n) {
		fate := make([]fate, n)
		for i, c := 0, code; i < n; i, c = i+1, c/int(fates) {
			fate[i] = fateOf(c)
		}
		for mem := range memories {
			var starts []int
			for i, f := range fate {
				if f != down && (mem != ran || f != up) {
					starts = append(starts, i)
				}
			}
			orders(len(starts), func(order []int) {
				number++
				if wrong != "" || number%(racing.Stride*every) != 0 {
					return
				}
				cases++
				if why := try(n, fate, mem, starts, order); why != "" {
					wrong = fmt.Sprintf("fates %v (0 up, 1 down, 2 emptied, 3 old, 4 old, of when it was taken in), memory %d, order %v of %v: %s", fate, mem, order, starts, why)
				}
			})
		}
	}
	return cases, wrong
}

func fateOf(code int) fate { return fate(code % int(fates)) }

func pow(a, b int) int {
	p := 1
	for range b {
		p *= a
	}
	return p
}

func try(n int, fate []fate, mem memory, starts, order []int) string {
	m := newModel(n, fate, mem)
	m.settle(true)
	for k, i := range order {
		m.start(starts[i], mem != nothing || k == len(order)-1)
	}
	whole, back := 0, 0
	for _, f := range fate {
		switch f {
		case up:
			whole++
		case down:
			back++
		default:
		}
	}
	if m.wrong == "" && 2*whole > n && !m.led {
		return "a majority with logs is up, and nobody leads"
	}
	for i, f := range fate {
		if f == down {
			m.start(i, true)
		}
	}
	if m.wrong == "" && 2*(whole+back) > n {
		if !m.led {
			return "a majority with logs came back, and nobody leads"
		}
		for _, v := range m.voters {
			if !v.votes {
				return fmt.Sprintf("%s does not vote at the end, with a leader", v.name)
			}
		}
	}
	return m.wrong
}

// TestEachFate: three and five voters, each up, down, emptied or with an old log, also one of when it was taken in, in each order of starts: never two histories, nothing committed is lost,
// and where a majority with logs is up a leader comes.
func TestEachFate(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		every := 1
		if n == 5 && os.Getenv("TROUBLE_LONG") == "" {
			every = 12
		}
		cases, wrong := explore(n, every)
		t.Logf("%d voters: %d cases", n, cases)
		if planted.Unasked {
			t.Logf("the bug that is planted: %s", wrong)
		}
		if planted.Unasked != (wrong != "") {
			t.Errorf("%d voters, bug planted: %v: %s", n, planted.Unasked, wrong)
		}
	}
}
