package spool

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

func name(step replica.Step) Name {
	return Name{Job: replica.JobID{7}, Generation: replica.Generation{Epoch: 3, Step: step}, Part: replica.OfGroup(2)}
}

func open(t *testing.T, c Config) *Spool {
	t.Helper()
	s, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	s.space = func() (free, all uint64, err error) { return 1 << 40, 1 << 40, nil } // whatever the machine's disk has
	return s
}

func create(t *testing.T, s *Spool, step replica.Step, size uint64) *Part {
	t.Helper()
	p, err := s.Create(t.Context(), name(step), size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) }) // those that the test leaves open
	return p
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// What is appended is read back, from a file and from memory; nothing is left after Close.
func TestAPart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	for what, c := range map[string]Config{"file": {Dir: dir, Owner: "n1", Epoch: 31}, "memory": {Memory: 1 << 20}} {
		s := open(t, c)
		want := make([]byte, 100_000)
		for i := range want {
			want[i] = byte(rand.Uint32())
		}
		p := create(t, s, 5, uint64(len(want)))
		for at := 0; at < len(want); at += 30_000 {
			if err := p.Append(t.Context(), want[at:min(at+30_000, len(want))]); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Append(t.Context(), []byte{1}); err == nil {
			t.Errorf("%s: it takes more than it has", what)
		}
		got := make([]byte, 40_000)
		if err := p.ReadAt(t.Context(), got, 50_000); err != nil || !bytes.Equal(got, want[50_000:90_000]) {
			t.Errorf("%s: read back: %v", what, err)
		}
		if what == "file" {
			if names := files(t, dir); !slices.Equal(names, []string{"n1+1f.07000000-0000-0000-0000-000000000000.3-5.group-2.1.spool"}) {
				t.Errorf("its directory has %q", names)
			}
		}
		if err := p.Close(t.Context()); err != nil || !s.Empty() || s.missing != 0 {
			t.Errorf("%s: closed: %v; %v in files, %v in memory", what, err, s.files, s.memory)
		}
	}
	if names := files(t, dir); len(names) != 0 {
		t.Errorf("its directory has %q", names)
	}
}

// A start removes what former lives of the node left, and nothing else.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	left := []string{"n1+1.a.spool", "n1+2.b.spool", "n1.b+1.a.spool", "n11+1.a.spool", "n2+1.a.spool", "n1+1.notes", "n1"}
	for _, n := range left {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "n1+9.spool"), 0o700); err != nil {
		t.Fatal(err)
	}
	open(t, Config{Dir: dir, Owner: "n1", Epoch: 2})
	if got, want := files(t, dir), []string{"n1", "n1+1.notes", "n1+2.b.spool", "n1+9.spool", "n1.b+1.a.spool", "n11+1.a.spool", "n2+1.a.spool"}; !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
}

