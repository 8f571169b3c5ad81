package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Kind says what a frame's body is.
type Kind uint8

// Kinds and the ranges that packages take theirs from. A number keeps its meaning for ever.
const (
	KindCommand  Kind = 1 // an entry of the replicated log: see EncodeCommand
	KindSnapshot Kind = 2 // of the replicated state machine
	KindManifest Kind = 3 // a replica.Manifest
	KindDigest   Kind = 4 // an entry of the replicated log: what the state is at an earlier one, for voters to compare
	KindBallot   Kind = 5 // what voters ask each other, and answer, beside Raft
	KindPromise  Kind = 6 // what a voter has promised, in memory that its keeper holds

	FirstTransfer   Kind = 16 // 16..31
	FirstControl    Kind = 32 // 32..63
	FirstKeeper     Kind = 64 // 64..79
	FirstCheckpoint Kind = 80 // 80..95
	MoreControl     Kind = 96 // 96..127: 32..63 are all given out
)

// A frame is: magic u32, version u8, kind u8, reserved u16 (zero), length of the body u32, body, xxhash64 of all before it
// u64; little-endian.
const (
	magic       = 0x31575052 // "RPW1"
	headerBytes = 12
	sumBytes    = 8
)

// version is that of a kind's frames. Those in documents of the durable tier outlive programs, and have one of their own: what changes a
// command or a message leaves each checkpoint readable.
func version(k Kind) uint8 {
	if k >= FirstCheckpoint && k < MoreControl {
		return 1
	}
	return 2 // 1 had replica.SetCadence, a job's planned cadences, and the option replayable
}

// ErrFrame marks bytes that are no valid frame or body of ours: cut short, changed, of another version, or beyond a limit.
var ErrFrame = errors.New("bad frame")

// ErrVersion is an ErrFrame of another version: the other end is a program of another release.
var ErrVersion = fmt.Errorf("%w: version", ErrFrame)

// Append appends one whole frame to dst, its body being v as core-deterministic CBOR.
func Append(dst []byte, k Kind, v any) ([]byte, error) {
	start := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, magic)
	dst = append(dst, version(k), byte(k), 0, 0, 0, 0, 0, 0)
	buf := bytes.NewBuffer(dst)
	if err := encoder.MarshalToBuffer(v, buf); err != nil {
		return dst[:start], fmt.Errorf("encode %T as kind %d: %w", v, k, err)
	}
	return closeFrame(buf.Bytes(), start, k)
}

// AppendBody appends one whole frame whose body Marshal has made.
func AppendBody(dst []byte, k Kind, body []byte) ([]byte, error) {
	start := len(dst)
	dst = slices.Grow(dst, headerBytes+len(body)+sumBytes)
	dst = binary.LittleEndian.AppendUint32(dst, magic)
	dst = append(dst, version(k), byte(k), 0, 0, 0, 0, 0, 0)
	return closeFrame(append(dst, body...), start, k)
}

// closeFrame writes the length and the checksum of the frame that begins at start.
func closeFrame(dst []byte, start int, k Kind) ([]byte, error) {
	n := len(dst) - start - headerBytes
	if most := maxBody(k); n > most {
		return dst[:start], fmt.Errorf("encode kind %d: body of %d bytes, at most %d", k, n, most)
	}
	binary.LittleEndian.PutUint32(dst[start+8:], uint32(n))
	return binary.LittleEndian.AppendUint64(dst, xxhash.Sum64(dst[start:])), nil
}

// maxBody is the largest body of a kind.
func maxBody(k Kind) int {
	if k == KindSnapshot {
		return MaxState
	}
	return MaxBody
}

// Decode reads exactly one whole frame of kind k into v.
func Decode(frame []byte, k Kind, v any) error {
	if len(frame) < headerBytes+sumBytes {
		return fmt.Errorf("%w: %d bytes are too few", ErrFrame, len(frame))
	}
	got, n, err := parseHeader(frame[:headerBytes], MaxState)
	if err != nil {
		return err
	}
	if got != k {
		return fmt.Errorf("%w: kind %d, want %d", ErrFrame, got, k)
	}
	if want := headerBytes + int(n) + sumBytes; len(frame) != want {
		return fmt.Errorf("%w: %d bytes, its header says %d", ErrFrame, len(frame), want)
	}
	end := headerBytes + int(n)
	if err := checkSum(xxhash.Sum64(frame[:end]), frame[end:]); err != nil {
		return err
	}
	return Unmarshal(frame[headerBytes:end], v)
}

