package pickles

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func all(Class) bool  { return true }
func none(Class) bool { return false }

// testdata has what Python's pickle writes of one value in each protocol.
func TestProtocols(t *testing.T) {
	a := &List{[]any{int64(1), int64(300), int64(70000), int64(-2), int64(1 << 40), int64(-1 << 40), 2.5, true, nil}}
	want := map[any]any{
		"a": a, "b": Tuple{int64(1), Tuple{int64(2), int64(3)}, Tuple{}, Tuple{int64(1), int64(2), int64(3)}, Tuple{int64(1), int64(2), int64(3), int64(4)}},
		"o": &Dict{[]any{"k"}, []any{"v"}}, int64(7): &List{}, "long": strings.Repeat("x", 300), "again": a, "é": int64(1),
	}
	for p := 2; p <= 5; p++ {
		b, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("protocol%d.pickle", p)))
		if err != nil {
			t.Fatal(err)
		}
		if p > 2 {
			want["bytes"] = []byte("xyz")
		}
		v, err := Load(b, none)
		if err != nil {
			t.Fatalf("protocol %d: %v", p, err)
		}
		d, got := v.(*Dict), make(map[any]any)
		for i, k := range d.Keys {
			got[k] = d.Values[i]
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("protocol %d: %+v", p, got)
		}
		if got["a"] != got["again"] {
			t.Errorf("protocol %d: one list came back as two", p)
		}
		for n := range b {
			if _, err := Load(b[:n], all); !errors.Is(err, ErrRefused) {
				t.Fatalf("protocol %d, cut at %d: %v", p, n, err)
			}
		}
	}
}

// few values may be made in these tests.
const few = 1000

// hostile would execute something, or takes what it does not have.
var hostile = map[string]struct{ pickle, says string }{
	"os.system":           {"cos\nsystem\n(X\x02\x00\x00\x00ls\x85R.", `"os.system"`},
	"os.system by stack":  {"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02ls\x85R.", `"posix.system"`},
	"a name in a name":    {"ctorch\nos.system\n.", "torch.os.system"},
	"an instance":         {"(ios\nsystem\n.", "opcode"},
	"an object of a mark": {"(cos\nsystem\no.", `"os.system"`},
	"an extension":        {"\x80\x02\x82\x01.", "opcode"},
	"a line of a name":    {"Pname\n.", "opcode"},
	"a buffer":            {"\x80\x05\x97.", "opcode"},
	"a call of a text":    {"\x8c\x01x)R.", "it calls a string"},
	"a call with a list":  {"ccollections\nOrderedDict\n]R.", "it calls a"},
	"an odd OrderedDict":  {"ccollections\nOrderedDict\n]K\x01a\x85R.", "arguments"},
	"state of a number":   {"K\x01}b.", "gives a int64 a state"},
	"nothing":             {".", "empty stack"},
	"below a mark":        {"K\x01(.", "empty stack"},
	"below a mark, more":  {"K\x01(K\x02\x86.", "takes 2 values from a stack of 1"},
	"no mark":             {"t.", "mark"},
	"an append to a text": {"\x8c\x01xK\x01a.", "appends"},
	"an item of a list":   {"]K\x01K\x02s.", "sets an item"},
	"half an item":        {"}(K\x01u.", "has no value"},
	"an empty memo":       {"h\x05.", "memo"},
	"a memo's gap":        {"Nq\x01h\x00.", "place 0 of the memo is empty"},
	"a memo's wide gap":   {"Nq\x02.", "place 2 of the memo is used"},
	"a far memo":          {"Nr\xff\xff\xff\xff.", "place 4294967295"},
	"a long text":         {"X\xff\xff\xff\xff.", "cut"},
	"a longer text":       {"\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "cut"},
	"long bytes":          {"\x8e\x00\x00\x00\x00\x00\x00\x00\x80.", "cut"},
	"a long number":       {"\x8b\x09\x00\x00\x0012345678.", "cut"},
	"a mark's drop":       {"K\x011.", "mark"},
	"an empty drop":       {"0.", "empty stack"},
	"a set of nothing":    {"\x90.", "mark"},
	"added to a list":     {"](K\x01\x90.", "adds to a"},
	"a call by name":      {"\x8c\x01x)}\x92.", "it calls a string"},
	"a default dict":      {"ccollections\ndefaultdict\n)R.", "defaultdict"},
	"no UTF-8":            {"\x8c\x01\xff.", "UTF-8"},
	"protocol 9":          {"\x80\x09.", "protocol 9"},
	"many values":         {strings.Repeat("N", few+1) + ".", "more than"},
	"many marks":          {strings.Repeat("(", few) + "NN.", "more than"},
	"much memo":           {"N" + strings.Repeat("\x94", few) + ".", "more than"},
	"no end":              {"", "cut"},
}

func TestHostile(t *testing.T) {
	for name, h := range hostile {
		v, err := load([]byte(h.pickle), none, few)
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), h.says) {
			t.Errorf("%s: %v, %v; want %q", name, v, err, h.says)
		}
	}
	if _, err := Load(make([]byte, MaxBytes+1), all); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}

// What would be executed comes back as data.
func TestCallsAreData(t *testing.T) {
	v, err := Load([]byte("\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R}b."), all)
	if want := (&Call{Class{"os", "system"}, []any{"ls"}, &Dict{}}); err != nil || !reflect.DeepEqual(v, want) {
		t.Errorf("%+v, %v", v, err)
	}
}

