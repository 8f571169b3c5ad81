package recovery

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// Nothing but the loss of the leader moved leadership. A node that the leader alone could not reach held commits up (D70).
func TestHearsMore(t *testing.T) {
	names := func(s string) (out []replica.NodeName) {
		for _, n := range strings.Fields(s) {
			out = append(out, replica.NodeName(n))
		}
		return out
	}
	for _, c := range []struct {
		strays, unheard string
		want            bool
	}{
		{"n2", "", true},
		{"n2 n3", "n3", true}, // n3 is down
		{"n2", "n2", false},   // n2 is down
		{"n2", "n4", false},   // it would lose n4 instead
		{"n2 n3", "n3 n4", false},
		{"", "", false},
		{"", "n2", false},
	} {
		if got := HearsMore(names(c.strays), names(c.unheard)); got != c.want {
			t.Errorf("strays %q, unheard %q: %v", c.strays, c.unheard, got)
		}
	}
}

// Whoever is moved to is not moved from for the same nodes: any two sets order two voters one way at most.
func TestHearsMoreIsOneWay(t *testing.T) {
	all := []replica.NodeName{"n1", "n2", "n3", "n4"}
	set := func(bits int) (out []replica.NodeName) {
		for i, n := range all {
			if bits>>i&1 == 1 {
				out = append(out, n)
			}
		}
		return out
	}
	for a := range 16 {
		for b := range 16 {
			if HearsMore(set(a), set(b)) && HearsMore(set(b), set(a)) {
				t.Errorf("between %v and %v leadership goes to and fro", set(a), set(b))
			}
		}
	}
}
