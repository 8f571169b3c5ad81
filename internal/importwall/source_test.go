package importwall

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The pure packages: event in, new state and effects out.
var (
	pure = []string{"replica", "lock", "recovery", "recovery/odds", "recovery/place", "recovery/plan", "rng", "internal/durable/retain"}
	// No rules, and nothing in them or in their tests runs beside anything else either.
	alone = []string{
		"internal/durable/format", "internal/durable/safetensors", "internal/durable/sealed", "internal/durable/formats/hf", "internal/durable/formats/pickles", "internal/durable/formats/pt",
		"internal/exposure", "internal/host/admission", "internal/host/adoption", "internal/host/agents", "internal/host/carried", "internal/host/growth",
		"internal/host/job", "internal/host/lacks",
		"internal/host/launchers", "internal/host/mirrors", "internal/host/push", "internal/host/rank", "internal/host/remarks", "internal/host/restore", "internal/host/room", "internal/host/scrub", "internal/importwall",
		"internal/leader/agents", "internal/leader/durable", "internal/leader/reread", "internal/leader/voters", "internal/memplan", "internal/rendezvous",
		"internal/want", "internal/wire",
	}
	// What no pure package imports.
	impure = []string{"net", "os", "sync", "sync/atomic", "math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog", "context", "unsafe", "syscall"}
	// What of package time is no clock.
	timeWithoutClock = []string{"Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}
)

func TestPurePackages(t *testing.T) {
	for _, p := range packages(t) {
		if !slices.Contains(pure, p.name()) {
			continue
		}
		for _, name := range p.GoFiles {
			path := filepath.Join(p.Dir, name)
			src, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, complaint := range impurities(t, path, string(src), p.name() == "replica") {
				t.Error(complaint)
			}
		}
	}
}

// impurities names what a pure package's file must not have.
func impurities(t *testing.T, path, src string, noTime bool) (list []string) {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	bad := func(pos token.Pos, format string, args ...any) {
		list = append(list, fmt.Sprintf("%v: %s", fset.Position(pos), fmt.Sprintf(format, args...)))
	}
	for _, spec := range file.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(impure, name) || noTime && name == "time" {
			bad(spec.Pos(), "a pure package imports %s", name)
		}
		if spec.Name != nil && name == "time" {
			bad(spec.Pos(), "time under another name hides the clock from this check")
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			bad(n.Pos(), "a pure package starts a goroutine")
		case *ast.SelectStmt, *ast.SendStmt:
			bad(n.Pos(), "a pure package waits or sends")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && !slices.Contains(timeWithoutClock, n.Sel.Name) {
				bad(n.Pos(), "a pure package uses time.%s", n.Sel.Name)
			}
		}
		return true
	})
	return list
}

// TestImpuritiesAreSeen shows that the check can fail.
func TestImpuritiesAreSeen(t *testing.T) {
	for src, want := range map[string]string{
		`import "fmt"; var _ = fmt.Sprint`:                     "",
		`import "time"; var _ time.Duration = time.Second`:     "",
		`import "time"; var _ = time.Now`:                      "time.Now",
		`import t "time"; var _ = t.Now`:                       "another name",
		`import "os"; var _ = os.Args`:                         "imports os",
		`import "math/rand/v2"; var _ = rand.Int`:              "imports math/rand/v2",
		`func f() { go f() }`:                                  "goroutine",
		`func f(c chan int) { select { case <-c: default: } }`: "waits",
	} {
		got := strings.Join(impurities(t, "x.go", "package x\n"+src, false), "\n")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", src, got, want)
		}
	}
	if got := impurities(t, "x.go", "package x\nimport \"time\"\nvar _ time.Duration", true); len(got) != 1 {
		t.Errorf("package replica may import time: %q", got)
	}
}

// TestNoRaceDetectorWhereNothingRuns: `make unit` tests the pure packages and those of alone without it, so neither they nor their tests start a goroutine.
func TestNoRaceDetectorWhereNothingRuns(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if want := "/replicad/(" + strings.Join(pure, "|") + ")\n"; !strings.Contains(string(makefile), want) {
		t.Errorf("the Makefile's PURE does not end with %q, as this list does", want)
	}
	var under []string
	for _, name := range alone {
		under = append(under, strings.TrimPrefix(name, "internal/"))
	}
	if want := "ALONE      := .*/replicad/internal/(" + strings.Join(under, "|") + ")\n"; !strings.Contains(string(makefile), want) {
		t.Errorf("the Makefile has no line %q, as this list says", want)
	}
	left := slices.Concat(pure, alone)
	for _, p := range packages(t) {
		i := slices.Index(left, p.name())
		if i < 0 {
			continue
		}
		left = slices.Delete(left, i, i+1)
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles) {
			src, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range starts(t, name, src) {
				t.Errorf("%s/%s starts a goroutine, and `make unit` looks for no races here", p.name(), at)
			}
		}
	}
	if len(left) > 0 {
		t.Errorf("no such packages: %q", left)
	}
}

