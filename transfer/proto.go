package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Frames of a stream. A fetch: kindFetch -> KindManifest or kindError, then chunk headers both ways. A push: kindPush ->
// kindWant or kindError, then chunk headers with bytes and one of opEnd, then <- kindDone or kindError. Beside it, on further streams:
// kindPushBeside -> kindReady or kindError, then likewise; the push's own end comes after theirs. A small push: kindPushWhole, at once
// all chunk headers with bytes, in order, then <- kindDone or kindError.
const (
	kindFetch     = wire.FirstTransfer + 0
	kindPush      = wire.FirstTransfer + 1
	kindWant      = wire.FirstTransfer + 2
	kindDone      = wire.FirstTransfer + 3
	kindError     = wire.FirstTransfer + 4
	kindPushWhole = wire.FirstTransfer + 5

	kindPushBeside = wire.FirstTransfer + 6 // Key
	kindReady      = wire.FirstTransfer + 7 // done, without a root
)

type pushRequest struct {
	Key      Key              `cbor:"1,keyasint"`
	Manifest replica.Manifest `cbor:"2,keyasint"`
}

// want lists the chunks a mirror lacks: bit i%8 of byte i/8.
type want struct {
	Chunks []byte `cbor:"1,keyasint"`
}

type done struct {
	Root replica.Digest `cbor:"1,keyasint"`
}

type refusal struct {
	Code code   `cbor:"1,keyasint"`
	Text string `cbor:"2,keyasint"`
}

// code is an error on the wire. Numbers keep their meaning for ever.
type code uint8

const codePeer code = 255

var codes = []struct {
	code code
	err  error
}{
	{1, ErrNotYet}, {2, ErrFenced}, {3, ErrUnknownPart}, {4, ErrCorrupt}, {5, ErrRefused}, {codePeer, ErrPeer},
}

func refuse(err error) refusal {
	text := err.Error()
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	r := refusal{Code: codePeer, Text: toValidText(text)}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			r.Code = c.code
			break
		}
	}
	return r
}

func (r refusal) err() error {
	text := r.Text
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	for _, c := range codes {
		if c.code == r.Code {
			return &RemoteError{Mark: c.err, Text: toValidText(text)}
		}
	}
	return &RemoteError{Mark: ErrPeer, Text: fmt.Sprintf("code %d: %s", r.Code, toValidText(text))}
}

// RemoteError is a peer's refusal: Mark is one of this package's errors, Text is the peer's own words.
type RemoteError struct {
	Mark error
	Text string
}

func (e *RemoteError) Error() string { return "peer says: " + e.Text }
func (e *RemoteError) Unwrap() error { return e.Mark }

// toValidText keeps a peer's words printable: they go into logs.
func toValidText(s string) string {
	out := make([]rune, 0, len(s))
	for _, c := range s {
		if c < ' ' || c == 0x7f || c == '\uFFFD' {
			c = '?'
		}
		out = append(out, c)
	}
	return string(out)
}

// A chunk header is: magic u32, op u8, zeros u8[3], chunk index u32, length u32; little-endian. A request has op get and
// length 0; a reply has op chunk and is followed by the bytes; op fail is followed by a kindError frame instead. A request with op have
// asks which chunks there are; its reply has op have and is followed by a bit for each.
// Op end, of a push, has no index and length 0: nothing follows.
const (
	chunkMagic       = 0x31435052 // "RPC1"
	chunkHeaderBytes = 16

	opGet   = 1
	opChunk = 2
	opFail  = 3
	opHave  = 4
	opEnd   = 5
)

type chunkHeader struct {
	op     uint8
	index  uint32
	length uint32
}

func (h chunkHeader) put(b []byte) {
	binary.LittleEndian.PutUint32(b, chunkMagic)
	b[4], b[5], b[6], b[7] = h.op, 0, 0, 0
	binary.LittleEndian.PutUint32(b[8:], h.index)
	binary.LittleEndian.PutUint32(b[12:], h.length)
}

