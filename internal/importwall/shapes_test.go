package importwall

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

var lower = flag.Bool("lower", false, "write what has become smaller into testdata/shapes.md; what has grown is never written")

// measure is one number of a package's shape.
type measure string

// The measures. Tests do not count.
const (
	fields   measure = "fields"   // of the type with the most, plain data aside
	methods  measure = "methods"  // of the type with the most
	knot     measure = "knot"     // files that name each other's functions, types and methods in a loop: the most in one
	function measure = "function" // lines of the longest
	file     measure = "file"     // lines of the longest
	clock    measure = "clock"    // readings of the clock, in the rooms of owners alone
)

// goals is what each package keeps to that has no row in testdata/shapes.md.
var goals = map[measure]int{fields: 20, methods: 50, knot: 12, function: 80, file: 500, clock: 0}

// found is a measure's number, and where it was seen.
type found struct {
	n  int
	at string
}

// source is a package of this module with its types.
type source struct {
	name  string
	pkg   *types.Package
	fset  *token.FileSet
	files []*ast.File
	text  map[string][]byte // by path
	info  *types.Info
}

// sources loads every package of this module, once for all tests. What they import comes from the compiler's export data.
func sources(t *testing.T) []source {
	t.Helper()
	list, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

var loaded = sync.OnceValues(func() (list []source, err error) {
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles, CgoFiles       []string
		Standard                bool
	}
	cmd := exec.Command("go", "list", "-tags", "invariants", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,CgoFiles,Standard", "./...")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports, own := map[string]string{}, []listed{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[l.ImportPath] = l.Export
		if l.ImportPath == module || strings.HasPrefix(l.ImportPath, module+"/") {
			own = append(own, l)
		}
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, l := range own {
		s := source{name: strings.TrimPrefix(l.ImportPath, module+"/"), fset: fset, text: map[string][]byte{}, info: &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}}
		for _, name := range slices.Concat(l.GoFiles, l.CgoFiles) {
			path := filepath.Join(l.Dir, name)
			src, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			f, err := parser.ParseFile(fset, path, src, parser.ParseComments)
			if err != nil {
				return nil, err
			}
			s.files, s.text[path] = append(s.files, f), src
		}
		// What C declares has no types here, and is no file of this package.
		pkg, err := (&types.Config{Importer: imports, FakeImportC: true, Error: func(error) {}}).Check(l.ImportPath, fset, s.files, s.info)
		if err != nil && len(l.CgoFiles) == 0 {
			return nil, err
		}
		s.pkg = pkg
		list = append(list, s)
	}
	return list, nil
})

// shape measures a package.
func (s source) shape() map[measure]found {
	got := map[measure]found{}
	most := func(m measure, n int, at string) {
		if n > got[m].n {
			got[m] = found{n, at}
		}
	}
	s.types(most)
	s.clocked(most)
	loop := s.knot()
	most(knot, len(loop), strings.Join(loop, " "))
	for _, f := range s.files {
		path := s.fset.Position(f.Pos()).Filename
		name := filepath.Base(path)
		most(file, bytes.Count(s.text[path], []byte("\n")), name)
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok {
				most(function, s.fset.Position(d.End()).Line-s.fset.Position(d.Pos()).Line+1, name+" "+d.Name.Name)
			}
		}
	}
	return got
}

// types measures the types that are more than plain data: those with a field that others can't set.
func (s source) types(most func(measure, int, string)) {
	for _, o := range s.info.Defs {
		name, ok := o.(*types.TypeName)
		if !ok || name.IsAlias() || name.Parent() != name.Pkg().Scope() {
			continue
		}
		named, ok := name.Type().(*types.Named)
		if !ok {
			continue
		}
		most(methods, named.NumMethods(), name.Name())
		if st, ok := named.Underlying().(*types.Struct); ok {
			for i := range st.NumFields() {
				if !st.Field(i).Exported() {
					most(fields, st.NumFields(), name.Name())
				}
			}
		}
	}
}

