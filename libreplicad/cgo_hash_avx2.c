//go:build cgo

// The inner loops for AVX2: a file of their own, as each holds xxhash.h once; see cgo_client.c.
#include "src/hash_avx2.c"