// TestNothingIsLeftOutOfBoth: what a package's tests leave out under the race detector, cases of internal/racing or whole files, `make unit` runs without it.
func TestNothingIsLeftOutOfBoth(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	twice := twice(string(makefile))
	if !slices.Contains(twice, "internal/sim") {
		t.Fatalf("the Makefile's TWICE is read as %q", twice)
	}
	for _, p := range packages(t) {
		left := slices.Contains(slices.Concat(p.TestImports, p.XTestImports), module+"/internal/racing")
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			src, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			left = left || strings.HasPrefix(string(src), "//go:build !race\n")
		}
		switch p.name() {
		case "internal/bubble": // asks how it is built, and leaves nothing out
		default:
			if left != slices.Contains(twice, p.name()) {
				t.Errorf("%s leaves something out under the race detector: %v; the Makefile's TWICE has %q", p.name(), left, twice)
			}
		}
	}
}

// TestRacedAreThere: each test that internal/trouble runs under the race detector is one of its tests.
func TestRacedAreThere(t *testing.T) {
	list, err := os.ReadFile("../trouble/raced_test.go")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../trouble/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(src)
	}
	names := regexp.MustCompile(`"(Test\w+)"`).FindAllStringSubmatch(string(list), -1)
	for _, m := range names {
		if !strings.Contains(all.String(), "\nfunc "+m[1]+"(t *testing.T) {") {
			t.Errorf("internal/trouble has no %s", m[1])
		}
	}
	if len(names) < 10 {
		t.Errorf("%d names were read", len(names))
	}
}

// twice lists the packages of the Makefile's TWICE.
func twice(makefile string) (list []string) {
	_, rest, _ := strings.Cut(makefile, "\nTWICE      := ")
	line, _, _ := strings.Cut(rest, "\n")
	under := ""
	for _, word := range strings.Fields(line) {
		if word == "$(addprefix" {
			continue
		}
		if prefix, ok := strings.CutPrefix(word, "./internal/,"); ok {
			under, word = "internal/", prefix
		}
		list = append(list, under+strings.TrimSuffix(strings.TrimPrefix(word, "./"), ")"))
	}
	return list
}

// starts lists where a file starts goroutines, or asks testing to.
func starts(t *testing.T, name string, src []byte) (at []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		_, statement := n.(*ast.GoStmt)
		call, _ := n.(*ast.SelectorExpr)
		if statement || call != nil && slices.Contains([]string{"Parallel", "RunParallel", "AfterFunc", "Go"}, call.Sel.Name) {
			at = append(at, files.Position(n.Pos()).String())
		}
		return true
	})
	return at
}

// TestStartsSees shows that the check can fail.
func TestStartsSees(t *testing.T) {
	for body, want := range map[string]int{"go f()": 1, "func() { go f() }()": 1, "t.Parallel()": 1, "time.AfterFunc(1, f)": 1, "wg.Go(f)": 1, "f(); f()": 0} {
		if at := starts(t, "x.go", []byte("package x; func f() { "+body+" }")); len(at) != want {
			t.Errorf("%s: found %v, want %d", body, at, want)
		}
	}
}

// TestPackageComments: every package says what it is for.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		var comments []string
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if file.Doc != nil {
				comments = append(comments, commentFault(file.Name.Name, filepath.Base(p.Dir), file.Doc.Text()))
			}
		}
		if len(comments) != 1 || comments[0] != "" {
			t.Errorf("%s: want one package comment, there are %d: %q", p.name(), len(comments), comments)
		}
	}
}

// commentFault says what is wrong with a package comment.
func commentFault(name, dir, text string) string {
	want := "Package " + name + " "
	if name == "main" {
		want = "Command " + dir + " "
	}
	if !strings.HasPrefix(text, want) || len(text) < 60 {
		return fmt.Sprintf("want %q and a sentence, not %.60q", want, text)
	}
	return ""
}

func TestCommentFaultsAreSeen(t *testing.T) {
	sentence := "does one thing, owns this and must not import that, for a reason."
	for _, tc := range []struct{ name, dir, text, want string }{
		{"wire", "wire", "Package wire " + sentence, ""}, {"main", "replicad", "Command replicad " + sentence, ""},
		{"wire", "wire", "Package wires " + sentence, "Package wire "}, {"main", "replicad", "Package main " + sentence, "Command replicad "}, {"wire", "wire", "Package wire is.", "a sentence"},
	} {
		if got := commentFault(tc.name, tc.dir, tc.text); (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.text, got, tc.want)
		}
	}
}