// What a former life left with a note is kept for a day, until a write of its job begins, or its room is needed.
func TestWhatIsLeft(t *testing.T) {
	const mib = 1 << 20
	dies := func(t *testing.T, dir string, age time.Duration, jobs ...byte) {
		t.Helper()
		s := open(t, Config{Dir: dir, Owner: "n1.b", Epoch: 1})
		for _, job := range jobs {
			n := name(5)
			n.Job = replica.JobID{job}
			part, err := s.Create(t.Context(), n, mib)
			if err == nil {
				err = part.Append(t.Context(), make([]byte, mib))
			}
			if err == nil {
				_, err = s.Note(t.Context(), n, []byte{job})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range files(t, dir) {
			at := time.Now().Add(-age)
			if err := os.Chtimes(filepath.Join(dir, n), at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	lies := func(t *testing.T, s *Spool) (jobs []byte) {
		t.Helper()
		list, err := s.Left(t.Context())
		for _, l := range list {
			if l.Err != nil || len(l.Note) != 1 {
				t.Errorf("a note reads %q, %v", l.Note, l.Err)
			}
			jobs = append(jobs, l.Note...)
		}
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(jobs)
		return jobs
	}
	next := Config{Owner: "n1.b", Epoch: 2, Most: 10 * mib}
	for what, c := range map[string]struct {
		age   time.Duration
		begin byte // the job of a write that begins
		bytes uint64
		free  uint64
		want  []byte
	}{
		"kept":                 {want: []byte{7, 8}},
		"a day old":            {age: keepLeft + time.Minute, want: nil},
		"its job writes":       {begin: 7, bytes: mib, free: 100 * mib, want: []byte{8}},
		"another job writes":   {begin: 9, bytes: mib, free: 100 * mib, want: []byte{7, 8}},
		"their room is needed": {begin: 9, bytes: 5 * mib, free: 2 * mib, want: nil},
	} {
		t.Run(what, func(t *testing.T) {
			next := next
			next.Dir = t.TempDir()
			dies(t, next.Dir, c.age, 7, 8)
			s := open(t, next)
			s.space = func() (uint64, uint64, error) {
				if len(files(t, next.Dir)) == 0 {
					return c.free + 4*mib, 1000 * mib, nil
				}
				return c.free, 1000 * mib, nil
			}
			if c.begin > 0 {
				n := name(9)
				n.Job = replica.JobID{c.begin}
				p, err := s.Create(t.Context(), n, c.bytes)
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close(t.Context())
			}
			if got := lies(t, s); !slices.Equal(got, c.want) {
				t.Errorf("left are %v, want %v", got, c.want)
			}
			if c.want == nil && c.begin == 0 && len(files(t, next.Dir)) != 0 {
				t.Errorf("left are %q", files(t, next.Dir))
			}
		})
	}
	other := t.TempDir()
	dies(t, other, 0, 7)
	foreign := open(t, Config{Dir: other, Owner: "n1", Epoch: 2})
	if got := lies(t, foreign); len(got) != 0 || len(files(t, other)) != 2 {
		t.Errorf("another node sees %v, of %q", got, files(t, other))
	}
	s := open(t, Config{Dir: other, Owner: "n1.b", Epoch: 2})
	for _, file := range []string{"../x", "", "n1.b+1.x.spool", ".spool"} {
		if p, err := s.OpenLeft(t.Context(), file, mib); err == nil {
			t.Errorf("%q is opened: %v", file, p)
		}
	}
}

// What a spool may take is bounded: by its setting, by a tenth of its file system, and in memory. What would never fit is told from what does not
// fit beside others.
func TestRoom(t *testing.T) {
	const mib = 1 << 20
	for what, c := range map[string]struct {
		most, memory, free, all uint64
		first, second           uint64
		want                    error
		where                   string // of the second
	}{
		"both fit":                     {10 * mib, 0, 100 * mib, 1000 * mib, 5 * mib, 5 * mib, nil, ".spool"},
		"the second does not":          {10 * mib, 0, 100 * mib, 1000 * mib, 5 * mib, 6 * mib, ErrFull, ""},
		"the second never would":       {10 * mib, 0, 100 * mib, 1000 * mib, 5 * mib, 11 * mib, ErrNone, ""},
		"it would in memory":           {10 * mib, 11 * mib, 100 * mib, 1000 * mib, 5 * mib, 11 * mib, nil, "spool_memory"},
		"memory is for what never fit": {10 * mib, 11 * mib, 100 * mib, 1000 * mib, 5 * mib, 6 * mib, ErrFull, ""},
		"nor in memory":                {10 * mib, 11 * mib, 100 * mib, 1000 * mib, 5 * mib, 12 * mib, ErrNone, ""},
		"a tenth is left":              {0, 0, 110 * mib, 1000 * mib, 5 * mib, 5 * mib, nil, ".spool"},
		"and not less":                 {0, 0, 110 * mib, 1000 * mib, 5 * mib, 6 * mib, ErrFull, ""},
		"less is left by others":       {0, 0, 99 * mib, 1000 * mib, 0, 1, ErrNone, ""},
		"it has less than it may take": {50 * mib, 0, 10 * mib, 1000 * mib, 5 * mib, 6 * mib, ErrFull, ""},
	} {
		s := open(t, Config{Dir: t.TempDir(), Owner: "n1", Most: c.most, Memory: c.memory})
		s.space = func() (uint64, uint64, error) { return c.free, c.all, nil }
		if c.first > 0 {
			create(t, s, 5, c.first)
		}
		p, err := s.Create(t.Context(), name(9), c.second)
		if !errors.Is(err, c.want) || err == nil && !strings.HasSuffix(p.Where(), c.where) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
		if p != nil {
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	s := open(t, Config{Memory: 10 * mib})
	create(t, s, 5, 6*mib)
	if _, err := s.Create(t.Context(), name(9), 5*mib); !errors.Is(err, ErrFull) {
		t.Errorf("memory that others have: %v", err)
	}
}

// Parts of one write that have no room beside each other do not wait for each other: each try would find it so.
func TestPartsOfOneWriteWithoutRoom(t *testing.T) {
	const mib = 1 << 20
	for what, c := range map[string]Config{"file": {Dir: t.TempDir(), Owner: "n1", Most: 10 * mib}, "memory": {Memory: 10 * mib}} {
		s := open(t, c)
		create(t, s, 5, 6*mib)
		if _, err := s.Create(t.Context(), name(5), 5*mib); !errors.Is(err, ErrNone) {
			t.Errorf("%s: of the same write: %v", what, err)
		}
		if _, err := s.Create(t.Context(), name(6), 5*mib); !errors.Is(err, ErrFull) {
			t.Errorf("%s: of another: %v", what, err)
		}
		create(t, s, 6, 4*mib)
		if _, err := s.Create(t.Context(), name(5), 2*mib); !errors.Is(err, ErrNone) {
			t.Errorf("%s: of the same, beside another: %v", what, err)
		}
		if _, err := s.Create(t.Context(), name(5), 7*mib); !errors.Is(err, ErrFull) {
			t.Errorf("%s: of the same, but another has the room: %v", what, err)
		}
	}
}

// What was written of a part counts as free no more: the file system says so itself.
func TestRoomOfWhatIsWritten(t *testing.T) {
	const mib = 1 << 20
	free := uint64(110 * mib)
	s := open(t, Config{Dir: t.TempDir(), Owner: "n1"})
	s.space = func() (uint64, uint64, error) { return free, 1000 * mib, nil }
	p := create(t, s, 5, 4*mib)
	if err := p.Append(t.Context(), make([]byte, 4*mib)); err != nil {
		t.Fatal(err)
	}
	free -= 4 * mib
	create(t, s, 6, 6*mib)
	if _, err := s.Create(t.Context(), name(7), 1); !errors.Is(err, ErrFull) {
		t.Errorf("beyond the tenth: %v", err)
	}
}

// Nobody waits for a disk that hangs beyond his context.
func TestADiskThatHangs(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir(), Owner: "n1"})
	hangs := make(chan struct{})
	defer close(hangs)
	s.space = func() (uint64, uint64, error) { <-hangs; return 0, 0, nil }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Create(ctx, name(5), 1); !errors.Is(err, context.Canceled) || !s.Empty() {
		t.Errorf("it waits for it: %v", err)
	}
}
