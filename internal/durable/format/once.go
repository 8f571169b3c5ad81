package format

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/replicad/replicad/replica"
)

// once tells which key an object of a document has twice. encoding/json takes the last one of them, and takes a field by its name in any case: two
// programs may read one document as two. b is JSON that was read into a value of a type.
func once(b []byte, t reflect.Type) error {
	s := scan{b: b}
	return s.value(planOf(t))
}

// scan walks valid JSON along a type. Below what reads itself, and below nil, every object is one of any keys.
type scan struct {
	b  []byte
	at int
}

// plan is what a scan asks of a type: reflection takes longer than all the rest of a scan, and documents have few types.
type plan struct {
	later  bool             // a json.RawMessage, which is scanned when it is read
	fields map[string]*plan // of a struct, by their names; else nil
	of     *plan            // of a list's or a map's elements
	list   bool
	word   bool // true or false, and nothing else
}

var (
	plans     sync.Map // reflect.Type -> *plan
	readsJSON = reflect.TypeFor[json.Unmarshaler]()
	readsText = reflect.TypeFor[encoding.TextUnmarshaler]()
	raw       = reflect.TypeFor[json.RawMessage]()
	anything  = new(plan)
	// former are keys that documents of earlier programs have, by type, and that mean nothing now.
	former = map[reflect.Type]map[string]*plan{reflect.TypeFor[replica.Options](): {"replayable": {word: true}}}
)

func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	p := makePlan(t, make(map[reflect.Type]*plan))
	plans.Store(t, p)
	return p
}

// makePlan makes that of a type, which may hold itself: made has those that are being made.
func makePlan(t reflect.Type, made map[reflect.Type]*plan) *plan {
	if t == raw {
		return &plan{later: true}
	}
	t = inner(t)
	if t == nil {
		return anything
	}
	if p := made[t]; p != nil {
		return p
	}
	p := new(plan)
	made[t] = p
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		p.list, p.of = true, makePlan(t.Elem(), made)
	case reflect.Map:
		p.of = makePlan(t.Elem(), made)
	case reflect.Struct:
		p.fields = make(map[string]*plan)
		p.takeFields(t, made)
		for key, is := range former[t] {
			p.fields[key] = is
		}
	default:
	}
	return p
}

// takeFields takes the fields of a struct, also of a struct within; the first of a name counts.
func (p *plan) takeFields(t reflect.Type, made map[reflect.Type]*plan) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			if of := inner(f.Type); of != nil && of.Kind() == reflect.Struct {
				p.takeFields(of, made)
			}
			continue
		}
		if name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		if _, ok := p.fields[name]; !ok && f.IsExported() {
			p.fields[name] = makePlan(f.Type, made)
		}
	}
}

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

func (s *scan) value(p *plan) error {
	c := s.next()
	if p.later {
		s.pass()
		return nil
	}
	if p.word && c != 't' && c != 'f' {
		return errors.New("a key of before has another value than true or false")
	}
	switch c {
	case '{':
		return s.object(p)
	case '[':
		return s.list(p)
	}
	s.pass()
	return nil
}

// pass passes over a value, whatever is in it.
func (s *scan) pass() {
	for depth := 0; s.at < len(s.b); {
		switch s.b[s.at] {
		case '"':
			s.text()
			if depth == 0 {
				return
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // of what a number or a word is in
				return
			}
			if depth--; depth == 0 {
				s.at++
				return
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return
			}
		}
		s.at++
	}
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

// unquoted is a text as it is read.
func unquoted(text []byte) (key string, err error) {
	if bytes.IndexByte(text, '\\') < 0 && len(text) > 1 && isASCII(text) {
		return string(text[1 : len(text)-1]), nil
	}
	err = json.Unmarshal(text, &key)
	return key, err
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= 0x80 {
			return false
		}
	}
	return true
}

func (s *scan) list(p *plan) error {
	of := anything
	if p.list {
		of = p.of
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

func (s *scan) object(p *plan) error {
	var keys []string // most objects have few
	var many map[string]bool
	for s.at++; s.next() != '}' && s.at < len(s.b); {
		key, err := unquoted(s.text())
		if err != nil {
			return err
		}
		of := anything
		if p.fields != nil {
			field, ok := p.fields[key]
			if !ok {
				return fmt.Errorf("key %.64q is none of its fields", key)
			}
			of = field
		} else if p.of != nil && !p.list {
			of = p.of
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
