package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"
)

// blockBytes is how much of an object is read at once.
const blockBytes = 8 << 20

// filler gives the next bytes of something, in order.
type filler interface{ fill(b []byte) error }

// digest reads all of something and makes its SHA-256.
func digest(from filler, size int64) (string, error) {
	h, buf := sha256.New(), make([]byte, min(size, 1<<20))
	for left := size; left > 0; left -= int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), left)]
		if err := from.fill(buf); err != nil {
			return "", err
		}
		_, _ = h.Write(buf) // it returns no error
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// stream reads an object from its beginning, some blocks ahead.
type stream struct {
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

func (c *Catalog) stream(ctx context.Context, key string, size int64) *stream {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &stream{queue: make(chan chan piece, c.lanes-1), stop: cancel}
	s.wg.Go(func() {
		defer close(s.queue)
		for off := int64(0); off < size; off += c.block {
			got := make(chan piece, 1)
			select {
			case s.queue <- got:
			case <-ctx.Done():
				return
			}
			n := min(c.block, size-off)
			s.wg.Go(func() {
				var p piece
				p.err = c.again(ctx, func() error {
					p.b = make([]byte, n) // after an error the store may still write to the former one
					return c.st.ReadRange(ctx, key, off, p.b)
				})
				got <- p
			})
		}
	})
	return s
}

func (s *stream) fill(b []byte) error {
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

// close ends what is read ahead, and waits for it.
func (s *stream) close() {
	s.stop(nil)
	for range s.queue { // lets the producer go
	}
	s.wg.Wait()
}
