package s3

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/storetest"
)

// TestListingsHaveAnEnd: a listing that is no store's is refused with what is wrong with it, before it takes memory or time without bound.
func TestListingsHaveAnEnd(t *testing.T) {
	contents := func(key string) string { return "<Contents><Key>" + key + "</Key><Size>1</Size></Contents>" }
	truncated := func(token, more string) string {
		return "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>" + token + "</NextContinuationToken>" + more + "</ListBucketResult>"
	}
	pages := 0
	uploads := func(key, id, more string) string {
		return "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>" + key + "</NextKeyMarker><NextUploadIdMarker>" + id + "</NextUploadIdMarker>" + more + "</ListMultipartUploadsResult>"
	}
	upload := "<Upload><Key>k</Key><UploadId>u</UploadId></Upload>"
	endless := func(first, chunk string) func(w io.Writer) error {
		return func(w io.Writer) error {
			_, err := io.WriteString(w, first)
			for i := 0; i < 64<<20/len(chunk) && err == nil; i++ {
				_, err = io.WriteString(w, chunk)
			}
			return err
		}
	}
	text := func(s func() string) func(w io.Writer) error {
		return func(w io.Writer) error {
			_, err := io.WriteString(w, s())
			return err
		}
	}
	for _, c := range []struct {
		what    string
		answer  func(w io.Writer) error
		uploads bool
		want    string
		most    int // requests
	}{
		{"a key without end", endless("<ListBucketResult><Contents><Key>", strings.Repeat("A", 1<<16)), false, "more than 8 MiB", 1},
		{"elements in another", endless("<ListBucketResult>", strings.Repeat("<a>", 1<<12)), false, "more than 524288 elements", 1},
		{"an empty page that leads to itself", text(func() string { return truncated("t", "") }), false, "itself", 3},
		{"empty pages without end", text(func() string { return truncated(fmt.Sprint("t", pages), "") }), false, "100 pages in succession", 101},
		{"a page that leads to itself", text(func() string { return truncated("t", contents("k")) }), false, `"k" after "k"`, 2},
		{"uploads that lead to themselves", text(func() string { return uploads("k", "u", upload) }), true, "goes on at", 2},
		{"uploads that go round", text(func() string { return uploads(string(rune('b'-pages%2)), "u", "") }), true, "goes on at", 3},
		{"no uploads without end", text(func() string { return uploads("k", fmt.Sprint("u", pages), "") }), true, "100 pages in succession", 101},
	} {
		t.Run(c.what, func(t *testing.T) {
			pages = 0
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				pages++
				w.Header().Set("Content-Type", "application/xml")
				_ = c.answer(w) // the client hangs up
			}))
			defer srv.Close()
			s := client(t, &storetest.Server{URL: srv.URL, Bucket: "plain"}, "")
			defer s.Close()
			var err error
			if c.uploads {
				_, err = s.Unfinished(t.Context(), "")
			} else {
				err = s.List(t.Context(), "", "", func(store.Info) error { return nil })
			}
			if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), c.want) || pages > c.most {
				t.Errorf("%v, after %d requests", err, pages)
			}
		})
	}
}
