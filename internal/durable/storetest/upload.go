package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/replicad/replicad/internal/durable/store"
)

// pattern is n bytes of which no page is another's.
func pattern(n int64) []byte {
	const page = 4096
	b, fill := make([]byte, n), make([]byte, page)
	for i := range fill {
		fill[i] = byte(i*31 ^ i>>8)
	}
	for at := 0; at < len(b); at += page {
		copy(b[at:], fill)
		copy(b[at:], strconv.Itoa(at))
	}
	return b
}

// part is the i-th part of an object.
func part(u store.Upload, b []byte, i int) []byte {
	size := u.PartBytes()
	return b[min(int64(i)*size, int64(len(b))):min(int64(i+1)*size, int64(len(b)))]
}

func parts(u store.Upload, b []byte) int {
	return int((int64(len(b)) + u.PartBytes() - 1) / u.PartBytes())
}

func upload(t testing.TB, s store.Store, key string, b []byte) store.Info {
	t.Helper()
	u, err := s.Upload(ctxOf(t), key, int64(len(b)))
	want(t, "upload "+key, err, nil)
	for i := range parts(u, b) {
		want(t, fmt.Sprintf("part %d of %s", i, key), u.Part(ctxOf(t), i, part(u, b, i)), nil)
	}
	info, err := u.Complete(ctxOf(t), sha256.Sum256(b))
	want(t, "complete "+key, err, nil)
	if info.Key != key || info.Size != int64(len(b)) {
		t.Fatalf("complete: %+v, want %s of %d bytes", info, key, len(b))
	}
	return info
}

func holds(t testing.TB, s store.Store, key string, b []byte) {
	t.Helper()
	got := make([]byte, len(b))
	want(t, "read "+key, s.ReadRange(ctxOf(t), key, 0, got), nil)
	if !bytes.Equal(got, b) {
		t.Fatalf("%s: other bytes", key)
	}
	info, err := s.Stat(ctxOf(t), key)
	if want(t, "stat "+key, err, nil); info.Size != int64(len(b)) {
		t.Fatalf("%s has %d bytes, want %d", key, info.Size, len(b))
	}
}

func uploads(t *testing.T, b Bed) {
	s := b.Open(t)
	u, err := s.Upload(ctxOf(t), "g/u", 1<<40)
	want(t, "upload of 1 TiB", err, nil)
	if n := (1<<40 + u.PartBytes() - 1) / u.PartBytes(); n > 10_000 {
		t.Errorf("1 TiB in %d parts, want at most 10,000", n)
	}
	want(t, "abort", u.Abort(ctxOf(t)), nil)

	size := 3*partOf(t, s) + 12345
	text := pattern(size)
	u, err = s.Upload(ctxOf(t), "g/u", size)
	want(t, "upload", err, nil)
	var g sync.WaitGroup
	for _, i := range []int{3, 1, 0, 2, 1} {
		g.Go(func() {
			buf := slices.Clone(part(u, text, i))
			if err := u.Part(ctxOf(t), i, buf); err != nil {
				t.Errorf("part %d: %v", i, err)
			}
			clear(buf) // it is not kept
		})
	}
	g.Wait()
	for range 2 {
		info, err := u.Complete(ctxOf(t), sha256.Sum256(text))
		if want(t, "complete", err, nil); info.Size != size {
			t.Fatalf("%d bytes, want %d", info.Size, size)
		}
	}
	want(t, "abort after the end", u.Abort(ctxOf(t)), nil)
	holds(t, b.Open(t), "g/u", text)
	for _, off := range []int64{0, u.PartBytes() - 1, u.PartBytes(), 2*u.PartBytes() + 17} {
		got := make([]byte, 1000)
		want(t, "read", s.ReadRange(ctxOf(t), "g/u", off, got), nil)
		if !bytes.Equal(got, text[off:off+1000]) {
			t.Fatalf("other bytes at %d", off)
		}
	}
	lists(t, s, "", "", "g/u")
	nonePending(t, s)
}

func partOf(t testing.TB, s store.Store) int64 {
	t.Helper()
	u, err := s.Upload(ctxOf(t), "part-size", 1<<20)
	want(t, "upload", err, nil)
	want(t, "abort", u.Abort(ctxOf(t)), nil)
	return u.PartBytes()
}

func nonePending(t testing.TB, s store.Store) {
	t.Helper()
	pending, err := s.Unfinished(ctxOf(t), "")
	if want(t, "unfinished", err, nil); len(pending) > 0 {
		t.Errorf("unfinished: %+v", pending)
	}
}

func uploadSizes(t *testing.T, b Bed) {
	s := b.Open(t)
	size := partOf(t, s)
	for _, n := range []int64{0, 1, size - 1, size, size + 1} {
		key, text := fmt.Sprintf("u-%d", n), pattern(n)
		upload(t, s, key, text)
		holds(t, s, key, text)
	}
	nonePending(t, s)
}

