package wire

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/replicad/replicad/replica"
)

// The flags of RunHello.
const (
	RunResume           uint32 = 1   // the job, where it is created by this, goes on from the newest durable generation of its name
	RunRequireVotes     uint32 = 2   // no plan rests on a sole producer's word
	RunCollectiveWindow uint32 = 4   // the optimizer window holds collectives
	runMore             uint32 = 8   // on the wire alone: PrivateCapMB and Nondeterministic follow the lists
	RunNameGroups       uint32 = 16  // the ranks name their replica groups: Groups is empty
	runJoined           uint32 = 32  // on the wire alone: Joined follows all else but Notes
	runNotes            uint32 = 64  // on the wire alone: Notes follow all else, and their length in bytes, u32
	runFrom             uint32 = 128 // on the wire alone: From follows all else but Notes, and its length in bytes, u32
	RunKeeps            uint32 = 256 // a sealed descriptor comes along: files that the run is to carry (internal/durable/kept)
	RunUnlessEnded      uint32 = 512 // the job is not created where the newest of its name has ended unfinished, unless RunResume is there
	runLoneShift               = 16  // on the wire alone: LoneAhead is in the upper half
)

// MaxRunNondeterministic is how many groups a RunHello may name as non-deterministic.
const MaxRunNondeterministic = 64

// RunHello is the body of MRunHello: what a launcher offers. The options after Groups take effect where it creates the job; 0: default.
type RunHello struct {
	ABI, World                                                 uint32
	Capacity                                                   uint32            // processes it may run
	Spare                                                      bool              // takes no rank unless one is lost elsewhere
	Ranks                                                      []replica.Rank    // preferred ones
	Groups                                                     []replica.GroupID // of each rank of the world (as many as World), or none
	MinCopies, Cadence, Slots, ChunkBytes, DurableEvery, Flags uint32
	Job, Token                                                 string // at most 63 bytes each
	PrivateCapMB                                               uint32
	LoneAhead                                                  uint16            // steps, as replica.Options has it
	Nondeterministic                                           []replica.GroupID // at most MaxRunNondeterministic
	Joined                                                     replica.JobID     // that it was accepted for by the daemon before; zero: none
	Notes                                                      []replica.Remark  // of the run
	From                                                       *From             // what a new job begins with; nil: its program's own initial state
}

// From is what a launcher says of the generation that a new job begins with.
type From struct {
	replica.Origin
	Failed string // why Asked names none that can be loaded, at most MaxRefusedText bytes; only Asked counts then
}

// MaxFrom is how many bytes a From takes at most.
const MaxFrom = 2 + 4*replica.MaxOrigin + MaxRefusedText + 256

// Check says what is wrong with it.
func (f *From) Check() error {
	if f.Failed == "" {
		return f.Origin.Check()
	}
	if f.Asked == "" || replica.Line(f.Asked, replica.MaxOrigin) != f.Asked || replica.Line(f.Failed, MaxRefusedText) != f.Failed { // launchers print them
		return fmt.Errorf("an origin that was asked for in %d bytes, and failed in %d: want at most %d and %d that can be printed", len(f.Asked), len(f.Failed), replica.MaxOrigin, MaxRefusedText)
	}
	return nil
}

const runHelloBytes = 176

// Limits of what a RunHello asks for; 0 stands for a default.
const (
	MaxRunMinCopies    = 64
	MaxRunCadence      = 1 << 20
	MinRunSlots        = 2
	MaxRunSlots        = 4
	MaxRunChunkMB      = 1 << 10
	MaxRunPrivateCapMB = 1 << 20
)

// MaxRunWorld is the largest world whose groups fit a RunHello beside as many preferred ranks.
const MaxRunWorld = (MaxRankMessage - RankHeaderBytes - runHelloBytes - 8 - 4*MaxRunNondeterministic - 16) / 8

