package remote

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"unicode"

	"github.com/replicad/replicad/internal/durable/store"
)

// Class is what an answer means for what comes next.
type Class int

const (
	Fine      Class = iota
	Absent          // there is no such object
	NoUpload        // there is no such upload
	Exists          // the condition does not hold
	Contended       // another request for the key is on its way
	Slow            // fewer requests are asked for: it was not carried out
	Busy            // fewer requests are asked for, and nobody knows whether it was carried out
	Doubtful        // nobody knows whether it was carried out
	Damaged         // the bytes that arrived are not those that were sent
	Expired         // the credentials are no longer valid
	Refused         // it will be so the next time too
	Over            // the caller's context has ended
)

// Repeats tells whether an answer of this class may be another one the next time.
func (c Class) Repeats() bool {
	switch c {
	case Contended, Slow, Busy, Doubtful, Damaged, Expired:
		return true
	case Fine, Absent, NoUpload, Exists, Refused, Over:
	}
	return false
}

// doubts tells whether a request with such an answer may have been carried out.
func (c Class) doubts() bool { return c == Doubtful || c == Busy }

// Failure is what one request came to.
type Failure struct {
	Class  Class
	Code   string // of the server; empty: it has not answered
	Status int
	Text   string // a sentence
	Err    error
}

func (f *Failure) Error() string { return f.Text }

// Advise adds what somebody must do, once: a failure may come through several calls.
func (f *Failure) Advise(what string) {
	if !strings.HasSuffix(f.Text, what) {
		f.Text += ": " + what
	}
}

// words are the store's, by class.
var words = map[Class][]error{
	Absent: {store.ErrAbsent}, NoUpload: {store.ErrAbsent}, Exists: {store.ErrExists}, Contended: {store.ErrDoubtful}, Slow: {store.ErrSlowDown},
	Busy: {store.ErrSlowDown, store.ErrDoubtful}, Doubtful: {store.ErrDoubtful}, Damaged: {store.ErrCorrupt}, Expired: {store.ErrRefused}, Refused: {store.ErrRefused},
}

// Unwrap names the store's word for it, and what it was.
func (f *Failure) Unwrap() []error {
	return append(slices.Clone(words[f.Class]), f.Err)
}

// Judge says what an error means that is no answer of a server; nil of nil. answer judges one that is, or returns nil.
func Judge(ctx context.Context, err error, answer func(error) *Failure) *Failure {
	if err == nil {
		return nil
	}
	var known *Failure
	if errors.As(err, &known) {
		return known
	}
	if ctx.Err() != nil {
		cause := context.Cause(ctx)
		return &Failure{Class: Over, Text: cause.Error(), Err: errors.Join(ctx.Err(), cause)}
	}
	if f := answer(err); f != nil {
		return f
	}
	// It may have been sent: no answer was read. What is refused before anything is sent is a bug of the store's package.
	return &Failure{Class: Doubtful, Text: "no answer: " + OneLine(err.Error()), Err: err}
}

// ClassOf judges an answer by a status other than success. Unavailable is what the server means by 503.
func ClassOf(status int, unavailable Class) Class {
	switch {
	case status < 300: // an answer of success that is none
		return Doubtful
	case status == http.StatusTooManyRequests:
		return Slow
	case status == http.StatusServiceUnavailable:
		return unavailable
	case status == http.StatusRequestTimeout || status == http.StatusTooEarly || status == 499 || status >= 500 && status != http.StatusNotImplemented && status != http.StatusInsufficientStorage:
		return Doubtful
	case status == http.StatusPreconditionFailed:
		return Exists
	case status == http.StatusConflict:
		return Contended
	}
	return Refused
}

const maxText = 200

// OneLine makes foreign text fit for a log.
func OneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == '\ufffd' {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "..."
	}
	return s
}
