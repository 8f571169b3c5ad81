//go:build cgo

package libreplicad

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -fvisibility=hidden -Wall -Wextra -I${SRCDIR}/include -I${SRCDIR}/src -I${SRCDIR}/third_party/xxhash
#cgo LDFLAGS: -lpthread
#include <stdlib.h>
#include "gocall.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/replica"
)

// Options say who the rank is. Empty strings, and a Rank of -1, mean the environment that `replicad run` sets.
type Options struct {
	Socket string          // $REPLICAD_SOCKET
	Job    string          // $REPLICAD_JOB
	Token  string          // $REPLICAD_TOKEN
	Rank   int             // $REPLICAD_RANK
	World  uint32          // ranks in the job
	Group  replica.GroupID // replica.NoGroup: SetGroup says it

	CaptureThreads int // that copy one capture: 1 to 16; 0: $REPLICAD_CAPTURE_THREADS, or 1
}

// Region is a named piece of live state. Data must stay allocated until Close.
type Region struct {
	Name  string
	DType replica.DType
	Kind  replica.Kind
	Class replica.Class
	Flags replica.RegionFlags
	Shape []uint64 // nil: one dimension that fills Data
	Data  *Memory
}

// Session is a rank's session with the daemon of its node: one handle of the C client.
type Session struct {
	h    *C.rp_handle
	call *C.go_call // the training goroutine's

	wake chan struct{} // to the worker; capacity 1: work is found by looking, so a second wake adds nothing
	back chan struct{} // from the watcher: connected again; capacity 1
	quit chan struct{}
	stop int // eventfd that ends the watcher's poll; -1 before Attach
	done sync.WaitGroup

	helpers int // goroutines that copy beside the worker

	epoch  C.uint64_t // that Join said; the training goroutine's
	frozen bool       // FreezeGood was called in this epoch; the training goroutine's

	mu    sync.Mutex // guards the two below
	fence chan struct{}
	cut   bool // fence is closed
}

// A C call waits no longer than this before the context is looked at again.
const slice = time.Second

func newCall() *C.go_call { return (*C.go_call)(C.calloc(1, C.sizeof_go_call)) }

func failure(op string, code C.int, call *C.go_call) error {
	if code == C.RP_OK {
		return nil
	}
	return &Error{Code: int(code), Op: op, Text: C.GoString(&call.error.text[0])}
}

