package checkpoint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/replicad/replicad/replica"
)

// Why a directory was passed over decides what may be done without it, and whose parts lie there who may use them.
func TestSkipKinds(t *testing.T) {
	dir, g := t.TempDir(), testRegions(t)
	s := open(t, dir)
	for step := range replica.Step(5) {
		if err := writeGeneration(t.Context(), s, g, replica.Generation{Epoch: 1, Step: step}); err != nil {
			t.Fatal(err)
		}
	}
	at := func(gen, file string) string { return filepath.Join(dir, jobName, job.String(), gen, file) }
	for _, name := range []string{at("1-1", markerName), at("1-2", "private-0.safetensors"), at("1-3", markerName)} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{at("1-3", markerName): markerName, at("stray", ""): "1-0"} { // the first one leads to itself: the disk refuses
		if err := os.Symlink(to, filepath.Clean(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(at("1-4", markerName), 9); err != nil {
		t.Fatal(err)
	}
	found, skipped := find(t, s, job)
	if len(found) != 1 || found[0].Cluster != (replica.ClusterID{1}) {
		t.Errorf("found %+v", found)
	}
	want := map[string]SkipKind{"1-1": Unfinished, "1-2": Damaged, "1-3": Unreadable, "1-4": Damaged, "stray": Stray}
	for _, sk := range skipped {
		if kind, ok := want[filepath.Base(sk.Path)]; !ok || kind != sk.Why {
			t.Errorf("%s (%s) is of kind %v, want %v", sk.Path, sk.Reason, sk.Why, kind)
		}
		delete(want, filepath.Base(sk.Path))
	}
	if len(want) != 0 {
		t.Errorf("not passed over: %v", want)
	}
	if got := SkipKindOf(fmt.Errorf("verify: %w", context.Canceled)); got != Unreadable {
		t.Errorf("a search that was broken off is of kind %v", got)
	}
}
