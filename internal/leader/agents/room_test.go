package agents

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/transcript"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// stage is a room with agents that do what they are told, on nodes whose daemons report them.
type stage struct {
	room   *Room
	term   uint64
	now    time.Duration
	agents map[string]*acting // by name
	minted int
	down   map[replica.NodeName]bool
	held   Held // what each room is told first
	out    strings.Builder
}

type acting struct {
	wire.Agent
	name   string
	node   replica.NodeName
	joined int
	waits  uint32
	over   bool // it was told that there is no further round
}

const grace = time.Minute

func newStage() *stage {
	return &stage{room: New(1, 0, 0, grace), term: 1, agents: map[string]*acting{}, down: map[replica.NodeName]bool{}}
}

func (s *stage) join(name string, node replica.NodeName, nodes uint32) {
	s.minted++
	a := &acting{name: name, node: node, Agent: wire.Agent{ID: fmt.Sprintf("%016x", s.minted), Nodes: nodes}}
	s.agents[name] = a
	s.again(a)
}

// again has an agent leave its round, and want another one.
func (s *stage) again(a *acting) {
	a.joined++
	a.Left, a.Round, a.Rank, a.Head, a.waits = max(a.Left, a.Round), 0, 0, "", 0
	a.Address = fmt.Sprintf("%s.%d:1", a.name, a.joined)
	s.report(a.node)
}

func (s *stage) report(n replica.NodeName) {
	if s.down[n] {
		return
	}
	r := Reported{Node: n}
	for _, name := range slices.Sorted(maps.Keys(s.agents)) {
		if a := s.agents[name]; a.node == n {
			r.Agents = append(r.Agents, a.Agent)
		}
	}
	s.room.Learn(s.now, r)
}

// turn has the room tell its agents, and them answer, until nothing is left to say.
func (s *stage) turn() {
	for tells := s.room.Step(s.now); len(tells) > 0; tells = s.room.Step(s.now) {
		for _, t := range tells {
			s.hears(t)
		}
	}
}

func (s *stage) hears(t Tell) {
	for _, a := range s.agents {
		if a.ID != t.Round.ID || a.node != t.Node {
			continue
		}
		r := t.Round
		a.waits, a.over = r.Waits, r.Closed
		switch {
		case r.Closed:
			fmt.Fprintf(&s.out, "%s ends: %s\n", a.name, r.Text)
		case r.Number == 0:
			fmt.Fprintf(&s.out, "%s waits: %s\n", a.name, r.Text)
		default:
			fmt.Fprintf(&s.out, "%s: round %d.%d, rank %d, store %s", a.name, r.Number>>32, uint32(r.Number), r.Rank, r.Head)
			if r.Waits > 0 {
				fmt.Fprintf(&s.out, ", %d wait", r.Waits)
			}
			if r.Text != "" {
				fmt.Fprintf(&s.out, " (%s)", r.Text)
			}
			s.out.WriteString("\n")
			if r.Number > a.Left && a.Round == 0 {
				a.Round, a.Rank, a.Head = r.Number, r.Rank, r.Head
				s.report(a.node)
			}
		}
	}
}

func (s *stage) gone(name string) {
	n := s.agents[name].node
	delete(s.agents, name)
	s.report(n)
}

func (s *stage) do(line string) error {
	f := strings.Fields(line)
	a := s.agents[f[min(1, len(f)-1)]]
	switch verb := f[0]; verb {
	case "join": // NAME NODE NODES
		nodes, err := strconv.Atoi(f[3])
		if err != nil {
			return err
		}
		s.join(f[1], replica.NodeName(f[2]), uint32(nodes))
	case "fails":
		s.again(a)
	case "killed":
		s.gone(a.name)
	case "closes":
		a.Closed = true
		s.report(a.node)
		s.gone(a.name)
	case "down", "up":
		n := replica.NodeName(f[1])
		s.down[n] = verb == "down"
		s.room.Learn(s.now, Linked{n})
		s.report(n)
	case "dead":
		n := replica.NodeName(f[1])
		maps.DeleteFunc(s.agents, func(_ string, a *acting) bool { return a.node == n })
		s.room.Learn(s.now, Lost{n})
	case "leader", "again": // another one, or the same one in the same term, to which these nodes link
		last := s.room.Last()
		if verb == "leader" {
			s.term, last = s.term+1, 0
		}
		s.room = New(s.term, last, s.now, grace)
		s.room.Learn(s.now, s.held)
		for _, n := range f[1:] {
			s.room.Learn(s.now, Linked{replica.NodeName(n)})
			s.report(replica.NodeName(n))
		}
	case "held": // [all] NODE...: who holds ranks; all: each has a holder
		s.held = Held{All: len(f) > 1 && f[1] == "all"}
		for _, n := range f[1:] {
			if n != "all" {
				s.held.Nodes = append(s.held.Nodes, replica.NodeName(n))
			}
		}
		s.room.Learn(s.now, s.held)
	case "pass":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			return err
		}
		s.now += d
	default:
		return fmt.Errorf("unknown command %q", line)
	}
	s.turn()
	return nil
}

