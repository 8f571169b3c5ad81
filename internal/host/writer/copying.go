package writer

import (
	"context"
	"fmt"
	"sync"

	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/spool"
	"github.com/replicad/replicad/replica"
)

// batch is how many bytes are appended to the spool at once.
const batch = 4 << 20

// copying is a part on its way from memory into the spool. The store reads behind it.
type copying struct {
	man  replica.Manifest
	into *spool.Part

	mu     sync.Mutex // guards what follows
	chunks int        // that can be read
	err    error      // why there are no more
	news   chan struct{}
}

func newCopying(man replica.Manifest, into *spool.Part) *copying {
	return &copying{man: man, into: into, news: make(chan struct{})}
}

// run copies the part, chunk by chunk. Each is held against its digest: what was rotten in memory is not blamed on the spool.
func (c *copying) run(ctx context.Context, read chunks) error {
	err := c.copy(ctx, read)
	c.tell(0, err)
	return err
}

func (c *copying) copy(ctx context.Context, read chunks) error {
	room := max(batch, int(c.man.ChunkBytes))
	buf := make([]byte, 0, min(uint64(room), c.man.Bytes)) // a small part is not worth megabytes
	held := 0
	for i := range c.man.Chunks {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		_, n := replica.ChunkSpan(i, c.man.Bytes, c.man.ChunkBytes)
		at := len(buf)
		b, err := read(i, buf[at:at+int(n)])
		if err != nil {
			return fmt.Errorf("read chunk %d: %w", i, err)
		}
		if uint64(len(b)) != n || shm.Hash(b) != c.man.Chunks[i] {
			return fmt.Errorf("read chunk %d: %w: its digest is not that of the manifest", i, shm.ErrCorrupt)
		}
		buf = append(buf[:at], b...)
		held++
		if i+1 < len(c.man.Chunks) && len(buf)+int(c.man.ChunkBytes) <= room {
			continue
		}
		if err := c.into.Append(ctx, buf); err != nil {
			return err
		}
		c.tell(held, nil)
		buf, held = buf[:0], 0
	}
	return nil
}

// tell has readers know of further chunks, or of the end.
func (c *copying) tell(more int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.chunks += more
	c.err = err
	close(c.news)
	c.news = make(chan struct{})
}

// await waits until chunk i is in the spool.
func (c *copying) await(ctx context.Context, i int) error {
	for {
		c.mu.Lock()
		chunks, err, news := c.chunks, c.err, c.news
		c.mu.Unlock()
		if i < chunks {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// read gives the store chunk i, out of the spool. A byte that the spool's disk has changed fails the write.
func (c *copying) read(ctx context.Context, i int, dst []byte) ([]byte, error) {
	if err := c.await(ctx, i); err != nil {
		return nil, err
	}
	off, n := replica.ChunkSpan(i, c.man.Bytes, c.man.ChunkBytes)
	if uint64(cap(dst)) < n {
		dst = make([]byte, n)
	}
	b := dst[:n]
	if err := c.into.ReadAt(ctx, b, off); err != nil {
		return nil, err
	}
	if shm.Hash(b) != c.man.Chunks[i] {
		return nil, fmt.Errorf("spool %s: chunk %d: %w: its disk returns other bytes than were written", c.into.Where(), i, shm.ErrCorrupt)
	}
	return b, nil
}
