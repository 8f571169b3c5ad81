package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/examples/textlm/model"
	"github.com/replicad/replicad/libreplicad"
	"github.com/replicad/replicad/replica"
)

func TestBaselineReplicasAgreeAndRepeat(t *testing.T) {
	o := options{steps: 12, seed: 5, shards: 2, world: 4, stateMB: 1, tune: small}
	first, again := digests(t, o), digests(t, o)
	if len(first) != 4 || !slices.Equal(first, again) {
		t.Fatalf("two runs of one seed end in\n%v and\n%v", first, again)
	}
	if first[0].Digest != first[2].Digest || first[1].Digest != first[3].Digest {
		t.Fatalf("replicas differ: %v", first)
	}
	if first[0].Digest == first[1].Digest {
		t.Fatal("the two shards have one digest: it can't cover the weights")
	}
	o.seed = 6
	if slices.Equal(first, digests(t, o)) {
		t.Fatal("another seed gives the same digests")
	}
}

// small is a model that the race detector is done with soon.
func small(c *model.Config) { c.Context, c.Embed, c.Hidden, c.Batch = 6, 4, 8, 4 }

// last is what a rank's done event says.
type last struct{ Digest, State, Private string }

func digests(t *testing.T, o options) []last {
	t.Helper()
	var out bytes.Buffer
	if err := baseline(t.Context(), o, &out); err != nil {
		t.Fatal(err)
	}
	return doneEvents(t, &out, o.world)
}

func doneEvents(t *testing.T, out *bytes.Buffer, world int) []last {
	t.Helper()
	all := make([]last, world)
	for line := range bytes.Lines(out.Bytes()) {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if e.Event == "done" {
			all[e.Rank] = last{e.Digest, e.State, e.Private}
		}
	}
	return all
}

// A job whose ranks are fenced in mid-run and load an earlier step must end in the bits of an undisturbed one: then the
// registered regions are the whole state, and what a region's class promises about when it changes is true.
func TestResumeFromASavedStepIsBitEqual(t *testing.T) {
	o := options{steps: 14, seed: 9, shards: 2, world: 4, tune: small}
	want := digests(t, o)
	for _, fence := range []uint64{1, 2, 7, 14} {
		t.Run(fmt.Sprint("fenced at ", fence), func(t *testing.T) {
			var out bytes.Buffer
			trainAll(t, o, &out, fence)
			if got := doneEvents(t, &out, o.world); !slices.Equal(got, want) {
				t.Fatalf("resumed run ends in\n%v, undisturbed one in\n%v", got, want)
			}
		})
	}
}

// A state that leaves one region out must not pass the test above.
func TestResumeNoticesAForgottenRegion(t *testing.T) {
	o := options{steps: 14, seed: 9, shards: 2, world: 4, tune: small}
	want := digests(t, o)
	for _, forgotten := range []string{"weights", "adam.m", "schedule.step", "running", "rng", "sampler"} {
		var out bytes.Buffer
		trainAll(t, o, &out, 7, forgotten)
		if got := doneEvents(t, &out, o.world); slices.Equal(got, want) {
			t.Errorf("region %q was not restored and nobody noticed", forgotten)
		}
	}
}

// trainAll runs all ranks over sessions in memory. At step `fence` the optimizer window stays shut for all and the job goes
// on from two steps before (or the start).
func trainAll(t *testing.T, o options, out *bytes.Buffer, fence uint64, forgotten ...string) {
	t.Helper()
	trainRanks(t, o, out, func(_ *trainer, r *memory) { r.fenceAt, r.forgotten = fence, forgotten })
}

