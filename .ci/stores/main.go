// Command stores is a server of objects for tests: S3, Google's or Azure's in memory, or a server elsewhere, behind a proxy that spoils what it
// is told to.
//
// It prints its address and ends when its standard input does, so that none outlives its test, unless it is to stay. PUT /-/faults takes a list of faults in
// JSON (type fault), DELETE /-/faults ends all of them and lets go of what they hold, GET /-/log tells the requests so far.
//
// One lock is around every write but a part. Without it the server in memory checks a condition and stores the object in two steps, and
// several exclusive puts of one key win.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"
	"github.com/rclone/gofakes3/signature"
)

func main() {
	access := flag.String("access", "access", "access key of the server in memory")
	secret := flag.String("secret", "secret", "its secret")
	buckets := flag.String("buckets", "plain,versioned", "its buckets; one whose name begins with versioned has versions")
	kind := flag.String("kind", "s3", "what the server in memory speaks: s3, gcs or azure, which have one bucket and no versions")
	to := flag.String("to", "", "a server elsewhere, instead of the one in memory")
	listen := flag.String("listen", "127.0.0.1:0", "where to listen")
	rate := flag.Int("rate", 0, "requests a second; what is beyond is told to slow down. 0: no bound")
	stay := flag.Bool("stay", false, "it stays when the standard input ends: who has started it kills it")
	flag.Parse()
	if !*stay {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
	}
	if err := run(*kind, *access, *secret, *buckets, *to, *listen, *rate); err != nil {
		log.Fatal(err)
	}
}

func run(kind, access, secret, buckets, to, listen string, rate int) error {
	var inner http.Handler
	var err error
	switch {
	case to != "":
		inner, err = elsewhere(to)
	case kind == "gcs":
		inner = http.HandlerFunc(newShelf(buckets).gcs)
	case kind == "azure":
		inner = http.HandlerFunc(newShelf(buckets).azure)
	default:
		inner, err = memory(access, secret, buckets)
	}
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", l.Addr())
	return http.Serve(l, &proxy{inner: inner, rate: float64(rate), left: float64(rate), released: make(chan struct{})})
}

func memory(access, secret, buckets string) (http.Handler, error) {
	backend := s3mem.New()
	for name := range strings.SplitSeq(buckets, ",") {
		if err := backend.CreateBucket(context.Background(), name); err != nil {
			return nil, err
		}
		if strings.HasPrefix(name, "versioned") {
			if err := backend.SetVersioningConfiguration(name, gofakes3.VersioningConfiguration{Status: gofakes3.VersioningEnabled}); err != nil {
				return nil, err
			}
		}
	}
	return signed(gofakes3.New(listed{backend}).Server(), access, secret), nil
}

// listed lists from any key on, and no key whose last version is a deletion, as S3 does. The backend alone passes over the first key after
// one that is not there, and lists what was deleted.
type listed struct{ *s3mem.Backend }

func (l listed) ListBucket(ctx context.Context, name string, prefix *gofakes3.Prefix, page gofakes3.ListBucketPage) (*gofakes3.ObjectList, error) {
	all, err := l.Backend.ListBucket(ctx, name, prefix, gofakes3.ListBucketPage{})
	if err != nil || prefix != nil && prefix.HasDelimiter {
		return all, err
	}
	part := gofakes3.NewObjectList()
	for _, c := range all.Contents {
		if c.Key <= page.Marker {
			continue
		}
		if strings.HasPrefix(name, "versioned") {
			if _, err := l.Backend.HeadObject(ctx, name, c.Key); err != nil {
				continue
			}
		}
		if n := len(part.Contents); page.MaxKeys > 0 && int64(n) == page.MaxKeys {
			part.IsTruncated, part.NextMarker = true, part.Contents[n-1].Key
			break
		}
		part.Add(c)
	}
	return part, nil
}

