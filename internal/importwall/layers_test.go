package importwall

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	layerRow = regexp.MustCompile(`(?m)^\| (\d) \| (.*?) \|`)
	ticked   = regexp.MustCompile("`([^`]+)`")
	drawnRow = regexp.MustCompile(`(?m)^(\d| )   (\w.*?)(?:    |$)`)
)

// inTable reads the layers of CONTRIBUTING.md's table.
func inTable(page string) map[string]int {
	found := map[string]int{}
	for _, row := range layerRow.FindAllStringSubmatch(page, -1) {
		layer, _ := strconv.Atoi(row[1])
		for _, name := range ticked.FindAllStringSubmatch(row[2], -1) {
			found[name[1]] = layer
		}
	}
	return found
}

// drawn reads the layers of the drawing in docs/design.md, where a name may lack its "internal/".
func drawn(page string, walls map[string]wall) map[string]int {
	_, page, _ = strings.Cut(page, "\n## Layers\n")
	_, page, _ = strings.Cut(page, "```\n")
	page, _, _ = strings.Cut(page, "```\n")
	found, layer := map[string]int{}, 0
	for _, row := range drawnRow.FindAllStringSubmatch(page, -1) {
		if row[1] != " " {
			layer, _ = strconv.Atoi(row[1])
		}
		for _, name := range strings.Fields(row[2]) {
			if _, short := walls["internal/"+name]; short {
				name = "internal/" + name
			}
			found[name] = layer
		}
	}
	return found
}

// misplaced names the packages that a page puts in another layer than the walls do, or not at all.
func misplaced(walls map[string]wall, found map[string]int) (list []string) {
	for name, w := range walls {
		if at, ok := found[name]; w.layer != side && (!ok || at != w.layer) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// TestLayersOfThePages: the pages that newcomers read have each package in its layer, and docs/design.md says in a sentence what it is for.
func TestLayersOfThePages(t *testing.T) {
	read := func(path ...string) string {
		text, err := os.ReadFile(filepath.Join(append([]string{"..", ".."}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	design := read("docs", "design.md")
	if list := misplaced(walls, inTable(read("CONTRIBUTING.md"))); len(list) > 0 {
		t.Errorf("CONTRIBUTING.md has not in their layers: %v", list)
	}
	if list := misplaced(walls, drawn(design, walls)); len(list) > 0 {
		t.Errorf("docs/design.md does not draw in their layers: %v", list)
	}
	for name, w := range walls {
		if w.layer != side && name != "cmd/replicad" && !strings.Contains(design, "| `"+name+"` | ") {
			t.Errorf("docs/design.md does not say what %s is for", name)
		}
	}
}

// TestMisplacedPackagesAreSeen shows that the check can fail.
func TestMisplacedPackagesAreSeen(t *testing.T) {
	law := map[string]wall{"low": {0, nil, nil}, "internal/mid": {1, nil, nil}, "tool": {side, nil, nil}}
	for _, tc := range []struct {
		page, want string
	}{{"| 0 | `low` | x `internal/mid` |\n| 1 | `internal/mid` | y |\n", ""}, {"| 1 | `low`, `internal/mid` | x |\n", "low"}, {"| 0 | `low` | of `internal/mid` |\n", "internal/mid"}} {
		if got := strings.Join(misplaced(law, inTable(tc.page)), " "); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.page, got, tc.want)
		}
	}
	for _, tc := range []struct {
		page, want string
	}{{"1   other          x\n    mid            y\n0   low\n", ""}, {"1   mid  low      x\n", "low"}, {"0   low            mid\n", "internal/mid"}} {
		if got := strings.Join(misplaced(law, drawn("\n## Layers\n```\n"+tc.page+"```\n", law)), " "); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.page, got, tc.want)
		}
	}
}
