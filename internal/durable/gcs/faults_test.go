package gcs

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/storetest"
)

func jsonError(reason, message string) string {
	return fmt.Sprintf(`{"error":{"code":1,"message":%q,"errors":[{"reason":%q}]}}`, message, reason)
}

// TestExpiredCredentialsAreNamed by the file that they came from.
func TestExpiredCredentialsAreNamed(t *testing.T) {
	srv := storetest.StartGCS(t)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "/theirs.json")
	for file, want := range map[string]string{"": "/theirs.json", "/mine.json": "/mine.json"} {
		s := client(t, srv, "lm", func(s *Settings) { s.Credentials = file })
		if got := s.renew(); !strings.Contains(got, "renew that file") || !strings.Contains(got, want) {
			t.Errorf("%q: %q", file, got)
		}
	}
}

// TestAnswers: what each answer of a server comes to when it comes once, and when it always comes.
func TestAnswers(t *testing.T) {
	srv := storetest.StartGCS(t)
	open := func(t testing.TB, folder string, patience time.Duration, noticed func()) store.Store {
		return client(t, srv, folder, func(s *Settings) { s.Patience, s.Notice = patience, func(remote.Notice) { noticed() } })
	}
	srv.Answers(t, http.MethodPost, "", open, []storetest.Answer{
		storetest.Comes("too many requests", storetest.Fault{Status: 429, Body: jsonError("rateLimitExceeded", "slow")}, nil, store.ErrSlowDown, "HTTP 429 rateLimitExceeded: slow"),
		storetest.Comes("a limit in 403", storetest.Fault{Status: 403, Body: jsonError("userRateLimitExceeded", "")}, nil, store.ErrSlowDown, "HTTP 403 userRateLimitExceeded"),
		storetest.Comes("unavailable", storetest.Fault{Status: 503, Body: "<html>Service Unavailable</html>"}, nil, store.ErrSlowDown, "HTTP 503"),
		storetest.Comes("unavailable, in doubt", storetest.Fault{Status: 503}, nil, store.ErrDoubtful, "HTTP 503"),
		storetest.Comes("backend error", storetest.Fault{Status: 503, Body: `{"error":{"message":"\u001b[31m","errors":[{"reason":"backendError"}]}}`}, nil, store.ErrDoubtful, "HTTP 503 backendError"),
		storetest.Comes("internal error", storetest.Fault{Status: 500, Body: jsonError("internalError", "")}, nil, store.ErrDoubtful, "HTTP 500"),
		storetest.Comes("HTML in 200", storetest.Fault{Status: 200, Body: "<!DOCTYPE html><html>log in</html>"}, nil, store.ErrDoubtful, "is it a store that answers"),
		storetest.Comes("200 without a generation", storetest.Fault{Status: 200, Body: "{}"}, nil, store.ErrDoubtful, "generation"),
		storetest.Comes("damaged on its way", storetest.Fault{Status: 400, Body: jsonError("invalid", `Provided CRC32C "a" doesn't match calculated CRC32C "b".`)}, nil, store.ErrCorrupt, "match calculated"),
		storetest.Comes("a token that has expired", storetest.Fault{Status: 401, Body: jsonError("authError", "Invalid Credentials")}, nil, store.ErrRefused, "GOOGLE_APPLICATION_CREDENTIALS"),
		storetest.Comes("access denied", storetest.Fault{Status: 403, Body: jsonError("forbidden", "no storage.objects.create access")}, store.ErrRefused, store.ErrRefused, "docs/stores.md"),
		storetest.Comes("bucket gone", storetest.Fault{Status: 404, Body: jsonError("notFound", "The specified bucket does not exist.")}, store.ErrRefused, store.ErrRefused, "make the bucket"),
		storetest.Comes("a proxy's 404", storetest.Fault{Status: 404, Body: "<html>404</html>"}, nil, store.ErrDoubtful, "HTTP 404"),
		storetest.Comes("retention policy", storetest.Fault{Status: 403, Body: jsonError("retentionPolicyNotMet", "")}, store.ErrRefused, store.ErrRefused, "retentionPolicyNotMet"),
	})
}

