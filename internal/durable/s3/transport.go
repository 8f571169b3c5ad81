package s3

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
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
	m := w.watch(ctx, tr, cancel)
	r = r.WithContext(ctx)
	if r.Body != nil {
		m.body = &moving{body: r.Body, moves: m, ctx: ctx}
		r.Body = m.body
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
	if r.Method == http.MethodPut && resp.StatusCode == http.StatusOK || r.Method != http.MethodHead && resp.StatusCode == http.StatusNotFound {
		return inspected(resp)
	}
	return resp, nil
}

// maxAnswer bounds the answer to a put, of which nothing but its headers is wanted, and that of a 404.
const maxAnswer = 64 << 10

// inspected reads an answer that the library would believe. A put that says 200 may have an error in it, by some servers and by what stands
// before them. A 404 without a code is a proxy's, and the library would take it for one of the key: the object would count as absent. Such
// answers become errors of the server.
func inspected(resp *http.Response) (*http.Response, error) {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if cerr := resp.Body.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(b))
	reason := ""
	if resp.StatusCode == http.StatusOK {
		reason = hiddenError(resp.Header, b)
	} else if !namesCode(b) {
		reason = "500 a 404 that is not the store's"
	}
	if reason != "" {
		resp.StatusCode, resp.Status = http.StatusInternalServerError, reason
	}
	return resp, nil
}

// namesCode tells whether an error's body is that of a store.
func namesCode(body []byte) bool {
	var e struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}
	return xml.Unmarshal(body, &e) == nil && e.Code != ""
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
	body  *moving       // of the request; nil: it has none
	ended bool
}

func (w *watched) watch(ctx context.Context, tr *trace, cancel context.CancelCauseFunc) *movement {
	m := &movement{stall: max(w.stall, tr.stall), first: w.stall / 3}
	still := func(d time.Duration) error { return fmt.Errorf("%w for %v", errStalled, d) }
	m.timer = time.AfterFunc(m.stall, func() { cancel(still(m.stall)) })
	m.early = time.AfterFunc(m.first, func() {
		w.notice(Notice{Op: tr.op, Key: tr.key, Err: still(m.first)})
		store.Troubled(ctx, fmt.Sprintf("%s %s: %v: after %v the request is given up and made again", tr.op, tr.key, still(m.first), m.stall))
	})
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
	m.body.finish()
}

// moving is a request's body: it moves when the connection takes of it. The connection may ask for more after the request has been answered,
// or given up, when the caller has its buffer back: then there is nothing left.
type moving struct {
	body  io.ReadCloser
	moves *movement
	ctx   context.Context // of the one request

	mu   sync.Mutex // held while the buffer is read; guards over
	over bool
}

var errOver = errors.New("the request is over")

func (b *moving) Read(p []byte) (int, error) {
	b.moves.move()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return 0, errOver
	}
	n, err := b.body.Read(p)
	store.Moved(b.ctx, n)
	return n, err
}

func (b *moving) Close() error { return b.body.Close() }

func (b *moving) finish() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
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
