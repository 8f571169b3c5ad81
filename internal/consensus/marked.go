package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/replicad/replicad/internal/franchise"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// Values of the stable store that are not raft's.
var (
	eraKey   = []byte("replicad era")     // of franchise.Mark; none: 0
	boundKey = []byte("replicad invited") // a bound; none: this voter was never taken in
)

// bound is what an invite left on disk: in its term and those before this voter must never vote, as it may have done so.
type bound struct {
	Term, Index uint64
	Returns     bool
	Done        bool // it votes again
}

func (b bound) marshal() []byte {
	v := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, b.Term), b.Index)
	for _, is := range []bool{b.Returns, b.Done} {
		if is {
			v = append(v, 1)
		} else {
			v = append(v, 0)
		}
	}
	return v
}

func parseBound(v []byte) (b bound, err error) {
	if len(v) != 18 || v[16] > 1 || v[17] > 1 {
		return b, fmt.Errorf("value %q has %d bytes, or others than are written", boundKey, len(v))
	}
	return bound{binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:]), v[16] == 1, v[17] == 1}, nil
}

// loadMark reads how far this log and its snapshots reach, once.
func (l *checkedLog) loadMark(snaps raft.SnapshotStore) (err error) {
	var m franchise.Mark
	for key, to := range map[string]*uint64{string(eraKey): &m.Era, string(stableKeys[0]): &m.Term} {
		if *to, err = l.GetUint64([]byte(key)); err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
			return err
		}
	}
	if metas, err := snaps.List(); err != nil {
		return err
	} else if len(metas) > 0 {
		m.Index, m.LastTerm = metas[0].Index, metas[0].Term
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	if last > m.Index {
		var e raft.Log
		if err := l.GetLog(last, &e); err != nil {
			return err
		}
		m.Index, m.LastTerm = e.Index, e.Term
	}
	l.setMark(func(is *franchise.Mark) { *is = m })
	return nil
}

func (l *checkedLog) loadBound() (bound, error) {
	v, err := l.Get(boundKey)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return bound{}, nil
	}
	if err != nil {
		return bound{}, err
	}
	return parseBound(v)
}

// marked is how far this log reaches on disk.
func (l *checkedLog) marked() franchise.Mark {
	l.markMu.Lock()
	defer l.markMu.Unlock()
	return l.mark
}

// tell has fn told of each change of the mark, once it is on disk.
func (l *checkedLog) tell(fn func(franchise.Mark)) {
	l.markMu.Lock()
	defer l.markMu.Unlock()
	l.promised = fn
}

// setMark changes the mark, and tells who is to know.
func (l *checkedLog) setMark(change func(*franchise.Mark)) {
	l.markMu.Lock()
	was := l.mark
	change(&l.mark)
	is, tell := l.mark, l.promised
	l.markMu.Unlock()
	if is != was && tell != nil {
		tell(is)
	}
}

// DeleteRange implements raft.LogStore. Of a log that loses its end the mark falls first: cut short in between, the log must not be older than it.
func (l *checkedLog) DeleteRange(from, to uint64) error {
	if m := l.marked(); from > 1 && from <= m.Index && m.Index <= to {
		var e raft.Log
		if err := l.GetLog(from-1, &e); err == nil {
			l.setMark(func(m *franchise.Mark) { m.Index, m.LastTerm = e.Index, e.Term })
		}
	}
	return l.BoltStore.DeleteRange(from, to)
}

// membersOf is the newest configuration of a log, without a running raft.
func membersOf(l *checkedLog, snaps raft.SnapshotStore) (c raft.Configuration, err error) {
	var from uint64
	metas, err := snaps.List()
	if err != nil {
		return c, err
	}
	if len(metas) > 0 {
		c, from = metas[0].Configuration, metas[0].Index
	}
	last, err := l.LastIndex()
	for i := last; i > from && err == nil; i-- {
		var e raft.Log
		if err = l.GetLog(i, &e); errors.Is(err, raft.ErrLogNotFound) { // it was compacted up to here
			return c, nil
		}
		if err == nil && e.Type == raft.LogConfiguration {
			return raft.DecodeConfiguration(e.Data), nil
		}
	}
	return c, err
}

// entersEra writes the era of the state beside the log, from the FSM's goroutine. Only the voter that was recovered wrote it itself: the others would have
// logs of no era, which are older than what that one remembers of them. A copy of the log from before goes by the era that lies beside it.
func (n *Node) entersEra(e replica.Era) {
	if e <= lock.New(n.cfg.Cluster).View().Era || uint64(e) <= n.store.marked().Era {
		return
	}
	if err := n.store.SetUint64(eraKey, uint64(e)); err != nil {
		n.cfg.Logger.Error("the era of the log can't be written beside it", "era", e, "error", err)
		return
	}
	n.store.setMark(func(m *franchise.Mark) { m.Era = uint64(e) })
}
