package s3

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/storetest"
)

// notices keeps what a store tells on its way.
type notices struct {
	mu   sync.Mutex
	list []remote.Notice
	on   func(remote.Notice)
}

func (n *notices) note(x remote.Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, x)
	if n.on != nil {
		n.on(x)
	}
}

func (n *notices) take() []remote.Notice {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.list
	n.list = nil
	return list
}

func xmlError(code, more string) string {
	return "<?xml version=\"1.0\"?>\n<Error><Code>" + code + "</Code><Message>as the test wants it</Message>" + more + "</Error>"
}

// TestAnswers: what each answer of a server comes to when it comes once, and when it always comes.
func TestAnswers(t *testing.T) {
	srv := storetest.Start(t)
	open := func(t testing.TB, folder string, patience time.Duration, noticed func()) store.Store {
		return client(t, srv, folder, func(s *Settings) { s.Patience, s.Notice = patience, func(remote.Notice) { noticed() } })
	}
	srv.Answers(t, http.MethodPut, storetest.Secret, open, []storetest.Answer{
		storetest.Comes("slow down", storetest.Fault{Status: 503, Body: xmlError("SlowDown", "")}, nil, store.ErrSlowDown, "HTTP 503 SlowDown"),
		storetest.Comes("503 in HTML", storetest.Fault{Status: 503, Body: "<html><body>Service Unavailable</body></html>"}, nil, store.ErrSlowDown, "HTTP 503"),
		storetest.Comes("internal error", storetest.Fault{Status: 500, Body: xmlError("InternalError", "")}, nil, store.ErrDoubtful, "HTTP 500 InternalError: as the test wants it"),
		storetest.Comes("an error in 200", storetest.Fault{Status: 200, Body: xmlError("InternalError", ""), Header: map[string]string{"ETag": `"x"`}}, nil, store.ErrDoubtful, "InternalError"),
		storetest.Comes("HTML in 200", storetest.Fault{Status: 200, Body: "<!DOCTYPE html><html>log in</html>", Header: map[string]string{"ETag": `"x"`}}, nil, store.ErrDoubtful, "HTML"),
		storetest.Comes("200 without an ETag", storetest.Fault{Status: 200}, nil, store.ErrDoubtful, "ETag"),
		storetest.Comes("conflict", storetest.Fault{Status: 409, Body: xmlError("ConditionalRequestConflict", "")}, nil, store.ErrDoubtful, "ConditionalRequestConflict"),
		storetest.Comes("another region", storetest.Fault{Status: 400, Body: xmlError("AuthorizationHeaderMalformed", "<Region>eu-west-9</Region>")}, store.ErrRefused, store.ErrRefused, "its region is eu-west-9"),
		storetest.Comes("invalid region", storetest.Fault{Status: 400, Body: xmlError("InvalidRegion", "<Region>eu-west-9</Region>")}, store.ErrRefused, store.ErrRefused, "set the region"),
		storetest.Comes("redirect", storetest.Fault{Status: 301, Body: xmlError("PermanentRedirect", "<Endpoint>b.s3.eu-west-9.amazonaws.com</Endpoint>"), Header: map[string]string{"Location": "http://127.0.0.1:1/"}}, store.ErrRefused, store.ErrRefused, "elsewhere"),
		storetest.Comes("skewed clock", storetest.Fault{Status: 403, Body: xmlError("RequestTimeTooSkewed", ""), Header: map[string]string{"Date": "Mon, 02 Jan 2006 15:04:05 GMT"}}, store.ErrRefused, store.ErrRefused, "clock is wrong"),
		storetest.Comes("access denied", storetest.Fault{Status: 403, Body: xmlError("AccessDenied", "")}, store.ErrRefused, store.ErrRefused, "docs/stores.md"),
		storetest.Comes("bucket gone", storetest.Fault{Status: 404, Body: xmlError("NoSuchBucket", "")}, store.ErrRefused, store.ErrRefused, "make the bucket"),
		storetest.Comes("quota", storetest.Fault{Status: 403, Body: xmlError("QuotaExceeded", "")}, store.ErrRefused, store.ErrRefused, "quota is used up"),
		storetest.Comes("full", storetest.Fault{Status: 507, Body: xmlError("XMinioStorageFull", "")}, store.ErrRefused, store.ErrRefused, "store is full"),
		storetest.Comes("not implemented", storetest.Fault{Status: 501, Body: xmlError("NotImplemented", "")}, store.ErrRefused, store.ErrRefused, "checksum"),
	})
}

