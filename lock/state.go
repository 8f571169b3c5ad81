package lock

import (
	"fmt"
	"maps"

	"github.com/replicad/replicad/replica"
)

// View is the replicated state after entry Index. It and all that it points to are immutable.
type View struct {
	Index   uint64                            `json:"index" cbor:"1,keyasint"`
	Cluster replica.ClusterID                 `json:"cluster" cbor:"2,keyasint"`
	Era     replica.Era                       `json:"era" cbor:"3,keyasint"`
	Nodes   map[replica.NodeName]replica.Node `json:"nodes" cbor:"4,keyasint"`
	Jobs    map[replica.JobID]*replica.Job    `json:"jobs" cbor:"5,keyasint"`
	// The highest numbers that ended jobs which are not in Jobs any more handed out.
	ForgottenEpoch       replica.Epoch       `json:"forgotten_epoch,omitempty" cbor:"6,keyasint,omitempty"`
	ForgottenIncarnation replica.Incarnation `json:"forgotten_incarnation,omitempty" cbor:"7,keyasint,omitempty"`
	// Revoked has one entry for each name, by role and name; see Revokes.
	Revoked []replica.Revocation `json:"revoked,omitempty" cbor:"8,keyasint,omitempty"`
	// Fleet tells this log from those of other fleets of the cluster, which may resume the same run: the first life of a node that it has recorded.
	Fleet string `json:"fleet,omitempty" cbor:"9,keyasint,omitempty"`
}

// JobByName finds the job of that name that has not ended. A name may be used again, so others of that name may have.
func (v View) JobByName(name string) (*replica.Job, bool) {
	for _, j := range v.Jobs {
		if j.Name == name && j.Phase != replica.Ended {
			return j, true
		}
	}
	return nil, false
}

// Code says what kind of refusal it was, so that a caller knows whether to try again.
type Code uint8

// The codes of a refusal.
const (
	Stale      Code = 1 // names something older than what is: refused for good
	NotYet     Code = 2 // names something newer, or comes too early: read the state and try again
	Conflict   Code = 3 // somebody else was first, or it contradicts what is recorded
	Unknown    Code = 4 // no such job, node or rank
	Invalid    Code = 5 // malformed: no state would accept it
	Incomplete Code = 6 // a part, a root or a copy is missing
	Full       Code = 7 // the state has no room for it
)

func (c Code) String() string {
	names := [...]string{Stale: "stale", NotYet: "not yet", Conflict: "conflict", Unknown: "unknown", Invalid: "invalid", Incomplete: "incomplete", Full: "full"}
	if c >= Stale && int(c) < len(names) {
		return names[c]
	}
	return "invalid code"
}

// Refused is why a command changed nothing.
type Refused struct {
	Code Code
	Text string
}

func (r *Refused) Error() string { return r.Code.String() + ": " + r.Text }

func refuse(c Code, format string, args ...any) error {
	return &Refused{Code: c, Text: fmt.Sprintf(format, args...)}
}

// Outcome is what became of a command. Err is nil or a *Refused; with Err nil and Changed false it was a repetition.
type Outcome struct {
	Changed     bool
	Job         *replica.Job        // the job after the command, where it names one that exists
	Incarnation replica.Incarnation // what a Claim obtained
	Err         error
}

// State is the job state machine. One goroutine owns it; its Views may be read by any.
type State struct{ v View }

// New is the state before the first entry of a cluster's log.
func New(cluster replica.ClusterID) *State {
	return &State{View{Cluster: cluster, Era: 1, Nodes: map[replica.NodeName]replica.Node{}, Jobs: map[replica.JobID]*replica.Job{}}}
}

// FromView continues from a snapshot. The view stays immutable: the state copies what it changes.
func FromView(v View) *State {
	if v.Nodes == nil {
		v.Nodes = map[replica.NodeName]replica.Node{}
	}
	if v.Jobs == nil {
		v.Jobs = map[replica.JobID]*replica.Job{}
	}
	s := &State{v}
	for id, j := range v.Jobs { // a snapshot of a version that kept them whole
		if j.Phase == replica.Ended && len(j.Ranks) > 0 && j.Writer == nil {
			short := *j
			strip(&short)
			s.v.Jobs = maps.Clone(s.v.Jobs)
			s.v.Jobs[id] = &short
		}
	}
	s.forget()
	return s
}

// View is the state now.
func (s *State) View() View { return s.v }

