package directory

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/replicad/replicad/internal/durable/store"
)

// List calls each for every object whose key begins with prefix.
func (s *Store) List(ctx context.Context, prefix, after string, each func(store.Info) error) error {
	if err := store.CheckPrefix(prefix); err != nil {
		return err
	}
	t, err := s.at(ctx)
	if err != nil {
		return s.answer("list "+prefix, err)
	}
	w := walk{ctx: ctx, tree: t, prefix: prefix, after: after}
	var theirs error // each's own error, which is no answer of the store
	w.object = func(info store.Info) error {
		theirs = each(info)
		return theirs
	}
	_, err = w.dir(path.Dir(prefix + "x"))
	if theirs != nil {
		return theirs
	}
	return s.answer("list "+prefix, err)
}

// nfsRemoved begins the names that NFS gives files that were removed while they were open.
const nfsRemoved = ".nfs"

// walk goes through the objects, or through what is unfinished, by key.
type walk struct {
	ctx           context.Context // of the one call that made it
	tree          *tree
	prefix, after string
	object        func(store.Info) error    // nil: they are not looked for
	pending       func(store.Pending) error // nil: they are not looked for
}

// entry is what a directory has, under the name by which keys are ordered: directories with their slash.
type entry struct {
	order string
	name  string
	temp  string // its ID, of what is unfinished
	dir   bool
	later bool // it has versions
}

// dir goes through a directory. Where a name that was read is gone when its turn comes, the names behind it are read again: who deletes beside this may have
// put another before, and would have both missed.
func (w walk) dir(dir string) (gone bool, err error) {
	for passed := ""; ; {
		entries, err := w.entries(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return true, nil // it never was, or has just been deleted
		}
		if err != nil {
			return false, err
		}
		again := false
		for _, e := range entries {
			if e.order <= passed {
				continue
			}
			passed = e.order
			if again, err = w.entry(path.Join(dir, e.name), e); err != nil {
				return false, err
			}
			if again {
				break
			}
		}
		if !again {
			return false, nil
		}
	}
}

func (w walk) entry(key string, e entry) (gone bool, err error) {
	switch {
	case e.dir:
		return w.dir(key)
	case e.temp != "":
		return w.visitPending(key, e)
	default:
		return w.visit(key, e)
	}
}

// entries lists what of a directory matters, by key. What is not matters to nobody, however much of it there is.
func (w walk) entries(dir string) (list []entry, err error) {
	later := map[string]bool{}
	err = w.tree.each(w.ctx, dir, func(e fs.DirEntry) {
		if base, ok := strings.CutPrefix(e.Name(), versions); ok && e.IsDir() {
			later[base] = true
			return
		}
		if x, ok := w.matters(dir, e); ok {
			list = append(list, x)
		}
	})
	slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.order, b.order) })
	for i := range list {
		list[i].later = later[list[i].name]
	}
	return list, err
}

func (w walk) matters(dir string, e fs.DirEntry) (x entry, ok bool) {
	x = entry{order: e.Name(), name: e.Name(), dir: e.IsDir()}
	if base, id, temp := parseTemp(e.Name()); temp && w.pending != nil {
		x.name, x.temp = base, id
	}
	key := path.Join(dir, x.name)
	if store.CheckKey(key) != nil || strings.HasPrefix(x.name, nfsRemoved) {
		return x, false
	}
	if x.dir {
		x.order += "/"
		under := key + "/"
		return x, (strings.HasPrefix(under, w.prefix) || strings.HasPrefix(w.prefix, under)) && (under > w.after || strings.HasPrefix(w.after, under))
	}
	wanted := x.temp == "" && w.object != nil || x.temp != ""
	return x, wanted && e.Type().IsRegular() && strings.HasPrefix(key, w.prefix) && key > w.after
}

func (w walk) visit(key string, e entry) (gone bool, err error) {
	info, err := w.look(key, e.later)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, store.ErrAbsent), errors.Is(err, syscall.ENOTDIR):
		return true, nil
	case err != nil:
		return false, err
	case !info.Mode().IsRegular():
		return false, nil
	}
	return false, w.object(infoOf(key, info))
}

// look finds out about the newest version of an object.
func (w walk) look(key string, later bool) (fs.FileInfo, error) {
	if !later {
		return w.tree.lstat(w.ctx, key)
	}
	c, err := w.tree.current(w.ctx, key)
	if err != nil {
		return nil, err
	}
	return c.info, c.close(w.ctx)
}

func (w walk) visitPending(key string, e entry) (gone bool, err error) {
	info, err := w.tree.lstat(w.ctx, tempName(key, e.temp))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, w.pending(store.Pending{Key: key, ID: e.temp, Began: info.ModTime()})
}

// Unfinished lists what puts and uploads are writing, or left when their processes died.
func (s *Store) Unfinished(ctx context.Context, prefix string) (list []store.Pending, err error) {
	if err := store.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	t, err := s.at(ctx)
	if err != nil {
		return nil, s.answer("unfinished "+prefix, err)
	}
	_, err = walk{ctx: ctx, tree: t, prefix: prefix, pending: func(p store.Pending) error {
		list = append(list, p)
		return nil
	}}.dir(path.Dir(prefix + "x"))
	return list, s.answer("unfinished "+prefix, err)
}

// AbortPending removes what a put or an upload left.
func (s *Store) AbortPending(ctx context.Context, p store.Pending) error {
	if err := store.CheckKey(p.Key); err != nil {
		return err
	}
	if !validID(p.ID) {
		return s.answer("abort "+p.Key, errors.Join(store.ErrRefused, errors.New("its ID is none of this store's")))
	}
	t, err := s.toWrite(ctx)
	if err != nil {
		return err
	}
	err = t.remove(ctx, tempName(p.Key, p.ID))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		err = nil
	}
	if err == nil {
		t.trim(ctx, path.Dir(p.Key))
	}
	return s.done(ctx, t, "abort "+p.Key, err)
}
