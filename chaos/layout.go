package chaos

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/pace"
)

// A Layout is how a job's state lies on its ranks and nodes. A run trains one layout after the other, each on a cluster of its own.
type Layout struct {
	Name    string
	World   int
	Groups  []int         // replica group of each rank
	Shards  int           // ranks that share one replica of the model [the trainer's own]
	Slots   int           // generations that an arena holds [as of replicad run]
	StateMB int           // MiB added to each rank's state [0]
	Steps   int           // of each job [1000; 300 with StateMB: steps that copy a while are longer, and fewer]
	Pace    time.Duration // shortest step [20 ms; 60 ms]
	Racks   bool          // the spare alone stands in a rack of its own, so that it mirrors every part
}

const (
	pairs     = "pairs"      // each group has two ranks: only private parts are mirrored
	shards    = "shards"     // each rank is a group: its part is mirrored too, on any node
	oneMirror = "one-mirror" // as shards, with all mirrors on one node
	ownLayout = "own"        // what --world, --groups and --shards say
)

// layouts are as they are without a draw.
var layouts = []Layout{
	{Name: pairs, World: 4, Groups: []int{0, 1, 0, 1}},
	{Name: shards, World: 3, Groups: []int{0, 1, 2}, Shards: 3, Slots: 2, StateMB: 64},
	{Name: oneMirror, World: 3, Groups: []int{0, 1, 2}, Shards: 3, Slots: 2, StateMB: 64, Racks: true},
}

// sizes are what a seed draws from for a layout. The largest of all needs 3 GiB of memory.
type sizes struct {
	states [2]int   // a small and a large one
	worlds []Layout // of these the ranks, groups and shards
}

var drawn = map[string]sizes{
	pairs:     {[2]int{0, 32}, []Layout{layouts[0], {World: 6, Groups: []int{0, 1, 2, 0, 1, 2}, Shards: 3}}},
	shards:    {[2]int{16, 64}, []Layout{layouts[1], {World: 4, Groups: []int{0, 1, 2, 3}, Shards: 4}}}, // a node has two parts that no other rank has
	oneMirror: {[2]int{16, 64}, []Layout{layouts[2], {World: 2, Groups: []int{0, 1}, Shards: 2}}},       // the third voter has no rank, and may hold no part
}

// draw sets the sizes that a seed gives a layout. They follow from the seed and the layout's name alone, so that a run of one layout of several
// has what they had.
func (l *Layout) draw(seed uint64) {
	rng, of := rand.New(rand.NewPCG(seed^l.salt(), 0x512e)), drawn[l.Name]
	w := of.worlds[rng.IntN(len(of.worlds))]
	l.World, l.Groups, l.Shards = w.World, w.Groups, w.Shards
	l.StateMB, l.Slots = of.states[rng.IntN(len(of.states))], 2+rng.IntN(3)
}

// size says it for people.
func (l Layout) size() string {
	slots := "the launcher's number of"
	if l.Slots > 0 {
		slots = fmt.Sprint(l.Slots)
	}
	return fmt.Sprintf("%d ranks in groups %s, %d MiB added to each, %s slots", l.World, l.groupList(), l.StateMB, slots)
}

// like names what recoveries of earlier runs are compared within: those of a large state take longer.
func (l Layout) like() string { return fmt.Sprintf("%s of %d MiB", l.Name, l.StateMB) }

// Layouts are the names that can be asked for.
func Layouts() (names []string) {
	for _, l := range layouts {
		names = append(names, l.Name)
	}
	return names
}

// drawLayouts is the order in which a seed goes over all layouts.
func drawLayouts(seed uint64) []string {
	names := Layouts()
	rng := rand.New(rand.NewPCG(seed, 0x1a7))
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

// layout is the one of this name: its sizes are drawn by the seed, but for what flags say of every layout. A trainer of one's own may have no
// flags for a state or for shards, so that it trains layouts as they are.
func (o Options) layout(name string) Layout {
	l := Layout{Name: name, World: o.World, Groups: o.Groups, Shards: o.Shards}
	if i := slices.IndexFunc(layouts, func(l Layout) bool { return l.Name == name }); i >= 0 {
		if l = layouts[i]; o.textlm() {
			l.draw(o.Seed)
		}
	}
	set(&o.Slots, l.Slots)
	set(&o.StateMB, l.StateMB)
	l.Slots, l.StateMB = o.Slots, o.StateMB
	l.Steps, l.Pace = 1000, 20*time.Millisecond
	if l.StateMB > 0 {
		l.Steps, l.Pace = 300, 60*time.Millisecond
	}
	set(&o.Steps, l.Steps)
	set(&o.Pace, l.Pace)
	l.Steps, l.Pace = o.Steps, o.Pace
	return l
}

// paced is the layout with steps of this machine's length, four times as long at most: else a job is over before a busy machine has started
// a daemon again.
func (l Layout) paced() Layout {
	l.Pace = min(pace.Of(l.Pace), 4*l.Pace)
	return l
}

// salt keeps the schedules of two layouts apart.
func (l Layout) salt() uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, l.Name)
	return h.Sum64()
}

// lone tells whether a rank is the only one of its group: a mirror has the group's part then.
func (l Layout) lone() bool {
	ranks := map[int]int{}
	for _, g := range l.Groups {
		ranks[g]++
	}
	for _, n := range ranks {
		if n == 1 {
			return true
		}
	}
	return false
}

// lacks says why a kind of fault can't be had with the layout; empty: it can.
func (l Layout) lacks(kind string) string {
	a, aimed := aims[kind]
	switch {
	case kind == heir && l.lone():
		return "a rank alone in its group has no twin that it could be compared with"
	case !aimed:
		return ""
	case l.StateMB == 0:
		return "a part is copied too fast to aim at: give --state-mb"
	case a.mirrors && !l.lone():
		return "no mirror has a group's part where each group has two ranks"
	}
	return ""
}