// signed does what gofakes3 leaves out: it refuses a body that is not the one that was signed, as S3 does, and takes a delimiter that is
// empty for none. The signature covers the query, so it is looked at before that is changed.
func signed(next http.Handler, access, secret string) http.Handler {
	lookup := func(key string) (string, bool) { return secret, key == access }
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if no := signature.V4SignVerifyWithLookup(r, lookup); no != signature.ErrNone {
			e := signature.GetAPIError(no)
			w.WriteHeader(e.HTTPStatusCode)
			_, _ = w.Write(signature.EncodeAPIErrorToResponse(e))
			return
		}
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if want := r.Header.Get("X-Amz-Content-Sha256"); len(want) == sha256.Size*2 && want != fmt.Sprintf("%x", sha256.Sum256(b)) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, "<Error><Code>XAmzContentSHA256Mismatch</Code><Message>The provided 'x-amz-content-sha256' header does not match what was computed.</Message></Error>")
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		if q := r.URL.Query(); q.Has("delimiter") && q.Get("delimiter") == "" {
			q.Del("delimiter")
			r.URL.RawQuery = q.Encode()
		}
		next.ServeHTTP(w, r)
	})
}

// elsewhere keeps the name of the host that the client has signed.
func elsewhere(to string) (http.Handler, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, err
	}
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = u.Scheme, u.Host, r.In.Host
	}}, nil
}

// fault is what happens to the next requests that match. An empty field matches all.
type fault struct {
	Method string `json:"method"`
	Key    string `json:"key"`    // the path ends so
	Query  string `json:"query"`  // the query contains it; "-" for requests without one
	Access string `json:"access"` // the signature is of this access key
	Times  int    `json:"times"`  // 0: until the faults are cleared

	Kind   string            `json:"kind"`
	Status int               `json:"status"` // of "answer"
	Body   string            `json:"body"`
	Header map[string]string `json:"header"`
	Bytes  int               `json:"bytes"` // of a body, before the fault
}

func (f *fault) matches(r *http.Request) bool {
	query := r.URL.RawQuery
	return (f.Method == "" || f.Method == r.Method) && strings.HasSuffix(r.URL.Path, f.Key) &&
		(f.Query == "" || f.Query == "-" && query == "" || f.Query != "-" && strings.Contains(query, f.Query)) &&
		strings.Contains(r.Header.Get("Authorization"), f.Access)
}

// entry is a request as the log has it.
type entry struct {
	Method string      `json:"method"`
	Path   string      `json:"path"`
	Query  string      `json:"query"`
	Header http.Header `json:"header"`
	Fault  string      `json:"fault"`
	Status int         `json:"status"` // 0: none was answered
}

