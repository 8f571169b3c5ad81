package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/examples/textlm/model"
	"github.com/replicad/replicad/replica"
)

// Another world goes on with every example of the text at the place where it is its turn, and with the bits of weights, optimizer and statistics: its losses
// are those of a run that never changed, but for the order of sums. Dropout is off: its masks are drawn by rank.
func TestAnotherWorldGoesOn(t *testing.T) {
	o := options{steps: 16, seed: 4, shards: 2, world: 4, batch: 16, tune: func(c *model.Config) { batch := c.Batch; small(c); c.Batch, c.Dropout = batch, 0 }}
	var out bytes.Buffer
	was := trainRanks(t, o, &out, func(*trainer, *memory) {})
	want := lossesOf(t, &out)
	for _, world := range []int{2, 4, 8} {
		o := o
		o.world = world
		var out bytes.Buffer
		trainRanks(t, o, &out, func(tr *trainer, r *memory) {
			r.begins = 8
			at := place{rank: tr.rank, world: world, group: tr.rank % 2}
			tr.begin = func(context.Context) (begun, own bool, err error) {
				s := served(was, 8)
				defer s.close()
				return true, false, fill(s, tr.model.Regions, at, o.shards, false)
			}
		})
		got := lossesOf(t, &out)
		if !slices.Equal(slices.Sorted(maps.Keys(got)), []uint64{9, 10, 11, 12, 13, 14, 15, 16}) {
			t.Fatalf("world %d made steps %v", world, slices.Sorted(maps.Keys(got)))
		}
		for step, loss := range got {
			if d := math.Abs(loss - want[step]); d > 1e-5*want[step] || world == 4 && d != 0 {
				t.Errorf("world %d: step %d has loss %v, a run of world 4 %v", world, step, loss, want[step])
			}
		}
	}
}

// Where another rank has what the group has in common, no more is read than what is the rank's own.
func TestBeginReadsItsOwnAlone(t *testing.T) {
	o := options{steps: 2, seed: 4, shards: 2, world: 4, tune: small}
	was := trainRanks(t, o, new(bytes.Buffer), func(*trainer, *memory) {})
	m, err := newModel(o, 2, o.world, model.Heap)
	if err != nil {
		t.Fatal(err)
	}
	_, shared, private := m.Digests()
	s := served(was, 1)
	if err := fill(s, m.Regions, place{rank: 2}, o.shards, true); err != nil {
		t.Fatal(err)
	}
	if _, is, own := m.Digests(); is != shared || own == private {
		t.Errorf("the group's state %v, its own %v, were %v and %v", is, own, shared, private)
	}
	_ = s.close()
}

// What does not fit is refused before a byte of the model changes.
func TestBeginRefusesAnotherModel(t *testing.T) {
	o := options{steps: 2, seed: 4, shards: 2, world: 4, tune: small}
	was := trainRanks(t, o, new(bytes.Buffer), func(*trainer, *memory) {})
	for want, change := range map[string]func(*options, *source){
		"2 replica groups, and --shards is 1": func(o *options, _ *source) { o.shards = 1 },
		`region "padding" of 1048576 bytes`:   func(o *options, _ *source) { o.stateMB = 1 },
		`region "extra" is there alone`:       func(_ *options, s *source) { s.Index.Tensors = append(s.Index.Tensors, tensor{Name: "extra"}) },
		`region "weights"`: func(o *options, _ *source) {
			o.tune = func(c *model.Config) { small(c); c.Hidden *= 2 }
		},
	} {
		o := o
		s := served(was, 1)
		change(&o, s)
		m, err := newModel(o, 0, o.world, model.Heap)
		if err != nil {
			t.Fatal(err)
		}
		_, before, private := m.Digests()
		err = fill(s, m.Regions, place{}, o.shards, false)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
		if _, is, own := m.Digests(); is != before || own != private {
			t.Errorf("%s: the model has changed", want)
		}
		_ = s.close()
	}
}

