package host

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/control"
)

// casesOf are the types that the first type switch of a function names.
func casesOf(t *testing.T, file string, src any, function string) (types []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Name.Name != function {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			s, ok := n.(*ast.TypeSwitchStmt)
			if !ok || types != nil {
				return types == nil
			}
			for _, c := range s.Body.List {
				for _, e := range c.(*ast.CaseClause).List {
					types = append(types, typeText(e))
				}
			}
			return false
		})
	}
	return types
}

// typeText is a named type as reflection writes it.
func typeText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.X.(*ast.Ident).Name + "." + e.Sel.Name
	case *ast.Ident:
		return "host." + e.Name
	}
	return ""
}

// Both ends do something with each message that the table sends them: one that a switch leaves out would be dropped without a word.
func TestEveryMessageIsHandled(t *testing.T) {
	for _, end := range []struct {
		to             control.Direction
		file, function string
	}{{control.ToLeader, "../leader/links.go", "message"}, {control.ToNode, "link.go", "leaderSays"}} {
		cases := casesOf(t, end.file, nil, end.function)
		for _, typ := range control.HandledTypes(end.to) {
			if !slices.Contains(cases, typ) {
				t.Errorf("%s: %s has no case for %s", end.file, end.function, typ)
			}
		}
		for _, typ := range cases {
			if !slices.Contains(control.HandledTypes(end.to), typ) {
				t.Errorf("%s: %s has a case for %s, which the table does not send there", end.file, end.function, typ)
			}
		}
	}
	const short = "package host\nfunc message(m any) { switch m.(type) { case replica.Pinned, view: } }"
	if got := casesOf(t, "short.go", short, "message"); !slices.Equal(got, []string{"replica.Pinned", "host.view"}) {
		t.Errorf("the cases of a switch are read as %v", got)
	}
}
