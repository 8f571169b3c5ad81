package format

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// once tells which key an object of a document has twice. encoding/json takes the last one of them, and takes a field by its name in any case: two
// programs may read one document as two. b is JSON that was read into a value of a type.
func once(b []byte, t reflect.Type) error {
	s := scan{b: b}
	return s.value(t)
}

// scan walks valid JSON along a type. Below what reads itself, and below nil, every object is one of any keys.
type scan struct {
	b  []byte
	at int
}

var (
	readsJSON = reflect.TypeFor[json.Unmarshaler]()
	readsText = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// inner is the type that a value is read into; nil: any.
func inner(t reflect.Type) reflect.Type {
	for t != nil {
		if reflect.PointerTo(t).Implements(readsJSON) || reflect.PointerTo(t).Implements(readsText) {
			return nil
		}
		if t.Kind() != reflect.Pointer {
			return t
		}
		t = t.Elem()
	}
	return nil
}

func (s *scan) value(t reflect.Type) error {
	t = inner(t)
	switch s.next() {
	case '{':
		return s.object(t)
	case '[':
		return s.list(t)
	case '"':
		s.text()
		return nil
	}
	for s.at < len(s.b) && !strings.ContainsRune(",]} \t\r\n", rune(s.b[s.at])) { // a number or a word
		s.at++
	}
	return nil
}

// next passes over spaces, and tells what comes.
func (s *scan) next() byte {
	for s.at < len(s.b) {
		switch s.b[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return s.b[s.at]
		}
	}
	return 0
}

// text passes over a text, and returns it as it lies there.
func (s *scan) text() []byte {
	from := s.at
	for s.at++; s.at < len(s.b) && s.b[s.at] != '"'; s.at++ {
		if s.b[s.at] == '\\' {
			s.at++
		}
	}
	s.at = min(s.at+1, len(s.b))
	return s.b[from:s.at]
}

func (s *scan) list(t reflect.Type) error {
	var of reflect.Type
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		of = t.Elem()
	}
	for s.at++; s.next() != ']' && s.at < len(s.b); {
		if err := s.value(of); err != nil {
			return err
		}
		if s.next() == ',' {
			s.at++
		}
	}
	s.at++
	return nil
}

func (s *scan) object(t reflect.Type) error {
	var keys []string // most objects have few
	var many map[string]bool
	for s.at++; s.next() != '}' && s.at < len(s.b); {
		var key string
		if err := json.Unmarshal(s.text(), &key); err != nil {
			return err
		}
		var of reflect.Type
		if t != nil && t.Kind() == reflect.Struct {
			field, ok := byTag(t, key)
			if !ok {
				return fmt.Errorf("key %.64q is none of its fields", key)
			}
			of = field
		} else if t != nil && t.Kind() == reflect.Map {
			of = t.Elem()
		}
		twice := many[key]
		for _, k := range keys {
			twice = twice || k == key
		}
		if twice {
			return fmt.Errorf("key %.64q is there twice", key)
		}
		if len(keys) < 32 {
			keys = append(keys, key)
		} else {
			if many == nil {
				many = make(map[string]bool)
			}
			many[key] = true
		}
		s.next() // the colon
		s.at++
		if err := s.value(of); err != nil {
			return err
		}
		if s.next() == ',' {
			s.at++
		}
	}
	s.at++
	return nil
}

// byTag finds the field that has exactly this name, also in a struct within.
func byTag(t reflect.Type, key string) (reflect.Type, bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			if of := inner(f.Type); of != nil && of.Kind() == reflect.Struct {
				if found, ok := byTag(of, key); ok {
					return found, true
				}
			}
			continue
		}
		if name == "" {
			name = f.Name
		}
		if name == key && f.IsExported() {
			return f.Type, true
		}
	}
	return nil, false
}
