package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/retain"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// readName is the file beside a generation's shards that says what its newest whole read found. It is written by a rename over the
// former one, by whoever has read; it is evidence and no part of the generation, which is the same without it.
const readName = "READ"

// Limits of what a mark says.
const (
	maxMark     = 4096 // bytes of the file
	maxMarkText = 300  // bytes of each text in it
)

// ReadMark is what is known of the bytes of a generation.
type ReadMark struct {
	Version uint32         `json:"version" cbor:"1,keyasint"`
	Of      replica.Digest `json:"of" cbor:"2,keyasint"` // of the commit marker's file: the mark of another is believed for nothing
	// At, in milliseconds since 1970, is when the newest whole read ended, By the node that read; 0: nobody has read it.
	At uint64 `json:"at" cbor:"3,keyasint"`
	By string `json:"by" cbor:"4,keyasint"`
	// Damage is what is wrong; nil: nothing was. A read that the disk refused leaves no mark.
	Damage *Damage `json:"damage,omitempty" cbor:"5,keyasint,omitempty"`
	// Resumed is when a run went on from the generation, likewise; 0: none has.
	Resumed uint64 `json:"resumed,omitempty" cbor:"6,keyasint,omitempty"`
}

const markVersion = 1

// Damage names bytes that are not those that were written.
type Damage struct {
	File  string `json:"file" cbor:"1,keyasint"`  // below the job's directory
	Chunk int    `json:"chunk" cbor:"2,keyasint"` // of the part; WholeFile: not one chunk
	What  string `json:"what" cbor:"3,keyasint"`
}

// WholeFile stands for the number of a chunk where a file is damaged and no chunk of it is known to be.
const WholeFile = -1

func (d Damage) String() string {
	name := d.File
	if dir, base := path.Split(name); dir != frozenDir+"/" {
		name = base
	}
	if d.Chunk == WholeFile {
		return fmt.Sprintf("%s: %s", name, d.What)
	}
	return fmt.Sprintf("%s, chunk %d: %s", name, d.Chunk, d.What)
}

// damaged is an error that names damage.
type damaged struct {
	Damage
	err error
}

func (d *damaged) Error() string { return d.err.Error() }
func (d *damaged) Unwrap() error { return d.err }

// DamageOf tells which bytes a failed read blames. A disk that refuses to read blames none: the next day it may not refuse.
func DamageOf(err error) (d Damage, ok bool) {
	var of *damaged
	if !errors.As(err, &of) || SkipKindOf(err) != Damaged {
		return d, false
	}
	return of.Damage, true
}

// Plain says in a few words, for people, why a read failed or a generation was passed over.
func Plain(err error) string {
	if d, ok := DamageOf(err); ok {
		return d.String()
	}
	return err.Error()
}

// parseMark reads a mark.
func parseMark(frame []byte) (*ReadMark, error) {
	var m ReadMark
	if err := wire.Decode(frame, kindRead, &m); err != nil {
		return nil, fmt.Errorf("read mark: %w", err)
	}
	if m.Version != markVersion {
		return nil, fmt.Errorf("read mark: version %d, this program reads %d", m.Version, markVersion)
	}
	return &m, m.check()
}

func (m *ReadMark) check() error {
	switch d := m.Damage; {
	case m.Of.IsZero(), m.At > maxWritten, m.Resumed > maxWritten, (m.At == 0) != (m.By == ""), m.At == 0 && m.Damage != nil, m.At == 0 && m.Resumed == 0:
		return fmt.Errorf("read mark of %v: at %d by %q, resumed at %d: want one that says something", m.Of, m.At, m.By, m.Resumed)
	case replica.Line(m.By, maxMarkText) != m.By:
		return fmt.Errorf("read mark of %v: its reader is no line of at most %d bytes", m.Of, maxMarkText)
	case d == nil:
	case !filepath.IsLocal(d.File), replica.Line(d.File, maxMarkText) != d.File, replica.Line(d.What, maxMarkText) != d.What, d.What == "", d.Chunk < WholeFile, d.Chunk > maxChunks:
		return fmt.Errorf("read mark of %v: its damage is of file %q, chunk %d, %q", m.Of, d.File, d.Chunk, d.What)
	}
	return nil
}

// readMark is the mark beside a generation's marker, whose file hashes to of; nil: there is none that can be believed.
func (t *tree) readMark(dir string, of replica.Digest) (*ReadMark, error) {
	b, err := t.readFile(path.Join(dir, readName), maxMark)
	if errors.Is(err, ErrSilent) {
		return nil, err
	}
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // what nobody can read says nothing: the generation counts as unread
	}
	m, err := parseMark(b)
	if err != nil || m.Of != of {
		return nil, nil //nolint:nilerr,nilnil // likewise
	}
	return m, nil
}

// State is what is known of the generation's bytes.
func (f Found) State() retain.State {
	switch {
	case f.Read == nil || f.Read.At == 0:
		return retain.Unread
	case f.Read.Damage != nil:
		return retain.Damaged
	}
	return retain.Good
}

