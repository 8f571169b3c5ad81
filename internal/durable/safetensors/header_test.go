package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// hostile samples, with the data length each pretends to.
var hostile = map[string]struct {
	json string
	data uint64
}{
	"not an object":          {`[]`, 0},
	"leading space":          {` {}`, 0},
	"trailing bytes":         {`{} x`, 0},
	"trailing newline":       {"{}\n", 0},
	"invalid UTF-8":          {"{\"\xff\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1},
	"shape wraps to 4":       {`{"a":{"dtype":"U8","shape":[4194305,4194305,211106198978564],"data_offsets":[0,4]}}`, 4},
	"shape wraps by dtype":   {`{"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}}`, 4},
	"end before begin":       {`{"a":{"dtype":"U8","shape":[0],"data_offsets":[4,0]}}`, 4},
	"negative offset":        {`{"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}}`, 1},
	"fractional offset":      {`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1.0]}}`, 1},
	"exponent":               {`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1e0]}}`, 1},
	"offset beyond 64 bits":  {`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551617]}}`, 1},
	"shorter than its shape": {`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4},
	"longer than its shape":  {`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}}`, 8},
	"hole":                   {`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3},
	"hole at the start":      {`{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2},
	"overlap":                {`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3},
	"same bytes twice":       {`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2},
	"empty one inside":       {`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}`, 2},
	"empty one beyond":       {`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[0],"data_offsets":[9,9]}}`, 2},
	"bytes of nobody":        {`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 3},
	"data is missing":        {`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 1},
	"duplicate tensor":       {`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2},
	"duplicate by escape":    {`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2},
	"duplicate field":        {`{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1},
	"duplicate metadata":     {`{"__metadata__":{"k":"1","k":"2"}}`, 0},
	"metadata not a string":  {`{"__metadata__":{"k":1}}`, 0},
	"metadata null":          {`{"__metadata__":null}`, 0},
	"nested metadata":        {`{"__metadata__":{"k":{"l":"m"}}}`, 0},
	"unknown dtype":          {`{"a":{"dtype":"F31","shape":[],"data_offsets":[0,4]}}`, 4},
	"unknown field":          {`{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":0}}`, 1},
	"case of a field":        {`{"a":{"Dtype":"U8","shape":[],"data_offsets":[0,1]}}`, 1},
	"no shape":               {`{"a":{"dtype":"U8","data_offsets":[0,1]}}`, 1},
	"null shape":             {`{"a":{"dtype":"U8","shape":null,"data_offsets":[0,1]}}`, 1},
	"three offsets":          {`{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1,2]}}`, 1},
	"one offset":             {`{"a":{"dtype":"U8","shape":[],"data_offsets":[0]}}`, 1},
	"nine dimensions":        {`{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}`, 1},
	"tensor is a list":       {`{"a":[1]}`, 0},
	"two values":             {`{}{}`, 0},
}

func TestHostileHeaders(t *testing.T) {
	for name, c := range hostile {
		if h, err := ParseHeader([]byte(c.json), c.data); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: parsed as %+v, %v", name, h, err)
		}
	}
	var bloat strings.Builder
	bloat.WriteByte('{')
	for i := range 1000 {
		fmt.Fprintf(&bloat, `"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},`, i)
	}
	bloat.WriteString(`"z":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`)
	if _, err := parseHeader([]byte(bloat.String()), 0, 1000, false); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "more than 1000 tensors") {
		t.Errorf("1001 entries in %d bytes: %v", bloat.Len(), err)
	}
	if h, err := parseHeader([]byte(bloat.String()), 0, 1001, false); err != nil || len(h.Tensors) != 1001 {
		t.Errorf("1001 entries of 1001: %v", err)
	}
	var meta strings.Builder // short keys take many times their bytes
	for i := range MaxMetadata + 1 {
		fmt.Fprintf(&meta, `,"%x":""`, i)
	}
	if _, err := ParseHeader([]byte(`{"__metadata__":{`+meta.String()[1:]+`}}`), 0); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "metadata") {
		t.Errorf("%d entries of metadata: %v", MaxMetadata+1, err)
	}
	for _, n := range []uint64{0, 1, MaxHeader + 1, 1 << 63} {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], n)
		if _, err := HeaderLength(b); !errors.Is(err, ErrFormat) {
			t.Errorf("header of %d bytes: %v", n, err)
		}
	}
}