// TestAbsentIsListed: neither a bucket that is gone nor a proxy's page makes an object absent.
func TestAbsentIsListed(t *testing.T) {
	srv := storetest.StartGCS(t)
	calls := func(s *Store) map[string]error {
		_, _, getErr := s.Get(t.Context(), "k", 10)
		_, statErr := s.Stat(t.Context(), "k")
		_, unfinishedErr := s.Unfinished(t.Context(), "")
		return map[string]error{"get": getErr, "stat": statErr, "unfinished": unfinishedErr, "read": s.ReadRange(t.Context(), "k", 0, make([]byte, 1)),
			"list": s.List(t.Context(), "", "", func(store.Info) error { return nil }), "delete": s.Delete(t.Context(), "k")}
	}
	gone := client(t, srv, "lm", func(s *Settings) { s.Bucket = "another" })
	for what, err := range calls(gone) {
		if !errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrAbsent) || !strings.Contains(err.Error(), "make the bucket") {
			t.Errorf("%s in a bucket that is gone: %v", what, err)
		}
	}
	s := client(t, srv, "lm", func(s *Settings) { s.Patience = 50 * time.Millisecond })
	for _, body := range []string{"", "<html>404</html>", "No such object: plain/lm/k"} {
		srv.Spoil(t, storetest.Fault{Kind: "answer", Status: 404, Body: body})
		for what, err := range calls(s) {
			if err == nil || errors.Is(err, store.ErrAbsent) {
				t.Errorf("%s, of a 404 with %q: %v", what, body, err)
			}
		}
		srv.Clear(t)
	}
	if _, err := s.PutNew(t.Context(), "k", []byte("x")); err != nil {
		t.Fatal(err)
	}
	srv.Spoil(t, storetest.Fault{Kind: "answer", Key: "lm/k", Status: 404, Body: "No such object: plain/lm/k"})
	if _, err := s.Stat(t.Context(), "k"); !errors.Is(err, store.ErrDoubtful) {
		t.Errorf("an object that is listed, and answered with 404: %v", err)
	}
}

// TestManyParts: 1,029 parts take three levels, and nothing stays of them, also where requests are lost in between.
func TestManyParts(t *testing.T) {
	srv := storetest.StartGCS(t)
	s := client(t, srv, "lm")
	s.settings.PartBytes = 1024
	text := bytes.Repeat([]byte("0123456789abcdef"), (together*together+5)*1024/16)
	u, err := s.Upload(t.Context(), "u", int64(len(text)))
	if err == nil {
		err = each(len(text)/1024, func(i int) error { return u.Part(t.Context(), i, text[i*1024:(i+1)*1024]) })
	}
	if err != nil {
		t.Fatal(err)
	}
	srv.Spoil(t, storetest.Fault{Kind: "lose-answer", Method: http.MethodPost, Key: "/compose", Times: 2}, storetest.Fault{Kind: "lose-request", Method: http.MethodPost, Key: "/c2-00000/compose", Times: 1},
		storetest.Fault{Kind: "answer", Status: 503, Method: http.MethodDelete, Times: 3})
	info, err := u.Complete(t.Context(), sha256.Sum256(text))
	if err != nil || info.Size != int64(len(text)) {
		t.Fatalf("%+v, %v", info, err)
	}
	got := make([]byte, len(text))
	if err := s.ReadRange(t.Context(), "u", 0, got); err != nil || !bytes.Equal(got, text) {
		t.Errorf("other bytes, %v", err)
	}
	if list, err := s.Unfinished(t.Context(), ""); err != nil || len(list) > 0 {
		t.Errorf("unfinished: %+v, %v", list, err)
	}
}

// TestPartThatIsAnother: parts are looked at before they are composed.
func TestPartThatIsAnother(t *testing.T) {
	srv := storetest.StartGCS(t)
	s := client(t, srv, "lm")
	u, err := s.Upload(t.Context(), "u", 4)
	if err == nil {
		err = u.Part(t.Context(), 0, []byte("text"))
	}
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.Unfinished(t.Context(), "")
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if _, err := s.insert(t.Context(), s.uploadAt("u", list[0].ID)+partName(0), []byte("tExt"), "", map[string][]string{}); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Complete(t.Context(), sha256.Sum256([]byte("text"))); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("%v, want %v", err, store.ErrCorrupt)
	}
	if _, err := s.Stat(t.Context(), "u"); !errors.Is(err, store.ErrAbsent) {
		t.Errorf("%v, want %v", err, store.ErrAbsent)
	}
}

