package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/replicad/replicad/replica"
)

var writeGolden = flag.Bool("write-golden", false, "write golden files that don't exist yet; existing ones are never changed")

// filler sets every field to a value of its own, so that two fields whose map keys were swapped can't look alike.
type filler struct{ n uint64 }

func (f *filler) fill(v reflect.Value) {
	f.n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		f.fill(v.Index(0))
		f.fill(v.Index(1))
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).SetUint(f.n*31 + uint64(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.fill(k)
			f.fill(e)
			v.SetMapIndex(k, e)
		}
	case reflect.String:
		v.SetString(fmt.Sprintf("s%d", f.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(f.n % 251)
	case reflect.Int:
		v.SetInt(int64(f.n))
	default:
		panic("filler: no rule for " + v.Type().String())
	}
}

func sample(typ reflect.Type) replica.Command {
	v := reflect.New(typ).Elem()
	(&filler{}).fill(v)
	return v.Interface().(replica.Command)
}

func TestEveryCommandRoundTrips(t *testing.T) {
	for _, c := range commands {
		for _, want := range []replica.Command{c.sample, sample(reflect.TypeOf(c.sample))} {
			b, err := EncodeCommand(want)
			if err != nil {
				t.Fatalf("encode %T: %v", want, err)
			}
			got, err := DecodeCommand(b)
			if err != nil {
				t.Fatalf("decode %T: %v", want, err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%T came back as\n%+v, want\n%+v", want, got, want)
			}
		}
	}
}

// TestEveryCommandIsListed reads replica's source: a command that was added there and forgotten here fails.
func TestEveryCommandIsListed(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", "replica", "command.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]bool)
	tags := make(map[uint16]bool)
	for _, c := range commands {
		listed[reflect.TypeOf(c.sample).Name()] = true
		if tags[c.tag] {
			t.Errorf("tag %d is given twice", c.tag)
		}
		tags[c.tag] = true
	}
	found := 0
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "command" {
			found++
			if name := f.Recv.List[0].Type.(*ast.Ident).Name; !listed[name] {
				t.Errorf("replica.%s has no tag in wire", name)
			}
		}
	}
	if found != len(commands) {
		t.Errorf("%d commands in replica, %d listed", found, len(commands))
	}
}

// TestGoldenCommands reads what earlier programs wrote. Fields may have been added since; what was written must still be
// read as it was meant.
func TestGoldenCommands(t *testing.T) {
	for _, c := range commands {
		typ := reflect.TypeOf(c.sample)
		base := filepath.Join("testdata", "commands", fmt.Sprintf("v%d-%02d-%s", version(KindCommand), c.tag, typ.Name()))
		if _, err := os.Stat(base + ".bin"); *writeGolden && errors.Is(err, os.ErrNotExist) {
			bin, err := EncodeCommand(sample(typ))
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.MarshalIndent(sample(typ), "", " ")
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.WriteFile(base+".bin", bin, 0o644), os.WriteFile(base+".json", append(text, '\n'), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		bin, err := os.ReadFile(base + ".bin")
		if err != nil {
			t.Errorf("%s: %v (new command: run with -write-golden once)", typ, err)
			continue
		}
		text, err := os.ReadFile(base + ".json")
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeCommand(bin)
		if err != nil {
			t.Errorf("%s: %v", base, err)
			continue
		}
		if reflect.TypeOf(got) != typ {
			t.Errorf("%s decodes as %T", base, got)
		}
		now, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var was, is any
		if err := errors.Join(json.Unmarshal(text, &was), json.Unmarshal(now, &is)); err != nil {
			t.Fatal(err)
		}
		if path, ok := contains(is, was, typ.Name()); !ok {
			t.Errorf("%s: %s is not what was written", base, path)
		}
	}
}

// contains tells whether everything in was is in is.
func contains(is, was any, path string) (string, bool) {
	switch w := was.(type) {
	case map[string]any:
		m, ok := is.(map[string]any)
		if !ok {
			return path, false
		}
		for k, v := range w {
			if p, ok := contains(m[k], v, path+"."+k); !ok {
				return p, false
			}
		}
		return "", true
	case []any:
		l, ok := is.([]any)
		if !ok || len(l) != len(w) {
			return path, false
		}
		for i := range w {
			if p, ok := contains(l[i], w[i], fmt.Sprintf("%s[%d]", path, i)); !ok {
				return p, false
			}
		}
		return "", true
	}
	return path, is == was
}

func TestCommandsThatAreRefused(t *testing.T) {
	if _, err := EncodeCommand(nil); err == nil {
		t.Error("nil was encoded")
	}
	unknown, err := Append(nil, KindCommand, tagged{Tag: 65535, Body: []byte{0xa0}})
	if err != nil {
		t.Fatal(err)
	}
	empty, err := Append(nil, KindCommand, struct {
		Tag uint16 `cbor:"1,keyasint"`
	}{3})
	if err != nil {
		t.Fatal(err)
	}
	short, err := Append(nil, KindCommand, tagged{Tag: 3, Body: []byte{0xa1, 0x01, 0x42, 1, 2}}) // a job id of 2 bytes
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"nothing": nil, "unknown tag": unknown, "no body": empty, "short id": short} {
		if c, err := DecodeCommand(b); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: got %+v, %v; want ErrFrame", name, c, err)
		}
	}
}

func FuzzCommand(f *testing.F) {
	for _, c := range commands {
		b, err := EncodeCommand(sample(reflect.TypeOf(c.sample)))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[headerBytes : len(b)-sumBytes])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var tag tagged
		if Unmarshal(body, &tag) != nil {
			return
		}
		frame, err := Append(nil, KindCommand, tag)
		if err != nil {
			t.Fatal(err)
		}
		c, err := DecodeCommand(frame)
		if err != nil {
			return
		}
		again, err := EncodeCommand(c)
		if err != nil {
			t.Fatalf("%+v was decoded but does not encode: %v", c, err)
		}
		c2, err := DecodeCommand(again)
		if err != nil {
			t.Fatalf("%+v encodes to what does not decode: %v", c, err)
		}
		third, err := EncodeCommand(c2)
		if err != nil || !bytes.Equal(again, third) {
			t.Fatalf("encoding is not stable: %x, then %x, %v", again, third, err)
		}
	})
}
