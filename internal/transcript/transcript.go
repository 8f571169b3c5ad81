// Package transcript plays files of commands to a room or a rule, and compares what it prints with the files. It is for
// tests.
package transcript

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write what the transcripts in testdata now print back into them: read the diff")

// Do carries out one command and prints what came of it. An error ends the test.
type Do func(line string, out *strings.Builder) error

// Blocks plays testdata/*.txt, each to what fresh makes. A file is a list of blocks: command lines, a line "----", what
// they print, an empty line. Lines that begin with # are comments. nothing is written where a block prints nothing.
func Blocks(t *testing.T, nothing string, fresh func() Do) {
	t.Helper()
	files(t, func(text string) (string, error) {
		do, got := fresh(), &strings.Builder{}
		for block := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n\n") {
			commands, _, _ := strings.Cut(block, "\n----")
			printed, ran := &strings.Builder{}, false
			for line := range strings.SplitSeq(commands, "\n") {
				if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
					continue
				}
				ran = true
				if err := do(line, printed); err != nil {
					return "", fmt.Errorf("%q: %w; printed until then:\n%s", line, err, printed)
				}
			}
			got.WriteString(commands)
			if ran {
				got.WriteString("\n----\n" + cmp.Or(strings.TrimRight(printed.String(), "\n"), nothing))
			}
			got.WriteString("\n\n")
		}
		return strings.TrimRight(got.String(), "\n") + "\n", nil
	})
}

// Lines plays testdata/*.txt, each to what fresh makes. A line that begins with "> " is a command, and what it prints
// follows it. Empty lines and those that begin with # are comments.
func Lines(t *testing.T, fresh func() Do) {
	t.Helper()
	files(t, func(text string) (string, error) {
		do, got := fresh(), &strings.Builder{}
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			command, is := strings.CutPrefix(line, "> ")
			if is || line == "" || strings.HasPrefix(line, "#") {
				got.WriteString(line + "\n")
			}
			if is {
				if err := do(command, got); err != nil {
					return "", fmt.Errorf("%q: %w", command, err)
				}
			}
		}
		return got.String(), nil
	})
}

func files(t *testing.T, play func(text string) (string, error)) {
	t.Helper()
	names, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(names) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got, err := play(string(text))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			Same(t, name, got)
		})
	}
}

// Same compares a text with what a file has. With -rewrite it writes it there.
func Same(t *testing.T, name, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run with -rewrite, and read the diff):\n%s", name, firstDiff(string(want), got))
	}
}

// firstDiff is the first line of two texts that differs, with those around it.
func firstDiff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	at := func(s []string, i int) string {
		if i < len(s) {
			return s[i]
		}
		return "(the end)"
	}
	for i := range max(len(w), len(g)) {
		if a, b := at(w, i), at(g, i); a != b {
			return fmt.Sprintf("line %d\nwant %s\ngot  %s\n%s", i+1, a, b, strings.Join(g[i:min(len(g), i+20)], "\n"))
		}
	}
	return ""
}
