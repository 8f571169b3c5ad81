package memory

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
)

// TestConditions: what the catalog rests on. The whole contract is storetest's.
func TestConditions(t *testing.T) {
	s, ctx := New(), t.Context()
	v, err := s.PutNew(ctx, "a/b", []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutNew(ctx, "a/b", []byte("2")); !errors.Is(err, store.ErrExists) {
		t.Errorf("a second put: %v", err)
	}
	for _, key := range []string{"a", "a/b/c", "../x", ""} {
		if _, err := s.PutNew(ctx, key, nil); err == nil {
			t.Errorf("key %q was put", key)
		}
	}
	w, err := s.PutUnchanged(ctx, "a/b", []byte("3"), v)
	if err != nil || w == v {
		t.Fatal(w, err)
	}
	if _, err := s.PutUnchanged(ctx, "a/b", []byte("4"), v); !errors.Is(err, store.ErrChanged) {
		t.Errorf("over another version: %v", err)
	}
	if b, _, err := s.Get(ctx, "a/b", 1); err != nil || string(b) != "3" {
		t.Errorf("%q, %v", b, err)
	}
	if _, _, err := s.Get(ctx, "a/b", 0); err == nil {
		t.Error("read beyond the bound")
	}
	if err := s.ReadRange(ctx, "a/b", 0, make([]byte, 2)); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("beyond the end: %v", err)
	}
	for range 2 {
		if err := s.Delete(ctx, "a/b"); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Stat(ctx, "a/b"); !errors.Is(err, store.ErrAbsent) {
		t.Error(err)
	}
}

func TestUpload(t *testing.T) {
	s, ctx, b := New(), t.Context(), bytes.Repeat([]byte("x"), 2*DefaultPart+5)
	u, err := s.Upload(ctx, "big", int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{2, 0, 1, 0} {
		if err := u.Part(ctx, i, b[i*DefaultPart:min((i+1)*DefaultPart, len(b))]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := u.Complete(ctx, [32]byte{}); !errors.Is(err, store.ErrCorrupt) || len(s.Keys()) != 0 {
		t.Fatalf("completed with another sum: %v, %v", err, s.Keys())
	}
	if p, err := s.Unfinished(ctx, "b"); err != nil || len(p) != 1 {
		t.Fatal(p, err)
	}
	for range 2 {
		if info, err := u.Complete(ctx, sha256.Sum256(b)); err != nil || info.Size != int64(len(b)) || info.Checksum == "" {
			t.Fatal(info, err)
		}
	}
	if p, err := s.Unfinished(ctx, ""); err != nil || len(p) != 0 {
		t.Fatal(p, err)
	}
}

// TestHooks: a call is refused, or happens and is denied; a clone goes its own way.
func TestHooks(t *testing.T) {
	s, ctx := New(), t.Context()
	if _, err := s.PutNew(ctx, "k", nil); err != nil {
		t.Fatal(err)
	}
	c := s.Clone()
	s.Before = func(call Call) error {
		if call.Verb == "Delete" {
			return store.ErrRefused
		}
		return nil
	}
	s.After = func(call Call) error {
		if call.Verb == "PutNew" {
			return store.ErrDoubtful
		}
		return nil
	}
	if err := s.Delete(ctx, "k"); !errors.Is(err, store.ErrRefused) || len(s.Keys()) != 1 {
		t.Errorf("%v, %v", err, s.Keys())
	}
	if _, err := s.PutNew(ctx, "l", nil); !errors.Is(err, store.ErrDoubtful) || len(s.Keys()) != 2 || len(c.Keys()) != 1 {
		t.Errorf("%v, %v, %v", err, s.Keys(), c.Keys())
	}
	was, _ := s.Stat(ctx, "k")
	s.Age(time.Hour)
	if is, _ := s.Stat(ctx, "k"); was.Modified.Sub(is.Modified) != time.Hour {
		t.Error(was, is)
	}
}
