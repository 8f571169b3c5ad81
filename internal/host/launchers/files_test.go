package launchers

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
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

// stuck is a tier that takes parts and hangs over files.
type stuck struct {
	Store
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

// launches has a launcher come with files.
func (d *rig) launches(tar *kept.Tar, every replica.Step) (session.Peer, *peer) {
	peer, end := d.session()
	d.Handle(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: "job", World: 2, Capacity: 1, Spare: true, DurableEvery: uint32(every), Flags: wire.RunKeeps}, Kept: tar}, time.Now())
	return peer, end
}

// TestFilesThatHang: a store that hangs over files holds a part up for less than a writer waits for its first byte, and it is said.
func TestFilesThatHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		posted, began := make(chan Kept, 2), time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		s := &stuck{}
		for i := range 2 {
			if w, err := (carrying{s, nil, func(k Kept) { posted <- k }}).Write(ctx, tier.Attempt{Job: fixture.Job().ID}, "group-0", nil); err != nil || w.Key != "group-0" || s.wrote != i+1 {
				t.Fatalf("write %d: %+v, %v", i, w, err)
			}
			if ev := <-posted; ev.Job != fixture.Job().ID || ev.Err == nil || !strings.Contains(ev.Err.Error(), "the store took longer than 10s") {
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

// TestFilesThatComeToNothing: a launcher whose node keeps nothing that lasts is refused; one that ends before a durable write is told; and nothing stays open.
func TestFilesThatComeToNothing(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	tar := tarOf(t, "files")
	_, end := d.launches(tar, 0)
	h, body := end.Reads()
	if r, err := wire.ParseRefused(body); h.Type != wire.MRefused || err != nil || !strings.Contains(r.Text, "no durable tier to keep files in") || !closed(tar) {
		t.Errorf("message %d: %q", h.Type, r.Text)
	}
	d.store = true
	tar = tarOf(t, "files")
	_, end = d.launches(tar, 0) // nobody has asked for the tier
	if h, _ := end.Reads(); h.Type != wire.MRefused || !closed(tar) {
		t.Errorf("message %d", h.Type)
	}
	tar = tarOf(t, "files")
	peer, end := d.launches(tar, 5)
	if h, _ := end.Reads(); h.Type != wire.MRunOK {
		t.Fatalf("message %d", h.Type)
	}
	if lj.book.carried.Tar() != tar || closed(tar) {
		t.Error("the job does not carry what it was given")
	}
	l := d.all[peer.ID()]
	l.hello.Spare = false
	lj.job = fixture.Changed(lj.job, func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, "a test" })
	d.serve(l, time.Now())
	for text := ""; !strings.Contains(text, "--keep-file: this daemon has written no part"); {
		h, body := end.Reads()
		if h.Type == wire.MRunDone {
			t.Fatal("it was told that the job is over, and not that its files are not kept")
		}
		v, err := wire.ParseRefused(body)
		if err != nil {
			t.Fatal(err)
		}
		text = v.Text
	}
	lj.book.Close()
	if !closed(tar) {
		t.Error("it is held on")
	}
}