func uploadRefusals(t *testing.T, b Bed) {
	s := b.Open(t)
	size := partOf(t, s)
	text := pattern(size + 100)
	u, err := s.Upload(ctxOf(t), "u", size+100)
	want(t, "upload", err, nil)
	for _, p := range []struct {
		i int
		b []byte
	}{{-1, text[:size]}, {2, text[:100]}, {0, text[:100]}, {1, text[:size]}, {1, nil}, {10_000, text[:1]}} {
		if err := u.Part(ctxOf(t), p.i, p.b); err == nil {
			t.Errorf("part %d of %d bytes is taken", p.i, len(p.b))
		}
	}
	want(t, "part", u.Part(ctxOf(t), 1, part(u, text, 1)), nil)
	if _, err := u.Complete(ctxOf(t), sha256.Sum256(text)); err == nil {
		t.Error("complete without part 0")
	}
	_, err = s.Stat(ctxOf(t), "u")
	want(t, "stat", err, store.ErrAbsent)
	want(t, "part", u.Part(ctxOf(t), 0, part(u, text, 0)), nil)
	_, err = u.Complete(ctxOf(t), sha256.Sum256(text))
	want(t, "complete", err, nil)
	holds(t, s, "u", text)
	if _, err := s.Upload(ctxOf(t), "v", -1); err == nil {
		t.Error("an upload of -1 bytes is taken")
	}
	if _, err := s.Upload(ctxOf(t), "v", 1<<62); err == nil {
		t.Error("an upload of 4 EiB is taken")
	}
}

func lostCompletion(t *testing.T, b Bed) {
	if b.LoseAnswer == nil {
		t.Skip("no answer can be lost here")
	}
	s := b.Open(t)
	text := pattern(partOf(t, s) + 1)
	u, err := s.Upload(ctxOf(t), "u", int64(len(text)))
	want(t, "upload", err, nil)
	for i := range 2 {
		want(t, "part", u.Part(ctxOf(t), i, part(u, text, i)), nil)
	}
	b.LoseAnswer(t, "u")
	info, err := u.Complete(ctxOf(t), sha256.Sum256(text))
	want(t, "complete", err, nil)
	if info.Size != int64(len(text)) {
		t.Errorf("%+v", info)
	}
	holds(t, s, "u", text)
	nonePending(t, s)
}

func cutUpload(t *testing.T, b Bed) {
	s := b.Open(t)
	size := partOf(t, s)
	text := pattern(2 * size)
	var cut []store.Upload
	for _, key := range []string{"run/a", "run/b", "other/c"} {
		u, err := s.Upload(ctxOf(t), key, 2*size)
		want(t, "upload", err, nil)
		want(t, "part", u.Part(ctxOf(t), 0, part(u, text, 0)), nil)
		cut = append(cut, u)
	}
	other := b.Open(t) // its writer is gone
	pending, err := other.Unfinished(ctxOf(t), "run/")
	want(t, "unfinished", err, nil)
	if len(pending) != 2 || pending[0].Key == pending[1].Key {
		t.Fatalf("unfinished: %+v, want run/a and run/b", pending)
	}
	for _, p := range pending {
		if p.ID == "" || p.Key != "run/a" && p.Key != "run/b" || p.Began.IsZero() {
			t.Errorf("unfinished: %+v", p)
		}
		want(t, "abort", other.AbortPending(ctxOf(t), p), nil)
		want(t, "abort again", other.AbortPending(ctxOf(t), p), nil)
	}
	if err := cut[0].Part(ctxOf(t), 1, part(cut[0], text, 1)); err == nil {
		if _, err := cut[0].Complete(ctxOf(t), sha256.Sum256(text)); err == nil {
			t.Error("an upload that was aborted is completed")
		}
	}
	lists(t, s, "", "")
	pending, err = other.Unfinished(ctxOf(t), "")
	if want(t, "unfinished", err, nil); len(pending) != 1 || pending[0].Key != "other/c" {
		t.Errorf("unfinished: %+v, want other/c", pending)
	}
	want(t, "abort", cut[2].Abort(ctxOf(t)), nil)
	want(t, "abort again", cut[2].Abort(ctxOf(t)), nil)
	nonePending(t, s)
	for _, id := range []string{"../x", "/", "~", "0123456789abcdef"} {
		_ = other.AbortPending(ctxOf(t), store.Pending{Key: "run/a", ID: id}) // whatever it says, it touches nothing
	}
	upload(t, s, "run/a", text[:100])
	holds(t, s, "run/a", text[:100])
}

func unseenUpload(t *testing.T, b Bed) {
	s := b.Open(t)
	size := partOf(t, s)
	text := pattern(size + 1)
	u, err := s.Upload(ctxOf(t), "run/u", int64(len(text)))
	want(t, "upload", err, nil)
	unseen := func() {
		t.Helper()
		lists(t, s, "", "")
		_, err := s.Stat(ctxOf(t), "run/u")
		want(t, "stat", err, store.ErrAbsent)
		want(t, "read", s.ReadRange(ctxOf(t), "run/u", 0, make([]byte, 1)), store.ErrAbsent)
	}
	unseen()
	for i := range 2 {
		want(t, "part", u.Part(ctxOf(t), i, part(u, text, i)), nil)
		unseen()
	}
	gone, cancel := context.WithCancel(ctxOf(t))
	cancel()
	_, err = u.Complete(gone, sha256.Sum256(text))
	want(t, "complete", err, context.Canceled)
	_, err = u.Complete(ctxOf(t), sha256.Sum256(text))
	want(t, "complete", err, nil)
	holds(t, s, "run/u", text)
}
