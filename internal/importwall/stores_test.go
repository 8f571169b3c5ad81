package importwall

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// storeRuns names each type that is a transfer.Store, those of tests included, with the file whose test runs transfer/storetest on it.
var storeRuns = map[string]string{
	"internal/bench.part":       "internal/bench/part_test.go",
	"internal/host.store":       "internal/host/store_test.go",
	"internal/mover.part":       "internal/mover/store_test.go",
	"internal/mover.slowPart":   "internal/mover/store_test.go", // part, of which a chunk is read late
	"internal/sim.deaf":         "internal/sim/store_test.go",
	"internal/sim.parts":        "internal/sim/store_test.go",
	"transfer.anySink":          "transfer/store_test.go",
	"transfer.memStore":         "transfer/store_test.go",
	"transfer_test.part":        "transfer/store_test.go",
	"transfer/storetest.Memory": "transfer/storetest/suite_test.go",
	"transfer/storetest.bent":   "transfer/storetest/suite_test.go", // breaks the contract on purpose, and is found out
	"transfer.Double":           "transfer/store_test.go",
}

// parsed is a file of a package. The package of a name's tests from outside has a name of its own.
type parsed struct {
	pkg  string
	file *ast.File
}

// TestStoresRunTheSuite: a store that the suite does not run over may be more lenient than the contract, and hide what is wrong.
func TestStoresRunTheSuite(t *testing.T) {
	var files []parsed
	texts := map[string]string{}
	for _, p := range packages(t) {
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles) {
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			of := p.name()
			if strings.HasSuffix(file.Name.Name, "_test") {
				of += "_test"
			}
			files = append(files, parsed{of, file})
			texts[p.name()+"/"+name] = string(text)
		}
	}
	found := stores(files)
	for _, name := range found {
		if storeRuns[name] == "" {
			t.Errorf("%s is a transfer.Store without a run of transfer/storetest: have its test run it, and name that in storeRuns", name)
		}
	}
	for name, file := range storeRuns {
		if !slices.Contains(found, name) {
			t.Errorf("%s is gone: it needs no line in storeRuns any more", name)
		}
		if text := texts[file]; !strings.Contains(text, "storetest.Run(") && !strings.Contains(text, "\tRun(t, ") {
			t.Errorf("%s: %s does not run the suite", name, file)
		}
	}
}

// stores names the types that are a transfer.Store: by methods of these shapes, or because they embed one that is.
func stores(files []parsed) []string {
	opens, accepts, others, embeds := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string][]string{}
	for _, p := range files {
		for _, d := range p.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil || len(d.Recv.List) != 1 {
					continue
				}
				of := p.pkg + "." + typeName(d.Recv.List[0].Type)
				switch params := paramTypes(d.Type); {
				case d.Name.Name == "Open" && slices.Equal(params, []string{"NodeName", "Key"}):
					opens[of] = true
				case d.Name.Name == "Accept" && slices.Equal(params, []string{"NodeName", "Key", "Manifest"}):
					accepts[of] = true
				case d.Name.Name == "Open" || d.Name.Name == "Accept":
					others[of] = true // it hides what is embedded
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok {
						embeds[p.pkg+"."+ts.Name.Name] = embedded(p, ts)
					}
				}
			}
		}
	}
	is := map[string]bool{"transfer.Store": true}
	for grown := true; grown; {
		grown = false
		for name, parts := range embeds {
			by := slices.ContainsFunc(parts, func(e string) bool { return is[e] })
			if !is[name] && !others[name] && (by || opens[name] && accepts[name]) {
				is[name], grown = true, true
			}
		}
	}
	delete(is, "transfer.Store")
	var list []string
	for name := range is {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// embedded names what a struct embeds, by the package's path in the module.
func embedded(p parsed, ts *ast.TypeSpec) (list []string) {
	st, ok := ts.Type.(*ast.StructType)
	if !ok {
		return nil
	}
	for _, f := range st.Fields.List {
		if len(f.Names) > 0 {
			continue
		}
		of := f.Type
		if star, ok := of.(*ast.StarExpr); ok {
			of = star.X
		}
		switch of := of.(type) {
		case *ast.Ident:
			list = append(list, p.pkg+"."+of.Name)
		case *ast.SelectorExpr:
			list = append(list, imported(p.file, of)+"."+of.Sel.Name)
		}
	}
	return list
}

// imported is the path, in the module, of the package that a selector names.
func imported(f *ast.File, of *ast.SelectorExpr) string {
	x, _ := of.X.(*ast.Ident)
	for _, i := range f.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		own, ok := strings.CutPrefix(path, module+"/")
		name := filepath.Base(own)
		if i.Name != nil {
			name = i.Name.Name
		}
		if ok && x != nil && name == x.Name {
			return own
		}
	}
	return ""
}

// typeName is the last name of a type: of a pointer, that which it points to.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.IndexExpr:
		return typeName(e.X)
	}
	return ""
}

// paramTypes names the types of a function's parameters, one for each.
func paramTypes(f *ast.FuncType) (list []string) {
	for _, p := range f.Params.List {
		list = append(list, slices.Repeat([]string{typeName(p.Type)}, max(1, len(p.Names)))...)
	}
	return list
}

// TestStoresAreFound shows that the check sees stores, by methods and by what they embed, and nothing else.
func TestStoresAreFound(t *testing.T) {
	const src = `package p
import "github.com/replicad/replicad/transfer"
type whole struct{}
func (*whole) Open(peer replica.NodeName, k transfer.Key) (transfer.Reader, error) { return nil, nil }
func (w whole) Accept(_ replica.NodeName, k transfer.Key, m replica.Manifest) (_ transfer.Sink, _ func(error) error, _ error) { return }
type half struct{}
func (half) Open(replica.NodeName, transfer.Key) (transfer.Reader, error) { return nil, nil }
type wraps struct { transfer.Store }
type wraps2 struct { *wraps; n int }
type hides struct { transfer.Store }
func (hides) Open(ctx context.Context) (net.Conn, error) { return nil, nil }
type names struct { st transfer.Store }
type lane struct{}
func (lane) Open(ctx context.Context) (net.Conn, error) { return nil, nil }
func (lane) Accept() (net.Conn, error) { return nil, nil }
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if got := stores([]parsed{{"p", file}}); !slices.Equal(got, []string{"p.whole", "p.wraps", "p.wraps2"}) {
		t.Errorf("found %v", got)
	}
}
