package wire

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/replicad/replicad/replica"
)

type note struct {
	Text string `cbor:"1,keyasint"`
	Data []byte `cbor:"2,keyasint"`
}

func frameOf(t testing.TB, v any) []byte {
	t.Helper()
	b, err := Append([]byte("before"), KindManifest, v)
	if err != nil {
		t.Fatal(err)
	}
	return b[len("before"):]
}

func TestFrameRoundTrip(t *testing.T) {
	for _, size := range []int{0, 1, firstPiece - 1, firstPiece, 3*firstPiece + 7} {
		want := note{"x", bytes.Repeat([]byte{7}, size)}
		frame := frameOf(t, want)
		var got note
		if err := Decode(frame, KindManifest, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("size %d: Decode: %v", size, err)
		}
		r := iotest.HalfReader(bytes.NewReader(append(frame, frame...)))
		for range 2 {
			k, body, err := Read(r, MaxBody)
			if err != nil || k != KindManifest {
				t.Fatalf("size %d: Read: kind %d, %v", size, k, err)
			}
			var got note
			if err := Unmarshal(body, &got); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("size %d: Unmarshal: %v", size, err)
			}
		}
		if _, _, err := Read(r, MaxBody); !errors.Is(err, io.EOF) {
			t.Fatalf("size %d: at the end: %v, want io.EOF", size, err)
		}
	}
}

func TestFrameCutAnywhere(t *testing.T) {
	frame := frameOf(t, note{Text: "cut"})
	for n := range len(frame) {
		if err := Decode(frame[:n], KindManifest, &note{}); !errors.Is(err, ErrFrame) {
			t.Errorf("Decode of %d bytes: %v", n, err)
		}
		want := io.ErrUnexpectedEOF
		if n == 0 {
			want = io.EOF
		}
		if _, _, err := Read(bytes.NewReader(frame[:n]), MaxBody); !errors.Is(err, want) {
			t.Errorf("Read of %d bytes: %v, want %v", n, err, want)
		}
	}
}

func TestFrameBitFlippedAnywhere(t *testing.T) {
	frame := frameOf(t, note{Text: "flip"})
	for bit := range 8 * len(frame) {
		bad := bytes.Clone(frame)
		bad[bit/8] ^= 1 << (bit % 8)
		if err := Decode(bad, KindManifest, &note{}); !errors.Is(err, ErrFrame) {
			t.Errorf("bit %d: Decode: %v", bit, err)
		}
		if _, _, err := Read(bytes.NewReader(bad), MaxBody); !errors.Is(err, ErrFrame) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("bit %d: Read: %v", bit, err)
		}
	}
}

// lyingReader gives a header that promises much, then little; it fails the test when asked for more than is sane at once.
type lyingReader struct {
	t    *testing.T
	head *bytes.Reader
}

func (l *lyingReader) Read(p []byte) (int, error) {
	if l.head.Len() > 0 {
		return l.head.Read(p)
	}
	if len(p) > firstPiece {
		l.t.Errorf("a buffer of %d bytes was made before anything arrived", len(p))
	}
	return 0, io.EOF
}

// A body that was encoded before makes the same frame; a snapshot may be larger than any other.
func TestAppendBody(t *testing.T) {
	body, err := Marshal(note{Text: "long"})
	if err != nil {
		t.Fatal(err)
	}
	want := append([]byte("before"), frameOf(t, note{Text: "long"})...)
	if got, err := AppendBody([]byte("before"), KindManifest, body); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%x, want %x: %v", got, want, err)
	}
	large := make([]byte, MaxBody+1)
	if _, err := AppendBody(nil, KindManifest, large); err == nil {
		t.Error("a body beyond MaxBody was framed")
	}
	frame, err := AppendBody(nil, KindSnapshot, large)
	if err != nil {
		t.Fatal(err)
	}
	if _, got, err := Read(bytes.NewReader(frame), MaxState); err != nil || len(got) != len(large) {
		t.Errorf("%d bytes of a snapshot are read: %v", len(got), err)
	}
}

