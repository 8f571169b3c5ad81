package chaos

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"
)

// A Layout is how a job's state lies on its ranks and nodes. A run trains one layout after the other, each on a cluster of its own.
type Layout struct {
	Name    string
	World   int
	Groups  []int         // replica group of each rank
	Shards  int           // ranks that share one replica of the model [the trainer's own]
	Slots   int           // generations that an arena holds [as of replicad run]
	StateMB int           // MiB added to each rank's state [0]
	Steps   int           // of each job
	Pace    time.Duration // shortest step
	Racks   bool          // the spare alone stands in a rack of its own, so that it mirrors every part
}

const (
	pairs     = "pairs"      // each group has two ranks: only private parts are mirrored
	shards    = "shards"     // each rank is a group: its part is mirrored too, on any node
	oneMirror = "one-mirror" // as shards, with all mirrors on one node
	ownLayout = "own"        // what --world, --groups and --shards say
)

var layouts = []Layout{
	{Name: pairs, World: 4, Groups: []int{0, 1, 0, 1}, Steps: 1000, Pace: 20 * time.Millisecond},
	{Name: shards, World: 3, Groups: []int{0, 1, 2}, Shards: 3, Slots: 2, StateMB: 64, Steps: 300, Pace: 60 * time.Millisecond},
	{Name: oneMirror, World: 3, Groups: []int{0, 1, 2}, Shards: 3, Slots: 2, StateMB: 64, Steps: 300, Pace: 60 * time.Millisecond, Racks: true},
}

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

// layout is the one of this name, with what the flags say of every layout.
func (o Options) layout(name string) Layout {
	l := Layout{Name: name, World: o.World, Groups: o.Groups, Shards: o.Shards, Steps: defaultSteps, Pace: defaultPace}
	if i := slices.IndexFunc(layouts, func(l Layout) bool { return l.Name == name }); i >= 0 {
		l = layouts[i]
	}
	for field, flag := range map[*int]int{&l.Slots: o.Slots, &l.StateMB: o.StateMB, &l.Steps: o.Steps} {
		if flag != 0 {
			*field = flag
		}
	}
	if o.Pace != 0 {
		l.Pace = o.Pace
	}
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
