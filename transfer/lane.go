package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

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
	began := time.Now()
	if err := f.start(ctx, m); err != nil {
		return err
	}
	if time.Since(began) > idleAfter/2 {
		return errStale
	}
	f.mix.begins(s, time.Now())
	defer func() { f.mix.ends(s, time.Now()) }()
	return f.pull(ctx, s, st)
}

// pull keeps some chunks asked for and takes them in order. A second goroutine writes the requests, so that neither
// side can block the other whatever the transport buffers.
func (f *fetch) pull(ctx context.Context, from *Source, s *stream) error {
	ahead := f.ahead()
	requests := make(chan chunkHeader, ahead)
	var wg sync.WaitGroup
	var writeErr error
	wg.Go(func() { writeErr = writeRequests(s, requests) })

	asked := make([]int, 0, ahead)
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

// ahead is how many chunks a lane asks for ahead; once the fetch has started. Where others receive the part too, few of it: what all ask
// the donor for at once none of them has to serve on.
func (f *fetch) ahead() int {
	n := min(aheadBytes/int(f.manifest.ChunkBytes), mostAhead)
	if f.shuffle != nil {
		n = min(n, len(f.manifest.Chunks)/256)
	}
	return max(n, 2)
}

// writeRequests ends when requests is closed. It leaves the reader alone when it can't go on: the peer may have said why,
// and if not, the reader ends by itself.
func writeRequests(s *stream, requests <-chan chunkHeader) (err error) {
	var b [chunkHeaderBytes]byte
	for h := range requests {
		if err != nil {
			continue
		}
		h.put(b[:])
		_, err = s.Write(b[:])
	}
	return err
}

// chunks is the loop of pull; asked is what was requested and has not arrived.
func (f *fetch) chunks(ctx context.Context, from *Source, s *stream, asked *[]int, requests chan<- chunkHeader) error {
	m := &f.manifest
	buf := getBuffer(min(uint64(m.ChunkBytes), m.Bytes))
	defer buf.free()
	var header [chunkHeaderBytes]byte
	var has bitmap // nil: the source has all chunks
	if from.Receives {
		has = newBitmap(len(m.Chunks))
	}
	for spoke := time.Now(); ; spoke = time.Now() {
		yields, _, _ := f.mix.yields(from, time.Now())
		if yields && len(*asked) == 0 {
			return errYield
		}
		for !yields && len(*asked) < cap(*asked) {
			i, ok := f.queue.take(ctx, len(*asked) == 0 && has == nil, has)
			if !ok {
				break
			}
			*asked = append(*asked, i)
			if len(*asked) == 1 && time.Since(spoke) > idleAfter/2 { // other lanes had it for so long
				return errStale
			}
			requests <- chunkHeader{op: opGet, index: uint32(i)}
		}
		if len(*asked) == 0 {
			select {
			case <-f.queue.done:
				f.cancel(errComplete)
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			default:
			}
			if err := f.more(ctx, s, &header, has, requests); err != nil {
				return err
			}
			continue
		}
		i := (*asked)[0]
		_, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		b := buf.bytes(n)
		got, err := readChunk(s, &header, i, b)
		if err != nil {
			return fmt.Errorf("chunk %d of %d: %w", i, len(m.Chunks), err)
		}
		if got != m.Chunks[i] {
			return fmt.Errorf("chunk %d of %d: %w: digest %v, want %v", i, len(m.Chunks), ErrCorrupt, got, m.Chunks[i])
		}
		*asked = append((*asked)[:0], (*asked)[1:]...)
		if err := f.put(from, i, b); err != nil {
			return err
		}
	}
}

// errNoMore ends a lane to a receiver that has nothing new while no source is left that has all.
var errNoMore = errors.New("it receives the part itself, and has no more of it")

// more asks a source that receives the part itself which chunks it has by now; where it has none that is wanted, after a while again.
func (f *fetch) more(ctx context.Context, s *stream, header *[chunkHeaderBytes]byte, has bitmap, requests chan<- chunkHeader) error {
	requests <- chunkHeader{op: opHave}
	if err := readHave(s, header, has); err != nil {
		return fmt.Errorf("which chunks there are: %w", err)
	}
	if f.queue.served(has) {
		return nil
	}
	alone := f.alone
	select {
	case <-alone: // what it has received since the last look was all
		return errNoMore
	default:
	}
	again := time.NewTimer(receivesAgain)
	defer again.Stop()
	select {
	case <-again.C:
	case <-f.queue.done:
	case <-alone:
	case <-ctx.Done():
	}
	return nil
}

// put hands a verified chunk to the sink unless another lane was first.
func (f *fetch) put(from *Source, i int, b []byte) error {
	f.mix.brings(from, len(b), time.Now())
	f.works(from, true)
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

// readChunk reads the reply for chunk i, whose length is known from the manifest, into b, and returns its digest.
func readChunk(s *stream, scratch *[chunkHeaderBytes]byte, i int, b []byte) (digest replica.Digest, err error) {
	if err := expect(s, scratch, chunkHeader{opChunk, uint32(i), uint32(len(b))}); err != nil {
		return digest, err
	}
	return readHashed(s, b)
}

// readHashed fills b from the stream, in a time that its size allows, and hashes it on the way: what a read has just brought is still in the processor's cache.
func readHashed(s *stream, b []byte) (digest replica.Digest, err error) {
	h := hashers.Get().(*xxh3.Hasher)
	defer hashers.Put(h)
	h.Reset()
	s.by = time.Now().Add(stallAfter + time.Duration(len(b))*time.Second/slowest)
	defer func() { s.by = time.Time{} }()
	for at := 0; at < len(b); {
		n, err := io.ReadAtLeast(s.r, b[at:min(len(b), at+hashPiece)], min(len(b)-at, hashLeast))
		if err != nil {
			return digest, err
		}
		_, _ = h.Write(b[at : at+n]) // it never fails
		at += n
	}
	return h.Sum128().Bytes(), nil
}

var hashers = sync.Pool{New: func() any { return xxh3.New() }}

// readHave reads which chunks a receiver has into has, whose length is that of the part's.
func readHave(s *stream, scratch *[chunkHeaderBytes]byte, has bitmap) error {
	if err := expect(s, scratch, chunkHeader{op: opHave, length: uint32(len(has))}); err != nil {
		return err
	}
	_, err := io.ReadFull(s.r, has)
	return err
}

// expect reads a header that must be want; a refusal becomes its error.
func expect(s *stream, scratch *[chunkHeaderBytes]byte, want chunkHeader) error {
	h, err := readChunkHeader(s.r, scratch)
	switch {
	case err != nil:
		return err
	case h.op == opFail:
		return readRefusal(s.r)
	case h != want:
		return fmt.Errorf("%w: reply op %d, chunk %d, %d bytes; want op %d, chunk %d, %d bytes", ErrProtocol, h.op, h.index, h.length, want.op, want.index, want.length)
	}
	return nil
}
