package session

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

func region(name string) replica.Region {
	return replica.Region{Name: name, DType: replica.F32, Shape: []uint64{4}, Bytes: 16}
}

func TestEvents(t *testing.T) {
	s := serve(t, Config{})
	c, p := greeted(t, s)
	regions := []replica.Region{region("a"), region("b"), region("c")}
	c.send(wire.MRegions, wire.AppendRegions(nil, 0, regions[:2]))
	c.send(wire.MRegions, wire.AppendRegions(nil, 2, regions[2:]))
	c.send(wire.MAttach, wire.AppendAttach(nil, 3, replica.NoGroup))
	if ev := next[Attach](t, s); ev.Peer != p || ev.Header.Request != 9 || !reflect.DeepEqual(ev.Regions, regions) {
		t.Errorf("%+v", ev)
	}
	sealed := wire.Sealed{Kind: 1, Index: 2, Word: replica.PackSlot(5, replica.SlotSealed), Generation: replica.Generation{Epoch: 3, Step: 4}}
	c.send(wire.MSealed, sealed.Append(nil))
	if ev := next[Sealed](t, s); ev.Sealed != sealed {
		t.Errorf("%+v", ev)
	}
	c.send(wire.MStopped, wire.AppendStopped(nil, 77))
	if ev := next[Stopped](t, s); ev.Live != 77 {
		t.Errorf("%+v", ev)
	}
	loaded := wire.Loaded{Generation: replica.Generation{Epoch: 1, Step: 2}, PrivateRoot: replica.Digest{3}}
	c.send(wire.MLoaded, loaded.Append(nil))
	if ev := next[Loaded](t, s); ev.Loaded != loaded {
		t.Errorf("%+v", ev)
	}
	c.send(wire.MFail, []byte("boom"))
	if ev := next[Fail](t, s); ev.Text != "boom" {
		t.Errorf("%+v", ev)
	}
	c.send(wire.MReject, []byte("NaN"))
	if ev := next[Reject](t, s); ev.Text != "NaN" {
		t.Errorf("%+v", ev)
	}
	c.send(wire.MUnloadable, []byte("chunk 3"))
	if ev := next[Unloadable](t, s); ev.Text != "chunk 3" {
		t.Errorf("%+v", ev)
	}
	for op, kv := range map[uint16]wire.KV{
		wire.MKVSet:        {Key: "k", Value: []byte("v"), Once: 1},
		wire.MKVGet:        {Key: "k"},
		wire.MKVCheck:      {Key: "k"},
		wire.MBarrier:      {Key: "k", Members: 2},
		wire.MKVAdd:        {Key: "k", Value: make([]byte, 8), Once: 2},
		wire.MKVCompareSet: {Key: "k", Value: []byte("ab"), Members: 1, Once: 3},
		wire.MKVDelete:     {Key: "k", Once: 4},
	} {
		c.send(op, kv.Append(nil))
		if ev := next[KV](t, s); ev.Op != op || !reflect.DeepEqual(ev.KV, kv) {
			t.Errorf("%+v, want %+v", ev, kv)
		}
	}
	c.send(wire.MPause, wire.AppendPause(nil, time.Minute))
	if ev := next[Pause](t, s); ev.Most != time.Minute {
		t.Errorf("%+v", ev)
	}
	c.send(wire.MEnding, wire.AppendPause(nil, time.Minute))
	if ev := next[Ending](t, s); ev.Most != time.Minute {
		t.Errorf("%+v", ev)
	}
	for said, want := range map[string]string{"teacher": "teacher", "": "", "a\x1b[31mb\r\nc\u0085\xff": "a [31mb  c "} {
		c.send(wire.MLacks, []byte(said))
		if ev := next[Lacks](t, s); ev.Text != want || ev.Peer != p {
			t.Errorf("%q is read as %q, want %q", said, ev.Text, want)
		}
	}
	c.send(wire.MScope, nil)
	if ev := next[Scope](t, s); ev.Peer != p || ev.Header.Request != 9 {
		t.Errorf("%+v", ev)
	}
	c.send(wire.MLeave, nil)
	next[Leave](t, s)
}

