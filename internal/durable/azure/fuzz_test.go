package azure

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
	list := func(more string) string {
		return "<EnumerationResults><Blobs>" + more + "</Blobs></EnumerationResults>"
	}
	blob := func(name string) string {
		return "<Blob><Name>" + name + "</Name><Properties><Content-Length>3</Content-Length><Etag>0x8</Etag></Properties></Blob>"
	}
	for _, text := range []string{
		list(blob("r/a") + blob("r/b")), list(blob("r/b") + blob("r/a")), list(blob("s/a")), list(`<Blob><Name Encoded="true">r/%61%zz</Name></Blob>`), list(`<Blob><Name Encoded="true">r/%61</Name></Blob>`),
		"<EnumerationResults><NextMarker>t</NextMarker></EnumerationResults>", list("<Blob><Properties><ResourceType>directory</ResourceType></Properties></Blob>"), "\xef\xbb\xbf" + list(""), "<html>", "", "<a><a><a>",
	} {
		f.Add([]byte(text))
	}
	c := remote.New(remote.Client{URL: "x://b", Patience: time.Nanosecond, Judge: judge})
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
			return parsePage(text)
		})
		if err != nil && (len(err.Error()) > 1200 || strings.ContainsFunc(err.Error(), unicode.IsControl)) {
			t.Fatalf("%q", err)
		}
	})
}
