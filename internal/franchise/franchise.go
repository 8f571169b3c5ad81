// Package franchise is who may vote: what a voter whose log is empty, or older than what it is known to have promised, may do, from its own disk, what its
// keeper remembers, and what the others answer. It is rules alone: no clock, no disk, no network.
//
// Raft counts on each voter to remember what it has promised: in which terms it voted, and up to which entry it acknowledged the log. A voter that has
// forgotten is as good as dead until a leader, which no promise of its stands against, has taken it out of the voters and brought it up to date.
package franchise

import (
	"slices"

	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/replica"
)

// Mark is how far a voter has gone: on its disk, or as far as somebody knows.
type Mark struct {
	Era      uint64 `cbor:"1,keyasint"` // counted up where a voter was made the only one: the log before is another history
	Term     uint64 `cbor:"2,keyasint"` // the newest that it was in
	LastTerm uint64 `cbor:"3,keyasint"` // of the last entry
	Index    uint64 `cbor:"4,keyasint"` // of the last entry
}

// Disk is what a mark says of a log.
type Disk uint8

const (
	Empty   Disk = iota // nothing, no vote either
	Begun               // the entry that names the first voters, and no election yet
	History             // anything beyond
)

// Disk sorts a mark.
func (m Mark) Disk() Disk {
	switch {
	case m.Term == 0 && m.Index == 0:
		return Empty
	case m.Term <= 1 && m.Index <= 1 && m.Era == 0:
		return Begun
	}
	return History
}

// Beyond tells whether a voter of this mark promised anything that a log of the other one has forgotten.
func (m Mark) Beyond(log Mark) bool {
	if m.Era != log.Era {
		return m.Era > log.Era
	}
	return m.Term > log.Term || log.EndsBefore(m)
}

// EndsBefore tells whether a log's end is older than another one's, as Raft compares them.
func (m Mark) EndsBefore(o Mark) bool {
	return m.LastTerm < o.LastTerm || m.LastTerm == o.LastTerm && m.Index < o.Index
}

// With is the mark with what another one knows too.
func (m Mark) With(o Mark) Mark {
	if m.Era != o.Era {
		if o.Era > m.Era {
			return o
		}
		return m
	}
	m.Term = max(m.Term, o.Term)
	if m.EndsBefore(o) {
		m.LastTerm, m.Index = o.LastTerm, o.Index
	}
	return m
}

// Own is what a voter knows of itself when it starts.
type Own struct {
	Name      replica.NodeName
	Log       Mark
	Kept      Mark               // what this node's keeper remembers of it
	Knows     bool               // the keeper has heard of each promise; false: it is a new one
	Members   []replica.NodeName // the voters: of its log, else of its configuration
	Bootstrap bool               // it was told that it may begin a cluster
	Began     bool               // since it started it wrote the first entry, on the word of all others
	Late      bool               // it has asked for a while: who is there has answered
	Taken     bool               // a leader was taking it in when this log was written
}

// Answer is another voter's.
type Answer struct {
	Log     Mark
	OfYou   Mark               // the furthest that it has seen the asking one go
	Members []replica.NodeName // of its log, else of its configuration
	Forgot  bool               // its own log was lost, or is an old one: what it saw of others is lost too
}

// Do is what a voter does next.
type Do uint8

const (
	Wait  Do = iota // ask again; no vote, and no entry is acknowledged
	Begin           // write the first entry
	Vote            // in terms later than Floor
	Learn           // wait until a leader has taken it in
)

// Cause is why a voter waits or learns.
type Cause uint8

const (
	Silent    Cause = iota // some have not answered
	NobodyHas              // nobody was told to begin
	Differ                 // the configurations name other voters
	Unbegun                // some have not begun yet
	Lost                   // its log is empty, and there is a history
	Old                    // its log is older than what it promised
	Unsure                 // its log is of when it was taken in: it may have voted since
)

// Verdict is what a voter does, and why.
type Verdict struct {
	Do    Do
	Cause Cause
	For   []replica.NodeName // whom it waits for; of Differ and Lost, who said so
	Floor uint64             // the newest term in which it must not vote any more; of Vote
	Least Mark               // no candidate, itself included, whose log ends before this one: it may have acknowledged as much; of Vote
	Known Mark               // what it is known to have promised; of Old
}

