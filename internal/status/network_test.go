package status

import (
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
)

// What a node holds back is said with the reason, and nothing where it holds nothing back.
func TestNetworkSaysWhatIsHeldBack(t *testing.T) {
	show := func(n control.NetworkStatus) string {
		var b strings.Builder
		if err := PrintNetwork(&b, control.Status{Network: n}); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if got := show(control.NetworkStatus{}); strings.Contains(got, "held back") {
		t.Error(got)
	}
	got := show(control.NetworkStatus{HeldTo: 32 << 20, HeldWhy: "steps take 6ms here, and 5ms without transfers"})
	if !strings.Contains(got, "held back") || !strings.Contains(got, "donor_rate") || !strings.Contains(got, "steps take 6ms") {
		t.Error(got)
	}
}

// Each address of a peer is shown with its state.
func TestNetworkShowsEachAddress(t *testing.T) {
	var b strings.Builder
	paths := []control.PathStatus{{Peer: "n2", Addr: "10.0.0.2:7400", State: "silent"}, {Peer: "n2", Addr: "10.1.0.2:7400", State: "alive", ProbeUS: 250, Rate: 3 << 20, Sent: 4 << 20}}
	if err := PrintNetwork(&b, control.Status{Network: control.NetworkStatus{Paths: paths}}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for l := range strings.Lines(b.String()) {
		if strings.HasPrefix(l, "n2") {
			got = append(got, strings.Join(strings.Fields(l), " "))
		}
	}
	if want := []string{"n2 10.0.0.2:7400 silent - - 0 B 0 B", "n2 10.1.0.2:7400 alive 250µs 3.0 MiB/s 4.0 MiB 0 B"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
