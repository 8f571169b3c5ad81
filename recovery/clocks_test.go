package recovery_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// outlived is a wait whose leaders change: what brings it about, what happens meanwhile each second, and what ends it.
type outlived struct {
	kind  recovery.WaitKind
	name  string
	begin func(*testing.T) *world
	again func(w *world, since time.Duration)
	ends  string // begins what is said then, or is in it
}

// script plays commands of a transcript.
func script(lines ...string) func(*testing.T) *world {
	return func(t *testing.T) *world {
		t.Helper()
		w := newWorld()
		for _, line := range lines {
			w.must(t, w.command(strings.Fields(line)))
			if w.leader != nil {
				w.must(t, w.settle())
			}
		}
		return w
	}
}

// begins is a job of two ranks of which one is silent from its start on.
func beginsSilent(t *testing.T) *world {
	w := newWorld()
	w.addNode("a", 1, false, nil)
	w.addNode("b", 1, false, nil)
	w.create([]replica.GroupID{0, 0}, replica.Options{})
	for i, n := range []replica.NodeName{"a", "b"} {
		w.must(t, w.start(replica.Rank(i), n))
		w.process(fmt.Sprint(i)).unsealing = true
	}
	return w
}

// holderAway lost a node, and another one is away that may hold what the job committed.
func holderAway(t *testing.T) *world {
	w := newWorld()
	w.unanswered = true
	w.addNode("a", 1, false, nil)
	w.addNode("b", 1, false, nil)
	w.create([]replica.GroupID{0, 0}, replica.Options{DurableEvery: 1})
	w.must(t, w.wait(5*time.Second))
	w.writes(t)
	w.addNode("s", 4, true, nil)
	w.dieNode("a")
	w.boot("a") // with empty memory
	w.stopDaemon("b")
	return w
}

