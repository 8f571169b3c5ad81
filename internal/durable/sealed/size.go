package sealed

import "math"

const (
	chunkBytes = 64 << 10
	tagBytes   = 16
	nonceBytes = 16
)

// MaxEnvelope bounds header and nonce of an object, in bytes: MaxRecipients of any kind fit.
const MaxEnvelope = 128 << 10

// FirstBytes is how many bytes of an object have its envelope and its first chunk, whatever they are.
const FirstBytes = MaxEnvelope + chunkBytes + tagBytes

// StoredSize is how large an object is that holds so many bytes behind an envelope.
func StoredSize(plain, envelope uint64) uint64 {
	return envelope + plain + tagBytes*chunksOf(plain)
}

// PlainSize is how many bytes an object of a size holds behind an envelope; false: no object has these sizes.
func PlainSize(stored, envelope uint64) (plain uint64, ok bool) {
	if stored > math.MaxInt64 || envelope > stored {
		return 0, false
	}
	payload := stored - envelope
	n := (payload + chunkBytes + tagBytes - 1) / (chunkBytes + tagBytes)
	if payload < n*tagBytes {
		return 0, false
	}
	plain = payload - n*tagBytes
	return plain, StoredSize(plain, envelope) == stored
}

// chunksOf is in how many chunks so many bytes lie: nothing lies in one that is empty.
func chunksOf(plain uint64) uint64 {
	return max(1, (plain+chunkBytes-1)/chunkBytes)
}
