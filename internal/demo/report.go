package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// The two verdicts.
const (
	bitEqual  = "bit-equal"
	different = "different"
)

// report is report.json.
type report struct {
	Verdict string   `json:"verdict"`
	Faults  []Fault  `json:"faults"`
	Figures []Figure `json:"figures"`
	Again   *again   `json:"again,omitempty"`
}

// result is everything that a finished demo knows.
type result struct {
	report
	opt      Options
	when     time.Time
	loss     map[uint64]float64
	baseline map[uint64]float64
	digest   string // of the weights of all shards
	differs  []string
	stored   string // what lies in the store that was named, as a command shows it
	dropped  int    // events that the journal did not keep
}

// write puts report.json and report.html into dir, each written aside and renamed.
func (r *result) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	out := r.report
	if out.Faults == nil {
		out.Faults = []Fault{}
	}
	js, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	page, err := r.html()
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return errors.Join(put(filepath.Join(dir, "report.json"), append(js, '\n')), put(filepath.Join(dir, "report.html"), page))
}

func put(path string, b []byte) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o644); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
