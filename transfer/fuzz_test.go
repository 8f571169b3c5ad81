package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// scriptConn reads a script and keeps what is written.
type scriptConn struct {
	net.Conn // nil: nothing else is called
	in       *bytes.Reader
	out      bytes.Buffer
}

func (s *scriptConn) Read(b []byte) (int, error)       { return s.in.Read(b) }
func (s *scriptConn) Write(b []byte) (int, error)      { return s.out.Write(b) }
func (s *scriptConn) Close() error                     { return nil }
func (s *scriptConn) SetDeadline(time.Time) error      { return nil }
func (s *scriptConn) SetReadDeadline(time.Time) error  { return nil }
func (s *scriptConn) SetWriteDeadline(time.Time) error { return nil }

// mended is the input with length and checksum of its first frame put right, so that a change reaches what reads the body. The body ends where the header
// says so, or before the last eight bytes.
func mended(in []byte) []byte {
	const header, sum = 12, 8
	if len(in) < header+sum {
		return in
	}
	out := bytes.Clone(in)
	n := min(int(binary.LittleEndian.Uint32(out[8:])), len(out)-header-sum)
	binary.LittleEndian.PutUint32(out[8:], uint32(n))
	binary.LittleEndian.PutUint64(out[header+n:], xxhash.Sum64(out[:header+n]))
	return out
}

// What a fuzzer changes in the first frame must be read, not be refused for its checksum.
func TestMended(t *testing.T) {
	frame, err := wire.Append(nil, kindFetch, "abc")
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range [][]byte{append(bytes.Clone(frame), "rest"...), frame} {
		if got := mended(in); !bytes.Equal(got, in) {
			t.Errorf("%x became %x", in, got)
		}
		in[14] ^= 1
		if _, body, err := wire.Read(bytes.NewReader(mended(in)), wire.MaxBody); err != nil || !bytes.Equal(body, in[12:16]) {
			t.Errorf("%x: body %x, %v", in, body, err)
		}
	}
}

// FuzzServe lets a peer say anything to a daemon. It must not panic, must put nothing that is not the manifest's, and must
// end each accepted push exactly once.
func FuzzServe(f *testing.F) {
	k, m, b := makePart(3000, 1024)
	var get [chunkHeaderBytes]byte
	chunkHeader{op: opGet, index: 2}.put(get[:])
	fetch, err := wire.Append(nil, kindFetch, k)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(bytes.Clone(fetch), get[:]...))
	for _, kind := range []wire.Kind{kindPush, kindPushWhole} {
		push, err := wire.Append(nil, kind, pushRequest{k, m})
		if err != nil {
			f.Fatal(err)
		}
		for i := range m.Chunks {
			off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
			chunkHeader{op: opChunk, index: uint32(i), length: uint32(n)}.put(get[:])
			push = append(append(push, get[:]...), b[off:off+n]...)
		}
		f.Add(push)
		f.Add(push[:len(push)-1])
		chunkHeader{op: opEnd}.put(get[:])
		f.Add(append(push, get[:]...))
	}
	beside, err := wire.Append(nil, kindPushBeside, k)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(beside, get[:]...))
	f.Fuzz(func(t *testing.T, in []byte) {
		in = mended(in)
		st := &anySink{memStore: memStore{m: m, b: b}, t: t}
		gate := NewGate(1, 1, 1<<20)
		gate.pushes[offered{"peer", k}] = newIncoming(newSink(t, m), &m)
		err := Serve(context.Background(), "peer", &scriptConn{in: bytes.NewReader(in)}, st, gate)
		if st.accepted != st.ended {
			t.Fatalf("accepted %d, ended %d: %v", st.accepted, st.ended, err)
		}
	})
}

// anySink accepts any push whose manifest passed, up to a size that a fuzzer can't turn into a slow test.
type anySink struct {
	memStore
	t               testing.TB // nil: what is wrong is refused, and the test goes on
	accepted, ended int
	last            *memSink
}

func (s *anySink) Accept(_ replica.NodeName, _ Key, m replica.Manifest) (Sink, func(error) error, error) {
	if m.Bytes > 1<<20 {
		return nil, nil, errors.New("too large here")
	}
	s.accepted++
	s.filled.Add(1)
	s.last = newSink(s.t, m)
	s.last.twice = s.t == nil
	sink := &endingSink{memSink: s.last}
	return sink, func(err error) error {
		s.ended++
		s.filled.Add(-1)
		sink.end()
		return sink.seal(err)
	}, nil
}

// FuzzFetch lets a source say anything to a receiver.
func FuzzFetch(f *testing.F) {
	k, m, b := makePart(3000, 1024)
	good, err := wire.Append(nil, wire.KindManifest, m)
	if err != nil {
		f.Fatal(err)
	}
	var head [chunkHeaderBytes]byte
	for i := range m.Chunks {
		off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		chunkHeader{op: opChunk, index: uint32(i), length: uint32(n)}.put(head[:])
		good = append(append(good, head[:]...), b[off:off+n]...)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	failed := bytes.Clone(good[:len(good)-int(m.Bytes)-3*chunkHeaderBytes])
	chunkHeader{op: opFail}.put(head[:])
	failed = append(failed, head[:]...)
	if failed, err = wire.Append(failed, kindError, refuse(ErrUnknownPart)); err != nil {
		f.Fatal(err)
	}
	f.Add(failed)
	f.Fuzz(func(t *testing.T, in []byte) {
		in = mended(in)
		sink := newSink(t, m)
		l := &scriptLane{in: in}
		rep, err := Fetch(context.Background(), k, []Source{{Node: "n1", Dial: func(context.Context) (Lane, error) { return l, nil }}}, sink.begin)
		if err == nil {
			sink.check(b)
		} else if rep.Failed["n1"] == "" {
			t.Errorf("failed without a reason: %v", err)
		}
	})
}

type scriptLane struct {
	in     []byte
	opened bool
}

func (l *scriptLane) Open(context.Context) (net.Conn, error) {
	if l.opened { // a refusal in the script is retried once; then it is over
		return nil, io.ErrClosedPipe
	}
	l.opened = true
	return &scriptConn{in: bytes.NewReader(l.in)}, nil
}
func (l *scriptLane) Peer() replica.NodeName { return "n1" }
func (l *scriptLane) Close()                 {}
