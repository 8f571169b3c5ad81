package control

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// sent is a message as it comes out at the other end.
func sent[T any](t testing.TB, k wire.Kind, v T) (T, int) {
	t.Helper()
	b, err := wire.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeAs[T](b)
	if err != nil {
		t.Fatal(err)
	}
	return got, len(b)
}

func patched(t testing.TB, c JobChange, was *replica.Job) (*replica.Job, error) {
	t.Helper()
	got, _ := sent(t, KindChange, Change{Jobs: []JobChange{c}})
	return got.Jobs[0].after(map[replica.JobID]*replica.Job{was.ID: was})
}

// Each field of a job arrives when it changes, alone or with all others, and what has not changed is not sent.
func TestEveryChangeOfAJobArrives(t *testing.T) {
	n := uint64(50)
	full := func() *replica.Job {
		j := &replica.Job{}
		fixture.Fill(reflect.ValueOf(j).Elem(), &n)
		return j
	}
	was := full()
	was.ID = fixture.JobID
	all := full()
	all.ID, all.LastIndex = fixture.JobID, was.LastIndex+1
	if got, err := patched(t, JobChanged(was, all, false), was); err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("a change of everything arrives as %+v: %v", got, err)
	}
	for i := range reflect.TypeFor[replica.Job]().NumField() {
		name := reflect.TypeFor[replica.Job]().Field(i).Name
		if name == "ID" {
			continue
		}
		is := fixture.Changed(was, func(j *replica.Job) { fixture.Fill(reflect.ValueOf(j).Elem().Field(i), &n) })
		if name == "LastIndex" {
			is.LastIndex = was.LastIndex + 5
		}
		c := JobChanged(was, is, false)
		if got, err := patched(t, c, was); err != nil || !reflect.DeepEqual(got, is) {
			t.Errorf("a change of %s arrives as\n%+v, want\n%+v: %v", name, got, is, err)
		}
		for j := range reflect.TypeFor[replica.Job]().NumField() {
			if other := reflect.TypeFor[replica.Job]().Field(j).Name; other != name && other != "ID" && other != "LastIndex" && !reflect.ValueOf(c.Job).Elem().Field(j).IsZero() {
				t.Errorf("a change of %s sends %s too", name, other)
			}
		}
		is = fixture.Changed(was, func(j *replica.Job) { reflect.ValueOf(j).Elem().Field(i).SetZero() })
		if name == "LastIndex" {
			is.LastIndex = was.LastIndex + 1
		}
		if got, err := patched(t, JobChanged(was, is, false), was); err != nil || fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", *is) {
			t.Errorf("%s made zero arrives as %+v: %v", name, got, err)
		}
	}
	if c := JobChanged(was, fixture.Changed(was, func(*replica.Job) {}), true); !reflect.DeepEqual(c.Job.Parts, was.Parts) {
		t.Error("the parts are left out, though the nodes heard of the commit in short")
	}
}

// A claim in a job of many ranks costs what a claim is, not what the job is.
func TestAClaimIsToldAlone(t *testing.T) {
	was := fixture.LargeJob(10_000)
	for what, c := range map[string]struct {
		claims int
		most   int // bytes
	}{"one": {1, 1 << 10}, "a hundred": {100, 16 << 10}, "all": {10_000, 4 << 20}} {
		is := fixture.Changed(was, func(j *replica.Job) {
			j.Ranks, j.Naming, j.GroupGeometry = slices.Clone(j.Ranks), slices.Clone(j.Naming), slices.Clone(j.GroupGeometry)
			for r := range c.claims {
				j.Ranks[r].Incarnation, j.Naming[r], j.GroupGeometry[r/8] = 1000+replica.Incarnation(r), 7, replica.Digest{9}
			}
		})
		diff := JobChanged(was, is, false)
		if _, size := sent(t, KindChange, Change{Jobs: []JobChange{diff}}); size > c.most {
			t.Errorf("%s: %d bytes, at most %d", what, size, c.most)
		}
		before := fmt.Sprint(was.Ranks[0])
		if got, err := patched(t, diff, was); err != nil || !reflect.DeepEqual(got, is) {
			t.Errorf("%s: it arrives otherwise: %v", what, err)
		}
		if fmt.Sprint(was.Ranks[0]) != before {
			t.Errorf("%s: the former job was written to", what)
		}
	}
}

// A change that does not follow is refused whole, whatever it says.
func TestAChangeThatDoesNotFollow(t *testing.T) {
	was := fixture.Job()
	is := fixture.Changed(was, func(j *replica.Job) { j.Ranks = []replica.Claimed{{Incarnation: 9, Node: "n3"}, j.Ranks[1]} })
	good := JobChanged(was, is, false)
	jobs := map[replica.JobID]*replica.Job{was.ID: was}
	for what, change := range map[string]func(*JobChange){
		"of another entry":           func(c *JobChange) { c.Was++ },
		"of a job that is not known": func(c *JobChange) { j := *c.Job; j.ID = replica.JobID{9}; c.Job = &j },
		"without a job":              func(c *JobChange) { c.Job = nil },
		"new, and as it was":         func(c *JobChange) { c.Was = 0 },
		"a rank that there is not":   func(c *JobChange) { c.Ranks = map[replica.Rank]replica.Claimed{2: {}} },
		"a group that there is not":  func(c *JobChange) { c.Geometry = map[replica.GroupID]replica.Digest{1 << 31: {}} },
		"named by nobody":            func(c *JobChange) { c.Naming = map[replica.Rank]replica.GroupID{0: 1} },
	} {
		c := good
		change(&c)
		if got, err := c.after(jobs); err == nil {
			t.Errorf("%s: makes %+v", what, got)
		}
	}
	if _, err := good.after(jobs); err != nil {
		t.Error(err)
	}
}

// FuzzChange: a change from a peer that does not follow is an error, never a panic, and one that does leaves the job that it follows alone.
func FuzzChange(f *testing.F) {
	was := fixture.Job()
	for _, is := range []*replica.Job{fixture.Closed(was), fixture.Changed(was, func(j *replica.Job) { j.Ranks = []replica.Claimed{{Incarnation: 9, Node: "n3"}, j.Ranks[1]} })} {
		b, err := wire.Marshal(Change{After: 1, Index: 2, Jobs: []JobChange{JobChanged(was, is, false)}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	want := fmt.Sprintf("%+v", *was)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeAs[Change](b)
		if err != nil {
			return
		}
		for _, jc := range c.Jobs {
			is, err := jc.after(map[replica.JobID]*replica.Job{was.ID: was})
			if (is == nil) != (err != nil) {
				t.Fatalf("%+v beside %v", is, err)
			}
		}
		known := ToldBy(View{Index: 10, Jobs: []*replica.Job{was}})
		if v, err := known.After(c); err == nil && (c.After > 10 || v.Index != c.Index) {
			t.Fatalf("a change from entry %d to %d leads from entry 10 to %d", c.After, c.Index, v.Index)
		}
		if len(known.Jobs) != 1 || known.Jobs[was.ID] != was {
			t.Fatalf("the state that it changes is now %+v", known)
		}
		if got := fmt.Sprintf("%+v", *was); got != want {
			t.Fatalf("the former job is now %s", got)
		}
	})
}
