package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/replicad/replicad/replica"
)

// MaxFileBytes is how large a configuration file may be; a longer one is some other file. maxTokens bounds its words, signs and
// comments, and so how deep it can be nested: what the YAML library does with more than that takes minutes and gigabytes.
const (
	MaxFileBytes = 64 << 10
	maxTokens    = 4096
)

// Load reads a file, fills in the defaults for what it leaves out and validates the result: a zero in the file is taken as it is,
// and refused where it is out of range. Its errors begin with the path and report every fault; none shows the secret.
func Load(path string) (*Config, error) {
	data, st, err := readFile(path)
	if err != nil {
		return nil, err
	}
	c, faults, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("config %s: %w", path, err)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("config %s: %w", path, err)
	}
	c = c.relativeTo(dir)
	c.fillPaths()
	if mode := st.Mode(); c.JobSecret != "" && mode.Perm()&0o077 != 0 {
		faults = append(faults, &FieldError{"job_secret", fmt.Sprintf("in a file of mode %04o", mode.Perm()), "a file that its owner alone may read: chmod 600 " + path, "a user who reads it can make the token of every job"})
	}
	faults = append(faults, c.believe(path, st))
	if err := errors.Join(append(faults, c.Validate())...); err != nil {
		return nil, fmt.Errorf("config %s:\n%w", path, err)
	}
	return c, nil
}

func readFile(path string) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a named pipe is to be refused, not waited for
	if err != nil {
		return nil, nil, fmt.Errorf("config: %w (give --config FILE, or start one node with --dev)", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("config: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("config %s: not a regular file: name the configuration itself", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, nil, fmt.Errorf("config: %w", err)
	}
	if len(data) > MaxFileBytes {
		return nil, nil, fmt.Errorf("config %s: more than %d bytes: is it a configuration?", path, MaxFileBytes)
	}
	return data, st, nil
}

// parse reads one YAML document over the defaults; paths that the file leaves out are empty. What can't be taken (unknown fields,
// values of another type) is among the faults, and c is the rest; err says that there is nothing to go on with.
func parse(data []byte) (c *Config, faults []error, err error) {
	// The YAML library panics on some malformed documents (testdata/fuzz has them); to the caller that is a bad file like any other.
	defer func() {
		if r := recover(); r != nil {
			c, faults, err = nil, nil, errors.New("not YAML that can be read") // what it says may be of any line, the secret's too
		}
	}()
	if len(data) > MaxFileBytes {
		return nil, nil, fmt.Errorf("%d bytes, at most %d", len(data), MaxFileBytes)
	}
	if bytes.HasPrefix(data, []byte("\ufeff")) {
		return nil, nil, errors.New("it begins with a byte order mark (U+FEFF), which editors do not show: save it as UTF-8 without one")
	}
	if !utf8.Valid(data) {
		return nil, nil, errors.New("it is not UTF-8 text: save it as UTF-8")
	}
	words := lexer.Tokenize(string(data))
	if err := checkTokens(words); err != nil {
		return nil, nil, err
	}
	file, err := parser.Parse(words, 0)
	if err != nil {
		return nil, nil, errors.New(quoted.ReplaceAllString(yaml.FormatError(err, false, false), `"..."`)) // nor with the lines around it: one of them may be the secret's
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case body != nil:
			return nil, nil, errors.New("more than one YAML document (---): want one")
		default:
			body = doc.Body
		}
	}
	if body == nil {
		return nil, nil, errors.New("the file is empty: see docs/replicad.yaml for an example")
	}
	if _, ok := body.(ast.MapNode); !ok {
		return nil, nil, fmt.Errorf("%s a configuration has lines like `node: a`", place(body))
	}
	c = new(Default())
	r := &reader{}
	r.fill(body, reflect.ValueOf(c).Elem(), "")
	return c, r.faults, nil
}

// quoted is what the YAML library repeats of a file.
var quoted = regexp.MustCompile(`(?s)".*"`)

