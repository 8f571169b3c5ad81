package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// shapes is a manifest of so many bytes, all of them the shapes of a few regions: eight times as much once it is decoded.
func shapes(size int) []byte {
	const most = 1 << 19
	var b bytes.Buffer
	b.Write([]byte{0xa1, 0x11, 0x9a})
	_ = binary.Write(&b, binary.BigEndian, uint32(size/most))
	for range size / most {
		b.Write([]byte{0xa1, 0x06, 0x9a})
		_ = binary.Write(&b, binary.BigEndian, uint32(most))
		b.Write(make([]byte, most))
	}
	return b.Bytes()
}

// TestManifestBomb: a donor's manifest is as large as a frame may be, on each of its lanes at once.
func TestManifestBomb(t *testing.T) {
	if os.Getenv("BOMB") == "" {
		t.Skip("BOMB=1: it takes seconds, and gigabytes where it fails")
	}
	frame, err := wire.Append(nil, wire.KindManifest, cbor.RawMessage(shapes(60<<20)))
	if err != nil {
		t.Fatal(err)
	}
	k, m, _ := makePart(64*kib, 4*kib)
	var sources []Source
	for i := range 12 { // four donors with three lanes each
		s := Source{Node: replica.NodeName(fmt.Sprint("n", i/3)), Dial: func(context.Context) (Lane, error) { return bombLane{frame}, nil }}
		sources = append(sources, s)
	}
	var peak atomic.Uint64
	stop := make(chan struct{})
	runtime.GC()
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				var s runtime.MemStats
				runtime.ReadMemStats(&s)
				peak.Store(max(peak.Load(), s.HeapAlloc))
			}
		}
	}()
	_, err = Fetch(t.Context(), k, sources, newSink(t, m).begin)
	close(stop)
	t.Logf("%.150v; peak %d MiB", err, peak.Load()>>20)
	if peak.Load() > 1<<30 {
		t.Errorf("the heap was %d MiB", peak.Load()>>20)
	}
}

type bombLane struct{ frame []byte }

func (l bombLane) Open(context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	go func() {
		go io.Copy(io.Discard, there) //nolint:errcheck // ends with the pipe
		_, _ = there.Write(l.frame)
		there.Close()
	}()
	return here, nil
}
func (bombLane) Peer() replica.NodeName { return "n" }
func (bombLane) Close()                 {}

func TestFewItems(t *testing.T) {
	_, m, _ := makePart(64*kib, 4*kib)
	m.Regions = []replica.Region{{Name: "w", Shape: []uint64{1, 2, 1 << 40}}}
	body, err := cbor.Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	if !fewItems(body, 200) || fewItems(body, 20) {
		t.Error("a manifest of sixteen chunks")
	}
	for n := range body { // whatever is cut off, nothing is read beyond it
		fewItems(body[:n], 200)
	}
	for _, bad := range [][]byte{{0x1c}, {0x9f}, {0x18}, {0x1b, 0, 0}, {0x42, 1}, {0x5b, 255, 255, 255, 255, 255, 255, 255, 255}} {
		if fewItems(bad, 9) {
			t.Errorf("%x", bad)
		}
	}
	if fewItems(shapes(8<<20), maxItems) {
		t.Error("a bomb")
	}
}
