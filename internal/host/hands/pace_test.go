package hands

import (
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

type part struct {
	transfer.Reader
	bytes  uint64
	closed bool
}

func (p *part) Manifest() replica.Manifest { return replica.Manifest{Bytes: p.bytes} }
func (p *part) Close()                     { p.closed = true }

type partOnItsWay struct{ part }

func (*partOnItsWay) Has(int) bool { return true }

// Small parts are never held back. Others stay what they are, and their end is counted.
func TestPaced(t *testing.T) {
	h := &Hands{Pacer: new(manners.Pacer)}
	if small := (&part{bytes: PacedFrom - 1}); h.Pace(small, manners.Recovery) != transfer.Reader(small) {
		t.Error("a small part is held back")
	}
	whole, coming := &part{bytes: PacedFrom}, &partOnItsWay{part{bytes: PacedFrom}}
	for _, r := range []transfer.Reader{whole, coming} {
		p := h.Pace(r, manners.Mirroring)
		if _, is := p.(transfer.Receiving); is != (r == transfer.Reader(coming)) {
			t.Errorf("%T is %T", r, p)
		}
		p.(transfer.Paced).Pace()(PacedFrom)
		if n := h.Pacer.Holding().UnderWay; n != 1 {
			t.Errorf("%d under way", n)
		}
		p.Close()
		if n := h.Pacer.Holding().UnderWay; n != 0 {
			t.Errorf("%d under way at its end", n)
		}
	}
	if !whole.closed || !coming.closed {
		t.Error("not closed")
	}
}

type sink struct{ transfer.Sink }

func (sink) Put(int, []byte) error { return nil }

// What is pushed here is held back as what leaves is: a mirror's ranks would feel it else. It is under way until its end.
func TestPacedSink(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := new(manners.Pacer)
		p.Limit(64<<20, "a test")
		h := &Hands{Pacer: p}
		if s, end := h.PaceSink(sink{}, PacedFrom-1, manners.Mirroring); s != transfer.Sink(sink{}) {
			t.Error("a small part is held back")
		} else {
			end()
		}
		s, end := h.PaceSink(sink{}, 64<<20, manners.Mirroring)
		if n := p.Holding().UnderWay; n != 1 {
			t.Errorf("%d under way", n)
		}
		began := time.Now()
		for i := range 16 {
			if err := s.Put(i, make([]byte, 4<<20)); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took < 900*time.Millisecond || took > 1100*time.Millisecond {
			t.Errorf("64 MiB came in within %v at 64 MiB a second", took)
		}
		if p.Moved() != 64<<20 {
			t.Errorf("%d bytes moved", p.Moved())
		}
		end()
		if n := p.Holding().UnderWay; n != 0 {
			t.Errorf("%d under way at its end", n)
		}
	})
}