// What is no tensor's is read all the same, as data: sets, objects with items, large numbers, Python 2's bytes, what a call of a call returns.
func TestOpaque(t *testing.T) {
	for name, c := range map[string]struct {
		pickle string
		want   any
	}{
		"a set":              {"\x80\x04\x8f(K\x01K\x02\x90.", &Call{Class: set}},
		"a frozen set":       {"\x80\x04(K\x01\x91.", &Call{Class: frozenSet, Args: []any{int64(1)}}},
		"a defaultdict":      {"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R\x8c\x01kK\x01s.", &Dict{[]any{"k"}, []any{int64(1)}}},
		"an object of items": {"cm\nD\n)R(\x8c\x01kK\x01uK\x02a.", &Call{Class: Class{"m", "D"}, Args: Tuple{}}},
		"arguments by name":  {"cm\nC\nK\x01\x85}\x92.", &Call{Class: Class{"m", "C"}, Args: Tuple{int64(1)}}},
		"a call of a call":   {"cm\nf\n)RK\x01\x85R.", &Call{Class: Class{"m", "f"}, Args: Tuple{int64(1)}}},
		"a large number":     {"\x8a\x09\x01\x02\x03\x04\x05\x06\x07\x08\x09.", Big("\x01\x02\x03\x04\x05\x06\x07\x08\x09")},
		"bytes of Python 2":  {"U\x02\xff\xfe.", []byte{0xff, 0xfe}},
		"text of Python 2":   {"T\x02\x00\x00\x00ab.", "ab"},
		"bytes to change":    {"\x96\x02\x00\x00\x00\x00\x00\x00\x00ab.", []byte("ab")},
		"dropped":            {"K\x01K\x020(K\x031.", int64(1)},
		"memo of Python 2":   {"K\x01q\x01q\x02h\x01.", int64(1)},
		"a dict of pairs":    {"ccollections\nOrderedDict\n]](\x8c\x01kK\x01ea\x85R.", &Dict{[]any{"k"}, []any{int64(1)}}},
		"a class of source":  {"((X\x06\x00\x00\x00modulecm\nC\ntQ)\x81}b.", &Call{Class: Class{"m", "C"}, Args: Tuple{}, State: &Dict{}}},
	} {
		v, err := Load([]byte(c.pickle), Any)
		if c, ok := v.(*Call); ok {
			c.Args = append([]any(nil), c.Args...)
		}
		if w, ok := c.want.(*Call); ok {
			w.Args = append([]any(nil), w.Args...)
		}
		if err != nil || !reflect.DeepEqual(v, c.want) {
			t.Errorf("%s: %#v, %v; want %#v", name, v, err, c.want)
		}
	}
}

// TestStream: pickles that follow each other share one budget, and name all that lies elsewhere.
func TestStream(t *testing.T) {
	s := NewStream([]byte("\x80\x02K\x01.\x80\x02X\x01\x00\x00\x00aQ.]h\x00..rest"), Any)
	for _, want := range []any{int64(1), Ref{"a"}} {
		if v, err := s.Next(); err != nil || !reflect.DeepEqual(v, want) {
			t.Errorf("%v, %v; want %v", v, err, want)
		}
	}
	if len(s.Refs) != 1 || s.At != 15 {
		t.Errorf("%+v", s)
	}
	if v, err := s.Next(); !errors.Is(err, ErrRefused) { // the memo is each pickle's own
		t.Errorf("%v, %v", v, err)
	}
	s = NewStream([]byte("K\x01.K\x01.K\x01."), Any)
	s.left = 2
	for i, ok := range []bool{true, true, false} {
		if _, err := s.Next(); (err == nil) != ok {
			t.Errorf("pickle %d: %v", i, err)
		}
	}
}

func TestWritten(t *testing.T) {
	w := NewWriter()
	w.Dict(func() {
		w.Text("é")
		w.Ints([]uint64{0, 1, 1 << 31, 1<<63 - 1})
		w.Text("call")
		w.Call("m", "f", func() { w.Bool(true); w.Bool(false); w.None() })
		w.Text("object")
		w.Object("m", "C", func() { w.List(func() { w.Class("m", "D") }) })
		w.Text("ref")
		w.Ref(func() { w.Text("x") })
	})
	v, err := Load(w.Bytes(), all)
	want := &Dict{[]any{"é", "call", "object", "ref"}, []any{Tuple{int64(0), int64(1), int64(1 << 31), int64(1<<63 - 1)}, &Call{Class: Class{"m", "f"}, Args: []any{true, false, nil}},
		&Call{Class: Class{"m", "C"}, Args: []any{}, State: &List{[]any{Class{"m", "D"}}}}, Ref{Tuple{"x"}}}}
	if err != nil || !reflect.DeepEqual(v, want) {
		t.Errorf("%+v, %v", v, err)
	}
}

func FuzzLoad(f *testing.F) {
	for _, h := range hostile {
		if len(h.pickle) < 1000 {
			f.Add([]byte(h.pickle))
		}
	}
	for p := 2; p <= 5; p++ {
		b, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("protocol%d.pickle", p)))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		named := 0
		v, err := Load(b, func(c Class) bool {
			named++
			return c.Module == "torch"
		})
		if err != nil && (!errors.Is(err, ErrRefused) || v != nil) {
			t.Errorf("%v, %v", v, err)
		}
	})
}
