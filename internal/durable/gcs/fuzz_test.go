package gcs

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

// FuzzNames: whatever a server lists, what comes of it is objects by key, in order, below what was asked for, or a refusal in one printable line.
func FuzzNames(f *testing.F) {
	for _, text := range []string{
		`{"kind":"storage#objects","items":[{"name":"r/a","size":"3","generation":"7","updated":"2026-11-01T00:00:00Z"},{"name":"r/b"}]}`,
		`{"kind":"storage#objects","nextPageToken":"t"}`, `{"kind":"storage#objects","nextPageToken":"t","items":[{"name":"r/a"}]}`,
		`{"kind":"storage#objects","items":[{"name":"s/a"}]}`, `{"kind":"storage#objects","items":[{"name":"r/../x","size":"-5"}]}`, "<html>", "", `{"kind":1}`, "[[[[",
	} {
		f.Add([]byte(text))
	}
	c := remote.New(remote.Client{URL: "x://b", Patience: time.Nanosecond, Judge: (&Store{}).judge})
	f.Cleanup(c.Close)
	f.Fuzz(func(t *testing.T, text []byte) {
		last, page := "", 0
		err := c.Begin(t.Context(), "list", "").ListPages("r/", "", "", func(o store.Info) error {
			if o.Key <= last || store.CheckKey(o.Key) != nil {
				t.Fatalf("%q after %q", o.Key, last)
			}
			last = o.Key
			return nil
		}, func(context.Context, string) (remote.Page, error) {
			if page++; page > 1000 {
				t.Fatal("it does not end")
			}
			n, err := parseNames(text)
			return n.objects(), err
		})
		if err != nil && (len(err.Error()) > 1200 || strings.ContainsFunc(err.Error(), unicode.IsControl)) {
			t.Fatalf("%q", err)
		}
	})
}
