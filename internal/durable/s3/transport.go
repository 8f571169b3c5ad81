package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// errStalled: a request, or its answer, did not move for too long.
var errStalled = errors.New("nothing moved")

const (
	dialTime = 10 * time.Second
	idleTime = 60 * time.Second // of a connection that nobody uses; servers close them after minutes
	maxIdle  = 64
	// stillRate is how fast a server that says nothing may be putting the parts of an upload together.
	stillRate = 32 << 20
)

func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTime, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   dialTime,
		MaxIdleConns:          maxIdle,
		MaxIdleConnsPerHost:   maxIdle,
		IdleConnTimeout:       idleTime,
		ExpectContinueTimeout: time.Second,
		WriteBufferSize:       128 << 10,
		ReadBufferSize:        128 << 10,
		DisableCompression:    true, // it would change the lengths
	}
}

// trace follows one call through its requests. It travels in their context.
type trace struct {
	op, key string
	stall   time.Duration // of this call's requests; 0: the transport's
	skew    time.Duration // the server's clock less ours, by its last answer
	date    bool          // skew is known
}

type traceKey struct{}

func traced(ctx context.Context, t *trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// watched gives up requests that do not move, and looks at answers before the library does.
type watched struct {
	next    http.RoundTripper
	stall   time.Duration
	notice  func(Notice)
	closing context.Context // of the store
}

// RoundTrip sends one request.
func (w *watched) RoundTrip(r *http.Request) (*http.Response, error) {
	tr, _ := r.Context().Value(traceKey{}).(*trace)
	if tr == nil {
		tr = &trace{op: r.Method, key: r.URL.Path}
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	m := w.watch(tr, cancel)
	r = r.WithContext(ctx)
	if r.Body != nil {
		r.Body = &moving{r.Body, m}
	}
	resp, err := w.next.RoundTrip(r)
	if err != nil {
		m.stop()
		if cause := context.Cause(ctx); errors.Is(cause, errStalled) || errors.Is(cause, errClosed) {
			err = cause
		}
		cancel(nil)
		return nil, err
	}
	m.move()
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		tr.skew, tr.date = time.Until(at), true
	}
	resp.Body = &answer{body: resp.Body, moves: m, ctx: ctx, cancel: cancel}
	if r.Method == http.MethodPut && resp.StatusCode == http.StatusOK {
		return inspected(resp)
	}
	return resp, nil
}

// maxAnswer bounds the answer to a put, of which nothing but its headers is wanted.
const maxAnswer = 64 << 10

// inspected reads the answer to a put that says 200: some servers, and what stands before them, put an error into it. Such an answer becomes
// one that the library takes for an error.
func inspected(resp *http.Response) (*http.Response, error) {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if cerr := resp.Body.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(b))
	if reason := hiddenError(resp.Header, b); reason != "" {
		resp.StatusCode, resp.Status = http.StatusInternalServerError, reason
	}
	return resp, nil
}

// hiddenError tells what is wrong with a successful answer to a put; empty: nothing is.
func hiddenError(h http.Header, body []byte) string {
	text := strings.ToLower(string(bytes.TrimSpace(body)))
	switch {
	case strings.Contains(text, "<error>") || strings.Contains(text, "<error "):
		return "500 an error in an answer of 200"
	case strings.HasPrefix(text, "<!doctype") || strings.HasPrefix(text, "<html"):
		return "500 a page in HTML in an answer of 200"
	case h.Get("ETag") == "":
		return "500 an answer of 200 without an ETag"
	}
	return ""
}

// movement ends a request of which nothing has moved for too long.
type movement struct {
	mu    sync.Mutex // guards the rest
	timer *time.Timer
	early *time.Timer // of the notice
	stall time.Duration
	first time.Duration // until the notice
	apart func() bool   // from the end of the store
	ended bool
}

func (w *watched) watch(tr *trace, cancel context.CancelCauseFunc) *movement {
	m := &movement{stall: max(w.stall, tr.stall), first: w.stall / 3}
	still := func(d time.Duration) error { return fmt.Errorf("%w for %v", errStalled, d) }
	m.timer = time.AfterFunc(m.stall, func() { cancel(still(m.stall)) })
	m.early = time.AfterFunc(m.first, func() { w.notice(Notice{Op: tr.op, Key: tr.key, Err: still(m.first)}) })
	m.apart = context.AfterFunc(w.closing, func() { cancel(errClosed) })
	return m
}

func (m *movement) move() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		m.timer.Reset(m.stall)
		m.early.Reset(m.first)
	}
}

func (m *movement) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	m.timer.Stop()
	m.early.Stop()
	m.apart()
}

// moving is a request's body: it moves when the connection takes of it.
type moving struct {
	io.ReadCloser
	moves *movement
}

func (b *moving) Read(p []byte) (int, error) {
	b.moves.move()
	return b.ReadCloser.Read(p)
}

// answer is an answer's body.
type answer struct {
	body   io.ReadCloser
	moves  *movement
	ctx    context.Context // of the one request that it answers
	cancel context.CancelCauseFunc
}

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	if n > 0 {
		a.moves.move()
	}
	if cause := context.Cause(a.ctx); err != nil && (errors.Is(cause, errStalled) || errors.Is(cause, errClosed)) {
		err = cause
	}
	return n, err
}

func (a *answer) Close() error {
	a.moves.stop()
	err := a.body.Close()
	a.cancel(nil)
	return err
}
