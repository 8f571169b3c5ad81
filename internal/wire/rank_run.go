package wire

import (
	"fmt"

	"github.com/replicad/replicad/replica"
)

// RunResume is a flag of RunHello: the job, where it is created by this, goes on from the newest durable generation of its name.
const RunResume uint32 = 1

// RunHello is the body of MRunHello: what a launcher offers. The options after Groups take effect where it creates the job; 0: default.
type RunHello struct {
	ABI, World                                                 uint32
	Capacity                                                   uint32            // processes it may run
	Spare                                                      bool              // takes no rank unless one is lost elsewhere
	Ranks                                                      []replica.Rank    // preferred ones
	Groups                                                     []replica.GroupID // of each rank of the world (as many as World), or none
	MinCopies, Cadence, Slots, ChunkBytes, DurableEvery, Flags uint32
	Job, Token                                                 string // at most 63 bytes each
}

const runHelloBytes = 176

// MaxRunWorld is the largest world whose groups fit a RunHello beside as many preferred ranks.
const MaxRunWorld = (MaxRankMessage - RankHeaderBytes - runHelloBytes) / 8

// Append appends the body.
func (r RunHello) Append(dst []byte) []byte {
	spare := uint32(0)
	if r.Spare {
		spare = 1
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
	return dst
}

// ParseRunHello reads the body of MRunHello.
func ParseRunHello(b []byte) (r RunHello, err error) {
	if len(b) < runHelloBytes {
		return r, fmt.Errorf("run hello: body of %d bytes, want at least %d", len(b), runHelloBytes)
	}
	r = RunHello{ABI: le.Uint32(b), World: le.Uint32(b[4:]), Capacity: le.Uint32(b[8:]), MinCopies: le.Uint32(b[24:]), Cadence: le.Uint32(b[28:]), Slots: le.Uint32(b[32:]), ChunkBytes: le.Uint32(b[36:]), DurableEvery: le.Uint32(b[40:]), Flags: le.Uint32(b[44:])}
	spare, ranks, groups := le.Uint32(b[12:]), le.Uint32(b[16:]), le.Uint32(b[20:])
	if r.World == 0 || r.World > MaxRunWorld || ranks > r.World || spare > 1 || groups != 0 && groups != r.World {
		return RunHello{}, fmt.Errorf("run hello: world of %d with %d preferred ranks, spare %d, groups %d: want a world of 1 to %d, no more ranks than that, spare 0 or 1, and no groups or one for each rank", r.World, ranks, spare, groups, MaxRunWorld)
	}
	if want := runHelloBytes + 4*int(ranks) + 4*int(groups); len(b) != want {
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
	return r, nil
}

// RunExited is the body of MRunExited.
type RunExited struct {
	Rank   replica.Rank
	Status int32 // exit code, or 128 + signal
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
	Rank  replica.Rank
	World uint32
	Group replica.GroupID
}

// Append appends the body.
func (r RunStart) Append(dst []byte) []byte {
	dst = le.AppendUint32(le.AppendUint32(dst, uint32(r.Rank)), r.World)
	return le.AppendUint32(le.AppendUint32(dst, uint32(r.Group)), 0)
}

// ParseRunStart reads the body of MRunStart.
func ParseRunStart(b []byte) (RunStart, error) {
	if err := checkBody("run start", b, 16); err != nil {
		return RunStart{}, err
	}
	return RunStart{replica.Rank(le.Uint32(b)), le.Uint32(b[4:]), replica.GroupID(le.Uint32(b[8:]))}, parseZero("run start", b[12:])
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
