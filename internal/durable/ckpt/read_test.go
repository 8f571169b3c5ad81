package ckpt

import (
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/formats/convert"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/replica"
)

// TestCkptReadsBesideADeletion deletes the newest generation, which is the best too, before each call of each command that reads one. The command has read
// it whole by then, or keeps it, or takes the one before it.
func TestCkptReadsBesideADeletion(t *testing.T) {
	made := memory.New()
	by := catalog.New(made, catalog.Options{Who: "daemon"})
	for _, step := range []replica.Step{10, 20} {
		catalogtest.WriteInto(t, by, durabletest.Make(replica.Generation{Epoch: 1, Step: step}, 2), 0)
	}
	runs, err := by.Runs(t.Context(), durabletest.JobName)
	if err != nil || len(runs) != 1 {
		t.Fatal(runs, err)
	}
	step := func(to *replica.Step) func(catalog.Found) error {
		return func(f catalog.Found) error { *to = f.Generation.Step; return nil }
	}
	for name, read := range map[string]func(t *testing.T, w *place.Place) (replica.Step, error){
		"show": func(t *testing.T, w *place.Place) (replica.Step, error) {
			s, err := Look(t.Context(), w)
			return s.Commit.Generation.Step, err
		},
		"verify": func(t *testing.T, w *place.Place) (at replica.Step, err error) {
			err = w.Again(func() error {
				out, err := verified(t.Context(), w, Reading{Record: true})
				if err == nil {
					at = out[0].Step
				}
				for _, v := range out {
					if !v.Good {
						t.Errorf("%+v", v)
					}
				}
				return err
			})
			return at, err
		},
		"export": func(t *testing.T, w *place.Place) (replica.Step, error) {
			f, _, err := Export(t.Context(), w, convert.Want{Dir: t.TempDir() + "/out", Format: convert.Safetensors})
			return f.Generation.Step, err
		},
		"cp": func(t *testing.T, w *place.Place) (at replica.Step, err error) {
			to := catalog.New(memory.New(), catalog.Options{Who: "me"})
			return at, w.Read(t.Context(), func(f catalog.Found) error {
				_, err := copy1(t.Context(), w, f, to, Copying{}, NewMeter(w.Notes, "copy"))
				return errors.Join(err, step(&at)(f))
			})
		},
		"pipe, diff": func(t *testing.T, w *place.Place) (at replica.Step, err error) {
			return at, w.Leased(t.Context(), "test", nil, func(f catalog.Found) error {
				sh, err := w.Cat.OpenShard(t.Context(), f, replica.OfRank(0))
				if err == nil {
					sh.Close()
				}
				return errors.Join(err, step(&at)(f))
			})
		},
		"--from": func(t *testing.T, w *place.Place) (replica.Step, error) {
			var o replica.Origin
			err := w.Read(t.Context(), func(f catalog.Found) error {
				o = replica.Origin{Asked: "there"}
				l, err := begins(t.Context(), w, f, &o)
				l.End()
				return err
			})
			return o.Generation.Step, err
		},
	} {
		for _, at := range []*place.Pick{nil, {Best: "loss"}} {
			found := make(map[replica.Step]bool)
			for n := int64(0); ; n++ {
				m := made.Clone()
				cat := catalog.New(m, catalog.Options{Who: "daemon"})
				var calls atomic.Int64
				m.Before = func(memory.Call) error {
					if calls.Add(1)-1 == n {
						if err := cat.Delete(t.Context(), runs[0], replica.Generation{Epoch: 1, Step: 20}, "retention"); err != nil && !errors.Is(err, catalog.ErrPinned) {
							t.Error(err)
						}
					}
					return nil
				}
				w := &place.Place{Cat: catalog.New(m, catalog.Options{Who: "me"}), At: at, Close: func() {}, Notes: io.Discard}
				got, err := read(t, w)
				if err != nil || got != 10 && got != 20 {
					t.Errorf("%s %v, deleted before call %d: step %d, %v", name, at, n, got, err)
				}
				found[got] = true
				if calls.Load() <= n {
					break
				}
			}
			if !found[10] || !found[20] {
				t.Errorf("%s %v: found %v", name, at, found)
			}
		}
	}
}
