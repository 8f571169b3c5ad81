package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"sync"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/replicad/replicad/internal/franchise"
)

// Neither bbolt's pages nor raft's entries have a checksum: a flipped type makes of a command that ended a job a note that changes
// nothing, a flipped term makes a voter vote twice. So each entry and each value of the stable store carries one here, which is
// compared whenever it is read, and taken off.
//
// An entry's lies in its Extensions: tag u16, CRC-64 u64 of index, term, type and data. A value of the stable store ends in the same
// ten bytes, of its key and itself. Numbers are big-endian. checkedKey holds the first index whose entry must have one: what lies
// below was written by a program that knew none, and is taken as it is.
const (
	sumTag   = 0xC501 // 01 is the version
	sumBytes = 10
)

var (
	checkedKey = []byte("replicad checksums from")
	stableKeys = [][]byte{[]byte("CurrentTerm"), []byte("LastVoteTerm"), []byte("LastVoteCand")} // raft's

	sums = crc64.MakeTable(crc64.ECMA)
)

// checkedLog is raft's log and stable store on disk.
type checkedLog struct {
	*raftboltdb.BoltStore
	path   string
	from   uint64     // the first index whose entry must have a checksum
	broken chan error // capacity 1: what was found damaged after the start
	writes writes     // how the newest ended

	markMu   sync.Mutex // guards both
	mark     franchise.Mark
	promised func(franchise.Mark) // nil: nobody is to know
}

// checkLog compares the stable store's checksums, and gives it them where it has none yet.
func checkLog(store *raftboltdb.BoltStore, path string) (*checkedLog, error) {
	l := &checkedLog{BoltStore: store, path: path, broken: make(chan error, 1)}
	from, err := l.GetUint64(checkedKey)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return l, l.adopt()
	}
	l.from = from
	for _, key := range append([][]byte{eraKey, boundKey}, stableKeys...) {
		if _, getErr := l.Get(key); getErr != nil && !errors.Is(getErr, raftboltdb.ErrKeyNotFound) {
			err = errors.Join(err, getErr)
		}
	}
	return l, err
}

// adopt gives the values of a new file, or of an earlier program's, their checksums. Values that have one are left from an adoption that
// was cut short; it ends with checkedKey, before any entry gets one.
func (l *checkedLog) adopt() error {
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	if last > 0 {
		var e raft.Log
		if err := l.BoltStore.GetLog(last, &e); err != nil {
			return damaged(l.path, fmt.Errorf("entry %d: %w", last, err))
		}
		if len(e.Extensions) != 0 {
			return damaged(l.path, fmt.Errorf("its entries have checksums, and the note of which is the first (%q) is gone", checkedKey))
		}
	}
	for _, key := range stableKeys {
		value, err := l.BoltStore.Get(key)
		if errors.Is(err, raftboltdb.ErrKeyNotFound) {
			continue
		}
		if _, sealed := unseal(key, value); err == nil && !sealed {
			err = l.Set(key, value)
		}
		if err != nil {
			return err
		}
	}
	l.from = last + 1
	return l.SetUint64(checkedKey, l.from)
}

// sumOf is the checksum's bytes over all of parts.
func sumOf(parts ...[]byte) []byte {
	var sum uint64
	for _, p := range parts {
		sum = crc64.Update(sum, sums, p)
	}
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint16(nil, sumTag), sum)
}

func sumOfEntry(e *raft.Log) []byte {
	head := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, e.Index), e.Term)
	return sumOf(append(head, byte(e.Type)), e.Data)
}

// unseal takes the checksum off a value of the stable store; false: it has none, or another one.
func unseal(key, sealed []byte) (value []byte, ok bool) {
	n := len(sealed) - sumBytes
	if n < 0 || string(sealed[n:]) != string(sumOf(key, sealed[:n])) {
		return nil, false
	}
	return sealed[:n], true
}

// damage reports what was found damaged to the node too: raft goes on after most errors of its log.
func (l *checkedLog) damage(cause error) error {
	err := damaged(l.path, cause)
	select {
	case l.broken <- err:
	default:
	}
	return err
}

// GetLog implements raft.LogStore.
func (l *checkedLog) GetLog(index uint64, e *raft.Log) error {
	err := l.BoltStore.GetLog(index, e)
	if errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	if err != nil {
		return l.damage(fmt.Errorf("entry %d: %w", index, err))
	}
	switch {
	case e.Index != index:
		return l.damage(fmt.Errorf("entry %d: it says that it is entry %d", index, e.Index))
	case len(e.Extensions) == 0 && index >= l.from:
		return l.damage(fmt.Errorf("entry %d: it has no checksum, as all from %d on have", index, l.from))
	case len(e.Extensions) != 0 && string(e.Extensions) != string(sumOfEntry(e)):
		return l.damage(fmt.Errorf("entry %d: its checksum differs", index))
	}
	e.Extensions = nil
	return nil
}

// StoreLog implements raft.LogStore.
func (l *checkedLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

// StoreLogs implements raft.LogStore.
func (l *checkedLog) StoreLogs(entries []*raft.Log) error {
	sealed := make([]*raft.Log, len(entries))
	for i, e := range entries {
		s := *e // raft goes on using its own
		s.Extensions = sumOfEntry(e)
		sealed[i] = &s
	}
	if err := l.BoltStore.StoreLogs(sealed); err != nil || len(sealed) == 0 {
		return err
	}
	last := entries[len(entries)-1]
	l.setMark(func(m *franchise.Mark) { m.Index, m.LastTerm = last.Index, last.Term })
	return nil
}

// Get implements raft.StableStore.
func (l *checkedLog) Get(key []byte) ([]byte, error) {
	sealed, err := l.BoltStore.Get(key)
	if err != nil {
		return nil, err
	}
	value, ok := unseal(key, sealed)
	if !ok {
		return nil, l.damage(fmt.Errorf("value %q: its checksum differs", key))
	}
	return value, nil
}

// Set implements raft.StableStore.
func (l *checkedLog) Set(key, value []byte) error {
	sealed := append([]byte(nil), value...)
	if err := l.writes.wroteValue(l.BoltStore.Set(key, append(sealed, sumOf(key, value)...))); err != nil {
		return err
	}
	if string(key) == string(stableKeys[0]) && len(value) == 8 {
		l.setMark(func(m *franchise.Mark) { m.Term = binary.BigEndian.Uint64(value) })
	}
	return nil
}

// GetUint64 implements raft.StableStore.
func (l *checkedLog) GetUint64(key []byte) (uint64, error) {
	value, err := l.Get(key)
	if err != nil {
		return 0, err
	}
	if len(value) != 8 {
		return 0, l.damage(fmt.Errorf("value %q has %d bytes instead of 8", key, len(value)))
	}
	return binary.BigEndian.Uint64(value), nil
}

// SetUint64 implements raft.StableStore.
func (l *checkedLog) SetUint64(key []byte, value uint64) error {
	return l.Set(key, binary.BigEndian.AppendUint64(nil, value))
}
