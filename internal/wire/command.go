package wire

import (
	"fmt"
	"reflect"

	"github.com/fxamacker/cbor/v2"

	"github.com/replicad/replicad/replica"
)

// tagged is the body of a KindCommand frame.
type tagged struct {
	Tag  uint16          `cbor:"1,keyasint"`
	Body cbor.RawMessage `cbor:"2,keyasint"`
}

// commands lists every command with its tag. A tag keeps its meaning for ever: logs outlive programs.
var commands = []struct {
	tag    uint16
	sample replica.Command
}{
	{1, replica.RegisterNode{}},
	{2, replica.CreateJob{}},
	{3, replica.Begin{}},
	{4, replica.Claim{}},
	{5, replica.ReportFault{}},
	{6, replica.ApplyPlan{}},
	{7, replica.Resume{}},
	{8, replica.Commit{}},
	{9, replica.ReportDispute{}},
	{10, replica.Condemn{}},
	{11, replica.SetCopies{}},
	{12, replica.SetMirrors{}},
	// 13 was SetCadence, which nobody sent.
	{14, replica.BeginDurable{}},
	{15, replica.EndDurable{}},
	{16, replica.Quarantine{}},
	{17, replica.ProveLost{}},
	{18, replica.EndJob{}},
	{19, replica.NewEra{}},
	{20, replica.CommitRoots{}},
	{21, replica.Revoke{}},
	{22, replica.SetHolder{}},
	{23, replica.Grow{}},
	{24, replica.StopJob{}},
}

var (
	tagByType = make(map[reflect.Type]uint16, len(commands))
	typeByTag = make(map[uint16]reflect.Type, len(commands))
)

func init() {
	for _, c := range commands {
		t := reflect.TypeOf(c.sample)
		tagByType[t], typeByTag[c.tag] = c.tag, t
	}
}

// EncodeCommand makes the KindCommand frame of c, which is a value, not a pointer.
func EncodeCommand(c replica.Command) ([]byte, error) {
	tag, ok := tagByType[reflect.TypeOf(c)]
	if !ok {
		return nil, fmt.Errorf("encode command: %T has no tag; commands are passed by value and listed in wire", c)
	}
	body, err := encoder.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode command %T: %w", c, err)
	}
	return Append(nil, KindCommand, tagged{tag, body})
}

// DecodeCommand reads what EncodeCommand made.
func DecodeCommand(b []byte) (replica.Command, error) {
	var t tagged
	if err := Decode(b, KindCommand, &t); err != nil {
		return nil, err
	}
	typ, ok := typeByTag[t.Tag]
	if !ok {
		return nil, fmt.Errorf("%w: command with tag %d, unknown to this program: it was written by a newer one", ErrFrame, t.Tag)
	}
	v := reflect.New(typ)
	if err := Unmarshal(t.Body, v.Interface()); err != nil {
		return nil, err
	}
	return v.Elem().Interface().(replica.Command), nil
}
