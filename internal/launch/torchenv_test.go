package launch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// LOCAL_RANK is below LOCAL_WORLD_SIZE and no other running process's, and a rank keeps its own where it can.
func TestSeats(t *testing.T) {
	for what, c := range map[string]struct {
		o    Options
		does string // ranks that start, and with a minus those that end; the last one's seat counts
		want seat
	}{
		"all here":                       {Options{World: 3, Capacity: 3}, "1 2 0", seat{0, 0}},
		"ranks of its own":               {Options{World: 4, Capacity: 2, Ranks: []replica.Rank{1, 3}}, "3", seat{1, 0}},
		"as they come":                   {Options{World: 8, Capacity: 2}, "5 7", seat{1, 0}},
		"started again":                  {Options{World: 8, Capacity: 2}, "5 7 -7 7", seat{1, 1}},
		"and again":                      {Options{World: 8, Capacity: 2}, "5 7 -7 7 -5 -7 7", seat{1, 2}},
		"came from elsewhere":            {Options{World: 8, Capacity: 2}, "5 7 -5 6", seat{0, 0}},
		"came back":                      {Options{World: 8, Capacity: 2}, "5 7 -5 6 -7 5", seat{1, 1}},
		"came to where another's was":    {Options{World: 4, Capacity: 2, Ranks: []replica.Rank{0, 1}}, "1 -1 0 3", seat{1, 0}},
		"home, where another has its":    {Options{World: 4, Capacity: 2, Ranks: []replica.Rank{0, 1}}, "0 3 -0 1", seat{0, 0}},
		"more ranks named than may run":  {Options{World: 4, Capacity: 1, Ranks: []replica.Rank{0, 3}}, "3", seat{0, 0}},
		"one that had a seat goes first": {Options{World: 4, Capacity: 4}, "3 -3 3", seat{3, 1}},
	} {
		all, running, last := seats{}, map[replica.Rank]int{}, seat{}
		for word := range strings.FieldsSeq(c.does) {
			ended, over := strings.CutPrefix(word, "-")
			var r replica.Rank
			if _, err := fmt.Sscan(ended, &r); err != nil {
				t.Fatal(err)
			}
			if over {
				delete(running, r)
				continue
			}
			var taken []int
			for _, at := range running {
				taken = append(taken, at)
			}
			last = all.take(c.o, r, taken)
			if last.local < 0 || last.local >= c.o.Capacity || slices.Contains(taken, last.local) {
				t.Errorf("%s: rank %d has seat %d beside %v", what, r, last.local, taken)
			}
			running[r] = last.local
		}
		if last != c.want {
			t.Errorf("%s: %+v, want %+v", what, last, c.want)
		}
	}
}

// A job's port is one for all nodes, and what the user has set stays.
func TestMaster(t *testing.T) {
	o := goodOptions()
	a := o
	a.Host, a.Env = "10.0.0.1", []string{"MASTER_ADDR=head"}
	port := func(o Options) string {
		env := o.environ(wire.RunStart{World: 4}, seat{})
		i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, "MASTER_PORT=") })
		return env[i]
	}
	if port(o) != port(a) {
		t.Errorf("%s and %s", port(o), port(a))
	}
	if env := a.environ(wire.RunStart{World: 4}, seat{}); !slices.Contains(env, "MASTER_ADDR=head") || slices.Contains(env, "MASTER_ADDR=10.0.0.1") {
		t.Errorf("not the user's address: %v", env)
	}
	a.Job = "another"
	if port(o) == port(a) {
		t.Errorf("two jobs have %s", port(o))
	}
}

// Every process hashes texts alike, whoever starts it: ranks, those that wait, those that others fork from, and those of other launchers. What the user has set stays.
func TestHashSeed(t *testing.T) {
	for what, c := range map[string]struct {
		env  []string
		want string
	}{
		"not set": {[]string{"A=b"}, "PYTHONHASHSEED=0"},
		"set":     {[]string{"PYTHONHASHSEED=7", "A=b"}, "PYTHONHASHSEED=7"},
		"random":  {[]string{"PYTHONHASHSEED=random"}, "PYTHONHASHSEED=random"},
		"empty":   {[]string{"PYTHONHASHSEED=", "A=b"}, "PYTHONHASHSEED=0"},
	} {
		o := goodOptions()
		o.Env = slices.Clone(c.env)
		a := agent{opt: o}
		var ofAgents []string
		for name, value := range a.environ() {
			ofAgents = append(ofAgents, name+"="+value)
		}
		for who, env := range map[string][]string{"ranks": o.environ(wire.RunStart{World: 4}, seat{}), "waiting": o.inherited(), "others": o.Environ(), "agents": ofAgents} {
			var got []string
			for _, e := range env {
				if strings.HasPrefix(e, "PYTHONHASHSEED") {
					got = append(got, e)
				}
			}
			if !slices.Equal(got, []string{c.want}) {
				t.Errorf("%s, %s: %q, want %s", what, who, got, c.want)
			}
		}
		if !slices.Equal(o.Env, c.env) {
			t.Errorf("%s: the launcher's own environment is %q now, was %q", what, o.Env, c.env)
		}
	}
	if env := (&agent{opt: Options{Env: []string{"HOME=/h"}}}).environ(); env["HOME"] != "" {
		t.Errorf("agents are told of %q", env["HOME"])
	}
}
