package control_test

import (
	"bytes"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
)

// What tests make by hand is what a link writes.
func TestSealed(t *testing.T) {
	want := fixture.Encode(t, control.KindWelcome, control.Welcome{OK: true, Leader: "n1"})
	if got := fixture.Sealed(control.KindWelcome, want[12:len(want)-8]); !bytes.Equal(got, want) {
		t.Errorf("%x became %x", want, got)
	}
}