// Append appends the body.
func (r RunHello) Append(dst []byte) []byte {
	spare := uint32(0)
	if r.Spare {
		spare = 1
	}
	more := r.PrivateCapMB != 0 || len(r.Nondeterministic) > 0
	r.Flags = r.Flags&^(runMore|runJoined|runNotes|runFrom)&(1<<runLoneShift-1) | uint32(r.LoneAhead)<<runLoneShift
	if more {
		r.Flags |= runMore
	}
	if r.Joined != (replica.JobID{}) {
		r.Flags |= runJoined
	}
	if len(r.Notes) > 0 {
		r.Flags |= runNotes
	}
	if r.From != nil {
		r.Flags |= runFrom
	}
	for _, v := range [...]uint32{r.ABI, r.World, r.Capacity, spare, uint32(len(r.Ranks)), uint32(len(r.Groups)), r.MinCopies, r.Cadence, r.Slots, r.ChunkBytes, r.DurableEvery, r.Flags} {
		dst = le.AppendUint32(dst, v)
	}
	dst = appendText(appendText(dst, r.Job, 64), r.Token, 64)
	for _, k := range r.Ranks {
		dst = le.AppendUint32(dst, uint32(k))
	}
	for _, g := range r.Groups {
		dst = le.AppendUint32(dst, uint32(g))
	}
	if more {
		dst = le.AppendUint32(le.AppendUint32(dst, r.PrivateCapMB), uint32(len(r.Nondeterministic)))
		for _, g := range r.Nondeterministic {
			dst = le.AppendUint32(dst, uint32(g))
		}
	}
	if r.Flags&runJoined != 0 {
		dst = append(dst, r.Joined[:]...)
	}
	if r.From != nil {
		at := len(dst)
		dst = r.From.append(dst)
		dst = le.AppendUint32(dst, uint32(len(dst)-at))
	}
	if len(r.Notes) > 0 {
		at := len(dst)
		dst = AppendRemarks(dst, r.Notes)
		dst = le.AppendUint32(dst, uint32(len(dst)-at))
	}
	return dst
}

// ParseRunHello reads the body of MRunHello.
func ParseRunHello(b []byte) (r RunHello, err error) {
	if len(b) < runHelloBytes {
		return r, fmt.Errorf("run hello: body of %d bytes, want at least %d", len(b), runHelloBytes)
	}
	r = RunHello{ABI: le.Uint32(b), World: le.Uint32(b[4:]), Capacity: le.Uint32(b[8:]), MinCopies: le.Uint32(b[24:]), Cadence: le.Uint32(b[28:]), Slots: le.Uint32(b[32:]), ChunkBytes: le.Uint32(b[36:]), DurableEvery: le.Uint32(b[40:]), Flags: le.Uint32(b[44:])}
	r.LoneAhead, r.Flags = uint16(r.Flags>>runLoneShift), r.Flags&(1<<runLoneShift-1)
	spare, ranks, groups := le.Uint32(b[12:]), le.Uint32(b[16:]), le.Uint32(b[20:])
	if r.World == 0 || r.World > MaxRunWorld || ranks > r.World || spare > 1 || groups != 0 && (groups != r.World || r.Flags&RunNameGroups != 0) {
		return RunHello{}, fmt.Errorf("run hello: world of %d with %d preferred ranks, spare %d, groups %d: want a world of 1 to %d, no more ranks than that, spare 0 or 1, and no groups or one for each rank, none where the ranks name them", r.World, ranks, spare, groups, MaxRunWorld)
	}
	if r.Flags&runNotes != 0 {
		if b, err = r.parseNotes(b); err != nil {
			return RunHello{}, err
		}
	}
	if r.Flags&runFrom != 0 {
		if b, err = r.parseFrom(b); err != nil {
			return RunHello{}, err
		}
	}
	if r.Flags&runJoined != 0 {
		if b, err = r.parseJoined(b); err != nil {
			return RunHello{}, err
		}
	}
	want := runHelloBytes + 4*int(ranks) + 4*int(groups)
	if r.Flags&runMore != 0 && len(b) > want {
		if b, err = r.parseMore(b, want); err != nil {
			return RunHello{}, err
		}
	}
	if len(b) != want || r.Flags&runMore != 0 {
		return RunHello{}, fmt.Errorf("run hello: body of %d bytes, want %d for %d ranks and groups of a world of %d", len(b), want, ranks, r.World)
	}
	r.Spare = spare == 1
	if r.Job, err = parseText("run hello: job", b[48:112]); err != nil {
		return RunHello{}, err
	}
	if r.Token, err = parseText("run hello: token", b[112:176]); err != nil {
		return RunHello{}, err
	}
	at := b[runHelloBytes:]
	for range ranks {
		if k := le.Uint32(at); k >= r.World {
			return RunHello{}, fmt.Errorf("run hello: preferred rank %d of a world of %d", k, r.World)
		}
		r.Ranks, at = append(r.Ranks, replica.Rank(le.Uint32(at))), at[4:]
	}
	for len(at) > 0 {
		if g := le.Uint32(at); g >= r.World {
			return RunHello{}, fmt.Errorf("run hello: group %d of a world of %d", g, r.World)
		}
		r.Groups, at = append(r.Groups, replica.GroupID(le.Uint32(at))), at[4:]
	}
	if err := r.check(); err != nil {
		return RunHello{}, fmt.Errorf("run hello: %w", err)
	}
	return r, nil
}

