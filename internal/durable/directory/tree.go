package directory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"

	"github.com/replicad/replicad/internal/durable/store"
)

// ErrMoved marks what failed because the path of the directory names another directory than the one that was open.
var ErrMoved = errors.New("the directory was moved, unmounted or replaced")

// tree is one directory, held by descriptor. A mount or a rename lets its path name another one, and the descriptor goes on
// leading to the former: what is written there nobody finds. So each operation takes the tree that the path names (at), and
// no object counts as written before the path was seen to name the same tree still (still).
type tree struct {
	dir  string // its path
	gate *gate
	root *os.Root
	disk disk
	info os.FileInfo

	mu   sync.Mutex          // guards made
	made map[string]struct{} // directories that were made and synced into their parents; at most maxMade
}

const maxMade = 4096

// Close closes the descriptor. Open files stay readable.
func (t *tree) Close() error { return t.root.Close() }

func openTree(ctx context.Context, g *gate, wrap func(disk) disk) (*tree, error) {
	t, err := through(ctx, g, lookPatience, "opening "+g.dir, func() (*tree, error) {
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
		if info, err = root.Stat("."); err != nil {
			return nil, errors.Join(err, root.Close())
		}
		return &tree{dir: g.dir, gate: g, root: root, disk: wrap(rooted{root}), info: info, made: map[string]struct{}{}}, nil
	})
	switch {
	case errors.Is(err, ErrSilent), err != nil && ctx.Err() != nil:
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w: make the directory, or name one that every node shares", store.ErrRefused, err)
	}
	return t, nil
}

// at returns the directory that the path names now. Another one than before is opened in place of the former, and the next
// write is told so: somebody should know that the earlier objects are elsewhere.
func (s *Store) at(ctx context.Context) (*tree, error) {
	s.mu.Lock()
	was := s.tree
	s.mu.Unlock()
	if was == nil {
		now, err := s.open(ctx)
		if err != nil {
			return nil, err
		}
		return s.take(nil, now, nil)
	}
	moved := s.still(ctx, was)
	if moved == nil {
		return was, nil
	}
	if !errors.Is(moved, ErrMoved) || errors.Is(moved, fs.ErrNotExist) {
		return nil, moved
	}
	if _, err := through(ctx, s.gate, lookPatience, "looking at "+s.dir, func() (struct{}, error) { return struct{}{}, unmounted(was) }); err != nil {
		return nil, fmt.Errorf("%w: %w", moved, err)
	}
	now, err := openTree(ctx, s.gate, s.wrap)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", moved, err)
	}
	return s.take(was, now, moved)
}

// take has a tree be the present one, in place of was.
func (s *Store) take(was, now *tree, moved error) (*tree, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tree != was { // somebody else was first
		return s.tree, now.Close()
	}
	s.tree, s.moved = now, moved
	if was == nil {
		return now, nil
	}
	return now, was.Close() // open files stay readable; a descriptor would keep the former from being unmounted
}

// toWrite is at for what writes: the first write after the path came to name another directory fails with what was seen.
func (s *Store) toWrite(ctx context.Context) (*tree, error) {
	t, err := s.at(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	moved := s.moved
	s.moved = nil
	if moved != nil {
		return nil, fmt.Errorf("%w: what was written before is not in it: move or mount the former directory back if this was a mistake; new objects go to the present directory", moved)
	}
	return t, nil
}

// still tells whether the path names a tree.
func (s *Store) still(ctx context.Context, t *tree) error {
	now, err := through(ctx, s.gate, lookPatience, "looking at "+s.dir, func() (os.FileInfo, error) { return os.Stat(s.dir) })
	switch {
	case errors.Is(err, ErrSilent), err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		return fmt.Errorf("directory %s: %w: %w: %w: mount it or move it back, writes go on by themselves then", s.dir, store.ErrRefused, ErrMoved, err)
	case !os.SameFile(now, t.info):
		return fmt.Errorf("directory %s: %w: %w: %s was open, %s is there now", s.dir, store.ErrRefused, ErrMoved, identity(t.info), identity(now))
	}
	return nil
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
	d, err := os.Open(was.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	_, err = d.ReadDir(1)
	if bare(device(was.info), device(now), device(parent), errors.Is(err, io.EOF)) {
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

// makeDirs makes a directory and what is missing above it. Each is synced into its parent, also one that was there: its
// maker may have died before that.
func (t *tree) makeDirs(ctx context.Context, name string) error {
	if name == "." {
		return nil
	}
	t.mu.Lock()
	_, made := t.made[name]
	t.mu.Unlock()
	if made {
		return nil
	}
	parts := strings.Split(name, "/")
	for i := range parts {
		dir := path.Join(parts[:i+1]...)
		if err := t.mkdir(ctx, dir); err != nil {
			return err
		}
		if err := t.syncDir(ctx, path.Dir(dir)); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.made) >= maxMade {
		clear(t.made)
	}
	t.made[name] = struct{}{}
	return nil
}

// forget makes the next makeDirs look again: a deletion, here or elsewhere, has removed a directory.
func (t *tree) forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for made := range t.made {
		if made == name || strings.HasPrefix(made, name+"/") {
			delete(t.made, made)
		}
	}
}

// inDir calls make with a directory that is there. Deletions remove directories that they find empty, also just before something is
// put there.
func (t *tree) inDir(ctx context.Context, dir string, make func() error) error {
	for tries := 0; ; tries++ {
		err := t.makeDirs(ctx, dir)
		if err == nil {
			err = make()
		}
		if !errors.Is(err, fs.ErrNotExist) || tries == 20 {
			return err
		}
		t.forget(dir)
	}
}

// trim removes a directory and those above it that are empty, up to the root.
func (t *tree) trim(ctx context.Context, dir string) {
	for ; dir != "."; dir = path.Dir(dir) {
		t.forget(dir)
		if t.remove(ctx, dir) != nil { // it is not empty, as a rule
			return
		}
	}
}
