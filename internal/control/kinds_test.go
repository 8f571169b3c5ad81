package control

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/replicad/replicad/internal/wire"
)

// declaredKinds are the constants of type wire.Kind in a file.
func declaredKinds(t *testing.T, file string, src any) map[string]wire.Kind {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]wire.Kind{}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.SelectorExpr); !ok || typ.Sel.Name != "Kind" || len(spec.Values) != len(spec.Names) {
			return true
		}
		for i, name := range spec.Names {
			lit, ok := spec.Values[i].(*ast.BasicLit)
			if !ok {
				t.Fatalf("%s: %s is no plain number", file, name)
			}
			k, err := strconv.ParseUint(lit.Value, 0, 8)
			if err != nil {
				t.Fatalf("%s: %s: %v", file, name, err)
			}
			kinds[name.Name] = wire.Kind(k)
		}
		return true
	})
	return kinds
}

// TestEveryKindHasARow: a kind that is declared and is in no row of the table could be neither sent nor read.
func TestEveryKindHasARow(t *testing.T) {
	kinds := declaredKinds(t, "kinds.go", nil)
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		if _, ok := byKind[kinds[name]]; !ok {
			t.Errorf("%s (%d) has no row in the table", name, kinds[name])
		}
	}
	if len(kinds) != len(table) {
		t.Errorf("%d kinds are declared, and the table has %d rows", len(kinds), len(table))
	}
	const short = "package control\nconst (\n\tkindNew wire.Kind = 0x71\n\tother = 3\n)"
	if got := declaredKinds(t, "short.go", short); len(got) != 1 || got["kindNew"] != 0x71 {
		t.Errorf("the kinds of a file are read as %v", got)
	}
}
