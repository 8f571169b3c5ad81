// Package pipe serves generations to another program over two streams: `replicad ckpt pipe` under the Python package, and under any
// program that begins from another run's generation (docs/c.md has the requests for that). It reads requests from one and answers on the other, so that one
// program alone speaks to stores.
//
// A request is a line of JSON, of MaxLine bytes at most; so is an answer. Where a line says how many, raw bytes follow it. A process serves one of these:
//
//	open, then any number of reads      the generation is kept by a lease until the requests end
//	begin                               a run for a generation that is to be written, and its number
//	put                                 what one rank has of it. Its bytes come twice: they are digested first, and written then
//	commit                              makes it exist
//
// Reads may be asked for ahead, MaxAhead at most without an answer; they are answered in order. A read is answered by lines that each say how many bytes
// follow, until it has all. An error is a line, in place of an answer or of the rest of one.
//
// The goroutine that calls Serve reads requests. What it starts to read chunks and to write answers ends before it returns. The package must not know
// any store: it is given what opens them.
package pipe

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
)

// Limits of what is asked for.
const (
	MaxLine  = 64 << 20 // bytes of a line: the index of a large generation, or the tensors of a rank
	MaxAhead = 64       // reads that are asked for ahead: so many lines fit into a kernel's pipe, and nobody waits for the other one
)

// Generation is what a request opened.
type Generation struct {
	catalog.Found
	Root  string // the store's URL
	Shard func(ctx context.Context, part replica.Part) (catalog.ShardReader, error)
	// Met is told of a read that failed, and says what is to be answered; nil: nobody is.
	Met func(error) error
}

// Stores opens what requests name.
type Stores struct {
	// Read finds a generation and keeps it while read runs, which is called once at most; at is as a command's argument has it behind "@", or empty for
	// the newest that is whole.
	Read func(ctx context.Context, job, at string, read func(Generation) error) error
	// Write opens the catalog that is written to, and says whose generations these are.
	Write func(ctx context.Context) (c *catalog.Catalog, owner uint32, done func(), err error)
}

// Kinds of errors, for who has to tell them apart.
const (
	kindDamage = "damage" // bytes are not those that were written, or are missing
	kindUsage  = "usage"  // the request is wrong
	kindNone   = "none"   // there is no such job or generation
)

func wrong(format string, args ...any) error { return usage.Wrong(fmt.Errorf(format, args...)) }

type failed struct {
	Error string `json:"error"`
	Kind  string `json:"kind,omitempty"`
}

func failure(err error) failed {
	f := failed{Error: err.Error()}
	switch {
	case usage.Is(err):
		f.Kind = kindUsage
	case errors.Is(err, catalog.ErrNone):
		f.Kind = kindNone
	case catalog.IsDamage(err):
		f.Kind = kindDamage
	}
	return f
}

// stream is the two directions.
type stream struct {
	in  *bufio.Reader
	out io.Writer
}

// line reads one request; io.EOF: there is none any more.
func (s *stream) line() ([]byte, error) {
	var all []byte
	for {
		b, err := s.in.ReadSlice('\n')
		if len(all)+len(b) > MaxLine {
			return nil, wrong("a request of more than %d bytes", MaxLine)
		}
		all = append(all, b...)
		switch {
		case err == nil:
			return all, nil
		case errors.Is(err, io.EOF) && len(all) > 0:
			return nil, wrong("the requests end in the middle of a line")
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

func (s *stream) say(v any) error {
	b, err := json.Marshal(v)
	if err == nil && len(b) >= MaxLine {
		err = fmt.Errorf("an answer of %d bytes, at most %d", len(b), MaxLine)
	}
	if err != nil {
		return err
	}
	_, err = s.out.Write(append(b, '\n'))
	return err
}

// Serve answers the requests of one process. What goes wrong with a request is answered; the error is of the streams themselves.
func Serve(ctx context.Context, in io.Reader, out io.Writer, stores Stores) error {
	s := &stream{bufio.NewReader(in), out}
	b, err := s.line()
	if errors.Is(err, io.EOF) {
		return nil
	}
	var r any
	if err == nil {
		r, err = parse(b)
	}
	if err == nil {
		switch r := r.(type) {
		case *openRequest:
			return s.reading(ctx, stores, r)
		case *beginRequest:
			err = s.writing(ctx, stores, func(w *writing) (any, error) { return w.begin(ctx, r) })
		case *putRequest:
			err = s.writing(ctx, stores, func(w *writing) (any, error) { return w.put(ctx, s, r) })
		case *commitRequest:
			err = s.writing(ctx, stores, func(w *writing) (any, error) { return w.commit(ctx, r) })
		default:
			err = wrong("%.40T comes first: open a generation before it is read", r)
		}
	}
	if err != nil {
		return s.say(failure(err))
	}
	return nil
}
