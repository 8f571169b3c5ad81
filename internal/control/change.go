package control

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/replicad/replicad/replica"
)

// Change is what differs between two states: between the one of index After, or later, that the node was told of, and that of Index.
// Commits alone are told as progress and are no part of it.
type Change struct {
	After uint64                            `cbor:"1,keyasint"`
	Index uint64                            `cbor:"2,keyasint"`
	Era   replica.Era                       `cbor:"3,keyasint"`
	Nodes map[replica.NodeName]replica.Node `cbor:"4,keyasint,omitempty"` // new, or not as they were
	Jobs  []JobChange                       `cbor:"5,keyasint,omitempty"`
	Gone  []replica.JobID                   `cbor:"6,keyasint,omitempty"` // forgotten
	// Revoked is all that is revoked, where that is not as it was.
	Revoked []replica.Revocation `cbor:"7,keyasint,omitempty"`
}

// JobChange is a job that is new, or not as it was after entry Was. With ten thousand ranks nearly all of it is as it was: each claim is told alone.
type JobChange struct {
	Was  uint64       `cbor:"1,keyasint"` // LastIndex of the job that this one follows; 0: none
	Same uint64       `cbor:"2,keyasint"` // by bit the numbers of the fields that are left out of Job, for they are as they were
	Job  *replica.Job `cbor:"3,keyasint"`
	// Of these fields only what changed is told, by rank and group.
	Ranks    map[replica.Rank]replica.Claimed   `cbor:"4,keyasint,omitempty"`
	Naming   map[replica.Rank]replica.GroupID   `cbor:"5,keyasint,omitempty"`
	Geometry map[replica.GroupID]replica.Digest `cbor:"6,keyasint,omitempty"`
}

// jobFields are the fields of a job by the numbers that they have on the wire.
var jobFields = func() map[uint]int {
	fields := map[uint]int{}
	t := reflect.TypeFor[replica.Job]()
	for i := range t.NumField() {
		number, _, _ := strings.Cut(t.Field(i).Tag.Get("cbor"), ",")
		n, err := strconv.ParseUint(number, 10, 6)
		if err != nil {
			panic(fmt.Sprintf("replica.Job.%s has no number below 64: %v", t.Field(i).Name, err))
		}
		fields[uint(n)] = i
	}
	return fields
}()

// The numbers of the fields that a change tells in a way of its own.
var numberID, numberParts, numberRanks, numberGeometry, numberNaming = numberOf("ID"), numberOf("Parts"), numberOf("Ranks"), numberOf("GroupGeometry"), numberOf("Naming")

func numberOf(field string) uint {
	for number, i := range jobFields {
		if reflect.TypeFor[replica.Job]().Field(i).Name == field {
			return number
		}
	}
	panic("replica.Job has no field " + field)
}

// JobChanged tells how a job differs from what it was (nil: there was none). stale says that the nodes do not know the parts of what
// was committed last: they heard of commits in short.
func JobChanged(was, is *replica.Job, stale bool) JobChange {
	if was == nil {
		return JobChange{Job: is}
	}
	c := JobChange{Was: was.LastIndex}
	job := *is
	from, to, left := reflect.ValueOf(was).Elem(), reflect.ValueOf(is).Elem(), reflect.ValueOf(&job).Elem()
	leaveOut := func(number uint) {
		left.Field(jobFields[number]).SetZero()
		c.Same |= 1 << number
	}
	for number, i := range jobFields {
		if number != numberID && shared(from.Field(i), to.Field(i)) && !(stale && number == numberParts) {
			leaveOut(number)
		}
	}
	c.Ranks = few(was.Ranks, job.Ranks, replica.Rank(0))
	c.Naming = few(was.Naming, job.Naming, replica.Rank(0))
	c.Geometry = few(was.GroupGeometry, job.GroupGeometry, replica.GroupID(0))
	for number, some := range map[uint]int{numberRanks: len(c.Ranks), numberNaming: len(c.Naming), numberGeometry: len(c.Geometry)} {
		if some > 0 {
			leaveOut(number)
		}
	}
	c.Job = &job
	return c
}

// shared tells, without looking into lists, whether two values are one: the state machine replaces what it changes and shares the rest.
func shared(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Slice:
		return a.Len() == b.Len() && a.IsNil() == b.IsNil() && (a.Len() == 0 || a.Pointer() == b.Pointer())
	case reflect.Pointer:
		return a.Pointer() == b.Pointer()
	case reflect.Struct:
		for i := range a.NumField() {
			if !shared(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
	return a.Equal(b)
}

// mostFew is how many elements of a list are told one by one: fewer than a map in a message may have.
const mostFew = 1 << 15

// few are the elements that differ, where a list has its old length and at most a quarter of it differs; else nil.
func few[K ~uint32, V comparable](was, is []V, _ K) map[K]V {
	if len(was) != len(is) {
		return nil
	}
	var out map[K]V
	for i := range is {
		if was[i] == is[i] {
			continue
		}
		if out == nil {
			out = map[K]V{}
		}
		if out[K(i)] = is[i]; len(out) > min(len(is)/4+1, mostFew) {
			return nil
		}
	}
	return out
}

// after is the job that a change makes of what it was in a state, which stays as it is. A change that does not follow that is an error.
func (c JobChange) after(jobs map[replica.JobID]*replica.Job) (*replica.Job, error) {
	if c.Job == nil {
		return nil, errors.New("change of a job without the job")
	}
	if c.Was == 0 {
		if c.Same != 0 || len(c.Ranks)+len(c.Naming)+len(c.Geometry) != 0 {
			return nil, fmt.Errorf("job %s is new, and as it was in some fields", c.Job.Name)
		}
		return c.Job, nil
	}
	was := jobs[c.Job.ID]
	if was == nil || was.LastIndex != c.Was {
		return nil, fmt.Errorf("job %v: it follows entry %d, and another is known here", c.Job.ID, c.Was)
	}
	is := *c.Job
	from, to := reflect.ValueOf(was).Elem(), reflect.ValueOf(&is).Elem()
	for number, i := range jobFields {
		if c.Same&(1<<number) != 0 {
			to.Field(i).Set(from.Field(i))
		}
	}
	var err error
	if is.Ranks, err = with(is.Ranks, c.Ranks); err == nil {
		if is.Naming, err = with(is.Naming, c.Naming); err == nil {
			is.GroupGeometry, err = with(is.GroupGeometry, c.Geometry)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("job %s: %w", is.Name, err)
	}
	return &is, nil
}

// with is a list with some elements replaced; the list itself stays as it is.
func with[K ~uint32, V any](list []V, some map[K]V) ([]V, error) {
	if len(some) == 0 {
		return list, nil
	}
	out := make([]V, len(list))
	copy(out, list)
	for i, v := range some {
		if uint64(i) >= uint64(len(out)) {
			return nil, fmt.Errorf("a change of element %d of %d", i, len(out))
		}
		out[i] = v
	}
	return out, nil
}

// After is a job after a commit, but for the parts that were committed.
func (p Progress) After(job *replica.Job) *replica.Job {
	next := *job
	next.LastIndex, next.Position, next.Committed, next.Previous = p.Index, p.Position, p.Generation, nil
	return &next
}
