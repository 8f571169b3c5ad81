package demo

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
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
	RankAgain   = "rank-again"   // SIGKILL a rank in mid-forward and, once the plan for that is applied, another; not in the default
)

// AllFaults is what a demo injects by default.
func AllFaults() []string {
	return []string{RankForward, RankWindow, Daemon, NodeLoss, LeaderLoss, GroupLoss}
}

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
	Seed     uint64 // of training and of the moments of faults [drawn, and printed]

	ReportDir string // for report.html and report.json [none]
	Dir       string // for sockets, state and logs [a temporary one]
	Keep      bool   // leave Dir behind

	Program string        // replicad [this executable]
	Trainer string        // textlm [beside Program]
	Pace    time.Duration // shortest step, which stands for a larger model [20 ms]
	Plain   bool          // no live view though stdout is a terminal

	LogLevel string // of the daemons' logs in Dir: debug or info; above info the timeline would have no events [info]
}

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
	} else if len(o.Faults) == 0 {
		o.Faults = AllFaults()
	}
	for _, f := range o.Faults {
		if known := append(AllFaults(), RankAgain); !slices.Contains(known, f) {
			list = append(list, fmt.Errorf("--faults %q: want some of %s", f, strings.Join(known, ",")))
		}
	}
	if o.Steps < 20 || o.Steps > 1<<30 {
		list = append(list, fmt.Errorf("--steps %d: want 20 or more, so that there is something to lose", o.Steps))
	}
	if o.StateMB < 0 || o.StateMB > 1<<16 {
		list = append(list, fmt.Errorf("--state-mb %d: want 0 to %d MiB a rank", o.StateMB, 1<<16))
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
		o.Trainer = filepath.Join(filepath.Dir(o.Program), "textlm")
	}
	if info, err := os.Stat(o.Trainer); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		list = append(list, fmt.Errorf("trainer %s is not an executable file: `make build` puts it there", o.Trainer))
	}
	return o, errors.Join(list...)
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