// TestStallsAndCuts: what moves nothing is given up and sent again; a read goes on where it broke off.
func TestStallsAndCuts(t *testing.T) {
	srv := storetest.StartGCS(t)
	s := client(t, srv, "lm", func(s *Settings) { s.Stall = 300 * time.Millisecond; s.PartBytes = 4 << 20 })
	text := bytes.Repeat([]byte("0123456789abcdef"), 4<<16)
	u, err := s.Upload(t.Context(), "u", int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	srv.Spoil(t, storetest.Fault{Kind: "stall-request", Query: "p-00000", Times: 1, Bytes: 100_000}, storetest.Fault{Kind: "flip-request", Query: "p-00000", Times: 1, Bytes: 100_000})
	if err := u.Part(t.Context(), 0, text); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Complete(t.Context(), sha256.Sum256(text)); err != nil {
		t.Fatal(err)
	}
	srv.Reads(t, s, "lm", "u", text)
	if _, err := s.PutNew(t.Context(), "k", []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	srv.Spoil(t, storetest.Fault{Kind: "flip-answer", Method: http.MethodGet, Key: "lm/k", Times: 1, Bytes: 5})
	if b, _, err := s.Get(t.Context(), "k", 100); err != nil || string(b) != "0123456789" {
		t.Errorf("a byte that changed on its way: %q, %v", b, err)
	}
	for _, r := range srv.Requests(t) {
		if r.Fault == "flip-request" && r.Status != http.StatusBadRequest {
			t.Errorf("a part that changed on its way was answered with %d", r.Status)
		}
	}
}

// authority answers as the server of tokens that a service account's file names.
func authority(t *testing.T, answer http.HandlerFunc) (file string) {
	t.Helper()
	srv := httptest.NewServer(answer)
	t.Cleanup(srv.Close)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]string{"type": "service_account", "client_email": "ada@example.org", "private_key_id": "1",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// withTokens is a store that asks for tokens, though its server is one by http.
func withTokens(t *testing.T, srv *storetest.Server, file string) *Store {
	t.Helper()
	s := client(t, srv, "lm", func(s *Settings) { s.Endpoint, s.Credentials = "https://127.0.0.1:1", file })
	s.base = srv.URL
	return s
}

// TestTokens: one is fetched for many requests, and anew where the server takes it no longer.
func TestTokens(t *testing.T) {
	srv := storetest.StartGCS(t)
	var asked atomic.Int32
	s := withTokens(t, srv, authority(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"access_token":"t0ken-%d","token_type":"Bearer","expires_in":3600}`, asked.Add(1))
	}))
	srv.Spoil(t, storetest.Fault{Kind: "answer", Access: "t0ken-1", Status: 401, Body: jsonError("authError", "expired"), Query: "p-00001", Times: 1})
	u, err := s.Upload(t.Context(), "u", 2*leastPart)
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("x"), 2*leastPart)
	for i := range 2 {
		if err := u.Part(t.Context(), i, text[:leastPart]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := u.Complete(t.Context(), sha256.Sum256(text)); err != nil {
		t.Fatal(err)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("%d tokens were asked for, want 2", n)
	}
}

// TestNoToken: nobody goes on as nobody, and no answer of a server of tokens is shown.
func TestNoToken(t *testing.T) {
	srv := storetest.StartGCS(t)
	for status, is := range map[int]error{400: store.ErrRefused, 503: store.ErrDoubtful} {
		s := withTokens(t, srv, authority(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"error":"invalid_grant","error_description":"s3cret"}`)
		}))
		s.calls.Patience = 50 * time.Millisecond
		_, err := s.PutNew(t.Context(), "k", []byte("x"))
		if !errors.Is(err, is) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("HTTP %d: %v, want %v", status, err, is)
		}
	}
	s := withTokens(t, srv, filepath.Join(t.TempDir(), "none"))
	if _, err := s.PutNew(t.Context(), "k", []byte("x")); !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "GOOGLE_APPLICATION_CREDENTIALS") {
		t.Errorf("a file that is not there: %v", err)
	}
	if n := len(srv.Requests(t)); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// FuzzErrors: whatever a server answers is judged, and told in one printable line of bounded length. The seeds run as tests.
func FuzzErrors(f *testing.F) {
	for _, body := range []string{jsonError("conditionNotMet", "x"), jsonError("notFound", "\x00"), "<html>", "", "{", jsonError(strings.Repeat("x", 5000), "")} {
		for _, status := range []int{200, 301, 400, 401, 404, 409, 412, 429, 500, 503, 599} {
			f.Add(status, body)
		}
	}
	s := &Store{}
	f.Fuzz(func(t *testing.T, status int, body string) {
		fail := s.judge(context.Background(), &remote.Trace{}, &remote.Answer{Status: status, Body: []byte(body)})
		if fail == nil || fail.Class == remote.Fine || fail.Class == remote.Absent {
			t.Fatalf("%d %q: %+v", status, body, fail)
		}
		if fail.Class == remote.Exists && status != http.StatusPreconditionFailed {
			t.Fatalf("%d %q: %v", status, body, fail.Class)
		}
		if text := fail.Error(); len(text) > 1200 || strings.ContainsFunc(text, unicode.IsControl) {
			t.Fatalf("%q", text)
		}
	})
}
