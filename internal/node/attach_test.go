package node

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// Two claims are under way, and the answer to the second, a refusal, comes first: it says how the first one's regions differ all the same.
func TestRefusalThatOvertakesAnAnswer(t *testing.T) {
	d := newDesk(t)
	lj := d.put(newJob())
	first := testGeometry(t, false)
	second, err := replica.NewGeometry([]replica.Region{{Name: "weight", DType: replica.F32, Shape: []uint64{50, 50}, Bytes: 10000}})
	if err != nil {
		t.Fatal(err)
	}
	waiting := &attaching{geometry: first, claim: replica.Claim{Job: testJob, Rank: 0}}
	d.attaching[1] = waiting
	refused := replica.Claim{Job: testJob, Rank: 1}
	if text := d.otherThanPeers(lj, refused, second); text != "" {
		t.Errorf("of a process that has not asked for its rank: %q", text)
	}
	waiting.request = 5
	if text := d.otherThanPeers(lj, refused, second); !strings.Contains(text, "beside rank 0: ") {
		t.Errorf("%q, want the difference to rank 0", text)
	}
}