// trainRanks runs all ranks over sessions in memory, which it returns; each sets a rank up.
func trainRanks(t *testing.T, o options, out *bytes.Buffer, each func(*trainer, *memory)) []*memory {
	t.Helper()
	kv := newKV(t.Context())
	ranks := make([]*memory, o.world)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for rank := range o.world {
		m, err := newModel(o, rank, o.world, model.Heap)
		if err != nil {
			t.Fatal(err)
		}
		r := &memory{solo: solo{kv: kv}, model: m, saved: map[uint64]map[string][]byte{}}
		tr := &trainer{Rank: r, model: m, rank: rank, world: o.world, host: "127.0.0.1", opt: o, out: newEvents(out, &mu, rank)}
		each(tr, r)
		ranks[rank] = r
		wg.Go(func() {
			if err := tr.train(t.Context()); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	wg.Wait()
	return ranks
}

// memory is a Rank that keeps every step, copied as the regions' classes allow: private at enter, volatile at exit, window
// regions after the next step's forward.
type memory struct {
	solo
	model       *model.Model
	saved       map[uint64]map[string][]byte
	fenceAt     uint64
	epoch, step uint64
	begins      uint64 // the step of the initial state
	windowCopy  uint64 // step whose window regions are still to be copied
	forgotten   []string
}

func (r *memory) Join(context.Context) (libreplicad.Order, error) {
	r.epoch++
	switch r.epoch {
	case 1:
		return libreplicad.Order{Action: libreplicad.Init, Epoch: 1, Step: replica.Step(r.begins)}, nil
	case 2:
		r.step = r.begins
		return libreplicad.Order{Action: libreplicad.Load, Epoch: 2, Step: replica.Step(r.step)}, nil
	}
	r.save(r.windowCopy, func(g model.Region) bool { return g.Kind == model.Replicated && g.Class == model.Window })
	r.step = max(r.fenceAt, 3) - 3
	return libreplicad.Order{Action: libreplicad.Load, Epoch: replica.Epoch(r.epoch), Step: replica.Step(r.step)}, nil
}

func (r *memory) SealInitial(context.Context) error {
	r.save(r.begins, func(model.Region) bool { return true })
	return nil
}

func (r *memory) Load() error {
	for _, g := range r.model.Regions {
		if b, ok := r.saved[r.step][g.Name]; ok && !(r.epoch > 2 && slices.Contains(r.forgotten, g.Name)) {
			copy(g.Data, b)
		}
	}
	return nil
}

func (r *memory) StepEnter(s replica.Step, _ time.Duration) error {
	step := uint64(s)
	r.save(step-1, func(g model.Region) bool { return g.Kind == model.Replicated && g.Class == model.Window })
	r.save(step, func(g model.Region) bool { return g.Kind == model.Private })
	if r.epoch == 2 && step == r.fenceAt {
		return libreplicad.ErrFenced
	}
	return nil
}

func (r *memory) StepExit(s replica.Step, f replica.PartFlags) error {
	step := uint64(s)
	r.save(step, func(g model.Region) bool { return g.Class == model.Volatile && g.Kind == model.Replicated })
	r.windowCopy = step
	return r.solo.StepExit(s, f)
}

func (r *memory) KVSet(ctx context.Context, key string, v []byte) error {
	return r.solo.KVSet(ctx, fmt.Sprint(r.epoch, key), v)
}

func (r *memory) KVGet(ctx context.Context, key string) ([]byte, error) {
	return r.solo.KVGet(ctx, fmt.Sprint(r.epoch, key))
}

func (r *memory) save(step uint64, want func(model.Region) bool) {
	if r.saved[step] == nil {
		r.saved[step] = map[string][]byte{}
	}
	for _, g := range r.model.Regions {
		if want(g) {
			r.saved[step][g.Name] = bytes.Clone(g.Data)
		}
	}
}

// A table that counts as window state is no other training: chaos compares with runs of either kind.
func TestPositionsAsWindowStateChangeNothing(t *testing.T) {
	o := options{steps: 5, seed: 3, shards: 2, world: 4, tune: small, positions: "frozen"}
	want := digests(t, o)
	o.positions = "window"
	if got := digests(t, o); !slices.Equal(got, want) {
		t.Errorf("%v, with a frozen table %v", got, want)
	}
	m, err := newModel(o, 0, 4, model.Heap)
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(m.Regions, func(r model.Region) bool { return r.Class == model.Frozen }) {
		t.Error("a region is frozen")
	}
	var out bytes.Buffer
	if code := run(t.Context(), []string{"--positions", "both"}, &out, &out); code != 2 || !bytes.Contains(out.Bytes(), []byte(`"both"`)) {
		t.Errorf("code %d: %s", code, out.String())
	}
}