// Bytes is how much the generation's shards have.
func (f Found) Bytes() (n uint64) {
	for _, s := range f.Shards {
		n += s.Bytes
	}
	return n
}

// errReadBack is why a generation is passed over whose mark says that it is damaged.
type errReadBack struct{ mark ReadMark }

func (e errReadBack) Error() string {
	return fmt.Sprintf("%v (read back on %s by %s)", *e.mark.Damage, time.UnixMilli(int64(e.mark.At)).UTC().Format("2006-01-02 15:04 MST"), e.mark.By)
}

// How says how to read a generation back.
type How struct {
	// Cold reads from the disk what the kernel remembers of the files, and lets it forget them afterwards: what was just written, or is read once
	// a week, says nothing of the disk otherwise.
	Cold bool
	// Pace is called before so many bytes are read, and takes its time; nil: none.
	Pace func(ctx context.Context, bytes int) error
}

// ReadBack reads a generation whole, as Verify does, and leaves beside it what that found. Damage is believed where a second read of the
// same file from the disk, or of the whole, finds damage again: what memory or the network did to one read the next does not repeat.
// A disk that refuses to read leaves the former mark.
func (s *Store) ReadBack(ctx context.Context, f Found, how How) error {
	err := s.verifyAll(ctx, f, how)
	if d, bad := DamageOf(err); bad {
		s.note(fmt.Errorf("%w: it is read again", err))
		if err = s.again(ctx, f, d, how); err == nil {
			err = s.verifyAll(ctx, f, how)
		}
	}
	if _, bad := DamageOf(err); err == nil || bad {
		s.found(f, err)
	}
	return err
}

// found notes what a read found: nothing, or damage. Where that can't be written the next read notes it; what was found is so all the same.
func (s *Store) found(f Found, err error) {
	d, bad := DamageOf(err)
	noted := s.mark(f, func(m *ReadMark) {
		m.At, m.By, m.Damage = uint64(max(time.Now().UnixMilli(), 1)), s.readerName(), nil
		if bad {
			m.Damage = &Damage{File: replica.Line(d.File, maxMarkText), Chunk: d.Chunk, What: replica.Line(d.What, maxMarkText)}
		}
	})
	if noted != nil {
		s.note(noted)
	}
}

// again reads the file once more that a read found damaged.
func (s *Store) again(ctx context.Context, f Found, d Damage, how How) error {
	how.Cold = true
	for _, info := range f.Shards {
		if info.File == d.File || strings.TrimSuffix(info.File, shardExt) == strings.TrimSuffix(d.File, sideExt) {
			return s.verify(ctx, f, info, how)
		}
	}
	return nil
}

// mark changes what the mark beside a generation says.
func (s *Store) mark(f Found, change func(*ReadMark)) error {
	t, err := s.at()
	if err != nil {
		return err
	}
	s.marking.Lock()
	defer s.marking.Unlock()
	is := ReadMark{}
	if was, err := t.readMark(f.Path, f.sum); err != nil {
		return err
	} else if was != nil {
		is = *was
	}
	change(&is)
	is.Version, is.Of = markVersion, f.sum
	return t.explain(t.writeMark(f.Path, is))
}

func (t *tree) writeMark(dir string, m ReadMark) error {
	if err := m.check(); err != nil {
		return err
	}
	return t.writeFile(path.Join(dir, readName), t.disk.rename, func(w io.Writer) error { return wire.Write(w, kindRead, &m) })
}

// unmark takes back what marks of a job's generations say against a file that is good again: they count as unread.
func (t *tree) unmark(dir, file string) error {
	return t.marks(dir, func(gen string, m ReadMark) error {
		if m.Damage == nil || m.Damage.File != file {
			return nil
		}
		if m.At, m.By, m.Damage = 0, "", nil; m.Resumed == 0 {
			return t.disk.remove(path.Join(gen, readName))
		}
		return t.writeMark(gen, m)
	})
}

// blamed tells whether a mark of a generation of the job says that a file is damaged.
func (t *tree) blamed(dir, file string) (blamed bool) {
	_ = t.marks(dir, func(_ string, m ReadMark) error { // a directory that can't be listed blames nobody
		blamed = blamed || m.Damage != nil && m.Damage.File == file
		return nil
	})
	return blamed
}

// marks calls use for each mark of a job's generations.
func (t *tree) marks(dir string, use func(gen string, m ReadMark) error) error {
	entries, err := t.readDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, ok := parseGeneration(e.Name()); !ok {
			continue
		}
		gen := path.Join(dir, e.Name())
		b, err := t.readFile(path.Join(gen, readName), maxMark)
		if err != nil {
			continue // there is none that says anything
		}
		if m, err := parseMark(b); err == nil {
			if err := use(gen, *m); err != nil {
				return err
			}
		}
	}
	return nil
}
