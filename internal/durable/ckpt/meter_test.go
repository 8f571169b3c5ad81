package ckpt

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/internal/durable/place"
)

// A command that takes long says how far it is, a line each ten seconds. One that is done sooner says nothing.
func TestSlowCommandsSayHowFarTheyAre(t *testing.T) {
	var out bytes.Buffer
	at := time.Unix(0, 0)
	s := &Meter{what: "export", to: &out, now: func() time.Time { return at }, began: at, last: at}
	for range 25 {
		at = at.Add(time.Second)
		s.Moved(3<<20, 100<<20)
	}
	if want := "export: 30 % of 100.0 MiB, 3.0 MiB/s\nexport: 60 % of 100.0 MiB, 3.0 MiB/s\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// A copy tells what the store takes.
func TestACopyTellsWhatItMoves(t *testing.T) {
	dir := t.TempDir()
	catalogtest.Write(t, dir, 10, 1)
	var out bytes.Buffer
	c := place.Finder{Notes: &out, Keyring: new(place.Keyring)}
	at := time.Unix(0, 0)
	clock := func(s *Meter) *Meter {
		s.began, s.last, s.now = at, at, func() time.Time { at = at.Add(meterEvery); return at }
		return s
	}
	w, err := c.Find(t.Context(), dir, "me")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	found, err := w.One(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	st, err := place.OpenStore(t.Context(), t.TempDir(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := copy1(t.Context(), w, found, catalog.New(st, catalog.Options{Who: "me"}), Copying{}, clock(NewMeter(w.Notes, "copy of step 10"))); err != nil || !strings.Contains(out.String(), "copy of step 10: 100 % of ") {
		t.Errorf("a copy: %q, %v", out.String(), err)
	}
}
