package azure

import (
	"bytes"
	"context"
	"crypto/sha256"
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

func xmlError(code string) string {
	return "\ufeff<?xml version=\"1.0\"?>\n<Error><Code>" + code + "</Code><Message>as the test wants it\nRequestId:1</Message></Error>"
}

// TestAnswers: what each answer of a server comes to when it comes once, and when it always comes.
func TestAnswers(t *testing.T) {
	srv := storetest.StartAzure(t)
	open := func(t testing.TB, folder string, patience time.Duration, noticed func()) store.Store {
		return client(t, srv, folder, func(s *Settings) { s.Patience, s.Notice = patience, func(remote.Notice) { noticed() } })
	}
	srv.Answers(t, http.MethodPut, storetest.AzureKey, open, []storetest.Answer{
		storetest.Comes("busy", storetest.Fault{Status: 503, Body: xmlError("ServerBusy")}, nil, store.ErrSlowDown, "HTTP 503 ServerBusy: as the test wants it"),
		storetest.Comes("busy, in doubt", storetest.Fault{Status: 503, Body: xmlError("ServerBusy")}, nil, store.ErrDoubtful, "HTTP 503 ServerBusy"),
		storetest.Comes("timed out", storetest.Fault{Status: 500, Body: xmlError("OperationTimedOut")}, nil, store.ErrDoubtful, "OperationTimedOut"),
		storetest.Comes("HTML in 201", storetest.Fault{Status: 201, Body: "<!DOCTYPE html><html>log in</html>"}, nil, store.ErrDoubtful, "ETag"),
		storetest.Comes("damaged on its way", storetest.Fault{Status: 400, Body: xmlError("Md5Mismatch")}, nil, store.ErrCorrupt, "Md5Mismatch"),
		storetest.Comes("a token that has expired", storetest.Fault{Status: 401, Body: xmlError("InvalidAuthenticationInfo")}, nil, store.ErrRefused, "the token is none that the server takes: is the tenant that of the account?: renew the key or signature that this store was opened with"),
		storetest.Comes("a wrong key, or clock", storetest.Fault{Status: 403, Body: xmlError("AuthenticationFailed"), Header: map[string]string{"Date": "Mon, 02 Jan 2006 15:04:05 GMT"}}, store.ErrRefused, store.ErrRefused, "the server's clock is -"),
		storetest.Comes("no role", storetest.Fault{Status: 403, Body: xmlError("AuthorizationPermissionMismatch")}, store.ErrRefused, store.ErrRefused, "docs/stores.md"),
		storetest.Comes("container gone", storetest.Fault{Status: 404, Body: xmlError("ContainerNotFound")}, store.ErrRefused, store.ErrRefused, "make the container"),
		storetest.Comes("container on its way out", storetest.Fault{Status: 409, Body: xmlError("ContainerBeingDeleted")}, store.ErrRefused, store.ErrRefused, "ContainerBeingDeleted"),
		storetest.Comes("a lease", storetest.Fault{Status: 412, Body: xmlError("LeaseIdMissing")}, store.ErrRefused, store.ErrRefused, "break it"),
		storetest.Comes("a proxy's 404", storetest.Fault{Status: 404, Body: "<html>404</html>"}, nil, store.ErrDoubtful, "HTTP 404"),
	})
}

// TestAbsentIsSaidByTheStore: neither a container that is gone nor a proxy's page makes an object absent.
func TestAbsentIsSaidByTheStore(t *testing.T) {
	srv := storetest.StartAzure(t)
	calls := func(s *Store) map[string]error {
		_, _, getErr := s.Get(t.Context(), "k", 10)
		_, statErr := s.Stat(t.Context(), "k")
		_, unfinishedErr := s.Unfinished(t.Context(), "")
		return map[string]error{"get": getErr, "stat": statErr, "unfinished": unfinishedErr, "read": s.ReadRange(t.Context(), "k", 0, make([]byte, 1)),
			"list": s.List(t.Context(), "", "", func(store.Info) error { return nil }), "delete": s.Delete(t.Context(), "k")}
	}
	for what, err := range calls(client(t, srv, "lm", func(s *Settings) { s.Container = "another" })) {
		if !errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrAbsent) || !strings.Contains(err.Error(), "make the container") {
			t.Errorf("%s in a container that is gone: %v", what, err)
		}
	}
	s := client(t, srv, "lm", func(s *Settings) { s.Patience = 50 * time.Millisecond })
	for _, f := range []storetest.Fault{{Status: 404}, {Status: 404, Body: "<html>404</html>"}, {Status: 200, Body: "<html>log in</html>"}} {
		f.Kind = "answer"
		srv.Spoil(t, f)
		for what, err := range calls(s) {
			if err == nil || errors.Is(err, store.ErrAbsent) {
				t.Errorf("%s, of a %d with %q: %v", what, f.Status, f.Body, err)
			}
		}
		srv.Clear(t)
	}
}

