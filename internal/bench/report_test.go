package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func exampleReport() Report {
	return Report{When: "then", Version: "v<1>", Figures: []Figure{
		newFigure("transfer/tls/1", "GB/s", []float64{1.2, 1.4, 1.9}, "crypto/tls, 1 connection", []float64{1, 1, 1.1}, atLeast(1.3)),
		newFigure("transfer/quic/1", "GB/s", []float64{0.2}, "stock <quic>", []float64{0.4}, atLeast(1.25)),
		newFigure("idle/cpu", "% of a core", []float64{0.4}, "", nil, bound{}),
		newFigure("resent/source", "MiB", []float64{0}, "the part", []float64{256}, atMost(0.02)),
	}, LeftOut: []string{"step: there is no <program>"}}
}

// bench.json has what the issue of figures asks of it, null where there is nothing.
func TestReportJSON(t *testing.T) {
	dir := t.TempDir()
	if err := exampleReport().write(dir); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, jsonFile))
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Figures []map[string]any }
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for i, want := range []map[string]any{
		{"name": "transfer/tls/1", "unit": "GB/s", "value": 1.4, "limit_name": "crypto/tls, 1 connection", "limit": 1.0, "ratio": 1.4, "want": ">= 1.3", "ok": true},
		{"name": "transfer/quic/1", "value": 0.2, "limit": 0.4, "ratio": 0.5, "want": ">= 1.25", "ok": false},
		{"name": "idle/cpu", "value": 0.4, "limit_name": "", "limit": nil, "ratio": nil, "want": "", "ok": nil},
		{"name": "resent/source", "value": 0.0, "limit": 256.0, "ratio": 0.0, "want": "<= 0.02", "ok": true},
	} {
		for key, v := range want {
			if has, ok := got.Figures[i][key]; !ok || has != v {
				t.Errorf("figure %d: %s is %v, want %v", i, key, has, v)
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 2 {
		t.Errorf("files %v: %v", left, err)
	}
}

// The page needs nothing but itself, says what is missed and left out, and its pictures are well-formed.
func TestPage(t *testing.T) {
	b, err := exampleReport().html()
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{"2 of 3 wanted ratios reached", "v&lt;1&gt;", "stock &lt;quic&gt;", "1.25, missed", "there is no &lt;program&gt;", "prefers-color-scheme:dark"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing of %q", want)
		}
	}
	for _, no := range []string{"http:", "https:", "<script", "NaN", "Inf", "@import"} {
		if strings.Contains(text, no) {
			t.Errorf("%q is on the page", no)
		}
	}
	pictures := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1)
	if len(pictures) != 4 { // ratios, and a plot for each word and unit
		t.Errorf("%d pictures", len(pictures))
	}
	for _, p := range pictures {
		for dec := xml.NewDecoder(strings.NewReader(p)); ; {
			if _, err := dec.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, p)
			}
		}
	}
}

func TestTick(t *testing.T) {
	for _, most := range []float64{0.003, 0.9, 1, 4.1, 7.9, 12, 99, 1e6} {
		if n := most / tick(most); n < 2 || n > 8 {
			t.Errorf("a scale to %v has %v steps of %v", most, n, tick(most))
		}
	}
}

func TestRunRefusesWhatCantWork(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		opt  Options
		want []string
	}{
		"too large a part": {Options{Out: t.TempDir(), PartMiB: 1 << 20}, []string{"--part-mib 1048576", "8192"}},
		"no such figure":   {Options{Out: t.TempDir(), Only: "fly"}, []string{"--only fly", "transfer"}},
		"out in a file":    {Options{Out: filepath.Join(file, "x")}, []string{"--out " + file}},
	} {
		var said bytes.Buffer
		err := Run(t.Context(), tc.opt, &said)
		if !errors.As(err, new(*UsageError)) || said.Len() > 0 {
			t.Errorf("%s: %v, after %q", name, err, said.String())
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: nothing of %q in: %v", name, want, err)
			}
		}
	}
}

// A prefix picks a job by a part of its name and by more than its name.
func TestOnly(t *testing.T) {
	for only, want := range map[string]bool{"": true, "tr": true, "transfer/tls": true, "transfer": true, "step": false, "transfers": false} {
		if got := (job{name: "transfer/"}).wanted(only); got != want {
			t.Errorf("%q: %v", only, got)
		}
	}
}

// Where a figure misses what is wanted, the run is good unless that was to be strict; where one is broken, never.
func TestOutcome(t *testing.T) {
	r := exampleReport()
	if err := r.outcome(false); err != nil {
		t.Error(err)
	}
	if err := r.outcome(true); !errors.Is(err, ErrMissed) {
		t.Errorf("%v", err)
	}
	r.Broken = []string{"x: it broke"}
	if err := r.outcome(false); err == nil || !strings.Contains(err.Error(), "it broke") {
		t.Errorf("%v", err)
	}
	r.Broken, r.Figures = nil, slices.DeleteFunc(r.Figures, Figure.missed)
	if err := r.outcome(true); err != nil {
		t.Error(err)
	}
}
