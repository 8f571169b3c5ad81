package control

import (
	"bytes"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/wire"
)

func TestPiecesThatDoNotFit(t *testing.T) {
	p := func(k wire.Kind, total uint64, bytes string) piece { return piece{k, total, []byte(bytes)} }
	for what, list := range map[string][]piece{
		"beyond the largest":  {p(KindView, wire.MaxState+1, "x")},
		"an empty one":        {p(KindView, 5, "abc"), p(KindView, 5, "")},
		"more than announced": {p(KindView, 5, "abc"), p(KindView, 5, "def")},
		"of another kind":     {p(KindView, 5, "abc"), p(KindChange, 5, "de")},
		"of another total":    {p(KindView, 5, "abc"), p(KindView, 6, "de")},
		"pieces of pieces":    {p(KindPiece, 3, "abc")},
		"nothing announced":   {p(KindView, 0, "a")},
	} {
		var a assembly
		var err error
		for _, p := range list {
			if _, _, _, err = a.add(p); err != nil {
				break
			}
		}
		if err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	var a assembly
	for range 2 { // one message after the other
		for i, p := range []piece{p(KindView, 5, "ab"), p(KindView, 5, "cde")} {
			k, body, whole, err := a.add(p)
			if err != nil || whole != (i == 1) || whole && (k != KindView || string(body) != "abcde") {
				t.Errorf("piece %d: kind %d, %q, whole %v, %v", i, k, body, whole, err)
			}
		}
	}
}

// FuzzPieces: what pieces are joined to is what they hold, and no announcement costs memory.
func FuzzPieces(f *testing.F) {
	for _, p := range [][2]piece{{{KindView, 3, []byte("ab")}, {KindView, 3, []byte("c")}}, {{KindView, 1 << 40, []byte("a")}, {KindChange, 0, nil}}} {
		f.Add(fixture.Body(f, KindPiece, p[0]), fixture.Body(f, KindPiece, p[1]))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var a assembly
		var all []byte
		for _, b := range [][]byte{first, second} {
			p, err := DecodeAs[piece](b)
			if err != nil {
				return
			}
			all = append(all, p.Bytes...)
			k, body, whole, err := a.add(p)
			if err != nil {
				return
			}
			if cap(a.body) > 2*len(all)+1<<10 {
				t.Fatalf("%d bytes are allocated for %d", cap(a.body), len(all))
			}
			if whole {
				if k != p.Kind || !bytes.Equal(body, all) || uint64(len(all)) != p.Total {
					t.Fatalf("kind %d of %d bytes out of %d", k, len(body), len(all))
				}
				all = nil
			}
		}
	})
}
