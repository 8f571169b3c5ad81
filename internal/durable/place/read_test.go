package place

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// TestCkptGoesOnWhereNothingIsTaken: a store that takes no record has the next one read all the same, and a target that is damaged is no fault of the source.
func TestReadGoesOnWhereNothingIsTaken(t *testing.T) {
	m := memory.New()
	cat := catalog.New(m, catalog.Options{Who: "daemon"})
	for _, step := range []replica.Step{10, 20} {
		catalogtest.WriteInto(t, cat, durabletest.Make(replica.Generation{Epoch: 1, Step: step}, 2), 0)
	}
	for _, key := range m.Keys() {
		if strings.Contains(key, "step-00000020.e1/group-0") {
			m.Bend(key, func(b []byte) []byte { b[len(b)-20] ^= 1; return b })
		}
	}
	m.Before = func(c memory.Call) error {
		if strings.HasPrefix(c.Verb, "Put") || c.Verb == "Upload" {
			return fmt.Errorf("%w: read alone is allowed", store.ErrRefused)
		}
		return nil
	}
	var said strings.Builder
	w := &Place{Cat: catalog.New(m, catalog.Options{Who: "me"}), Job: durabletest.JobName, Close: func() {}, Notes: &said}
	var steps []replica.Step
	err := w.Read(t.Context(), func(f catalog.Found) error {
		steps = append(steps, f.Generation.Step)
		sh, err := w.Cat.OpenShard(t.Context(), f, replica.OfGroup(0))
		if err != nil {
			return err
		}
		defer sh.Close()
		_, err = catalog.Regions(sh, func(replica.Region) bool { return true })
		return err
	})
	if err != nil || fmt.Sprint(steps) != "[20 10]" || !strings.Contains(said.String(), "not recorded: ") {
		t.Errorf("%v, reads %v, says %q", err, steps, said.String())
	}
	bad := fmt.Errorf("the target: %w", store.ErrCorrupt)
	if err := w.Read(t.Context(), func(catalog.Found) error { return bad }); !errors.Is(err, bad) {
		t.Error(err)
	}
}
