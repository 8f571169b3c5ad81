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

// The last act has other ranks, the same shards and the same batch, and steps behind those of the first job.
func TestTheLastActHasAnotherWorld(t *testing.T) {
	textlm := filepath.Join(t.TempDir(), "textlm")
	if err := os.WriteFile(textlm, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		opt          Options
		world, steps int
		groups       []int
		flags        string
	}{
		{Options{}, 2, 1600, []int{0, 1}, "--batch 64"},
		{Options{Steps: 40}, 2, 60, []int{0, 1}, "--batch 64"},
		{Options{Shards: 3, World: 9, Steps: 400}, 3, 440, []int{0, 1, 2}, "--shards 3 --batch 96"},
		{Options{Shards: 2, World: 2}, 4, 1600, []int{0, 1, 0, 1}, "--shards 2 --batch 32"},
	} {
		tc.opt.Trainer = textlm
		o, err := tc.opt.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		is := o.another()
		if command := strings.Join(is.trainer(), " "); is.World != tc.world || is.Steps != tc.steps || !slices.Equal(is.Groups, tc.groups) || !strings.HasSuffix(command, tc.flags) {
			t.Errorf("%+v: %d ranks in %v, %d steps, %s", tc.opt, is.World, is.Groups, is.Steps, command)
		}
		if o.batch != 0 || o.Steps == is.Steps {
			t.Errorf("the first job has changed: %+v", o)
		}
	}
}

// What the ranks of the last act began with is the end of the first job, to the bit, and the losses go on; else it is a difference.
func TestTheLastActIsJudged(t *testing.T) {
	got := []cluster.Digests{{"w0", "s0", "p0"}, {"w1", "s1", "p1"}, {"w0", "s0", "p2"}, {"w1", "s1", "p3"}}
	groups := []int{0, 1, 0, 1}
	began := func() map[int]cluster.RankEvent {
		return map[int]cluster.RankEvent{0: {Step: 40, Digest: "w0", State: "s0", Private: "p0"}, 1: {Step: 40, Digest: "w1", State: "s1", Private: "p1"}}
	}
	for want, change := range map[string]func(a *again, begun map[int]cluster.RankEvent){
		"":                        func(*again, map[int]cluster.RankEvent) {},
		"rank 1 has not said":     func(_ *again, b map[int]cluster.RankEvent) { delete(b, 1) },
		"rank 0 began":            func(_ *again, b map[int]cluster.RankEvent) { b[0] = b[1] },
		"rank 1 began with step":  func(_ *again, b map[int]cluster.RankEvent) { e := b[1]; e.Private = "p3"; b[1] = e },
		"was 2.000 and is 2.300":  func(a *again, _ map[int]cluster.RankEvent) { a.Losses[1] = 2.3 },
		"of some step there is n": func(a *again, _ map[int]cluster.RankEvent) { a.Losses[1] = 0 },
	} {
		a, begun := &again{Job: againName, From: "s3://demo/ck/demo", World: [2]int{4, 2}, Step: 40, Steps: 20, Losses: [2]float64{2, 2.1}}, began()
		change(a, begun)
		a.compare(begun, got, groups)
		a.judge()
		d := &driver{journal: cluster.NewJournal()}
		d.opt.Groups = groups
		r := d.result(nil, cluster.NewJournal(), got, got, time.Now(), 0)
		r.judge(a)
		if good := r.Verdict == bitEqual; good != (want == "") || !strings.Contains(r.verdict(), want) || good != strings.Contains(r.verdict(), "job demo-2 of 2 ranks began with step 40 of s3://demo/ck/demo") {
			t.Errorf("want %q: %s", want, r.verdict())
		}
	}
	if m := mean(map[uint64]float64{1: 1, 2: 2, 3: 6}, 1, 3); m != 3 {
		t.Errorf("a mean of %v", m)
	}
	if m := mean(map[uint64]float64{1: 1, 3: 6}, 1, 3); m != 0 {
		t.Errorf("a mean of %v, and a step has none", m)
	}
}
