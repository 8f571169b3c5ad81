package preload

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Bounds of what is tried.
const (
	maxPasses = 8 // processes that are started to learn what may not be imported beforehand
	maxVain   = 5 // times in a row that a process ends before a restart has used it
)

// Event is what has happened. It is one of the types below.
type Event interface{ event() }

// Events. Of a process they count only while it is the one that runs.
type (
	Reported struct { // by a program's first life
		Report Report
		Child  bool // its process is one of the caller's, and a rank's
	}
	Said struct { // by the process
		PID     int
		Message Message
	}
	Ended struct { // the process, without having been told to
		PID int
		How string
	}
	NotStarted struct{ Why string }
	Forked     struct{}
	NotForked  struct { // the process must go
		Why     string
		Changed bool // what it has imported is not what is on disk, or where it runs is not where the launcher runs
	}
)

func (Reported) event()   {}
func (Said) event()       {}
func (Ended) event()      {}
func (NotStarted) event() {}
func (Forked) event()     {}
func (NotForked) event()  {}

// Effect is what the caller is to do. It is one of the types below.
type Effect interface{ effect() }

// Effects.
type (
	Start struct { // a process that imports
		Report   Report
		LeaveOut []string
	}
	Kill struct{}              // the process
	Say  struct{ Text string } // a line of the log
)

func (Start) effect() {}
func (Kill) effect()  {}
func (Say) effect()   {}

// Room knows whether there is a process that restarts can fork from, and what to do to have one. The zero value waits for a report.
type Room struct {
	Argv  []string      // the command
	Again time.Duration // from the end of a process to the start of the next one
	Quiet time.Duration // without a word of an import, until it is given up

	state    state
	report   Report
	leaveOut []string
	passes   int
	vain     int
	current  string    // what is being imported
	at       time.Time // when something is done: to start anew, or to give up an import
	kib      int64     // of the process that is ready
	said     string    // why reports are not taken, said once
}

type state int

const (
	waiting   state = iota // for a report
	importing              // a process does so
	ready                  // to fork
	resting                // until another process is started
	off                    // for good
)

// Ready tells whether a process serves forks, and how long it may take for one: a large one has more to copy.
func (r *Room) Ready() (patience time.Duration, ok bool) {
	return 2*time.Second + time.Duration(r.kib>>10)*10*time.Millisecond, r.state == ready
}

// Adopt takes a process that somebody else has prepared and that was handed over, before any report. Ready is its word.
func (r *Room) Adopt(now time.Time, ready Said) []Effect {
	r.state = importing
	return r.onSaid(now, ready)
}

// Next is when Step has something to do; zero: nothing by itself.
func (r *Room) Next() time.Time { return r.at }

// Step does what is due.
func (r *Room) Step(now time.Time) []Effect {
	if r.at.IsZero() || now.Before(r.at) {
		return nil
	}
	r.at = time.Time{}
	switch r.state {
	case importing:
		return append([]Effect{Kill{}}, r.stuck(now)...)
	case resting:
		return r.start(now)
	case waiting, ready, off:
	}
	return nil
}

// Learn takes an event in.
func (r *Room) Learn(now time.Time, e Event) []Effect {
	switch e := e.(type) {
	case Reported:
		return r.onReport(now, e)
	case Said:
		return r.onSaid(now, e)
	case Ended:
		return r.onEnded(now, e.How)
	case NotStarted:
		return r.rest(now, "the process that restarts would fork from does not start: "+e.Why)
	case Forked:
		r.vain = 0
	case NotForked:
		return append([]Effect{Kill{}}, r.onNotForked(now, e)...)
	}
	return nil
}

func (r *Room) onReport(now time.Time, e Reported) []Effect {
	if r.state != waiting {
		return nil
	}
	why := ""
	switch {
	case !e.Child:
		why = "a shell script or another launcher stands between `replicad run` and the ranks"
	case !slices.Equal(e.Report.Argv, latins(r.Argv)):
		why = fmt.Sprintf("the command was executed with other arguments, as %q with %d more, by a script or another program", e.Report.Argv[:min(1, len(e.Report.Argv))], max(0, len(e.Report.Argv)-1)) // those may hold a secret
	case e.Report.Isolated:
		why = "Python runs with -I, -E or -S, and does not look at PYTHONPATH"
	case len(e.Report.Modules) == 0:
		why = "the program has imported no package"
	}
	if why != "" {
		if why == r.said {
			return nil
		}
		r.said = why
		return []Effect{Say{"restarts import anew, since " + printable(why, maxWhy)}}
	}
	r.report, r.leaveOut, r.passes = e.Report, nil, 0
	return r.start(now)
}

