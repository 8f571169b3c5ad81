package gcs

import "hash/crc32"

// joined is the CRC32C of two pieces of bytes, of their own and the size of the second. A zero byte behind the first multiplies its
// polynomial by x^8; size of them are made by squaring, so that no byte is read again.
func joined(first, second uint32, size int64) uint32 {
	var step, square [32]uint32 // matrices over GF(2), by columns
	step[0] = crc32.Castagnoli  // one zero bit
	for i := 1; i < 32; i++ {
		step[i] = 1 << (i - 1)
	}
	for range 3 { // one zero byte
		squared(&square, &step)
		step = square
	}
	for ; size > 0; size >>= 1 {
		if size&1 == 1 {
			first = times(&step, first)
		}
		squared(&square, &step)
		step = square
	}
	return first ^ second
}

func times(m *[32]uint32, v uint32) (sum uint32) {
	for i := 0; v != 0; i, v = i+1, v>>1 {
		if v&1 == 1 {
			sum ^= m[i]
		}
	}
	return sum
}

func squared(to, m *[32]uint32) {
	for i := range m {
		to[i] = times(m, m[i])
	}
}
