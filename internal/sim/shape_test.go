package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

// shape is what kind of a job an episode has, on what kind of a cluster.
type shape struct {
	hosts, trainers int
	world           uint32
	groups          []replica.GroupID
	slots           int
	cadence         uint32
	weights         uint64 // bytes of a group's part: whole lines of 64, as an arena lays them out
	frozen          bool
	warm            bool            // processes are there in no time
	pass            time.Duration   // of a forward and backward pass, at least
	takes           time.Duration   // of a group's part from node to node, where nothing else is on the way; 0: none
	from            *replica.Origin // that the job begins with; nil: none
	durable         uint32          // steps between durable generations; 0: there are none
	writes          time.Duration   // of a group's part to disk
}

// pick is one of several, all as likely.
func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

func drawShape(rng *rand.Rand) shape {
	s := shape{weights: 10048, hosts: pick(rng, 3, 3, 4, 5), world: uint32(2 + rng.IntN(3)), frozen: rng.IntN(3) == 0, warm: rng.IntN(2) == 0, cadence: pick[uint32](rng, 0, 0, 2, 5, 9)}
	s.trainers = min(s.hosts, 2+rng.IntN(2))
	s.slots = pick(rng, 2, 2, 2, 3, 4)
	s.pass = pick(rng, 10*time.Millisecond, 40*time.Millisecond, 250*time.Millisecond, time.Second)
	s.takes = pick(rng, 0, 30*time.Millisecond, 150*time.Millisecond, 250*time.Millisecond)
	s.durable = pick[uint32](rng, 0, 1, 1, 4)
	s.writes = min(time.Second, pick[time.Duration](rng, 1, 3, 5)*max(1, time.Duration(s.cadence))*(s.pass+20*time.Millisecond)) // of some candidates; a rank that leaves waits 5 s for a slot
	layout := leanLayout(rng, rng.IntN(drawnFrom))
	if rng.IntN(16) == 0 {
		s.world = pick[uint32](rng, 8, 16, 64)
		if racing.On {
			s.world = 8 // four times as long are enough of the smallest
		}
		s.takes = s.takes * 3 / time.Duration(s.world) // of as much state in all
	}
	leanShape(&s)
	s.group(layout)
	if rng.IntN(3) == 0 {
		s.from = &replica.Origin{Asked: "file:///b/lm", URL: "file:///b", Job: "lm", Run: replica.JobID{7}, Place: "lm/run/step", Generation: replica.Generation{Epoch: 3, Step: 2180}, World: 8}
	}
	return s
}

// The layouts of groups.
const (
	oneGroup  = iota
	pairs                   // two groups
	twinned                 // ranks 0 and 1 together, the others apart
	shards                  // each rank apart
	layouts                 // how many there are
	drawnFrom = layouts + 1 // each rank apart twice as often
)

// group lays a job's ranks out in groups.
func (s *shape) group(layout int) {
	for r := range s.world {
		g := replica.GroupID(r)
		switch layout {
		case oneGroup:
			g = 0
		case pairs:
			g %= 2
		case twinned:
			g -= min(g, 1)
		}
		s.groups = append(s.groups, g)
	}
}

// has tells whether a moment is one of such a job, as a rule. The state of a rank that is a group of its own dies with it. A rank passes a
// candidate where the disk has its slots.
func (s shape) has(m moment) bool {
	switch m {
	case living:
		return s.grouped()
	case splitting:
		return s.grouped() && s.durable > 0 && s.slots == 2
	default:
		return true
	}
}

// start is the step that the job begins at.
func (s shape) start() replica.Step { return (&replica.Job{From: s.from}).Start() }

// initialises tells whether a rank makes the initial state of its group: all do, or the one that leads it where the job begins from another run.
func (s shape) initialises(r replica.Rank) bool {
	return s.from == nil || slices.Index(s.groups, s.groups[r]) == int(r)
}

// grouped tells whether some group has several ranks.
func (s shape) grouped() bool {
	for i, g := range s.groups {
		if slices.Contains(s.groups[:i], g) {
			return true
		}
	}
	return false
}

func (s shape) String() string {
	return fmt.Sprintf("%d nodes, %d of them train; groups %v, %d slots, cadence %d, frozen %v, warm %v, a pass of %v, a part takes %v, durable every %d steps, which takes %v, begins at step %d", s.hosts, s.trainers, s.groups, s.slots, s.cadence, s.frozen, s.warm, s.pass, s.takes, s.durable, s.writes, s.start())
}

// pace is how many bytes a second a node sends, and receives; 0: as many as there are.
func (s shape) pace() float64 {
	if s.takes == 0 {
		return 0
	}
	return float64(s.weights) / s.takes.Seconds()
}

// timing is a daemon's, with less patience than the defaults where those are made for imports of minutes.
func timing() config.Timing {
	t := config.Default().Timing
	t.Start, t.HangLeast, t.HangFirst = 20*time.Second, 15*time.Second, 40*time.Second
	return t
}

// TestEachLayoutIsPlayed, under the race detector too, which plays few of the episodes.
func TestEachLayoutIsPlayed(t *testing.T) {
	played := map[string]bool{}
	for n := uint64(0); n < 100; n += racing.Stride {
		s := drawShape(rand.New(rand.NewPCG(1+n, 1)))
		if s.world > 2 { // two ranks have no room for all of them
			for layout, name := range []string{"one group", "pairs", "twinned", "each apart"} {
				like := shape{world: s.world}
				if like.group(layout); slices.Equal(like.groups, s.groups) {
					played[name] = true
				}
			}
		}
	}
	if len(played) != layouts {
		t.Errorf("of the layouts of groups only %v are played", played)
	}
}
