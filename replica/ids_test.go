package replica

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestUUID(t *testing.T) {
	id := JobID{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10}
	const text = "01234567-89ab-cdef-fedc-ba9876543210"
	if id.String() != text {
		t.Errorf("%v", id)
	}
	for _, s := range []string{text, strings.ReplaceAll(text, "-", ""), strings.ToUpper(text)} {
		if got, err := ParseUUID(s); err != nil || got != [16]byte(id) {
			t.Errorf("%s: %x, %v", s, got, err)
		}
	}
	for _, s := range []string{"", text[1:], text + "0", strings.Replace(text, "-", "0", 1), strings.Replace(text, "a", "g", 1), strings.Replace(text, "-", "_", 1), "0-" + text[2:]} {
		if got, err := ParseUUID(s); err == nil {
			t.Errorf("%q parsed as %x", s, got)
		}
	}
	var back struct {
		J JobID
		D Digest
	}
	b, err := json.Marshal(struct {
		J JobID
		D Digest
	}{id, Digest(id)})
	if err != nil || json.Unmarshal(b, &back) != nil || back.J != id || back.D != Digest(id) {
		t.Errorf("%s does not come back: %+v, %v", b, back, err)
	}
}

func TestCheckName(t *testing.T) {
	for _, s := range []string{"a", "job-1", "a.b_c", strings.Repeat("x", MaxNameBytes), "0"} {
		if err := CheckName(s); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"", "-a", "a-", ".a", "a.", "A", "a b", "a/b", "..", "ä", strings.Repeat("x", MaxNameBytes+1), "a\x00"} {
		if CheckName(s) == nil {
			t.Errorf("%q is accepted: it becomes a file name", s)
		}
	}
}

// Jobs are named as models are; all else of the grammar stays.
func TestCheckJobName(t *testing.T) {
	for _, s := range []string{"Llama3-8B", "A", "Z", "a", "GPT.2_x"} {
		if err := CheckJobName(s); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"", "-A", "A-", "A b", "A/b", "[", "@", "Ä", strings.Repeat("X", MaxNameBytes+1)} {
		if err := CheckJobName(s); err == nil {
			t.Errorf("%q is accepted: it becomes a file name", s)
		} else if len(s) < 5 && s != "" && !strings.Contains(err.Error(), "A-Z") {
			t.Error(err)
		}
	}
}

func TestLayoutCheck(t *testing.T) {
	for _, l := range []Layout{{1, []GroupID{0}}, {4, []GroupID{0, 1, 0, 1}}, {3, []GroupID{2, 0, 1}}} {
		if err := l.Check(); err != nil {
			t.Error(err)
		}
	}
	for _, l := range []Layout{{0, nil}, {2, []GroupID{0}}, {1, []GroupID{0, 0}}, {2, []GroupID{0, 2}}, {2, []GroupID{1, 1}}, {3, []GroupID{0, 2, 0}}, {MaxRanks + 1, make([]GroupID, MaxRanks+1)}} {
		if l.Check() == nil {
			t.Errorf("world %d, groups %v: accepted", l.World, l.Groups[:min(4, len(l.Groups))])
		}
	}
	m := Layout{4, []GroupID{0, 1, 0, 1}}.Members()
	if len(m) != 2 || len(m[0]) != 2 || m[0][1] != 2 || m[1][0] != 1 {
		t.Errorf("members %v", m)
	}
	if o := (Options{}).WithDefaults(); o.Check(1) != nil || o.MinCopies != 2 || o.Cadence != 1 || o.Slots != 4 || o.ChunkBytes != DefaultChunkBytes {
		t.Errorf("defaults %+v", o)
	}
	for _, o := range []Options{{MinCopies: -1}, {MinCopies: 99}, {Slots: 1}, {Slots: 5}, {Cadence: 1 << 30}, {ChunkBytes: 7}, {Nondeterministic: []bool{true}}} {
		if o.WithDefaults().Check(2) == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