func (r *Room) start(now time.Time) []Effect {
	r.state, r.current, r.at = importing, "", now.Add(r.Quiet)
	return []Effect{Start{r.report, slices.Clone(r.leaveOut)}}
}

func (r *Room) onSaid(now time.Time, e Said) []Effect {
	if r.state != importing {
		return nil
	}
	switch m := e.Message; {
	case m.Importing != "":
		r.current, r.at = m.Importing, now.Add(r.Quiet)
	case m.LeftOut != nil:
		return append([]Effect{Kill{}}, r.without(now, m.LeftOut)...)
	case m.Refused != "":
		r.state, r.at = off, time.Time{}
		return []Effect{Kill{}, Say{"restarts import anew: " + m.Refused}}
	case m.Ready != nil:
		r.state, r.at, r.kib = ready, time.Time{}, m.KiB
		of := ""
		if len(m.Packages) > 0 {
			of = " of " + strings.Join(m.Packages[:min(len(m.Packages), 6)], ", ")
			if len(m.Packages) > 6 {
				of += " ..."
			}
		}
		return []Effect{Say{fmt.Sprintf("restarts fork from process %d, which has imported %d modules%s; %d MiB, shared", e.PID, *m.Ready, of, m.KiB>>10)}}
	}
	return nil
}

// without starts another process that leaves out some more.
func (r *Room) without(now time.Time, left []Left) []Effect {
	var effects []Effect
	for _, l := range left {
		if !slices.Contains(r.leaveOut, l.Name) {
			r.leaveOut = append(r.leaveOut, l.Name)
			effects = append(effects, Say{fmt.Sprintf("restarts import %s anew: it %s", l.Name, l.Why)})
		}
	}
	if r.passes++; r.passes > maxPasses || len(effects) == 0 {
		r.state, r.at = off, time.Time{}
		return append(effects, Say{fmt.Sprintf("restarts import everything anew: after %d tries there are still modules that may not be imported beforehand", r.passes)})
	}
	return append(effects, r.start(now)...)
}

// stuck: an import does not come to its end.
func (r *Room) stuck(now time.Time) []Effect {
	if r.current == "" {
		return r.rest(now, fmt.Sprintf("the process that restarts would fork from has said nothing for %v", r.Quiet))
	}
	return r.without(now, []Left{{r.current, fmt.Sprintf("has not been imported within %v", r.Quiet)}})
}

// killed is the end of a process by SIGKILL: no module's doing, as a rule, but of the kernel, which is short of memory.
const killed = "signal: killed"

func (r *Room) onEnded(now time.Time, how string) []Effect {
	switch r.state {
	case importing:
		if r.current != "" && how != killed {
			return r.without(now, []Left{{r.current, "ends the program when it is imported (" + how + ")"}})
		}
		return r.rest(now, "the process that restarts would fork from ended before it had imported everything ("+how+")")
	case ready:
		return r.rest(now, "the process that restarts fork from has ended ("+how+")")
	case waiting, resting, off:
	}
	return nil
}

func (r *Room) onNotForked(now time.Time, e NotForked) []Effect {
	if e.Changed {
		// The next fresh process says what is imported then.
		r.state, r.at, r.leaveOut, r.said = waiting, time.Time{}, nil, ""
		return []Effect{Say{"this start imports anew, and the next ones fork again: " + e.Why}}
	}
	return r.rest(now, "this start imports anew: "+e.Why)
}

// rest waits before another process is started, or gives up.
func (r *Room) rest(now time.Time, why string) []Effect {
	r.at = time.Time{}
	if r.report.PID == 0 { // handed over: nobody has told how to make another
		r.state = waiting
		return []Effect{Say{why}}
	}
	if r.vain++; r.vain >= maxVain {
		r.state = off
		return []Effect{Say{fmt.Sprintf("%s; that was %d times in a row, so restarts import anew from now on", why, r.vain)}}
	}
	r.state, r.at = resting, now.Add(r.Again)
	return []Effect{Say{why + "; another one is started in " + r.Again.String()}}
}
