package unixsock

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/otheruser"
	"github.com/replicad/replicad/internal/owner"
)

func TestWhoIsBelieved(t *testing.T) {
	me, other := uint32(os.Geteuid()), uint32(61002)
	for _, tc := range []struct {
		named   string
		uid     uint32
		daemons []uint32
		want    bool
	}{
		{"", 0, nil, true},
		{"", me, nil, true},
		{"", other, nil, false},
		{"", other, []uint32{other}, true},
		{"", other, []uint32{other + 1}, false},
		{strconv.Itoa(int(other)), other, nil, true},
		{strconv.Itoa(int(other) + 1), other, nil, false},
		{"", owner.OverflowUID(), []uint32{owner.OverflowUID()}, false}, // which of those without a number it is nobody knows
		{strconv.Itoa(int(owner.OverflowUID())), owner.OverflowUID(), nil, true},
		{"all", other, nil, false},
	} {
		t.Setenv(DaemonUID, tc.named)
		if got := believed(tc.uid, tc.daemons); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
	if text := (&StrangerError{"/s", other}).Error(); !strings.Contains(text, "user 61002") || !strings.Contains(text, "daemon_user") {
		t.Error(text)
	}
	if text := (&StrangerError{"/s", owner.OverflowUID()}).Error(); !strings.Contains(text, "user namespace") || !strings.Contains(text, DaemonUID+"=") {
		t.Error(text)
	}
}

func TestDial(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := Dial(t.Context(), "unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	const name = "@replicad-unixsock-stranger"
	otheruser.Listen(t, name, 1002)
	_, err = Dial(t.Context(), "unixpacket", name)
	if s, ok := errors.AsType[*StrangerError](err); !ok || s.UID != 1002 {
		t.Errorf("%v", err)
	}
	c, err = Dial(t.Context(), "unixpacket", name, 1002)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