// waiting calls fn until it says something other than "not in time", the context ends, or its error is not worth another try:
// ErrAgain always is, ErrGone is where the daemon may be found again.
func (s *Session) waiting(ctx context.Context, op string, fn func(ns C.int64_t) C.int) error {
	for {
		left := slice
		if end, ok := ctx.Deadline(); ok {
			left = max(0, min(left, time.Until(end)))
		}
		s.call.error.text[0] = 0
		code := fn(C.int64_t(left))
		err := failure(op, code, s.call)
		s.checkFence() // the call may have read the message that would have woken the watcher
		switch code {
		case C.RP_ETIMEOUT, C.RP_EAGAIN, C.RP_EGONE:
		default:
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
		if code == C.RP_ETIMEOUT {
			continue
		}
		select {
		case <-s.back:
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
		if code == C.RP_EGONE && s.h != nil && s.stop < 0 { // no watcher before Attach
			C.rp_reconnect(s.h, C.int64_t(answerWithin), &s.call.error)
		}
	}
}

// Open connects to the daemon and says hello, waiting for the daemon to appear until ctx ends.
func Open(ctx context.Context, o Options) (*Session, error) {
	threads, err := captureThreads(o.CaptureThreads)
	if err != nil {
		return nil, err
	}
	s := &Session{helpers: threads - 1, call: newCall(), wake: make(chan struct{}, 1), back: make(chan struct{}, 1), quit: make(chan struct{}), stop: -1, fence: make(chan struct{})}
	opt := (*C.rp_options)(C.calloc(1, C.sizeof_rp_options))
	defer C.free(unsafe.Pointer(opt))
	opt.struct_size = C.sizeof_rp_options
	opt.world, opt.rank, opt.group = C.uint32_t(o.World), C.int32_t(o.Rank), C.uint32_t(o.Group)
	for _, f := range []struct {
		to   **C.char
		from string
	}{{&opt.socket_path, o.Socket}, {&opt.job, o.Job}, {&opt.token, o.Token}} {
		if f.from != "" {
			*f.to = C.CString(f.from)
			defer C.free(unsafe.Pointer(*f.to))
		}
	}
	err = s.waiting(ctx, "open", func(ns C.int64_t) C.int {
		opt.timeout_ns = ns
		return C.rp_open(opt, &s.h, &s.call.error)
	})
	if err != nil {
		C.free(unsafe.Pointer(s.call))
		return nil, err
	}
	return s, nil
}

// SetGroup names the rank's replica group, before Attach, in place of the one that Open was given.
func (s *Session) SetGroup(g replica.GroupID) error {
	return failure("set group", C.rp_set_group(s.h, C.uint32_t(g), &s.call.error), s.call)
}

// Register names the live state, once, before Attach; the order must be equal on all ranks of a group.
func (s *Session) Register(regions ...Region) error {
	if len(regions) == 0 {
		return &Error{Code: C.RP_EINVAL, Op: "register", Text: "no regions"}
	}
	table := unsafe.Slice((*C.rp_region)(C.calloc(C.size_t(len(regions)), C.sizeof_rp_region)), len(regions))
	defer C.free(unsafe.Pointer(&table[0]))
	for i, r := range regions {
		if err := replica.CheckRegionName(r.Name); err != nil { // a zero byte in it would end it in C, and nobody would notice
			return &Error{Code: C.RP_EINVAL, Op: "register", Text: err.Error()}
		}
		t := &table[i]
		t.name = C.CString(r.Name)
		defer C.free(unsafe.Pointer(t.name))
		size := r.DType.Size()
		if r.Data == nil || size == 0 || len(r.Shape) > replica.MaxDims {
			return &Error{Code: C.RP_EINVAL, Op: "register", Text: fmt.Sprintf("region %q: it needs Data, a known dtype (it has %v) and at most %d dimensions (it has %d)", r.Name, r.DType, replica.MaxDims, len(r.Shape))}
		}
		shape := r.Shape
		if shape == nil {
			shape = []uint64{uint64(len(r.Data.bytes)) / size}
		}
		t.struct_size = C.sizeof_rp_region
		t.dtype, t.kind, t.cls, t.ndim = C.uint8_t(r.DType), C.uint8_t(r.Kind), C.uint8_t(r.Class), C.uint8_t(len(shape))
		t.flags = C.uint32_t(r.Flags)
		t.data = unsafe.Pointer(unsafe.SliceData(r.Data.bytes))
		t.bytes = C.uint64_t(len(r.Data.bytes))
		for d, n := range shape {
			t.shape[d] = C.uint64_t(n)
		}
	}
	return failure("register", C.rp_register(s.h, &table[0], C.size_t(len(table)), &s.call.error), s.call)
}

// Attach claims the rank and maps its arena, and starts the session's goroutines.
func (s *Session) Attach(ctx context.Context) error {
	err := s.waiting(ctx, "attach", func(ns C.int64_t) C.int { return C.rp_attach(s.h, ns, &s.call.error) })
	if err != nil {
		return err
	}
	if s.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("replicad: attach: eventfd: %w", err)
	}
	s.poke() // the worker maps the arena's pages, while the state is on its way
	s.done.Go(s.work)
	s.done.Go(s.watch)
	for range s.helpers {
		s.done.Go(s.help)
	}
	return nil
}

// Close ends the session's goroutines and the handle. It does not say that the rank has finished; that is Leave.
func (s *Session) Close() error {
	if s.h == nil {
		return nil
	}
	close(s.quit)
	var err error
	if s.stop >= 0 {
		C.rp_cancel(s.h)
		one := [8]byte{1}
		_, werr := unix.Write(s.stop, one[:])
		s.done.Wait()
		err = errors.Join(werr, unix.Close(s.stop))
	}
	C.rp_close(s.h)
	C.free(unsafe.Pointer(s.call))
	s.h, s.call = nil, nil
	return err
}
