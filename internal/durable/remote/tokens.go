package remote

import (
	"context"
	"sync"
	"time"
)

const (
	// tokenTime bounds the question for a token, which is answered soon or not at all.
	tokenTime = 10 * time.Second
	// tokenEarly is how long before its end a token is no longer used: a part may be on its way for that long before the server looks.
	tokenEarly = 2 * time.Minute
)

// Token proves who asks, for a while.
type Token struct {
	Text    Secret
	Expires time.Time // zero: it does not
}

// Tokens asks for a token where there is none that is still good. Several requests wait for one question.
type Tokens struct {
	Fetch func(ctx context.Context) (Token, error)

	once sync.Once
	free chan struct{} // has one element where nobody asks; it guards last
	last Token
}

type fetched struct {
	token Token
	err   error
}

// Get is a token. It ends soon after ctx does, also where nobody answers the question.
func (t *Tokens) Get(ctx context.Context) (Secret, error) {
	if err := t.take(ctx); err != nil {
		return "", err
	}
	if t.last.Text != "" && (t.last.Expires.IsZero() || time.Until(t.last.Expires) > tokenEarly) {
		defer t.give()
		return t.last.Text, nil
	}
	done := make(chan fetched, 1)
	go func() {
		defer t.give()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tokenTime)
		defer cancel()
		token, err := t.Fetch(ctx)
		if err == nil {
			t.last = token
		}
		done <- fetched{token, err}
	}()
	select {
	case f := <-done:
		return f.token.Text, f.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// Expire has the next request ask anew. Where somebody asks already, what comes is new.
func (t *Tokens) Expire() {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if t.take(gone) == nil {
		t.last = Token{}
		t.give()
	}
}

func (t *Tokens) take(ctx context.Context) error {
	t.once.Do(func() { t.free = make(chan struct{}, 1); t.free <- struct{}{} })
	select {
	case <-t.free:
		return nil
	default:
	}
	select {
	case <-t.free:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *Tokens) give() { t.free <- struct{}{} }
