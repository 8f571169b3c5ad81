package plan

import (
	"github.com/replicad/replicad/replica"
)

// Rung is how much of a job is started anew for a cause; every rung keeps the copies in memory.
type Rung uint8

// The ladder, lowest rung first. A rung that fails escalates to the next.
const (
	InProcess Rung = 1 // the process stays and joins the next epoch
	Process   Rung = 2 // another process, on the same node while it offers one
	Elsewhere Rung = 3 // another process on another node
	WholeJob  Rung = 4 // every rank, from the durable tier
)

func (r Rung) String() string {
	names := [...]string{InProcess: "in-process", Process: "process", Elsewhere: "replacement-node", WholeJob: "whole-job"}
	if r >= InProcess && int(r) < len(names) {
		return names[r]
	}
	return "none"
}

// ladder says which rung a cause takes first.
var ladder = map[replica.FaultKind]Rung{
	replica.Exception:   InProcess,
	replica.Torn:        InProcess, // its sealed parts are whole; only the live state is not
	replica.ProcessDead: Process,
	replica.Hang:        Process,
	replica.BadDigest:   Process,
	replica.Outvoted:    Process, // or elsewhere, with its node quarantined: judge in package recovery
	replica.NodeDead:    Elsewhere,
	replica.Silent:      Elsewhere,
	replica.Health:      Elsewhere,
	replica.Drain:       Elsewhere,
}

// FirstRung is the rung that a cause takes; a kind that this version does not know takes a new process.
func FirstRung(k replica.FaultKind) Rung {
	if r, ok := ladder[k]; ok {
		return r
	}
	return Process
}

// Next is the rung after one that failed.
func (r Rung) Next() Rung { return min(r+1, WholeJob) }

// DoNotRequeue begins the reason of a job that ended because starting it again would only end the same way.
const DoNotRequeue = "do not requeue: "
