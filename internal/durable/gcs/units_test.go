package gcs

import (
	"bytes"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/storetest"
)

// TestKey: the server is told the key with each request that makes an object.
func TestKey(t *testing.T) {
	const key = "projects/p/locations/eu/keyRings/r/cryptoKeys/k"
	srv := storetest.StartGCS(t)
	made := storetest.Writes(t, srv.URL, func(endpoint string) store.Store {
		return client(t, srv, "keyed", func(s *Settings) { s.Key, s.Endpoint = key, endpoint })
	}, 2*leastPart+1)
	for _, r := range made {
		if r.URL.Query().Get("kmsKeyName") != key {
			t.Errorf("%s %s", r.Method, r.URL)
		}
	}
	if len(made) != 7 { // two small ones, the upload's beginning, three parts, and what they are composed to
		t.Errorf("%d requests", len(made))
	}
	if err := (Settings{Bucket: "b-1", Key: "k"}).Validate(); err == nil || !strings.Contains(err.Error(), "want projects/PROJECT/") {
		t.Errorf("a key's short name: %v", err)
	}
}

// TestJoined: a checksum that is put together is that of the bytes.
func TestJoined(t *testing.T) {
	whole := bytes.Repeat([]byte("0123456789abcdefghi"), 5000)
	for _, at := range []int{0, 1, 2, 7, 4096, 65537, len(whole) - 1, len(whole)} {
		a, b := whole[:at], whole[at:]
		if got, want := joined(crc32.Checksum(a, castagnoli), crc32.Checksum(b, castagnoli), int64(len(b))), crc32.Checksum(whole, castagnoli); got != want {
			t.Errorf("%d and %d bytes: %08x, want %08x", len(a), len(b), got, want)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, good := range []Settings{{Bucket: "lm-checkpoints", Prefix: "a/b"}, {Bucket: "a.b_c", Endpoint: "http://127.0.0.1:1"}} {
		if err := good.Validate(); err != nil {
			t.Error(err)
		}
	}
	err := Settings{Bucket: "No", Prefix: "../x", Endpoint: "http://user:passw0rd@h/", PartBytes: 1, Stall: -1}.Validate()
	for _, want := range []string{"bucket", "prefix", "endpoint", "part of", "stall"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "passw0rd") {
		t.Errorf("%v shows a password", err)
	}
	if err := (Settings{Bucket: "bucket", Prefix: strings.Repeat("a/", 200) + "b"}).Validate(); err == nil {
		t.Error("a prefix of 401 bytes is taken: the names of parts would be too long")
	}
}
