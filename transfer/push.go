package transfer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Turns are what a push is given by its caller.
type Turns struct {
	// Around is called with each try, and may wait before it, or bound it. Nil: it is made at once.
	Around func(ctx context.Context, try func(context.Context) error) error
	// Streams is how many streams a large part may take. More tells whether one may be opened beside the first, until done is called.
	Streams int
	More    func() (done func(), ok bool)
}

// Push brings a sealed part to a mirror and returns nil once the mirror has verified and sealed it. Chunks that the mirror
// has are not sent, unless the part is small. A mirror that is busy or behind is asked again for a while.
func Push(ctx context.Context, l Lane, k Key, r Reader, t Turns) error {
	try := func(ctx context.Context) error { return push(ctx, l, k, r, t) }
	err := retry(ctx, func() error {
		if t.Around == nil {
			return try(ctx)
		}
		return t.Around(ctx, try)
	})
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
		return fmt.Errorf("push %v %v to %s: %w", k.Part, k.Generation, l.Peer(), err)
	}
	return nil
}

// roomMade is how long a mirror may take before it says which chunks of so many bytes it wants: it makes room first, and hashes again what it has of
// them.
func roomMade(bytes uint64) time.Duration {
	return idleAfter + time.Duration(bytes/rehashes)*time.Second
}

func push(ctx context.Context, l Lane, k Key, r Reader, t Turns) error {
	c, err := l.Open(ctx)
	if err != nil {
		return fmt.Errorf("open stream: %w", err)
	}
	m := r.Manifest()
	s := newStream(ctx, c, roomMade(m.Bytes))
	defer s.end()
	wanted, err := offer(s, k, &m)
	if err != nil {
		return err
	}
	s.limit = stallAfter
	// The answer may come at any time: a refusal in the middle must stop the sending, also where nothing is buffered.
	beside, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	var sendErr error
	if m.Bytes <= pushWhole {
		wg.Go(func() { sendErr = sendWanted(s, r, &m, wanted) })
	} else {
		p := newParted(k, r, &m, wanted)
		for range p.streams(t) {
			wg.Go(func() { p.beside(beside, l) })
		}
		wg.Go(func() { sendErr = p.main(beside, s) })
	}
	var d done
	err = readAnswer(s.r, kindDone, &d)
	if err == nil && d.Root != k.Root {
		err = fmt.Errorf("%w: sealed root %v, want %v", ErrCorrupt, d.Root, k.Root)
	}
	if err != nil {
		s.interrupt() // nothing more needs to be sent
	}
	stop()
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
	s.paced(r)
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

func servePush(s *stream, peer replica.NodeName, whole bool, body []byte, st Store, g *Gate) error {
	var req pushRequest
	if err := unmarshal(body, &req); err != nil {
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
	in := newIncoming(sink, &m)
	if whole {
		err = in.whole(s)
	} else {
		err = g.receive(peer, k, in, s)
	}
	if err := finish(err); err != nil {
		return answerError(s, err)
	}
	err = wire.Write(s, kindDone, done{m.Root})
	s.whole = err == nil
	return err
}
