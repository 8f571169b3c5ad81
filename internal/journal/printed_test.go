package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/fixture"
)

// evil has each class of characters that a terminal obeys or that turn the order of letters, ends of lines, and what is no UTF-8.
const evil = "e\x00\x07\x1b[2J\x7f\r\n\t\u0080\u009b31m\u009f\u00ad\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff\U000e0001\xff\xc2\x9bé"

// fill puts evil into every text that a value has.
func fill(v reflect.Value, depth int) {
	if depth > 6 || !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(evil)
	case reflect.Interface:
		switch {
		case v.Type() == reflect.TypeFor[error]():
			v.Set(reflect.ValueOf(errors.New(evil)))
		case v.NumMethod() == 0:
			v.Set(reflect.ValueOf(evil))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth+1)
		fill(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), depth+1)
		}
	case reflect.Int, reflect.Int64, reflect.Uint8, reflect.Uint32, reflect.Uint64:
		if v.CanInt() {
			v.SetInt(1)
		} else {
			v.SetUint(1)
		}
	case reflect.Bool:
		v.SetBool(true)
	default: // no text is in it
	}
}

// TestEveryLineIsPrinted: whatever a method of the journal is given, its lines are JSON of printed characters, with the same texts in them.
func TestEveryLineIsPrinted(t *testing.T) {
	out := &fixture.Lines{}
	j, err := New(out, config.Log{Level: "debug", Commits: true}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	v, wrote := reflect.ValueOf(j), 0
	for i := range v.NumMethod() {
		method, name := v.Method(i), v.Type().Method(i).Name
		args := make([]reflect.Value, method.Type().NumIn())
		for k := range args {
			args[k] = reflect.New(method.Type().In(k)).Elem()
			fill(args[k], 0)
		}
		before := len(out.String())
		if method.Type().IsVariadic() {
			method.CallSlice(args)
		} else {
			method.Call(args)
		}
		text := out.String()[before:]
		if strings.Contains(text, `e\u0000`) {
			wrote++
		}
		for line := range strings.Lines(text) {
			checkPrinted(t, name, line)
		}
	}
	if wrote < 30 {
		t.Errorf("%d of %d methods wrote what they were given", wrote, v.NumMethod())
	}
}

func checkPrinted(t *testing.T, name, line string) {
	t.Helper()
	line, ended := strings.CutSuffix(line, "\n")
	if i := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 || !ended {
		t.Errorf("%s writes %.60q", name, line[max(i, 0):])
	}
	if !json.Valid([]byte(line)) {
		t.Errorf("%s writes no JSON: %s", name, line)
	}
}

// TestEveryLineOfTheAuditIsPrinted: the same of the audit log, whose chain of digests goes on over it.
func TestEveryLineOfTheAuditIsPrinted(t *testing.T) {
	path := t.TempDir() + "/audit.jsonl"
	l, err := audit.Open(path, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	a := &Auditor{Log: l}
	a.Note(evil, audit.Fields{"job": evil})
	a.Refused(evil, evil, audit.Fields{"why": evil})
	l.Close()
	lines := mustRead(t, path)
	for line := range bytes.Lines(lines) {
		checkPrinted(t, "the audit log", string(line))
	}
	if !bytes.Contains(lines, []byte(`\u202e`)) {
		t.Error("the text is not in it")
	}
	if r, err := audit.Verify(path); err != nil || len(r.Breaks) > 0 || r.Lines != 2 {
		t.Errorf("the chain: %+v, %v", r, err)
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