// Judge says what a voter does that has heard these answers since it started.
//
// An empty log may begin a history only where all others have answered that they have none: whoever led or was voted for had a majority, of which each
// member but this one would have a later term by now. A log that the keeper knows is whole. Any other log, after a new start of the whole node, could be an
// old copy: all others are asked, and where some do not answer for a while a majority with this one must be enough, or a cluster that lost one voter would
// stand. What they have bounds what it may have promised: no vote up to their newest term, and for no candidate that has less than their longest log.
func Judge(own Own, heard map[replica.NodeName]Answer) Verdict {
	others := slices.DeleteFunc(slices.Clone(own.Members), func(n replica.NodeName) bool { return n == own.Name })
	slices.Sort(others)
	known := own.Kept
	for _, n := range others {
		if a, ok := heard[n]; ok {
			known = known.With(a.OfYou)
		}
	}
	if own.Log.Disk() == Empty {
		return empty(own, others, heard, known)
	}
	if known.Beyond(own.Log) {
		return Verdict{Do: Learn, Cause: Old, Known: known}
	}
	if own.Began {
		return began(others, heard)
	}
	if own.Taken && !own.Knows { // a leader that takes it in once more frees it of what it may have promised since
		return Verdict{Do: Learn, Cause: Unsure}
	}
	if own.Knows {
		return Verdict{Do: Vote}
	}
	v := Verdict{Do: Vote, Floor: own.Log.Term, For: missing(others, heard)}
	answered := 0
	for _, n := range others {
		if a, ok := heard[n]; ok && !a.Forgot && a.Log.Disk() != Empty {
			answered++
			v.Floor, v.Least = max(v.Floor, a.Log.Term), v.Least.With(a.Log)
		}
	}
	voters := len(others) + 1
	if answered < len(others) && !(own.Late && 2*(answered+1) > voters) {
		v.Do = Wait
	}
	return v
}

// empty is the verdict on an empty log.
func empty(own Own, others []replica.NodeName, heard map[replica.NodeName]Answer, known Mark) Verdict {
	if planted.Unasked && own.Bootstrap {
		return Verdict{Do: Begin}
	}
	if len(others) == 0 { // nobody else has a history
		if own.Bootstrap {
			return Verdict{Do: Begin}
		}
		return Verdict{Cause: NobodyHas}
	}
	var have, differ []replica.NodeName
	begun := own.Bootstrap
	for _, n := range others {
		a, ok := heard[n]
		if !ok {
			continue
		}
		begun = begun || a.Log.Disk() == Begun
		if a.Log.Disk() == History || a.Forgot {
			have = append(have, n)
		}
		if !sameNames(a.Members, own.Members) {
			differ = append(differ, n)
		}
	}
	silent := missing(others, heard)
	switch {
	case len(have) > 0 || known.Disk() == History:
		return Verdict{Do: Learn, Cause: Lost, For: have, Known: known}
	case len(silent) > 0:
		return Verdict{Cause: Silent, For: silent}
	case len(differ) > 0:
		return Verdict{Cause: Differ, For: differ}
	case !begun:
		return Verdict{Cause: NobodyHas}
	}
	return Verdict{Do: Begin}
}

// began is the verdict on a voter that wrote the first entry and has not voted: it does once all others have written theirs, so that none of them comes
// too late for the first election and has to be taken in.
func began(others []replica.NodeName, heard map[replica.NodeName]Answer) Verdict {
	if planted.Unasked {
		return Verdict{Do: Vote}
	}
	var not []replica.NodeName
	for _, n := range others {
		switch heard[n].Log.Disk() {
		case Empty:
			not = append(not, n)
		case History:
			return Verdict{Do: Vote}
		case Begun:
		}
	}
	if len(not) > 0 {
		return Verdict{Cause: Unbegun, For: not}
	}
	return Verdict{Do: Vote}
}

func missing(others []replica.NodeName, heard map[replica.NodeName]Answer) (silent []replica.NodeName) {
	for _, n := range others {
		if _, ok := heard[n]; !ok {
			silent = append(silent, n)
		}
	}
	return silent
}

func sameNames(a, b []replica.NodeName) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}