// What the program answers is not believed, and what it says went wrong is told.
func TestSourceDoubtsAnswers(t *testing.T) {
	for want, answer := range map[string]string{
		"chunk 3: corrupt":  `{"error":"chunk 3: corrupt","kind":"damage"}` + "\n",
		"sends 9 bytes of":  `{"bytes":9}` + "\n123456789",
		"sends 0 bytes":     `{"bytes":0}` + "\n",
		"sends -1 bytes":    `{"bytes":-1}` + "\n",
		"unexpected EOF":    `{"bytes":8}` + "\n1234",
		"answer \"nonsense": "nonsense\n",
		"EOF":               "",
	} {
		s := &source{in: nowhere{}, out: bufio.NewReader(strings.NewReader(answer)), ended: func() error { return nil }}
		if err := s.read(piece{part: "group", name: "weights", into: make([]byte, 8)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", answer, err, want)
		}
	}
	s := &source{in: nowhere{}, out: bufio.NewReader(strings.NewReader(`{"where":"lm/other/step-00000001.e1"}` + "\n"))}
	if err := s.open(&replica.Origin{Place: "lm/run/step-00000001.e1"}); err == nil || !strings.Contains(err.Error(), "begin a new job") {
		t.Errorf("of another run: %v", err)
	}
}

type nowhere struct{}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (nowhere) Close() error                { return nil }

// lossesOf is the loss of each step, which all ranks report alike.
func lossesOf(t *testing.T, out *bytes.Buffer) map[uint64]float64 {
	t.Helper()
	all := map[uint64]float64{}
	for line := range bytes.Lines(out.Bytes()) {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if e.Event == "step" {
			if was, ok := all[e.Step]; ok && was != float64(*e.Loss) {
				t.Errorf("step %d has losses %v and %v", e.Step, was, *e.Loss)
			}
			all[e.Step] = float64(*e.Loss)
		}
	}
	return all
}

// served is what `replicad ckpt pipe` would serve of a step that ranks have in memory, in stretches of 1,000 bytes.
func served(ranks []*memory, step uint64) *source {
	requests, in := io.Pipe()
	out, answers := io.Pipe()
	ended := make(chan struct{})
	s := &source{in: in, out: bufio.NewReader(out), ended: func() error { <-ended; return nil }}
	s.Commit.Layout = replica.Layout{World: uint32(len(ranks))}
	for r := range ranks {
		s.Commit.Layout.Groups = append(s.Commit.Layout.Groups, replica.GroupID(r%2))
	}
	classes := map[model.Class]string{model.Window: "window", model.Volatile: "volatile", model.Frozen: "frozen"}
	for i, g := range ranks[0].model.Regions {
		t := tensor{Name: g.Name, Class: classes[g.Class]}
		if g.Kind == model.Private {
			t.Class = "private"
		}
		for r, rank := range ranks {
			if g.Kind == model.Private || r < 2 {
				t.Pieces = append(t.Pieces, piece{Index: r, Bytes: len(g.Data), Shape: rank.model.Regions[i].Shape})
			}
		}
		s.Index.Tensors = append(s.Index.Tensors, t)
	}
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(requests)
		for lines.Scan() {
			var q struct {
				Part, Name   string
				Index, Bytes int
			}
			b, err := []byte(nil), json.Unmarshal(lines.Bytes(), &q)
			if err == nil {
				if b = ranks[q.Index].at(step, q.Name); len(b) != q.Bytes {
					err = errors.New("another size")
				}
			}
			if err != nil {
				fmt.Fprintf(answers, `{"error":%q}`+"\n", err)
				continue
			}
			for len(b) > 0 {
				n := min(len(b), 1000)
				fmt.Fprintf(answers, `{"bytes":%d}`+"\n%s", n, b[:n])
				b = b[n:]
			}
		}
	}()
	return s
}

// at is a region at a step; what is frozen was saved once.
func (r *memory) at(step uint64, name string) []byte {
	if b, ok := r.saved[step][name]; ok {
		return b
	}
	return r.saved[r.begins][name]
}