// knot is the largest set of files each of which names, over others, a function, type or method of each other one.
func (s source) knot() []string {
	base := func(p token.Pos) string { return filepath.Base(s.fset.Position(p).Filename) }
	names := map[string]map[string]bool{}
	for id, o := range s.info.Uses {
		switch o := o.(type) {
		case *types.Func:
			o = o.Origin()
			if o.Pkg() == nil || o.Pkg().Path() != module+"/"+s.name {
				continue
			}
		case *types.TypeName:
			if o.Pkg() == nil || o.Pkg().Path() != module+"/"+s.name || o.Parent() != o.Pkg().Scope() {
				continue
			}
		default:
			continue
		}
		from, to := base(id.Pos()), base(o.Pos())
		if from != to {
			if names[from] == nil {
				names[from] = map[string]bool{}
			}
			names[from][to] = true
		}
	}
	return largestLoop(names)
}

// largestLoop is the largest strongly connected set of a graph: two nodes are in one where each reaches the other. The graphs are of a few dozen nodes.
func largestLoop(names map[string]map[string]bool) (largest []string) {
	reach := map[string]map[string]bool{}
	for from := range names {
		seen, next := map[string]bool{}, []string{from}
		for len(next) > 0 {
			at := next[len(next)-1]
			next = next[:len(next)-1]
			for to := range names[at] {
				if !seen[to] {
					seen[to] = true
					next = append(next, to)
				}
			}
		}
		reach[from] = seen
	}
	for from := range reach {
		var loop []string
		for to := range reach[from] {
			if reach[to][from] {
				loop = append(loop, to)
			}
		}
		if slices.Sort(loop); len(loop) > len(largest) || len(loop) == len(largest) && slices.Compare(loop, largest) < 0 {
			largest = loop
		}
	}
	return largest
}

// rooms are the packages whose owner tells them the time.
var rooms = regexp.MustCompile(`^(lock|recovery|recovery/.*|internal/host/.*|internal/leader/.*)$`)

// clocked counts a room's readings of the clock.
func (s source) clocked(most func(measure, int, string)) {
	n, at := 0, ""
	for id, o := range s.info.Uses {
		if f, ok := o.(*types.Func); ok && f.Pkg() != nil && f.Pkg().Path() == "time" && slices.Contains([]string{"Now", "Since", "Until"}, f.Name()) {
			n, at = n+1, filepath.Base(s.fset.Position(id.Pos()).Filename)
		}
	}
	if rooms.MatchString(s.name) {
		most(clock, n, at)
	}
}

// How the whole tree is written. What no package has alone may only fall, too.
const (
	tree      = "tree"
	sentences = measure("sentences") // of more than 30 words, in comments
	said      = measure("said")      // says, said, tells and told in comments: the dictionary has better words
	wide      = measure("wide")      // lines above 140 columns
)

var (
	sentence = regexp.MustCompile(`[.?!]\s+`)
	saying   = regexp.MustCompile(`\b(says|said|tells|told)\b`)
)

// prose measures how the packages are written.
func prose(list []source) map[measure]int {
	got := map[measure]int{}
	for _, s := range list {
		for _, text := range s.text {
			for l := range bytes.Lines(text) {
				if utf8.RuneCount(bytes.TrimSuffix(l, []byte("\n")))+3*bytes.Count(l, []byte("\t")) > 140 { // a tab is four columns
					got[wide]++
				}
			}
		}
		for _, f := range s.files {
			for _, c := range f.Comments {
				for _, one := range sentence.Split(c.Text(), -1) {
					if len(strings.Fields(one)) > 30 {
						got[sentences]++
					}
				}
				got[said] += len(saying.FindAllString(c.Text(), -1))
			}
		}
	}
	return got
}

// row is a line of testdata/shapes.md.
type row struct {
	what    string
	measure measure
	most    int
	why     string
}

func (r row) String() string {
	return fmt.Sprintf("| %s | %s | %d | %s |", r.what, r.measure, r.most, r.why)
}

// table reads the rows, and what stands above them.
func table(t *testing.T) (head []string, rows []row) {
	t.Helper()
	b, err := os.ReadFile("testdata/shapes.md")
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(b)) {
		text = strings.TrimSpace(text)
		cells := strings.Split(strings.Trim(text, "| "), " | ")
		if len(cells) == 4 {
			if n, err := strconv.Atoi(cells[2]); err == nil {
				rows = append(rows, row{cells[0], measure(cells[1]), n, cells[3]})
				continue
			}
		}
		if len(rows) > 0 {
			t.Fatalf("testdata/shapes.md: %q is no row", text)
		}
		head = append(head, text)
	}
	return head, rows
}