func parseChunkHeader(b []byte) (chunkHeader, error) {
	if m := binary.LittleEndian.Uint32(b); m != chunkMagic || b[5]|b[6]|b[7] != 0 || b[4] < opGet || b[4] > opEnd {
		return chunkHeader{}, fmt.Errorf("%w: chunk header %x", ErrProtocol, b[:chunkHeaderBytes])
	}
	return chunkHeader{op: b[4], index: binary.LittleEndian.Uint32(b[8:]), length: binary.LittleEndian.Uint32(b[12:])}, nil
}

// readChunkHeader reads into scratch, which the caller keeps, so that nothing is allocated.
func readChunkHeader(r io.Reader, scratch *[chunkHeaderBytes]byte) (chunkHeader, error) {
	if _, err := io.ReadFull(r, scratch[:]); err != nil {
		return chunkHeader{}, err
	}
	return parseChunkHeader(scratch[:])
}

// readAnswer reads a frame that should be of kind k into v; a refusal becomes its error.
func readAnswer(r io.Reader, k wire.Kind, v any) error {
	got, body, err := wire.Read(r, wire.MaxBody)
	if err != nil {
		return err
	}
	switch got {
	case k:
		return unmarshal(body, v)
	case kindError:
		return parseRefusal(body)
	}
	return fmt.Errorf("%w: frame of kind %d, want %d", ErrProtocol, got, k)
}

// decoding is held while a manifest is decoded, so that what peers send of them takes memory once. What is decoded arrived before.
var decoding sync.Mutex

// unmarshal decodes a body that has a manifest in it. A body may be eight times as large once it is decoded, or a hundred times: a peer of the
// cluster that lies must not cost this daemon its memory.
func unmarshal(body []byte, v any) error {
	if !fewItems(body, maxItems) {
		return fmt.Errorf("%w: a body of %d bytes that has more than %d items, or is none", ErrProtocol, len(body), maxItems)
	}
	decoding.Lock()
	defer decoding.Unlock()
	return wire.Unmarshal(body, v)
}

// fewItems tells whether a body of CBOR (RFC 8949, section 3) has at most so many items, of definite lengths. What else is wrong with it the decoder
// says.
func fewItems(b []byte, most int) bool {
	for n := 0; len(b) > 0; n++ {
		major, info := b[0]>>5, b[0]&31
		b = b[1:]
		arg := uint64(info)
		if info > 23 {
			if info > 27 || len(b) < 1<<(info-24) {
				return false
			}
			var wide [8]byte
			size := 1 << (info - 24)
			copy(wide[8-size:], b[:size])
			arg, b = binary.BigEndian.Uint64(wide[:]), b[size:]
		}
		if major == 2 || major == 3 { // bytes and text: what follows is theirs
			if arg > uint64(len(b)) {
				return false
			}
			b = b[arg:]
		}
		if n >= most {
			return false
		}
	}
	return true
}

// readRefusal reads the frame that follows an opFail header; it never returns nil.
func readRefusal(r io.Reader) error {
	got, body, err := wire.Read(r, maxRequest)
	if err != nil {
		return err
	}
	if got != kindError {
		return fmt.Errorf("%w: frame of kind %d, want %d", ErrProtocol, got, kindError)
	}
	return parseRefusal(body)
}

func parseRefusal(body []byte) error {
	var f refusal
	if err := wire.Unmarshal(body, &f); err != nil {
		return err
	}
	return f.err()
}

// checkManifest tells whether m is what k names. The root covers geometry, sizes and every chunk's digest, so a manifest
// that hashes to the wanted root can be trusted as to those, whoever sent it.
func checkManifest(k Key, m *replica.Manifest) error {
	if err := m.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if got := hash(m.RootInput()); got != k.Root || m.Root != k.Root {
		return fmt.Errorf("%w: manifest of %v %v says root %v and hashes to %v, want %v", ErrCorrupt, k.Part, k.Generation, m.Root, got, k.Root)
	}
	sameGeneration := m.Generation == k.Generation || k.Part.Kind == replica.FrozenPart // captured once, under the first generation's name
	if m.Cluster != k.Cluster || m.Job != k.Job || m.Part != k.Part || !sameGeneration {
		return fmt.Errorf("%w: manifest is of job %v, %v %v, want job %v, %v %v", ErrCorrupt, m.Job, m.Part, m.Generation, k.Job, k.Part, k.Generation)
	}
	return nil
}