func TestGoodHeaders(t *testing.T) {
	for text, data := range map[string]uint64{
		`{}`:                         0,
		`{"__metadata__":{"a":"b"}}`: 0,
		`{"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}  `:                                                      6,
		`{"a":{"dtype":"U8","shape":[0,7],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"c":{"dtype":"F64","shape":[0],"data_offsets":[1,1]}}`: 1,
		`{"data_offsets":{"shape":[1],"data_offsets":[0,2],"dtype":"BF16"}}`:                                                                                               2,
	} {
		if _, err := ParseHeader([]byte(text), data); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestForeignTensors: what a generation can't hold costs its tensor, and not the file; what lies about its place still costs the file.
func TestForeignTensors(t *testing.T) {
	const text = `{"six":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]},"deep":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[3,4]},"odd":{"dtype":"F4","shape":[2,3],"data_offsets":[4,7]},"four":{"dtype":"F4","shape":[2,6],"data_offsets":[7,13]},"w":{"dtype":"U8","shape":[2],"data_offsets":[13,15]}}`
	if _, err := ParseHeader([]byte(text), 15); !errors.Is(err, ErrFormat) {
		t.Errorf("taken as a file of our own: %v", err)
	}
	h, err := ParseForeign([]byte(text), 15)
	if err != nil {
		t.Fatal(err)
	}
	for i, says := range []string{`"F6_E2M3" is unknown`, "9 dimensions", "no whole bytes", "", ""} {
		if x := h.Tensors[i]; (x.Refused == "") != (says == "") || !strings.Contains(x.Refused, says) {
			t.Errorf("%+v; want %q", x, says)
		}
	}
	if four := h.Tensors[3]; four.DType != replica.F4X2 || !reflect.DeepEqual(four.Shape, []uint64{2, 3}) {
		t.Errorf("%+v", four)
	}
	again, err := AppendHeader(nil, []Tensor{{Name: "four", DType: replica.F4X2, Shape: []uint64{2, 3}, End: 6}})
	if err != nil || !strings.Contains(string(again), `{"dtype":"F4","shape":[2,6],"data_offsets":[0,6]}`) {
		t.Errorf("%s, %v", again, err)
	}
	for name, c := range hostile {
		if name == "unknown dtype" || name == "nine dimensions" {
			continue
		}
		if h, err := ParseForeign([]byte(c.json), c.data); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: parsed as %+v, %v", name, h, err)
		}
	}
}

func FuzzHeader(f *testing.F) {
	for _, c := range hostile {
		f.Add([]byte(c.json), c.data)
	}
	f.Add([]byte(`{"__metadata__":{"k":"v"},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}} `), uint64(6))
	f.Add([]byte(`{"four":{"dtype":"F4","shape":[2,6],"data_offsets":[0,6]},"six":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[6,9]}}`), uint64(9))
	f.Fuzz(func(t *testing.T, b []byte, data uint64) {
		if h, err := ParseForeign(b, data); err == nil {
			for _, x := range h.Tensors {
				if x.End > data || x.Refused == "" && (x.DType.Size() == 0 || len(x.Shape) > replica.MaxDims) {
					t.Fatalf("%+v", x)
				}
			}
		}
		h, err := ParseHeader(b, data)
		if err != nil {
			return
		}
		again, err := AppendHeader(h.Metadata, h.Tensors)
		if err != nil {
			t.Fatal(err)
		}
		h2, err := ParseHeader(again[8:], data)
		if err != nil {
			t.Fatalf("%s is written as %s, which is refused: %v", b, again[8:], err)
		}
		if len(h.Tensors) != len(h2.Tensors) || len(h.Tensors) > 0 && !reflect.DeepEqual(h.Tensors, h2.Tensors) {
			t.Fatalf("%+v came back as %+v", h.Tensors, h2.Tensors)
		}
	})
}

// TestLongestHeader: a job whose regions are taken can be written, so their header has room, however long and however oddly they are
// called.
func TestLongestHeader(t *testing.T) {
	longest := 0
	for _, char := range []string{"x", `"`, "<", "é", "\u2028", "\U0001f600"} {
		r := replica.Region{Name: strings.Repeat(char, replica.MaxRegionName/len(char)), DType: replica.F8E4M3, Shape: []uint64{0, 1<<64 - 1, 1<<64 - 1, 1<<64 - 1, 1<<64 - 1, 1<<64 - 1, 1<<64 - 1, 1<<64 - 1}}
		if err := r.Check(); err != nil || len(r.Shape) != replica.MaxDims {
			t.Fatalf("%q: %v", char, err)
		}
		one := Tensor{Name: r.Name, DType: r.DType, Shape: r.Shape, Begin: 1<<64 - 1, End: 1<<64 - 1}
		b, err := AppendHeader(nil, []Tensor{one, one})
		if err != nil {
			t.Fatal(err)
		}
		longest = max(longest, len(b)/2)
	}
	const rest = 4 << 10 // of metadata that names the part
	if n := longest*replica.MaxRegions + rest; n > MaxHeader {
		t.Errorf("%d regions may make a header of %d bytes, and %d are the most", replica.MaxRegions, n, MaxHeader)
	}
}