type proxy struct {
	inner http.Handler
	write sync.Mutex // around every write but a part
	rate  float64    // requests a second; 0: no bound

	mu       sync.Mutex // guards the rest
	left     float64    // requests that may come at once
	at       time.Time  // as of then
	faults   []*fault
	log      []*entry
	released chan struct{} // closed when the faults are cleared
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/-/") {
		p.control(w, r)
		return
	}
	f, e, released := p.note(r)
	if f.Kind == "" && !p.takes() {
		f = fault{Kind: "answer", Status: http.StatusServiceUnavailable, Body: "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"}
	}
	seen := &watched{ResponseWriter: w, entry: e, mu: &p.mu}
	switch f.Kind {
	case "":
		p.forward(seen, r)
	case "answer":
		for k, v := range f.Header {
			w.Header().Set(k, v)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		seen.WriteHeader(f.Status)
		_, _ = io.WriteString(seen, f.Body)
	case "lose-request":
		_, _ = io.Copy(io.Discard, r.Body)
		reset(w)
	case "lose-answer":
		p.forward(&recorded{header: http.Header{}}, r)
		reset(w)
	case "stall-request": // reads so many bytes, and then no more
		_, _ = io.CopyN(io.Discard, r.Body, int64(f.Bytes))
		hold(r, released)
		reset(w)
	case "stall":
		hold(r, released)
		p.forward(seen, r)
	case "flip-request":
		b, _ := io.ReadAll(r.Body)
		if f.Bytes < len(b) {
			b[f.Bytes] ^= 1
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		p.forward(seen, r)
	case "stall-answer", "cut-answer", "flip-answer":
		p.spoilAnswer(&f, seen, w, r, released)
	default:
		http.Error(w, "no such fault: "+f.Kind, http.StatusTeapot)
	}
}

// takes tells whether one more request is within the rate.
func (p *proxy) takes() bool {
	if p.rate == 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if !p.at.IsZero() {
		p.left = min(p.rate, p.left+p.rate*now.Sub(p.at).Seconds())
	}
	p.at = now
	if p.left < 1 {
		return false
	}
	p.left--
	return true
}

func hold(r *http.Request, released <-chan struct{}) {
	select {
	case <-released:
	case <-r.Context().Done():
	}
}

func (p *proxy) spoilAnswer(f *fault, seen *watched, w http.ResponseWriter, r *http.Request, released <-chan struct{}) {
	rec := &recorded{header: http.Header{}, status: http.StatusOK}
	p.forward(rec, r)
	b := rec.body.Bytes()
	n := min(f.Bytes, len(b))
	for k, v := range rec.header {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	seen.WriteHeader(rec.status)
	if f.Kind == "flip-answer" {
		if n < len(b) {
			b[n] ^= 1
		}
		_, _ = seen.Write(b)
		return
	}
	_, _ = seen.Write(b[:n])
	_ = http.NewResponseController(w).Flush()
	if f.Kind == "stall-answer" {
		hold(r, released)
	}
	reset(w)
}

// note logs a request and finds what is to happen to it.
func (p *proxy) note(r *http.Request) (f fault, e *entry, released <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e = &entry{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Header: r.Header.Clone()}
	e.Header.Del("Authorization")
	p.log = append(p.log, e)
	for i, g := range p.faults {
		if !g.matches(r) {
			continue
		}
		f, e.Fault = *g, g.Kind
		if g.Times == 1 {
			p.faults = append(p.faults[:i:i], p.faults[i+1:]...)
		} else if g.Times > 1 {
			g.Times--
		}
		break
	}
	return f, e, p.released
}

// forward has the body before it takes the lock: a client that sends no more must not keep others out.
func (p *proxy) forward(w http.ResponseWriter, r *http.Request) {
	write := r.Method != http.MethodGet && r.Method != http.MethodHead
	if write && !strings.Contains(r.URL.RawQuery, "partNumber=") {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		p.write.Lock()
		defer p.write.Unlock()
	}
	p.inner.ServeHTTP(w, r)
}

func (p *proxy) control(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch r.Method + " " + r.URL.Path {
	case "PUT /-/faults":
		var more []*fault
		if err := json.NewDecoder(r.Body).Decode(&more); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		p.faults = append(p.faults, more...)
	case "DELETE /-/faults":
		p.faults = nil
		close(p.released)
		p.released = make(chan struct{})
	case "GET /-/log":
		_ = json.NewEncoder(w).Encode(p.log)
	default:
		http.NotFound(w, r)
	}
}

// reset ends the connection as a machine that is gone does, not as a server that closes.
func reset(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// watched notes the status that was answered.
type watched struct {
	http.ResponseWriter
	entry *entry
	mu    *sync.Mutex
}

func (w *watched) WriteHeader(status int) {
	w.mu.Lock()
	w.entry.Status = status
	w.mu.Unlock()
	w.ResponseWriter.WriteHeader(status)
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	if w.entry.Status == 0 {
		w.entry.Status = http.StatusOK
	}
	w.mu.Unlock()
	return w.ResponseWriter.Write(b)
}

func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// recorded keeps an answer.
type recorded struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorded) Header() http.Header         { return r.header }
func (r *recorded) WriteHeader(status int)      { r.status = status }
func (r *recorded) Write(b []byte) (int, error) { return r.body.Write(b) }