// What a rank says goes to the leader and into the log, whose readers take nothing but UTF-8: a text that is longer than its limit ends with a whole
// character, and bytes that are none are left out.
func TestTextsOfRanks(t *testing.T) {
	s := serve(t, Config{})
	c, _ := greeted(t, s)
	for said, want := range map[string]string{
		"a" + strings.Repeat("é", wire.MaxRefusedText): "a" + strings.Repeat("é", wire.MaxRefusedText/2-1),
		"bad \xff\xfe bytes":                           "bad  bytes",
	} {
		c.send(wire.MFail, []byte(said))
		if ev := next[Fail](t, s); ev.Text != want {
			t.Errorf("%d bytes are read as %d: %.40q", len(said), len(ev.Text), ev.Text)
		}
	}
}

func TestLauncher(t *testing.T) {
	s := serve(t, Config{Token: func(job string) string { return "secret" }})
	c := dial(t, s)
	hello := wire.RunHello{ABI: wire.RankABI, World: 2, Capacity: 1, Ranks: []replica.Rank{1}, Groups: []replica.GroupID{0, 1}, Job: "job", Token: "secret"}
	c.send(wire.MRunHello, hello.Append(nil))
	ev := next[RunHello](t, s)
	if !ev.Peer.(*conn).launcher.Load() || !reflect.DeepEqual(ev.RunHello, hello) || ev.Ranks[0] != 1 {
		t.Errorf("%+v", ev)
	}
	gone := wire.RunExited{Rank: 1, Status: 137, PID: 9}
	c.send(wire.MRunExited, gone.Append(nil))
	if ev := next[RunExited](t, s); ev.RunExited != gone {
		t.Errorf("%+v", ev)
	}
	c.send(wire.MLeave, nil)
	c.refused(wire.CodeInvalid)
	next[Gone](t, s)
}

