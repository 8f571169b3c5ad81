package node

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// samples holds one message of every kind, the reader it is for, and nothing in it zero.
type sample struct {
	kind   wire.Kind
	decode func(wire.Kind, []byte) (any, error)
	value  any
}

func of[T any](k wire.Kind, decode func(wire.Kind, []byte) (any, error)) sample {
	var v T
	fill(reflect.ValueOf(&v).Elem(), new(uint64))
	return sample{k, decode, v}
}

// handshake reads what the link's handshake reads by itself.
func handshake[T any](_ wire.Kind, body []byte) (any, error) { return decode[T](body) }

func samples() []sample {
	return []sample{
		of[linkHello](kindLinkHello, handshake[linkHello]),
		of[welcome](kindWelcome, handshake[welcome]),
		of[beat](kindBeat, handshake[beat]),
		of[piece](kindPiece, handshake[piece]),

		of[replica.NodeReport](kindReport, decodeFromNode),
		of[replica.Pinned](kindPinned, decodeFromNode),
		of[replica.Passed](kindPassed, decodeFromNode),
		of[evidence](kindEvidence, decodeFromNode),
		of[rejected](kindReject, decodeFromNode),
		of[corruptCopy](kindCorrupt, decodeFromNode),
		of[claimRequest](kindClaim, decodeFromNode),
		of[createRequest](kindCreate, decodeFromNode),
		of[kvRequest](kindKV, decodeFromNode),
		of[kvKept](kindKept, decodeFromNode),
		of[suspect](kindSuspect, decodeFromNode),
		of[shardReport](kindShard, decodeFromNode),
		of[markedReport](kindMarked, decodeFromNode),
		of[endRequest](kindEnd, decodeFromNode),
		of[operatorRequest](kindOperator, decodeFromNode),
		of[statusRequest](kindStatus, decodeFromNode),
		of[replica.RegionReport](kindRegions, decodeFromNode),
		of[unreached](kindUnreached, decodeFromNode),
		of[askView](kindAskView, decodeFromNode),

		of[view](kindView, decodeFromLeader),
		of[change](kindChange, decodeFromLeader),
		of[progress](kindProgress, decodeFromLeader),
		of[replica.Candidate](kindCandidate, decodeFromLeader),
		of[offer](kindOffer, decodeFromLeader),
		of[captureOrder](kindCapture, decodeFromLeader),
		of[mirrorOrder](kindMirror, decodeFromLeader),
		of[corruptCopy](kindRecheck, decodeFromLeader),
		of[claimReply](kindClaimReply, decodeFromLeader),
		of[createReply](kindCreateReply, decodeFromLeader),
		of[kvReply](kindKVReply, decodeFromLeader),
		of[markerOrder](kindMarker, decodeFromLeader),
		of[statusReply](kindStatusReply, decodeFromLeader),
		of[regionsOrder](kindAskRegions, decodeFromLeader),
		of[tell](kindTell, decodeFromLeader),
		of[relayOrder](kindRelay, decodeFromLeader),
		of[unheardQuestion](kindAskUnheard, decodeFromLeader), of[unheardAnswer](kindUnheard, decodeFromNode),
	}
}

// fill sets everything below v to values that are not zero and, where there is room, not equal: a field that the encoding
// forgets, or that shares its number with another, comes back different.
func fill(v reflect.Value, n *uint64) {
	*n++
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n%100 + 1))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(*n%100 + 1)
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d", *n))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, n)
			fill(value, n)
			v.SetMapIndex(key, value)
		}
	case reflect.Pointer:
		if *n > 1<<12 {
			return // a type that points to itself ends somewhere
		}
		*n += 1 << 10
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	default:
		panic(fmt.Sprintf("a message holds a %v", v.Type()))
	}
}

