package sealed

import (
	"bytes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"filippo.io/age"
	"golang.org/x/crypto/chacha20poly1305"
)

// File is an object whose envelope was opened. Several goroutines may use it.
type File struct {
	aead     cipher.AEAD
	envelope uint64
	plain    uint64
}

// Open opens an object of so many bytes, by its first ones: its envelope, and whatever follows. ErrLocked: no key opens it.
func (k *Keys) Open(first []byte, stored uint64) (*File, error) {
	head, err := age.ExtractHeader(bytes.NewReader(first[:min(len(first), MaxEnvelope)]))
	if err != nil || !bytes.HasPrefix(first, head) || len(first) < len(head)+nonceBytes {
		return nil, fmt.Errorf("%w: it has no header of age", ErrDamaged)
	}
	f := &File{envelope: uint64(len(head) + nonceBytes)}
	var ok bool
	if f.plain, ok = PlainSize(stored, f.envelope); !ok {
		return nil, fmt.Errorf("%w: nothing that is encrypted behind a header of %d bytes has %d bytes", ErrDamaged, len(head), stored)
	}
	if !k.Opens() {
		return nil, ErrLocked
	}
	key, err := age.DecryptHeader(head, k.identities...)
	if locked := new(age.NoIdentityMatchError); errors.As(err, &locked) {
		return nil, ErrLocked
	} else if err != nil {
		return nil, fmt.Errorf("%w: its header: %w", ErrDamaged, err)
	}
	if key, err = hkdf.Key(sha256.New, key, first[len(head):f.envelope], "payload", chacha20poly1305.KeySize); err != nil {
		return nil, err
	}
	f.aead, err = chacha20poly1305.New(key)
	return f, err
}

// Size is how many bytes lie in the object, and Envelope how many of it lie before them.
func (f *File) Size() uint64     { return f.plain }
func (f *File) Envelope() uint64 { return f.envelope }

// Span is the range of the object in which n bytes lie from byte off of what it holds: whole chunks. n is at least 1.
func (f *File) Span(off, n uint64) (from, size uint64) { return Span(f.plain, f.envelope, off, n) }

// Span is that of any object that holds so many bytes behind an envelope.
func Span(plain, envelope, off, n uint64) (from, size uint64) {
	a, z := off/chunkBytes, (off+n-1)/chunkBytes+1
	end := min(envelope+z*(chunkBytes+tagBytes), StoredSize(plain, envelope))
	from = envelope + a*(chunkBytes+tagBytes)
	return from, end - from
}

// Decrypt fills dst with what the object holds from byte off on, out of the Span of it, which is written over. After an error nothing is in dst.
func (f *File) Decrypt(dst []byte, off uint64, span []byte) error {
	all, last := dst, chunksOf(f.plain)-1
	for i := off / chunkBytes; len(span) > 0; i++ {
		c := span[:min(len(span), chunkBytes+tagBytes)]
		span = span[len(c):]
		var nonce [chacha20poly1305.NonceSize]byte
		binary.BigEndian.PutUint64(nonce[3:11], i)
		if i == last {
			nonce[11] = 1
		}
		skip, into := off-i*chunkBytes, c[:0]
		if whole := len(c) - tagBytes; skip == 0 && whole >= 0 && whole <= len(dst) {
			into = dst[:0:whole] // the copy is saved
		}
		b, err := f.aead.Open(into, nonce[:], c, nil)
		if err != nil || uint64(len(b)) < skip {
			clear(all)
			return fmt.Errorf("%w: chunk %d, at byte %d of the object", ErrDamaged, i, f.envelope+i*(chunkBytes+tagBytes))
		}
		n := copy(dst, b[skip:])
		dst, off = dst[n:], off+uint64(n)
	}
	if len(dst) > 0 {
		clear(all)
		return fmt.Errorf("%w: %d bytes are missing", ErrDamaged, len(dst))
	}
	return nil
}

// Stream decrypts an object in order: fill gives its bytes from the first on, what is returned those that lie in it.
func (f *File) Stream(fill func(b []byte) error) func(b []byte) error {
	var left, buf, stored []byte
	at, begun := uint64(0), false
	return func(b []byte) error {
		if !begun {
			begun = true
			if err := fill(make([]byte, f.envelope)); err != nil {
				return err
			}
			buf, stored = make([]byte, min(f.plain, chunkBytes)), make([]byte, min(f.plain, chunkBytes)+tagBytes)
		}
		for len(b) > 0 {
			if len(left) == 0 {
				left = buf[:min(f.plain-at, chunkBytes)]
				if len(left) == 0 {
					return fmt.Errorf("%w: it ends at byte %d", ErrDamaged, at)
				}
				if err := fill(stored[:len(left)+tagBytes]); err != nil {
					return err
				}
				if err := f.Decrypt(left, at, stored[:len(left)+tagBytes]); err != nil {
					return err
				}
				at += uint64(len(left))
			}
			n := copy(b, left)
			b, left = b[n:], left[n:]
		}
		return nil
	}
}
