package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Push brings a sealed part to a mirror and returns nil once the mirror has verified and sealed it. Chunks that the mirror
// has are not sent, unless the part is small. A mirror that is busy or behind is asked again for a while; around is called with each try, and
// may wait before it, or bound it (nil: it is made at once).
func Push(ctx context.Context, l Lane, k Key, r Reader, around func(ctx context.Context, try func(context.Context) error) error) error {
	try := func(ctx context.Context) error { return push(ctx, l, k, r) }
	err := retry(ctx, func() error {
		if around == nil {
			return try(ctx)
		}
		return around(ctx, try)
	})
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
		return fmt.Errorf("push %v %v to %s: %w", k.Part, k.Generation, l.Peer(), err)
	}
	return nil
}

func push(ctx context.Context, l Lane, k Key, r Reader) error {
	c, err := l.Open(ctx)
	if err != nil {
		return fmt.Errorf("open stream: %w", err)
	}
	s := newStream(ctx, c, idleAfter) // the mirror may have to make room first
	defer s.end()
	m := r.Manifest()
	wanted, err := offer(s, k, &m)
	if err != nil {
		return err
	}
	s.limit = stallAfter
	// The answer may come at any time: a refusal in the middle must stop the sending, also where nothing is buffered.
	var wg sync.WaitGroup
	var sendErr error
	wg.Go(func() { sendErr = sendWanted(s, r, &m, wanted) })
	var d done
	err = readAnswer(s.r, kindDone, &d)
	if err == nil && d.Root != k.Root {
		err = fmt.Errorf("%w: sealed root %v, want %v", ErrCorrupt, d.Root, k.Root)
	}
	if err != nil {
		s.interrupt() // nothing more needs to be sent
	}
	wg.Wait()
	s.whole = err == nil && sendErr == nil
	if err != nil && sendErr != nil && !onlyInterrupted(sendErr) {
		return fmt.Errorf("%w (sending: %w)", err, sendErr)
	}
	return err
}

// offer asks for the part to be taken and returns the chunks to send: those that the mirror wants, or all of a small part.
func offer(s *stream, k Key, m *replica.Manifest) (bits []byte, err error) {
	if m.Bytes <= pushWhole {
		return slices.Repeat([]byte{0xff}, (len(m.Chunks)+7)/8), wire.Write(s, kindPushWhole, &pushRequest{k, *m})
	}
	if err := wire.Write(s, kindPush, &pushRequest{k, *m}); err != nil {
		return nil, err
	}
	var w want
	if err := readAnswer(s.r, kindWant, &w); err != nil {
		return nil, err
	}
	if len(w.Chunks) != (len(m.Chunks)+7)/8 {
		return nil, fmt.Errorf("%w: wants %d bytes of bits for %d chunks", ErrProtocol, len(w.Chunks), len(m.Chunks))
	}
	return w.Chunks, nil
}

func sendWanted(s *stream, r Reader, m *replica.Manifest, bits []byte) error {
	buf := getBuffer(min(uint64(m.ChunkBytes), m.Bytes))
	defer buf.free()
	for i := range m.Chunks {
		if bits[i/8]&(1<<(i%8)) == 0 {
			continue
		}
		if err := sendChunk(s, r, m, i, buf); err != nil {
			return err
		}
	}
	return nil
}

func servePush(s *stream, peer replica.NodeName, whole bool, body []byte, st Store) error {
	var req pushRequest
	if err := wire.Unmarshal(body, &req); err != nil {
		return err
	}
	k, m := req.Key, req.Manifest
	if err := checkManifest(k, &m); err != nil {
		return answerError(s, err)
	}
	sink, finish, err := st.Accept(peer, k, m)
	if err != nil {
		return answerError(s, err)
	}
	s.limit = stallAfter // from here on the producer has no reason to pause
	if err := finish(receive(s, sink, whole, &m)); err != nil {
		return answerError(s, err)
	}
	err = wire.Write(s, kindDone, done{m.Root})
	s.whole = err == nil
	return err
}

// receive says what is wanted, unless everything comes unasked, and takes it. What comes though the sink has it is dropped.
func receive(s *stream, sink Sink, whole bool, m *replica.Manifest) error {
	lacks := make([]byte, (len(m.Chunks)+7)/8)
	for i := range m.Chunks {
		if !sink.Have(i) {
			lacks[i/8] |= 1 << (i % 8)
		}
	}
	if !whole {
		if err := wire.Write(s, kindWant, &want{lacks}); err != nil {
			return err
		}
	}
	buf := getBuffer(min(uint64(m.ChunkBytes), m.Bytes))
	defer buf.free()
	var header [chunkHeaderBytes]byte
	for i := range m.Chunks {
		lacking := lacks[i/8]&(1<<(i%8)) != 0
		if !whole && !lacking {
			continue
		}
		_, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		b := buf.bytes(n)
		if err := readChunk(s, &header, i, b); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("chunk %d of %d: %w", i, len(m.Chunks), err)
		}
		if got := hash(b); got != m.Chunks[i] {
			return fmt.Errorf("chunk %d of %d: %w: digest %v, want %v", i, len(m.Chunks), ErrCorrupt, got, m.Chunks[i])
		}
		if !lacking {
			continue
		}
		if err := sink.Put(i, b); err != nil {
			return fmt.Errorf("put chunk %d: %w", i, err)
		}
	}
	return nil
}
