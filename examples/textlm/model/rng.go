package model

import "math/bits"

// splitmix is SplitMix64's output function: it turns counters and seeds into well mixed words.
func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// unit is a value in [-1, 1) that depends on the seed, the tensor and the element's place in the *unsharded* tensor, so that
// any sharding starts from the same weights.
func unit(seed, tensor, i, j uint64) float32 {
	x := splitmix(splitmix(splitmix(seed^tensor<<56)+i) + j)
	return float32(int32(x>>32)) / (1 << 31)
}

// seedRNG fills the state of a xoshiro256** generator.
func seedRNG(s []uint64, seed uint64) {
	for i := range s[:4] {
		s[i] = splitmix(seed + uint64(i))
	}
}

// next draws from the xoshiro256** generator whose state is s. The state is a private region: it has to come back exactly.
func next(s []uint64) uint64 {
	r := bits.RotateLeft64(s[1]*5, 7) * 9
	t := s[1] << 17
	s[2] ^= s[0]
	s[3] ^= s[1]
	s[1] ^= s[2]
	s[0] ^= s[3]
	s[2] ^= t
	s[3] = bits.RotateLeft64(s[3], 45)
	return r
}

// The sampler's state, a private region: which pass over the text, how many places of it have been seen, the key of its shuffle. It counts places, not
// batches, and is equal on all ranks: a run of another world goes on at the same place.
const (
	pass = iota
	cursor
	key
	samplerWords
)

// nextBatch fills at with the places of this replica's next examples: those from `cursor` on of a keyed permutation of
// all n places, of which every replica takes its own part. A pass ends when no whole batch is left.
func nextBatch(s []uint64, at []int, replica, replicas, n int) {
	global := len(at) * replicas
	if int(s[cursor])+global > n {
		s[pass]++
		s[cursor] = 0
		s[key] = splitmix(s[key])
	}
	first := int(s[cursor]) + replica*len(at)
	for i := range at {
		at[i] = permute(first+i, n, s[key])
	}
	s[cursor] += uint64(global)
}

// permute is a permutation of 0..n-1: four Feistel rounds over the next even power of two, walked until inside.
func permute(i, n int, k uint64) int {
	half := (bits.Len(uint(n-1)) + 1) / 2
	mask := uint64(1)<<half - 1
	x := uint64(i)
	for {
		l, r := x>>half, x&mask
		for round := range uint64(4) {
			l, r = r, l^(splitmix(k^round<<60^r)&mask)
		}
		if x = l<<half | r; x < uint64(n) {
			return int(x)
		}
	}
}
