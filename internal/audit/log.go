package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/replicad/replicad/replica"
)

const (
	queued    = 1024 // lines that wait for the disk; one more is dropped
	fileBytes = 64 << 20
)

// Log writes one. Append is safe for concurrent use; Close ends it.
type Log struct {
	path    string
	limit   int64
	now     func() time.Time
	in      chan entry
	dropped atomic.Uint64 // since the last line that said so
	failed  func(error)
	ending  chan struct{} // closed: what is queued is written, and no more
	end     sync.Once
	ended   sync.WaitGroup

	// Owned by run once it has started.
	file  *os.File // nil: the last write failed, and the file is opened again for the next
	size  int64
	first bool   // the file has no line yet
	n     uint64 // of the last line of the chain
	prev  string // its digest
	torn  *torn  // to be named by the next line
	told  time.Time
}

type entry struct {
	t      time.Time
	event  string
	fields Fields
}

// Open goes on with the log at path, or begins it. failed is told once in a while that the disk takes no lines; it must not wait.
func Open(path string, failed func(error)) (*Log, error) {
	return open(path, fileBytes, time.Now, failed)
}

func open(path string, limit int64, now func() time.Time, failed func(error)) (*Log, error) {
	l := &Log{path: path, limit: limit, now: now, in: make(chan entry, queued), failed: failed, ending: make(chan struct{})}
	if err := l.openFile(); err != nil {
		return nil, err
	}
	l.ended.Go(l.run)
	return l, nil
}

// Append adds a line; it never waits.
func (l *Log) Append(event string, fields Fields) {
	if l == nil {
		return
	}
	select {
	case l.in <- entry{l.now(), event, fields}:
	default:
		l.dropped.Add(1)
	}
}

// Close writes what was appended before it, and ends. What is appended later is lost.
func (l *Log) Close() {
	if l == nil {
		return
	}
	l.end.Do(func() { close(l.ending) })
	l.ended.Wait()
}

func (l *Log) run() {
	for {
		select {
		case e := <-l.in:
			l.add(e)
		case <-l.ending:
			for {
				select {
				case e := <-l.in:
					l.add(e)
					continue
				default:
				}
				if l.file != nil {
					_ = l.file.Close() // every line was synced
				}
				return
			}
		}
	}
}

// add writes a line, and all the way to disk once no other waits.
func (l *Log) add(e entry) {
	err := l.write(e)
	if err != nil {
		l.dropped.Add(1)
	} else if len(l.in) == 0 {
		err = l.file.Sync()
	}
	if err == nil {
		return
	}
	if l.file != nil {
		_ = l.file.Close() // what it holds is looked at anew
		l.file = nil
	}
	if now := l.now(); now.Sub(l.told) > time.Minute {
		l.told = now
		l.failed(fmt.Errorf("%w: lines are lost until it can be written again", err))
	}
}

func (l *Log) write(e entry) error {
	if l.file == nil {
		if err := l.openFile(); err != nil {
			return err
		}
	}
	if l.size >= l.limit {
		if err := l.rotate(); err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
	}
	dropped := l.dropped.Swap(0)
	next := line{N: l.n + 1, T: e.t.UTC().Format(time.RFC3339Nano), Prev: l.prev, Dropped: dropped, Torn: l.torn, Event: e.event, Fields: e.fields.clip()}
	if l.first {
		next.Format = format
	}
	b, err := json.Marshal(next)
	b = replica.PrintedJSON(b) // it is read in terminals, too
	if err == nil {
		_, err = l.file.Write(append(b, '\n'))
	}
	if err != nil {
		l.dropped.Add(dropped)
		return fmt.Errorf("audit log: %w", err)
	}
	l.size += int64(len(b)) + 1
	l.n, l.prev, l.torn, l.first = next.N, digest(b), nil, false
	return nil
}

// rotate has the chain go on in a new file. The full one is named by its last line, so that names are in order.
func (l *Log) rotate() error {
	name := fmt.Sprintf("%s%012d%s", l.stem(), l.n, filepath.Ext(l.path))
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("rotate %s: %s is there already (%w): move it away", l.path, name, err)
	}
	if err := os.Rename(l.path, name); err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(l.file.Sync(), l.file.Close())
	l.file, l.size, l.first = f, 0, true
	return err
}

// stem is what the names of all files begin with, but for the present one.
func (l *Log) stem() string { return strings.TrimSuffix(l.path, filepath.Ext(l.path)) + "-" }

// openFile opens the present file and finds the end of its chain.
func (l *Log) openFile() error {
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_APPEND|syscall.O_NONBLOCK, 0o600) // a FIFO must not hang it
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	if err := l.resume(f); err != nil {
		return errors.Join(fmt.Errorf("audit log %s: %w: move it away, and a new one begins", l.path, err), f.Close())
	}
	l.file = f
	return nil
}

// resume goes on behind the last whole line. What follows that is kept, ends in a newline, and is named by the next line.
func (l *Log) resume(f *os.File) error {
	tail, whole, err := readTail(f)
	if err != nil {
		return err
	}
	last, rest, found := lastLine(tail, whole)
	switch {
	case found:
	case !whole:
		return fmt.Errorf("no line of an audit log in its last %d bytes", len(tail))
	default: // its first line was never written whole: the chain ends in the file before it
		if last, err = l.before(); err != nil {
			return err
		}
	}
	if len(tail) > 0 && tail[len(tail)-1] != '\n' {
		if _, err := f.Write([]byte{'\n'}); err != nil {
			return err
		}
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	l.n, l.prev, l.size, l.first, l.torn = last.n, last.digest, st.Size(), !found, nil
	if len(rest) > 0 {
		rest = bytes.TrimSuffix(rest, []byte{'\n'})
		l.torn = &torn{Bytes: len(rest), SHA256: digest(rest)}
	}
	return nil
}

// mark is a place in a chain: a line, and what the next one has for Prev.
type mark struct {
	n      uint64
	digest string
}

// before is the end of the newest file that was rotated; where there is none, the beginning.
func (l *Log) before() (mark, error) {
	names, err := filepath.Glob(l.stem() + strings.Repeat("[0-9]", 12) + filepath.Ext(l.path))
	if err != nil || len(names) == 0 {
		return mark{0, chainStart}, err
	}
	f, err := os.Open(slices.Max(names))
	if err != nil {
		return mark{}, err
	}
	defer f.Close()
	tail, whole, err := readTail(f)
	if err != nil {
		return mark{}, err
	}
	last, _, ok := lastLine(tail, whole)
	if !ok {
		return mark{}, fmt.Errorf("%s, which comes before it, ends without a line", f.Name())
	}
	return last, nil
}

// readTail reads the end of a file; whole: that is all of it.
func readTail(f *os.File) (tail []byte, whole bool, err error) {
	st, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	if !st.Mode().IsRegular() {
		return nil, false, errors.New("it is not a regular file")
	}
	from := max(0, st.Size()-2*maxLine)
	tail = make([]byte, st.Size()-from)
	n, err := f.ReadAt(tail, from)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return tail[:n], from == 0, err
}

// lastLine finds the last whole line, and what lies behind its newline. Of a tail that is not whole the first line may be half of one.
func lastLine(tail []byte, whole bool) (last mark, rest []byte, found bool) {
	for end := len(tail); end > 0; {
		start := bytes.LastIndexByte(tail[:end], '\n') + 1
		if l, err := parse(tail[start:end]); err == nil && (whole || start > 0) {
			return mark{l.N, digest(tail[start:end])}, bytes.TrimPrefix(tail[end:], []byte{'\n'}), true
		}
		end = start - 1
	}
	return mark{}, tail, false
}