// check refuses what `replicad run` would: another program may have sent it.
func (r RunHello) check() error {
	if r.Capacity > r.World {
		return fmt.Errorf("capacity of %d processes for a world of %d", r.Capacity, r.World)
	}
	for _, f := range [...]struct {
		what            string
		is, least, most uint32
	}{{"min copies", r.MinCopies, 1, MaxRunMinCopies}, {"cadence", r.Cadence, 1, MaxRunCadence}, {"slots", r.Slots, MinRunSlots, MaxRunSlots}, {"bytes of a chunk", r.ChunkBytes, 1 << 20, MaxRunChunkMB << 20},
		{"private cap in MiB", r.PrivateCapMB, 1, MaxRunPrivateCapMB}} {
		if f.is != 0 && (f.is < f.least || f.is > f.most) {
			return fmt.Errorf("%s %d: want %d to %d, or 0 for the default", f.what, f.is, f.least, f.most)
		}
	}
	if err := replica.CheckDurableEvery(replica.Step(r.DurableEvery)); err != nil {
		return err
	}
	ranks := make(map[replica.Rank]bool, len(r.Ranks))
	for _, k := range r.Ranks {
		if ranks[k] {
			return fmt.Errorf("rank %d is preferred twice", k)
		}
		ranks[k] = true
	}
	for i, g := range r.Nondeterministic {
		if slices.Contains(r.Nondeterministic[:i], g) {
			return fmt.Errorf("group %d is named non-deterministic twice", g)
		}
	}
	return nil
}

// tail is where what ends the body begins, behind which its length lies.
func tail(b []byte, what string) (at, end int, err error) {
	end = len(b) - 4
	if end < runHelloBytes {
		return 0, 0, fmt.Errorf("run hello: body of %d bytes has no room for the %s that it says to end with", len(b), what)
	}
	n := uint64(le.Uint32(b[end:]))
	if n == 0 || n > uint64(end-runHelloBytes) {
		return 0, 0, fmt.Errorf("run hello: body of %d bytes has no room for %s of %d bytes", len(b), what, n)
	}
	return end - int(n), end, nil
}

// append appends the origin as CBOR, and why it failed.
func (f *From) append(dst []byte) []byte {
	b, err := Marshal(fromBody{&f.Origin, f.Failed})
	if err != nil {
		panic(err) // texts and numbers
	}
	return append(dst, b...)
}

