//go:build cgo

package libreplicad

// #include <stdlib.h>
// #include "gocall.h"
import "C"

import (
	"context"
	"encoding/json"
	"time"
	"unsafe"

	"github.com/replicad/replicad/replica"
)

// Action is what Join tells a rank to do.
type Action uint32

// The actions: initialise the state and seal it, or load it.
const (
	Init Action = C.RP_INIT
	Load Action = C.RP_LOAD
)

func (a Action) String() string {
	switch a {
	case Init:
		return "init"
	case Load:
		return "load"
	}
	return "invalid"
}

// Source is where the state to load comes from.
type Source uint32

// The sources, nearest first.
const (
	OwnRAM  Source = C.RP_OWN_RAM
	PeerRAM Source = C.RP_PEER_RAM
	Durable Source = C.RP_DURABLE
)

func (s Source) String() string {
	switch s {
	case 0:
		return "none"
	case OwnRAM:
		return "own-ram"
	case PeerRAM:
		return "peer-ram"
	case Durable:
		return "durable"
	}
	return "invalid"
}

// Order is where a rank starts.
type Order struct {
	Action      Action
	Epoch       replica.Epoch // the rank now works under it
	Step        replica.Step  // the state after it is (to be) in place; training goes on with the next
	Incarnation replica.Incarnation
	Source      Source // of a Load
	Rank        replica.Rank
	World       uint32
	Group       replica.GroupID
	Job         replica.JobID
}

// Join stops the rank (captures end, the daemon is told) and waits for the next order. It is called first, after every
// ErrFenced, and after SealInitial.
func (s *Session) Join(ctx context.Context) (Order, error) {
	info := (*C.rp_join_info)(C.calloc(1, C.sizeof_rp_join_info))
	defer C.free(unsafe.Pointer(info))
	info.struct_size = C.sizeof_rp_join_info
	if err := s.waiting(ctx, "join", func(ns C.int64_t) C.int { return C.rp_join(s.h, info, ns, &s.call.error) }); err != nil {
		return Order{}, err
	}
	job, err := replica.ParseUUID(C.GoString(&info.job_uuid[0]))
	if err != nil {
		return Order{}, err
	}
	s.epoch, s.frozen = info.epoch, false
	s.renewFence()
	return Order{Action: Action(info.action), Epoch: replica.Epoch(info.epoch), Step: replica.Step(info.step), Incarnation: replica.Incarnation(info.incarnation),
		Source: Source(info.source), Rank: replica.Rank(info.rank), World: uint32(info.world), Group: replica.GroupID(info.group), Job: job}, nil
}

// From says which generation of another run the job began with; nil: none. From Open on.
func (s *Session) From(ctx context.Context) (*replica.Origin, error) {
	const room = 8192
	text := (*C.char)(C.malloc(room))
	defer C.free(unsafe.Pointer(text))
	if err := s.waiting(ctx, "read what the job began with", func(ns C.int64_t) C.int { return C.rp_from(s.h, text, room, ns, &s.call.error) }); err != nil {
		return nil, err
	}
	b := C.GoString(text)
	if b == "" {
		return nil, nil
	}
	var o replica.Origin
	return &o, json.Unmarshal([]byte(b), &o)
}

// BeginAt says, after Init and before SealInitial, that the state in place is the program's own, of this step: the job counts from there.
func (s *Session) BeginAt(step replica.Step) error {
	return failure("begin at a step", C.rp_begin_at(s.h, C.uint64_t(step), &s.call.error), s.call)
}

// SealInitial captures and seals the initial state, after Init; Join again afterwards.
func (s *Session) SealInitial(ctx context.Context) error {
	return s.waiting(ctx, "seal initial state", func(C.int64_t) C.int { return C.rp_seal_initial(s.h, &s.call.error) })
}

// Load copies the ordered generation into the live state, every chunk verified.
func (s *Session) Load() error { return failure("load", C.rp_load(s.h, &s.call.error), s.call) }

// Ready acknowledges the load and waits until the epoch is opened.
func (s *Session) Ready(ctx context.Context) error {
	return s.waiting(ctx, "ready", func(ns C.int64_t) C.int { return C.rp_ready(s.h, ns, &s.call.error) })
}

// Fail reports a fault of this rank, an exception: the epoch will be closed.
func (s *Session) Fail(text string) error {
	t := C.CString(text)
	defer C.free(unsafe.Pointer(t))
	return failure("fail", C.rp_fail(s.h, t, &s.call.error), s.call)
}

// Reject says, between Load and Ready, that the loaded state is bad although every digest is right (values that are not
// finite, say): its generation is condemned for good and the job goes back to an older one. Join next.
func (s *Session) Reject(text string) error {
	t := C.CString(text)
	defer C.free(unsafe.Pointer(t))
	return failure("reject", C.rp_reject(s.h, t, &s.call.error), s.call)
}

// Pause says that the rank will stand still for at most so long, on purpose, so that it is not taken for a hang; 0 ends it.
func (s *Session) Pause(most time.Duration) error {
	return failure("pause", C.rp_pause(s.h, C.int64_t(most), &s.call.error), s.call)
}

// Ending says that the process is on its way out, for at most so long: it is no hang meanwhile.
func (s *Session) Ending(most time.Duration) error {
	return failure("ending", C.rp_ending(s.h, C.int64_t(most), &s.call.error), s.call)
}

// Lacks names what the copies of this rank do not hold although the program changes it; "" takes it back.
func (s *Session) Lacks(text string) error {
	t := C.CString(text)
	defer C.free(unsafe.Pointer(t))
	return failure("lacks", C.rp_lacks(s.h, t, &s.call.error), s.call)
}

// Leave says that the job is finished for this rank; then Close.
func (s *Session) Leave(ctx context.Context) error {
	return s.waiting(ctx, "leave", func(ns C.int64_t) C.int { return C.rp_leave(s.h, ns, &s.call.error) })
}