func TestLengthIsCappedBeforeAllocation(t *testing.T) {
	frame := frameOf(t, note{Text: "long"})
	copy(frame[8:12], []byte{0, 0, 0, 4}) // 64 MiB
	if _, _, err := Read(&lyingReader{t, bytes.NewReader(frame[:headerBytes])}, MaxBody); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
	if _, _, err := Read(bytes.NewReader(frame), 1<<20); !errors.Is(err, ErrFrame) || !strings.Contains(err.Error(), "at most 1048576") {
		t.Errorf("got %v, want the limit named", err)
	}
	copy(frame[8:12], []byte{1, 0, 0, 4}) // one more than MaxBody
	if _, _, err := Read(bytes.NewReader(frame), 1<<31); !errors.Is(err, ErrFrame) {
		t.Errorf("got %v", err)
	}
	if _, err := Append(nil, KindManifest, note{Data: make([]byte, MaxBody)}); err == nil {
		t.Error("a body beyond MaxBody was encoded")
	}
}

func TestStrictCBOR(t *testing.T) {
	for name, body := range map[string][]byte{
		"empty":             {},
		"duplicate key":     {0xa2, 0x01, 0x61, 'a', 0x01, 0x61, 'b'},
		"trailing byte":     {0xa1, 0x01, 0x61, 'a', 0x00},
		"unknown field":     {0xa2, 0x01, 0x61, 'a', 0x18, 99, 0x00},
		"negative key":      {0xa1, 0x20, 0x00},
		"text key":          {0xa1, 0x64, 'T', 'e', 'x', 't', 0x61, 'a'},
		"indefinite string": {0xa1, 0x01, 0x7f, 0x61, 'a', 0xff},
		"tag":               {0xa1, 0x01, 0xc0, 0x61, 'a'},
		"invalid UTF-8":     {0xa1, 0x01, 0x61, 0xff},
		"wrong type":        {0xa1, 0x01, 0x05},
		"deep":              append(append([]byte{0xa1, 0x01}, bytes.Repeat([]byte{0x81}, maxNesting+1)...), 0x00),
		"huge array":        {0xa1, 0x02, 0x9a, 0xff, 0xff, 0xff, 0xff},
		"huge map":          {0xba, 0xff, 0xff, 0xff, 0xff},
	} {
		if err := Unmarshal(body, &note{}); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var v note
	if err := Unmarshal([]byte{0xa1, 0x01, 0x61, 'a'}, &v); err != nil || v.Text != "a" {
		t.Errorf("a good body: %+v, %v", v, err)
	}
}

func TestManifestRoundTrips(t *testing.T) {
	var m replica.Manifest
	(&filler{}).fill(reflect.ValueOf(&m).Elem())
	var got replica.Manifest
	if err := Decode(frameOf(t, &m), KindManifest, &got); err != nil || !reflect.DeepEqual(got, m) {
		t.Fatalf("%v: %+v, want %+v", err, got, m)
	}
}

type countingWriter struct{ calls int }

func (c *countingWriter) Write(p []byte) (int, error) { c.calls++; return len(p), nil }

func TestWriteIsOneCall(t *testing.T) {
	var w countingWriter
	if err := Write(&w, KindManifest, note{Text: "one", Data: make([]byte, 1<<20)}); err != nil || w.calls != 1 {
		t.Errorf("%d calls, %v", w.calls, err)
	}
}

func FuzzFrame(f *testing.F) {
	frame := frameOf(f, note{Text: "seed", Data: []byte{1, 2, 3}})
	f.Add(frame)
	f.Add(frame[:headerBytes])
	f.Add([]byte("RPW1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, body, err := Read(bytes.NewReader(b), 1<<20)
		if err != nil {
			return
		}
		var v note
		if Unmarshal(body, &v) != nil {
			return
		}
		again, err := Append(nil, k, v)
		if err != nil {
			t.Fatal(err)
		}
		var v2 note
		if err := Decode(again, k, &v2); err != nil || !reflect.DeepEqual(v, v2) {
			t.Fatalf("%+v came back as %+v, %v", v, v2, err)
		}
	})
}

// What lies in documents of the durable tier keeps its version when that of commands and messages rises.
func TestVersionsOfFrames(t *testing.T) {
	for k, want := range map[Kind]uint8{KindCommand: 2, KindSnapshot: 2, FirstKeeper: 2, MoreControl: 2, FirstCheckpoint + 8: 1, FirstCheckpoint + 9: 1} {
		b, err := Append(nil, k, note{})
		if err != nil || b[4] != want {
			t.Fatalf("kind %d: version %d, %v; want %d", k, b[4], err, want)
		}
		b[4]++
		if err := Decode(b, k, &note{}); !errors.Is(err, ErrVersion) {
			t.Errorf("kind %d of a later version: %v", k, err)
		}
	}
}
