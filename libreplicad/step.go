//go:build cgo

package libreplicad

// #cgo noescape rp_step_enter
// #cgo nocallback rp_step_enter
// #cgo noescape rp_step_exit
// #cgo nocallback rp_step_exit
// #cgo nocallback rp_set_good
// #cgo noescape rp_seal_step
// #cgo nocallback rp_seal_step
// #include "gocall.h"
import "C"

import (
	"time"

	"github.com/replicad/replicad/replica"
)

// StepEnter opens the optimizer window of step. It waits at most timeout for the capture of the step before to leave the live
// state, and cancels it then. ErrFenced: the step was not begun, go to Join.
func (s *Session) StepEnter(step replica.Step, timeout time.Duration) error {
	code := C.rp_step_enter(s.h, C.uint64_t(step), C.int64_t(timeout), &s.call.error)
	s.poke() // the private part, sealed even where the step was not begun
	if code != C.RP_OK {
		return failure("step enter", code, s.call)
	}
	return nil
}

// StepExit closes the window and starts the capture behind the next forward. The state is taken to be good, as it is on a CPU
// with the collectives' errors seen by now; after FreezeGood it is not.
func (s *Session) StepExit(step replica.Step, flags replica.PartFlags) error {
	if !s.frozen {
		if code := C.rp_set_good(s.h, s.epoch, C.uint64_t(step)); code != C.RP_OK {
			return &Error{Code: int(code), Op: "step exit", Text: "the good word can't be raised: the handle is not inside this step, or has lost its arena"}
		}
	}
	code := C.rp_step_exit(s.h, C.uint64_t(step), C.uint32_t(flags), &s.call.armed, &s.call.error)
	s.poke()
	if code != C.RP_OK {
		return failure("step exit", code, s.call)
	}
	return nil
}

// SealStep has the step that is live sealed, between two steps, though neither cadence nor candidate ask for it, so that it can
// be committed; with Pause the daemons hear that no later step is to be waited for. ErrAgain: not yet. unchanged: the private regions
// are still as they were when their part was sealed, or skipped.
func (s *Session) SealStep(unchanged bool) error {
	var flags C.uint32_t
	if unchanged {
		flags = C.RP_PRIVATE_UNCHANGED
	}
	return failure("seal step", C.rp_seal_step(s.h, flags, &s.call.error), s.call)
}

// FreezeGood stops the good word until the next load: call it at the first communicator error, before aborting anything.
func (s *Session) FreezeGood() {
	s.frozen = true
	C.rp_freeze_good(s.h, s.epoch)
}

// Fenced tells whether the session's epoch is closed. Any goroutine may ask.
func (s *Session) Fenced() bool { return C.rp_fenced(s.h) != 0 }

// Committed is the step last committed, as the daemon wrote it to the control page. Any goroutine may ask.
func (s *Session) Committed() replica.Step { return replica.Step(C.rp_committed(s.h)) }

// Stats counts what the session has done.
type Stats struct {
	Captures, Skipped, Canceled uint64 // replicated parts
	PrivateSkipped              uint64 // private parts for which the ring had no free place
	CaptureBytes                uint64
	CaptureTime                 time.Duration // copy and hash, of finished captures
	Reconnects                  uint64
}

// Stats may be asked from any goroutine.
func (s *Session) Stats() Stats {
	var c C.rp_stats
	c.struct_size = C.sizeof_rp_stats
	C.rp_get_stats(s.h, &c)
	return Stats{Captures: uint64(c.captures), Skipped: uint64(c.skipped), Canceled: uint64(c.canceled), PrivateSkipped: uint64(c.private_skipped),
		CaptureBytes: uint64(c.capture_bytes), CaptureTime: time.Duration(c.capture_ns), Reconnects: uint64(c.reconnects)}
}
