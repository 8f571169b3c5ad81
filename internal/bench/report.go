package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The files of a report.
const (
	jsonFile = "bench.json"
	pageFile = "bench.html"
)

// Report is bench.json.
type Report struct {
	When    string   `json:"when"`
	Version string   `json:"version"`
	Quick   bool     `json:"quick"`
	Took    string   `json:"took"`
	Machine Machine  `json:"machine"`
	Figures []Figure `json:"figures"`
	LeftOut []string `json:"left_out"` // and why
	Broken  []string `json:"broken"`   // could not be measured, and why
}

// missed counts the figures that are not what is wanted.
func (r Report) missed() (n int) {
	for _, f := range r.Figures {
		if f.missed() {
			n++
		}
	}
	return n
}

// wanted counts those of which something is wanted.
func (r Report) wanted() (n int) {
	for _, f := range r.Figures {
		if f.OK != nil {
			n++
		}
	}
	return n
}

func (r Report) summary() string {
	s := fmt.Sprintf("%d %s, %d of %d wanted ratios reached", len(r.Figures), plural(len(r.Figures), "figure"), r.wanted()-r.missed(), r.wanted())
	if n := len(r.LeftOut); n > 0 {
		s += fmt.Sprintf(", %d left out", n)
	}
	if n := len(r.Broken); n > 0 {
		s += fmt.Sprintf(", %d FAILED", n)
	}
	return s
}

// outcome is the run's error.
func (r Report) outcome(strict bool) error {
	switch {
	case len(r.Broken) > 0:
		return fmt.Errorf("not measured:\n%s", strings.Join(r.Broken, "\n"))
	case strict && r.missed() > 0:
		return fmt.Errorf("--strict: %d %w", r.missed(), ErrMissed)
	}
	return nil
}

// write puts both files into dir, each written aside and renamed.
func (r Report) write(dir string) error {
	js, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	page, err := r.html()
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return errors.Join(put(filepath.Join(dir, jsonFile), append(js, '\n')), put(filepath.Join(dir, pageFile), page))
}

func put(path string, b []byte) error {
	err := os.WriteFile(path+".new", b, 0o644)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
