package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/replicad/replicad/examples/textlm/model"
	"github.com/replicad/replicad/replica"
)

// event is one line of standard output.
type event struct {
	T      int64    `json:"t"` // nanoseconds since 1970
	Rank   int      `json:"rank"`
	PID    int      `json:"pid"`
	Event  string   `json:"event"` // start, begun, joined, ready, step, state, fenced, peer-lost, waiting, stopped, done
	Epoch  uint64   `json:"epoch,omitempty"`
	Step   uint64   `json:"step"`
	Loss   *float32 `json:"loss,omitempty"`
	Action string   `json:"action,omitempty"`
	Source string   `json:"source,omitempty"`
	Phase  string   `json:"phase,omitempty"`
	Text   string   `json:"text,omitempty"`
	// Of done, begun and state: SHA-256 over the weights, over everything replicated, over this rank's private state.
	Digest  string `json:"digest,omitempty"`
	State   string `json:"state_digest,omitempty"`
	Private string `json:"private_digest,omitempty"`
}

// events writes lines, each with one Write, so that ranks which share a pipe don't mix theirs.
type events struct {
	rank, pid int
	mu        *sync.Mutex // guards w; shared by ranks of one process
	w         io.Writer
}

func newEvents(w io.Writer, mu *sync.Mutex, rank int) *events {
	return &events{rank: rank, pid: os.Getpid(), mu: mu, w: w}
}

func (e *events) emit(ev event) {
	ev.T, ev.Rank, ev.PID = time.Now().UnixNano(), e.rank, e.pid
	line, err := json.Marshal(ev)
	if err != nil {
		panic(fmt.Sprintf("textlm: event %+v: %v", ev, err)) // a loss that is not a number: there is nothing left to train
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, _ = e.w.Write(append(line, '\n')) // nobody listens any more: SIGPIPE ends a rank, a baseline goes on
}

// state tells what the state is, by its digests.
func (e *events) state(name string, m *model.Model) {
	weights, state, private := m.Digests()
	e.emit(event{Event: name, Step: m.Steps(), Digest: weights, State: state, Private: private})
}

// stopAt is the demo's handle for faults: where the file stop-RANK in TEXTLM_FAULT_DIR says "STEP PHASE", the rank says that
// it stopped, at the first step from STEP on, and never goes on: it is to be killed there.
func (t *trainer) stopAt(step replica.Step, phase string) {
	if t.opt.faultDir == "" {
		return
	}
	b, err := os.ReadFile(filepath.Join(t.opt.faultDir, fmt.Sprintf("stop-%d", t.rank)))
	if err != nil {
		return
	}
	var from uint64
	var where string
	if n, _ := fmt.Sscanf(string(b), "%d %s", &from, &where); n != 2 || where != phase || uint64(step) < from {
		return
	}
	t.out.emit(event{Event: "stopped", Phase: phase, Step: uint64(step)})
	select {}
}
