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
	World   int           // ranks [4]
	Groups  []int         // replica group of each rank [r mod 2]
	Steps   int           // of each job [1000]
	Pace    time.Duration // shortest step [20 ms]
	Warm    int           // processes that each node keeps waiting for a rank [0; 1 with the fault heir]
	Flags   []string      // further ones of `replicad run`

	ReportDir string // gets the timeline; after a failure logs and status too [none]
	Dir       string // for sockets, state and logs [a temporary one]
	Keep      bool   // leave Dir behind
	Program   string // replicad [this executable]
}

const (
	defaultSteps = 1000
	defaultPace  = 20 * time.Millisecond
)

// withDefaults returns a copy that is complete and checked; all that is wrong is reported together.
func (o Options) withDefaults() (Options, error) {
	var list []error
	bad := func(format string, args ...any) { list = append(list, fmt.Errorf(format, args...)) }
	set(&o.Seed, rand.Uint64()>>33+1)
	set(&o.Duration, time.Minute)
	set(&o.World, 4)
	set(&o.Steps, defaultSteps)
	set(&o.Pace, defaultPace)
	if o.Program == "" {
		self, err := os.Executable()
		if err != nil {
			bad("find this program's file: %w", err)
		}
		o.Program = self
	}
	set(&o.Trainer, filepath.Join(filepath.Dir(o.Program), "textlm"))
	if o.Groups == nil {
		for r := range max(o.World, 0) {
			o.Groups = append(o.Groups, r%2)
		}
	}
	if o.World < 2 || o.World > 64 || len(o.Groups) != o.World {
		bad("--world %d with --groups %v: want 2 to 64 ranks, and a group for each", o.World, o.Groups)
	}
	if o.Steps < 200 {
		bad("--steps %d: want 200 or more: with less a job ends before a fault can be survived", o.Steps)
	}
	if o.Duration < 0 || o.Kills < 0 || o.Warm < 0 || o.Pace <= 0 {
		bad("--duration %v, --kills %d, --warm %d, --pace %v: want no negative number, and a pace", o.Duration, o.Kills, o.Warm, o.Pace)
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

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// trainer is the command of the undisturbed run, and of a rank.
func (o Options) trainer(more ...string) []string {
	return append(append(strings.Fields(o.Trainer), "--steps", fmt.Sprint(o.Steps), "--seed", fmt.Sprint(o.Seed)), more...)
}

func (o Options) groupList() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(o.Groups), " ", ","), "[]")
}
