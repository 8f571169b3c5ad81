package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/pace"
)

// LogEvent is a line of a daemon's log, as far as it is read here.
type LogEvent struct {
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
	StepsLost uint64            `json:"committed_lost"` // committed steps that are done again
	Bytes     uint64            `json:"bytes"`
	By        map[string]uint64 `json:"by"`
	Holders   []string          `json:"holders"`
	Part      string            `json:"part"`
	LagMicros float64           `json:"lag_us"`
	Took      int64             `json:"took_us"`
	Job       string            `json:"job"`
	Code      string            `json:"code"`
	Unvouched bool              `json:"unvouched"`
	Left      bool              `json:"left"`

	From string // the node whose log it is
	Size int    // of the line, in bytes
}

// RankEvent is a line of the trainer's standard output.
type RankEvent struct {
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

	From string // the node on which the rank runs
}

// Time is when the rank said it.
func (e RankEvent) Time() time.Time { return time.Unix(0, e.T) }

// RankState is the newest that is known of a rank.
type RankState struct {
	Node         string
	PID          int
	Epoch, Step  uint64
	At           time.Time // of Step
	Digest       Digests   // of its done event
	Done         bool
	Joins        int       // how often it came to join a new epoch
	FirstInEpoch time.Time // its first step in Epoch
}

// Commit is one committed step.
type Commit struct {
	At   time.Time
	Step uint64
}

// rankStep is a step of a rank.
type rankStep struct {
	rank int
	step uint64
}

// Journal is all that the processes have said. Readers of their output add to it; everybody else looks at it through View or
// Await. What occurs each step is folded; other events are kept, at most maxEvents of them.
type Journal struct {
	// Set before anything is added, and called for each line with the journal locked; nil: nobody.
	OnLog  func(LogEvent)
	OnRank func(RankEvent)

	mu      sync.Mutex // guards all below
	changed chan struct{}
	Log     []LogEvent
	Dropped int
	Ranks   map[int]*RankState
	Commits []Commit
	Lags    map[uint64]float64 // by step: us from the last seal of a replicated part to the news of the commit at its daemon
	Loss    map[uint64]float64
	trained map[uint64]uint64 // by step: the newest epoch in which it was trained
	Repeats int               // steps that were trained again
	losses  map[rankStep]float64
	Differs int                // losses that a rank reported otherwise when it trained the step again
	Stops   map[int]RankEvent  // by rank: where it stopped itself last
	failure error              // what ended though nobody ended it: there is nothing to wait for any more
	Status  map[string]*Status // newest of each node, nil while it can't be asked
}

const maxEvents = 200_000

// NewJournal returns an empty one.
func NewJournal() *Journal {
	return &Journal{changed: make(chan struct{}), Ranks: map[int]*RankState{}, Lags: map[uint64]float64{}, Loss: map[uint64]float64{}, trained: map[uint64]uint64{}, losses: map[rankStep]float64{}, Stops: map[int]RankEvent{}, Status: map[string]*Status{}}
}

// TouchLocked wakes who waits for a change.
func (j *Journal) TouchLocked() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// AddLog takes a line of a daemon's log. What is not an event, or only what a library says, is in the log file alone.
func (j *Journal) AddLog(node string, line []byte) {
	e := LogEvent{From: node, Size: len(line) + 1}
	if json.Unmarshal(line, &e) != nil || e.Event == "" || e.Event == "library" || e.Time.IsZero() {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.Event == "claimed" {
		j.heldLocked(e.Rank, node, e.PID)
	}
	if j.OnLog != nil {
		j.OnLog(e)
	}
	switch {
	case e.Event == "committed":
		j.Commits = append(j.Commits, Commit{e.Time, e.Step})
	case e.Event == "commit_seen": // each rank's daemon counts from its own seal: the shortest is from the last
		if lag, ok := j.Lags[e.Step]; !ok || e.LagMicros < lag {
			j.Lags[e.Step] = e.LagMicros
		}
	case len(j.Log) < maxEvents:
		j.Log = append(j.Log, e)
	default:
		j.Dropped++
	}
	j.TouchLocked()
}

// AddRank takes a line of a rank's output.
func (j *Journal) AddRank(node string, line []byte) {
	e := RankEvent{From: node}
	if json.Unmarshal(line, &e) != nil || e.Event == "" || e.PID == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.OnRank != nil {
		j.OnRank(e)
	}
	if e.Event == "start" {
		return // it may be refused: another process has the rank
	}
	r := j.heldLocked(e.Rank, node, e.PID)
	switch e.Event {
	case "step":
		if e.Epoch != r.Epoch || r.FirstInEpoch.IsZero() {
			r.FirstInEpoch = e.Time()
		}
		r.Epoch, r.Step, r.At = e.Epoch, e.Step, e.Time()
		if e.Loss != nil {
			j.addLossLocked(e.Rank, e.Epoch, e.Step, *e.Loss)
		}
	case "joined":
		r.Joins++
	case "stopped":
		j.Stops[e.Rank] = e
	case "done":
		r.Done, r.Digest = true, Digests{e.Digest, e.State, e.Private}
	}
	j.TouchLocked()
}

// heldLocked is the state of a rank, which this process has.
func (j *Journal) heldLocked(rank int, node string, pid int) *RankState {
	r := j.Ranks[rank]
	if r == nil {
		r = &RankState{}
		j.Ranks[rank] = r
	}
	if r.PID != pid {
		*r = RankState{Node: node, PID: pid, Joins: r.Joins}
	}
	return r
}

// addLossLocked keeps the loss of a step, rank 0's where ranks report their own. Ranks of textlm report the same one, and a step
// that is trained again must give it again.
func (j *Journal) addLossLocked(rank int, epoch, step uint64, loss float64) {
	at := rankStep{rank, step} // ranks of a data-parallel trainer have losses of their own
	if was, ok := j.losses[at]; ok && was != loss {
		j.Differs++
	}
	j.losses[at] = loss
	if before := j.trained[step]; before != 0 && epoch > before {
		j.Repeats++
	}
	j.trained[step] = max(j.trained[step], epoch)
	if _, ok := j.Loss[step]; !ok || rank == 0 {
		j.Loss[step] = loss
	}
}

// Fail ends every wait, now and later; the first one counts.
func (j *Journal) Fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failure == nil {
		j.failure = err
		j.TouchLocked()
	}
}