type fromBody struct {
	Origin *replica.Origin `cbor:"1,keyasint"`
	Failed string          `cbor:"2,keyasint,omitempty"`
}

// parseFrom reads what ends the body, and returns what is before it.
func (r *RunHello) parseFrom(b []byte) ([]byte, error) {
	at, end, err := tail(b, "origin")
	if err != nil {
		return nil, err
	}
	if end-at > MaxFrom {
		return nil, fmt.Errorf("run hello: an origin of %d bytes, at most %d", end-at, MaxFrom)
	}
	f := fromBody{Origin: &replica.Origin{}}
	if err := Unmarshal(b[at:end], &f); err != nil {
		return nil, fmt.Errorf("run hello: its origin: %w", err)
	}
	if f.Origin == nil {
		return nil, fmt.Errorf("run hello: its origin is empty")
	}
	r.From = &From{*f.Origin, f.Failed}
	if !bytes.Equal(r.From.append(nil), b[at:end]) {
		return nil, fmt.Errorf("run hello: its origin is not encoded as it is to be")
	}
	if err := r.From.Check(); err != nil {
		return nil, fmt.Errorf("run hello: %w", err)
	}
	r.Flags &^= runFrom
	return b[:at], nil
}

// parseNotes reads what ends the body, and returns what is before it.
func (r *RunHello) parseNotes(b []byte) ([]byte, error) {
	at, end, err := tail(b, "notes")
	if err != nil {
		return nil, err
	}
	if r.Notes, err = ParseRemarks(b[at:end]); err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(r.Notes, func(n replica.Remark) bool { return n.Kind != replica.Note }); i >= 0 {
		return nil, fmt.Errorf("run hello: a launcher says notes alone, not a %v", r.Notes[i].Kind)
	}
	r.Flags &^= runNotes
	return b[:at], nil
}

// parseJoined reads what ends the body, and returns what is before it.
func (r *RunHello) parseJoined(b []byte) ([]byte, error) {
	at := len(b) - len(r.Joined)
	if at < runHelloBytes {
		return nil, fmt.Errorf("run hello: body of %d bytes has no room for the job that it says to end with", len(b))
	}
	if copy(r.Joined[:], b[at:]); r.Joined == (replica.JobID{}) {
		return nil, fmt.Errorf("run hello: the job that it was accepted for is zero")
	}
	r.Flags &^= runJoined
	return b[:at], nil
}

// parseMore reads what follows the lists, from at on, and returns what is before it.
func (r *RunHello) parseMore(b []byte, at int) ([]byte, error) {
	more := b[at:]
	if len(more) < 8 {
		return nil, fmt.Errorf("run hello: %d bytes after its lists, want at least 8", len(more))
	}
	n := le.Uint32(more[4:])
	if r.PrivateCapMB = le.Uint32(more); n > MaxRunNondeterministic || len(more) != 8+4*int(n) || n == 0 && r.PrivateCapMB == 0 {
		return nil, fmt.Errorf("run hello: %d bytes after its lists for a private cap of %d MiB and %d non-deterministic groups: want at most %d of those", len(more), r.PrivateCapMB, n, MaxRunNondeterministic)
	}
	for more = more[8:]; len(more) > 0; more = more[4:] {
		if g := le.Uint32(more); g >= r.World {
			return nil, fmt.Errorf("run hello: non-deterministic group %d of a world of %d", g, r.World)
		}
		r.Nondeterministic = append(r.Nondeterministic, replica.GroupID(le.Uint32(more)))
	}
	r.Flags &^= runMore
	return b[:at], nil
}

// ExitDoNotRequeue is the exit code of `replicad run` where its job ended and starting it again would only end the same way.
const ExitDoNotRequeue = 5

// ExitRefused is the exit code of `replicad run` where its program was refused before it had a rank, and its job is kept for the right one.
const ExitRefused = 6

// DoneStopped is the code of MRunDone where the job was stopped, which is no failure, and may go on: the launcher ends its ranks, and ends with 0.
const DoneStopped = 256

