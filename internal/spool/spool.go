package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/replica"
)

var (
	// ErrFull says that parts of other generations have the room that this one needs.
	ErrFull = errors.New("the spool is full")
	// ErrNone says that there is no room for the part at all, beside those of its own generation.
	ErrNone = errors.New("the spool has no room for it")
)

const (
	// leaveFree is the share of its file system that a spool without a bound of its own leaves free: a tenth.
	leaveFree = 10
	// openPatience is how long a daemon's start waits for the file system of its spool.
	openPatience = 5 * time.Second
	ext          = ".spool"
	noteExt      = ".note" + ext
	// keepLeft is for how long what a daemon's death left is kept: the job is resumed by then, or without it.
	keepLeft = 24 * time.Hour
	// maxNote bounds a note, in bytes.
	maxNote = 64 << 20
)

// Config says where a spool is, and how much may lie in it.
type Config struct {
	Dir    string           // empty: no files
	Owner  replica.NodeName // whose files these are: several nodes may share a directory
	Epoch  uint64           // of the owner's lives: files of another one are left over
	Most   uint64           // bytes in files; 0: as many as leave a tenth of the file system free
	Memory uint64           // bytes in host memory, where files have no room
}

// Spool is a node's. Its methods may be called from any goroutine.
type Spool struct {
	cfg    Config
	space  func() (free, all uint64, err error) // of the file system
	number atomic.Uint64

	mu      sync.Mutex // guards what follows
	files   tally      // bytes of the parts in files
	missing uint64     // of those, that are not written yet
	memory  tally      // bytes of the parts in memory
}

// tally is how many bytes lie somewhere, by what they are of.
type tally map[write]uint64

// write is what parts have in common that are written together.
type write struct {
	job        replica.JobID
	generation replica.Generation
}

func (n Name) write() write { return write{n.Job, n.Generation} }

func (t tally) all() (sum uint64) {
	for _, n := range t {
		sum += n
	}
	return sum
}

func (t tally) remove(w write, bytes uint64) {
	if t[w] -= bytes; t[w] == 0 {
		delete(t, w)
	}
}

// room tells whether so many more bytes of a write have room under a bound. Where other parts of the same write are in the way it would never get any,
// if it waited for that.
func (t tally) room(w write, bytes, most uint64) error {
	all := t.all()
	switch {
	case bytes > most, all-t[w]+bytes <= most && all+bytes > most:
		return fmt.Errorf("%w: %d MiB at most, %d of them taken, for %d MiB", ErrNone, most>>20, all>>20, bytes>>20)
	case all+bytes > most:
		return fmt.Errorf("%w: %d MiB of former writes, which their store has not taken yet, lie there, of %d MiB at most", ErrFull, (all-t[w])>>20, most>>20)
	}
	return nil
}

// Name says of what a part is.
type Name struct {
	Job        replica.JobID
	Generation replica.Generation
	Part       replica.Part
}

// Open makes the directory where it is missing, and removes what former lives of its owner left there a day ago or more. What they left since is
// kept, until a write of its job begins here or its room is needed.
func Open(ctx context.Context, c Config) (*Spool, error) {
	s := &Spool{cfg: c, files: tally{}, memory: tally{}}
	s.space = s.statfs
	if c.Dir == "" {
		return s, nil
	}
	ctx, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	err := within(ctx, func() error {
		if err := os.MkdirAll(c.Dir, 0o700); err != nil {
			return err
		}
		return s.sweep()
	})
	if err != nil {
		return nil, fmt.Errorf("spool_dir %s: %w: give the daemon a directory on a local disk that it may write", c.Dir, err)
	}
	return s, nil
}

// sweep removes old files of the owner's other lives. Nothing else in the directory is touched.
func (s *Spool) sweep() error {
	noted, err := s.former("", noteExt)
	if err != nil {
		return err
	}
	_, err = s.remove("", func(e os.DirEntry) bool {
		info, err := e.Info()
		old := err == nil && time.Since(info.ModTime()) > keepLeft
		return old || !slices.ContainsFunc(noted, func(n string) bool { return writeOf(n) == writeOf(e.Name()) }) // nobody could tell what it is of
	})
	return err
}

// writeOf begins the names of all files of one life's write of a job and generation.
func writeOf(name string) string {
	node, rest, _ := strings.Cut(name, "+") // a node may have dots in its name
	parts := strings.SplitAfterN(rest, ".", 4)
	return node + "+" + strings.Join(parts[:min(3, len(parts))], "")
}

// former lists the files of the owner's other lives, of a job, or of all where it is empty.
func (s *Spool) former(job, suffix string) (names []string, err error) {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return nil, err
	}
	own, now := s.owned(), s.life()
	for _, e := range entries {
		n := e.Name()
		if strings.HasPrefix(n, own) && !strings.HasPrefix(n, now) && strings.HasSuffix(n, suffix) && e.Type().IsRegular() && (job == "" || strings.Contains(n, "."+job+".")) {
			names = append(names, n)
		}
	}
	return names, nil
}

