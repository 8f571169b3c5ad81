package audit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// bench is a log's folder.
type bench struct {
	*testing.T
	path  string
	limit int64
}

func newBench(t *testing.T) bench {
	t.Helper()
	return bench{t, filepath.Join(t.TempDir(), "audit.jsonl"), fileBytes}
}

func (b bench) open() *Log {
	b.Helper()
	l, err := open(b.path, b.limit, time.Now, func(err error) { b.Error(err) })
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// write is one life of a daemon, in which these events happen.
func (b bench) write(events ...string) {
	b.Helper()
	l := b.open()
	for _, e := range events {
		l.Append(e, Fields{"node": "n1"})
	}
	l.Close()
}

func (b bench) read() []byte {
	b.Helper()
	data, err := os.ReadFile(b.path)
	if err != nil {
		b.Fatal(err)
	}
	return data
}

func (b bench) put(data []byte) {
	b.Helper()
	if err := os.WriteFile(b.path, data, 0o600); err != nil {
		b.Fatal(err)
	}
}

// verify follows the chain through all files, which must have so many lines and breaks and notes with these texts.
func (b bench) verify(lines int, texts ...string) Report {
	b.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(b.path), "audit*.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	slices.Reverse(files) // the order in which they are named does not matter
	r, err := Verify(files...)
	if err != nil {
		b.Fatal(err)
	}
	said := strings.Join(slices.Concat(r.Breaks, r.Notes), "\n")
	if r.Lines != lines || len(texts) == 0 && said != "" {
		b.Errorf("%d lines, want %d: %s", r.Lines, lines, said)
	}
	for _, text := range texts {
		if !strings.Contains(said, text) {
			b.Errorf("%q does not say %q", said, text)
		}
	}
	return r
}

func TestChainGoesOnAfterARestart(t *testing.T) {
	b := newBench(t)
	b.write("joined", "claimed")
	b.write()
	b.write("refused")
	if r := b.verify(3); r.First != 1 || r.Last != 3 || r.Digest != digest(bytes.TrimSuffix(b.read()[bytes.LastIndexByte(bytes.TrimSuffix(b.read(), []byte("\n")), '\n')+1:], []byte("\n"))) {
		t.Errorf("%+v", r)
	}
	first, _, _ := bytes.Cut(b.read(), []byte("\n"))
	l, err := parse(first)
	if err != nil || l.N != 1 || l.Event != "joined" || l.Fields["node"] != "n1" || l.Prev != chainStart || l.Format != format {
		t.Errorf("%s: %v", first, err)
	}
	if st, err := os.Stat(b.path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v: %v", st.Mode(), err)
	}
}

// A line that was being written when the daemon died stays, whatever it is, and the next one names it.
func TestTornLineIsKeptAndNamed(t *testing.T) {
	for name, cut := range map[string]int{"its newline": 1, "its end": 9, "all but a byte": 0} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.write("joined", "claimed")
			data := b.read()
			second := bytes.IndexByte(data, '\n') + 1
			if cut == 0 {
				cut = len(data) - second - 1
			}
			data = data[:len(data)-cut]
			b.put(data)
			lines, note := 2, fmt.Sprintf("%d bytes", len(data)-second)
			if cut == 1 {
				lines, note = 3, ""
			}
			for range 2 { // it may die again
				b.write()
			}
			b.write("refused")
			if note != "" {
				b.verify(lines, note)
			} else {
				b.verify(lines)
			}
			if !bytes.HasPrefix(b.read(), data) {
				t.Error("what was torn is gone")
			}
			b.put(slices.Insert(b.read(), second, 'x'))
			b.verify(lines-map[bool]int{true: 1}[cut == 1], "line 3: ")
		})
	}
}

func TestEveryChangeShows(t *testing.T) {
	b := newBench(t)
	b.write("joined", "claimed", "refused", "drained")
	good := b.read()
	lines := bytes.SplitAfter(bytes.TrimSuffix(good, nil), []byte("\n"))[:4]
	join := func(order ...int) []byte {
		var out []byte
		for _, i := range order {
			out = append(out, lines[i]...)
		}
		return out
	}
	for name, tc := range map[string]struct {
		data  []byte
		lines int
		says  string
	}{
		"changed":          {bytes.Replace(good, []byte("claimed"), []byte("dropped"), 1), 4, "line 3: number 3 was written after another line"},
		"taken out":        {join(0, 2, 3), 3, "line 2: number 3 follows number 1"},
		"put in":           {join(0, 1, 1, 2, 3), 5, "line 3: number 2 follows number 2"},
		"exchanged":        {join(0, 2, 1, 3), 4, "line 2: number 3 follows number 1"},
		"beginning gone":   {join(1, 2, 3), 3, "line 1: format"},
		"made unreadable":  {bytes.Replace(good, []byte(`"event":"claimed"`), []byte(`"event" "claimed"`), 1), 3, "does not name them"},
		"junk between":     {slices.Concat(join(0, 1), []byte("junk\n"), join(2, 3)), 4, "5 line 3"},
		"another's prev":   {bytes.Replace(good, []byte(chainStart), []byte(strings.Repeat("1", 64)), 1), 4, "line that is not there"},
		"another's format": {bytes.Replace(good, []byte(format), []byte("replicad-audit 9"), 1), 4, `format "replicad-audit 9"`},
	} {
		t.Run(name, func(t *testing.T) {
			b.T = t
			b.put(tc.data)
			if r := b.verify(tc.lines, strings.TrimPrefix(tc.says, "5 ")); len(r.Breaks) == 0 {
				t.Error("the chain holds")
			}
		})
	}
}

