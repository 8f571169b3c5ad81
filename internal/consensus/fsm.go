package consensus

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/invariant"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// maxSnapshot is the size of a snapshot read into memory.
const maxSnapshot = wire.MaxState + 1024

// fsm hosts the state machine. Raft's FSM goroutine alone calls it; views are published for everybody else.
type fsm struct {
	cluster replica.ClusterID
	changed func()
	log     func(msg string, args ...any)

	state *lock.State
	view  atomic.Pointer[lock.View]

	every   uint64 // entries from one mark to the next
	mark    atomic.Pointer[mark]
	marked  func(*mark)
	differs atomic.Uint64 // the newest mark at which the leader's state was another; 0: none

	// inEra is told of an era that begins with an entry or a snapshot; nil: nobody asks.
	inEra func(replica.Era)

	// An entry that does not decode comes from a newer program. Skipping it would make this copy of the state differ from
	// the others' without a sign, so the state stands still from there on, and so does what this node may do with it.
	halted atomic.Pointer[error]
}

// applied is what Apply answers to the proposer.
type applied struct {
	index uint64
	out   lock.Outcome
	err   error // ErrHalted
}

func newFSM(cluster replica.ClusterID, changed func(), log func(string, ...any)) *fsm {
	f := &fsm{cluster: cluster, changed: changed, log: log, every: digestEvery, marked: func(*mark) {}}
	f.publish(lock.New(cluster))
	return f
}

func (f *fsm) publish(s *lock.State) {
	f.state = s
	v := s.View()
	before := f.view.Swap(&v)
	if f.inEra != nil && before.Era != v.Era {
		f.inEra(v.Era)
	}
}

func (f *fsm) failure() error {
	if err := f.halted.Load(); err != nil {
		return *err
	}
	return nil
}

// halt has the state stand still; from any goroutine.
func (f *fsm) halt(err error, msg string, args ...any) {
	f.halted.Store(&err)
	f.log(msg, append(args, "error", err)...)
	f.changed()
}

// Apply implements raft.FSM.
func (f *fsm) Apply(l *raft.Log) any {
	if err := f.failure(); err != nil {
		return applied{index: l.Index, err: err}
	}
	c, err := wire.DecodeCommand(l.Data)
	if err != nil {
		if d := (digest{}); wire.Decode(l.Data, wire.KindDigest, &d) == nil {
			f.compare(d)
			return applied{index: l.Index}
		}
		err = fmt.Errorf("%w at entry %d: %w: run the program version that the other voters run", ErrHalted, l.Index, err)
		f.halt(err, "the log holds an entry that this program can't read; its state stands still", "index", l.Index)
		return applied{index: l.Index, err: err}
	}
	before := f.state.View()
	out := f.state.Apply(l.Index, c)
	f.publish(f.state)
	if invariant.On {
		err := lock.Check(before, f.state.View())
		invariant.Holds(err == nil, "entry %d, %T: %v", l.Index, c, err)
	}
	if before.Index/f.every != l.Index/f.every {
		m := newMark(f.state.View())
		f.mark.Store(m)
		f.marked(m)
	}
	if out.Changed {
		f.changed()
	}
	return applied{index: l.Index, out: out}
}

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.failure(); err != nil { // a snapshot would swallow the entries that were not applied
		return nil, err
	}
	return view(f.state.View()), nil
}

// Restore implements raft.FSM.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxSnapshot+1))
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	if len(b) > maxSnapshot {
		return fmt.Errorf("snapshot of more than %d bytes", maxSnapshot)
	}
	v, err := decodeSnapshot(b, f.cluster)
	if err != nil {
		f.log("snapshot refused", "error", err)
		return err
	}
	f.publish(lock.FromView(v))
	f.halted.Store(nil)
	f.changed()
	return nil
}

// view is a snapshot being written: an immutable value.
type view lock.View

// Persist implements raft.FSMSnapshot.
func (v view) Persist(sink raft.SnapshotSink) error {
	b, err := encodeSnapshot(lock.View(v))
	if err == nil {
		_, err = sink.Write(b)
	}
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (view) Release() {}
