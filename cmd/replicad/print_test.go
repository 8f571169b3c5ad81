package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/status"
)

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
		if err := status.Print(&b, s); err != nil {
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

// printing are the folders of what prints for people.
var printing = []string{".", "../../internal/admin", "../../internal/launch", "../../internal/status", "../../internal/durable/place", "../../internal/durable/ckpt"}

// TestOnlyPrintfPrints: a verb that printed by itself would bring back what printf is for.
func TestOnlyPrintfPrints(t *testing.T) {
	var files []string
	for _, dir := range printing {
		more, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(more) == 0 {
			t.Fatal(dir, more, err)
		}
		files = append(files, more...)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
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
				t.Errorf("%v: fmt.%s: use console.Printf", set.Position(n.Pos()), s.Sel.Name)
			}
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "io" && s.Sel.Name == "WriteString" {
				t.Errorf("%v: io.WriteString: use console.Write", set.Position(n.Pos()))
			}
			if x, ok := s.X.(*ast.SelectorExpr); ok && (x.Sel.Name == "out" || x.Sel.Name == "err") && s.Sel.Name == "Write" && name != "chaos.go" { // that writes JSON lines
				t.Errorf("%v: %s.Write: use console.Write", set.Position(n.Pos()), x.Sel.Name)
			}
			return true
		})
	}
}

// evil clears a terminal, and looks like a line of ours behind that.
const evil = "evil\x1b[2J\x1b[H\r\nleader   evil (term 99)\u009b31m\u202e"