func encode(t testing.TB, k wire.Kind, v any) []byte {
	t.Helper()
	frame, err := wire.Append(nil, k, v)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

func body(t testing.TB, k wire.Kind, v any) []byte {
	t.Helper()
	got, b, err := wire.Read(bytes.NewReader(encode(t, k, v)), maxLinkFrame)
	if err != nil || got != k {
		t.Fatalf("kind %d comes back as %d: %v", k, got, err)
	}
	return b
}

func TestEveryMessageRoundTrips(t *testing.T) {
	for _, s := range samples() {
		b := body(t, s.kind, s.value)
		got, err := s.decode(s.kind, b)
		if err != nil {
			t.Errorf("kind %d, %T: %v", s.kind, s.value, err)
			continue
		}
		if !reflect.DeepEqual(got, s.value) {
			t.Errorf("kind %d: %+v comes back as %+v", s.kind, s.value, got)
		}
		for what, bad := range map[string][]byte{"a trailing byte": append(bytes.Clone(b), 0), "a trailing value": append(bytes.Clone(b), b...), "its end missing": b[:len(b)-1], "nothing": nil} {
			if got, err := s.decode(s.kind, bad); err == nil {
				t.Errorf("kind %d with %s is read as %+v", s.kind, what, got)
			}
		}
	}
}

// Every number of the control class is either in the table of samples, with the side that reads it, or unknown to both.
func TestKindsKnown(t *testing.T) {
	known := map[wire.Kind]sample{}
	for _, s := range samples() {
		if _, twice := known[s.kind]; twice {
			t.Errorf("kind %d is used twice", s.kind)
		}
		if (s.kind < wire.FirstControl || s.kind >= wire.FirstKeeper) && (s.kind < wire.MoreControl || s.kind >= 128) {
			t.Errorf("kind %d is outside the control class", s.kind)
		}
		known[s.kind] = s
	}
	readers := map[string]func(wire.Kind, []byte) (any, error){"leader": decodeFromNode, "node": decodeFromLeader}
	for k := range 256 {
		s, ok := known[wire.Kind(k)]
		for who, read := range readers {
			mine := ok && reflect.ValueOf(s.decode).Pointer() == reflect.ValueOf(read).Pointer()
			b := []byte{0xa0} // an empty record, which is a message of any kind
			if _, err := read(wire.Kind(k), b); mine != (err == nil) {
				t.Errorf("kind %d at the %s: %v, want it read: %v", k, who, err, mine)
			}
		}
	}
}

// Job ids are keys of maps on the wire: each must come back as itself, and one of another length as an error.
func TestMapsByJobID(t *testing.T) {
	want := suspect{Target: replica.Holder{Node: "n2", Incarnation: 7}, Live: map[replica.JobID]replica.Step{{}: 1, {0xff, 1}: 2, {1, 0xff}: 1 << 37}, SilentMS: 1200, Steps: map[replica.JobID]stepMS{{1, 2}: {Still: 3, Pace: 4}}}
	b := body(t, kindSuspect, want)
	got, err := decodeFromNode(kindSuspect, b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v comes back as %+v: %v", want, got, err)
	}
	if at := bytes.Index(b, append([]byte{0x50}, make([]byte, 16)...)); at < 0 {
		t.Error("a job id is not a byte string of 16 bytes")
	} else {
		short := append(append(bytes.Clone(b[:at]), append([]byte{0x4f}, make([]byte, 15)...)...), b[at+17:]...)
		if got, err := decodeFromNode(kindSuspect, short); err == nil {
			t.Errorf("a job id of 15 bytes is read as %+v", got)
		}
	}
	twice := suspect{Live: map[replica.JobID]replica.Step{{1}: 5, {2}: 6}}
	b = body(t, kindSuspect, twice)
	b = bytes.ReplaceAll(b, append([]byte{0x50, 2}, make([]byte, 15)...), append([]byte{0x50, 1}, make([]byte, 15)...))
	if got, err := decodeFromNode(kindSuspect, b); err == nil {
		t.Errorf("a job named twice is read as %+v", got)
	}
}

func FuzzFromNode(f *testing.F)   { fuzzMessages(f, decodeFromNode) }
func FuzzFromLeader(f *testing.F) { fuzzMessages(f, decodeFromLeader) }

// fuzzMessages: what is read must encode, and what that encodes to must be read as the same.
func fuzzMessages(f *testing.F, read func(wire.Kind, []byte) (any, error)) {
	for _, s := range samples() {
		f.Add(uint8(s.kind), body(f, s.kind, s.value))
		f.Add(uint8(s.kind), []byte{0xa0})
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		k := wire.Kind(kind)
		msg, err := read(k, b)
		if err != nil {
			return
		}
		first := body(t, k, msg)
		again, err := read(k, first)
		if err != nil {
			t.Fatalf("%+v can't be read again: %v", msg, err)
		}
		if second := body(t, k, again); !bytes.Equal(first, second) {
			t.Fatalf("%+v is encoded as %x, then as %x", msg, first, second)
		}
	})
}
