package s3

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/minio/minio-go/v7"

	"github.com/replicad/replicad/internal/durable/store"
)

// slowly is a connection that takes a byte of the body now and then, and then no more.
type slowly struct {
	every time.Duration
	most  int
}

func (s slowly) RoundTrip(r *http.Request) (*http.Response, error) {
	for range s.most {
		time.Sleep(s.every) // of the bubble
		if _, err := r.Body.Read(make([]byte, 1)); err == io.EOF {
			return &http.Response{StatusCode: 200, Header: http.Header{"Etag": {`"x"`}}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
		}
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A part that takes hours is not given up while it moves, and is after half a minute in which it does not.
func TestProgressNotTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := &notices{}
		send := func(c slowly) error {
			w := &watched{next: c, stall: defaultStall, notice: told.note, closing: context.Background()}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://store/k", strings.NewReader(strings.Repeat("x", 1000)))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := w.RoundTrip(r)
			if err == nil {
				_ = resp.Body.Close()
			}
			return err
		}
		began := time.Now()
		if err := send(slowly{9 * time.Second, 2000}); err != nil {
			t.Errorf("a byte in 9 s: %v", err)
		}
		if list := told.take(); len(list) > 0 {
			t.Errorf("told %v", list)
		}
		if took := time.Since(began); took < 2*time.Hour {
			t.Errorf("it took %v", took)
		}
		began = time.Now()
		if err := send(slowly{time.Second, 500}); !errors.Is(err, errStalled) || len(told.take()) != 1 {
			t.Errorf("one that stops moving: %v", err)
		}
		if took := time.Since(began); took != 500*time.Second+defaultStall {
			t.Errorf("it was given up after %v", took)
		}
	})
}

// late is a connection that is answered early, and asks for more of the body afterwards.
type late struct{ body io.ReadCloser }

func (l *late) RoundTrip(r *http.Request) (*http.Response, error) {
	l.body = r.Body
	return &http.Response{StatusCode: 503, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// A caller has its buffer back: a connection that is late gets nothing of what is in it by then.
func TestBodyOfARequestThatIsOver(t *testing.T) {
	l := &late{}
	w := &watched{next: l, stall: time.Hour, notice: func(Notice) {}, closing: context.Background()}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://store/k", strings.NewReader("text"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := l.body.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("before the answer is read: %d, %v", n, err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	if n, err := l.body.Read(make([]byte, 10)); n != 0 || !errors.Is(err, errOver) {
		t.Errorf("afterwards: %d, %v", n, err)
	}
}

func TestWaits(t *testing.T) {
	for attempt := 1; attempt < 60; attempt++ {
		for _, c := range []class{slow, doubtful} {
			first := firstWait
			if c == slow {
				first = slowWait
			}
			most := min(first<<min(attempt-1, 10), mostWait)
			if d := waitBefore(attempt, c); d < most/2 || d > most {
				t.Errorf("attempt %d: %v, want %v to %v", attempt, d, most/2, most)
			}
		}
	}
}

func TestPartFor(t *testing.T) {
	for _, size := range []int64{0, 1, 16 << 20, 1 << 30, 160_000 << 20, 160_000<<20 + 1, 1 << 40, mostUpload} {
		p := partFor(size, defaultPart)
		if n := (size + p - 1) / p; n > maxParts || p < leastPart || p > mostPart || size <= 160_000<<20 && p != defaultPart {
			t.Errorf("%d bytes in %d parts of %d", size, n, p)
		}
	}
}

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

func TestSecretsAreHidden(t *testing.T) {
	s := Settings{SecretKey: "passw0rd", SessionToken: "t0ken"}
	text := fmt.Sprintf("%v %+v %#v %s %q %x %d %v", s, s, s, s.SecretKey, s.SecretKey, s.SecretKey, s.SecretKey, []any{&s, s.SessionToken})
	b, err := json.Marshal(map[string]any{"key": s.SecretKey, "token": s.SessionToken})
	if err != nil {
		t.Fatal(err)
	}
	text += string(b)
	for _, secret := range []string{"passw0rd", "t0ken", hex.EncodeToString([]byte("passw0rd"))} {
		if strings.Contains(text, secret) {
			t.Errorf("%s shows %s", text, secret)
		}
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
		fail := judge(context.Background(), &trace{}, r)
		if fail == nil || fail.class == fine {
			t.Fatalf("%d %q: no failure", status, code)
		}
		if fail.class == absent && status != http.StatusNotFound || fail.class == exists && status != http.StatusPreconditionFailed && code != "PreconditionFailed" {
			t.Fatalf("%d %q: %v", status, code, fail.class)
		}
		text := fail.Error()
		if len(text) > 1200 || strings.ContainsFunc(text, unicode.IsControl) || len(fail.Unwrap()) == 0 {
			t.Fatalf("%q", text)
		}
	})
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
		if f := judge(t.Context(), &trace{}, minio.ErrorResponse{Code: tc.code, StatusCode: tc.status}); !errors.Is(f, tc.is) {
			t.Errorf("%d %s: %v, want %v", tc.status, tc.code, f, tc.is)
		}
	}
}
