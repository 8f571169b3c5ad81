package desk

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
)

// A ledger's file is a memfd of records, one behind the other. The keeper holds the memfd, so a daemon's death ends a file at most inside its
// last record, which was not answered yet. A record is the frame that a leader is told the same with, with one entry: magic, version, length and
// checksum are the frame's. A file may have a record twice, and those of replaced contributions too: replaying them comes to the same ledger.
const (
	filePrefix = "ledger-"
	maxRecord  = wire.MaxValueBytes + 1<<10 // bytes of a record's body, at most: a value, a key, and what is around them
	slack      = 1 << 20                    // bytes that a file may have beyond twice what lived when it was written
)

// parkKey is what the keeper holds the records of a rendezvous under.
func (s scope) parkKey() string { return fmt.Sprintf("%s%s-%d", filePrefix, s.job, s.epoch) }

// file is a ledger's file as the desk writes it, on its own goroutine: a record is some microseconds' work.
type file struct {
	*os.File
	size      int64             // bytes of whole records
	base      int64             // of those, the ones that were there when the file was made
	parked    bool              // the keeper has it, as far as can be
	rewriting bool              // what lives is being written anew
	held      []control.KVReply // answers that wait until it is parked
}

func newFile(s scope) (*file, error) {
	f, err := shm.NewMemfd("replicad-" + s.parkKey())
	if err != nil {
		return nil, err
	}
	return &file{File: f}, nil
}

// fileOf makes a file of what lives in a ledger.
func fileOf(s scope, live []control.KVEntry) (*file, error) {
	f, err := newFile(s)
	if err != nil {
		return nil, err
	}
	for _, e := range live {
		if err := f.append(s, e); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	f.base = f.size
	return f, nil
}

// append writes one record.
func (f *file) append(s scope, e control.KVEntry) error {
	b, err := wire.Append(nil, control.KindKept, control.KVKept{Job: s.job, Epoch: s.epoch, Entries: []control.KVEntry{e}})
	if err != nil {
		return err
	}
	return f.extend(b)
}

// extend writes whole records. After an error the file is as it was, for the next try.
func (f *file) extend(records []byte) error {
	n, err := f.WriteAt(records, f.size)
	if err != nil {
		if n > 0 {
			err = errors.Join(err, f.Truncate(f.size))
		}
		return err
	}
	f.size += int64(n)
	return nil
}

// appendFrom writes the records of another file from offset at on.
func (f *file) appendFrom(old *file, at int64) error {
	b := make([]byte, old.size-at)
	if _, err := old.ReadAt(b, at); err != nil {
		return err
	}
	return f.extend(b)
}

// bloated tells whether most of the file may be of replaced contributions.
func (f *file) bloated() bool { return !f.rewriting && f.size > 2*f.base+slack }

// replay calls fn for each record until the first one that is torn or wrong, or that fn refuses; size is how far the good ones reach.
func (f *file) replay(fn func(scope, control.KVEntry) error) error {
	r := bufio.NewReader(io.NewSectionReader(f, 0, math.MaxInt64)) // the descriptor's own offset is shared with other processes
	for f.size = 0; ; {
		h, err := wire.ReadHeader(r, maxRecord)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		body, err := h.Body(r)
		if err != nil {
			return err
		}
		s, e, err := parseRecord(h.Kind, body)
		if err == nil {
			err = fn(s, e)
		}
		if err != nil {
			return err
		}
		f.size += wire.FrameBytes(h.Bytes)
	}
}

func parseRecord(kind wire.Kind, body []byte) (s scope, e control.KVEntry, err error) {
	if kind != control.KindKept {
		return s, e, fmt.Errorf("a record of kind %d, want %d", kind, control.KindKept)
	}
	kept, err := control.DecodeAs[control.KVKept](body)
	if err != nil {
		return s, e, err
	}
	if len(kept.Entries) != 1 || kept.Done {
		return s, e, fmt.Errorf("a record of %d contributions, want one", len(kept.Entries))
	}
	s, e = scope{kept.Job, kept.Epoch}, kept.Entries[0]
	switch e.Op {
	case control.KVBarrier:
		return s, e, nil
	case control.KVSet, control.KVAdd, control.KVCompareSet, control.KVDelete:
		if e.Seq != 0 {
			return s, e, nil
		}
	case control.KVGet, control.KVCheck, control.KVScope: // these contribute nothing
	}
	return s, e, fmt.Errorf("a record of operation %d with place %d in the order of writes: no leader took such a contribution", e.Op, e.Seq)
}