// checkTokens refuses what a configuration needs none of. A few aliases can stand for gigabytes.
func checkTokens(words token.Tokens) error {
	if len(words) > maxTokens {
		return fmt.Errorf("more than %d words and signs: is it a configuration?", maxTokens)
	}
	for _, w := range words {
		var what string
		switch w.Type {
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			what = "anchors and aliases (& and *)"
		case token.TagType:
			what = "tags (!)"
		case token.DirectiveType:
			what = "directives (%)"
		default:
			continue
		}
		return fmt.Errorf("[%d:%d] %s are not for configurations: write the value itself, in quotes if it begins with that sign", w.Position.Line, w.Position.Column, what)
	}
	return nil
}

// reader fills a configuration from a document and collects what can't be taken.
type reader struct{ faults []error }

// fault says what is wrong with a value.
func (r *reader) fault(n ast.Node, field, value, want string) {
	r.faults = append(r.faults, &FieldError{field, strings.TrimSpace(place(n) + " " + value), want, "what was meant would keep its default"})
}

// place is where a node stands.
func place(n ast.Node) string {
	t := n.GetToken()
	return fmt.Sprintf("[%d:%d]", t.Position.Line, t.Position.Column)
}

// fill sets v, which the file calls field, to what n says; a section that is left empty says nothing.
func (r *reader) fill(n ast.Node, v reflect.Value, field string) {
	_, empty := n.(*ast.NullNode)
	if k, ok := v.Addr().Interface().(*replica.Keep); ok {
		if _, rules := n.(ast.MapNode); !rules { // the number of the newest says all
			v = reflect.ValueOf(&k.Last).Elem()
		}
	}
	switch kind := v.Kind(); {
	case kind == reflect.Struct || kind == reflect.Map || kind == reflect.Slice:
		if !empty {
			r.fillSection(n, v, field)
		}
		if slices.Contains(mustSay, field) && v.Len() == 0 {
			r.fault(n, field, "nothing", "a list, or no such line for none")
		}
	case empty:
		r.fault(n, field, "nothing", "a value, or no such line for the default")
	default:
		r.fillScalar(n, v, field)
	}
}

func (r *reader) fillSection(n ast.Node, v reflect.Value, field string) {
	if s, ok := n.(*ast.SequenceNode); ok && v.Kind() == reflect.Slice {
		v.Set(reflect.MakeSlice(v.Type(), len(s.Values), len(s.Values)))
		for i, e := range s.Values {
			r.fill(e, v.Index(i), fmt.Sprintf("%s[%d]", field, i))
		}
		return
	}
	m, ok := n.(ast.MapNode)
	if !ok || v.Kind() == reflect.Slice {
		r.fault(n, field, "", map[reflect.Kind]string{reflect.Slice: "a list", reflect.Map: "names and values", reflect.Struct: "the fields of this section"}[v.Kind()])
		return
	}
	if v.Kind() == reflect.Map {
		v.Set(reflect.MakeMap(v.Type()))
	}
	known := fieldsOf(v)
	prefix := field
	if prefix != "" {
		prefix += "."
	}
	for it := m.MapRange(); it.Next(); {
		key := it.Key().GetToken()
		name := prefix + key.Value
		if v.Kind() == reflect.Map {
			if replica.CheckName(key.Value) != nil { // as Validate has it; a name such as << would be read otherwise when it was written
				r.fault(it.Key(), name, strconv.Quote(key.Value), "a key of 1 to 63 of a-z 0-9 - _ .")
				continue
			}
			e := reflect.New(v.Type().Elem()).Elem()
			r.fill(it.Value(), e, name)
			v.SetMapIndex(reflect.ValueOf(key.Value), e)
			continue
		}
		if f, ok := known[key.Value]; ok {
			r.fill(it.Value(), f, name)
			continue
		}
		r.faults = append(r.faults, &FieldError{name, place(it.Key()) + " unknown", nearest(key.Value, slices.Sorted(maps.Keys(known))), "it would be ignored, and what was meant would keep its default"})
	}
}

