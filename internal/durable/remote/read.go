package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/replicad/replicad/internal/durable/store"
)

// Read fills b from byte off on. some reads as much as arrives; an answer that breaks off is gone on with where it did.
func (c *Call) Read(off int64, b []byte, some func(ctx context.Context, off int64, b []byte) (int, error)) error {
	if off < 0 {
		return c.Fail(nil, store.ErrRefused, fmt.Errorf("from byte %d", off))
	}
	for {
		n := 0
		f := c.Once(func(ctx context.Context) (err error) {
			n, err = some(ctx, off, b)
			return err
		})
		if f == nil {
			return nil
		}
		if b, off = b[n:], off+int64(n); n > 0 {
			c.Moves()
		}
		if !c.Again(f) {
			return c.Fail(f)
		}
	}
}

// Range is the header that asks for so many bytes.
func Range(off int64, n int) string { return fmt.Sprintf("bytes=%d-%d", off, off+int64(n)-1) }

// Fill reads the answer to a range. A server that answers with other bytes than were asked for is found out by what it says of them.
func Fill(header http.Header, body io.Reader, off int64, b []byte) (int, error) {
	if got, want := header.Get("Content-Range"), fmt.Sprintf("bytes %d-%d/", off, off+int64(len(b))-1); !strings.HasPrefix(got, want) {
		text := fmt.Sprintf("bytes %d to %d are wanted, the answer has %q", off, off+int64(len(b)), OneLine(got))
		return 0, &Failure{Class: Refused, Text: text, Err: store.ErrRefused}
	}
	n, err := io.ReadFull(body, b)
	if err != nil {
		err = fmt.Errorf("the answer ends early: %w", err)
	}
	return n, err
}

// errTooLarge is the refusal of an object that is larger than its reader wants.
type errTooLarge struct{ size, most int64 }

func (e errTooLarge) Error() string {
	return fmt.Sprintf("it has %d bytes, want at most %d", e.size, e.most)
}

// Whole reads an answer of size bytes, unless that is more than most.
func Whole(body io.Reader, size, most int64) ([]byte, error) {
	if size < 0 || size > most {
		e := errTooLarge{size, most}
		return nil, &Failure{Class: Refused, Text: e.Error(), Err: e}
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(body, b); err != nil {
		return nil, fmt.Errorf("the answer ends early: %w", err)
	}
	return b, nil
}