// View runs fn while nothing changes; fn must not wait.
func (j *Journal) View(fn func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	fn()
}

// Await waits until ok, which runs under the journal's lock, says so, or a guarded process ends by itself. Patience is that of a quiet machine: where others want
// the same cores, an interpreter alone loads its libraries for a minute. On the deadline the error says what was awaited and what is known instead.
func (j *Journal) Await(ctx context.Context, patience time.Duration, what string, ok func() bool) error {
	limit := pace.New(patience, "")
	defer limit.Stop()
	for {
		var good bool
		var failure error
		var changed chan struct{}
		j.View(func() { good, failure, changed = ok(), j.failure, j.changed })
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
		case <-limit.C:
			if limit.Over() {
				return fmt.Errorf("waited %v for %s; seen instead: %s", limit.Waited(), what, j.Summary())
			}
		}
	}
}

// LatestLocked is the newest step that any rank has completed.
func (j *Journal) LatestLocked() (epoch, step uint64) {
	for _, r := range j.Ranks {
		if r.Epoch > epoch || r.Epoch == epoch && r.Step > step {
			epoch, step = r.Epoch, r.Step
		}
	}
	return epoch, step
}

// CommittedLocked is the newest committed step and when it was.
func (j *Journal) CommittedLocked() (step uint64, at time.Time) {
	if n := len(j.Commits); n > 0 {
		return j.Commits[n-1].Step, j.Commits[n-1].At
	}
	return 0, time.Time{}
}

// StoppedLocked is where a rank's present process stopped itself and has not gone on; empty: it has not.
func (j *Journal) StoppedLocked(rank int) string {
	s, at := j.Ranks[rank], j.Stops[rank]
	if at.PID != s.PID || s.At.After(at.Time()) {
		return ""
	}
	return at.Phase
}

// Summary is what is known now, on a few lines.
func (j *Journal) Summary() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var b strings.Builder
	step, _ := j.CommittedLocked()
	fmt.Fprintf(&b, "committed step %d;", step)
	for _, r := range slices.Sorted(maps.Keys(j.Ranks)) {
		s := j.Ranks[r]
		fmt.Fprintf(&b, " rank %d on %s (pid %d) at epoch %d step %d", r, s.Node, s.PID, s.Epoch, s.Step)
		if where := j.StoppedLocked(r); where != "" {
			fmt.Fprintf(&b, " stopped in %s", where)
		}
		b.WriteByte(';')
	}
	b.WriteString(" last events:")
	for _, e := range j.Log[max(0, len(j.Log)-8):] {
		fmt.Fprintf(&b, "\n    %s %s: %s epoch %d step %d", e.Time.Format("15:04:05.000"), e.From, e.Event, e.Epoch, e.Step)
		for _, word := range []string{e.Kind, e.State, e.Phase, e.What, e.Text, e.Why, e.Detail, e.Reason} {
			if word != "" {
				fmt.Fprintf(&b, " %.200s", word)
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(j.Status)) {
		fmt.Fprintf(&b, "\n    status of %s: %s", n, j.Status[n].Brief())
	}
	return b.String()
}
