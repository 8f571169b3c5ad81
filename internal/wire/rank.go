package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/replicad/replicad/replica"
)

// The datagrams that ranks, launchers and the daemon exchange on the unix socket: a header of 32 bytes and a body of fixed
// layout, little-endian, as in libreplicad/src/layout.h. They do not use the frame of the other records: C reads them too.

// Limits and marks of rank messages.
const (
	RankMagic       = 0x31445052 // "RPD1"
	RankVersion     = 1
	RankHeaderBytes = 32
	MaxRankMessage  = 65536 // bytes of a whole datagram
	RankABI         = 1     // RP_ABI_VERSION
	MaxKeyBytes     = 255
	MaxValueBytes   = 32 << 10
)

// The message types (RP_M_*).
const (
	// rank -> daemon
	MHello    uint16 = 1
	MRegions  uint16 = 2
	MAttach   uint16 = 3
	MReattach uint16 = 4
	MSealed   uint16 = 5
	MStopped  uint16 = 6
	MLoaded   uint16 = 7
	MFail     uint16 = 8
	MLeave    uint16 = 9
	MKVSet    uint16 = 10
	MKVGet    uint16 = 11
	MBarrier  uint16 = 12
	MReject   uint16 = 13
	MKVAdd    uint16 = 14
	MKVCheck  uint16 = 15
	// MKVCompareSet's Members says how many bytes of the value are the expected ones.
	MKVCompareSet uint16 = 16
	MKVDelete     uint16 = 17
	MScope        uint16 = 18
	MPause        uint16 = 19
	// launcher -> daemon
	MRunHello   uint16 = 20
	MRunExited  uint16 = 21
	MRunRunning uint16 = 22 // body: RunExited with Status 0
	// These come from a rank again.
	MUnloadable uint16 = 23
	MEnding     uint16 = 24
	MRecipePart uint16 = 25
	MGrow       uint16 = 26
	MRecipe     uint16 = 27
	MLacks      uint16 = 30
	MResumed    uint16 = 32 // no body
	MSaid       uint16 = 33
	MFrom       uint16 = 34 // no body
	// A launcher says again.
	MRunLeaving uint16 = 31 // body: RunExited, zero: it was told to end, and waits for MRunLeave
	MRunAgent   uint16 = 35 // body: Agent
	// daemon -> rank
	MWelcome  uint16 = 64
	MRefused  uint16 = 65
	MAttached uint16 = 66
	MFence    uint16 = 67
	MOrder    uint16 = 68
	MBye      uint16 = 69
	MKVOK     uint16 = 70
	MKVValue  uint16 = 71
	MKVTotal  uint16 = 72
	MScoped   uint16 = 73
	MPaused   uint16 = 74 // to an MPause that is a request
	MRecipeIs uint16 = 75
	// MResumedIs's body is text: what the plan of the newest epoch says of the durable generation that it reads.
	MResumedIs uint16 = 76
	// MFromIs's body is JSON: the replica.Origin that the job began with; empty: it began with its program's own state.
	MFromIs uint16 = 77
	// daemon -> launcher
	MRunOK    uint16 = 80
	MRunStart uint16 = 81
	MRunStop  uint16 = 82
	MRunDone  uint16 = 83
	MRunNote  uint16 = 84 // body: Refused with Code 0: what people at the launcher should know
	MRunLeave uint16 = 85 // body: none: the ranks have ended the step that they were in
	MRunBegun uint16 = 86 // body: none: the job needs no more what the launcher's From names
	MRunRound uint16 = 87 // body: Round
)

// The codes of libreplicad (RP_*), as they stand in Refused, KVValue and the KV_OK reply.
const (
	CodeOK       int32 = 0
	CodeFenced   int32 = -1
	CodeCorrupt  int32 = -2
	CodeAgain    int32 = -3
	CodeTimeout  int32 = -4
	CodeGone     int32 = -5
	CodeFork     int32 = -6
	CodeVersion  int32 = -7
	CodeInvalid  int32 = -8
	CodeRefused  int32 = -9
	CodeNoMemory int32 = -10
	CodeSystem   int32 = -11
	CodeState    int32 = -12
	CodeStopped  int32 = -13
	CodeCanceled int32 = -14
)

