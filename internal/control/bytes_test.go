package control

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/replicad/replicad/internal/fixture"
)

var update = flag.Bool("update", false, "write testdata/messages.golden anew")

// The bytes of the messages are what daemons of one release agree on: moving code changes none of them.
func TestBytesOfMessages(t *testing.T) {
	var lines []string
	for _, s := range samples() {
		b := fixture.Encode(t, s.kind, s.value)
		lines = append(lines, fmt.Sprintf("%3d %6d %016x\n", s.kind, len(b), xxhash.Sum64(b)))
	}
	slices.Sort(lines)
	const file = "testdata/messages.golden"
	got := "kind, bytes and xxhash of a frame with nothing in it zero\n" + strings.Join(lines, "")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("messages are encoded otherwise than %s says; it is to say (-update):\n%s", file, got)
	}
}
