package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// lane has each stream served by the store, for one peer.
type lane struct {
	b    *Bed
	work sync.WaitGroup
}

func (l *lane) Peer() replica.NodeName { return "here" }
func (l *lane) Close()                 {}

func (l *lane) Open(context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	l.work.Go(func() {
		defer far.Close()
		transfer.Serve(context.Background(), l.b.Peer, far, l.b.Store, nil) //nolint:errcheck // the near end sees it
	})
	return near, nil
}

// kept is a sink in memory.
type kept struct {
	mu     sync.Mutex
	chunks map[int][]byte
}

func (k *kept) Have(i int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.chunks[i] != nil
}

func (k *kept) Put(i int, b []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.chunks[i] = bytes.Clone(b)
	return nil
}

// fetch fetches by the protocol.
func (b *Bed) fetch(k transfer.Key, into *kept) (err error) {
	l := &lane{b: b}
	from := transfer.Source{Node: "here", Dial: func(context.Context) (transfer.Lane, error) { return l, nil }}
	b.do(func() {
		begin := func(replica.Manifest) (transfer.Sink, error) { return into, nil }
		_, err = transfer.Fetch(context.Background(), k, []transfer.Source{from}, begin)
		l.work.Wait()
	})
	return err
}

func fetched(b *Bed) error {
	into := &kept{chunks: map[int][]byte{}}
	if err := b.fetch(b.Has.Key, into); err != nil {
		return err
	}
	for i, want := range b.Has.Chunks {
		if !bytes.Equal(into.chunks[i], want) {
			return fmt.Errorf("chunk %d: other bytes", i)
		}
	}
	return nil
}

func pushed(b *Bed) (err error) {
	l := &lane{b: b}
	b.do(func() {
		err = transfer.Push(context.Background(), l, b.Takes.Key, reader{b.Takes}, transfer.Turns{})
		l.work.Wait()
	})
	return errors.Join(err, b.taken())
}

// reader reads a part.
type reader struct{ p Part }

func (r reader) Manifest() replica.Manifest { return r.p.Manifest }
func (r reader) Close()                     {}
func (r reader) ReadChunk(i int, dst []byte) ([]byte, error) {
	return dst[:copy(dst, r.p.Chunks[i])], nil
}

// refusals asks by the protocol for what is unknown.
func refusals(b *Bed) error {
	k := others(b.Has.Key)["another root"]
	return wants("a fetch of another root", b.fetch(k, &kept{chunks: map[int][]byte{}}), transfer.ErrUnknownPart)
}