func TestTranscripts(t *testing.T) {
	transcript.Blocks(t, "nothing", func() transcript.Do {
		s := newStage()
		return func(line string, out *strings.Builder) error {
			s.out.Reset()
			err := s.do(line)
			out.WriteString(s.out.String())
			return err
		}
	})
}

// Whatever happens, no two agents have one rank in a round, and all of a round have one store. Where nothing more happens, as many
// agents as a round takes are in one round, if there are so many.
func TestRoundsOfAnySeries(t *testing.T) {
	for seed := range uint64(300) {
		s, rnd := newStage(), rand.New(rand.NewPCG(seed, 7))
		named := 0
		seats := map[string]string{} // round and rank: agent; round: store
		for range 60 {
			names := slices.Sorted(maps.Keys(s.agents))
			line := "pass 20s"
			switch k := rnd.IntN(12); {
			case k < 4 || len(names) == 0:
				line = fmt.Sprintf("join x%d n%d 3", named, rnd.IntN(4))
				named++
			case k < 7:
				line = "fails " + names[rnd.IntN(len(names))]
			case k < 8:
				line = "killed " + names[rnd.IntN(len(names))]
			case k < 9:
				line = fmt.Sprintf("down n%d", rnd.IntN(4))
			case k < 10:
				line = fmt.Sprintf("up n%d", rnd.IntN(4))
			case k < 11:
				line = []string{"leader", "again"}[rnd.IntN(2)] + " n0 n1 n2 n3"
			}
			if err := s.do(line); err != nil {
				t.Fatal(err)
			}
			for _, a := range s.agents {
				if a.Round == 0 {
					continue
				}
				for at, who := range map[string]string{fmt.Sprint(a.Round, a.Rank): a.name, fmt.Sprint(a.Round): a.Head} {
					if was := seats[at]; was != "" && was != who {
						t.Fatalf("seed %d, %s: %s has %q and %q", seed, line, at, was, who)
					}
					seats[at] = who
				}
			}
		}
		s.settles(t, seed)
	}
}

// In whatever order nodes come to another leader, what is in a round stays there.
func TestAnotherLeaderDisturbsNoRound(t *testing.T) {
	for _, order := range []string{"a b c d", "a d b c", "c a b d", "c d a b", "d c b a", "d b c a"} {
		s := newStage()
		for _, line := range []string{"join x a 2", "join y b 2", "join z c 2", "join w d 2", "held all a b", "leader"} {
			if err := s.do(line); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range strings.Fields(order) {
			s.out.Reset()
			for _, line := range []string{"up " + n, "pass 20s"} { // 80 s in all: more than the grace
				if err := s.do(line); err != nil {
					t.Fatal(err)
				}
			}
			if x, y := s.agents["x"], s.agents["y"]; x.waits+y.waits > 0 || x.Round != 1<<32+1 || y.Round != x.Round {
				t.Fatalf("%s, after %s: %s", order, n, s.out.String())
			}
		}
	}
}

// settles has every node link, and every agent come that hears that others wait.
func (s *stage) settles(t *testing.T, seed uint64) {
	t.Helper()
	for n := range 4 {
		if err := s.do(fmt.Sprintf("up n%d", n)); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		s.now += 2 * grace
		s.turn()
		for _, a := range s.agents {
			if a.waits > 0 {
				s.again(a)
				s.turn()
			}
		}
	}
	rounds := map[uint64]int{}
	for _, a := range s.agents {
		rounds[a.Round]++
	}
	if len(s.agents) >= 3 && (rounds[s.room.number] != 3 || rounds[0] != len(s.agents)-3) {
		t.Errorf("seed %d: of %d agents, so many are in round %v (newest: %d)", seed, len(s.agents), rounds, s.room.number)
	}
}

func TestAgentsAreBounded(t *testing.T) {
	r := New(1, 0, 0, grace)
	var list []wire.Agent
	for i := range 2 * most {
		list = append(list, wire.Agent{ID: fmt.Sprintf("%016x", i), Nodes: 2, Address: "a:1"})
	}
	list = append(list, wire.Agent{ID: "no agent"})
	r.Learn(0, Reported{"n", list})
	if len(r.agents) != most {
		t.Errorf("%d agents", len(r.agents))
	}
}
