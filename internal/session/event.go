package session

import (
	"os"
	"time"

	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Peer is one rank or launcher, as the daemon sees it. Its methods may be called from any goroutine and never block.
type Peer interface {
	// ID is unique in the server's life.
	ID() uint64
	// PID is the process at the other end, from the socket's credentials.
	PID() int
	// StartTime is field 22 of the process' /proc/pid/stat, in clock ticks since boot.
	StartTime() uint64
	// UID is the process' user.
	UID() int
	// Send queues one message. If the queue is full the peer is hung up on: ErrSlow.
	Send(h wire.RankHeader, body []byte) error
	// SendFile queues one message with a descriptor; f stays the caller's.
	SendFile(h wire.RankHeader, body []byte, f *os.File) error
	// Refuse sends REFUSED in reply to request req. It does not end the session.
	Refuse(req uint32, code int32, text string)
	// Close ends the session once what is queued was written; a peer that does not take it in time loses it.
	Close()
}

// Event is what a peer said or a process did.
type Event interface{ event() }

type (
	// Hello asks for a rank. With File it is a REATTACH that offers the rank's arena; the file is the receiver's to close.
	Hello struct {
		Peer   Peer
		Header wire.RankHeader
		wire.Hello
		File *os.File
	}
	// Attach brings the geometry: all regions that the rank registered, in order. Group is NoGroup where the hello has it. Again: the rank asks
	// once more with the geometry that it sent before, and Regions is empty.
	Attach struct {
		Peer    Peer
		Header  wire.RankHeader
		Regions []replica.Region
		Group   replica.GroupID
		Again   bool
	}
	// Grow asks for other regions, between two steps; it expects MAttached, or MRefused. Recipe is what the job is to keep.
	Grow struct {
		Peer   Peer
		Header wire.RankHeader
		wire.Growth
		Regions []replica.Region
		Recipe  []byte
	}
	// Recipe asks for the job's from an offset on; it expects MRecipeIs.
	Recipe struct {
		Peer   Peer
		Header wire.RankHeader
		Offset uint32
	}
	// From asks what the job began with; it expects MFromIs.
	From struct {
		Peer   Peer
		Header wire.RankHeader
	}
	// Resumed asks which durable generation the job goes on from; it expects MResumedIs.
	Resumed struct {
		Peer   Peer
		Header wire.RankHeader
	}
	// Sealed says that the rank sealed a place.
	Sealed struct {
		Peer   Peer
		Header wire.RankHeader
		wire.Sealed
	}
	// Stopped says that the rank's captures are joined and it waits for orders.
	Stopped struct {
		Peer   Peer
		Header wire.RankHeader
		Live   replica.Word
	}
	// Loaded says that the state of the ordered epoch is in place.
	Loaded struct {
		Peer   Peer
		Header wire.RankHeader
		wire.Loaded
	}
	// Fail is an exception in the rank.
	Fail struct {
		Peer   Peer
		Header wire.RankHeader
		Text   string
	}
	// Unloadable says that rp_load found bytes that are not the plan's; Text says which.
	Unloadable struct {
		Peer   Peer
		Header wire.RankHeader
		Text   string
	}
	// Reject is a rank's word that the state it was given to load is bad although it hashes right.
	Reject struct {
		Peer   Peer
		Header wire.RankHeader
		Text   string
	}
	// Pause says that the rank will stand still for at most so long; 0: no longer. As a request it expects MPaused.
	Pause struct {
		Peer   Peer
		Header wire.RankHeader
		Most   time.Duration
	}
	// Ending says that the rank's process is on its way out, for at most so long.
	Ending struct {
		Peer   Peer
		Header wire.RankHeader
		Most   time.Duration
	}
	// Lacks names what copies of the rank do not hold although its program changes it; empty: nothing.
	Lacks struct {
		Peer   Peer
		Header wire.RankHeader
		Text   string
	}
	// Said is all that the rank says of its job.
	Said struct {
		Peer    Peer
		Header  wire.RankHeader
		Remarks []replica.Remark
	}
	// Leave says that the rank has finished; it expects MBye.
	Leave struct {
		Peer   Peer
		Header wire.RankHeader
	}
	// KV is a request to the rendezvous; Op is the message's type, wire.MKVSet and so on.
	KV struct {
		Peer   Peer
		Header wire.RankHeader
		Op     uint16
		wire.KV
	}
	// Scope asks for the epoch to come; it expects MScoped.
	Scope struct {
		Peer   Peer
		Header wire.RankHeader
	}
	// RunHello is a launcher's offer. Kept, where it is not nil, is the receiver's to close.
	RunHello struct {
		Peer   Peer
		Header wire.RankHeader
		wire.RunHello
		Kept *kept.Tar
	}
	// RunExited says that a launcher's process has ended.
	RunExited struct {
		Peer Peer
		wire.RunExited
	}
	// RunRunning says, after a launcher connected again, that it runs a process already.
	RunRunning struct {
		Peer Peer
		wire.RunExited
	}
	// RunLeaving says that a launcher was told to end, and lets its ranks end their step first.
	RunLeaving struct{ Peer Peer }
	// RunAgent says where the agent is for which a launcher stands.
	RunAgent struct {
		Peer Peer
		wire.Agent
	}
	// Gone says that the session is over: io.EOF if the peer hung up, else why.
	Gone struct {
		Peer Peer
		Err  error
	}
	// Short says that a connection was turned away for want of something; no more often than each second.
	Short struct{ Err error }
	// Exited says that a watched process has exited.
	Exited struct {
		PID       int
		StartTime uint64
	}
)

func (Hello) event()      {}
func (Attach) event()     {}
func (Grow) event()       {}
func (Recipe) event()     {}
func (From) event()       {}
func (Resumed) event()    {}
func (Sealed) event()     {}
func (Stopped) event()    {}
func (Loaded) event()     {}
func (Pause) event()      {}
func (Ending) event()     {}
func (Lacks) event()      {}
func (Said) event()       {}
func (Reject) event()     {}
func (Unloadable) event() {}
func (Fail) event()       {}
func (Leave) event()      {}
func (KV) event()         {}
func (Scope) event()      {}
func (RunHello) event()   {}
func (RunExited) event()  {}
func (RunRunning) event() {}
func (RunLeaving) event() {}
func (RunAgent) event()   {}
func (Gone) event()       {}
func (Short) event()      {}
func (Exited) event()     {}
