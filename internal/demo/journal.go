package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// logEvent is a line of a daemon's log, as far as the demo reads it.
type logEvent struct {
	Time      time.Time         `json:"time"`
	Event     string            `json:"event"`
	Node      string            `json:"node"`
	Kind      string            `json:"kind"`
	Detail    string            `json:"detail"`
	State     string            `json:"state"`
	Text      string            `json:"text"`
	What      string            `json:"what"`
	Why       string            `json:"why"`
	Rank      int               `json:"rank"`
	PID       int               `json:"pid"`
	Phase     string            `json:"phase"`
	Epoch     uint64            `json:"epoch"`
	Step      uint64            `json:"step"`
	Term      uint64            `json:"term"`
	Tier      string            `json:"tier"`
	Reason    string            `json:"reason"`
	StepsLost uint64            `json:"steps_lost"`
	Bytes     uint64            `json:"bytes"`
	By        map[string]uint64 `json:"by"`
	LagMicros float64           `json:"lag_us"`

	from string // the node whose log it is
}

// rankEvent is a line of the trainer's standard output.
type rankEvent struct {
	T       int64    `json:"t"`
	Rank    int      `json:"rank"`
	PID     int      `json:"pid"`
	Event   string   `json:"event"`
	Epoch   uint64   `json:"epoch"`
	Step    uint64   `json:"step"`
	Loss    *float64 `json:"loss"`
	Phase   string   `json:"phase"`
	Digest  string   `json:"digest"`
	State   string   `json:"state_digest"`
	Private string   `json:"private_digest"`

	from string // the node on which the rank runs
}

func (e rankEvent) time() time.Time { return time.Unix(0, e.T) }

// rankState is the newest that is known of a rank.
type rankState struct {
	node         string
	pid          int
	epoch, step  uint64
	at           time.Time // of step
	digest       [3]string // of its done event
	done         bool
	joins        int       // how often it came to join a new epoch
	firstInEpoch time.Time // its first step in epoch
}

// commit is one committed step.
type commit struct {
	at   time.Time
	step uint64
}

// journal is all that the processes have said. Readers of their output add to it; everybody else looks at it through view or
// await. What occurs each step is folded; other events are kept, at most maxEvents of them.
type rankStep struct {
	rank int
	step uint64
}

type journal struct {
	mu      sync.Mutex // guards all below
	changed chan struct{}
	log     []logEvent
	dropped int
	ranks   map[int]*rankState
	commits []commit
	lags    map[uint64]float64 // by step: us from the last seal of a replicated part to the news of the commit at its daemon
	loss    map[uint64]float64
	trained map[uint64]uint64 // by step: the newest epoch in which it was trained
	repeats int               // steps that were trained again
	losses  map[rankStep]float64
	differs int                // losses that a rank reported otherwise when it trained the step again
	stops   map[int]rankEvent  // by rank: where it stopped itself last
	failure error              // what ended though nobody ended it: there is nothing to wait for any more
	status  map[string]*status // newest of each node, nil while it can't be asked
}

const maxEvents = 200_000

func newJournal() *journal {
	return &journal{changed: make(chan struct{}), ranks: map[int]*rankState{}, lags: map[uint64]float64{}, loss: map[uint64]float64{}, trained: map[uint64]uint64{}, losses: map[rankStep]float64{}, stops: map[int]rankEvent{}, status: map[string]*status{}}
}