// Apply applies one entry of the log. Indexes rise; one that was applied already is refused as stale.
func (s *State) Apply(index uint64, c replica.Command) Outcome {
	if index <= s.v.Index {
		return Outcome{Err: refuse(Stale, "entry %d: the log is applied up to %d", index, s.v.Index)}
	}
	s.v.Index = index
	switch c := c.(type) {
	case replica.RegisterNode:
		return s.registerNode(index, c)
	case replica.CreateJob:
		return s.createJob(index, c)
	case replica.NewEra:
		return s.newEra(index, c)
	case replica.Revoke:
		return s.revoke(index, c.Revocation)
	case replica.Claim:
		var got replica.Incarnation
		out := s.change(index, c.Job, func(j *replica.Job) (changed bool, err error) {
			got, changed, err = claim(j, s.v.Nodes, c)
			return changed, err
		})
		out.Incarnation = got
		return out
	}
	id, rule := s.rule(c)
	if rule == nil {
		return Outcome{Err: refuse(Invalid, "command of unknown type %T", c)}
	}
	return s.change(index, id, rule)
}

// rule finds the rule of a command that changes one job.
func (s *State) rule(c replica.Command) (replica.JobID, func(*replica.Job) (bool, error)) {
	nodes := s.v.Nodes
	switch c := c.(type) {
	case replica.Begin:
		return c.Job, func(j *replica.Job) (bool, error) { return begin(j, nodes, c) }
	case replica.Grow:
		return c.Job, func(j *replica.Job) (bool, error) { return grow(j, nodes, c) }
	case replica.ReportFault:
		return c.Job, func(j *replica.Job) (bool, error) { return reportFault(j, nodes, c.Fault) }
	case replica.ApplyPlan:
		return c.Job, func(j *replica.Job) (bool, error) { return applyPlan(j, c.Plan) }
	case replica.Resume:
		return c.Job, func(j *replica.Job) (bool, error) { return resume(j, nodes, c) }
	case replica.Commit:
		return c.Job, func(j *replica.Job) (bool, error) { return commit(j, nodes, c) }
	case replica.CommitRoots:
		return c.Job, func(j *replica.Job) (bool, error) { return commitRoots(j, nodes, c) }
	case replica.ReportDispute:
		return c.Job, func(j *replica.Job) (bool, error) { return reportDispute(j, nodes, c) }
	case replica.Condemn:
		return c.Job, func(j *replica.Job) (bool, error) { return condemn(j, nodes, c) }
	case replica.SetCopies:
		return c.Job, func(j *replica.Job) (bool, error) { return setCopies(j, c) }
	case replica.SetHolder:
		return c.Job, func(j *replica.Job) (bool, error) { return setHolder(j, nodes, c) }
	case replica.SetMirrors:
		return c.Job, func(j *replica.Job) (bool, error) { return setMirrors(j, nodes, c) }
	case replica.BeginDurable:
		return c.Job, func(j *replica.Job) (bool, error) { return beginDurable(j, nodes, c) }
	case replica.EndDurable:
		return c.Job, func(j *replica.Job) (bool, error) { return endDurable(j, c) }
	case replica.Quarantine:
		return c.Job, func(j *replica.Job) (bool, error) { return quarantine(j, nodes, c) }
	case replica.ProveLost:
		return c.Job, func(j *replica.Job) (bool, error) { return proveLost(j, c) }
	case replica.StopJob:
		return c.Job, func(j *replica.Job) (bool, error) { return stopJob(j, nodes, c) }
	case replica.EndJob:
		return c.Job, func(j *replica.Job) (bool, error) { return endJob(j, nodes, c) }
	}
	return replica.JobID{}, nil
}

// change runs a rule on a copy of the job and puts the copy in place if the rule changed it. Invariant: rules replace the
// slices, maps and pointers of the copy and never write through them, since earlier Views share them.
func (s *State) change(index uint64, id replica.JobID, rule func(*replica.Job) (bool, error)) Outcome {
	old, ok := s.v.Jobs[id]
	if !ok {
		return Outcome{Err: refuse(Unknown, "job %v: no such job in this log", id)}
	}
	next := *old
	changed, err := rule(&next)
	if err != nil || !changed {
		return Outcome{Job: old, Err: err}
	}
	s.put(index, &next)
	return Outcome{Changed: true, Job: &next}
}

func (s *State) put(index uint64, j *replica.Job) {
	j.LastIndex = index
	s.v.Jobs = maps.Clone(s.v.Jobs)
	s.v.Jobs[j.ID] = j
	if j.Phase == replica.Ended {
		s.forget()
	}
}

// running refuses what a job that has ended can't do any more.
func running(j *replica.Job) error {
	if j.Phase == replica.Ended {
		return refuse(Stale, "job %s (%v) has ended: %s", j.Name, j.ID, j.EndReason)
	}
	return nil
}
