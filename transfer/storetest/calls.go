package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

func (b *Bed) do(call func()) {
	if b.Do == nil {
		call()
		return
	}
	b.Do(call)
}

// idle is nil where nothing is in use.
func (b *Bed) idle() error {
	if _, blind := b.Without[Counts]; blind {
		return nil
	}
	if list := b.InUse(); len(list) > 0 {
		return fmt.Errorf("in use at the end: %v", list)
	}
	return nil
}

func (b *Bed) open(peer replica.NodeName, k transfer.Key) (r transfer.Reader, err error) {
	b.do(func() { r, err = b.Store.Open(peer, k) })
	if (r == nil) == (err == nil) {
		return nil, fmt.Errorf("open of %v: reader %v, %w", k.Part, r, errors.Join(err, errors.New("want one of reader and error")))
	}
	return r, err
}

func (b *Bed) close(r transfer.Reader) { b.do(r.Close) }

// push is a part on its way in.
type push struct {
	b    *Bed
	sink transfer.Sink
	end  func(error) error
}

func (b *Bed) accept(peer replica.NodeName, p Part) (*push, error) {
	in := &push{b: b}
	var err error
	b.do(func() { in.sink, in.end, err = b.Store.Accept(peer, p.Key, p.Manifest) })
	if err != nil {
		if in.sink != nil || in.end != nil {
			return nil, fmt.Errorf("a refused push of %v has a sink or an end beside %w", p.Key.Part, err)
		}
		return nil, err
	}
	if in.sink == nil || in.end == nil {
		return nil, fmt.Errorf("an accepted push of %v has sink %v, end %t", p.Key.Part, in.sink, in.end != nil)
	}
	return in, nil
}

// put puts a chunk out of a buffer that is used for something else right after.
func (in *push) put(i int, b []byte) (err error) {
	buf := bytes.Clone(b)
	in.b.do(func() { err = in.sink.Put(i, buf) })
	clear(buf)
	return err
}

// fill puts the chunks that the sink lacks, but for one; -1: all.
func (in *push) fill(p Part, but int) error {
	var want []int
	for i := range p.Chunks { // Have comes before the first Put
		if !in.sink.Have(i) && i != but {
			want = append(want, i)
		}
	}
	for _, i := range want {
		if err := in.put(i, p.Chunks[i]); err != nil {
			return fmt.Errorf("put chunk %d: %w", i, err)
		}
	}
	return nil
}

func (in *push) ends(with error) (err error) {
	in.b.do(func() { err = in.end(with) })
	return err
}

// take has a part pushed, whole.
func (b *Bed) take(p Part) error {
	in, err := b.accept(b.Peer, p)
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	if err := in.fill(p, -1); err != nil {
		return errors.Join(err, in.ends(err))
	}
	if err := in.ends(nil); err != nil {
		return fmt.Errorf("the end of a push that has all: %w", err)
	}
	return nil
}

// taken is nil where Takes is sealed, whole.
func (b *Bed) taken() error {
	if b.Took == nil {
		return b.serves(b.Takes)
	}
	if got, sealed := b.Took(); !sealed || !bytes.Equal(got, slices.Concat(b.Takes.Chunks...)) {
		return fmt.Errorf("it has %d bytes, sealed: %t, want the %d bytes that were put, sealed", len(got), sealed, b.Takes.Manifest.Bytes)
	}
	return nil
}

// absent is nil where Takes is not sealed.
func (b *Bed) absent() error {
	if b.Took != nil {
		if _, sealed := b.Took(); sealed {
			return errors.New("it is sealed")
		}
		return nil
	}
	r, err := b.open(b.Peer, asked(b.Takes.Key))
	if err == nil {
		b.close(r)
		return errors.New("it is served")
	}
	if !errors.Is(err, transfer.ErrUnknownPart) {
		return fmt.Errorf("open: %w, want %w", err, transfer.ErrUnknownPart)
	}
	return nil
}

// asked is the key by which a part is fetched. A frozen one was captured once, and is fetched for whatever generation binds it.
func asked(k transfer.Key) transfer.Key {
	if k.Part.Kind == replica.FrozenPart {
		k.Generation.Step += 9
	}
	return k
}

// serves is nil where a part is opened and read, whole.
func (b *Bed) serves(p Part) error {
	r, err := b.open(b.Peer, asked(p.Key))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer b.close(r)
	return reads(r, p)
}

// reads compares what a reader gives with a part.
func reads(r transfer.Reader, p Part) error {
	m := r.Manifest()
	if err := m.Check(); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	if got := replica.Digest(xxh3.Hash128(m.RootInput()).Bytes()); m.Root != p.Key.Root || got != m.Root {
		return fmt.Errorf("the manifest has root %v and hashes to %v, the key has %v", m.Root, got, p.Key.Root)
	}
	if m.Cluster != p.Key.Cluster || m.Job != p.Key.Job || m.Part != p.Key.Part || m.Generation != p.Key.Generation {
		return fmt.Errorf("the manifest is of %v %v of job %v, the key is %+v", m.Part, m.Generation, m.Job, p.Key)
	}
	if len(m.Chunks) != len(p.Chunks) {
		return fmt.Errorf("%d chunks, want %d", len(m.Chunks), len(p.Chunks))
	}
	for range 2 { // a chunk may be asked for again
		for i, want := range m.Chunks {
			if err := readsChunk(r, i, p.Chunks[i], want); err != nil {
				return err
			}
		}
	}
	return nil
}

// readsChunk reads a chunk into room that has more behind it, which is no business of the reader's.
func readsChunk(r transfer.Reader, i int, want []byte, digest replica.Digest) error {
	const behind = 0xa5
	room := bytes.Repeat([]byte{behind}, len(want)+16)
	got, err := r.ReadChunk(i, room[:len(want)])
	switch {
	case err != nil:
		return fmt.Errorf("read chunk %d: %w", i, err)
	case !bytes.Equal(got, want) || replica.Digest(xxh3.Hash128(got).Bytes()) != digest:
		return fmt.Errorf("chunk %d: %d bytes, others than were put, or than the digest is of", i, len(got))
	case bytes.Count(room[len(want):], []byte{behind}) != 16:
		return fmt.Errorf("chunk %d: bytes behind dst are written to", i)
	}
	return nil
}
