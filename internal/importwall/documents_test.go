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
	figureRow  = regexp.MustCompile(`(?m)^\| .*\| "(?:\.\.\. )?([^"]+)" \|$`)
	folders    = []string{"python", "internal", "docs", "libreplicad", "chaos", "bench", "examples", "cmd", "rng", "lock", "recovery", "replica", "transfer", "membership"}
	sourcePath = regexp.MustCompile(`^[\w./-]*\.(?:py|go|md|c|h)\b`)
)

// sourcePaths are the files of this repository that a text names, each after a space, a parenthesis or a quote. Only words that begin with a
// folder's name meet the expression: run over the whole text under the race detector it took longer than all other tests of this package.
func sourcePaths(text string) (list []string) {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(" \t\r\n\f(`\"", r) }) {
		if folder, _, found := strings.Cut(word, "/"); found && slices.Contains(folders, folder) {
			if path := sourcePath.FindString(word); path != "" {
				list = append(list, path)
			}
		}
	}
	return list
}

func TestSourcePaths(t *testing.T) {
	got := sourcePaths("docs/figures.md (see `python/tests/conftest.py:7`, \"lock/doc.go\")\n\tlibreplicad/include/replicad.h, not x/docs/f.md, docs/g.txt, docs/h.pyc or ./docs/i.md")
	if want := []string{"docs/figures.md", "python/tests/conftest.py", "lock/doc.go", "libreplicad/include/replicad.h"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestFiguresNameTheirRows: each figure of docs/figures.md names a row that bench/README.md has.
func TestFiguresNameTheirRows(t *testing.T) {
	root := filepath.Join("..", "..")
	figures, err := os.ReadFile(filepath.Join(root, "docs", "figures.md"))
	if err != nil {
		t.Fatal(err)
	}
	bench, err := os.ReadFile(filepath.Join(root, "bench", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := figureRow.FindAllStringSubmatch(string(figures), -1)
	for _, m := range rows {
		if plain := strings.ReplaceAll(m[1], "`", ""); !strings.Contains(strings.ReplaceAll(string(bench), "`", ""), plain) {
			t.Errorf("docs/figures.md has a figure of the row %q, which bench/README.md has not", m[1])
		}
	}
	if len(rows) < 15 {
		t.Errorf("%d rows were looked at", len(rows))
	}
}

// TestPathsInProse: a file of this repository that code or a page names is there.
func TestPathsInProse(t *testing.T) {
	root, paths := filepath.Join("..", ".."), 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if strings.HasPrefix(entry.Name(), ".venv") || slices.Contains([]string{".git", "bin", "build", "dist", "third_party", "testdata", "__pycache__", "node_modules"}, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".c", ".h", ".md"}, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, named := range sourcePaths(string(text)) {
			paths++
			if _, err := os.Stat(filepath.Join(root, named)); err == nil {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), named)); err != nil {
				t.Errorf("%s names %s, which is not there", path, named)
			}
		}
		return nil
	})
	if err != nil || paths < 50 {
		t.Errorf("%d paths were looked at: %v", paths, err)
	}
}
