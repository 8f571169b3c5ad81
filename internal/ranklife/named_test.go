package ranklife

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
)

// The signs of what can be a rank: it calls the library's join, or it makes the message that a rank has stopped. Each rank must.
var (
	joins = regexp.MustCompile(`\bC\.rp_join\(|"rp_join"|\brp_join\(h|wire\.MStopped\b|session\.Stopped\{|\bRP_M_STOPPED,`)
	built = []string{".git", ".venv", "bin", "dist", "build", "third_party", "node_modules", "__pycache__"}
)

// TestClientsAreNamed: a client that can be a rank is played, or testdata/clients.txt has the reason why not.
func TestClientsAreNamed(t *testing.T) {
	text, err := os.ReadFile("testdata/clients.txt")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		folder, why, ok := strings.Cut(line, ": ")
		if !ok || named[folder] != "" {
			t.Errorf("clients.txt: %q: want a folder, once, and what plays it, or why nothing does", line)
		}
		named[folder] = why
	}
	found := withRanks(t)
	for _, folder := range found {
		if named[folder] == "" {
			t.Errorf("%s can be a rank, and is not in testdata/clients.txt: have it play the table, or write down there why not", folder)
		}
	}
	for folder := range named {
		if !slices.Contains(found, folder) {
			t.Errorf("testdata/clients.txt names %s, which can be no rank any more", folder)
		}
	}
}

// withRanks lists the folders of the tree whose sources have such a sign.
func withRanks(t *testing.T) (found []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && slices.Contains(built, e.Name()):
			return filepath.SkipDir
		case !e.Type().IsRegular() || !slices.Contains([]string{".c", ".go", ".py"}, filepath.Ext(path)):
			return nil
		}
		b, err := os.ReadFile(path)
		if folder := filepath.ToSlash(filepath.Dir(path)); err == nil && joins.Match(b) && !slices.Contains(found, folder) {
			found = append(found, folder)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		found[i] = strings.TrimPrefix(found[i], root+"/")
	}
	return found
}

// TestParse: what is no table is refused, with its line.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"does open":                         "line 1",
		"== a\nshouts hello":                "line 2",
		"== a\ndoes":                        "line 2",
		"== a\n== a":                        "a second scenario",
		"== a\nas b":                        "no earlier scenario",
		"== a\ndoes x\n== b\ndoes y\nas a":  "no earlier scenario",
		"== a\nwithout python":              "without a reason",
		"# a comment\n\n== a\n does open\n": "",
	} {
		_, err := Parse(text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// notes is a test that is meant to fail.
type notes struct {
	testing.TB
	failures []string
}

func (n *notes) Helper() {}
func (n *notes) Failed() bool {
	return len(n.failures) > 0
}

func (n *notes) Errorf(format string, _ ...any) { n.failures = append(n.failures, format) }

// sent is a node whose rank has sent what it will.
type sent chan session.Event

func (s sent) Events() <-chan session.Event { return s }
func (sent) Watch(session.Peer) error       { return nil }
func (sent) Leave()                         {}
func (sent) Return()                        {}

// got is a program that has got an answer.
type got chan string

func (got) Do(string) error          { return nil }
func (g got) Answers() <-chan string { return g }

// TestPlaysFail: what differs from the table fails a play.
func TestPlaysFail(t *testing.T) {
	hello := session.Hello{Peer: nobody{}, Header: wire.RankHeader{Request: 1}, Hello: wire.Hello{World: 1}}
	for text, fails := range map[string]bool{
		"sends hello rank 0 of 1 ?":   true,
		"sends hello rank 0 of 2 ?":   false,
		"sends attach ?":              false,
		"life none":                   true,
		"life attached":               false,
		"gets refused: is held":       true,
		"gets refused: is free":       false,
		"gets ok":                     false,
		"leader dances":               false,
		"leader plans 1:0":            false,
		"gets refused\nlife attached": false,
		"may hello rank 0 of 1 ?\ngets refused\nlife none":         true,
		"sends hello rank 0 of 1 ?\ngets refused\nsends attach ?":  false,
		"sends hello rank 0 of 1 ?\nleader opens":                  false,
		"sends hello rank 0 of 1 ?\nlife none\ngets refused: held": true,
	} {
		list, err := Parse("== a\n" + text)
		if err != nil {
			t.Fatal(err)
		}
		n, node, answers := &notes{TB: t}, make(sent, 2), make(got, 1)
		node <- hello
		node <- session.Exited{}
		answers <- `refused: replicad: open: rank 0 is held by process 7`
		Play(n, list[0], node, answers)
		if n.Failed() == fails {
			t.Errorf("%q: failures %q", text, n.failures)
		}
	}
}

// nobody is a peer that takes all and answers nothing.
type nobody struct{ session.Peer }

func (nobody) Send(wire.RankHeader, []byte) error { return nil }