// Write writes one frame with one call of w.Write.
func Write(w io.Writer, k Kind, v any) error {
	frame, err := Append(nil, k, v)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

// Read reads one frame whose body has at most max bytes and returns the body, its checksum compared. It returns io.EOF only
// if the stream ends before the frame's first byte; an end inside it is io.ErrUnexpectedEOF.
func Read(r io.Reader, max uint32) (Kind, []byte, error) {
	h, err := ReadHeader(r, max)
	if err != nil {
		return 0, nil, err
	}
	body, err := h.Body(r)
	return h.Kind, body, err
}

// FrameBytes is the size of a frame with a body of n bytes.
func FrameBytes(n uint32) int64 { return headerBytes + int64(n) + sumBytes }

// Header is a frame's of which nothing else was read: who reads may ask for room first.
type Header struct {
	Kind  Kind
	Bytes uint32 // of the body
	raw   [headerBytes]byte
}

// ReadHeader reads the header of a frame whose body has at most max bytes. Errors are those of Read.
func ReadHeader(r io.Reader, max uint32) (h Header, err error) {
	if _, err := io.ReadFull(r, h.raw[:]); err != nil {
		return h, err
	}
	h.Kind, h.Bytes, err = parseHeader(h.raw[:], max)
	return h, err
}

// Body reads the rest of the frame.
func (h *Header) Body(r io.Reader) ([]byte, error) {
	body, err := readBody(r, int(h.Bytes))
	if err != nil {
		return nil, err
	}
	var sum [sumBytes]byte
	if _, err := io.ReadFull(r, sum[:]); err != nil {
		return nil, inside(err)
	}
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(h.raw[:])
	_, _ = d.Write(body)
	if err := checkSum(d.Sum64(), sum[:]); err != nil {
		return nil, err
	}
	return body, nil
}

// Skip reads the rest of the frame and keeps nothing of it.
func (h *Header) Skip(r io.Reader) error {
	_, err := io.CopyN(io.Discard, r, int64(h.Bytes)+sumBytes)
	return inside(err)
}

func parseHeader(h []byte, max uint32) (Kind, uint32, error) {
	if m := binary.LittleEndian.Uint32(h); m != magic {
		return 0, 0, fmt.Errorf("%w: magic %#08x, want %#08x", ErrFrame, m, uint32(magic))
	}
	if v := version(Kind(h[5])); h[4] != v {
		return 0, 0, fmt.Errorf("%w %d, this program reads %d", ErrVersion, h[4], v)
	}
	if h[6] != 0 || h[7] != 0 {
		return 0, 0, fmt.Errorf("%w: reserved bytes %#02x %#02x are set", ErrFrame, h[6], h[7])
	}
	n := binary.LittleEndian.Uint32(h[8:])
	if limit := min(max, uint32(maxBody(Kind(h[5])))); n > limit {
		return 0, 0, fmt.Errorf("%w: body of %d bytes, at most %d here", ErrFrame, n, limit)
	}
	return Kind(h[5]), n, nil
}

func checkSum(got uint64, sum []byte) error {
	if want := binary.LittleEndian.Uint64(sum); got != want {
		return fmt.Errorf("%w: checksum %#016x, the frame says %#016x", ErrFrame, got, want)
	}
	return nil
}

// readBody reads n bytes; a header that lies about n costs at most twice what really arrives.
func readBody(r io.Reader, n int) ([]byte, error) {
	body := make([]byte, 0, min(n, firstPiece))
	for len(body) < n {
		if len(body) == cap(body) {
			grown := make([]byte, len(body), min(n, 2*cap(body)))
			copy(grown, body)
			body = grown
		}
		piece := body[len(body):cap(body)]
		if _, err := io.ReadFull(r, piece); err != nil {
			return nil, inside(err)
		}
		body = body[:cap(body)]
	}
	return body, nil
}

// inside turns an end of stream within a frame into the error that says so.
func inside(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
