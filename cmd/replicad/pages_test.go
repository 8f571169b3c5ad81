package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/replica"
)

// What pages promise of defaults, beside the defaults: each text was once another than the product.
func TestPagesSayTheDefaults(t *testing.T) {
	t.Parallel()
	counts := []string{"no", "one", "two", "three", "four"}
	together := replica.Layout{World: 2, Groups: make([]replica.GroupID, 2)}
	for _, page := range []struct{ file, says string }{
		{"docs/faq.md", fmt.Sprintf("Replicas have %s slots by default", counts[together.DefaultSlots(0)])},
		{"docs/faq.md", fmt.Sprintf("groups that the ranks name (`--groups auto`) %s and a mirror", counts[replica.Layout{}.DefaultSlots(0)])},
		{"docs/loops.md", fmt.Sprintf("within %.0f minutes (`timing.abandoned`)", config.Default().Timing.Abandoned.Minutes())},
	} {
		b, err := os.ReadFile(filepath.Join("..", "..", page.file))
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(strings.Fields(string(b)), " "); !strings.Contains(text, page.says) {
			t.Errorf("%s does not say %q", page.file, page.says)
		}
	}
}
