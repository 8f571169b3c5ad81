package libreplicad

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// The daemon frees slots by lock's rule and ranks fill them by this one: a difference would leave a candidate without a slot.
func TestShouldCaptureIsLocks(t *testing.T) {
	for s := range replica.Step(14) {
		for committed := range replica.Step(12) {
			for candidate := range replica.Step(14) {
				for cadence := range replica.Step(5) {
					for slots := 2; slots <= 4; slots++ {
						want := lock.ShouldCapture(s, committed, candidate, cadence, slots)
						if got := shouldCapture(s, committed, candidate, cadence, slots); got != want {
							t.Fatalf("step %d, committed %d, candidate %d, cadence %d, %d slots: %v, lock says %v", s, committed, candidate, cadence, slots, got, want)
						}
					}
				}
			}
		}
	}
}

// The golden list names what the header declares; make abi-check compares the built library with the same list.
func TestHeaderDeclaresTheABI(t *testing.T) {
	header, err := sources.ReadFile("include/replicad.h")
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile("tests/abi.txt")
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	for _, m := range regexp.MustCompile(`(?m)^RP_API .*?\b(rp_[a-z_]+)\(`).FindAllSubmatch(header, -1) {
		declared = append(declared, string(m[1]))
	}
	slices.Sort(declared)
	if want := strings.Fields(string(golden)); !slices.Equal(declared, want) {
		t.Errorf("header declares\n%v\nthe golden list has\n%v", declared, want)
	}
}
