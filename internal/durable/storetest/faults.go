package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
)

// Answer is one that a cloud's server gives to a put.
type Answer struct {
	Name   string
	Fault  Fault
	Once   error // what comes of a put that is answered so once
	Always error // and of one that is always answered so, for longer than the store has patience
	Text   string
}

// Comes is the row of an answer.
func Comes(name string, f Fault, once, always error, text string) Answer {
	return Answer{name, f, once, always, text}
}

// Anybodys are answers that any cloud, or what stands before it, may give.
var Anybodys = []Answer{
	{"429", Fault{Status: http.StatusTooManyRequests}, nil, store.ErrSlowDown, "HTTP 429"},
	{
		"502 in HTML", Fault{Status: http.StatusBadGateway, Body: "<html>\n<h1>Bad Gateway\x1b[31m</h1></html>"},
		nil, store.ErrDoubtful, "HTTP 502",
	},
	{"504", Fault{Status: http.StatusGatewayTimeout}, nil, store.ErrDoubtful, "HTTP 504"},
	{
		"redirect of a portal", Fault{Status: http.StatusFound, Header: map[string]string{"Location": "http://127.0.0.1:1/login"}},
		store.ErrRefused, store.ErrRefused, "HTTP 302",
	},
}

// Opened is how Answers opens a store in a folder, with this patience; noticed is called at each notice.
type Opened func(t testing.TB, folder string, patience time.Duration, noticed func()) store.Store

// Answers judges what each answer comes to when it comes once, and when it always comes. method is that of a put. An
// error names the object in a line, and never the secret.
func (s *Server) Answers(t *testing.T, method, secret string, open Opened, rows []Answer) {
	t.Helper()
	for i, tc := range append(rows, Anybodys...) {
		t.Run(tc.Name, func(t *testing.T) {
			folder := fmt.Sprintf("answers-%d", i)
			var told atomic.Int32
			f := tc.Fault
			f.Kind, f.Method, f.Times = "answer", method, 1
			s.Spoil(t, f)
			_, err := open(t, folder, 10*time.Second, func() { told.Add(1) }).PutNew(t.Context(), "once", []byte("x"))
			if !errors.Is(err, tc.Once) || tc.Once == nil && err != nil {
				t.Errorf("once: %v, want %v", err, tc.Once)
			}
			if n := told.Load(); (n > 0) != (tc.Once == nil) {
				t.Errorf("%d notices of an answer that ends with %v", n, tc.Once)
			}
			f.Times = 0
			s.Spoil(t, f)
			_, err = open(t, folder, 50*time.Millisecond, func() {}).PutNew(t.Context(), "always", []byte("x"))
			s.Clear(t)
			if !errors.Is(err, tc.Always) || !strings.Contains(err.Error(), tc.Text) {
				t.Fatalf("always: %v, want %v and %q", err, tc.Always, tc.Text)
			}
			text, object := err.Error(), "put always in "+s.Scheme+"://"+s.Bucket+"/"+folder
			if !strings.Contains(text, object) || strings.ContainsAny(text, "\n\x1b") || secret != "" && strings.Contains(text, secret) {
				t.Errorf("%q names no object, is more than a line, or shows the secret", text)
			}
		})
	}
}

// Reads spoils reads of a large object, one fault after another: each read goes on where it broke off, or begins again,
// and gives the same bytes.
func (s *Server) Reads(t *testing.T, st store.Store, folder, key string, want []byte) {
	t.Helper()
	for _, f := range []Fault{
		{Kind: "stall-answer", Bytes: len(want) / 2}, {Kind: "cut-answer", Bytes: len(want) / 2},
		{Kind: "stall"}, {Kind: "cut-answer"}, {Kind: "lose-request"},
		{Kind: "answer", Status: http.StatusInternalServerError}, {Kind: "answer", Status: http.StatusOK, Body: "<html>"},
	} {
		f.Method, f.Key, f.Times = http.MethodGet, folder+"/"+key, 1
		s.Spoil(t, f)
		got := make([]byte, len(want))
		if err := st.ReadRange(t.Context(), key, 0, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s after %d bytes: %v", f.Kind, f.Bytes, err)
		}
	}
}
