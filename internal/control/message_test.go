package control

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// sample is a message of one row of the table, and nothing in it zero.
type sample struct {
	row
	value any
}

func samples() (out []sample) {
	for _, r := range table {
		v := reflect.New(r.typ).Elem()
		fixture.Fill(v, new(uint64))
		out = append(out, sample{r, v.Interface()})
	}
	return out
}

func TestEveryMessageRoundTrips(t *testing.T) {
	for _, s := range samples() {
		b := fixture.Body(t, s.kind, s.value)
		got, err := s.decode(b)
		if err != nil {
			t.Errorf("kind %d, %T: %v", s.kind, s.value, err)
			continue
		}
		if !reflect.DeepEqual(got, s.value) {
			t.Errorf("kind %d: %+v comes back as %+v", s.kind, s.value, got)
		}
		for what, bad := range map[string][]byte{"a trailing byte": append(bytes.Clone(b), 0), "a trailing value": append(bytes.Clone(b), b...), "its end missing": b[:len(b)-1], "nothing": nil} {
			if got, err := s.decode(bad); err == nil {
				t.Errorf("kind %d with %s is read as %+v", s.kind, what, got)
			}
		}
		if frames, err := Encode(s.to, s.value); err != nil || len(frames) != 1 || !bytes.Equal(frames[0], fixture.Encode(t, s.kind, s.value)) {
			t.Errorf("a %T is not sent as kind %d: %x, %v", s.value, s.kind, frames, err)
		}
	}
	if _, err := Encode(ToLeader, View{}); err == nil {
		t.Error("a node may tell the leader a view")
	}
}

// Every number is in the table once, inside the control class, or unknown to both ends; so is every type in its direction.
func TestKindsKnown(t *testing.T) {
	known, types := map[wire.Kind]row{}, map[spoken]bool{}
	for _, r := range table {
		if _, twice := known[r.kind]; twice {
			t.Errorf("kind %d is used twice", r.kind)
		}
		if types[spoken{r.to, r.typ}] {
			t.Errorf("%v has two kinds in direction %d: which one is sent?", r.typ, r.to)
		}
		if (r.kind < wire.FirstControl || r.kind >= wire.FirstKeeper) && (r.kind < wire.MoreControl || r.kind >= 128) {
			t.Errorf("kind %d is outside the control class", r.kind)
		}
		known[r.kind], types[spoken{r.to, r.typ}] = r, true
	}
	for k := range 256 {
		r, ok := known[wire.Kind(k)]
		for _, to := range []Direction{ToLeader, ToNode} {
			mine := ok && r.handled && r.to == to
			b := []byte{0xa0} // an empty record, which is a message of any kind
			if _, err := Decode(to, wire.Kind(k), b); mine != (err == nil) {
				t.Errorf("kind %d in direction %d: %v, want it read: %v", k, to, err, mine)
			}
		}
	}
}

// Job ids are keys of maps on the wire: each must come back as itself, and one of another length as an error.
func TestMapsByJobID(t *testing.T) {
	want := Suspect{Target: replica.Holder{Node: "n2", Incarnation: 7}, Live: map[replica.JobID]replica.Step{{}: 1, {0xff, 1}: 2, {1, 0xff}: 1 << 37}, SilentMS: 1200, Steps: map[replica.JobID]StepMS{{1, 2}: {Still: 3, Pace: 4}}}
	b := fixture.Body(t, kindSuspect, want)
	got, err := Decode(ToLeader, kindSuspect, b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v comes back as %+v: %v", want, got, err)
	}
	if at := bytes.Index(b, append([]byte{0x50}, make([]byte, 16)...)); at < 0 {
		t.Error("a job id is not a byte string of 16 bytes")
	} else {
		short := append(append(bytes.Clone(b[:at]), append([]byte{0x4f}, make([]byte, 15)...)...), b[at+17:]...)
		if got, err := Decode(ToLeader, kindSuspect, short); err == nil {
			t.Errorf("a job id of 15 bytes is read as %+v", got)
		}
	}
	twice := Suspect{Live: map[replica.JobID]replica.Step{{1}: 5, {2}: 6}}
	b = fixture.Body(t, kindSuspect, twice)
	b = bytes.ReplaceAll(b, append([]byte{0x50, 2}, make([]byte, 15)...), append([]byte{0x50, 1}, make([]byte, 15)...))
	if got, err := Decode(ToLeader, kindSuspect, b); err == nil {
		t.Errorf("a job named twice is read as %+v", got)
	}
}

func FuzzFromNode(f *testing.F)   { fuzzMessages(f, ToLeader) }
func FuzzFromLeader(f *testing.F) { fuzzMessages(f, ToNode) }

// fuzzMessages: what is read must encode, and what that encodes to must be read as the same.
func fuzzMessages(f *testing.F, to Direction) {
	for _, s := range samples() {
		f.Add(uint8(s.kind), fixture.Body(f, s.kind, s.value))
		f.Add(uint8(s.kind), []byte{0xa0})
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		k := wire.Kind(kind)
		msg, err := Decode(to, k, b)
		if err != nil {
			return
		}
		first := fixture.Body(t, k, msg)
		again, err := Decode(to, k, first)
		if err != nil {
			t.Fatalf("%+v can't be read again: %v", msg, err)
		}
		if second := fixture.Body(t, k, again); !bytes.Equal(first, second) {
			t.Fatalf("%+v is encoded as %x, then as %x", msg, first, second)
		}
	})
}
