package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
)

// Request is one request of a store that needs no library.
type Request struct {
	Method, URL string
	Header      map[string]string
	Body        [][]byte // one after the other
}

// Answer is an answer of another status than success.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte // the first of it
}

func (a *Answer) Error() string { return fmt.Sprintf("HTTP %d", a.Status) }

const maxError = 64 << 10 // bytes of an answer that is an error

// HTTP sends the requests of a client. It follows no redirect: a store has none, and a portal's leads to its page.
type HTTP struct {
	client *http.Client
	sign   func(r *http.Request) error
}

// HTTP makes a sender of requests. sign adds what proves who asks.
func (c *Client) HTTP(sign func(r *http.Request) error) *HTTP {
	last := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &HTTP{client: &http.Client{Transport: c.Transport(nil), CheckRedirect: last}, sign: sign}
}

// Open sends a request, and returns its answer where that is a success: the caller closes its body.
func (h *HTTP) Open(ctx context.Context, q Request) (*http.Response, error) {
	var body io.Reader
	size := 0
	if q.Body != nil {
		readers := make([]io.Reader, len(q.Body))
		for i, b := range q.Body {
			readers[i] = bytes.NewReader(b)
			size += len(b)
		}
		body = io.MultiReader(readers...)
	}
	if size == 0 {
		body = nil // one of an unknown length would be sent in chunks
	}
	r, err := http.NewRequestWithContext(ctx, q.Method, q.URL, body)
	if err != nil {
		return nil, err
	}
	r.ContentLength = int64(size)
	for k, v := range q.Header {
		r.Header.Set(k, v)
	}
	r.Header.Set("User-Agent", "replicad")
	if err := h.sign(r); err != nil {
		return nil, err
	}
	resp, err := h.client.Do(r)
	var about *url.Error
	if errors.As(err, &about) {
		err = about.Err // it has the address, in which a signature may be
	}
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	if err != nil && len(b) == 0 {
		return nil, err
	}
	return nil, &Answer{Status: resp.StatusCode, Header: resp.Header, Body: b}
}

// Do sends a request, and reads its answer whole.
func (h *HTTP) Do(ctx context.Context, q Request) (http.Header, []byte, error) {
	resp, err := h.Open(ctx, q)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(Bounded(resp.Body, MaxAnswer))
	if err != nil {
		return nil, nil, fmt.Errorf("the answer ends early: %w", err)
	}
	return resp.Header, slices.Clip(b), nil
}

// NotTheStores is an answer of success that no such store gives: a portal's, or a proxy's.
func NotTheStores(lacks string) error {
	return &Failure{Class: Doubtful, Text: "an answer of success that has no " + lacks + ": is it a store that answers?", Err: errNotTheStores}
}

var errNotTheStores = fmt.Errorf("not a store's answer")