// nearest are the names that a misspelt key may mean: those that two letters make of it, or that it begins with; all of them where none is near.
func nearest(key string, names []string) string {
	var near []string
	for _, name := range names {
		if d := edits(key, name); d < 3 && d < len(name)-1 || len(name) > 2 && strings.HasPrefix(key, name) {
			near = append(near, name)
		}
	}
	if len(near) == 0 {
		return "one of " + strings.Join(names, ", ")
	}
	return strings.Join(near, " or ") + " (did you mean that?)"
}

// edits is how many bytes have to be put in, taken out or changed to make b of a; 3 and more may be said as the difference of their lengths.
func edits(a, b string) int {
	if d := max(len(a), len(b)) - min(len(a), len(b)); d > 2 {
		return d
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := left
			if a[i] != b[j] {
				d = min(left, row[j], row[j+1]) + 1
			}
			left, row[j+1] = row[j+1], d
		}
	}
	return row[len(b)]
}

// fieldsOf are the fields of a struct by their names in a file.
func fieldsOf(v reflect.Value) map[string]reflect.Value {
	if v.Kind() != reflect.Struct {
		return nil
	}
	known := map[string]reflect.Value{}
	for f, at := range v.Fields() {
		if !f.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		known[name] = at
	}
	return known
}

// mustSay are the fields of which an empty value would mean the default, in silence.
var mustSay = []string{"socket", "admin_socket", "keeper_socket", "durable_dir", "durable", "spool_dir", "job_secret", "listen", "gossip_listen", "durable_recipients", "durable_identities", "durable_identities_command"}

func (r *reader) fillScalar(n ast.Node, v reflect.Value, field string) {
	text, ok := scalar(n)
	if !ok {
		r.fault(n, field, "", "one value")
		return
	}
	want := ""
	switch to := v.Addr().Interface().(type) {
	case *time.Duration:
		if d, err := time.ParseDuration(text); err == nil {
			*to = d
		} else {
			want = "a time such as 200ms, 10s or 5m"
		}
	case *replica.Age:
		if err := to.UnmarshalText([]byte(text)); err != nil {
			want = "an age such as 7d or 36h"
		}
	case *Bytes:
		if err := to.UnmarshalText([]byte(text)); err != nil {
			want = "a size such as 512MiB: a whole number with an optional unit B, KiB, MiB, GiB or TiB"
		}
	case *int:
		if i, err := strconv.Atoi(text); err == nil {
			*to = i
		} else {
			want = "a whole number"
		}
	case *bool:
		if *to = text == "true"; !*to && text != "false" { // which is its default, too
			want = "true or false"
		}
	default:
		v.SetString(text)
		if text == "" && slices.Contains(mustSay, field) {
			want = "a value, or no such line for the default"
		}
	}
	if want != "" {
		r.fault(n, field, strconv.Quote(text), want)
	}
}

// scalar is a value as it stands in the file, without its quotes.
func scalar(n ast.Node) (text string, ok bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// relativeTo returns a copy whose relative paths count from dir.
func (c Config) relativeTo(dir string) *Config {
	for _, p := range []*string{&c.Socket, &c.AdminSocket, &c.KeeperSocket, &c.StateDir, &c.DurableDir, &c.SpoolDir, &c.Store.Credentials, &c.DurableIdentities, &c.PKI.CA, &c.PKI.Cert, &c.PKI.Key, &c.PKI.GossipKey, &c.PKI.Operator} {
		if *p != "" && !filepath.IsAbs(*p) && !(p == &c.SpoolDir && *p == NoSpool) {
			*p = filepath.Join(dir, *p)
		}
	}
	return &c
}

// Write stores the configuration at path, for tools that make one.
func (c *Config) Write(path string) error {
	data, err := c.text()
	if err != nil {
		return fmt.Errorf("config %s: %w", path, err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	return nil
}

func (c *Config) text() ([]byte, error) { return yaml.Marshal(c) }