// judge compares what was found with the goals and the rows. It returns the rows as they may be from now on: less, or lower.
func judge(rows []row, got map[string]map[measure]found) (left []row, complaints []string) {
	allowed := map[string]map[measure]bool{}
	for _, r := range rows {
		if allowed[r.what] == nil {
			allowed[r.what] = map[measure]bool{}
		}
		allowed[r.what][r.measure] = true
		f, there := got[r.what][r.measure]
		goal, bounded := goals[r.measure]
		switch {
		case f.n > r.most:
			complaints = append(complaints, fmt.Sprintf("%s: %s is %d (%s) and was %d: it may only fall", r.what, r.measure, f.n, f.at, r.most))
		case !there || bounded && f.n <= goal:
			complaints = append(complaints, fmt.Sprintf("%s: %s is %d, which needs no row any more: go test ./internal/importwall -run TestShapes -lower", r.what, r.measure, f.n))
			continue
		case f.n < r.most:
			complaints = append(complaints, fmt.Sprintf("%s: %s is %d and no longer %d: go test ./internal/importwall -run TestShapes -lower", r.what, r.measure, f.n, r.most))
			r.most = f.n
		}
		left = append(left, r)
	}
	for what, measures := range got {
		for m, f := range measures {
			if goal, bounded := goals[m]; (!bounded || f.n > goal) && !allowed[what][m] {
				complaints = append(complaints, fmt.Sprintf("%s: %s is %d (%s), and %d is the most", what, m, f.n, f.at, goal))
			}
		}
	}
	slices.Sort(complaints)
	return left, complaints
}

// TestShapes holds testdata/shapes.md: what is larger than the goals only gets smaller.
func TestShapes(t *testing.T) {
	list := sources(t)
	got := map[string]map[measure]found{tree: {}}
	for _, s := range list {
		got[s.name] = s.shape()
	}
	for m, n := range prose(list) {
		got[tree][m] = found{n: n}
	}
	head, rows := table(t)
	left, complaints := judge(rows, got)
	if *lower {
		text := strings.Join(head, "\n")
		for _, r := range left {
			text += "\n" + r.String()
		}
		if err := os.WriteFile("testdata/shapes.md", []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, c := range complaints {
		t.Error(c)
	}
}

// TestShapesAreJudged shows that the check can fail.
func TestShapesAreJudged(t *testing.T) {
	rows := []row{{"a", fields, 30, "x"}, {"b", fields, 30, "x"}, {"c", fields, 30, "x"}, {"d", fields, 30, "x"}, {"gone", fields, 30, "x"}, {tree, said, 5, "x"}}
	got := map[string]map[measure]found{"a": {fields: {30, "T"}}, "b": {fields: {31, "T"}}, "c": {fields: {29, "T"}}, "d": {fields: {20, "T"}}, "e": {fields: {21, "T"}, knot: {12, "f"}}, tree: {said: {n: 4}}}
	left, complaints := judge(rows, got)
	if want := []row{{"a", fields, 30, "x"}, {"b", fields, 30, "x"}, {"c", fields, 29, "x"}, {tree, said, 4, "x"}}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
	if len(complaints) != 6 {
		t.Errorf("complaints: %s", strings.Join(complaints, "\n"))
	}
	for i, want := range []string{"b: fields is 31 (T) and was 30", "c: fields is 29", "d: fields is 20, which needs no row", "e: fields is 21 (T), and 20 is the most", "gone: fields", "tree: said is 4"} {
		if i < len(complaints) && !strings.HasPrefix(complaints[i], want) {
			t.Errorf("complaint %q, want %q", complaints[i], want)
		}
	}
}

// TestLargestLoop: files that reach each other over others are one knot, and what hangs on it is not.
func TestLargestLoop(t *testing.T) {
	to := func(names ...string) map[string]bool {
		m := map[string]bool{}
		for _, n := range names {
			m[n] = true
		}
		return m
	}
	got := largestLoop(map[string]map[string]bool{"a": to("b", "x"), "b": to("c"), "c": to("a"), "d": to("e"), "e": to("d", "a"), "x": to("y")})
	if !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("the largest loop is %v", got)
	}
	if got := largestLoop(map[string]map[string]bool{"a": to("b")}); got != nil {
		t.Errorf("a graph without loops has %v", got)
	}
}
