package remote

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
)

// Bounds of an answer that is parsed. A page of 5,000 objects is about 6 MB and 200,000 marks.
const (
	MaxAnswer = 32 << 20 // bytes
	maxMarks  = 1 << 19  // beginnings of elements, attributes, objects, lists and values
	maxEmpty  = 100      // pages of a listing in succession that name nothing
	maxPages  = 1 << 14  // pages of a listing: 16 million names at Amazon
)

// farEvery is how much time lies between two notices of how far a listing is.
const farEvery = 10 * time.Second

// Bounded reads an answer of at most so many bytes, and of as few elements as stores have in one: a parser makes more of each than it takes here. It is
// whole within a time, too.
func Bounded(body io.ReadCloser, most int64) io.ReadCloser {
	if a, ok := body.(*answer); ok {
		a.moves.parse()
	}
	return &bounded{body: body, most: most}
}

type bounded struct {
	body        io.ReadCloser
	most        int64
	read, marks int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	b.read += int64(n)
	for _, mark := range []byte("<={[,") {
		b.marks += int64(bytes.Count(p[:n], []byte{mark}))
	}
	switch {
	case b.read > b.most:
		return 0, tooMuch("%d MiB", b.most>>20)
	case b.marks > maxMarks:
		return 0, tooMuch("%d elements", maxMarks)
	}
	return n, err
}

func (b *bounded) Close() error { return b.body.Close() }

func tooMuch(format string, args ...any) error {
	return &Failure{Class: Refused, Text: "an answer of more than " + fmt.Sprintf(format, args...) + ", which no store gives: is it a store that answers?", Err: store.ErrRefused}
}

// Pages watches a listing that is asked for by pages: each page is to lead on.
type Pages struct {
	last  string
	empty int
	pages int
	names int

	call  *Call // that is told of; nil: nobody is
	began time.Time
	told  time.Time
}

// Pages watches the pages of a call, and tells how far it is.
func (c *Call) Pages() Pages { return Pages{call: c, began: time.Now(), told: time.Now()} }

// Anew has a listing that broke off begin with a first page again. What it has listed counts.
func (p *Pages) Anew() { p.last, p.empty = "", 0 }

// Next is called before the page of a token is taken: empty where it is the first. A failure says that the listing does not move on.
func (p *Pages) Next(token string) *Failure {
	if token != "" && token == p.last {
		return unordered("the page after %q is itself: such a store cannot be gone through", token)
	}
	if p.empty >= maxEmpty {
		return unordered("%d pages in succession name nothing and say that there are more: such a store cannot be gone through", p.empty)
	}
	if p.pages >= maxPages {
		return unordered("it lists %d names in %d pages, and says that there are more: such a store cannot be gone through", p.names, p.pages)
	}
	if now := time.Now(); p.call != nil && now.Sub(p.told) >= farEvery {
		p.told = now
		tr := p.call.Trace
		p.call.c.Notice(Notice{Op: tr.Op, Key: tr.Key, Far: fmt.Sprintf("%d names in %d pages so far, in %v", p.names, p.pages, now.Sub(p.began).Round(time.Second))})
	}
	p.last = token
	p.empty++
	p.pages++
	return nil
}

// Moved is called with each thing that a page names.
func (p *Pages) Moved() {
	p.empty = 0
	p.names++
}

func unordered(format string, args ...any) *Failure {
	return &Failure{Class: Refused, Text: OneLine(fmt.Sprintf(format, args...)), Err: store.ErrRefused}
}