// TestCompletions: what a completion is answered with tells nothing; the object does.
func TestCompletions(t *testing.T) {
	srv := storetest.StartAzure(t)
	s := client(t, srv, "lm")
	for i, f := range []storetest.Fault{
		{Kind: "answer", Status: 201, Body: "<html>"}, {Kind: "answer", Status: 503, Body: xmlError("ServerBusy")}, {Kind: "answer", Status: 500}, {Kind: "lose-request"}, {Kind: "lose-answer"}, {Kind: "cut-answer"},
	} {
		key := fmt.Sprintf("u%d", i)
		text := []byte("text of " + key)
		u, err := s.Upload(t.Context(), key, int64(len(text)))
		if err == nil {
			err = u.Part(t.Context(), 0, text)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Method, f.Query, f.Times = http.MethodPut, "comp=blocklist", 1
		srv.Spoil(t, f)
		if _, err := u.Complete(t.Context(), sha256.Sum256(text)); err != nil {
			t.Errorf("%s %d %q: %v", f.Kind, f.Status, f.Body, err)
			continue
		}
		if b, _, err := s.Get(t.Context(), key, 100); err != nil || !bytes.Equal(b, text) {
			t.Errorf("%s %d %q: %q, %v", f.Kind, f.Status, f.Body, b, err)
		}
	}
}

// TestAborts: an abort that is cut off after each of its requests leaves nothing behind once it is repeated, and no object that was completed is touched.
func TestAborts(t *testing.T) {
	srv := storetest.StartAzure(t)
	s := client(t, srv, "lm")
	for i, f := range []storetest.Fault{
		{Kind: "lose-answer", Method: http.MethodPut, Query: "comp=blocklist"}, {Kind: "lose-request", Method: http.MethodPut, Query: "comp=blocklist"}, {Kind: "answer", Status: 500, Method: http.MethodPut, Query: "comp=blocklist"},
		{Kind: "lose-answer", Method: http.MethodDelete}, {Kind: "lose-request", Method: http.MethodDelete},
	} {
		u, err := s.Upload(t.Context(), fmt.Sprintf("u%d", i), 4)
		if err == nil {
			err = u.Part(t.Context(), 0, []byte("text"))
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Times = 1
		srv.Spoil(t, f)
		if err := u.Abort(t.Context()); err != nil {
			t.Errorf("%s of a %s: %v", f.Kind, f.Method, err)
		}
		list, err := s.Unfinished(t.Context(), "")
		if err != nil || len(list) > 0 {
			t.Errorf("%s of a %s: unfinished %+v, %v", f.Kind, f.Method, list, err)
		}
		if err := s.List(t.Context(), "", "", func(o store.Info) error { return fmt.Errorf("%+v", o) }); err != nil {
			t.Errorf("%s of a %s: %v", f.Kind, f.Method, err)
		}
	}
	for _, text := range []string{"", "text"} {
		u, err := s.Upload(t.Context(), "k"+text, int64(len(text)))
		if err == nil && text != "" {
			err = u.Part(t.Context(), 0, []byte(text))
		}
		if err == nil {
			_, err = u.Complete(t.Context(), sha256.Sum256([]byte(text)))
		}
		if err == nil {
			err = s.discard(t.Context(), "k"+text) // as somebody who had listed it before it was completed
		}
		if b, _, gerr := s.Get(t.Context(), "k"+text, 10); err != nil || gerr != nil || string(b) != text {
			t.Errorf("%q after an abort that came late: %q, %v, %v", text, b, err, gerr)
		}
	}
}

// TestStallsAndCuts: what moves nothing is given up and sent again; a read goes on where it broke off.
func TestStallsAndCuts(t *testing.T) {
	srv := storetest.StartAzure(t)
	s := client(t, srv, "lm", func(s *Settings) { s.Stall = 300 * time.Millisecond; s.PartBytes = 4 << 20 })
	text := bytes.Repeat([]byte("0123456789abcdef"), 4<<16)
	u, err := s.Upload(t.Context(), "u", int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	srv.Spoil(t, storetest.Fault{Kind: "stall-request", Query: "comp=block&", Times: 1, Bytes: 100_000}, storetest.Fault{Kind: "flip-request", Query: "comp=block&", Times: 1, Bytes: 100_000})
	if err := u.Part(t.Context(), 0, text); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Complete(t.Context(), sha256.Sum256(text)); err != nil {
		t.Fatal(err)
	}
	srv.Reads(t, s, "lm", "u", text)
	for _, r := range srv.Requests(t) {
		if r.Fault == "flip-request" && r.Status != http.StatusBadRequest {
			t.Errorf("a block that changed on its way was answered with %d", r.Status)
		}
	}
}

// TestScope: the server is told the encryption scope with each request that makes an object or a block.
func TestScope(t *testing.T) {
	srv := storetest.StartAzure(t)
	made := storetest.Writes(t, srv.URL, func(endpoint string) store.Store {
		return client(t, srv, "keyed", func(s *Settings) { s.Scope, s.Endpoint = "team-a", endpoint+"/"+storetest.Access })
	}, 2*leastPart+1)
	for _, r := range made {
		if r.Header.Get("X-Ms-Encryption-Scope") != "team-a" {
			t.Errorf("%s %s: %v", r.Method, r.URL, r.Header)
		}
	}
	if len(made) != 7 { // two small ones, the upload's first block, three parts, and their list
		t.Errorf("%d requests", len(made))
	}
	if err := (Settings{Container: "c-1", Account: "acc", Endpoint: "https://acc.blob.core.windows.net", Scope: "a\r\nb"}).Validate(); err == nil || !strings.Contains(err.Error(), "encryption scope") {
		t.Errorf("a scope with a header in it: %v", err)
	}
}

// TestSignature: what a shared key signs is what Azure's own client (azblob 1.8.3) signs of the same request; Azurite checks the rest.
func TestSignature(t *testing.T) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://acc.blob.core.windows.net/c/a%20b/k=+@?comp=block&blockid=QQ%3D%3D", strings.NewReader("text"))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Content-MD5": "md5", "Content-Type": "application/xml", "If-Match": `"0x1"`, "If-None-Match": "*", "Range": "bytes=0-1", "X-Ms-Version": version, "X-Ms-Date": "now", "X-Ms-Blob-Type": "BlockBlob"} {
		r.Header.Set(k, v)
	}
	want := "PUT\n\n\n4\nmd5\napplication/xml\n\n\n\"0x1\"\n*\n\nbytes=0-1\nx-ms-blob-type:BlockBlob\nx-ms-date:now\nx-ms-version:" + version + "\n/acc/c/a%20b/k=+@\nblockid:QQ==\ncomp:block"
	if got := toSign(r, "acc"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestSAS: a shared access signature goes with each request, and is in no error.
func TestSAS(t *testing.T) {
	srv := storetest.StartAzure(t)
	sas := storetest.AzureSAS("racwdl")
	s := client(t, srv, "lm", func(s *Settings) { s.Key, s.SAS, s.Patience = "", remote.Secret(sas), 50*time.Millisecond })
	if err := store.Probe(t.Context(), s); err != nil {
		t.Error(err)
	}
	srv.Spoil(t, storetest.Fault{Kind: "lose-request"})
	_, err := s.PutNew(t.Context(), "k", []byte("x"))
	if _, sig, _ := strings.Cut(sas, "sig="); err == nil || strings.Contains(err.Error(), sig[:20]) {
		t.Errorf("%v shows the signature", err)
	}
}

// identity is an environment in which Entra is a server of the test.
func identity(t *testing.T, answer http.HandlerFunc) func(string) string {
	t.Helper()
	srv := httptest.NewServer(answer)
	t.Cleanup(srv.Close)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("pod's\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client", "AZURE_FEDERATED_TOKEN_FILE": file, "AZURE_AUTHORITY_HOST": srv.URL + "/"}
	return func(k string) string { return env[k] }
}

// withTokens is a store that asks for tokens, though its server is one by http.
func withTokens(t *testing.T, srv *storetest.Server, env func(string) string) *Store {
	t.Helper()
	s := client(t, srv, "lm", func(s *Settings) { s.Key, s.env = "", env; s.Endpoint = "https://127.0.0.1:1/" + storetest.Access })
	s.settings.Endpoint = srv.URL + "/" + storetest.Access
	return s
}

// TestTokens: one is fetched for many requests, by the pod's own, and anew where the server takes it no longer.
func TestTokens(t *testing.T) {
	srv := storetest.StartAzure(t)
	var asked atomic.Int32
	s := withTokens(t, srv, identity(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/tenant/oauth2/v2.0/token" || r.FormValue("client_assertion") != "pod's" || r.FormValue("client_id") != "client" || r.FormValue("scope") != "https://storage.azure.com/.default" {
			t.Errorf("%s %v", r.URL, r.Form)
		}
		fmt.Fprintf(w, `{"access_token":"t0ken-%d","expires_in":%q}`, asked.Add(1), "3600")
	}))
	srv.Spoil(t, storetest.Fault{Kind: "answer", Access: "t0ken-1", Status: 401, Body: xmlError("InvalidAuthenticationInfo"), Query: "comp=blocklist", Times: 1})
	u, err := s.Upload(t.Context(), "u", 4)
	if err == nil {
		err = u.Part(t.Context(), 0, []byte("text"))
	}
	if err == nil {
		_, err = u.Complete(t.Context(), sha256.Sum256([]byte("text")))
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("%d tokens were asked for, want 2", n)
	}
}

// TestNoToken: nobody goes on as nobody.
func TestNoToken(t *testing.T) {
	srv := storetest.StartAzure(t)
	for status, is := range map[int]error{400: store.ErrRefused, 503: store.ErrDoubtful} {
		s := withTokens(t, srv, identity(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"error":"invalid_client","error_description":"s3cret"}`)
		}))
		s.calls.Patience = 50 * time.Millisecond
		_, err := s.PutNew(t.Context(), "k", []byte("x"))
		if !errors.Is(err, is) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("HTTP %d: %v, want %v", status, err, is)
		}
	}
	if n := len(srv.Requests(t)); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	for _, tc := range []struct{ secret, tenant, want string }{{"s", "t", "/t/oauth2/v2.0/token"}, {"", "", "/metadata/identity/oauth2/token"}} {
		env := map[string]string{"AZURE_CLIENT_SECRET": tc.secret, "AZURE_TENANT_ID": tc.tenant, "AZURE_CLIENT_ID": "c"}
		r, err := tokenRequest(t.Context(), func(k string) string { return env[k] })
		if err != nil || r.URL.Path != tc.want {
			t.Errorf("%+v: %v, %v", tc, r.URL, err)
		}
	}
}

// FuzzErrors: whatever a server answers is judged, and told in one printable line of bounded length. The seeds run as tests.
func FuzzErrors(f *testing.F) {
	for _, body := range []string{xmlError("ConditionNotMet"), xmlError("BlobNotFound"), "<html>", "", "<Error>", xmlError(strings.Repeat("x", 5000))} {
		for _, status := range []int{200, 301, 400, 401, 404, 409, 412, 429, 500, 503, 599} {
			f.Add(status, body, "")
		}
	}
	f.Fuzz(func(t *testing.T, status int, body, code string) {
		fail := judge(context.Background(), &remote.Trace{}, &remote.Answer{Status: status, Body: []byte(body), Header: http.Header{"X-Ms-Error-Code": {code}}})
		if fail == nil || fail.Class == remote.Fine || fail.Class == remote.Absent && status != http.StatusNotFound || fail.Class == remote.Exists && status != http.StatusPreconditionFailed && status != http.StatusConflict {
			t.Fatalf("%d %q: %+v", status, body, fail)
		}
		if text := fail.Error(); len(text) > 1200 || strings.ContainsFunc(text, unicode.IsControl) {
			t.Fatalf("%q", text)
		}
		_, _, _ = parseBlock(body)
	})
}
