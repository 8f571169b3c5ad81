package lock

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write what the transcripts in testdata now print back into them")

// TestTranscripts runs testdata/*.txt. A file is a list of blocks: command lines, a line "----", what they print, an empty
// line. Run with -rewrite after a change, and read the diff.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := runTranscript(string(text))
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("%s differs:\n%s", file, firstDiff(string(text), got))
			}
		})
	}
}

func runTranscript(text string) (string, error) {
	w := newWorld()
	var out strings.Builder
	for _, block := range strings.Split(strings.TrimRight(text, "\n"), "\n\n") {
		commands, _, _ := strings.Cut(block, "\n----")
		out.WriteString(commands)
		var printed strings.Builder
		ran := false
		for _, line := range strings.Split(commands, "\n") {
			if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			ran = true
			if err := w.run(line, &printed); err != nil {
				return "", fmt.Errorf("%q: %w", line, err)
			}
		}
		if ran {
			out.WriteString("\n----\n" + strings.TrimRight(printed.String(), "\n"))
		}
		out.WriteString("\n\n")
	}
	return strings.TrimRight(out.String(), "\n") + "\n", nil
}

func firstDiff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		var a, b string
		if i < len(w) {
			a = w[i]
		}
		if i < len(g) {
			b = g[i]
		}
		if a != b {
			return fmt.Sprintf("line %d\nwant %s\ngot  %s", i+1, a, b)
		}
	}
	return ""
}