// A launcher's files come with its hello, in sealed memory that was read whole before anybody hears of it; anything else is refused, and nothing is left open.
func TestLauncherKeepsFiles(t *testing.T) {
	s := serve(t, Config{})
	hello := wire.RunHello{ABI: wire.RankABI, World: 1, Job: "job", Flags: wire.RunKeeps}
	tar, err := kept.Pack([]kept.Source{{Name: "config.json", Data: []byte("{}")}})
	if err != nil {
		t.Fatal(err)
	}
	good, err := kept.Seal(tar)
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	c := dial(t, s)
	c.send(wire.MRunHello, hello.Append(nil), good)
	ev := next[RunHello](t, s)
	if b, err := ev.Kept.Read(); err != nil || !bytes.Equal(b, tar) || ev.Kept.SHA256 == "" {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	ev.Kept.Close()
	plain := dial(t, s)
	without := hello
	without.Flags = 0
	plain.send(wire.MRunHello, without.Append(nil), good)
	if ev := next[RunHello](t, s); ev.Kept != nil {
		t.Error("files that nobody announced are kept")
	}
	bad, err := kept.Seal([]byte("no tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	open := filepath.Join(t.TempDir(), "open")
	if err := os.WriteFile(open, tar, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(open)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for says, files := range map[string][]*os.File{"with 0 descriptors": nil, "with 2 descriptors": {good, good}, "no tar of kept files": {bad}, "sealed against writes": {file}} {
		c := dial(t, s)
		c.send(wire.MRunHello, hello.Append(nil), files...)
		if r := c.refused(wire.CodeInvalid); !strings.Contains(r.Text, says) {
			t.Errorf("%q does not say %q", r.Text, says)
		}
	}
}

// Each breach ends the session with a refusal that names it; the daemon hears of it only if the peer had introduced itself.
func TestRefusals(t *testing.T) {
	msg := func(typ uint16, body []byte) []byte {
		return wire.AppendRank(nil, wire.RankHeader{Type: typ, Request: 9}, body)
	}
	hello := func(change func(h *wire.Hello)) []byte {
		h := testHello()
		h.Token = "secret"
		change(&h)
		return msg(wire.MHello, h.Append(nil))
	}
	ok := hello(func(*wire.Hello) {})
	regions := msg(wire.MRegions, wire.AppendRegions(nil, 0, []replica.Region{region("a")}))
	for _, c := range []struct {
		name string
		send [][]byte
		code int32
		says string
	}{
		{"garbage", [][]byte{bytes.Repeat([]byte{7}, 100)}, wire.CodeInvalid, "magic"},
		{"one byte", [][]byte{{1}}, wire.CodeInvalid, "1 bytes"},
		{"too long", [][]byte{make([]byte, wire.MaxRankMessage+1)}, wire.CodeInvalid, "65536"},
		{"version", [][]byte{func() []byte { b := bytes.Clone(ok); b[4] = 9; return b }()}, wire.CodeVersion, "libreplicad"},
		{"library version", [][]byte{hello(func(h *wire.Hello) { h.ABI = 9 })}, wire.CodeVersion, "libreplicad"},
		{"no token", [][]byte{hello(func(h *wire.Hello) { h.Token = "" })}, wire.CodeRefused, "REPLICAD_TOKEN"},
		{"wrong token", [][]byte{hello(func(h *wire.Hello) { h.Token = "secreT" })}, wire.CodeRefused, "REPLICAD_TOKEN"},
		{"launcher without token", [][]byte{msg(wire.MRunHello, wire.RunHello{ABI: 1, World: 1, Job: "j"}.Append(nil))}, wire.CodeRefused, "REPLICAD_TOKEN"},
		{"rank beyond the world", [][]byte{hello(func(h *wire.Hello) { h.Rank = 4 })}, wire.CodeInvalid, "rank 4"},
		{"no hello", [][]byte{regions}, wire.CodeInvalid, "before a hello"},
		{"two hellos", [][]byte{ok, ok}, wire.CodeInvalid, "second hello"},
		{"hello, then launcher", [][]byte{ok, msg(wire.MRunHello, wire.RunHello{ABI: 1, World: 1}.Append(nil))}, wire.CodeInvalid, "second hello"},
		{"unknown type", [][]byte{ok, msg(99, nil)}, wire.CodeInvalid, "99"},
		{"the daemon's own type", [][]byte{ok, msg(wire.MOrder, wire.Order{Action: 1}.Append(nil))}, wire.CodeInvalid, "type 68"},
		{"a launcher's type", [][]byte{ok, msg(wire.MRunExited, wire.RunExited{}.Append(nil))}, wire.CodeInvalid, "type 21"},
		{"regions with a gap", [][]byte{ok, regions, msg(wire.MRegions, wire.AppendRegions(nil, 2, []replica.Region{region("b")}))}, wire.CodeInvalid, "in order"},
		{"too many regions", [][]byte{ok, msg(wire.MRegions, wire.AppendRegions(nil, replica.MaxRegions, []replica.Region{region("a")}))}, wire.CodeInvalid, "in order"},
		{"another region again", [][]byte{ok, regions, msg(wire.MRegions, wire.AppendRegions(nil, 0, []replica.Region{region("b")}))}, wire.CodeInvalid, `region 0 was "a", and comes again as another one, "b"`},
		{"regions missing", [][]byte{ok, regions, msg(wire.MAttach, wire.AppendAttach(nil, 2, replica.NoGroup))}, wire.CodeInvalid, "1 were sent"},
		{"short body", [][]byte{ok, msg(wire.MSealed, make([]byte, 23))}, wire.CodeInvalid, "23 bytes"},
		{"resumed with a body", [][]byte{ok, msg(wire.MResumed, []byte{1})}, wire.CodeInvalid, "resumed"},
		{"scope with a body", [][]byte{ok, msg(wire.MScope, []byte{1})}, wire.CodeInvalid, "scope"},
		{"a write without its number", [][]byte{ok, msg(wire.MKVDelete, wire.KV{Key: "k"}.Append(nil))}, wire.CodeInvalid, "without its number"},
		{"an addend of 7 bytes", [][]byte{ok, msg(wire.MKVAdd, wire.KV{Key: "k", Value: make([]byte, 7), Once: 1}.Append(nil))}, wire.CodeInvalid, "want 8"},
		{"more expected than sent", [][]byte{ok, msg(wire.MKVCompareSet, wire.KV{Key: "k", Value: []byte("a"), Members: 2, Once: 1}.Append(nil))}, wire.CodeInvalid, "expected"},
		{"leave with a body", [][]byte{ok, msg(wire.MLeave, []byte{1})}, wire.CodeInvalid, "leave"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, Config{Token: func(job string) string { return "secret" }})
			cl := dial(t, s)
			for _, b := range c.send {
				cl.sendRaw(b)
			}
			if r := cl.refused(c.code); !strings.Contains(r.Text, c.says) {
				t.Errorf("%q does not say %q", r.Text, c.says)
			}
			if len(c.send) > 1 {
				next[Hello](t, s)
				if g := next[Gone](t, s); g.Err == nil || !strings.Contains(g.Err.Error(), c.says) {
					t.Errorf("gone %v", g.Err)
				}
			}
			if ev := next[TurnedAway](t, s); ev.Code != c.code || ev.UID != os.Getuid() || !strings.Contains(ev.Why, c.says) {
				t.Errorf("the daemon hears %+v", ev)
			}
			if n := len(s.Events()); n != 0 {
				t.Errorf("%d events more", n)
			}
		})
	}
}

// A client that was cut repeats what it does not know to have been taken: nothing is lost and nothing counts twice, wherever it was cut and
// wherever it goes on from. With other content it is told so.
func TestGeometryIsSentAgain(t *testing.T) {
	all := []replica.Region{region("a"), region("b"), region("c"), region("d"), region("e")}
	sends := func(d *dialog, first, end int) error {
		return d.addRegions(wire.AppendRegions(nil, uint32(first), all[first:end]))
	}
	asks := func(d *dialog, n int, group replica.GroupID) (Attach, error) {
		ev, err := d.attach(nil, wire.RankHeader{}, wire.AppendAttach(nil, uint32(n), group))
		attach, _ := ev.(Attach)
		return attach, err
	}
	for cut := 1; cut <= len(all); cut++ {
		for from := 0; from <= cut && from < len(all); from++ {
			for size := 1; size <= len(all); size++ {
				var d dialog
				if err := sends(&d, 0, cut); err != nil {
					t.Fatal(err)
				}
				for at := from; at < len(all); at += size {
					if err := sends(&d, at, min(at+size, len(all))); err != nil {
						t.Fatalf("cut at %d, on from %d by %d: %v", cut, from, size, err)
					}
				}
				for _, again := range []bool{false, true, true} {
					if ev, err := asks(&d, len(all), replica.NoGroup); err != nil || ev.Again != again || !again && !reflect.DeepEqual(ev.Regions, all) || again && ev.Regions != nil {
						t.Fatalf("cut at %d, on from %d by %d: %+v, %v", cut, from, size, ev, err)
					}
				}
				if err := sends(&d, 0, len(all)); err != nil { // all of it, after an attach
					t.Fatal(err)
				}
				if ev, err := asks(&d, len(all), 2); err != nil || ev.Again || ev.Group != 2 || !reflect.DeepEqual(ev.Regions, all) {
					t.Fatalf("sent again: %+v, %v", ev, err)
				}
			}
		}
	}
	var d dialog
	if err := sends(&d, 0, 3); err != nil {
		t.Fatal(err)
	}
	if _, err := asks(&d, 3, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := asks(&d, 3, 2); err == nil || !strings.Contains(err.Error(), "3 in group 1, now 3 in group 2") {
		t.Errorf("in another group: %v", err)
	}
	if _, err := asks(&d, 2, 1); err == nil || !strings.Contains(err.Error(), "attach with 2 regions, 3 were sent") {
		t.Errorf("with fewer: %v", err)
	}
	if err := sends(&d, 0, 2); err != nil {
		t.Fatal(err)
	}
	if _, err := asks(&d, 2, 1); err == nil || !strings.Contains(err.Error(), "other regions than before (3 in group 1, now 2 in group 1)") {
		t.Errorf("with others: %v", err)
	}
}

func TestRegionsAreCapped(t *testing.T) {
	var d dialog
	many := make([]replica.Region, wire.MaxRegionsPerMessage)
	for i := range many {
		many[i] = region("a")
	}
	for {
		err := d.addRegions(wire.AppendRegions(nil, uint32(len(d.regions)), many))
		if len(d.regions) > replica.MaxRegions {
			t.Fatalf("%d regions taken", len(d.regions))
		}
		if err != nil {
			break
		}
	}
}

// Whatever messages come, in whatever order: no panic, and nothing passes before a hello.
func FuzzDialog(f *testing.F) {
	hello := wire.AppendRank(nil, wire.RankHeader{Type: wire.MHello}, testHello().Append(nil))
	names, err := filepath.Glob("../../libreplicad/testdata/*.bin")
	if err != nil || len(names) == 0 {
		f.Fatal(names, err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(hello, b)
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var d dialog
		for i, b := range [][]byte{first, second} {
			var files []*os.File
			ev, err := d.take(func(string) string { return "" }, &conn{}, b, &files)
			if err != nil {
				return
			}
			if i == 0 {
				switch ev.(type) {
				case Hello, RunHello:
				default:
					t.Fatalf("%T passed before a hello", ev)
				}
			}
			if i == 1 && ev != nil {
				switch ev.(type) {
				case Hello, RunHello:
					t.Fatalf("a second %T", ev)
				}
			}
		}
	})
}
