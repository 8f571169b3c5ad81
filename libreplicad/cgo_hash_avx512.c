//go:build cgo

// The inner loops for AVX-512: a file of their own, as each holds xxhash.h once; see cgo_client.c.
#include "src/hash_avx512.c"
