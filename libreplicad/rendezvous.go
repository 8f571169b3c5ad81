//go:build cgo

package libreplicad

// #include <stdlib.h>
// #include "gocall.h"
import "C"

import (
	"context"
	"unsafe"
)

// MaxValueBytes is the most that one key of the rendezvous holds.
const MaxValueBytes = 32 << 10

// KVSet sets a key of the epoch's rendezvous.
func (s *Session) KVSet(ctx context.Context, key string, value []byte) error {
	k, v := C.CString(key), C.CBytes(value)
	defer C.free(unsafe.Pointer(k))
	defer C.free(v)
	return s.waiting(ctx, "set "+key, func(ns C.int64_t) C.int {
		return C.rp_kv_set(s.h, k, v, C.size_t(len(value)), ns, &s.call.error)
	})
}

// KVGet waits for a key of the epoch's rendezvous.
func (s *Session) KVGet(ctx context.Context, key string) ([]byte, error) {
	k, v := C.CString(key), C.malloc(MaxValueBytes)
	n := (*C.size_t)(C.malloc(C.sizeof_size_t))
	defer C.free(unsafe.Pointer(k))
	defer C.free(v)
	defer C.free(unsafe.Pointer(n))
	err := s.waiting(ctx, "get "+key, func(ns C.int64_t) C.int {
		*n = MaxValueBytes
		return C.rp_kv_get(s.h, k, v, n, ns, &s.call.error)
	})
	if err != nil {
		return nil, err
	}
	return C.GoBytes(v, C.int(*n)), nil
}

// Barrier waits until that many members came to it in this epoch.
func (s *Session) Barrier(ctx context.Context, name string, members uint32) error {
	k := C.CString(name)
	defer C.free(unsafe.Pointer(k))
	return s.waiting(ctx, "barrier "+name, func(ns C.int64_t) C.int {
		return C.rp_barrier(s.h, k, C.uint32_t(members), ns, &s.call.error)
	})
}
