package main

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
)

// What a node holds back is said with the reason, and nothing where it holds nothing back.
func TestNetworkSaysWhatIsHeldBack(t *testing.T) {
	show := func(n control.NetworkStatus) string {
		var b strings.Builder
		if err := printNetwork(&b, control.Status{Network: n}); err != nil {
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
