package demo

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The faults, by name, in the order in which they come unless told otherwise.
const (
	RankForward = "rank-forward" // SIGKILL a rank in mid-forward
	RankWindow  = "rank-window"  // SIGKILL a rank inside the optimizer window
	Daemon      = "daemon"       // SIGKILL a daemon and start it again
	NodeLoss    = "node"         // kill everything on a node; it falls silent
	LeaderLoss  = "leader"       // the same for the node that leads Raft
	GroupLoss   = "group"        // the same for every holder of one replica group at once

	// In the default with --durable: the same for all nodes at once, and a fresh fleet goes on from what is durable.
	FleetLoss = "fleet"

	// Not in the default: while the state of a lost node's ranks is on its way to another node, SIGKILL a holder that sends it.
	Holder       = "holder"        // everything on that node: the job keeps three copies for it
	HolderDaemon = "holder-daemon" // its daemon alone, which is started again

	// Not in the default. Those of a place after RankAgain need a trainer that knows it: the torch examples do, textlm does not.
	RankAgain      = "rank-again"      // SIGKILL a rank in mid-forward and, once the plan for that is applied, another
	RankBackward   = "rank-backward"   // SIGKILL a rank in mid-backward
	RankAccumulate = "rank-accumulate" // SIGKILL a rank between two micro-batches
	RankUpdated    = "rank-updated"    // SIGKILL a rank inside the optimizer window, behind the update
	RankCapture    = "rank-capture"    // SIGKILL a rank that has begun to capture a step
	RankResume     = "rank-resume"     // SIGKILL a rank in mid-forward, and another one while it loads
	RankRaise      = "rank-raise"      // an exception in a rank's forward
	RankHang       = "rank-hang"       // a rank stands still in its forward until a collective's timeout ends its peers' wait
)

// rankFault is how a rank is broken: where it stops itself, by itself in what way (empty: it is killed there), and what the step
// word says that outlives it (empty: that depends).
type rankFault struct{ place, kind, word string }

var rankFaults = map[string]rankFault{
	RankForward:    {"forward", "", "IDLE"},
	RankWindow:     {"window", "", "UPDATING"},
	RankAgain:      {"forward", "", "IDLE"},
	RankBackward:   {"backward", "", "IDLE"},
	RankAccumulate: {"accumulate", "", "IDLE"},
	RankUpdated:    {"updated", "", "UPDATING"},
	RankCapture:    {"capture", "", ""},
	RankResume:     {"forward", "", "IDLE"},
	RankRaise:      {"forward", "raise", ""},
	RankHang:       {"forward", "hang", ""},
}

// AllFaults is what a demo injects by default.
func AllFaults() []string {
	return []string{RankForward, RankWindow, Daemon, NodeLoss, LeaderLoss, GroupLoss}
}

