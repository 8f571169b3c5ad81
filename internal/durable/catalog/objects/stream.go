package objects

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
)

// blockBytes is how much of an object is read at once.
const blockBytes = 8 << 20

// digest reads all of something and makes its SHA-256.
func digest(from *Stream, size int64) (string, error) {
	h, buf := sha256.New(), make([]byte, min(size, 1<<20))
	for left := size; left > 0; left -= int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), left)]
		if err := from.Fill(buf); err != nil {
			return "", err
		}
		_, _ = h.Write(buf) // it returns no error
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Stream reads an object from its beginning, some blocks ahead.
type Stream struct {
	queue chan chan piece
	left  []byte
	err   error
	stop  context.CancelCauseFunc
	wg    sync.WaitGroup
}

type piece struct {
	b   []byte
	err error
}

// Stream begins to read an object of a size.
func (c *Reader) Stream(ctx context.Context, key string, size int64) *Stream {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &Stream{queue: make(chan chan piece, c.Lanes-1), stop: cancel}
	s.wg.Go(func() {
		defer close(s.queue)
		for off := int64(0); off < size; off += c.Block {
			got := make(chan piece, 1)
			select {
			case s.queue <- got:
			case <-ctx.Done():
				return
			}
			n := min(c.Block, size-off)
			s.wg.Go(func() {
				var p piece
				p.err = c.Again(ctx, func() error {
					p.b = make([]byte, n) // after an error the store may still write to the former one
					return c.Range(ctx, key, off, p.b)
				})
				got <- p
			})
		}
	})
	return s
}

// Fill reads the next bytes.
func (s *Stream) Fill(b []byte) error {
	for len(b) > 0 && s.err == nil {
		if len(s.left) == 0 {
			got, ok := <-s.queue
			if !ok {
				s.err = context.Canceled
				break
			}
			p := <-got
			s.left, s.err = p.b, p.err
			continue
		}
		n := copy(b, s.left)
		b, s.left = b[n:], s.left[n:]
	}
	return s.err
}

// Close ends what is read ahead, and waits for it.
func (s *Stream) Close() {
	s.stop(nil)
	for range s.queue { // lets the producer go
	}
	s.wg.Wait()
}

// Whole reports whether an object has the bytes that its file should have. The checksum that the store made when it got them shows it.
// Where there is none, or another, the object is read. deep: it is read in any case.
func (c *Reader) Whole(ctx context.Context, key string, f format.File, deep bool) error {
	info, err := c.Stat(ctx, key)
	if err != nil {
		return err
	}
	if info.Size != int64(f.Bytes) {
		return fmt.Errorf("%s: %w: %d bytes; want %d", key, store.ErrCorrupt, info.Size, f.Bytes)
	}
	if info.Checksum == f.SHA256 && !deep {
		return nil
	}
	s := c.Stream(ctx, key, int64(f.Bytes))
	defer s.Close()
	sum, err := digest(s, int64(f.Bytes))
	if err == nil && sum != f.SHA256 {
		err = fmt.Errorf("%s: %w: SHA-256 %s, want %s", key, store.ErrCorrupt, sum, f.SHA256)
	}
	return err
}
