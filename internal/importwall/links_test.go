package importwall

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]*)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	inline  = regexp.MustCompile("`[^`\n]*`")
	notSlug = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// broken names the links of a page whose file or heading is not there.
func broken(page string) ([]string, int) {
	text, err := os.ReadFile(page)
	if err != nil {
		return []string{err.Error()}, 0
	}
	var wrong []string
	links := link.FindAllStringSubmatch(inline.ReplaceAllString(fence.ReplaceAllString(string(text), ""), "x"), -1)
	for _, m := range links {
		path, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(path, ":") {
			continue // on another host
		}
		target := page
		if path != "" {
			target = filepath.Join(filepath.Dir(page), path)
		}
		if _, err := os.Stat(target); err != nil {
			wrong = append(wrong, page+": "+m[1]+": no such file")
			continue
		}
		if anchor != "" && !anchors(target)[anchor] {
			wrong = append(wrong, page+": "+m[1]+": no such heading")
		}
	}
	return wrong, len(links)
}

// anchors are the names that a browser of Markdown gives a page's headings.
func anchors(page string) map[string]bool {
	text, _ := os.ReadFile(page) // a page that can't be read has none
	names := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
		names[strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return names
}

// TestLinks: a page that moves takes the links to it along.
func TestLinks(t *testing.T) {
	pages, links := 0, 0
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == "third_party" || name == "build" || name == "bin" || name == "dist" || len(name) > 2 && name[0] == '.') {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		wrong, n := broken(path)
		for _, w := range wrong {
			t.Error(w)
		}
		pages, links = pages+1, links+n
		return nil
	})
	if err != nil || pages < 50 || links < 100 {
		t.Errorf("%d links in %d pages were followed: %v", links, pages, err)
	}
}

func TestBrokenLinks(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	text := "# A *page*: `x`, y\n[a](#a-page-x-y) [b](page.md#no) [c](none.md) [d](https://example.org/none) `[e](none.md)`\n```\n[f](none.md)\n```\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong, links := broken(page)
	if len(wrong) != 2 || !strings.HasSuffix(wrong[0], "page.md#no: no such heading") || !strings.HasSuffix(wrong[1], "none.md: no such file") || links != 4 {
		t.Errorf("of %d links: %v", links, wrong)
	}
}
