package main

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// evil clears a terminal, and looks like a line of ours behind that.
const evil = "evil\x1b[2J\x1b[H\r\nleader   evil (term 99)\u009b31m\u202e"

func TestPrintfKeepsToItsLine(t *testing.T) {
	for _, c := range []struct {
		arg  any
		verb string
	}{{evil, "%s"}, {errors.New(evil), "%v"}, {[]string{evil}, "%v"}, {map[string]string{"zone": evil}, "%v"}, {replica.NodeName(evil), "%-40s"}} {
		var b strings.Builder
		printf(&b, "a\t"+c.verb+"\n", c.arg)
		rest, ok := strings.CutSuffix(b.String(), "\n")
		rest, also := strings.CutPrefix(rest, "a\t")
		if !ok || !also || strings.ContainsFunc(rest, func(r rune) bool { return !unicode.IsPrint(r) }) || !strings.Contains(rest, "term 99") {
			t.Errorf("%T with %s is printed as %q", c.arg, c.verb, b.String())
		}
	}
	var b strings.Builder
	printf(&b, "%5d|%-4s|%.3s|%v\n", 42, "ab", "abcdef", paragraph("one\ta\ntwo\x1b[2J\n"))
	if want := "   42|ab  |abc|one\ta\ntwo [2J\n\n"; b.String() != want { // a paragraph keeps its lines
		t.Errorf("printed %q, want %q", b.String(), want)
	}
}

// TestStatusOfHostileTexts: whatever a rank, an operator or a node's label says, the status has as many lines as without it.
func TestStatusOfHostileTexts(t *testing.T) {
	show := func(text string) string {
		s := someStatus()
		for i := range s.Jobs {
			j := &s.Jobs[i]
			j.EndReason, j.DurableError, j.Stalled, j.WentBack, j.Resumed, j.Stopped = text, text, text, text, text, text
			j.Waiting = []string{text}
		}
		s.Leaving, s.Certificate, s.DurableSilent = text, text, text
		s.NoLink = []control.NoLink{{Node: "b", Why: text}}
		s.Warnings = []string{text}
		var b strings.Builder
		if err := printStatus(&b, s); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	plain, hostile := show("plain"), show(evil)
	if a, b := strings.Count(plain, "\n"), strings.Count(hostile, "\n"); a != b {
		t.Errorf("%d lines with a plain text, %d with a hostile one:\n%s", a, b, hostile)
	}
	if i := strings.IndexFunc(hostile, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("the status has %q", hostile[i:min(len(hostile), i+20)])
	}
}

// TestStatusSaysThatCoresAreTaken: of a daemon that waits for cores, and of no other.
func TestStatusSaysThatCoresAreTaken(t *testing.T) {
	for ms, says := range map[int64]bool{0: false, lateFrom: false, 1500: true} {
		s := someStatus()
		s.LateMS = ms
		var b strings.Builder
		if err := printStatus(&b, s); err != nil || strings.Contains(b.String(), "taken by others: this daemon waited up to 1500 ms") != says {
			t.Errorf("%d ms, %v:\n%s", ms, err, b.String())
		}
	}
}

func TestJSONIsPrintedAndTheSame(t *testing.T) {
	var b strings.Builder
	if err := writeJSON(&b, json.RawMessage(`{"text":"\u009b31m \u202e`+"\u009b"+`"}`)); err != nil {
		t.Fatal(err)
	}
	if i := strings.IndexFunc(b.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("printed %q", b.String())
	}
	var back struct{ Text string }
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back.Text != "\u009b31m \u202e\u009b" {
		t.Errorf("read back %q, %v", back.Text, err)
	}
}

// TestOnlyPrintfPrints: a verb that printed by itself would bring back what printf is for.
func TestOnlyPrintfPrints(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 20 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if name == "print.go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, name, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "fmt" && (strings.HasPrefix(s.Sel.Name, "Fprint") || strings.HasPrefix(s.Sel.Name, "Print")) {
				t.Errorf("%v: fmt.%s: use printf", set.Position(n.Pos()), s.Sel.Name)
			}
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "io" && s.Sel.Name == "WriteString" {
				t.Errorf("%v: io.WriteString: use write", set.Position(n.Pos()))
			}
			if x, ok := s.X.(*ast.SelectorExpr); ok && (x.Sel.Name == "out" || x.Sel.Name == "err") && s.Sel.Name == "Write" && name != "chaos.go" { // that writes JSON lines
				t.Errorf("%v: %s.Write: use write", set.Position(n.Pos()), x.Sel.Name)
			}
			return true
		})
	}
}
