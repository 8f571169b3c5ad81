package checkpoint

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/replicad/replicad/replica"
)

var writeGolden = flag.Bool("write-golden", false, "write the golden generation if it doesn't exist yet; existing files are never changed")

// TestGolden reads generations that earlier programs wrote: v1 has a marker that nothing orders.
func TestGolden(t *testing.T) {
	for _, version := range []uint32{markerUnordered, markerVersion} {
		t.Run(fmt.Sprintf("v%d", version), func(t *testing.T) { readsGolden(t, version) })
	}
}

func readsGolden(t *testing.T, version uint32) {
	g, gen := testRegions(t), replica.Generation{Epoch: 3, Step: 1234}
	golden := filepath.Join("testdata", fmt.Sprintf("v%d", version))
	if _, err := os.Stat(golden); *writeGolden && errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(golden, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := writeGeneration(t.Context(), open(t, golden), g, gen); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir() // Open writes a probe: not into the source tree
	if err := os.CopyFS(dir, os.DirFS(golden)); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	found, skipped := find(t, s, job)
	if len(found) != 1 || len(skipped) != 0 || found[0].Generation != gen {
		t.Fatalf("found %v, skipped %v", found, skipped)
	}
	checkWhole(t, s, g, found[0])
	if m := found[0].Marker; m.Version != version || (m.Written > 0) != (version > markerUnordered) {
		t.Errorf("the marker is of version %d, written at %d", m.Version, m.Written)
	}

	// And this program writes the same bytes.
	fresh := open(t, t.TempDir())
	if err := writeGeneration(t.Context(), fresh, g, gen); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"group-0.safetensors", "private-1.safetensors"} {
		was, err := os.ReadFile(filepath.Join(dir, found[0].Path, name))
		if err != nil {
			t.Fatal(err)
		}
		is, err := os.ReadFile(filepath.Join(fresh.dir, found[0].Path, name))
		if err != nil || !bytes.Equal(was, is) {
			t.Errorf("%s is written differently now: %v", name, err)
		}
	}
}