// StatusFinal is the exit status by which a rank's program says that a new process would only end the same way (sysexits' EX_CONFIG).
// One that has its rank ends its job, which is not to be requeued. One that never had it ends its launcher.
const StatusFinal = 78

// StatusWant is the exit status by which a program says that it was short of something (sysexits' EX_TEMPFAIL): another try may find it.
const StatusWant = 75

// RunExited is the body of MRunExited.
type RunExited struct {
	Rank   replica.Rank
	Status int32 // exit code, or 128 + signal; below 0: no process could be started, for want of what has that number in internal/want
	PID    uint64
}

// Append appends the body.
func (r RunExited) Append(dst []byte) []byte {
	return le.AppendUint64(le.AppendUint32(le.AppendUint32(dst, uint32(r.Rank)), uint32(r.Status)), r.PID)
}

// ParseRunExited reads the body of MRunExited.
func ParseRunExited(b []byte) (RunExited, error) {
	if err := checkBody("run exited", b, 16); err != nil {
		return RunExited{}, err
	}
	return RunExited{replica.Rank(le.Uint32(b)), int32(le.Uint32(b[4:])), le.Uint64(b[8:])}, nil
}

// RunStart is the body of MRunStart: run a process for this rank.
type RunStart struct {
	Rank   replica.Rank
	World  uint32
	Group  replica.GroupID   // NoGroup: the process names it
	Early  uint32            // how many of its processes here ended, in a row until now, before they attached
	Groups []replica.GroupID // of each rank of the world, or none
}

const runStartBytes = 20

// Append appends the body.
func (r RunStart) Append(dst []byte) []byte {
	dst = le.AppendUint32(le.AppendUint32(dst, uint32(r.Rank)), r.World)
	dst = le.AppendUint32(le.AppendUint32(dst, uint32(r.Group)), r.Early)
	dst = le.AppendUint32(dst, uint32(len(r.Groups)))
	for _, g := range r.Groups {
		dst = le.AppendUint32(dst, uint32(g))
	}
	return dst
}

// ParseRunStart reads the body of MRunStart.
func ParseRunStart(b []byte) (RunStart, error) {
	if len(b) < runStartBytes {
		return RunStart{}, fmt.Errorf("run start: body of %d bytes, want at least %d", len(b), runStartBytes)
	}
	r := RunStart{Rank: replica.Rank(le.Uint32(b)), World: le.Uint32(b[4:]), Group: replica.GroupID(le.Uint32(b[8:])), Early: le.Uint32(b[12:])}
	groups := le.Uint32(b[16:])
	if groups != 0 && groups != r.World || uint64(len(b)) != runStartBytes+4*uint64(groups) {
		return RunStart{}, fmt.Errorf("run start: body of %d bytes for %d groups of a world of %d: want none of them or one for each rank", len(b), groups, r.World)
	}
	for at := b[runStartBytes:]; len(at) > 0; at = at[4:] {
		g := le.Uint32(at)
		if g >= r.World {
			return RunStart{}, fmt.Errorf("run start: group %d of a world of %d", g, r.World)
		}
		r.Groups = append(r.Groups, replica.GroupID(g))
	}
	return r, nil
}

// RunStop is the body of MRunStop: the process of this rank is superseded, or the job has ended.
type RunStop struct {
	Rank   replica.Rank
	Signal uint32
}

// Append appends the body.
func (r RunStop) Append(dst []byte) []byte {
	return le.AppendUint32(le.AppendUint32(dst, uint32(r.Rank)), r.Signal)
}

// ParseRunStop reads the body of MRunStop.
func ParseRunStop(b []byte) (RunStop, error) {
	if err := checkBody("run stop", b, 8); err != nil {
		return RunStop{}, err
	}
	return RunStop{replica.Rank(le.Uint32(b)), le.Uint32(b[4:])}, nil
}