// TestBucketThatIsGone: no object of it is merely absent.
func TestBucketThatIsGone(t *testing.T) {
	srv := storetest.Start(t)
	s := client(t, srv, "lm", func(s *Settings) { s.Bucket = "another" })
	_, newErr := s.PutNew(t.Context(), "k", []byte("x"))
	_, changeErr := s.PutUnchanged(t.Context(), "k", []byte("x"), "none")
	_, _, getErr := s.Get(t.Context(), "k", 10)
	_, statErr := s.Stat(t.Context(), "k")
	_, upErr := s.Upload(t.Context(), "k", 10)
	_, unfinishedErr := s.Unfinished(t.Context(), "")
	for what, err := range map[string]error{"put": newErr, "change": changeErr, "get": getErr, "stat": statErr, "upload": upErr, "unfinished": unfinishedErr,
		"read": s.ReadRange(t.Context(), "k", 0, make([]byte, 1)), "list": s.List(t.Context(), "", "", func(store.Info) error { return nil }), "delete": s.Delete(t.Context(), "k")} {
		if !errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrAbsent) || !strings.Contains(err.Error(), "make the bucket") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestPageNotFound: a 404 of what stands before the store says nothing of its objects.
func TestPageNotFound(t *testing.T) {
	srv := storetest.Start(t)
	s := client(t, srv, "lm", func(s *Settings) { s.Patience = 50 * time.Millisecond })
	for _, body := range []string{"", "<html>404</html>", "<Error></Error>", "NoSuchKey"} {
		srv.Spoil(t, storetest.Fault{Kind: "answer", Status: 404, Body: body})
		_, _, getErr := s.Get(t.Context(), "k", 10)
		_, statErr := s.Stat(t.Context(), "k")
		for what, err := range map[string]error{"get": getErr, "stat": statErr, "read": s.ReadRange(t.Context(), "k", 0, make([]byte, 1)), "delete": s.Delete(t.Context(), "k"), "list": s.List(t.Context(), "", "", func(store.Info) error { return nil })} {
			if err == nil || errors.Is(err, store.ErrAbsent) {
				t.Errorf("%s, of a 404 with %q: %v", what, body, err)
			}
		}
		srv.Clear(t)
	}
}

// TestCompletions: what a completion is answered with tells nothing; the object does.
func TestCompletions(t *testing.T) {
	srv := storetest.Start(t)
	s := client(t, srv, "lm")
	for i, f := range []storetest.Fault{
		{Kind: "answer", Status: 200, Body: xmlError("InternalError", "")}, {Kind: "answer", Status: 200, Body: "<html>"}, {Kind: "answer", Status: 200}, {Kind: "answer", Status: 200, Body: "<?xml?>   <CompleteMultipartUploadResult>"},
		{Kind: "answer", Status: 503, Body: xmlError("SlowDown", "")}, {Kind: "lose-request"}, {Kind: "lose-answer"}, {Kind: "cut-answer", Bytes: 50},
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
		f.Method, f.Query, f.Times = http.MethodPost, "uploadId=", 1
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

// TestCredentialsThatExpire are fetched anew, in the middle of an upload.
func TestCredentialsThatExpire(t *testing.T) {
	srv := storetest.Start(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "OLDKEY")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "old")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	told := &notices{on: func(remote.Notice) {
		_ = os.Setenv("AWS_ACCESS_KEY_ID", storetest.Access)
		_ = os.Setenv("AWS_SECRET_ACCESS_KEY", storetest.Secret)
	}}
	s := client(t, srv, "lm", func(s *Settings) { s.AccessKey, s.SecretKey, s.Notice = "", "", told.note })
	srv.Spoil(t, storetest.Fault{Kind: "answer", Access: "OLDKEY", Status: 400, Body: xmlError("ExpiredToken", "")})
	text := bytes.Repeat([]byte("x"), 1000)
	u, err := s.Upload(t.Context(), "u", 1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Part(t.Context(), 0, text); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Complete(t.Context(), sha256.Sum256(text)); err != nil {
		t.Fatal(err)
	}
	if list := told.take(); len(list) != 1 || !strings.Contains(list[0].Err.Error(), "ExpiredToken") {
		t.Errorf("told %+v", list)
	}
}

// TestExpiredCredentialsAreNamed: where asking anew brings no others, the error says which are to be renewed.
func TestExpiredCredentialsAreNamed(t *testing.T) {
	srv := storetest.Start(t)
	srv.Spoil(t, storetest.Fault{Kind: "answer", Status: 400, Body: xmlError("ExpiredToken", "")})
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	dir := t.TempDir()
	files := map[string]string{}
	for _, name := range []string{"theirs", "mine"} {
		files[name] = filepath.Join(dir, name)
		if err := os.WriteFile(files[name], []byte("[default]\naws_access_key_id = a\naws_secret_access_key = b\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ key, shared, file, want string }{
		{"a", files["theirs"], "", "renew AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"},
		{"", files["theirs"], "", "renew " + files["theirs"] + ", which is read again"},
		{"a", files["theirs"], files["mine"], "renew " + files["mine"] + ", which is read again"},
	} {
		t.Setenv("AWS_ACCESS_KEY_ID", tc.key)
		t.Setenv("AWS_SECRET_ACCESS_KEY", tc.key)
		t.Setenv("AWS_SHARED_CREDENTIALS_FILE", tc.shared)
		s := client(t, srv, "lm", func(s *Settings) {
			s.AccessKey, s.SecretKey, s.Credentials, s.Patience = "", "", tc.file, 50*time.Millisecond
		})
		_, err := s.PutNew(t.Context(), "k", []byte("x"))
		if !errors.Is(err, store.ErrRefused) || strings.Count(err.Error(), tc.want) != 1 || !strings.Contains(err.Error(), "ExpiredToken: as the test wants it: renew") {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

// TestNoCredentials: nobody goes on as nobody.
func TestNoCredentials(t *testing.T) {
	srv := storetest.Start(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", t.TempDir()+"/none")
	t.Setenv("AWS_CONFIG_FILE", t.TempDir()+"/none")
	s := client(t, srv, "lm", func(s *Settings) { s.AccessKey, s.SecretKey = "", "" })
	before := len(srv.Requests(t))
	_, err := s.PutNew(t.Context(), "k", []byte("x"))
	if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Errorf("without credentials: %v", err)
	}
	if n := len(srv.Requests(t)) - before; n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// TestStalls: a part of which nothing moves is given up and sent again, and is told of before.
func TestStalls(t *testing.T) {
	srv := storetest.Start(t)
	told := &notices{}
	s := client(t, srv, "lm", func(s *Settings) { s.Notice, s.Stall = told.note, 500*time.Millisecond })
	text := bytes.Repeat([]byte("0123456789abcdef"), leastPart/16)
	u, err := s.Upload(t.Context(), "u", int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	srv.Spoil(t, storetest.Fault{Kind: "stall-request", Query: "partNumber=1", Times: 1, Bytes: 100_000})
	if err := u.Part(t.Context(), 0, text); err != nil {
		t.Fatal(err)
	}
	list := told.take()
	if !slices.ContainsFunc(list, func(n remote.Notice) bool {
		return n.Attempt == 0 && errors.Is(n.Err, remote.ErrStalled) && n.Key == "u"
	}) {
		t.Errorf("not told before it was given up: %+v", list)
	}
	if !slices.ContainsFunc(list, func(n remote.Notice) bool {
		return n.Attempt == 1 && errors.Is(n.Err, remote.ErrStalled) && errors.Is(n.Err, store.ErrDoubtful)
	}) {
		t.Errorf("not told when it was given up: %+v", list)
	}
	if _, err := u.Complete(t.Context(), sha256.Sum256(text)); err != nil {
		t.Fatal(err)
	}
	srv.Reads(t, s, "lm", "u", text)
	var ranges []string
	for _, r := range srv.Requests(t) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.Path, "lm/u") {
			ranges = append(ranges, r.Header.Get("Range"))
		}
	}
	want := fmt.Sprintf("bytes=0-%d", len(text)-1)
	if onwards := func(r string) bool { return r != want && strings.HasSuffix(r, want[len("bytes=0"):]) }; ranges[0] != want || !slices.ContainsFunc(ranges, onwards) {
		t.Errorf("%q: none goes on where the one before broke off", ranges) // on a machine under load the first may be given up before its first byte
	}
	srv.Spoil(t, storetest.Fault{Kind: "stall"})
	s = client(t, srv, "lm", func(s *Settings) { s.Stall, s.Patience = 100*time.Millisecond, 200*time.Millisecond })
	if _, err := s.PutNew(t.Context(), "k", []byte("x")); !errors.Is(err, store.ErrDoubtful) || !errors.Is(err, remote.ErrStalled) {
		t.Errorf("a server that never answers: %v", err)
	}
}

// TestDamage: bytes that change on their way are found out by the server, and by the reader.
func TestDamage(t *testing.T) {
	srv := storetest.Start(t)
	for _, checksum := range []string{"sha256", "md5", "none"} {
		s := client(t, srv, "lm-"+checksum, func(s *Settings) { s.Checksum = checksum })
		text := bytes.Repeat([]byte("0123456789abcdef"), 1000)
		for _, query := range []string{"-", "partNumber="} {
			srv.Spoil(t, storetest.Fault{Kind: "flip-request", Method: http.MethodPut, Query: query, Times: 1, Bytes: 777})
		}
		if _, err := s.PutNew(t.Context(), "k", text); err != nil {
			t.Fatalf("%s: %v", checksum, err)
		}
		u, err := s.Upload(t.Context(), "u", int64(len(text)))
		if err != nil {
			t.Fatal(err)
		}
		if err := u.Part(t.Context(), 0, text); err != nil {
			t.Fatalf("%s: %v", checksum, err)
		}
		if _, err := u.Complete(t.Context(), sha256.Sum256(text)); err != nil {
			t.Fatalf("%s: %v", checksum, err)
		}
		for _, key := range []string{"k", "u"} {
			if b, _, err := s.Get(t.Context(), key, 1<<20); err != nil || !bytes.Equal(b, text) {
				t.Errorf("%s: %s: %v, %d bytes", checksum, key, err, len(b))
			}
		}
		damaged := 0
		for _, r := range srv.Requests(t) {
			if r.Fault == "flip-request" && r.Status == http.StatusBadRequest {
				damaged++
			}
		}
		if want := 2 * (1 + slices.Index([]string{"sha256", "md5", "none"}, checksum)); damaged != want {
			t.Errorf("%s: %d damaged requests were refused by now, want %d", checksum, damaged, want)
		}
	}
}

// TestOneRequestForOneAttempt: the library repeats nothing, sends no trailers, and signs the whole body.
func TestOneRequestForOneAttempt(t *testing.T) {
	srv := storetest.Start(t)
	told := &notices{}
	s := client(t, srv, "lm", func(s *Settings) { s.Patience, s.Notice = 200*time.Millisecond, told.note })
	srv.Spoil(t, storetest.Fault{Kind: "answer", Method: http.MethodPut, Status: 503, Body: xmlError("SlowDown", "")})
	if _, err := s.PutNew(t.Context(), "k", []byte("x")); !errors.Is(err, store.ErrSlowDown) {
		t.Error(err)
	}
	attempts := 1 + len(told.take())
	srv.Clear(t)
	if _, err := s.PutNew(t.Context(), "k", []byte("x")); err != nil {
		t.Error(err)
	}
	u, err := s.Upload(t.Context(), "u", 4)
	if err == nil {
		err = u.Part(t.Context(), 0, []byte("text"))
	}
	if err == nil {
		_, err = u.Complete(t.Context(), sha256.Sum256([]byte("text")))
	}
	if err != nil {
		t.Error(err)
	}
	puts := 0
	for _, r := range srv.Requests(t) {
		if r.Method != http.MethodPut {
			continue
		}
		if strings.HasSuffix(r.Path, "/k") {
			puts++
		}
		if r.Header.Get("X-Amz-Trailer") != "" || r.Header.Get("Content-Encoding") != "" || r.Header.Get("X-Amz-Decoded-Content-Length") != "" {
			t.Errorf("trailers: %v", r.Header)
		}
		if len(r.Header.Get("X-Amz-Content-Sha256")) != 64 || r.Header.Get(shaHeader) == "" {
			t.Errorf("digests: %v", r.Header)
		}
	}
	if puts != attempts+1 {
		t.Errorf("%d requests of %d attempts", puts, attempts+1)
	}
}

// TestThirdContent: a change whose answer is lost, and after which somebody else's content is there, is doubtful.
func TestThirdContent(t *testing.T) {
	srv := storetest.Start(t)
	s, other := client(t, srv, "lm"), client(t, srv, "lm")
	v, err := s.PutNew(t.Context(), "k", []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	told := &notices{}
	told.on = func(remote.Notice) { // ours has been carried out by now
		_, now, err := other.Get(t.Context(), "k", 10)
		if err == nil {
			_, err = other.PutUnchanged(t.Context(), "k", []byte("three"), now)
		}
		if err != nil {
			t.Error(err)
		}
	}
	s = client(t, srv, "lm", func(s *Settings) { s.Notice = told.note })
	srv.Spoil(t, storetest.Fault{Kind: "lose-answer", Method: http.MethodPut, Times: 1}, storetest.Fault{Kind: "answer", Method: http.MethodGet, Times: 1, Status: 500})
	if _, err := s.PutUnchanged(t.Context(), "k", []byte("two"), v); !errors.Is(err, store.ErrDoubtful) {
		t.Errorf("%v, want %v", err, store.ErrDoubtful)
	}
}

// TestWhoWatchesHears: bytes count as moved once the connection has taken them, and a request that fails again and again, or stands still, is told
// before the call fails.
func TestWhoWatchesHears(t *testing.T) {
	const size = leastPart
	b := bytes.Repeat([]byte("x"), size)
	for what, tc := range map[string]struct {
		fault     storetest.Fault
		least     int64
		most      int64
		trouble   string
		otherwise bool // the call fails
	}{
		"fine":         {least: size, most: size},
		"two failures": {fault: storetest.Fault{Kind: "answer", Status: 500, Times: 2}, least: size, most: 3 * size},
		"many":         {fault: storetest.Fault{Kind: "answer", Status: 503, Body: xmlError("SlowDown", ""), Times: 4}, least: size, most: 5 * size, trouble: "part 0 of d/k in s3://plain/watched: HTTP 503 SlowDown"},
		"a stall":      {fault: storetest.Fault{Kind: "stall-request", Bytes: 64 << 10}, least: 64 << 10, most: 10 * size, trouble: "part 0 of d/k: nothing moved for ", otherwise: true},
	} {
		srv := storetest.Start(t)
		s := client(t, srv, "watched", func(s *Settings) {
			if tc.otherwise {
				s.Stall, s.Patience = 300*time.Millisecond, time.Millisecond
			}
		})
		var mu sync.Mutex
		var moved int64
		var troubles []string
		ctx := store.Watching(t.Context(), store.Watch{Moved: func(n int) {
			mu.Lock()
			defer mu.Unlock()
			moved += int64(n)
		}, Troubled: func(what string) {
			mu.Lock()
			defer mu.Unlock()
			troubles = append(troubles, what)
		}})
		u, err := s.Upload(t.Context(), "d/k", size)
		if err != nil {
			t.Fatal(err)
		}
		if tc.fault.Kind != "" {
			srv.Spoil(t, tc.fault)
		}
		err = u.Part(ctx, 0, b)
		mu.Lock()
		if (err != nil) != tc.otherwise || moved < tc.least || moved > tc.most {
			t.Errorf("%s: %v, and %d bytes moved of %d", what, err, moved, size)
		}
		if (len(troubles) > 0) != (tc.trouble != "") || len(troubles) > 0 && !strings.HasPrefix(troubles[0], tc.trouble) {
			t.Errorf("%s: it is told %q, want %q", what, troubles, tc.trouble)
		}
		mu.Unlock()
	}
}
