package importwall

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// uncalled names what tests alone use, and why it stays. The list may only shrink.
var uncalled = map[string]string{
	"chaos/netfault.Network.Counts":          "tests of partitions see what was dropped",
	"internal/shm.Arena.Candidate":           "ranks of the simulation read their words in Go",
	"internal/shm.Arena.Committed":           "ranks of the simulation read their words in Go",
	"internal/shm.Arena.OnStore":             "a test lets the daemon die between two stores",
	"internal/endpoint.Conn.Class":           "tests see by which class a connection came",
	"internal/endpoint.coalescing.ReadBatch": "quic-go asks for it by an interface without a name",
	"internal/wire.ParseOrder":               "the rank's side, which is C: ranks of tests are Go",
	"internal/wire.ParseKVValue":             "the rank's side, which is C: ranks of tests are Go",
	"internal/wire.ParseKVTotal":             "the rank's side, which is C: ranks of tests are Go",
	"internal/wire.ParseScoped":              "the rank's side, which is C: ranks of tests are Go",
	"internal/wire.AppendPause":              "the rank's side, which is C: ranks of tests are Go",
	"internal/wire.AppendRecipe":             "the rank's side, which is C: ranks of tests are Go",
	"internal/control.HandledTypes":          "a test compares it with what host and leader handle",
	"internal/durable/remote.Client.Hasten":  "suites of stores wait a twentieth of the time",
	"recovery/plan.Make":                     "the whole rule as one function, which tests compare with its twin",
	"lock.MayEnter":                          "the rule of the C library, which its tests compare with",
	"lock.MaySeal":                           "the rule of the C library, which its tests compare with",
	"lock.NextFence":                         "the rule of the C library, which its tests compare with",
	"lock.NextGood":                          "the rule of the C library, which its tests compare with",
	"lock.NextSlot":                          "the rule of the C library, which its tests compare with",
	"internal/spool.Spool.Empty":             "tests see that nothing is left",
	"internal/holding.Arena.Staged":          "tests see what the daemon itself writes to",
	"internal/leader.Stepped.Pass":           "tests step a leader",
	"internal/leader.Stepped.Unlink":         "tests step a leader",
}

// helpers are packages for tests, and the client library: others call them.
var helpers = []string{
	"libreplicad", "internal/ranklife",
	"internal/bubble", "internal/durable/catalogtest", "internal/durable/durabletest", "internal/durable/formats/formatstest", "internal/durable/memory", "internal/durable/storetest", "internal/fixture",
	"internal/host/room/roomtest", "internal/journal/journaltest", "internal/leader/leadertest", "internal/leakcheck", "internal/otheruser", "internal/racing", "internal/sim", "internal/transcript",
	"transfer/storetest",
}

// TestNamesHaveACaller: what a package declares, the program uses. What tests alone use has no caller: nobody would miss it, and it is read as if it did something.
func TestNamesHaveACaller(t *testing.T) {
	list, left := sources(t), maps.Clone(uncalled)
	used, asked := map[string]bool{}, map[string]bool{"Is": true, "As": true, "Unwrap": true} // those of package errors have no name
	for _, s := range list {
		interfaces(asked, map[*types.Package]bool{}, s.pkg)
		for _, f := range s.files {
			ast.Inspect(f, func(n ast.Node) bool { // also those that have no name
				if it, ok := n.(*ast.InterfaceType); ok {
					for _, m := range it.Methods.List {
						for _, name := range m.Names {
							asked[name.Name] = true
						}
					}
				}
				return true
			})
		}
		for id, o := range s.info.Uses {
			if name := nameOf(o); name != "" && !within(s, id.Pos(), o) {
				used[name] = true
			}
		}
	}
	for _, s := range list {
		if slices.Contains(helpers, s.name) {
			continue
		}
		for id, o := range s.info.Defs {
			name := nameOf(o)
			_, isConst := o.(*types.Const) // one of an enumeration's values has its place whether it is named or not
			f, isFunc := o.(*types.Func)
			switch {
			case name == "" || used[name] || isConst || id.Name == "_" || id.Name == "main" || id.Name == "init":
			case isFunc && f.Signature().Recv() != nil && asked[id.Name]: // some interface may be what calls it
			case uncalled[name] != "":
				delete(left, name)
			default:
				at := s.fset.Position(id.Pos())
				t.Errorf("%s:%d: %s is used by tests alone: remove it, or name it in uncalled with the reason why it stays", filepath.Base(at.Filename), at.Line, name)
			}
		}
	}
	for name := range left {
		t.Errorf("%s is gone, or has a caller: it needs no line in uncalled any more", name)
	}
}

// interfaces takes in the methods that interfaces of a package and of what it imports have.
func interfaces(asked map[string]bool, seen map[*types.Package]bool, p *types.Package) {
	if seen[p] {
		return
	}
	seen[p] = true
	for _, name := range p.Scope().Names() {
		if it, ok := p.Scope().Lookup(name).Type().Underlying().(*types.Interface); ok {
			for i := range it.NumMethods() {
				asked[it.Method(i).Name()] = true
			}
		}
	}
	for _, other := range p.Imports() {
		interfaces(asked, seen, other)
	}
}

// nameOf is a package-level declaration or method of this module by its full name, and nothing of what lies in functions, of fields and of other modules.
func nameOf(o types.Object) string {
	if o == nil || o.Pkg() == nil || !strings.HasPrefix(o.Pkg().Path(), module+"/") {
		return ""
	}
	pkg := strings.TrimPrefix(o.Pkg().Path(), module+"/")
	if f, ok := o.(*types.Func); ok {
		if f = f.Origin(); f.Signature().Recv() != nil {
			recv := f.Signature().Recv().Type()
			if p, ok := recv.(*types.Pointer); ok {
				recv = p.Elem()
			}
			named, ok := recv.(*types.Named)
			if !ok || types.IsInterface(named) {
				return ""
			}
			return fmt.Sprintf("%s.%s.%s", pkg, named.Obj().Name(), f.Name())
		}
	}
	if o.Parent() != o.Pkg().Scope() {
		return ""
	}
	return pkg + "." + o.Name()
}

// within tells whether a use of a function stands in the function itself.
func within(s source, at token.Pos, o types.Object) bool {
	for _, f := range s.files {
		if f.FileStart <= at && at < f.FileEnd {
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Pos() <= at && at < fn.End() {
					return s.info.Defs[fn.Name] == o
				}
			}
		}
	}
	return false
}
