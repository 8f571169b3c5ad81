package chaos

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// recorder keeps the timeline and what did not hold. Everybody may call it.
type recorder struct {
	began time.Time

	mu       sync.Mutex // guards all below
	out      io.Writer
	file     *os.File
	found    []violation
	texts    map[string]bool
	fatal    chan struct{} // closed with the first violation after which going on shows nothing
	isFatal  bool
	timeline int // bytes
}

const maxTimeline = 256 << 20

func newRecorder(out io.Writer, file string) (*recorder, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &recorder{began: time.Now(), out: out, file: f, texts: map[string]bool{}, fatal: make(chan struct{})}, nil
}

// note is for the timeline alone.
func (r *recorder) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeLocked(text)
}

func (r *recorder) writeLocked(text string) string {
	line := fmt.Sprintf("%s %7.2f s  %s\n", time.Now().Format("15:04:05.000"), time.Since(r.began).Seconds(), text)
	if r.timeline += len(line); r.timeline < maxTimeline {
		_, _ = r.file.WriteString(line) // a full disk must not end a run
	}
	return line[13:]
}

// say is for people too.
func (r *recorder) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprint(r.out, r.writeLocked(fmt.Sprintf(format, args...)))
}

// violated takes what did not hold; the same again says nothing new, nor does a process that ends once the run is broken off.
func (r *recorder) violated(v violation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.texts[v.Error()] || r.isFatal && v.class == killed {
		return
	}
	r.texts[v.Error()] = true
	r.found = append(r.found, v)
	fmt.Fprint(r.out, r.writeLocked("VIOLATED  "+v.Error()))
	if (v.class == wrong || v.class == ended || v.class == lost || v.class == owner || v.class == standstill) && !r.isFatal {
		r.isFatal = true
		close(r.fatal)
	}
}

func (r *recorder) violatedAll(class string, texts []string) {
	for _, t := range texts {
		r.violated(violation{class, t})
	}
}

func (r *recorder) violations() []violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]violation(nil), r.found...)
}

// totals counts the violations by class.
func totals(found []violation) string {
	n := map[string]int{}
	for _, v := range found {
		n[v.class]++
	}
	var list []string
	for _, c := range classes {
		list = append(list, fmt.Sprintf("%d %s", n[c], c))
	}
	return strings.Join(list, ", ")
}

// copyOut copies a run's timeline, and after a failure its logs and configurations, to the report's folder.
func copyOut(from, to string, failed bool) error {
	files := []string{filepath.Join(from, "timeline.txt")}
	if failed {
		for _, pattern := range []string{"*/logs/*", "*/*.yaml", "*/status-*.json", "*/words.txt"} {
			more, err := filepath.Glob(filepath.Join(from, pattern))
			if err != nil {
				return err
			}
			files = append(files, more...)
		}
	}
	var errs error
	for _, f := range files {
		name, err := filepath.Rel(from, f)
		if err == nil {
			errs = errors.Join(errs, copyFile(f, filepath.Join(to, name)))
		}
	}
	return errs
}

func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
