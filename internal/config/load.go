package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// MaxFileBytes is how large a configuration file may be; a longer one is some other file.
const MaxFileBytes = 256 << 10

// Load reads a file, fills in the defaults for what it leaves out and validates the result: a zero in the file is taken as it is,
// and refused where it is out of range. Its errors begin with the path and report every fault.
func Load(path string) (*Config, error) {
	data, err := readFile(path)
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
	if err := errors.Join(append(faults, c.Validate())...); err != nil {
		return nil, fmt.Errorf("config %s:\n%w", path, err)
	}
	return c, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w (give --config FILE, or start one node with --dev)", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("config %s: more than %d bytes: is it a configuration?", path, MaxFileBytes)
	}
	return data, nil
}

// unset stands for an absent path while a file is read, so that an empty one that was written is told from it.
const unset = "\x00"

// parse reads one YAML document over the defaults; paths that the file leaves out are empty. What can't be taken (unknown fields,
// values of another type) is among the faults, and c is the rest; err says that there is nothing to go on with.
func parse(data []byte) (c *Config, faults []error, err error) {
	// The YAML library panics on some malformed documents (testdata/fuzz has them); to the caller that is a bad file like any other.
	defer func() {
		if r := recover(); r != nil {
			c, faults, err = nil, nil, fmt.Errorf("not YAML that can be read: %v", r)
		}
	}()
	if len(data) > MaxFileBytes {
		return nil, nil, fmt.Errorf("%d bytes, at most %d", len(data), MaxFileBytes)
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, nil, formatted(err)
	}
	decode := func(options ...yaml.DecodeOption) (more *yaml.Decoder, err error) {
		c = new(Default())
		for _, f := range c.optionalPaths() {
			*f.path = unset
		}
		more = yaml.NewDecoder(bytes.NewReader(data), options...)
		return more, more.Decode(c)
	}
	more, err := decode(yaml.Strict())
	if errors.Is(err, io.EOF) {
		return nil, nil, errors.New("the file is empty: see the example in README.md")
	}
	if err != nil {
		if _, ok := file.Docs[0].Body.(ast.MapNode); !ok {
			return nil, nil, formatted(err)
		}
		strict := err
		faults = unknownFields(file.Docs[0].Body, reflect.TypeFor[Config](), "")
		if more, err = decode(); err != nil {
			faults = append(faults, formatted(err))
		} else if len(faults) == 0 {
			faults = append(faults, formatted(strict)) // an unknown field that came by an alias
		}
	}
	if second := more.Decode(new(Config)); err == nil && !errors.Is(second, io.EOF) { // after an error the decoder is where it was
		return nil, nil, errors.New("more than one YAML document (---): want one")
	}
	for _, f := range c.optionalPaths() {
		switch *f.path {
		case unset:
			*f.path = ""
		case "":
			faults = append(faults, &FieldError{f.field, `""`, "a path, or no such line for the default", "an empty one would silently mean the default, which may not be what was meant"})
		}
	}
	return c, faults, nil
}

func formatted(err error) error { return errors.New(yaml.FormatError(err, false, true)) }

// unknownFields reports each key of a mapping, and of those in it, that typ has no field for. It follows no alias.
func unknownFields(n ast.Node, typ reflect.Type, prefix string) (list []error) {
	if a, ok := n.(*ast.AnchorNode); ok {
		n = a.Value
	}
	if s, ok := n.(*ast.SequenceNode); ok && typ.Kind() == reflect.Slice {
		for i, v := range s.Values {
			list = append(list, unknownFields(v, typ.Elem(), fmt.Sprintf("%s[%d]", prefix, i))...)
		}
	}
	m, ok := n.(ast.MapNode)
	if !ok || typ.Kind() != reflect.Struct {
		return list
	}
	known := map[string]reflect.Type{}
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		known[name] = f.Type
	}
	if prefix != "" {
		prefix += "."
	}
	for it := m.MapRange(); it.Next(); {
		key := it.Key().GetToken()
		if it.Key().IsMergeKey() {
			continue
		}
		if typ, ok := known[key.Value]; ok {
			list = append(list, unknownFields(it.Value(), typ, prefix+key.Value)...)
			continue
		}
		list = append(list, &FieldError{prefix + key.Value, fmt.Sprintf("[%d:%d] unknown", key.Position.Line, key.Position.Column),
			"one of " + strings.Join(slices.Sorted(maps.Keys(known)), ", "), "it would be ignored, and what was meant would keep its default"})
	}
	return list
}

// relativeTo returns a copy whose relative paths count from dir.
func (c Config) relativeTo(dir string) *Config {
	for _, p := range []*string{&c.Socket, &c.AdminSocket, &c.KeeperSocket, &c.StateDir, &c.DurableDir, &c.PKI.CA, &c.PKI.Cert, &c.PKI.Key, &c.PKI.GossipKey} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	return &c
}

// Write stores the configuration at path, for tools that make one.
func (c *Config) Write(path string) error {
	data, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("config %s: %w", path, err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	return nil
}
