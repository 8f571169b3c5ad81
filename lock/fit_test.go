package lock

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/replicad/replicad/replica"
)

// groupsOf is a layout of groups of so many ranks.
func groupsOf(world, size uint32) replica.Layout {
	l := replica.Layout{World: world, Groups: make([]replica.GroupID, world)}
	for r := range l.Groups {
		l.Groups[r] = replica.GroupID(uint32(r) / size)
	}
	return l
}

func createOf(id byte, l replica.Layout) replica.CreateJob {
	return replica.CreateJob{ID: replica.JobID{id}, Name: fmt.Sprintf("job-%d", id), Layout: l, Limit: MaxView}
}

func isCode(err error, c Code) bool {
	var r *Refused
	return errors.As(err, &r) && r.Code == c
}

// What begins a record that the state has no room for is refused, by the leader before it proposes and by the state machine.
func TestWhatDoesNotFitIsRefused(t *testing.T) {
	labels := func(n int, key, value string) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprintf("%s%d", key, i)] = value
		}
		return m
	}
	register := func(n replica.Node) replica.RegisterNode {
		n.Name, n.Incarnation, n.Session = "n1", 1, 1
		return replica.RegisterNode{Node: n, Limit: MaxView}
	}
	apart := createOf(1, replica.Layout{World: 1 << 20})
	apart.NameGroups = true
	for what, tc := range map[string]struct {
		c    replica.Command
		code Code // 0: it fits
	}{
		"80,000 ranks in groups of 8":   {createOf(1, groupsOf(80_000, 8)), 0},
		"80,000 ranks, each by itself":  {createOf(1, groupsOf(80_000, 1)), 0},
		"a million ranks":               {createOf(1, groupsOf(1_000_000, 8)), Full},
		"a million that name groups":    {apart, Full},
		"a node":                        {register(replica.Node{Addr: "n1:7400", Labels: labels(16, "k", strings.Repeat("v", 63))}), 0},
		"a label of 16 MiB":             {register(replica.Node{Labels: labels(1, "k", strings.Repeat("v", 16<<20))}), Invalid},
		"a label whose key is too long": {register(replica.Node{Labels: labels(1, strings.Repeat("k", 63), "v")}), Invalid},
		"17 labels":                     {register(replica.Node{Labels: labels(17, "k", "v")}), Invalid},
		"an address of a megabyte":      {register(replica.Node{Addr: strings.Repeat("a", 1<<20)}), Invalid},
		"an interface more":             {register(replica.Node{Addrs: []string{"10.0.0.1:7400"}}), 0},
		"nine interfaces more":          {register(replica.Node{Addrs: make([]string, 9)}), Invalid},
		"a further one of a megabyte":   {register(replica.Node{Addrs: []string{strings.Repeat("a", 1<<20)}}), Invalid},
		"anything else":                 {replica.EndJob{Reason: strings.Repeat("x", 1<<20)}, 0},
	} {
		err := Fits(New(replica.ClusterID{1}).View(), tc.c)
		if (err == nil) != (tc.code == 0) || err != nil && !isCode(err, tc.code) {
			t.Errorf("%s: %v, want code %v", what, err, tc.code)
		}
		if _, other := tc.c.(replica.EndJob); other {
			continue
		}
		s := New(replica.ClusterID{1})
		if out := s.Apply(1, tc.c); (out.Err == nil) != (tc.code == 0) || out.Err != nil && !isCode(out.Err, tc.code) {
			t.Errorf("%s: the state machine says %v, want code %v", what, out.Err, tc.code)
		} else if tc.code != 0 && (out.Changed || len(s.View().Jobs)+len(s.View().Nodes) != 0) {
			t.Errorf("%s is refused, and changed the state", what)
		}
	}
}

// A log of a leader that did not ask is applied as it was.
func TestCommandsWithoutALimitAreApplied(t *testing.T) {
	s := New(replica.ClusterID{1})
	c := createOf(1, groupsOf(1_000_000, 8))
	c.Limit = 0
	n := replica.RegisterNode{Node: replica.Node{Name: "n1", Incarnation: 1, Session: 1, Addr: strings.Repeat("a", 1<<10)}}
	for i, c := range []replica.Command{c, n} {
		if out := s.Apply(uint64(i+1), c); out.Err != nil || !out.Changed {
			t.Errorf("%T: %+v", c, out.Err)
		}
	}
	// What is there stays usable, though nothing new fits: a node that was only started anew registers, a job ends.
	next := n
	next.Node.Addr, next.Node.Session, next.Limit = "n1:7400", 2, MaxView
	if err := Fits(s.View(), next); err != nil {
		t.Errorf("a node that is known: %v", err)
	}
	if out := s.Apply(3, next); out.Err != nil {
		t.Errorf("a node that is known: %v", out.Err)
	}
	other := replica.RegisterNode{Node: replica.Node{Name: "n2", Incarnation: 1, Session: 1}, Limit: MaxView}
	if err := Fits(s.View(), other); !isCode(err, Full) || !strings.Contains(err.Error(), "end a job") {
		t.Errorf("a new node: %v", err)
	}
	if err := Fits(s.View(), createOf(2, groupsOf(1, 1))); !isCode(err, Full) || !strings.Contains(err.Error(), "end another job") {
		t.Errorf("a new job: %v", err)
	}
	if out := s.Apply(4, replica.EndJob{Job: c.ID, Reason: "too large"}); out.Err != nil {
		t.Error(out.Err)
	}
	if err := Fits(s.View(), createOf(2, groupsOf(80_000, 8))); err != nil {
		t.Errorf("once the large job has ended: %v", err)
	}
}