// remove removes what former lives left of a job, or of all where it is empty.
func (s *Spool) remove(job string, which func(os.DirEntry) bool) (n int, err error) {
	names, err := s.former(job, ext)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		path := filepath.Join(s.cfg.Dir, name)
		info, err := os.Lstat(path)
		if err != nil || !which(fs.FileInfoToDirEntry(info)) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return n, err
		}
		n++
	}
	return n, nil
}

// owned begins the names of all files of the owner. No name of a node has a + in it.
func (s *Spool) owned() string { return string(s.cfg.Owner) + "+" }

// life begins those of the owner's present life.
func (s *Spool) life() string { return fmt.Sprintf("%s%x.", s.owned(), s.cfg.Epoch) }

// path names a file by owner, life, job, generation and part. The number tells one attempt from the next.
func (s *Spool) path(n Name, ext string) string {
	kind := "group"
	if n.Part.Kind == replica.PrivatePart {
		kind = "private"
	}
	return filepath.Join(s.cfg.Dir, fmt.Sprintf("%s%s.%d-%d.%s-%d.%d%s", s.life(), n.Job, n.Generation.Epoch, n.Generation.Step, kind, n.Part.Index, s.number.Add(1), ext))
}

// Create makes room for a part: in a file, or in memory where files have none. What former lives left of its job is of no use any more; what they left
// of others goes where its room is needed.
func (s *Spool) Create(ctx context.Context, n Name, bytes uint64) (*Part, error) {
	if _, err := s.Drop(ctx, n.Job.String()); err != nil {
		return nil, err
	}
	err := s.reserve(ctx, n.write(), bytes)
	if errors.Is(err, ErrNone) || errors.Is(err, ErrFull) {
		if dropped, derr := s.Drop(ctx, ""); derr == nil && dropped > 0 {
			err = s.reserve(ctx, n.write(), bytes)
		}
	}
	if err == nil {
		return s.file(ctx, n, bytes)
	}
	if !errors.Is(err, ErrNone) || s.cfg.Memory == 0 {
		return nil, err
	}
	return s.inMemory(n.write(), bytes)
}

// Empty tells whether nothing lies in it.
func (s *Spool) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.files) == 0 && len(s.memory) == 0
}

// reserve takes the room for a file.
func (s *Spool) reserve(ctx context.Context, w write, bytes uint64) error {
	if s.cfg.Dir == "" {
		return ErrNone
	}
	var free, all uint64
	err := within(ctx, func() error {
		var err error
		free, all, err = s.space()
		return err
	})
	if err != nil {
		return fmt.Errorf("spool_dir %s: %w", s.cfg.Dir, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	empty := free + s.files.all() - s.missing // as much would be free if nothing lay there
	most := s.cfg.Most
	if most == 0 {
		most = left(empty, all/leaveFree)
	}
	if err := s.files.room(w, bytes, min(most, empty)); err != nil {
		return fmt.Errorf("spool_dir %s: %w", s.cfg.Dir, err)
	}
	s.files[w] += bytes
	s.missing += bytes
	return nil
}

// left is a-b, and not less than nothing.
func left(a, b uint64) uint64 {
	if a < b {
		return 0
	}
	return a - b
}

func (s *Spool) statfs() (free, all uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.cfg.Dir, &st); err != nil {
		return 0, 0, err
	}
	return st.Bavail * uint64(st.Bsize), st.Blocks * uint64(st.Bsize), nil
}

func (s *Spool) file(ctx context.Context, n Name, bytes uint64) (*Part, error) {
	return s.fileAt(ctx, n.write(), bytes, s.path(n, ext))
}

// fileAt makes a file whose room was taken.
func (s *Spool) fileAt(ctx context.Context, w write, bytes uint64, path string) (*Part, error) {
	p := &Part{of: s, write: w, bytes: bytes, path: path}
	err := within(ctx, func() error {
		f, err := os.OpenFile(p.path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		if ctx.Err() != nil { // nobody waits for it any more
			return errors.Join(f.Close(), os.Remove(p.path))
		}
		p.disk = f
		return nil
	})
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.files.remove(p.write, bytes)
		s.missing -= bytes
		return nil, fmt.Errorf("spool %s: %w", p.path, err)
	}
	return p, nil
}

func (s *Spool) inMemory(w write, bytes uint64) (*Part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.memory.room(w, bytes, s.cfg.Memory); err != nil {
		return nil, fmt.Errorf("spool_memory: %w", err)
	}
	b, err := unix.Mmap(-1, 0, int(max(bytes, 1)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON) // beside Go's heap, which would count it twice
	if err != nil {
		return nil, fmt.Errorf("spool_memory: %d MiB: %w", bytes>>20, err)
	}
	s.memory[w] += bytes
	return &Part{of: s, write: w, bytes: bytes, mem: b}, nil
}

// within makes a call, and waits for it no longer than ctx lasts.
func within(ctx context.Context, call func() error) error {
	_, err := result(ctx, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

// result is within for a call that returns something, which nobody sees who has not waited for it.
func result[T any](ctx context.Context, call func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	done := make(chan answer, 1)
	go func() {
		v, err := call()
		done <- answer{v, err}
	}()
	select {
	case a := <-done:
		return a.v, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