// outlivedCases are the waits that the table of waits does not leave to nodes, in the world of this package.
func outlivedCases() (cases []outlived) {
	for _, c := range silentCases() {
		ends := c.fault
		if ends == "" {
			ends = "propose resume"
		}
		cases = append(cases, outlived{c.kind, c.name, c.world, c.again, ends})
	}
	trained := []string{"node a offers=1", "node b offers=1", "job groups=0,0", "start 0 a", "start 1 b", "steps 3"}
	with := func(more ...string) func(*testing.T) *world { return script(slices.Concat(trained, more)...) }
	return append(cases,
		outlived{recovery.AwaitProcess, "nobody offers a process", script("node a offers=1", "node b offers=0", "job groups=0,0", "start 0 a"), func(w *world, _ time.Duration) {
			if n, _ := w.leader.Short(); n > 0 && w.leader.Clocks.SayShort(w.now, w.state().Epoch, w.timing.Claim) {
				w.say("launchers are told")
			}
		}, "launchers are told"},
		outlived{recovery.AwaitLauncher, "nobody works at the job", script("node a offers=0", "node b offers=0", "job groups=0,0"), nil, "propose end: abandoned"},
		outlived{recovery.AwaitAttach, "a process does not attach", with("node s offers=1", "slow a", "kill 0", "wait 1s"), nil, "offer rank 0 (from incarnation 1) to "},
		outlived{recovery.AwaitSeal, "ranks seal nothing", beginsSilent, nil, "hang of rank"},
		outlived{recovery.AwaitRegions, "a daemon does not name regions", script("node a offers=2", "node b offers=2", "mute b", "job groups=0,0", "start 0 a", "holds b g0 1,0 bad by=1", "start 1 b"), nil, "propose end: initial state"},
		outlived{recovery.AwaitSettle, "a node does not settle", with("at 0 1,4 busy", "node s offers=1", "kill 1", "wait 1s"), nil, "silent of node a"},
		outlived{recovery.AwaitCapture, "survivors do not capture", script("node a offers=2", "node b offers=2", "node c offers=2", "node s offers=4 spare", "job groups=0,1,0,1 lone=1", "start 0 a", "start 1 b", "start 2 c", "start 3 a", "steps 3",
			"no-slot a", "no-slot b", "no-slot c", "at 0,1,2,3 1,4", "at 0,1,2,3 1,5 unsealed", "kill 2"), nil, "propose plan"},
		outlived{recovery.AwaitHolder, "a recorded holder is away", holderAway, nil, "scan the durable tier"},
		outlived{recovery.AwaitDisk, "a search does not end", func(t *testing.T) *world {
			w := holderAway(t)
			w.must(t, w.wait(w.timing.HolderGrace+15*time.Second))
			if w.scans == 0 {
				t.Fatalf("nothing is searched:\n%s", strings.Join(w.said, "\n"))
			}
			return w
		}, nil, "scan the durable tier"},
		outlived{recovery.AwaitRead, "parts do not come from disk", func(t *testing.T) *world {
			w := script(append([]string{"node a offers=1", "node b offers=1", "job groups=0,0 durable=1"}, append(trained[3:], "durable 1,3")...)...)(t)
			w.onPlan = func(j *replica.Job) {
				for r := range j.Ranks {
					p := w.process(fmt.Sprint(r))
					p.blocked, p.starved = true, true
				}
			}
			for _, line := range []string{"die a,b", "boot a,b", "wait 2s"} {
				w.must(t, w.command(strings.Fields(line)))
				w.must(t, w.settle())
			}
			return w
		}, nil, " of rank "},
		outlived{recovery.AwaitGoodCopy, "every holder lies", func(t *testing.T) *world { return lied(t, "s") }, nil, "propose fault"},
		outlived{recovery.AwaitMeeting, "a rank is put off, whose node is in another life", func(t *testing.T) *world {
			w := training(t)
			w.elsewise = w.state().Ranks[1].Node // its keeper began anew beside the living process, of which it does not know
			w.tell()
			return w
		}, func(w *world, _ time.Duration) { w.queue = append(w.queue, recovery.PutOff{Rank: 1}) }, "hang of rank 1"},
		outlived{recovery.AwaitGrowth, "one rank does not ask to grow", func(t *testing.T) *world {
			w := with("node s offers=1")(t)
			w.ask([]replica.Rank{0}, replica.RankGrowth{Geometry: replica.Digest{5}, Prepared: true})
			return w
		}, nil, "refuse the growth"},
		outlived{recovery.AwaitCommit, "the last step is not committed", script("node a offers=2", "node b offers=2", "node s offers=4 spare", "job groups=0,0", "start 0 a", "start 1 b", "steps 3", "steps 1 uncommitted", "leave 0,1"), nil, "propose end: finished"},
		outlived{recovery.AwaitWrite, "the last step is not written", script("node a offers=2", "node b offers=2", "node s offers=4 spare", "job groups=0,0 durable=10", "start 0 a", "start 1 b", "steps 5", "leave 0,1", "wait 1s"), nil, "propose end: finished"},
		outlived{recovery.AwaitKept, "the last step of a stopped job is not written", script("node a offers=2", "node b offers=2", "job groups=0,0 durable=2", "start 0 a", "start 1 b", "steps 3", "stop ends"), nil, "propose end"},
		outlived{recovery.AwaitReadBack, "two durable generations are not read back", training, func(w *world, _ time.Duration) {
			w.leader.Clocks.Unread(w.now)
			if w.leader.Clocks.SayUnread(w.now) {
				w.say("launchers are told that writes wait")
			}
		}, "launchers are told that writes wait"},
		outlived{recovery.AwaitReturn, "nobody goes on with a stopped job", script("node a offers=2", "node b offers=2", "job groups=0,0", "start 0 a", "start 1 b", "steps 3", "stop"), nil, "propose end"},
	)
}

// course is how a wait went: when it ended, and at each second what its line said of how long it had lasted.
type course struct {
	took      time.Duration
	since     map[time.Duration]time.Duration
	elections time.Duration
}

const election = time.Second

