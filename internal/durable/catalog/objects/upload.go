package objects

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
)

// ends is how many bytes of either end of an object are read back where neither the store's answer nor its checksum tells that it is ours.
const ends = 64 << 10

// abortPatience is how long an upload that failed may take to be aborted. What stays is swept.
const abortPatience = 10 * time.Second

// Upload puts a large object. fill gives its next bytes, in order; parts go up some at once, while the next is filled. An error of fill
// ends it, and nothing of the object is seen.
func (c *Writer) Upload(ctx context.Context, key string, size int64, fill func(b []byte) error) (sum [32]byte, err error) {
	var u store.Upload
	err = c.Again(ctx, func() (err error) {
		u, err = c.st.Upload(ctx, key, size)
		return err
	})
	if err != nil {
		return sum, err
	}
	first, last, sum, err := c.parts(ctx, u, size, fill)
	if err == nil {
		err = c.complete(ctx, u, key, size, sum, first, last)
	}
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortPatience)
		defer cancel()
		if aerr := u.Abort(late); aerr != nil {
			err = errors.Join(err, fmt.Errorf("abort the upload: %w", aerr))
		}
	}
	return sum, err
}

// parts fills and puts the parts. It remembers both ends of the object.
func (c *Writer) parts(ctx context.Context, u store.Upload, size int64, fill func(b []byte) error) (first, last []byte, sum [32]byte,
	err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	free := make(chan []byte, c.Lanes)
	for range c.Lanes {
		free <- nil
	}
	h, part := sha256.New(), u.PartBytes()
	hashed := make(chan struct{}) // what lies before the next part is
	close(hashed)
	for i := 0; int64(i)*part < size && ctx.Err() == nil; i++ {
		n := min(part, size-int64(i)*part)
		b := <-free
		if int64(cap(b)) < n {
			b = make([]byte, n)
		}
		b = b[:n]
		if err := fill(b); err != nil {
			cancel(err)
			break
		}
		if i == 0 {
			first = bytes.Clone(b[:min(n, ends)])
		}
		last = tail(last, b)
		before, through := hashed, make(chan struct{})
		hashed = through
		wg.Go(func() { // a part is digested while the next one is filled and others go up: each takes a core
			<-before
			_, _ = h.Write(b) // it returns no error
			close(through)
			if err := c.Again(ctx, func() error { return u.Part(ctx, i, b) }); err != nil {
				cancel(err)
				b = nil // a call that was given up may still read it
			}
			free <- b
		})
	}
	wg.Wait()
	return first, last, [32]byte(h.Sum(nil)), context.Cause(ctx)
}

// tail is the end of what was written so far.
func tail(was, b []byte) []byte {
	all := append(was, b[max(0, len(b)-ends):]...)
	return all[max(0, len(all)-ends):]
}

// complete makes the object exist, and reads back where the answer does not say whether it does.
func (c *Writer) complete(ctx context.Context, u store.Upload, key string, size int64, sum [32]byte, first, last []byte) error {
	err := c.Again(ctx, func() error {
		_, err := u.Complete(ctx, sum)
		if err == nil || errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrRefused) {
			return err
		}
		info, serr := c.st.Stat(ctx, key)
		if serr != nil {
			return err // it is not there, or nobody can tell: once more, if that may help
		}
		if mine, rerr := c.mine(ctx, info, size, sum, first, last); mine || rerr != nil {
			return rerr
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("complete %s: %w", key, err)
	}
	return nil
}

// mine reports whether an object is the one that was uploaded.
func (c *Writer) mine(ctx context.Context, info store.Info, size int64, sum [32]byte, first, last []byte) (bool, error) {
	if info.Size != size {
		return false, nil
	}
	if info.Checksum == fmt.Sprintf("%x", sum) {
		return true, nil
	}
	for off, want := range map[int64][]byte{0: first, size - int64(len(last)): last} {
		got := make([]byte, len(want))
		if err := c.Range(ctx, info.Key, off, got); err != nil {
			return false, err
		}
		if !bytes.Equal(got, want) {
			return false, nil
		}
	}
	return true, nil
}

// Transfer copies an object whose bytes are known, between stores or within one. Other bytes are never completed.
func (c *Reader) Transfer(ctx context.Context, from string, to *Writer, key string, file format.File) error {
	s := c.Stream(ctx, from, int64(file.Bytes))
	defer s.Close()
	h, left := sha256.New(), int64(file.Bytes)
	_, err := to.Upload(ctx, key, int64(file.Bytes), func(b []byte) error {
		if err := s.Fill(b); err != nil {
			return err
		}
		_, _ = h.Write(b) // it returns no error
		if left -= int64(len(b)); left > 0 {
			return nil
		}
		if got := fmt.Sprintf("%x", h.Sum(nil)); got != file.SHA256 {
			err := fmt.Errorf("%s: %w: SHA-256 %s, the index says %s", from, store.ErrCorrupt, got, file.SHA256)
			return damage.New(file.Key, damage.WholeFile, "SHA-256 differs", err)
		}
		return nil
	})
	return err
}
