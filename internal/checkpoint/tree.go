package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/replicad/replicad/replica"
)

// ErrMoved marks what failed because the path of the durable directory names another directory than the one that was open.
var ErrMoved = errors.New("the directory was moved, unmounted or replaced")

// tree is one directory, held by descriptor. A mount or a rename lets its path name another one, and the descriptor goes on
// leading to the former: what is written there nobody finds. So each operation takes the tree that the path names (at), and
// no file counts as written before the path was seen to name the same tree still (still).
type tree struct {
	dir  string // its path
	gate *Gate
	root *os.Root
	disk disk
	info os.FileInfo
}

// Close closes the descriptor. Open shards stay readable.
func (t *tree) Close() error { return t.root.Close() }

// openTree opens a directory and writes to it once.
func openTree(g *Gate) (*tree, error) {
	t, err := through(g, lookPatience, "opening "+g.dir, func() (*tree, error) {
		info, err := os.Stat(g.dir)
		if err == nil && !info.IsDir() { // the next call would wait for the writer of a named pipe
			err = fmt.Errorf("%s is no directory", g.dir)
		}
		if err != nil {
			return nil, err
		}
		root, err := os.OpenRoot(g.dir)
		if err != nil {
			return nil, err
		}
		return &tree{dir: g.dir, gate: g, root: root, disk: gated{rooted{root}, g}}, nil
	})
	if errors.Is(err, ErrSilent) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("durable directory: %w: make the directory, or set durable_dir to one that every node shares", err)
	}
	probe := tempPrefix + "probe-" + t.tag()
	err = func() error {
		f, err := t.disk.create(probe)
		if err != nil {
			return err
		}
		_, werr := f.Write([]byte("writable"))
		return errors.Join(werr, f.Sync(), f.Close(), t.disk.remove(probe))
	}()
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = nil // it can be read
	}
	if err == nil {
		t.info, err = t.stat(".")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("durable directory %s: %w", g.dir, t.explain(err)), t.Close())
	}
	return t, nil
}

// at returns the directory that the path names now. Another one than before is opened in place of the former, and the next
// write is told so: somebody should know that the earlier generations are elsewhere.
func (s *Store) at() (*tree, error) {
	s.mu.Lock()
	was := s.tree
	s.mu.Unlock()
	moved := s.still(was)
	if moved == nil {
		return was, nil
	}
	if errors.Is(moved, fs.ErrNotExist) || errors.Is(moved, ErrSilent) {
		return nil, moved
	}
	if _, err := through(s.gate, lookPatience, "looking at "+s.dir, func() (struct{}, error) { return struct{}{}, unmounted(was) }); err != nil {
		return nil, fmt.Errorf("%w: %w", moved, err)
	}
	now, err := openTree(s.gate)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", moved, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tree != was { // somebody else was first
		return s.tree, now.Close()
	}
	s.tree, s.moved = now, moved
	return now, was.Close() // open shards stay readable; a descriptor would keep the former from being unmounted
}

// toWrite is at for what writes: the first write after the path came to name another directory fails with what was seen.
func (s *Store) toWrite() (*tree, error) {
	t, err := s.at()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	moved := s.moved
	s.moved = nil
	if moved != nil {
		return nil, fmt.Errorf("%w: the generations written before are not in it: move or mount the former directory back if this was a mistake; new ones are written to the present directory", moved)
	}
	return t, nil
}

// still tells whether the path names a tree.
func (s *Store) still(t *tree) error {
	now, err := through(s.gate, lookPatience, "looking at "+s.dir, func() (os.FileInfo, error) { return os.Stat(s.dir) })
	switch {
	case errors.Is(err, ErrSilent):
		return err
	case err != nil:
		return fmt.Errorf("durable directory %s: %w: %w: mount it or move it back, writes go on by themselves then", s.dir, ErrMoved, err)
	case !os.SameFile(now, t.info):
		return fmt.Errorf("durable directory %s: %w: %s was open, %s is there now", s.dir, ErrMoved, identity(t.info), identity(now))
	}
	return nil
}

// finish ends a write into a tree: where the path names it no more, nothing of it counts.
func (s *Store) finish(t *tree, err error) error {
	if moved := s.still(t); moved != nil {
		return moved
	}
	return t.explain(err)
}

func identity(i os.FileInfo) string {
	st, ok := i.Sys().(*syscall.Stat_t)
	if !ok {
		return i.Name()
	}
	return fmt.Sprintf("device %#x, inode %d", st.Dev, st.Ino)
}

// unmounted refuses the mount point of a file system that is away.
func unmounted(was *tree) error {
	now, err := os.Stat(was.dir)
	if err != nil {
		return err
	}
	parent, err := os.Stat(was.dir + "/..") // unlike the path's own parent, also right behind a symbolic link
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(was.dir)
	if err != nil {
		return err
	}
	if bare(device(was.info), device(now), device(parent), len(entries) == 0) {
		return fmt.Errorf("it is empty, and on the file system of the directory above: mount the durable file system again, or start the daemon again if this directory is meant")
	}
	return nil
}

// bare tells whether a directory that is found in place of a former one looks like a mount point without its mount: empty, on
// another device than the former, and on the same one as the directory above.
func bare(former, now, parent uint64, empty bool) bool {
	return empty && now != former && now == parent
}

func device(i os.FileInfo) uint64 {
	if st, ok := i.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Dev) //nolint:unconvert // another width elsewhere
	}
	return 0
}

// Holds tells whether a committed generation is in the directory that the path names, and has failed no read since; the error says why not.
func (s *Store) Holds(jobName string, job replica.JobID, g replica.Generation) error {
	dir, err := jobDir(jobName, job)
	if err != nil {
		return err
	}
	t, err := s.at()
	if err != nil {
		return err
	}
	name := dir + "/" + generationDir(g) + "/" + markerName
	st, err := t.stat(name)
	if err == nil && st.Mode().IsRegular() {
		if d, bad := t.markedDamaged(jobName, job, g); bad {
			return fmt.Errorf("durable generation %v of job %s failed a read: %v", g, jobName, d)
		}
		return nil
	}
	if err == nil {
		err = fmt.Errorf("%s is no file", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.moved != nil {
		err = fmt.Errorf("%w: %w", s.moved, err)
	}
	return fmt.Errorf("durable generation %v of job %s is not in %s: %w", g, jobName, s.dir, err)
}

// markedDamaged tells whether a generation's mark says that it is damaged, and what.
func (t *tree) markedDamaged(jobName string, job replica.JobID, g replica.Generation) (d Damage, bad bool) {
	b, err := t.readFile(path.Join(jobName, job.String(), generationDir(g), readName), maxMark)
	if err != nil {
		return d, false
	}
	m, err := parseMark(b)
	if err != nil || m.Damage == nil {
		return d, false
	}
	_, sum, err := t.readMarker(jobName, job, generationDir(g)) // a large one: only where it matters
	return *m.Damage, err == nil && sum == m.Of
}
