package read

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/replicad/replicad/internal/durable/sealed"
)

// errClosed ends what a reader that was closed still fetches.
var errClosed = errors.New("the reader was closed")

// ahead reads the bytes of a part in blocks, and the next ones while these are used: chunks are small, and a request takes long whatever it
// brings. Chunks that are asked for in order are read once.
type ahead struct {
	c     *Reader
	ctx   context.Context // ends with the reader
	stop  context.CancelCauseFunc
	key   string
	seal  *sealed.File
	base  uint64 // where the part begins in what lies in the object
	size  uint64 // of the part there
	block uint64
	wg    sync.WaitGroup

	mu     sync.Mutex
	blocks []*fetched // guarded by mu: the last ones that were used, in that order
}

// fetched is one block. b and err count once done is closed.
type fetched struct {
	n    uint64 // which one
	done chan struct{}
	b    []byte
	err  error
}

func (c *Reader) ahead(ctx context.Context, key string, s *sealed.File, base, size uint64) *ahead {
	a := &ahead{c: c, key: key, seal: s, base: base, size: size, block: uint64(c.objects.Block)}
	a.ctx, a.stop = context.WithCancelCause(ctx)
	return a
}

// read fills b from byte from of the part.
func (a *ahead) read(from uint64, b []byte) error {
	for len(b) > 0 {
		n := from / a.block
		f := a.take(n)
		select {
		case <-f.done:
		case <-a.ctx.Done():
			return context.Cause(a.ctx)
		}
		if f.err != nil {
			return f.err
		}
		got := copy(b, f.b[from-n*a.block:])
		b, from = b[got:], from+uint64(got)
	}
	return nil
}

// take gives a block, and has those behind it fetched.
func (a *ahead) take(n uint64) *fetched {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := min(n+uint64(a.c.objects.Lanes)-1, (a.size-1)/a.block); k > n; k-- {
		a.useLocked(k)
	}
	f := a.useLocked(n)
	a.blocks = a.blocks[max(0, len(a.blocks)-a.c.objects.Lanes-1):]
	return f
}

// useLocked makes a block the last one that was used, and fetches it unless it is there.
func (a *ahead) useLocked(n uint64) *fetched {
	i := slices.IndexFunc(a.blocks, func(f *fetched) bool { return f.n == n })
	if i >= 0 {
		f := a.blocks[i]
		a.blocks = append(slices.Delete(a.blocks, i, i+1), f)
		return f
	}
	f := &fetched{n: n, done: make(chan struct{})}
	a.blocks = append(a.blocks, f)
	if a.ctx.Err() != nil {
		f.err = context.Cause(a.ctx)
		close(f.done)
		return f
	}
	a.wg.Go(func() {
		defer close(f.done)
		f.err = a.c.objects.Again(a.ctx, func() error {
			f.b = make([]byte, min(a.block, a.size-n*a.block)) // after an error the store may still write to the former one
			return a.c.readRange(a.ctx, a.key, a.seal, a.base+n*a.block, f.b)
		})
		if f.err != nil {
			a.drop(f) // the next one who wants it asks anew
		}
	})
	return f
}

func (a *ahead) drop(f *fetched) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.blocks = slices.DeleteFunc(a.blocks, func(o *fetched) bool { return o == f })
}

// close ends what is fetched, and waits for it.
func (a *ahead) close() {
	a.mu.Lock()
	a.stop(errClosed)
	a.mu.Unlock()
	a.wg.Wait()
}
