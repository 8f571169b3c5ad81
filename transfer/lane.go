package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// lane runs one stream of a fetch: manifest first, then chunks until the queue is empty. It returns nil when there is
// nothing left to bring, errYield when other lanes bring it better.
func (f *fetch) lane(ctx context.Context, s *Source, l Lane) error {
	c, err := l.Open(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("open stream: %w", err)
	}
	st := newStream(ctx, c, stallAfter)
	defer st.end()
	if err := wire.Write(st, kindFetch, f.key); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	var m replica.Manifest
	if err := readAnswer(st.r, wire.KindManifest, &m); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	if err := checkManifest(f.key, &m); err != nil {
		return err
	}
	if err := f.start(ctx, m); err != nil {
		return err
	}
	f.mix.begins(s, time.Now())
	defer func() { f.mix.ends(s, time.Now()) }()
	return f.pull(ctx, s, st)
}

// pull keeps up to window chunks asked for and takes them in order. A second goroutine writes the requests, so that neither
// side can block the other whatever the transport buffers.
func (f *fetch) pull(ctx context.Context, from *Source, s *stream) error {
	requests := make(chan int, window)
	var wg sync.WaitGroup
	var writeErr error
	wg.Go(func() { writeErr = writeRequests(s, requests) })

	asked := make([]int, 0, window)
	err := f.chunks(ctx, from, s, &asked, requests)
	for _, i := range asked {
		f.queue.giveBack(i)
	}
	close(requests)
	if err != nil {
		s.interrupt()
	}
	wg.Wait()
	if errors.Is(err, ErrStalled) && writeErr != nil {
		return fmt.Errorf("ask: %w (%w)", writeErr, err)
	}
	return err
}

// writeRequests ends when requests is closed. It leaves the reader alone when it can't go on: the peer may have said why,
// and if not, the reader ends by itself.
func writeRequests(s *stream, requests <-chan int) (err error) {
	var b [chunkHeaderBytes]byte
	for i := range requests {
		if err != nil {
			continue
		}
		chunkHeader{op: opGet, index: uint32(i)}.put(b[:])
		_, err = s.Write(b[:])
	}
	return err
}

// chunks is the loop of pull; asked is what was requested and has not arrived.
func (f *fetch) chunks(ctx context.Context, from *Source, s *stream, asked *[]int, requests chan<- int) error {
	m := &f.manifest
	buf := getBuffer(min(uint64(m.ChunkBytes), m.Bytes))
	defer buf.free()
	var header [chunkHeaderBytes]byte
	for {
		yields, _ := f.mix.yields(from, time.Now())
		if yields && len(*asked) == 0 {
			return errYield
		}
		for !yields && len(*asked) < window {
			i, ok := f.queue.take(ctx, len(*asked) == 0)
			if !ok {
				break
			}
			*asked = append(*asked, i)
			requests <- i
		}
		if len(*asked) == 0 {
			select {
			case <-f.queue.done:
				f.cancel(errComplete)
				return nil
			default:
				return context.Cause(ctx)
			}
		}
		i := (*asked)[0]
		_, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		b := buf.bytes(n)
		if err := readChunk(s, &header, i, b); err != nil {
			return fmt.Errorf("chunk %d of %d: %w", i, len(m.Chunks), err)
		}
		if got := hash(b); got != m.Chunks[i] {
			return fmt.Errorf("chunk %d of %d: %w: digest %v, want %v", i, len(m.Chunks), ErrCorrupt, got, m.Chunks[i])
		}
		*asked = append((*asked)[:0], (*asked)[1:]...)
		if err := f.put(from, i, b); err != nil {
			return err
		}
	}
}

// put hands a verified chunk to the sink unless another lane was first.
func (f *fetch) put(from *Source, i int, b []byte) error {
	f.mix.brings(from, len(b))
	if !f.queue.claim(i) {
		return nil
	}
	if err := f.sink.Put(i, b); err != nil {
		err = fmt.Errorf("put chunk %d: %w", i, err)
		f.cancel(err) // no other source could mend it
		return err
	}
	f.mu.Lock()
	f.report.Bytes += uint64(len(b))
	f.report.By[from.Node] += uint64(len(b))
	f.mu.Unlock()
	if f.queue.finish() {
		f.cancel(errComplete)
	}
	return nil
}

// readChunk reads the reply for chunk i, whose length is known from the manifest, into b.
func readChunk(s *stream, scratch *[chunkHeaderBytes]byte, i int, b []byte) error {
	h, err := readChunkHeader(s.r, scratch)
	if err != nil {
		return err
	}
	if h.op == opFail {
		return readRefusal(s.r)
	}
	if h.op != opChunk || uint64(h.index) != uint64(i) || uint64(h.length) != uint64(len(b)) {
		return fmt.Errorf("%w: reply op %d, chunk %d, %d bytes; want chunk %d, %d bytes", ErrProtocol, h.op, h.index, h.length, i, len(b))
	}
	_, err = io.ReadFull(s.r, b)
	return err
}