// touchLocked wakes who waits for a change.
func (j *journal) touchLocked() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// addLog takes a line of a daemon's log. What is not an event, or only what a library says, is in the log file alone.
func (j *journal) addLog(node string, line []byte) {
	e := logEvent{from: node}
	if json.Unmarshal(line, &e) != nil || e.Event == "" || e.Event == "library" || e.Time.IsZero() {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.Event == "claimed" {
		j.heldLocked(e.Rank, node, e.PID)
	}
	switch {
	case e.Event == "committed":
		j.commits = append(j.commits, commit{e.Time, e.Step})
	case e.Event == "commit_seen": // each rank's daemon counts from its own seal: the shortest is from the last
		if lag, ok := j.lags[e.Step]; !ok || e.LagMicros < lag {
			j.lags[e.Step] = e.LagMicros
		}
	case len(j.log) < maxEvents:
		j.log = append(j.log, e)
	default:
		j.dropped++
	}
	j.touchLocked()
}

// addRank takes a line of a rank's output.
func (j *journal) addRank(node string, line []byte) {
	e := rankEvent{from: node}
	if json.Unmarshal(line, &e) != nil || e.Event == "" || e.PID == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.Event == "start" {
		return // it may be refused: another process has the rank
	}
	r := j.heldLocked(e.Rank, node, e.PID)
	switch e.Event {
	case "step":
		if e.Epoch != r.epoch || r.firstInEpoch.IsZero() {
			r.firstInEpoch = e.time()
		}
		r.epoch, r.step, r.at = e.Epoch, e.Step, e.time()
		if e.Loss != nil {
			j.addLossLocked(e.Rank, e.Epoch, e.Step, *e.Loss)
		}
	case "joined":
		r.joins++
	case "stopped":
		j.stops[e.Rank] = e
	case "done":
		r.done, r.digest = true, [3]string{e.Digest, e.State, e.Private}
	}
	j.touchLocked()
}

// heldLocked is the state of a rank, which this process has.
func (j *journal) heldLocked(rank int, node string, pid int) *rankState {
	r := j.ranks[rank]
	if r == nil {
		r = &rankState{}
		j.ranks[rank] = r
	}
	if r.pid != pid {
		*r = rankState{node: node, pid: pid, joins: r.joins}
	}
	return r
}

// addLossLocked keeps the loss of a step, rank 0's where ranks report their own. Ranks of textlm report the same one, and a step
// that is trained again must give it again.
func (j *journal) addLossLocked(rank int, epoch, step uint64, loss float64) {
	at := rankStep{rank, step} // ranks of a data-parallel trainer have losses of their own
	if was, ok := j.losses[at]; ok && was != loss {
		j.differs++
	}
	j.losses[at] = loss
	if before := j.trained[step]; before != 0 && epoch > before {
		j.repeats++
	}
	j.trained[step] = max(j.trained[step], epoch)
	if _, ok := j.loss[step]; !ok || rank == 0 {
		j.loss[step] = loss
	}
}

// fail ends every wait, now and later; the first one counts.
func (j *journal) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failure == nil {
		j.failure = err
		j.touchLocked()
	}
}

// view runs fn while nothing changes; fn must not wait.
func (j *journal) view(fn func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	fn()
}

// await waits until ok, which runs under the journal's lock, says so, or a guarded process ends by itself. On the deadline the error says what was awaited and
// what is known instead.
func (j *journal) await(ctx context.Context, patience time.Duration, what string, ok func() bool) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		var good bool
		var failure error
		var changed chan struct{}
		j.view(func() { good, failure, changed = ok(), j.failure, j.changed })
		switch {
		case failure != nil:
			return fmt.Errorf("while waiting for %s: %w", what, failure)
		case good:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			return fmt.Errorf("waited %v for %s; seen instead: %s", patience, what, j.summary())
		}
	}
}

// latestLocked is the newest step that any rank has completed.
func (j *journal) latestLocked() (epoch, step uint64) {
	for _, r := range j.ranks {
		if r.epoch > epoch || r.epoch == epoch && r.step > step {
			epoch, step = r.epoch, r.step
		}
	}
	return epoch, step
}

// committedLocked is the newest committed step and when it was.
func (j *journal) committedLocked() (step uint64, at time.Time) {
	if n := len(j.commits); n > 0 {
		return j.commits[n-1].step, j.commits[n-1].at
	}
	return 0, time.Time{}
}

// stoppedLocked is where a rank's present process stopped itself and has not gone on; empty: it has not.
func (j *journal) stoppedLocked(rank int) string {
	s, at := j.ranks[rank], j.stops[rank]
	if at.PID != s.pid || s.at.After(at.time()) {
		return ""
	}
	return at.Phase
}

// summary is what is known now, on a few lines.
func (j *journal) summary() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var b strings.Builder
	step, _ := j.committedLocked()
	fmt.Fprintf(&b, "committed step %d;", step)
	for _, r := range slices.Sorted(maps.Keys(j.ranks)) {
		s := j.ranks[r]
		fmt.Fprintf(&b, " rank %d on %s (pid %d) at epoch %d step %d", r, s.node, s.pid, s.epoch, s.step)
		if where := j.stoppedLocked(r); where != "" {
			fmt.Fprintf(&b, " stopped in %s", where)
		}
		b.WriteByte(';')
	}
	b.WriteString(" last events:")
	for _, e := range j.log[max(0, len(j.log)-8):] {
		fmt.Fprintf(&b, "\n    %s %s: %s epoch %d step %d", e.Time.Format("15:04:05.000"), e.from, e.Event, e.Epoch, e.Step)
		for _, word := range []string{e.Kind, e.State, e.Phase, e.What, e.Text, e.Why, e.Detail, e.Reason} {
			if word != "" {
				fmt.Fprintf(&b, " %.200s", word)
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(j.status)) {
		fmt.Fprintf(&b, "\n    status of %s: %s", n, j.status[n].brief())
	}
	return b.String()
}
