package demo

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

// The last act has other ranks, and the same shards, batch and steps.
func TestTheLastActHasAnotherWorld(t *testing.T) {
	textlm := filepath.Join(t.TempDir(), "textlm")
	if err := os.WriteFile(textlm, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		opt    Options
		world  int
		groups []int
		flags  string
	}{
		{Options{}, 2, []int{0, 1}, "--batch 64"},
		{Options{Shards: 3, World: 9}, 3, []int{0, 1, 2}, "--shards 3 --batch 96"},
		{Options{Shards: 2, World: 2}, 4, []int{0, 1, 0, 1}, "--shards 2 --batch 32"},
	} {
		tc.opt.Trainer = textlm
		o, err := tc.opt.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		is := o.another()
		if command := strings.Join(is.trainer(), " "); is.World != tc.world || is.Steps != o.Steps || !slices.Equal(is.Groups, tc.groups) || !strings.HasSuffix(command, tc.flags) {
			t.Errorf("%+v: %d ranks in %v, %d steps, %s", tc.opt, is.World, is.Groups, is.Steps, command)
		}
		if o.batch != 0 || o.World == is.World {
			t.Errorf("the first job has changed: %+v", o)
		}
	}
}

// What the ranks of the last act began with is what the undisturbed run had there, to the bit, and the losses go on as its do; else it is a difference.
func TestTheLastActIsJudged(t *testing.T) {
	want := map[int]cluster.Digests{0: {"w0", "s0", "p0"}, 1: {"w1", "s1", "p1"}, 2: {"w0", "s0", "p2"}, 3: {"w1", "s1", "p3"}}
	groups, same := []int{0, 1, 0, 1}, make([]cluster.Digests, 4)
	for says, change := range map[string]func(begun map[int]cluster.Digests, losses map[uint64]float64){
		"":                         func(map[int]cluster.Digests, map[uint64]float64) {},
		"rank 1 has not said":      func(b map[int]cluster.Digests, _ map[uint64]float64) { delete(b, 1) },
		"what rank 0 began with":   func(b map[int]cluster.Digests, _ map[uint64]float64) { b[0] = b[1] },
		"what rank 1 began with":   func(b map[int]cluster.Digests, _ map[uint64]float64) { b[1] = cluster.Digests{"w1", "s1", "p3"} },
		"steps 41 to 42 is 2.300,": func(_ map[int]cluster.Digests, l map[uint64]float64) { l[41], l[42] = 2.3, 2.3 },
		"41 to 42 is 0.000":        func(_ map[int]cluster.Digests, l map[uint64]float64) { delete(l, 41) },
	} {
		a := &again{Job: againName, From: "s3://demo/ck/demo@40", World: [2]int{4, 2}, Step: 40, Last: 42}
		begun, losses := map[int]cluster.Digests{0: want[0], 1: want[1]}, map[uint64]float64{41: 2.02, 42: 2.01}
		change(begun, losses)
		a.compare(begun, want, groups)
		a.judge(map[uint64]float64{40: 9, 41: 2, 42: 2}, losses)
		d := &driver{journal: cluster.NewJournal()}
		d.opt.Groups = groups
		r := d.result(nil, cluster.NewJournal(), same, same, time.Now(), 0)
		r.judge(a)
		if good := r.Verdict == bitEqual; good != (says == "") || !strings.Contains(r.verdict(), says) || good != strings.Contains(r.verdict(), "job demo-2 of 2 ranks began with s3://demo/ck/demo@40") {
			t.Errorf("want %q: %s", says, r.verdict())
		}
	}
	if m := mean(map[uint64]float64{1: 1, 2: 2, 3: 6}, 1, 3); m != 3 {
		t.Errorf("a mean of %v", m)
	}
}
