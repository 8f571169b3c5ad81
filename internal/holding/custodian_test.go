package holding

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal/journaltest"
)

// shelf is a keeper that takes down what it is asked for.
type shelf struct {
	log   []string
	files []*os.File
	err   error
	call  func() // before each
}

func (s *shelf) Put(key string, f *os.File) error {
	s.call()
	s.files = append(s.files, f)
	st, err := f.Stat()
	if err != nil {
		return err
	}
	s.log = append(s.log, fmt.Sprintf("put %s of %d bytes", key, st.Size()))
	return s.err
}

func (s *shelf) Done() <-chan struct{} { return nil }

func (s *shelf) Drop(key string) error {
	s.call()
	s.log = append(s.log, "drop "+key)
	return s.err
}

// parcel is a file of so many bytes.
func parcel(t *testing.T, bytes int64) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err == nil {
		err = f.Truncate(bytes)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// What was asked for is done in that order, though its owner has closed the descriptor meanwhile; of the lists the newest is written, and who
// waits hears of it when all of that is done. What is asked for when it is to end is done, too.
func TestCustodianKeepsTheOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "arenas.json")
	var lines fixture.Lines
	s := &shelf{call: func() {}}
	c := NewCustodian(s, nil, journaltest.New(t, &lines), path)
	a, b := parcel(t, 1), parcel(t, 2)
	c.Put("a", a)
	c.Put("b", b)
	a.Close()
	c.Drop("a")
	c.Write([]Entry{{Key: "older"}})
	var told []string
	c.After(func() {
		list, err := LoadList(path)
		if err != nil {
			t.Error(err)
		}
		told = append(slices.Clone(s.log), fmt.Sprint(len(list.Arenas), " listed: ", list.Arenas[0].Key))
	})
	c.Write([]Entry{{Key: "newer"}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Run(ctx)
	want := []string{"put a of 1 bytes", "put b of 2 bytes", "drop a", "1 listed: newer"}
	if !slices.Equal(told, want) {
		t.Errorf("done when After is told: %q, want %q", told, want)
	}
	for _, f := range s.files {
		if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("a descriptor that was brought stays open: %v", err)
		}
	}
	if lines.String() != "" {
		t.Errorf("it complains:\n%s", lines.String())
	}
}

// Neither the keeper nor the disk may be there: that is logged, and who waits is told all the same.
func TestCustodianGoesOnWithoutAKeeper(t *testing.T) {
	var lines fixture.Lines
	s := &shelf{err: errors.New("the keeper has gone"), call: func() {}}
	c := NewCustodian(s, nil, journaltest.New(t, &lines), filepath.Join(t.TempDir(), "none", "arenas.json"))
	c.Put("a", parcel(t, 1))
	c.Drop("b")
	c.Write([]Entry{})
	told := 0
	c.After(func() { told++ })
	closed := parcel(t, 1)
	closed.Close()
	c.Put("c", closed)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Run(ctx)
	if told != 1 || len(s.log) != 2 {
		t.Errorf("told %d times; the keeper was asked for %q, want a and b", told, s.log)
	}
	for _, text := range []string{`"park a"`, `"b"`, `"park c"`, "save the list of arenas"} {
		if lines.Count(text) != 1 {
			t.Errorf("%d lines say %s, want 1:\n%s", lines.Count(text), text, lines.String())
		}
	}
}

// Whoever asks never waits for the keeper, and what is asked for while it works is done next.
func TestCustodianIsAskedWhileItWorks(t *testing.T) {
	called, let := make(chan struct{}), make(chan struct{})
	s := &shelf{call: func() { called <- struct{}{}; <-let }}
	var lines fixture.Lines
	c := NewCustodian(s, nil, journaltest.New(t, &lines), filepath.Join(t.TempDir(), "arenas.json"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	c.Put("a", parcel(t, 1))
	<-called // it is in the keeper's hands
	done := make(chan struct{})
	c.Drop("b")
	c.After(func() { close(done) })
	let <- struct{}{}
	<-called
	let <- struct{}{}
	<-done
	cancel()
	<-ended
	if want := []string{"put a of 1 bytes", "drop b"}; !slices.Equal(s.log, want) {
		t.Errorf("the keeper was asked for %q, want %q", s.log, want)
	}
}
