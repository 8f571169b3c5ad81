package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/minio/minio-go/v7"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/storetest"
)

func TestValidate(t *testing.T) {
	good := Settings{Bucket: "lm-checkpoints", Prefix: "a/b", Endpoint: "http://127.0.0.1:9000", Region: "eu-west-1", AccessKey: "k", SecretKey: "s"}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	if err := (Settings{Bucket: "bucket", Prefix: strings.Repeat("a/", 255) + "bb"}).Validate(); err == nil {
		t.Error("a prefix of 512 bytes is taken: names of 1,025 would follow")
	}
	bad := Settings{Bucket: "No", Prefix: "../x", Endpoint: "http://user:passw0rd@h/", Region: "x y", Checksum: "crc", AccessKey: "k", PartBytes: 1, Stall: -1}
	err := bad.Validate()
	for _, want := range []string{"bucket", "prefix", "endpoint", "region", "checksum", "secret key", "part of", "stall"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "passw0rd") {
		t.Errorf("%v shows a password", err)
	}
}

// FuzzErrors: whatever a server answers is judged, and told in one printable line of bounded length. The seeds run as tests.
func FuzzErrors(f *testing.F) {
	for _, body := range []string{xmlError("SlowDown", ""), xmlError("InvalidRegion", "<Region>\x00</Region>"), "<html>", "", "<Error>", xmlError(strings.Repeat("x", 5000), ""), "<Error><Code>NoSuchKey</Code></Error>"} {
		for _, status := range []int{200, 301, 400, 404, 409, 412, 429, 500, 503, 599} {
			f.Add(status, body, `"etag"`)
		}
	}
	f.Fuzz(func(t *testing.T, status int, body, etag string) {
		reason := hiddenError(http.Header{"Etag": {etag}}, []byte(body))
		_ = namesCode([]byte(body))
		if strings.Contains(body, "<Error>") && reason == "" {
			t.Fatalf("%q is no error", body)
		}
		code, rest, _ := strings.Cut(body, "</Code>")
		_, code, _ = strings.Cut(code, "<Code>")
		r := minio.ErrorResponse{StatusCode: status, Code: code, Message: rest, Region: etag}
		fail := judge(context.Background(), &remote.Trace{}, r)
		if fail == nil || fail.Class == remote.Fine {
			t.Fatalf("%d %q: no failure", status, code)
		}
		if fail.Class == remote.Absent && status != http.StatusNotFound || fail.Class == remote.Exists && status != http.StatusPreconditionFailed && code != "PreconditionFailed" {
			t.Fatalf("%d %q: %v", status, code, fail.Class)
		}
		text := fail.Error()
		if len(text) > 1200 || strings.ContainsFunc(text, unicode.IsControl) || len(fail.Unwrap()) == 0 {
			t.Fatalf("%q", text)
		}
	})
}

// withKMS answers what a server does that takes a key. gofakes3 refuses all of them.
func withKMS(t *testing.T, size int) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("ETag", `"e"`)
		switch {
		case r.Method == http.MethodHead:
			w.Header().Set("Content-Length", strconv.Itoa(size))
			w.Header().Set("Last-Modified", "Fri, 27 Nov 2026 00:00:00 GMT")
		case q.Has("uploads"):
			fmt.Fprint(w, "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
		case q.Has("uploadId") && r.Method == http.MethodPost:
			fmt.Fprint(w, `<CompleteMultipartUploadResult><ETag>"e"</ETag></CompleteMultipartUploadResult>`)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestKey: the server is told the key with each request that makes an object. Parts and the end of an upload have that of its beginning.
func TestKey(t *testing.T) {
	const key = "arn:aws:kms:eu-west-1:1:key/abc"
	srv := &storetest.Server{Bucket: "plain", URL: withKMS(t, 2*leastPart+1)}
	told := 0
	for _, r := range storetest.Writes(t, srv.URL, func(endpoint string) store.Store {
		return client(t, srv, "keyed", func(s *Settings) { s.Key, s.Endpoint = key, endpoint })
	}, 2*leastPart+1) {
		makes := !r.URL.Query().Has("uploadId")
		if got := r.Header.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id"); (got == key) != makes || (r.Header.Get("X-Amz-Server-Side-Encryption") == "aws:kms") != makes {
			t.Errorf("%s %s: %v", r.Method, r.URL, r.Header)
		}
		if makes {
			told++
		}
	}
	if told != 3 {
		t.Errorf("told %d times", told)
	}
	if err := (Settings{Bucket: "b-1", Key: "a\r\nX-Evil: 1"}).Validate(); err == nil || !strings.Contains(err.Error(), "want the id, ARN or alias") {
		t.Errorf("a key with a header in it: %v", err)
	}
}

// TestAbsentIsSaidByTheStore: nothing but a 404 that names the key makes an object absent. What is absent may be written anew, or pruned.
func TestAbsentIsSaidByTheStore(t *testing.T) {
	for _, tc := range []struct {
		code   string
		status int
		is     error
	}{
		{"NoSuchKey", 404, store.ErrAbsent}, {"NoSuchUpload", 404, store.ErrAbsent}, {"NoSuchBucket", 404, store.ErrRefused}, {"404 Not Found", 404, store.ErrRefused}, {"NoSuchKey", 500, store.ErrDoubtful}, {"AccessDenied", 403, store.ErrRefused}, {"200 OK", 200, store.ErrDoubtful},
	} {
		if f := judge(t.Context(), &remote.Trace{}, minio.ErrorResponse{Code: tc.code, StatusCode: tc.status}); !errors.Is(f, tc.is) {
			t.Errorf("%d %s: %v, want %v", tc.status, tc.code, f, tc.is)
		}
	}
}

// TestWholeSum: of what was put in parts a checksum is of the parts' checksums, whether or not the server says so.
func TestWholeSum(t *testing.T) {
	sum := "tdyYHzW7cq0qQ5mVqlKnCOXL9cmLBGVzBsPgHvXcXAE="
	for what, c := range map[string]struct {
		etag, sum, mode string
		whole           bool
	}{
		"put at once":            {"0f343b0931126a20f133d67c2b018a3b", sum, "", true},
		"in parts, and said":     {"0f343b0931126a20f133d67c2b018a3b-3", sum + "-3", "COMPOSITE", false},
		"in parts, and not said": {"0f343b0931126a20f133d67c2b018a3b-1", sum, "", false},
		"in parts, of all":       {"0f343b0931126a20f133d67c2b018a3b-3", sum, "FULL_OBJECT", true},
		"no digest":              {"0f343b0931126a20f133d67c2b018a3b", "AAAA", "", false},
	} {
		if got := wholeSum(minio.ObjectInfo{ETag: c.etag, ChecksumSHA256: c.sum, ChecksumMode: c.mode}); (got != "") != c.whole {
			t.Errorf("%s: %q", what, got)
		}
	}
}
