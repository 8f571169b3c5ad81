//go:build cgo

// The inner loops for any machine; see cgo_client.c.
#include "src/hash.c"
