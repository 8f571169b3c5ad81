package host

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
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
	d.Host.runHello(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: "job", World: 2, Capacity: 1, Spare: true, DurableEvery: uint32(every), Flags: wire.RunKeeps}, Kept: tar})
	return peer, end
}

// stuck is a tier that takes parts and hangs over files.
type stuck struct {
	Tier
	wrote int
}

func (s *stuck) KeepFiles(ctx context.Context, _ tier.Attempt, _ *kept.Tar) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

func (s *stuck) Write(ctx context.Context, _ tier.Attempt, object string, _ *tier.Part, _ ...tier.Part) (replica.Stored, error) {
	s.wrote++
	return replica.Stored{Key: object}, ctx.Err()
}

// TestFilesThatHang: a store that hangs over files holds a part up for less than a writer waits for its first byte, and it is said.
func TestFilesThatHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, began := &Host{in: make(chan Event, 2)}, time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		s := &stuck{}
		for i := range 2 {
			if w, err := (carrying{s, h, nil}).Write(ctx, tier.Attempt{Job: fixture.Job().ID}, "group-0", nil); err != nil || w.Key != "group-0" || s.wrote != i+1 {
				t.Fatalf("write %d: %+v, %v", i, w, err)
			}
			if ev, ok := (<-h.in).(carriedNow); !ok || ev.job != fixture.Job().ID || ev.err == nil || !strings.Contains(ev.err.Error(), "the store took longer than 10s") {
				t.Errorf("write %d: %+v", i, ev)
			}
		}
		if took := time.Since(began); took != 20*time.Second { // of a clock that stands while anybody runs
			t.Errorf("two parts took %v", took)
		}
	})
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
	d.Host.store, d.cfg.DurableDir = s, dir
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.both(lr.arena, 0, fixture.Gen(3, 3))
	first := tarOf(t, "first")
	peer, end := d.launches(first, 0)
	if h, _ := end.reads(); h.Type != wire.MRunOK || lj.carried.Tar() != first {
		t.Fatalf("it reads %d", h.Type)
	}
	d.writesShard(lj, fixture.Gen(3, 3), d.rootAt(lr.arena, slot(0)))
	written := false
	d.until("the write's end, and the word of the files", func() bool {
		written = written || len(fixture.Only[control.ShardReport](d.says())) > 0
		return written && !lj.carried.Waits(peer.ID())
	})
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

// TestFilesThatComeToNothing: a launcher whose node keeps nothing that lasts is refused; one that ends before a durable write is told; and nothing stays open.
func TestFilesThatComeToNothing(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	tar := tarOf(t, "files")
	_, end := d.launches(tar, 0)
	h, body := end.reads()
	if r, err := wire.ParseRefused(body); h.Type != wire.MRefused || err != nil || !strings.Contains(r.Text, "no durable tier to keep files in") || !closed(tar) {
		t.Errorf("message %d: %q", h.Type, r.Text)
	}
	d.durableTier()
	tar = tarOf(t, "files")
	_, end = d.launches(tar, 0) // nobody has asked for the tier
	if h, _ := end.reads(); h.Type != wire.MRefused || !closed(tar) {
		t.Errorf("message %d", h.Type)
	}
	tar = tarOf(t, "files")
	peer, end := d.launches(tar, 5)
	if h, _ := end.reads(); h.Type != wire.MRunOK {
		t.Fatalf("message %d", h.Type)
	}
	l := d.launchers[peer.ID()]
	l.hello.Spare = false
	lj.job = fixture.Changed(lj.job, func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, "a test" })
	d.serveLauncher(l)
	for text := ""; !strings.Contains(text, "--keep-file: this daemon has written no part"); {
		h, body := end.reads()
		if h.Type == wire.MRunDone {
			t.Fatal("it was told that the job is over, and not that its files are not kept")
		}
		v, err := wire.ParseRefused(body)
		if err != nil {
			t.Fatal(err)
		}
		text = v.Text
	}
	lj.carried.Close()
	if !closed(tar) {
		t.Error("it is held on")
	}
}
