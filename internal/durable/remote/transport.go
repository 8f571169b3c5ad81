package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
)

// ErrStalled: a request, or its answer, did not move for too long.
var ErrStalled = errors.New("nothing moved")

const (
	dialTime = 10 * time.Second
	idleTime = 60 * time.Second // of a connection that nobody uses; servers close them after minutes
	maxIdle  = 64
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

// Trace follows one call through its requests. It travels in their context.
type Trace struct {
	Op, Key string
	Stall   time.Duration // of this call's requests; 0: the transport's

	date atomic.Pointer[time.Duration] // the server's clock less ours, by its last answer: a call may have several requests on their way
}

// Skew is the server's clock less ours; 0: it is not known.
func (t *Trace) Skew() time.Duration {
	if d := t.date.Load(); d != nil {
		return *d
	}
	return 0
}

type traceKey struct{}

func traced(ctx context.Context, t *Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// Transport sends requests, and gives up those that do not move. inspect looks at each answer first, and may return another in its place; nil: it does not.
func (c *Client) Transport(inspect func(*http.Response) (*http.Response, error)) http.RoundTripper {
	return &watched{next: c.transport, inspect: inspect, stall: c.Stall, notice: c.Notice, closing: c.closing}
}

// watched gives up requests that do not move, and looks at answers before a library does.
type watched struct {
	next    http.RoundTripper
	inspect func(*http.Response) (*http.Response, error)
	stall   time.Duration
	notice  func(Notice)
	closing context.Context // of the store
}

// RoundTrip sends one request.
func (w *watched) RoundTrip(r *http.Request) (*http.Response, error) {
	tr, _ := r.Context().Value(traceKey{}).(*Trace)
	if tr == nil {
		tr = &Trace{Op: r.Method, Key: r.URL.Path}
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	m := w.watch(ctx, tr, cancel)
	r = r.WithContext(ctx)
	m.counts = r.Method == http.MethodGet
	if r.Body != nil {
		m.body = &moving{body: r.Body, moves: m, ctx: ctx}
		r.Body = m.body
	}
	resp, err := w.next.RoundTrip(r)
	if err != nil {
		m.stop()
		if cause := context.Cause(ctx); errors.Is(cause, ErrStalled) || errors.Is(cause, errClosed) {
			err = cause
		}
		cancel(nil)
		return nil, err
	}
	m.move()
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		skew := time.Until(at)
		tr.date.Store(&skew)
	}
	resp.Body = &answer{body: resp.Body, moves: m, ctx: ctx, cancel: cancel}
	if w.inspect != nil {
		return w.inspect(resp)
	}
	return resp, nil
}

// Of an answer that is asked for leastMoved bytes are to come within each stall, and all of one that is parsed within so many of them: a byte now and then
// is a server that is dead. A server that puts an upload together may send a blank now and then.
const (
	leastMoved   = 1 << 10
	parsedWithin = 4
)

// still is a request that did not move, or hardly.
type still struct {
	d     time.Duration
	bytes int  // that came
	whole bool // they are all that came of an answer that is to be parsed
}

func (s still) Error() string {
	switch {
	case s.whole:
		return fmt.Sprintf("its answer is not whole after %v: %d bytes came", s.d, s.bytes)
	case s.bytes > 0:
		return fmt.Sprintf("only %d bytes came in %v", s.bytes, s.d)
	}
	return fmt.Sprintf("%v for %v", ErrStalled, s.d)
}

func (s still) Is(target error) bool { return target == ErrStalled }

// movement ends a request of which nothing has moved for too long.
type movement struct {
	counts bool // the bytes of the answer

	mu     sync.Mutex // guards the rest
	timer  *time.Timer
	early  *time.Timer // of the notice
	stall  time.Duration
	first  time.Duration // until the notice
	apart  func() bool   // from the end of the store
	body   *moving       // of the request; nil: it has none
	since  int           // bytes of the answer, since the timers began
	came   int           // all of them
	parsed time.Time     // since when an answer is read that is parsed; zero: it is none
	ended  bool
}

func (w *watched) watch(ctx context.Context, tr *Trace, cancel context.CancelCauseFunc) *movement {
	m := &movement{stall: max(w.stall, tr.Stall), first: w.stall / 3}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.timer = time.AfterFunc(m.stall, func() { cancel(m.still(m.stall)) })
	m.early = time.AfterFunc(m.first, func() {
		until, why := m.slow()
		w.notice(Notice{Op: tr.Op, Key: tr.Key, Err: why})
		store.Troubled(ctx, fmt.Sprintf("%s %s: %v: %s the request is given up and made again", tr.Op, tr.Key, why, until))
	})
	m.apart = context.AfterFunc(w.closing, func() { cancel(errClosed) })
	return m
}

func (m *movement) move() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reset()
}

// took is move, of so many bytes of an answer.
func (m *movement) took(bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.came += bytes
	if m.since += bytes; m.since >= leastMoved || !m.counts {
		m.reset()
	}
}

func (m *movement) reset() {
	if m.ended {
		return
	}
	m.since = 0
	if m.parsed.IsZero() {
		m.timer.Reset(m.stall)
		m.early.Reset(m.first)
		return
	}
	m.timer.Reset(min(m.stall, time.Until(m.parsed.Add(parsedWithin*m.stall))))
}

// parse says that the answer is one that is parsed.
func (m *movement) parse() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts && m.parsed.IsZero() {
		m.parsed = time.Now()
	}
}

// still is why a request is given up after so long.
func (m *movement) still(d time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if whole := time.Since(m.parsed); !m.parsed.IsZero() && whole >= parsedWithin*m.stall {
		return still{whole.Round(m.first / 10), m.came, true}
	}
	return still{d, m.since, false}
}

// slow is what is told of a request that may be given up, and when it is. Of an answer that is parsed it is told again and again.
func (m *movement) slow() (until string, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.parsed.IsZero() {
		return fmt.Sprintf("after %v", m.stall), still{m.first, m.since, false}
	}
	if !m.ended {
		m.early.Reset(m.first)
	}
	return fmt.Sprintf("after %v at most", parsedWithin*m.stall), still{time.Since(m.parsed).Round(m.first / 10), m.came, true}
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
		a.moves.took(n)
	}
	if cause := context.Cause(a.ctx); err != nil && (errors.Is(cause, ErrStalled) || errors.Is(cause, errClosed)) {
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
