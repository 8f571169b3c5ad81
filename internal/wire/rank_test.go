package wire

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

const goldenDir = "../../libreplicad/testdata"

func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(goldenDir, name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// run of n bytes rising from first, as the golden vectors' identifiers are.
func rising(first byte) (b [16]byte) {
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

// reencode parses a body of the given type and appends it again; what comes of it must be the body.
func reencode(typ uint16, body []byte) (any, []byte, error) {
	again := func(v interface{ Append([]byte) []byte }, err error) (any, []byte, error) {
		if err != nil {
			return nil, nil, err
		}
		return v, v.Append(nil), nil
	}
	switch typ {
	case MHello, MReattach:
		v, err := ParseHello(body)
		return again(v, err)
	case MRegions:
		first, regions, err := ParseRegions(body)
		if err != nil {
			return nil, nil, err
		}
		return regions, AppendRegions(nil, first, regions), nil
	case MAttach:
		n, group, err := ParseAttach(body)
		return []any{n, group}, AppendAttach(nil, n, group), err
	case MSealed:
		v, err := ParseSealed(body)
		return again(v, err)
	case MStopped:
		w, err := ParseStopped(body)
		return w, AppendStopped(nil, w), err
	case MPause, MEnding:
		d, err := ParsePause(body)
		return d, AppendPause(nil, d), err
	case MRecipePart, MRecipeIs:
		v, err := ParsePiece(body)
		return again(v, err)
	case MGrow:
		v, err := ParseGrowth(body)
		return again(v, err)
	case MRecipe:
		n, err := ParseRecipe(body)
		return n, AppendRecipe(nil, n), err
	case MLoaded:
		v, err := ParseLoaded(body)
		return again(v, err)
	case MFail, MReject, MResumedIs, MFromIs:
		return string(body), body, nil
	case MLacks:
		text, err := ParseLacks(body)
		return text, []byte(text), err
	case MSaid:
		list, err := ParseRemarks(body)
		return list, AppendRemarks(nil, list), err
	case MLeave, MBye, MFence, MScope, MPaused, MResumed, MFrom:
		return nil, nil, checkBody("empty", body, 0)
	case MKVSet, MKVGet, MBarrier, MKVAdd, MKVCheck, MKVCompareSet, MKVDelete:
		v, err := ParseKV(typ, body)
		return again(v, err)
	case MKVTotal:
		v, err := ParseKVTotal(body)
		return again(v, err)
	case MScoped:
		v, err := ParseScoped(body)
		return again(v, err)
	case MRunHello:
		v, err := ParseRunHello(body)
		return again(v, err)
	case MRunExited:
		v, err := ParseRunExited(body)
		return again(v, err)
	case MWelcome, MRunOK:
		v, err := ParseWelcome(body)
		return again(v, err)
	case MRefused, MRunDone:
		v, err := ParseRefused(body)
		return again(v, err)
	case MAttached:
		v, err := ParseAttached(body)
		return again(v, err)
	case MOrder:
		v, err := ParseOrder(body)
		return again(v, err)
	case MKVOK:
		c, err := ParseKVOK(body)
		return c, AppendKVOK(nil, c), err
	case MKVValue:
		v, err := ParseKVValue(body)
		return again(v, err)
	case MRunStart:
		v, err := ParseRunStart(body)
		return again(v, err)
	case MRunStop:
		v, err := ParseRunStop(body)
		return again(v, err)
	}
	return nil, nil, errors.New("unknown type")
}

var messageFiles = []string{"hello", "regions", "attach", "reattach", "sealed", "stopped", "loaded", "fail", "leave", "kv_set", "kv_get", "barrier",
	"reject", "kv_add", "kv_check", "kv_compare_set", "kv_delete", "scope", "kv_total", "scoped", "paused", "ending", "recipe_part", "grow", "recipe", "recipe_is", "lacks", "resumed", "resumed_is", "from", "from_is",
	"run_hello", "run_exited", "welcome", "refused", "attached", "fence", "order", "bye", "kv_ok", "kv_value", "run_ok", "run_start", "run_stop", "run_done"}

// The vectors are written by C: every one must parse to the values its text names, and encode to the same bytes.
func TestGoldenMessages(t *testing.T) {
	for _, name := range messageFiles {
		b := golden(t, name)
		h, body, err := ParseRank(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if h.Request != 0x01020304 || h.Epoch != 7 || h.Incarnation != 1234605616436508552 {
			t.Errorf("%s: header %+v", name, h)
		}
		_, out, err := reencode(h.Type, body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := AppendRank(nil, h, out); !bytes.Equal(got, b) {
			t.Errorf("%s: encodes to\n%x, want\n%x", name, got, b)
		}
	}
}

func TestGoldenValues(t *testing.T) {
	hello := Hello{ABI: 1, Rank: 3, World: 4, Group: 1, Nonce: 18369614221190020847, PID: 4711, Job: "opticks", Token: "secret-token"}
	for name, want := range map[string]any{
		"hello":          hello,
		"reattach":       hello,
		"sealed":         Sealed{Kind: 1, Index: 5, Word: 339, Generation: replica.Word(7696586332700).Generation()},
		"kv_set":         KV{Key: "addr/3", Value: []byte("127.0.0.1:4000"), Once: 9},
		"kv_add":         KV{Key: "came", Value: []byte{0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, Once: 10},
		"kv_compare_set": KV{Key: "who", Value: []byte("mineyours"), Members: 4, Once: 11},
		"kv_delete":      KV{Key: "who", Value: nil, Once: 12},
		"kv_total":       KVTotal{Code: CodeOK, Total: -3},
		"scoped":         Scoped{Epoch: 8},
		"lacks":          "model.teacher.0.weight",
		"order": Order{Action: OrderLoad, Source: replica.PeerRAM, Step: 1234567, Generation: replica.Word(6597074704924).Generation(), Slot: 2, Place: 9,
			ReplicatedRoot: rising(0x50), PrivateRoot: rising(0x70), Code: CodeStopped, Text: "why"},
		"run_hello": RunHello{ABI: 1, World: 4, Capacity: 2, Ranks: []replica.Rank{0, 3}, Groups: []replica.GroupID{0, 1, 0, 1}, MinCopies: 2, Cadence: 1, Slots: 4,
			ChunkBytes: 1 << 20, DurableEvery: 50, Job: "opticks", Token: "secret-token"},
	} {
		h, body, err := ParseRank(golden(t, name))
		if err != nil {
			t.Fatal(name, err)
		}
		got, _, err := reencode(h.Type, body)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v (%v)\nwant %+v", name, got, err, want)
		}
	}
}

func TestParseRankRefuses(t *testing.T) {
	good := AppendRank(nil, RankHeader{Type: MHello, Request: 1, Epoch: 2, Incarnation: 3}, []byte("body"))
	if _, _, err := ParseRank(good); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(b []byte) []byte{
		"magic":     func(b []byte) []byte { b[0] ^= 1; return b },
		"version":   func(b []byte) []byte { b[4] = 9; return b },
		"length":    func(b []byte) []byte { b[8]++; return b },
		"short":     func(b []byte) []byte { return b[:RankHeaderBytes-1] },
		"truncated": func(b []byte) []byte { return b[:len(b)-1] },
		"epoch":     func(b []byte) []byte { b[23] = 1; return b },
		"too long":  func(b []byte) []byte { return append(b, make([]byte, MaxRankMessage)...) },
	} {
		if _, _, err := ParseRank(change(bytes.Clone(good))); err == nil {
			t.Errorf("%s: not refused", what)
		}
	}
	b := bytes.Clone(good)
	b[4] = 9
	_, _, err := ParseRank(b)
	if v, ok := errors.AsType[*RankVersionError](err); !ok || v.Got != 9 {
		t.Errorf("another version: %v", err)
	}
}

func TestParseHelloRefuses(t *testing.T) {
	good := Hello{ABI: 1, Rank: 3, World: 4, Group: 1, Job: "j"}
	for what, b := range map[string][]byte{
		"rank beyond world":  Hello{Rank: 4, World: 4}.Append(nil),
		"group beyond world": Hello{World: 4, Group: 4}.Append(nil),
		"no world":           Hello{}.Append(nil),
		"unterminated job":   append(bytes.Replace(good.Append(nil)[:96], append([]byte("j"), make([]byte, 63)...), bytes.Repeat([]byte("j"), 64), 1), make([]byte, 64)...),
		"junk after the end": func() []byte { b := good.Append(nil); b[40] = 'x'; return b }(),
	} {
		if _, err := ParseHello(b); err == nil {
			t.Errorf("%s: not refused", what)
		}
	}
	if h, err := ParseHello(Hello{World: 1, Job: strings.Repeat("j", 200)}.Append(nil)); err != nil || len(h.Job) != 63 {
		t.Errorf("long job: %d bytes, %v", len(h.Job), err)
	}
}

// Whatever a rank sends: no panic, and what is accepted has exactly one encoding.
func FuzzRank(f *testing.F) {
	for _, name := range messageFiles {
		f.Add(golden(f, name))
	}
	again := RunHello{ABI: 1, World: 2, Job: "job", PrivateCapMB: 7, Joined: replica.JobID{15: 9}}
	again.From = &From{Origin: origin()}
	f.Add(AppendRank(nil, RankHeader{Type: MRunHello}, again.Append(nil)))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, body, err := ParseRank(b)
		if err != nil {
			return
		}
		_, out, err := reencode(h.Type, body)
		if err != nil {
			return
		}
		if got := AppendRank(nil, h, out); !bytes.Equal(got, b) {
			t.Fatalf("type %d: %x encodes to %x", h.Type, b, got)
		}
	})
}

func TestGroupsThatRanksName(t *testing.T) {
	hello := Hello{ABI: 1, World: 2, Group: replica.NoGroup, Job: "j"}
	if got, err := ParseHello(hello.Append(nil)); err != nil || got != hello {
		t.Errorf("hello without a group: %+v, %v", got, err)
	}
	for _, want := range []replica.GroupID{replica.NoGroup, 0, 7} {
		if n, got, err := ParseAttach(AppendAttach(nil, 3, want)); n != 3 || got != want || err != nil {
			t.Errorf("attach in group %d: %d regions, group %d, %v", want, n, got, err)
		}
	}
	if _, _, err := ParseAttach(AppendAttach(nil, 3, replica.MaxRanks)); err == nil {
		t.Error("an attach in a group that no job has is accepted")
	}
	for _, s := range []RunStart{{Rank: 1, World: 2, Group: replica.NoGroup, Early: 3}, {Rank: 1, World: 2, Group: 1, Groups: []replica.GroupID{0, 1}}} {
		if got, err := ParseRunStart(s.Append(nil)); err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%+v: %+v, %v", s, got, err)
		}
	}
	for _, s := range []RunStart{{World: 2, Groups: []replica.GroupID{0}}, {World: 2, Groups: []replica.GroupID{0, 2}}} {
		if _, err := ParseRunStart(s.Append(nil)); err == nil {
			t.Errorf("%+v is accepted", s)
		}
	}
	if _, err := ParseRunStart(RunStart{World: 2, Groups: []replica.GroupID{0, 1}}.Append(nil)[:24]); err == nil {
		t.Error("a run start that was cut is accepted")
	}
	named := RunHello{ABI: 1, World: 2, Flags: RunNameGroups, Job: "j"}
	if got, err := ParseRunHello(named.Append(nil)); err != nil || !reflect.DeepEqual(got, named) {
		t.Errorf("run hello: %+v, %v", got, err)
	}
	named.Groups = []replica.GroupID{0, 1}
	if _, err := ParseRunHello(named.Append(nil)); err == nil {
		t.Error("groups that are given and named are accepted")
	}
}

func TestRunHelloMore(t *testing.T) {
	h := RunHello{ABI: 1, World: 2, Capacity: 1, Ranks: []replica.Rank{1}, Groups: []replica.GroupID{0, 1}, Flags: RunResume | RunCollectiveWindow, Job: "job", PrivateCapMB: 7, Nondeterministic: []replica.GroupID{1}}
	got, err := ParseRunHello(h.Append(nil))
	if err != nil || !reflect.DeepEqual(got, h) {
		t.Errorf("%+v, %v", got, err)
	}
	b := h.Append(nil)
	for _, bad := range [][]byte{b[:len(b)-4], append(b[:len(b):len(b)], 0, 0, 0, 0), append(RunHello{ABI: 1, World: 1, Job: "j"}.Append(nil), make([]byte, 8)...)} {
		if _, err := ParseRunHello(bad); err == nil {
			t.Errorf("%d bytes are accepted", len(bad))
		}
	}
}

// A launcher that comes back names its job behind whatever else there is.
func TestRunHelloOfOneThatComesBack(t *testing.T) {
	id := replica.JobID{0: 3, 15: 9}
	for _, h := range []RunHello{
		{ABI: 1, World: 2, Job: "job", Joined: id},
		{ABI: 1, World: 2, Job: "job", Joined: id, Notes: []replica.Remark{{Kind: replica.Note, Name: "lr", Text: "0.1"}, {Kind: replica.Note, Name: "data"}}},
		{ABI: 1, World: 2, Job: "job", Notes: []replica.Remark{{Kind: replica.Note, Name: "lr", Text: "0.1"}}},
		{ABI: 1, World: 2, Job: "job", From: &From{Origin: origin()}},
		{ABI: 1, World: 2, Job: "job", Joined: id, From: &From{replica.Origin{Asked: "s3://b/ck"}, "no checkpoints are there"}, Notes: []replica.Remark{{Kind: replica.Note, Name: "lr", Text: "0.1"}}},
		{ABI: 1, World: 2, Ranks: []replica.Rank{1}, Groups: []replica.GroupID{0, 1}, Job: "job", PrivateCapMB: 7, Nondeterministic: []replica.GroupID{1}, Joined: id},
	} {
		b := h.Append(nil)
		if got, err := ParseRunHello(b); err != nil || !reflect.DeepEqual(got, h) {
			t.Errorf("%+v, %v", got, err)
		}
		nobody := append(b[:len(b)-16:len(b)-16], make([]byte, 16)...)
		for _, bad := range [][]byte{b[:len(b)-1], b[:len(b)-16], append(b[:len(b):len(b)], 0), nobody} {
			if _, err := ParseRunHello(bad); err == nil {
				t.Errorf("%d bytes are accepted", len(bad))
			}
		}
	}
}

func origin() replica.Origin {
	return replica.Origin{Asked: "s3://b/ck/lm@best", URL: "s3://b/ck", Job: "lm", Run: replica.JobID{7}, Place: "lm/20261125T1716Z-07000000/step-00002180.e2", Generation: replica.Generation{Epoch: 2, Step: 2180}, World: 8}
}

// What a launcher says that a job is to begin with names a generation, or says why it does not; it is bounded, and has one encoding.
func TestRunHelloFrom(t *testing.T) {
	for name, spoil := range map[string]func(f *From){
		"no name":         func(f *From) { f.Asked = "" },
		"a long name":     func(f *From) { f.Asked = strings.Repeat("x", replica.MaxOrigin+1) },
		"a long place":    func(f *From) { f.Place = strings.Repeat("x", replica.MaxOrigin+1) },
		"no URL":          func(f *From) { f.URL = "" },
		"two lines":       func(f *From) { f.URL = "s3://b\n/ck" },
		"no text":         func(f *From) { f.URL = "s3://\xff" },
		"no run":          func(f *From) { f.Run = replica.JobID{} },
		"no job":          func(f *From) { f.Job = "../x" },
		"no epoch":        func(f *From) { f.Generation.Epoch = 0 },
		"a step too far":  func(f *From) { f.Generation.Step = replica.MaxStep + 1 },
		"no ranks":        func(f *From) { f.World = 0 },
		"many ranks":      func(f *From) { f.World = replica.MaxRanks + 1 },
		"a long failure":  func(f *From) { f.Failed = strings.Repeat("x", MaxRefusedText+1) },
		"escapes":         func(f *From) { f.Asked, f.Failed = "s3://b\x1b[2J", "x" },
		"why in escapes":  func(f *From) { f.Failed = "\x1b[2J" },
		"failure of none": func(f *From) { f.Asked, f.Failed = "", "x" },
	} {
		f := From{Origin: origin()}
		spoil(&f)
		if got, err := ParseRunHello(RunHello{ABI: 1, World: 2, Job: "job", From: &f}.Append(nil)); err == nil {
			t.Errorf("%s: %+v is accepted", name, got.From)
		}
	}
	b := RunHello{ABI: 1, World: 2, Job: "job", From: &From{Origin: origin()}}.Append(nil)
	i := bytes.Index(b, []byte("s3://b/ck"))
	if again := slices.Insert(slices.Clone(b[:len(b)-4]), i-1, 0x78); len(again) > 0 { // the length of a text in two bytes where one will do
		again[i] = b[i-1] - 0x60
		again = le.AppendUint32(again, le.Uint32(b[len(b)-4:])+1)
		if _, err := ParseRunHello(again); err == nil {
			t.Error("another encoding is accepted")
		}
	}
}

// The daemon takes from a launcher what `replicad run` takes from a person: another program may have sent it.
func TestRunHelloIsBounded(t *testing.T) {
	good := func() RunHello {
		return RunHello{ABI: 1, World: 4, Capacity: 4, Ranks: []replica.Rank{3, 0}, MinCopies: MaxRunMinCopies, Cadence: MaxRunCadence, Slots: MaxRunSlots, ChunkBytes: MaxRunChunkMB << 20,
			DurableEvery: uint32(replica.DurableAuto), PrivateCapMB: MaxRunPrivateCapMB, Nondeterministic: []replica.GroupID{1, 0}, Job: "job"}
	}
	if got, err := ParseRunHello(good().Append(nil)); err != nil || !reflect.DeepEqual(got, good()) {
		t.Errorf("%+v, %v", got, err)
	}
	for name, spoil := range map[string]func(h *RunHello){
		"capacity":             func(h *RunHello) { h.Capacity = 5 },
		"largest capacity":     func(h *RunHello) { h.Capacity = 1<<32 - 1 },
		"min copies":           func(h *RunHello) { h.MinCopies++ },
		"cadence":              func(h *RunHello) { h.Cadence++ },
		"slots":                func(h *RunHello) { h.Slots++ },
		"one slot":             func(h *RunHello) { h.Slots = 1 },
		"chunk":                func(h *RunHello) { h.ChunkBytes++ },
		"small chunk":          func(h *RunHello) { h.ChunkBytes = 1<<20 - 1 },
		"durable every":        func(h *RunHello) { h.DurableEvery-- },
		"private cap":          func(h *RunHello) { h.PrivateCapMB++ },
		"largest private cap":  func(h *RunHello) { h.PrivateCapMB = 1<<32 - 1 },
		"a rank twice":         func(h *RunHello) { h.Ranks = []replica.Rank{1, 1} },
		"one group named more": func(h *RunHello) { h.Nondeterministic = []replica.GroupID{1, 1} },
	} {
		h := good()
		spoil(&h)
		if got, err := ParseRunHello(h.Append(nil)); err == nil {
			t.Errorf("%s: taken as %+v", name, got)
		}
	}
}

// Notes that are cut, or say that they are longer than the body, are refused, and so is what no launcher says.
func TestNotesOfALauncherThatAreBad(t *testing.T) {
	hello := RunHello{ABI: 1, World: 1, Job: "job", Notes: []replica.Remark{{Kind: replica.Note, Name: "lr", Text: "0.1"}}}
	whole := hello.Append(nil)
	if got, err := ParseRunHello(whole); err != nil || len(got.Notes) != 1 {
		t.Fatalf("%+v: %v", got, err)
	}
	for n := runHelloBytes; n < len(whole); n++ {
		if got, err := ParseRunHello(whole[:n]); err == nil {
			t.Errorf("of %d bytes the first %d are taken: %+v", len(whole), n, got)
		}
	}
	for _, n := range []uint32{0, 1, 1 << 31, 1<<32 - 1} {
		b := bytes.Clone(whole)
		le.PutUint32(b[len(b)-4:], n)
		if _, err := ParseRunHello(b); err == nil {
			t.Errorf("notes of %d bytes are taken", n)
		}
	}
	hello.Notes[0] = replica.Remark{Kind: replica.Metric, Name: "loss", Value: 1}
	if _, err := ParseRunHello(hello.Append(nil)); err == nil || !strings.Contains(err.Error(), "notes alone") {
		t.Errorf("a launcher's metric: %v", err)
	}
}

// What a rank says is taken whole or not at all; bytes that are no text become text.
func TestRemarksThatAreBad(t *testing.T) {
	list := []replica.Remark{{Kind: replica.Note, Name: "lr", Text: "0.1"}, {Kind: replica.Metric, Name: "loss", Value: 0.5, Step: 7}}
	whole := AppendRemarks(nil, list)
	first := len(AppendRemarks(nil, list[:1]))
	for n := 1; n < len(whole); n++ {
		if got, err := ParseRemarks(whole[:n]); (err == nil) != (n == first) {
			t.Errorf("of %d bytes the first %d: %v, %v", len(whole), n, got, err)
		}
	}
	if got, err := ParseRemarks(AppendRemarks(nil, []replica.Remark{{Kind: replica.Note, Name: "a\xff", Text: "\xc3"}})); err != nil || got[0].Name != "a?" || got[0].Text != "?" {
		t.Errorf("%v, %v", got, err)
	}
	for want, r := range map[string]replica.Remark{"no such kind": {Kind: 5, Name: "x"}, "not finite": {Kind: replica.Metric, Name: "x", Value: math.Inf(1)}, "comes twice": list[0]} {
		if _, err := ParseRemarks(AppendRemarks(AppendRemarks(nil, list), []replica.Remark{r})); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", r, err, want)
		}
	}
}
