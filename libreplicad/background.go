//go:build cgo

package libreplicad

// #include <stdlib.h>
// #include "gocall.h"
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// poke wakes the worker; it never blocks.
func (s *Session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// work is the worker goroutine: it runs armed captures and tells the daemon what was sealed. A capture that ends without a seal
// is counted in Stats; nobody else has to know.
func (s *Session) work() {
	call := newCall()
	defer C.free(unsafe.Pointer(call))
	for {
		select {
		case <-s.quit:
			return
		case <-s.wake:
		}
		C.rp_notify(s.h)
		s.checkFence() // that may have read the message which would have woken the watcher
		if code := C.rp_capture(s.h, &call.error); code == C.RP_OK {
			s.checkFence()
		}
	}
}

const (
	maxCaptureThreads = 16
	helpFor           = 500 * time.Millisecond // then a helper looks whether it is to end
)

// captureThreads is how many threads copy one capture: those that are asked for, or the environment's.
func captureThreads(n int) (int, error) {
	text := strconv.Itoa(n)
	if n == 0 {
		text = cmp.Or(os.Getenv("REPLICAD_CAPTURE_THREADS"), "1")
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxCaptureThreads {
		return 0, &Error{Code: C.RP_EINVAL, Op: "open", Text: fmt.Sprintf("REPLICAD_CAPTURE_THREADS=%.80q: want 1 to %d, how many threads of this rank copy a step (default 1)", text, maxCaptureThreads)}
	}
	return n, nil
}

// help takes chunks of each capture that the worker runs.
func (s *Session) help() {
	for {
		select {
		case <-s.quit:
			return
		default:
			C.rp_help(s.h, C.int64_t(helpFor))
		}
	}
}

// How long the watcher waits between tries to find a daemon that went away, and for its answer once it listens again.
const (
	retryEvery   = 20 // milliseconds
	answerWithin = 2 * time.Second
)

// watch is the watcher goroutine: it takes in what the daemon sends, sees the fence, and finds the daemon again.
func (s *Session) watch() {
	call := newCall()
	defer C.free(unsafe.Pointer(call))
	for s.readable(-1) {
		code := C.rp_notify(s.h)
		s.checkFence()
		for code == C.RP_EGONE {
			code = C.rp_reconnect(s.h, C.int64_t(answerWithin), &call.error)
			s.checkFence()
			if code == C.RP_OK {
				s.poke() // notices that waited
				select {
				case s.back <- struct{}{}:
				default:
				}
				break
			}
			if code == C.RP_ESTOPPED {
				s.cutFence() // superseded: the trainer finds out in its next call
				return
			}
			if s.pause(retryEvery) {
				return
			}
			code = C.RP_EGONE
		}
		// The training goroutine may be reading itself; it is let go first.
		if s.pause(1) {
			return
		}
	}
}

// readable waits until the daemon has sent something or is gone; false when the session closes.
func (s *Session) readable(milliseconds int) bool {
	p := []unix.PollFd{{Fd: int32(s.stop), Events: unix.POLLIN}, {Fd: int32(C.rp_fd(s.h)), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(p, milliseconds)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return p[0].Revents == 0
	}
}

// pause waits; true when the session closes.
func (s *Session) pause(milliseconds int) bool {
	p := []unix.PollFd{{Fd: int32(s.stop), Events: unix.POLLIN}}
	_, _ = unix.Poll(p, milliseconds) // cut short by a signal it is a shorter pause
	return p[0].Revents != 0
}

// Fence is closed when the epoch that Join named last is closed (or the rank has another owner): whoever is blocked in a
// collective of that epoch can stop. Join makes a new one. Any goroutine may ask.
func (s *Session) Fence() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fence
}

func (s *Session) renewFence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		s.fence, s.cut = make(chan struct{}), false
	}
	s.checkFenceLocked() // closed again before the channel was renewed
}

func (s *Session) checkFence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checkFenceLocked()
}

// checkFenceLocked looks at the word and cuts under one lock, so that the fence of an epoch never cuts the next one's channel.
func (s *Session) checkFenceLocked() {
	if !s.cut && s.Fenced() {
		s.cut = true
		close(s.fence)
	}
}

func (s *Session) cutFence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.cut {
		s.cut = true
		close(s.fence)
	}
}
