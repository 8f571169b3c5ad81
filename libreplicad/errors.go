//go:build cgo

package libreplicad

// #include "replicad.h"
import "C"

import "fmt"

// Error is a code of the C client with its text, which names the value and the remedy.
type Error struct {
	Code int    // RP_E*, see include/replicad.h
	Op   string // the call; "" in the sentinels
	Text string
}

func (e *Error) Error() string {
	if e.Op == "" {
		return e.Text
	}
	return fmt.Sprintf("replicad: %s: %s", e.Op, e.Text)
}

// Is tells whether target is the sentinel of e's code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Op == "" && t.Code == e.Code
}

func sentinel(code C.int) *Error {
	return &Error{Code: int(code), Text: C.GoString(C.rp_strerror(code))}
}

// Sentinels for errors.Is.
var (
	ErrFenced   = sentinel(C.RP_EFENCED)   // the epoch is closed: stop collectives, Join
	ErrCorrupt  = sentinel(C.RP_ECORRUPT)  // bytes do not hash to what was planned
	ErrAgain    = sentinel(C.RP_EAGAIN)    // not yet
	ErrTimeout  = sentinel(C.RP_ETIMEOUT)  // the deadline passed
	ErrGone     = sentinel(C.RP_EGONE)     // the daemon is not there
	ErrFork     = sentinel(C.RP_EFORK)     // the handle belongs to another process
	ErrVersion  = sentinel(C.RP_EVERSION)  // the other side speaks another version
	ErrInvalid  = sentinel(C.RP_EINVAL)    // bad argument
	ErrRefused  = sentinel(C.RP_EREFUSED)  // the daemon refused, and says why
	ErrNoMemory = sentinel(C.RP_ENOMEM)    // too little memory
	ErrSystem   = sentinel(C.RP_ESYS)      // a system call failed
	ErrState    = sentinel(C.RP_ESTATE)    // call out of order
	ErrStopped  = sentinel(C.RP_ESTOPPED)  // the job has ended or the rank was superseded: exit
	ErrCanceled = sentinel(C.RP_ECANCELED) // a capture was cancelled, or the good word is frozen
)