// The chain goes through all files, also where the daemon died between two of them, or in the first line of the second.
func TestRotation(t *testing.T) {
	b := newBench(t)
	b.limit = 400
	b.write("a", "b", "c", "d", "e", "f", "g")
	files, err := filepath.Glob(filepath.Join(filepath.Dir(b.path), "*"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%v: %v", files, err)
	}
	b.verify(7)
	l := b.open()
	if err := l.rotate(); err != nil { // and dies; its goroutine waits for lines alone
		t.Fatal(err)
	}
	l.Close()
	b.write("h")
	b.verify(8)
	l = b.open()
	if err := l.rotate(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	b.put([]byte(`{"n":`))
	b.write("i")
	if r := b.verify(9, "5 bytes of a line"); len(r.Breaks) != 0 {
		t.Error(r.Breaks)
	}
	files = slices.Delete(files, len(files)-2, len(files)-1)
	if r, err := Verify(files...); err != nil || len(r.Breaks) == 0 {
		t.Errorf("a file that is gone does not show: %+v, %v", r, err)
	}
}

// Nobody waits for the log: what finds no room is counted, and said.
func TestDroppedLinesAreCounted(t *testing.T) {
	b := newBench(t)
	l := &Log{path: b.path, limit: fileBytes, now: time.Now, in: make(chan entry, 2), failed: func(err error) { t.Error(err) }, ending: make(chan struct{})}
	if err := l.openFile(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		l.Append("flood", nil)
	}
	l.ended.Go(l.run)
	l.Close()
	if r := b.verify(2); r.Dropped != 3 {
		t.Errorf("%+v", r)
	}
}

// A disk that takes no lines costs lines, is named once, and is tried again with each line.
func TestDiskThatFails(t *testing.T) {
	b := newBench(t)
	b.limit = 1
	var told []error
	l, err := open(b.path, b.limit, time.Now, func(err error) { told = append(told, err) })
	if err != nil {
		t.Fatal(err)
	}
	l.Append("a", nil)
	l.Close()
	name := filepath.Join(filepath.Dir(b.path), "audit-000000000001.jsonl")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err = open(b.path, b.limit, time.Now, func(err error) { told = append(told, err) }); err != nil {
		t.Fatal(err)
	}
	l.Append("b", nil)
	l.Append("c", nil)
	l.Close()
	if len(told) != 1 || !strings.Contains(told[0].Error(), name) || !strings.Contains(told[0].Error(), "lines are lost") {
		t.Errorf("told %v", told)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	l.add(entry{time.Now(), "d", nil}) // as its goroutine would
	if r := b.verify(2); r.Dropped != 2 {
		t.Errorf("%+v", r)
	}
}

func TestOpenRefuses(t *testing.T) {
	b := newBench(t)
	if err := os.Mkdir(b.path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(b.path, nil); err == nil || !strings.Contains(err.Error(), b.path) {
		t.Errorf("a folder: %v", err)
	}
	if err := os.Remove(b.path); err != nil {
		t.Fatal(err)
	}
	b.put(bytes.Repeat([]byte("not a log\n"), maxLine))
	if _, err := Open(b.path, nil); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("another file: %v", err)
	}
	if _, err := Verify(b.path + "x"); err == nil {
		t.Error("a file that is not there is good")
	}
	r, err := Verify(b.path)
	if err != nil || r.Lines != 0 || len(r.Notes) != 2 {
		t.Errorf("another file: %+v, %v", r, err)
	}
}

func TestNilKeepsNothing(t *testing.T) {
	var l *Log
	l.Append("a", nil)
	l.Close()
}

// What others wrote is cut to a length, and stays one line.
func TestLongFields(t *testing.T) {
	b := newBench(t)
	l := b.open()
	l.Append("refused", Fields{"why": strings.Repeat("x\n\x00é", 10000)})
	l.Close()
	b.verify(1)
	if n := len(b.read()); n > 8*maxField {
		t.Errorf("%d bytes", n)
	}
}

func FuzzLine(f *testing.F) {
	b := filepath.Join(f.TempDir(), "audit.jsonl")
	l, err := Open(b, func(err error) { f.Error(err) })
	if err != nil {
		f.Fatal(err)
	}
	l.Append("joined", Fields{"node": "n1"})
	l.Close()
	good, err := os.ReadFile(b)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(slices.Concat(good, []byte("torn")))
	f.Add([]byte(`{"n":1,"t":"2026-11-01T00:00:00Z","prev":"` + chainStart + `","event":"x","torn":{"bytes":-1,"sha256":""}}`))
	// In memory where there is such a place: the log syncs what it writes, which a disk does a hundred times a second.
	dir, err := os.MkdirTemp("/dev/shm", "replicad-audit")
	if err != nil {
		dir = f.TempDir()
	}
	f.Cleanup(func() { os.RemoveAll(dir) })
	f.Fuzz(func(t *testing.T, data []byte) {
		// Whatever lies in the file, either the log refuses it or goes on behind it, and what it adds hangs together.
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil { // the files of the last run, which it may have rotated
			t.Fatal(err)
		}
		path := filepath.Join(dir, "audit.jsonl")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		before, err := Verify(path)
		if err != nil {
			t.Fatal(err)
		}
		l, err := Open(path, func(err error) { t.Error(err) })
		if err != nil {
			return
		}
		l.Append("a", nil)
		l.Append("b", nil)
		l.Close()
		after, err := Verify(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(after.Breaks) > len(before.Breaks) || after.Lines < before.Lines+2 {
			t.Errorf("%q: %+v, then %+v", data, before, after)
		}
	})
}
