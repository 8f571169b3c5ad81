package bench

import (
	"bytes"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
)

// A part survives the death of either end, and what is sent in all is no less than the part: the count has every source.
func TestBrokenTransfersEndWhole(t *testing.T) {
	p, err := newPart(16 * mib)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := newIdentities(t.TempDir(), receiverName, sourceName(0), sourceName(1))
	if err != nil {
		t.Fatal(err)
	}
	for name, once := range breaks {
		clear(p.to)
		sent, err := once(t.Context(), &broken{part: p, ids: ids})
		if err != nil || sent < p.bytes() || !bytes.Equal(p.from, p.to) {
			t.Errorf("%s: %d bytes were sent: %v", name, sent, err)
		}
	}
}

// A link passes its bytes a second, whoever sends them.
func TestPacer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		link, began := &pacer{rate: 1000}, time.Now()
		done := make(chan struct{})
		go func() { link.pass(500); close(done) }()
		link.pass(1000)
		<-done
		if took := time.Since(began); took != 1500*time.Millisecond {
			t.Errorf("1500 bytes took %v", took)
		}
		time.Sleep(time.Hour) // a link that was idle owes nothing
		began = time.Now()
		link.pass(100)
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("100 bytes took %v", took)
		}
	})
}
