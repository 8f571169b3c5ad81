package launch

import (
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// A program that torchrun could start runs here as it is: it finds the same variables in its environment. In Python
// `import replicad` puts the daemons' store behind env://, so nothing listens on MASTER_PORT unless the program does it itself.

// Names of torchrun's variables. Of the first list the launcher always sets its own values, and of the second what the user has not set:
// a program that hosts a store of its own has to name a host that all nodes reach.
var (
	torchNames  = []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE"}
	masterNames = []string{"MASTER_ADDR", "MASTER_PORT"}
)

// runID begins TORCHELASTIC_RUN_ID. The Python package takes a process for the launcher's own by it.
const runID = "replicad:"

// maxRestarts stands for no limit: the daemons end a job that makes no progress.
const maxRestarts = 1<<31 - 1

// A job's MASTER_PORT is the same on all nodes, and none that the kernel hands out by itself.
const (
	firstPort = 20000
	ports     = 10000
)

// seat is what torchrun would say of a process, besides its rank.
type seat struct {
	local    int // LOCAL_RANK: which of the launcher's processes
	restarts int // how many processes of the rank this launcher has started before
}

// seats are the processes of one launcher, by rank: those that run, and where those that ended were.
type seats map[replica.Rank]*seat

// take gives a rank's next process its seat. It is that of the process before, or the one that the options name, if it is free;
// else the lowest free one. taken are the seats of running processes, of which there are fewer than o.Capacity.
func (all seats) take(o Options, r replica.Rank, taken []int) seat {
	wanted := -1
	s := all[r]
	switch home := slices.Index(o.Ranks, r); {
	case s != nil:
		wanted = s.local
		s.restarts++
	case home >= 0:
		wanted = home
	case len(o.Ranks) == 0 && o.Capacity == o.World:
		wanted = int(r)
	}
	if s == nil {
		s = &seat{}
		all[r] = s
	}
	for next := 0; wanted < 0 || wanted >= o.Capacity || slices.Contains(taken, wanted); next++ {
		wanted = next
		if next >= o.Capacity {
			break // the caller starts no more than Capacity
		}
	}
	s.local = wanted
	return *s
}

// torchEnviron are torchrun's variables for a rank's process.
func (o Options) torchEnviron(start wire.RunStart, at seat) []string {
	values := []string{strconv.Itoa(int(start.Rank)), strconv.Itoa(int(start.World)), strconv.Itoa(at.local), strconv.Itoa(o.Capacity),
		runID + o.Job, strconv.Itoa(at.restarts), strconv.Itoa(maxRestarts), "False"} // True: torch would look for torchrun's store
	var env []string
	for i, name := range torchNames {
		env = append(env, name+"="+values[i])
	}
	hash := fnv.New32a()
	hash.Write([]byte(o.Job))
	master := []string{o.Host, strconv.Itoa(firstPort + int(hash.Sum32()%ports))}
	for i, name := range masterNames {
		if !slices.ContainsFunc(o.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			env = append(env, name+"="+master[i])
		}
	}
	return env
}

// ofALauncher tells whether a variable is one that launchers set for their own ranks.
func ofALauncher(name string) bool {
	return strings.HasPrefix(name, "REPLICAD_") && name != sealed.IdentityVariable
}

// inherited is what a process gets of the launcher's own environment: nothing of another job, and nothing of another launcher.
func (o Options) inherited() []string {
	return hashing(slices.DeleteFunc(slices.Clone(o.Env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return ofALauncher(name) || strings.HasPrefix(name, "TORCHELASTIC_") || slices.Contains(torchNames, name)
	}))
}

// hashSeed is Python's variable for the order in which it walks over sets of texts.
const hashSeed = "PYTHONHASHSEED"

// hashing adds the seed of hash() to an environment, unless the user has set one. Without it each process draws its own: a program that numbers what is
// in a set has other numbers after a restart. It is one for all jobs, so that a run that begins from another one's generation has it, too (D183).
func hashing(env []string) []string {
	env = slices.DeleteFunc(env, func(e string) bool { return e == hashSeed+"=" }) // to Python that is none
	if slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, hashSeed+"=") }) {
		return env
	}
	return append(env, hashSeed+"=0")
}
