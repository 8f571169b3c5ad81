package importwall

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	recordTitle  = regexp.MustCompile(`^# (D[0-9]+) `)
	recordStatus = regexp.MustCompile(`(?m)^Status: (in force|changed by D[0-9]+(?:, D[0-9]+)*|dropped by D[0-9]+)\.$`)
	recordRow    = regexp.MustCompile(`(?m)^\| (D[0-9]+) \| \[.*\]\((.*)\) \| (.*) \|$`)
)

// unsettled names what is wrong with the status of records, given by their files' names, and with the index.
func unsettled(records map[string]string, index string) (wrong []string) {
	rows, numbers, file := map[string][]string{}, map[string]bool{}, map[string]string{}
	for _, m := range recordRow.FindAllStringSubmatch(index, -1) {
		rows[m[2]] = append(rows[m[2]], m[1]+" "+m[3])
	}
	for _, name := range slices.Sorted(maps.Keys(records)) {
		m := recordTitle.FindStringSubmatch(records[name])
		if m == nil {
			wrong = append(wrong, name+": its first line has no number")
			continue
		}
		if numbers[m[1]] {
			wrong = append(wrong, name+": "+file[m[1]]+" has its number")
		}
		numbers[m[1]], file[m[1]] = true, name
	}
	for _, name := range slices.Sorted(maps.Keys(records)) {
		status := recordStatus.FindAllStringSubmatch(records[name], -1)
		if len(status) != 1 {
			wrong = append(wrong, name+": wants one line `Status: in force.`, `Status: changed by Dn, Dm.` or `Status: dropped by Dn.`")
			continue
		}
		for _, m := range decision.FindAllString(status[0][1], -1) {
			if !numbers[m] || file[m] == name {
				wrong = append(wrong, name+": "+status[0][1]+", and no other record is "+m)
			}
		}
		if m := recordTitle.FindStringSubmatch(records[name]); m != nil && !slices.Equal(rows[name], []string{m[1] + " " + status[0][1]}) {
			wrong = append(wrong, name+": wants one row of the index, as "+m[1]+", "+status[0][1])
		}
	}
	return wrong
}

// TestDecisions: a reader of any record sees whether it still holds, and the index by topic has all of them.
func TestDecisions(t *testing.T) {
	folder := filepath.Join("..", "..", "docs", "decisions")
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	records, index := map[string]string{}, ""
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if entry.Name() == "README.md" {
			index = string(text)
		} else {
			records[entry.Name()] = string(text)
		}
	}
	for _, w := range unsettled(records, index) {
		t.Error(w)
	}
	if len(records) < 190 {
		t.Errorf("%d records were read", len(records))
	}
}

func TestUnsettled(t *testing.T) {
	good := map[string]string{"1.md": "# D1 A\n\nStatus: changed by D2, D3.\n", "2.md": "# D2 B\n\nStatus: in force.\n", "3.md": "# D3 C\n\nStatus: dropped by D2.\n"}
	index := "| D1 | [A](1.md) | changed by D2, D3 |\n| D2 | [B](2.md) | in force |\n| D3 | [C](3.md) | dropped by D2 |\n"
	if wrong := unsettled(good, index); wrong != nil {
		t.Errorf("of good records: %v", wrong)
	}
	for name, c := range map[string]struct{ text, index, want string }{
		"none":        {"# D2 B\n\nText.\n", index, "wants one line"},
		"another":     {"# D2 B\n\nStatus: accepted.\n", index, "wants one line"},
		"two":         {"# D2 B\n\nStatus: in force.\nStatus: dropped by D1.\n", index, "wants one line"},
		"nobody":      {"# D2 B\n\nStatus: changed by D9.\n", index, "no other record is D9"},
		"itself":      {"# D2 B\n\nStatus: dropped by D2.\n", index, "no other record is D2"},
		"number":      {"# B\n\nStatus: in force.\n", index, "no number"},
		"twice":       {"# D1 B\n\nStatus: in force.\n", index, "1.md has its number"},
		"no row":      {good["2.md"], strings.Replace(index, "| D2 |", "| |", 1), "one row"},
		"another row": {good["2.md"], strings.Replace(index, "in force", "dropped by D1", 1), "one row"},
	} {
		records := maps.Clone(good)
		records["2.md"] = c.text
		if wrong := unsettled(records, c.index); len(wrong) == 0 || !strings.Contains(strings.Join(wrong, "\n"), c.want) {
			t.Errorf("%s: %q, want %q", name, wrong, c.want)
		}
	}
}
