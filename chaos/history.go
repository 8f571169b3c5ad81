package chaos

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// recovered is one line of a history: how long the cluster took to be whole after faults of these kinds, by the clock of the bounds, so that
// runs on a busy machine can be compared with those on a quiet one.
type recovered struct {
	At      time.Time `json:"at"`
	Layout  string    `json:"layout"`
	Kinds   string    `json:"kinds"` // sorted, with + between
	Seconds float64   `json:"seconds"`
}

const (
	historyLeast  = 10      // recoveries of the kinds in the layout that must be known before one is judged by them
	historyFactor = 4.0     // times the slowest of nine in ten of them
	historyRoom   = 2.0     // seconds besides: a recovery of 50 ms may be one of 200
	historyMost   = 1 << 16 // lines that are read: the newest
)

// history is what earlier runs took. The fixed bounds follow from one calm recovery, and a recovery that became ten times slower is within them.
type history struct {
	path  string // empty: none is kept
	known map[string][]float64
}

func (r recovered) like() string { return r.Layout + " " + r.Kinds }

func kindsText(kinds []string) string {
	kinds = slices.Sorted(slices.Values(kinds))
	return strings.Join(kinds, "+")
}

// readHistory reads the lines of a file; one that is not there yet has none.
func readHistory(path string) (*history, error) {
	h := &history{path: path, known: map[string][]float64{}}
	if path == "" {
		return h, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return h, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--history: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		var is recovered
		if err := json.Unmarshal(lines.Bytes(), &is); err != nil || is.Seconds < 0 || is.Layout == "" || is.Kinds == "" {
			return nil, fmt.Errorf("--history: %s: line %d is no recovery: remove the line, or name another file", path, n)
		}
		of := append(h.known[is.like()], is.Seconds)
		h.known[is.like()] = of[max(0, len(of)-historyMost):]
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("--history: %s: %w", path, err)
	}
	return h, nil
}

// limit is what a recovery may take by what is known; 0: too little is.
func (h *history) limit(is recovered) float64 {
	known := slices.Sorted(slices.Values(h.known[is.like()]))
	if len(known) < historyLeast {
		return 0
	}
	return historyFactor*known[(len(known)-1)*9/10] + historyRoom
}

// add keeps a recovery, and says how it lies beside those of earlier runs; empty: it is as they are. Those of this run are not judged by each
// other: what becomes slower bit by bit within it would be its own measure.
func (h *history) add(is recovered) (slower string, err error) {
	if limit := h.limit(is); limit > 0 && is.Seconds > limit {
		slower = fmt.Sprintf("%s in layout %s took %.1f s, and may take %.1f s by %d earlier ones in %s", is.Kinds, is.Layout, is.Seconds, limit, len(h.known[is.like()]), h.path)
	}
	if h.path == "" || slower != "" {
		return slower, nil
	}
	b, err := json.Marshal(is)
	if err != nil {
		return slower, err
	}
	f, err := os.OpenFile(h.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return slower, fmt.Errorf("--history: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	return slower, errors.Join(err, f.Close())
}
