package tier

import (
	"errors"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/storetest"
	"github.com/replicad/replicad/replica"
)

// inBucket is a tier over a bucket of the test server.
func inBucket(t *testing.T, srv *storetest.Server, keys *sealed.Keys) *Tier {
	t.Helper()
	st, err := durable.Open(t.Context(), "s3://"+srv.Bucket+"/ck", durable.Settings{Endpoint: srv.URL, Region: "us-east-1", AccessKey: storetest.Access, SecretKey: storetest.Secret})
	if err != nil {
		t.Fatal(err)
	}
	tier := New(st, Settings{Reader: "n1", KeepRuns: 1, Keys: keys})
	t.Cleanup(func() { tier.Close() })
	return tier
}

// A bucket does what a directory does: writes, reads back, a resume, another fleet that is refused, retention, a discard.
func TestTierOverABucket(t *testing.T) {
	for name, keys := range map[string]*sealed.Keys{"plain": nil, "encrypted": someKeys(t)} {
		t.Run(name, func(t *testing.T) { overABucket(t, keys) })
	}
}

func overABucket(t *testing.T, keys *sealed.Keys) {
	srv := storetest.Start(t)
	tier := inBucket(t, srv, keys)
	f := newFleet(t, tier, "a")
	f.writes(1, 10)
	other := newFleet(t, inBucket(t, srv, keys), "b")
	at, was, err := other.looks(10)
	if err := errors.Join(err, f.reads(10), f.resumes(10)); err != nil {
		t.Fatal(err)
	}
	if err := other.takes(at, was); !errors.Is(err, ErrFenced) {
		t.Errorf("another fleet resumes with %v", err)
	}
	f.writes(1, 20)
	if err := f.reads(20); err != nil {
		t.Fatal(err)
	}
	f.writes(1, 30)
	f.wants("30 unread, 20 good")
	g := gen(f.of.Epoch, 40)
	a, roots, objects, err := f.begins(g)
	if err != nil {
		t.Fatal(err)
	}
	if err := tier.Discard(t.Context(), a, []string{"group-0", "node-n1"}); err != nil {
		t.Fatal(err)
	}
	if err := tier.Commit(t.Context(), a, f.said(g), roots, objects); err == nil {
		t.Error("what was discarded is committed")
	}
	r, err := tier.Open(t.Context(), name, durabletest.Job, gen(f.of.Epoch, 30), replica.OfGroup(0))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.ReadChunk(0, nil); err != nil {
		t.Error(err)
	}
	if !strings.HasPrefix(tier.URL(), "s3://") {
		t.Errorf("it is named %s", tier.URL())
	}
}

// Answers that are lost cost requests, and nothing else.
func TestABucketThatLosesAnswers(t *testing.T) {
	srv := storetest.Start(t)
	f := newFleet(t, inBucket(t, srv, someKeys(t)), "a")
	f.writes(5, 10)
	for _, kind := range []string{"lose-answer", "lose-request"} {
		for _, method := range []string{"PUT", "POST", "GET", "DELETE"} {
			srv.Spoil(t, storetest.Fault{Method: method, Kind: kind, Times: 2})
		}
		f.writes(2, f.next())
		srv.Clear(t)
		if err := f.reads(f.last); err != nil {
			t.Errorf("after %s: %v", kind, err)
		}
	}
}
