package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// tarOf is what a launcher gives.
func tarOf(t *testing.T, text string) *kept.Tar {
	t.Helper()
	b, err := kept.Pack([]kept.Source{{Name: "config.json", Data: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := kept.Seal(b)
	if err != nil {
		t.Fatal(err)
	}
	tar, err := kept.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tar.Close)
	return tar
}

// launches has a launcher come with files.
func (d *rig) launches(tar *kept.Tar, every replica.Step) (session.Peer, *rankEnd) {
	d.t.Helper()
	peer, end := d.session(0)
	d.handleSession(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: "job", World: 2, Capacity: 1, Spare: true, DurableEvery: uint32(every), Flags: wire.RunKeeps}, Kept: tar})
	return peer, end
}

func closed(tar *kept.Tar) bool {
	_, err := tar.Read()
	return err != nil
}

// TestFilesGoBeforeTheFirstPart: what a launcher gives is in the store before the node writes its first part. Who comes with other files
// is told whose stay.
func TestFilesGoBeforeTheFirstPart(t *testing.T) {
	d := newRig(t)
	dir := t.TempDir()
	s, err := tier.OpenDirectory(d.ctx, dir, tier.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	d.hands.Store, d.cfg.DurableDir = s, dir
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.both(lr.Arena, 0, fixture.Gen(3, 3))
	first := tarOf(t, "first")
	_, end := d.launches(first, 0)
	if h, _ := end.reads(); h.Type != wire.MRunOK {
		t.Fatalf("it reads %d", h.Type)
	}
	d.writesShard(lj, fixture.Gen(3, 3), d.rootAt(lr.Arena, slot(0)))
	d.until("the write's end", func() bool { return len(fixture.Only[control.ShardReport](d.says())) > 0 }) // the word of the files comes first
	list, err := filepath.Glob(filepath.Join(dir, "job", "*", "kept.tar"))
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	f, err := os.Open(list[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if files, err := kept.List(f); err != nil || len(files) != 1 || files[0].Name != "config.json" || closed(first) {
		t.Errorf("%v, %v", files, err)
	}

	other := tarOf(t, "other")
	_, end = d.launches(other, 0)
	end.reads()
	if text := end.note(); !strings.Contains(text, "carries other files already (SHA-256 "+first.SHA256[:16]) || !closed(other) {
		t.Errorf("%q", text)
	}
}