func TestNodesAreCounted(t *testing.T) {
	v := New(replica.ClusterID{1}).View()
	for i := range maxNodes {
		name := replica.NodeName(fmt.Sprint("n", i))
		v.Nodes[name] = replica.Node{Name: name}
	}
	if err := Fits(v, replica.RegisterNode{Node: v.Nodes["n1"]}); err != nil {
		t.Errorf("a node that is known: %v", err)
	}
	if err := Fits(v, replica.RegisterNode{Node: replica.Node{Name: "more"}}); !isCode(err, Full) {
		t.Errorf("one more node: %v", err)
	}
}

// Commands that a leader proposed at once are held to the bound one after the other.
func TestJobsProposedAtOnceFitTogether(t *testing.T) {
	s := New(replica.ClusterID{1})
	fit := 0
	for i := range byte(20) {
		c := createOf(i+1, groupsOf(60_000, 8))
		if out := s.Apply(uint64(i)+1, c); out.Err == nil {
			fit++
		} else if !isCode(out.Err, Full) {
			t.Fatal(out.Err)
		}
	}
	if size := Size(s.View()); fit < 2 || fit == 20 || size > MaxView {
		t.Errorf("%d jobs fit, which come to %d bytes; at most %d", fit, size, MaxView)
	}
}

// Every text for people in a command is cut, and never inside a character: a command that has another one fails here.
func TestTextsAreCut(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "replica", "command.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	samples := map[string]replica.Command{}
	for _, c := range []replica.Command{replica.RegisterNode{}, replica.CreateJob{}, replica.Begin{}, replica.Claim{}, replica.ReportFault{}, replica.ApplyPlan{}, replica.Resume{}, replica.Commit{}, replica.CommitRoots{},
		replica.ReportDispute{}, replica.Condemn{}, replica.SetCopies{}, replica.SetHolder{}, replica.Grow{}, replica.SetMirrors{}, replica.BeginDurable{}, replica.EndDurable{}, replica.Quarantine{}, replica.ProveLost{}, replica.EndJob{}, replica.StopJob{}, replica.NewEra{}, replica.Revoke{}} {
		samples[reflect.TypeOf(c).Name()] = c
	}
	checked := map[string]bool{"CreateJob.Name": true, "RegisterNode.Node.Addr": true, "RegisterNode.Node.Addrs": true, "Revoke.Revocation.Name": true} // held against a grammar of their own
	var fill func(v reflect.Value, path string, each func(reflect.Value, string))
	fill = func(v reflect.Value, path string, each func(reflect.Value, string)) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				fill(v.Field(i), path+"."+v.Type().Field(i).Name, each)
			}
		case reflect.Slice:
			if v.Len() == 0 {
				v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			}
			fill(v.Index(0), path, each)
		case reflect.String:
			if v.Type() == reflect.TypeFor[string]() && !checked[path] {
				each(v, path)
			}
		}
	}
	long := "a" + strings.Repeat("é", 1<<16)
	seen := 0
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv == nil || f.Name.Name != "command" {
			continue
		}
		name := f.Recv.List[0].Type.(*ast.Ident).Name
		c, ok := samples[name]
		if !ok {
			t.Errorf("no sample of %s", name)
			continue
		}
		v := reflect.New(reflect.TypeOf(c)).Elem()
		fill(v, name, func(s reflect.Value, _ string) { s.SetString(long) })
		short := reflect.New(v.Type()).Elem()
		short.Set(reflect.ValueOf(Short(v.Interface().(replica.Command))))
		fill(short, name, func(s reflect.Value, path string) {
			seen++
			if text := s.String(); len(text) > MaxReason || len(text) < maxDetail-4 || !utf8.ValidString(text) {
				t.Errorf("%s: %d bytes are left, valid: %v", path, len(text), utf8.ValidString(text))
			}
		})
	}
	if seen < 5 {
		t.Errorf("%d texts seen", seen)
	}
}

// A fault's text was cut inside a character: then no node could read a view, and no voter a snapshot.
func TestAFaultsTextStaysText(t *testing.T) {
	j := &replica.Job{Name: "job", Phase: replica.Open, Epoch: 1, Layout: groupsOf(1, 1), Ranks: []replica.Claimed{{Incarnation: 1, Node: "n1", NodeIncarnation: 1}}}
	f := replica.Fault{Epoch: 1, Kind: replica.Exception, Incarnation: 1, Detail: "a" + strings.Repeat("é", maxDetail)}
	if changed, err := reportFault(j, nil, f); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if d := j.Faults[0].Detail; !utf8.ValidString(d) || len(d) > maxDetail || len(d) < maxDetail-2 {
		t.Errorf("%d bytes are recorded, valid: %v", len(d), utf8.ValidString(d))
	}
}

func TestCheckReason(t *testing.T) {
	for s, good := range map[string]bool{"": true, "enough": true, strings.Repeat("x", MaxReason): true, strings.Repeat("x", MaxReason+1): false, "a\xffb": false} {
		if err := CheckReason(s); (err == nil) != good {
			t.Errorf("a reason of %d bytes: %v", len(s), err)
		}
	}
}