// step is how often a wait is looked at.
func (o *outlived) step(timing recovery.Timing) time.Duration {
	bound, ok := recovery.Waits[o.kind].Bound.Of(timing)
	if !ok {
		return time.Second
	}
	return max(min(bound/20, 10*time.Second), 20*time.Millisecond)
}

// plays has a wait begin and end, with leaders changed at some times of it.
func (o *outlived) plays(t *testing.T, changes ...time.Duration) (c course) {
	t.Helper()
	w := o.begin(t)
	w.handOut()
	says := regexp.QuoteMeta(recovery.Waits[o.kind].Says)
	says = regexp.MustCompile(`\\\{(rank|process|pid|node|what)\\\}`).ReplaceAllString(says, ".*?")
	says = strings.Replace(says, `\{since\}`, `([0-9hms.]+)`, 1)
	line := regexp.MustCompile(says)
	c.since = map[time.Duration]time.Duration{}
	for from, said := w.now, len(w.said); w.now-from < time.Hour; {
		if len(changes) > 0 && w.now-from-c.elections >= changes[0] {
			changes = changes[1:]
			w.now, c.elections = w.now+election, c.elections+election
			w.newLeader()
		}
		if o.again != nil {
			o.again(w, w.now-from)
		}
		w.must(t, w.wait(o.step(w.timing)))
		for _, s := range w.said[said:] {
			if strings.Contains(s, o.ends) {
				c.took = w.now - from
				return c
			}
		}
		said = len(w.said)
		for _, s := range w.leader.Awaited(w.now) {
			if m := line.FindStringSubmatch(s); len(m) == 2 {
				d, err := time.ParseDuration(m[1])
				if err != nil {
					t.Fatal(err)
				}
				c.since[w.now-from] = d
			}
		}
	}
	t.Fatalf("nothing has ended the wait, the job is %v; awaited: %v\n%s", w.state().Phase, w.leader.Awaited(w.now), strings.Join(w.said[max(0, len(w.said)-30):], "\n"))
	return c
}

// A wait belongs to the job, not to the leader. Of each row of the table that leaders judge: the leader changed at half of it, and three times, the end
// comes after 110 % of its time and the elections at most, and meanwhile the line says for how long it has lasted in truth.
func TestEveryWaitOutlivesItsLeaders(t *testing.T) {
	played := map[recovery.WaitKind]bool{}
	for _, o := range outlivedCases() {
		played[o.kind] = true
		t.Run(o.name, func(t *testing.T) {
			alone, slack := o.plays(t), time.Second+o.step(recovery.DefaultTiming())
			for _, parts := range [][]float64{{.5}, {.25, .5, .75}} {
				var changes []time.Duration
				for _, p := range parts {
					changes = append(changes, time.Duration(p*float64(alone.took)))
				}
				c := o.plays(t, changes...)
				if most := alone.took*11/10 + c.elections + slack; c.took > most {
					t.Errorf("%d changes of leader: it ended after %v; without any after %v: want %v at most", len(changes), c.took, alone.took, most)
				}
				for at, is := range c.since {
					near := time.Duration(-1) // without a change, at about that time
					for other := range alone.since {
						if near < 0 || (other-at).Abs() < (near-at).Abs() {
							near = other
						}
					}
					if want := alone.since[near] + at - near; near < 0 || (near-at).Abs() < slack && (is-want).Abs() > 2*slack {
						t.Errorf("%d changes of leader, after %v: it is said to last for %v, and has for %v", len(changes), at, is, want)
					}
				}
			}
		})
	}
	for k, row := range recovery.Waits {
		if kind := recovery.WaitKind(k); !played[kind] && !strings.HasPrefix(row.Judge, "its node") {
			t.Errorf("row %d, %s: no case has its leader change", k, row.For)
		} else if byNode := strings.HasPrefix(row.Judge, "its node") && !strings.Contains(row.Judge, "then the leader") && !strings.Contains(row.Judge, "; the leader"); byNode && played[kind] {
			t.Errorf("row %d, %s, has a case, and its node judges it", k, row.For)
		}
	}
}