// KnownFaults are all that can be asked for.
func KnownFaults() []string {
	list := append(AllFaults(), FleetLoss, Holder, HolderDaemon)
	for _, name := range slices.Sorted(maps.Keys(rankFaults)) {
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

const textlm = "textlm"

// What a demo does unless told otherwise.
const (
	DefaultSteps = 1500
	DefaultPace  = 20 * time.Millisecond
)

// Options are the verb's flags. Zero values mean the defaults in brackets.
type Options struct {
	Faults   []string // in this order [all six]
	NoFaults bool
	Steps    int    // optimizer steps [1500]
	StateMB  int    // MiB added to each rank's state [0]
	Shards   int    // ranks that share one replica of textlm's model [2]; as many as ranks: each group's part is mirrored
	Slots    int    // generations that a rank's arena holds [the job's default]
	Durable  string // directory, file:// or s3:// URL of durable generations [a directory in Dir]
	Copies   int    // nodes that must hold each part before a step is committed [the job's default; three with fault holder]
	Seed     uint64 // of training and of the moments of faults [drawn, and printed]

	ReportDir string // for report.html and report.json [none]
	Dir       string // for sockets, state and logs [a temporary one]
	Keep      bool   // leave Dir behind

	Program string        // replicad [this executable]
	Trainer string        // program of the ranks, and its arguments after spaces [textlm beside Program]
	World   int           // ranks [4; as many as Shards, if given]
	Groups  []int         // replica group of each rank [r mod Shards; without shards all in one]
	Pace    time.Duration // shortest step, which stands for a larger model [20 ms]
	Warm    int           // processes a node keeps that wait to be a rank [none]
	Preload string        // of the launchers: auto; none, so that each restart imports; or ready: auto, and no fault before restarts can fork [auto]
	Plain   bool          // no live view though stdout is a terminal

	LogLevel string // of the daemons' logs in Dir: debug or info; above info the timeline would have no events [info]

	batch int // examples of a step of textlm, over all replicas; 0: its own default
}

// preloadReady has faults wait until restarts can fork.
const preloadReady = "ready"

// withDefaults returns a copy that is complete and checked; all faults are reported together.
func (o Options) withDefaults() (Options, error) {
	var list []error
	if o.Steps == 0 {
		o.Steps = DefaultSteps
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()>>33 + 1
	}
	if o.Pace == 0 {
		o.Pace = DefaultPace
	}
	if o.Pace < 0 || o.Pace > 10*time.Second {
		list = append(list, fmt.Errorf("--pace %v: want more than 0 and at most 10s a step: a shorter step than none there is not, and with longer ones no fault would be noticed in time", o.Pace))
	}
	if o.NoFaults {
		if len(o.Faults) > 0 {
			list = append(list, errors.New("--no-faults with --faults: give one of them"))
		}
	}
	list = append(list, o.layOut()...)
	if len(o.Faults) == 0 && !o.NoFaults {
		o.Faults = AllFaults()
		if slices.Max(o.Groups) == 0 {
			o.Faults = slices.DeleteFunc(o.Faults, func(f string) bool { return f == GroupLoss })
		}
		if o.Durable != "" {
			o.Faults = append(o.Faults, FleetLoss)
		}
	}
	for _, f := range o.Faults {
		if !slices.Contains(KnownFaults(), f) {
			list = append(list, fmt.Errorf("--faults %q: want some of %s", f, strings.Join(KnownFaults(), ",")))
		}
		if f == GroupLoss && slices.Max(o.Groups) == 0 {
			list = append(list, errors.New("--faults group: with one replica group its holders are all voters; give --groups with two of them"))
		}
	}
	if o.Steps < 20 || o.Steps > 1<<30 {
		list = append(list, fmt.Errorf("--steps %d: want 20 or more, so that there is something to lose", o.Steps))
	}
	if o.StateMB < 0 || o.StateMB > 1<<16 {
		list = append(list, fmt.Errorf("--state-mb %d: want 0 to %d MiB a rank", o.StateMB, 1<<16))
	}
	if o.Slots != 0 && (o.Slots < 2 || o.Slots > 4) {
		list = append(list, fmt.Errorf("--slots %d: want 2 to 4: each holds a copy of a rank's state", o.Slots))
	}
	if o.Copies == 0 && slices.Contains(o.Faults, Holder) {
		o.Copies = 3
	}
	if o.Copies < 0 || o.Copies > len(homes) {
		list = append(list, fmt.Errorf("--copies %d: want 1 to %d, as many as there are nodes", o.Copies, len(homes)))
	}
	if o.Copies != 0 && o.Copies < 3 && slices.Contains(o.Faults, Holder) {
		list = append(list, fmt.Errorf("--copies %d with fault %s, which loses two nodes that hold a part: want 3 or more", o.Copies, Holder))
	}
	if scheme, rest, ok := strings.Cut(o.Durable, "://"); ok && (scheme != "s3" && scheme != "file" || rest == "" || scheme == "s3" && strings.HasPrefix(rest, "/")) {
		list = append(list, fmt.Errorf("--durable %s: want a directory, file:///DIRECTORY or s3://BUCKET/PREFIX", o.Durable))
	}
	if o.Warm < 0 || o.Warm > 4 {
		list = append(list, fmt.Errorf("--warm %d: want 0 to 4 processes a node: each takes a trainer's memory", o.Warm))
	}
	if !slices.Contains([]string{"", "auto", "none", preloadReady}, o.Preload) {
		list = append(list, fmt.Errorf("--preload %q: want auto, none, or %s", o.Preload, preloadReady))
	}
	if o.LogLevel == "" {
		o.LogLevel = "info"
	}
	if o.LogLevel != "info" && o.LogLevel != "debug" {
		list = append(list, fmt.Errorf("--log-level %q: want info or debug; with less, the table of faults could not be made from the logs", o.LogLevel))
	}
	if o.Program == "" {
		self, err := os.Executable()
		if err != nil {
			list = append(list, fmt.Errorf("find this program's file: %w", err))
		}
		o.Program = self
	}
	if o.Trainer == "" {
		o.Trainer = filepath.Join(filepath.Dir(o.Program), textlm)
	}
	if program := strings.Fields(o.Trainer)[0]; !executable(program) {
		list = append(list, fmt.Errorf("trainer %s is not an executable file: `make build` puts textlm there", program))
	}
	return o, errors.Join(list...)
}

// layOut fills in ranks and groups.
func (o *Options) layOut() (bad []error) {
	shards := o.Shards // rank r holds shard r % shards
	switch {
	case shards < 0 || shards > 64:
		bad = append(bad, fmt.Errorf("--shards %d: want 1 to 64", shards))
		shards = 1
	case shards == 0 && o.ofTextlm():
		shards = 2
	case shards == 0:
		shards = 1
	}
	if o.World == 0 && o.Groups == nil {
		o.World = 4
		if o.Shards > 1 {
			o.World = shards
		}
		if o.Shards == 0 {
			o.Groups = []int{0, 1, 0, 1}
		}
	}
	if o.Groups == nil {
		o.Groups = make([]int, max(o.World, 0))
		for r := range o.Groups {
			o.Groups[r] = r % shards
		}
	}
	if o.World == 0 {
		o.World = len(o.Groups)
	}
	for r, g := range o.Groups {
		if shards > 1 && (g != r%shards || o.World%shards != 0) {
			bad = append(bad, fmt.Errorf("--world %d with --groups %v: a trainer with %d shards trains whole replicas: want a multiple of it, ranks in groups 0,...,%d again and again, or other --shards", o.World, o.Groups, shards, shards-1))
			break
		}
	}
	if o.World < 2 || o.World > 64 || len(o.Groups) != o.World {
		bad = append(bad, fmt.Errorf("--world %d with --groups %v: want 2 to 64 ranks, and a group for each", o.World, o.Groups))
		o.World, o.Groups = 2, []int{0, 0} // for the checks that follow
	}
	return bad
}

// ofTextlm tells whether the trainer is textlm with its own defaults.
func (o Options) ofTextlm() bool { return o.Trainer == "" || filepath.Base(o.Trainer) == textlm }

func executable(program string) bool {
	file, err := exec.LookPath(program)
	if err != nil {
		return false
	}
	info, err := os.Stat(file)
	return err == nil && !info.IsDir()
}

// trainer is the command of a rank, but for what differs between the two runs.
func (o Options) trainer() []string {
	command := append(strings.Fields(o.Trainer), "--steps", fmt.Sprint(o.Steps), "--seed", fmt.Sprint(o.Seed))
	if o.Shards > 0 {
		command = append(command, "--shards", fmt.Sprint(o.Shards))
	}
	if o.batch > 0 {
		command = append(command, "--batch", fmt.Sprint(o.batch))
	}
	if o.StateMB > 0 {
		command = append(command, "--state-mb", fmt.Sprint(o.StateMB))
	}
	return command
}

// undisturbed is the command of the run without faults, which tells what the last act begins with.
func (o Options) undisturbed() []string {
	if o.Durable == "" || !o.ofTextlm() {
		return o.trainer()
	}
	return append(o.trainer(), "--digests", fmt.Sprint(durableEvery))
}

// Paces in bytes a second below which the demo takes something for stuck: a transfer over the machine's slowest lane while every
// core trains, and the steps of all ranks, with a copy of the state each.
const (
	slowestLane = 32 << 20
	slowestStep = 256 << 20
)

// carrying is how long every rank's state may take, once over the slowest lane, on top of what a wait is given for a small state.
func (o Options) carrying() time.Duration { return o.stateAt(slowestLane) }

// step is how long a step may take.
func (o Options) step() time.Duration { return max(4*o.Pace, patienceStep+o.stateAt(slowestStep)) }

func (o Options) stateAt(pace uint64) time.Duration {
	return time.Duration(float64(o.World) * float64(uint64(o.StateMB)<<20) / float64(pace) * float64(time.Second))
}

func (o Options) groupList() string {
	var list []string
	for _, g := range o.Groups {
		list = append(list, fmt.Sprint(g))
	}
	return strings.Join(list, ",")
}

// limit is a figure's limit for textlm; another trainer has a start-up and steps of its own.
func (o Options) limit(v float64) float64 {
	if !o.ofTextlm() {
		return 0
	}
	return v
}

// isTerminal tells whether w shows a live view well.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && info.Mode()&os.ModeDevice != 0 && f.Name() != os.DevNull
}
