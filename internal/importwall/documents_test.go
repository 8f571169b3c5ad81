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
	sourcePath = regexp.MustCompile(`(?:^|[\s(\x60"])((?:python|internal|docs|libreplicad|chaos|bench|examples|cmd|rng|lock|recovery|replica|transfer|membership)/[\w./-]*\.(?:py|go|md|c|h))\b`)
)

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
		for _, m := range sourcePath.FindAllStringSubmatch(string(text), -1) {
			paths++
			if _, err := os.Stat(filepath.Join(root, m[1])); err == nil {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s names %s, which is not there", path, m[1])
			}
		}
		return nil
	})
	if err != nil || paths < 50 {
		t.Errorf("%d paths were looked at: %v", paths, err)
	}
}
