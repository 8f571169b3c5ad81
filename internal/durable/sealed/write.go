package sealed

import (
	"bytes"
	"io"

	"filippo.io/age"
)

// Sealer encrypts an object while it is read.
type Sealer struct {
	Size     uint64 // of the whole object
	Envelope uint64 // of it: header and nonce

	fill func(b []byte) error
	left uint64 // bytes that fill has yet to give
	w    io.WriteCloser
	out  bytes.Buffer // what is encrypted, and not taken yet
	buf  []byte
	done bool
}

// Seal begins an object of so many bytes, which fill gives in order. Where a request for it is made again, the bytes that Fill gave are to be sent
// again: nothing encrypts twice to the same.
func (k *Keys) Seal(size uint64, fill func(b []byte) error) (*Sealer, error) {
	s := &Sealer{fill: fill, left: size, buf: make([]byte, min(size, chunkBytes))}
	w, err := age.Encrypt(&s.out, k.to...)
	if err != nil {
		return nil, err
	}
	s.w, s.Envelope = w, uint64(s.out.Len())
	s.Size = StoredSize(size, s.Envelope)
	return s, nil
}

// Fill gives the next bytes of the object.
func (s *Sealer) Fill(b []byte) error {
	for len(b) > 0 {
		if s.out.Len() == 0 {
			if err := s.more(); err != nil {
				return err
			}
			continue
		}
		n, err := s.out.Read(b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// more encrypts one more chunk.
func (s *Sealer) more() error {
	if s.done {
		return io.ErrUnexpectedEOF
	}
	b := s.buf[:min(s.left, chunkBytes)]
	if err := s.fill(b); err != nil {
		return err
	}
	if _, err := s.w.Write(b); err != nil {
		return err
	}
	if s.left -= uint64(len(b)); s.left > 0 {
		return nil
	}
	s.done = true
	return s.w.Close()
}