// RankHeader precedes every rank message.
type RankHeader struct {
	Type        uint16
	Request     uint32 // echoed in the reply; 0 for events
	Epoch       replica.Epoch
	Incarnation replica.Incarnation
}

// AppendRank appends one whole message. A body beyond MaxRankMessage is the caller's broken invariant: ParseRank refuses it.
func AppendRank(dst []byte, h RankHeader, body []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, RankMagic)
	dst = binary.LittleEndian.AppendUint16(dst, RankVersion)
	dst = binary.LittleEndian.AppendUint16(dst, h.Type)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(RankHeaderBytes+len(body)))
	dst = binary.LittleEndian.AppendUint32(dst, h.Request)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Epoch))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Incarnation))
	return append(dst, body...)
}

// ParseRank reads exactly one whole message; body aliases b.
func ParseRank(b []byte) (h RankHeader, body []byte, err error) {
	if len(b) < RankHeaderBytes || len(b) > MaxRankMessage {
		return h, nil, fmt.Errorf("rank message of %d bytes: want %d to %d", len(b), RankHeaderBytes, MaxRankMessage)
	}
	if m := binary.LittleEndian.Uint32(b); m != RankMagic {
		return h, nil, fmt.Errorf("rank message: magic %#x, want %#x", m, uint32(RankMagic))
	}
	if v := binary.LittleEndian.Uint16(b[4:]); v != RankVersion {
		return h, nil, &RankVersionError{Got: v}
	}
	if n := binary.LittleEndian.Uint32(b[8:]); uint64(n) != uint64(len(b)) {
		return h, nil, fmt.Errorf("rank message: says %d bytes, has %d", n, len(b))
	}
	h = RankHeader{
		Type:        binary.LittleEndian.Uint16(b[6:]),
		Request:     binary.LittleEndian.Uint32(b[12:]),
		Epoch:       replica.Epoch(binary.LittleEndian.Uint64(b[16:])),
		Incarnation: replica.Incarnation(binary.LittleEndian.Uint64(b[24:])),
	}
	if h.Epoch > replica.MaxEpoch {
		return RankHeader{}, nil, fmt.Errorf("rank message: epoch %d, at most %d", h.Epoch, replica.MaxEpoch)
	}
	return h, b[RankHeaderBytes:], nil
}

// RankVersionError says that the other side speaks another version of the rank protocol.
type RankVersionError struct{ Got uint16 }

func (e *RankVersionError) Error() string {
	return fmt.Sprintf("rank message: version %d, this daemon speaks %d: use the libreplicad that came with it", e.Got, RankVersion)
}

// checkBody tells whether a fixed body has its size.
func checkBody(what string, b []byte, want int) error {
	if len(b) != want {
		return fmt.Errorf("%s: body of %d bytes, want %d", what, len(b), want)
	}
	return nil
}

// appendText appends s NUL padded to n bytes. What does not fit is cut, leaving one NUL: names are checked by their owners
// before, and texts are for people.
func appendText(dst []byte, s string, n int) []byte {
	s = s[:min(len(s), n-1)]
	dst = append(dst, s...)
	return append(dst, make([]byte, n-len(s))...)
}

// parseText reads a NUL padded field; bytes after the first NUL must be NUL, so that a text has one encoding.
func parseText(what string, b []byte) (string, error) {
	n := 0
	for n < len(b) && b[n] != 0 {
		n++
	}
	if n == len(b) {
		return "", fmt.Errorf("%s: text of %d bytes is not terminated", what, len(b))
	}
	for _, c := range b[n:] {
		if c != 0 {
			return "", fmt.Errorf("%s: bytes after the end of the text", what)
		}
	}
	return string(b[:n]), nil
}

// parseGeneration reads a generation packed as a word with phase 0.
func parseGeneration(what string, b []byte) (replica.Generation, error) {
	w := replica.Word(binary.LittleEndian.Uint64(b))
	if w.Phase() != 0 {
		return replica.Generation{}, fmt.Errorf("%s: generation word %#x has a phase", what, uint64(w))
	}
	return w.Generation(), nil
}

func parseZero(what string, b []byte) error {
	if v := binary.LittleEndian.Uint32(b); v != 0 {
		return fmt.Errorf("%s: reserved field is %d, want 0", what, v)
	}
	return nil
}
