package formats_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/formats/formatstest"
	"github.com/replicad/replicad/replica"
)

// piece cuts a box out of the bytes of a whole.
func piece(whole []byte, size uint64, shape, at, of []uint64) formats.Piece {
	var b []byte
	var walk func(d int, off uint64)
	walk = func(d int, off uint64) {
		if d == len(shape) {
			b = append(b, whole[off*size:(off+1)*size]...)
			return
		}
		for i := range of[d] {
			walk(d+1, off*shape[d]+at[d]+i)
		}
	}
	if !slices.Contains(of, 0) {
		walk(0, 0)
	}
	return formats.Piece{At: at, Shape: of, ReadAt: formatstest.Of("", replica.U8, []uint64{uint64(len(b))}, b).ReadAt}
}

// split cuts a box into a grid, the pieces of it again now and then.
func split(random *rand.Rand, at, of []uint64, deep int) (boxes [][2][]uint64) {
	d := random.IntN(len(of) + 1)
	if deep == 0 || d == len(of) || of[d] < 2 {
		return [][2][]uint64{{at, of}}
	}
	cut := 1 + random.Uint64N(of[d]-1)
	left, right, behind := slices.Clone(of), slices.Clone(of), slices.Clone(at)
	left[d], right[d], behind[d] = cut, of[d]-cut, at[d]+cut
	return append(split(random, at, left, deep-1), split(random, behind, right, deep-1)...)
}

func TestWholeOfPieces(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	cut := 0
	for range 400 {
		shape := make([]uint64, random.IntN(4))
		for i := range shape {
			shape[i] = random.Uint64N(7)
		}
		whole := formatstest.Bytes(t, formatstest.Tensor(fmt.Sprint(shape, random.Uint32()), replica.U16, shape...))
		boxes := split(random, make([]uint64, len(shape)), shape, 5)
		cut += len(boxes) - 1
		boxes = append(boxes, boxes[random.IntN(len(boxes))]) // one twice
		random.Shuffle(len(boxes), func(i, j int) { boxes[i], boxes[j] = boxes[j], boxes[i] })
		var pieces []formats.Piece
		for _, b := range boxes {
			pieces = append(pieces, piece(whole, 2, shape, b[0], b[1]))
		}
		read, err := formats.Whole(2, shape, pieces)
		if err != nil {
			t.Fatalf("%v of %v: %v", shape, boxes, err)
		}
		for range 10 {
			from := random.IntN(len(whole) + 1)
			to := from + random.IntN(len(whole)-from+1)
			b := make([]byte, to-from)
			if err := read(b, uint64(from)); err != nil || string(b) != string(whole[from:to]) {
				t.Fatalf("%v of %v, bytes %d to %d: %v", shape, boxes, from, to, err)
			}
		}
	}
	if cut < 400 {
		t.Errorf("%d cuts", cut)
	}
}

func TestWholeRefuses(t *testing.T) {
	for name, boxes := range map[string][][2][]uint64{
		"nothing":      {},
		"a hole":       {{{0, 0}, {1, 3}}, {{2, 0}, {1, 3}}},
		"a hole first": {{{1, 0}, {2, 3}}},
		"a hole last":  {{{0, 0}, {3, 1}}, {{0, 1}, {3, 1}}},
		"an overlap":   {{{0, 0}, {2, 3}}, {{1, 0}, {2, 3}}},
		"one within":   {{{0, 0}, {3, 3}}, {{1, 1}, {1, 1}}},
		"outside":      {{{0, 0}, {4, 3}}},
		"far outside":  {{{1 << 63, 0}, {1 << 63, 3}}},
		"dimensions":   {{{0}, {9}}},
		"crosswise":    {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}},
	} {
		var pieces []formats.Piece
		for _, b := range boxes {
			pieces = append(pieces, formats.Piece{At: b[0], Shape: b[1]})
		}
		if _, err := formats.Whole(1, []uint64{3, 3}, pieces); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// writer takes so many bytes.
type writer struct {
	strings.Builder
	left int
}

func (w *writer) Write(b []byte) (int, error) {
	if w.left -= len(b); w.left < 0 {
		return 0, io.ErrShortWrite
	}
	return w.Builder.Write(b)
}

// Stream writes what is larger than its blocks, and ends with the first thing that goes wrong.
func TestStream(t *testing.T) {
	text := []byte(strings.Repeat("no block of it is as another", 20<<20/28))
	big := formatstest.Of("big", replica.U8, []uint64{uint64(len(text))}, text)
	w := &writer{left: 1 << 30}
	if err := formats.Stream(t.Context(), w, big); err != nil || w.String() != string(formatstest.Bytes(t, big)) {
		t.Errorf("%d bytes: %v", w.Len(), err)
	}
	if err := formats.Stream(t.Context(), &writer{left: 10 << 20}, big); !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
	broken := big
	broken.ReadAt = func(p []byte, off uint64) error {
		if off > 0 {
			return io.ErrUnexpectedEOF
		}
		return nil
	}
	if err := formats.Stream(t.Context(), io.Discard, broken); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "big") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, x := range []formats.Tensor{big, formatstest.Tensor("small", replica.U8, 3)} {
		if err := formats.Stream(ctx, io.Discard, x); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		shape []uint64
		n     uint64
		ok    bool
	}{{nil, 8, true}, {[]uint64{3, 0, 1 << 40}, 0, true}, {[]uint64{1 << 40, 1 << 40}, 0, false}, {[]uint64{0, 1 << 40, 1 << 40}, 0, false}, {[]uint64{1<<64 - 1}, 0, false}, {[]uint64{5, 7}, 280, true}} {
		if n, ok := formats.Size(replica.F64, c.shape); n != c.n || ok != c.ok {
			t.Errorf("%v: %d, %v", c.shape, n, ok)
		}
	}
	if _, ok := formats.Size(0, nil); ok {
		t.Error("no type has a size")
	}
}
