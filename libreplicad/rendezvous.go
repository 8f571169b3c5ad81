//go:build cgo

package libreplicad

// #include <stdlib.h>
// #include "gocall.h"
import "C"

import (
	"context"
	"unsafe"

	"github.com/replicad/replicad/replica"
)

// MaxValueBytes is the most that one key of the rendezvous holds.
const MaxValueBytes = 32 << 10

// Scope makes the epoch to come the one whose rendezvous is asked, until the next Join: so new processes meet before Attach, and
// survivors of a fence meet them. It is the job's highest closed epoch + 1.
func (s *Session) Scope(ctx context.Context) (replica.Epoch, error) {
	e := (*C.uint64_t)(C.calloc(1, C.sizeof_uint64_t))
	defer C.free(unsafe.Pointer(e))
	err := s.waiting(ctx, "scope", func(ns C.int64_t) C.int { return C.rp_scope(s.h, e, ns, &s.call.error) })
	return replica.Epoch(*e), err
}

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

// KVCheck tells whether a key of the epoch's rendezvous is set.
func (s *Session) KVCheck(ctx context.Context, key string) (bool, error) {
	k := C.CString(key)
	defer C.free(unsafe.Pointer(k))
	there := true
	err := s.waiting(ctx, "check "+key, func(ns C.int64_t) C.int {
		code := C.rp_kv_check(s.h, k, ns, &s.call.error)
		if there = code != C.RP_EAGAIN; !there {
			return C.RP_OK // an answer
		}
		return code
	})
	return there && err == nil, err
}

// KVAdd adds to a decimal number (no key: to 0) and returns the sum. It counts once, however often it has to be sent.
func (s *Session) KVAdd(ctx context.Context, key string, delta int64) (int64, error) {
	k, total := C.CString(key), (*C.int64_t)(C.calloc(1, C.sizeof_int64_t))
	defer C.free(unsafe.Pointer(k))
	defer C.free(unsafe.Pointer(total))
	err := s.waiting(ctx, "add to "+key, func(ns C.int64_t) C.int {
		return C.rp_kv_add(s.h, k, C.int64_t(delta), total, ns, &s.call.error)
	})
	return int64(*total), err
}

// KVCompareSet sets a key to what is desired if it holds what is expected (no key: if nothing is), and returns what it holds
// then. Both values together have at most MaxValueBytes.
func (s *Session) KVCompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	k, e, d, v := C.CString(key), C.CBytes(expected), C.CBytes(desired), C.malloc(MaxValueBytes)
	n := (*C.size_t)(C.malloc(C.sizeof_size_t))
	for _, p := range []unsafe.Pointer{unsafe.Pointer(k), e, d, v, unsafe.Pointer(n)} {
		defer C.free(p)
	}
	err := s.waiting(ctx, "compare and set "+key, func(ns C.int64_t) C.int {
		*n = MaxValueBytes
		return C.rp_kv_compare_set(s.h, k, e, C.size_t(len(expected)), d, C.size_t(len(desired)), v, n, ns, &s.call.error)
	})
	if err != nil {
		return nil, err
	}
	return C.GoBytes(v, C.int(*n)), nil
}

// KVDelete removes a key of the epoch's rendezvous and tells whether it was there.
func (s *Session) KVDelete(ctx context.Context, key string) (bool, error) {
	k, deleted := C.CString(key), (*C.int)(C.calloc(1, C.sizeof_int))
	defer C.free(unsafe.Pointer(k))
	defer C.free(unsafe.Pointer(deleted))
	err := s.waiting(ctx, "delete "+key, func(ns C.int64_t) C.int {
		return C.rp_kv_delete(s.h, k, deleted, ns, &s.call.error)
	})
	return *deleted != 0, err
}

// Barrier waits until that many members came to it in this epoch.
func (s *Session) Barrier(ctx context.Context, name string, members uint32) error {
	k := C.CString(name)
	defer C.free(unsafe.Pointer(k))
	return s.waiting(ctx, "barrier "+name, func(ns C.int64_t) C.int {
		return C.rp_barrier(s.h, k, C.uint32_t(members), ns, &s.call.error)
	})
}
