package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// durable_keep is a number, or rules; what is written of it is read back, and what can't be is named.
func TestDurableKeep(t *testing.T) {
	example, err := os.ReadFile("../../docs/replicad.yaml")
	if err != nil {
		t.Fatal(err)
	}
	load := func(text string) (*Config, error) {
		t.Helper()
		lines := strings.Split(string(example), "\n")
		for i, l := range lines {
			if strings.HasPrefix(l, "durable_keep:") {
				lines[i] = "durable_keep: " + text
			}
		}
		file := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(file)
	}
	const day replica.Age = 86400
	for text, want := range map[string]replica.Keep{
		"5":             {Last: 5},
		"{every: 1000}": {Last: 3, Every: 1000},
		"{last: 3, every: 1000, epochs: true, best: {metric: loss, n: 2, order: min}, younger: 7d}": {Last: 3, Every: 1000, Epochs: true, Best: replica.Best{Metric: "loss", N: 2, Order: "min"}, Younger: 7 * day},
		"{best: {metric: accuracy, n: 1, order: max}, younger: 36h}":                                {Last: 3, Best: replica.Best{Metric: "accuracy", N: 1, Order: "max"}, Younger: day + day/2},
	} {
		c, err := load(text)
		if err != nil || c.DurableKeep != want {
			t.Errorf("%s: %+v, %v; want %+v", text, c, err, want)
			continue
		}
		file := filepath.Join(t.TempDir(), "c.yaml")
		if err := c.Write(file); err != nil {
			t.Fatal(err)
		}
		if got, err := Load(file); err != nil || got.DurableKeep != want {
			t.Errorf("%s: read back %+v, %v", text, got, err)
		}
		if b, _ := c.text(); (text == "5") != strings.Contains(string(b), "durable_keep: 5\n") {
			t.Errorf("%s is written as\n%s", text, b)
		}
	}
	for text, want := range map[string]string{
		"0":                                    "\ndurable_keep: 0",
		"[3]":                                  "\ndurable_keep: [",
		"many":                                 "\"many\": want a whole number",
		"{last: 0, every: 10}":                 "\ndurable_keep.last: 0",
		"{every: -1}":                          "\ndurable_keep.every: -1",
		"{younger: 7 days}":                    "want an age such as 7d or 36h",
		"{younger: -7h}":                       "want an age such as 7d or 36h",
		"{younger: 5000d}":                     "\ndurable_keep.younger: 5000d",
		"{best: {n: 2}}":                       "\ndurable_keep.best.metric: \"\"",
		"{best: {metric: loss}}":               "\ndurable_keep.best.n: 0",
		`{best: {metric: "lo\e[31mss", n: 1}}`: "\ndurable_keep.best.metric: \"lo\\x1b[31mss\"",
		`{best: {metric: "lo\nss", n: 1}}`:     "\ndurable_keep.best.metric: \"lo\\nss\"",
		`{best: {metric: "lo\u202ess", n: 1}}`: "\ndurable_keep.best.metric: \"lo\\u202ess\"",
		"{best: {metric: " + strings.Repeat("x", 65) + ", n: 1}}": "\ndurable_keep.best.metric: \"xxx",
		"{best: {metric: loss, n: 1, order: down}}":               "want min or max",
		"{newest: 3}": "\ndurable_keep.newest: [",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
