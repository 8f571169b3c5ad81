package chaos

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Options are the verb's flags. Zero values mean the defaults in brackets.
type Options struct {
	Seed     uint64        // of training and of the schedule [drawn, and printed]
	Duration time.Duration // how long faults are injected [1m]
	Kills    int           // end after so many kills of ranks, should that come first [no limit]
	Faults   []string      // kinds to draw from [all that this machine can do]

	Trainer string        // command of the ranks, in words without spaces [textlm beside Program]
	Ends    bool          // a rank's process ends, and is started again, when a peer is lost; textlm's stays
	Layouts []string      // names, one after the other, with the same time each [all with textlm, in an order drawn by the seed]
	World   int           // ranks of a layout of your own [4]
	Groups  []int         // replica group of each rank [r mod Shards]
	Shards  int           // ranks that share one replica of the model [the trainer's default; textlm's is 2]
	Slots   int           // generations that an arena holds, in every layout [drawn by the seed with textlm; else the layout's]
	StateMB int           // MiB added to each rank's state, in every layout [as Slots]
	Steps   int           // of each job [300 in a layout with an added state; else 1000]
	Pace    time.Duration // shortest step [60 ms in a layout with an added state; else 20 ms]
	Warm    int           // processes that each node keeps waiting for a rank [0; 1 with the fault heir]
	Flags   []string      // further ones of `replicad run`

	History   string // a file of what recoveries took, which is added to: a recovery much slower than those is a violation [none]
	ReportDir string // gets the timeline; after a failure logs and status too [none]
	Dir       string // for sockets, state and logs [a temporary one]
	Keep      bool   // leave Dir behind
	Program   string // replicad [this executable]

	Again func(Options) string // the command line of a run with these options, for what a failure says [nil]
}

// withDefaults returns a copy that is complete and checked; all that is wrong is reported together.
func (o Options) withDefaults() (Options, error) {
	var list []error
	bad := func(format string, args ...any) { list = append(list, fmt.Errorf(format, args...)) }
	set(&o.Seed, rand.Uint64()>>33+1)
	set(&o.Duration, time.Minute)
	if o.Program == "" {
		self, err := os.Executable()
		if err != nil {
			bad("find this program's file: %w", err)
		}
		o.Program = self
	}
	set(&o.Trainer, filepath.Join(filepath.Dir(o.Program), "textlm"))
	if (o.World != 0 || o.Groups != nil || o.Shards != 0) && o.Layouts != nil && !slices.Contains(o.Layouts, ownLayout) {
		bad("--layouts %s with --world, --groups or --shards: these describe the layout %q, name it or leave --layouts out", strings.Join(o.Layouts, ","), ownLayout)
	}
	o.layOut()
	for _, name := range o.Layouts {
		if name != ownLayout && !slices.Contains(Layouts(), name) {
			bad("--layouts %q: want some of %s", name, strings.Join(Layouts(), ","))
			continue
		}
		l := o.layout(name)
		if l.World < 2 || l.World > 64 || len(l.Groups) != l.World || l.Shards > 0 && l.World%l.Shards != 0 {
			bad("--world %d with --groups %v and --shards %d: want 2 to 64 ranks, a group for each, and whole replicas", l.World, l.Groups, l.Shards)
		}
		if l.Steps < 200 {
			bad("--steps %d: want 200 or more: with less a job ends before a fault can be survived", l.Steps)
		}
		if l.Pace <= 0 {
			bad("--pace %v: want more than 0", l.Pace)
		}
	}
	if o.Duration < 0 || o.Kills < 0 || o.Warm < 0 || o.StateMB < 0 || o.Slots != 0 && (o.Slots < 2 || o.Slots > 4) {
		bad("--duration %v, --kills %d, --warm %d, --state-mb %d, --slots %d: want no negative number, and 2 to 4 slots", o.Duration, o.Kills, o.Warm, o.StateMB, o.Slots)
	}
	for _, f := range o.Faults {
		if !slices.Contains(Known(), f) {
			bad("--faults %q: want some of %s", f, strings.Join(Known(), ","))
		}
	}
	if slices.Contains(o.Faults, heir) {
		set(&o.Warm, 1)
	}
	program, err := exec.LookPath(strings.Fields(o.Trainer + " -")[0])
	if err != nil {
		bad("trainer: %w: `make build` puts textlm beside replicad", err)
	} else if program, err = filepath.Abs(program); err == nil { // a launcher may have another folder
		o.Trainer = strings.Join(append([]string{program}, strings.Fields(o.Trainer)[1:]...), " ")
	}
	return o, errors.Join(list...)
}

// layOut fills in the layouts: those that are named, the one that the flags describe, or all that the trainer knows.
func (o *Options) layOut() {
	own := o.World != 0 || o.Groups != nil || o.Shards != 0
	if o.Layouts == nil {
		switch {
		case own:
			o.Layouts = []string{ownLayout}
		case o.textlm():
			o.Layouts = drawLayouts(o.Seed)
		default:
			o.Layouts = []string{pairs}
		}
	}
	if !own && !slices.Contains(o.Layouts, ownLayout) {
		return
	}
	set(&o.World, max(4, len(o.Groups)))
	if o.Groups == nil {
		for r := range max(o.World, 0) {
			o.Groups = append(o.Groups, r%max(o.Shards, 2))
		}
	}
}

// textlm tells whether the trainer is the one that has flags for all that a layout can ask for.
func (o Options) textlm() bool {
	return strings.HasPrefix(filepath.Base(strings.Fields(o.Trainer + " -")[0]), "textlm")
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// trainer is the command of the undisturbed run, and of a rank, which is told of the world as well: an older textlm checks --shards
// against that flag, not against what its launcher says.
func (r *runner) trainer(more ...string) []string {
	command := append(strings.Fields(r.opt.Trainer), "--steps", fmt.Sprint(r.lay.Steps), "--seed", fmt.Sprint(r.opt.Seed), "--world", fmt.Sprint(r.lay.World))
	if r.lay.Shards > 0 {
		command = append(command, "--shards", fmt.Sprint(r.lay.Shards))
	}
	if r.lay.StateMB > 0 {
		command = append(command, "--state-mb", fmt.Sprint(r.lay.StateMB))
	}
	return append(command, more...)
}

func (l Layout) groupList() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(l.Groups), " ", ","), "[]")
}
