package journal

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sink is where lines go. It remembers those that could not be written: the log itself can't say so.
type sink struct {
	w io.Writer

	mu    sync.Mutex // guards the rest
	lines int        // not written since then; 0: the newest was
	since time.Time
	err   error
}

func (s *sink) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.lines, s.err = 0, nil
		return n, nil
	}
	if s.lines == 0 {
		s.since = time.Now()
	}
	s.lines, s.err = s.lines+1, err
	return len(b), nil // the library would say it on the same file
}

// text says that lines were not written, and what to do; empty: the newest was.
func (s *sink) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lines == 0 {
		return ""
	}
	remedy := "see where the daemon's stderr goes"
	if errors.Is(s.err, unix.ENOSPC) || errors.Is(s.err, unix.EDQUOT) {
		remedy = "free space on the disk that the daemon's stderr goes to"
	}
	return fmt.Sprintf("%d lines of this daemon's log were not written since %s: %v: %s", s.lines, s.since.Format(time.TimeOnly), s.err, remedy)
}

// Unwritten says that the log can't be written; empty: it can.
func (j *Journal) Unwritten() string {
	if j.sink == nil {
		return ""
	}
	return j.sink.text()
}
