package write

import (
	"fmt"
	"io"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// source gives the bytes of a file, from its header and its parts' chunks, each checked.
type source struct {
	parts []Part
	o     *format.Object
	part  int // the one whose chunks are read
	chunk int // the next one of it
	buf   []byte
	left  []byte // bytes that were made and not yet taken; below it lies buf, or the header
	spare []byte // what a chunk's tensors are gathered in
}

func newSource(head []byte, o *format.Object, parts []Part) *source {
	return &source{parts: parts, o: o, left: head}
}

func (s *source) fill(b []byte) error {
	for len(b) > 0 {
		if len(s.left) == 0 {
			if err := s.next(); err != nil {
				return err
			}
			continue
		}
		n := copy(b, s.left)
		b, s.left = b[n:], s.left[n:]
	}
	return nil
}

// next reads one more chunk.
func (s *source) next() error {
	for s.part < len(s.parts) && s.chunk == len(s.o.Parts[s.part].Manifest.Chunks) {
		s.part, s.chunk = s.part+1, 0
	}
	if s.part == len(s.parts) {
		return io.ErrUnexpectedEOF
	}
	p := &s.o.Parts[s.part]
	m := &p.Manifest
	off, n := replica.ChunkSpan(s.chunk, m.Bytes, m.ChunkBytes)
	if uint64(cap(s.buf)) < n {
		s.buf = make([]byte, n)
	}
	b, err := s.parts[s.part].Read(s.chunk, s.buf[:n])
	if err != nil {
		return fmt.Errorf("read chunk %d of %v: %w", s.chunk, m.Part, err)
	}
	if got := safetensors.Hash(b); uint64(len(b)) != n || got != m.Chunks[s.chunk] {
		return fmt.Errorf("read chunk %d of %v: %w: %d bytes with digest %v, want %d with %v", s.chunk, m.Part, store.ErrCorrupt, len(b),
			got, n, m.Chunks[s.chunk])
	}
	s.chunk++
	s.spare = s.spare[:0]
	err = p.Layout.Spans(off, n, func(from, to, _ uint64, gap bool) error {
		if gap {
			return checkGap(off+from, b[from:to])
		}
		s.spare = append(s.spare, b[from:to]...)
		return nil
	})
	s.left = s.spare
	return err
}

// checkGap refuses bytes between regions that are not zero: the file leaves them out.
func checkGap(at uint64, b []byte) error {
	for i, c := range b {
		if c != 0 {
			return fmt.Errorf("byte %d lies between regions and is %#02x, not zero: the part can't be written as tensors", at+uint64(i), c)
		}
	}
	return nil
}
