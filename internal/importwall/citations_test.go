package importwall

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	section  = regexp.MustCompile(`protocol\s+(?://\s+|\*\s+)?section ([0-9]+(?:\.[0-9]+)?)`)
	decision = regexp.MustCompile(`\bD([1-9][0-9]{0,2})\b`)
	headings = regexp.MustCompile(`(?m)^##+ ([0-9]+(?:\.[0-9]+)?)\.? `)
)

// cited are the sections of the protocol that a text cites, and its decisions where it is known to mean these by such words.
func cited(text string, decisions bool) (list []string) {
	for _, m := range section.FindAllStringSubmatch(text, -1) {
		list = append(list, "section "+m[1])
	}
	if decisions {
		for _, m := range decision.FindAllStringSubmatch(text, -1) {
			list = append(list, "D"+m[1])
		}
	}
	return list
}

// TestCitations: each section and decision that code or a document cites is there.
func TestCitations(t *testing.T) {
	root := filepath.Join("..", "..")
	known := map[string]bool{}
	protocol, err := os.ReadFile(filepath.Join(root, "docs", "protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range headings.FindAllStringSubmatch(string(protocol), -1) {
		known["section "+m[1]] = true
	}
	index, err := os.ReadFile(filepath.Join(root, "docs", "decisions", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\| D([0-9]+) \| \[.*\]\((.*)\)`).FindAllStringSubmatch(string(index), -1) {
		known["D"+m[1]] = true
		text, err := os.ReadFile(filepath.Join(root, "docs", "decisions", m[2]))
		if err != nil || !strings.HasPrefix(string(text), "# D"+m[1]+" ") {
			t.Errorf("decision D%s: %s does not begin with it: %v", m[1], m[2], err)
		}
	}
	files, citations := 0, 0
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if strings.HasPrefix(entry.Name(), ".venv") || slices.Contains([]string{".git", "bin", "build", "dist", "third_party", "testdata", "__pycache__", "node_modules"}, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		ext := filepath.Ext(path)
		if !slices.Contains([]string{".go", ".c", ".h", ".py", ".md"}, ext) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for _, c := range cited(string(text), ext == ".md" || ext == ".go") {
			if citations++; !known[c] {
				t.Errorf("%s cites %s, which docs/protocol.md or docs/decisions/README.md does not have", path, c)
			}
		}
		return nil
	})
	if err != nil || files < 200 || citations < 100 {
		t.Errorf("%d citations in %d files were looked at: %v", citations, files, err)
	}
}

func TestCited(t *testing.T) {
	got := cited("// as said (protocol section 5.3, D7), and (protocol\n// section 6, Plan)", true)
	if want := []string{"section 5.3", "section 6", "D7"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
