package directory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
)

// cleanTime bounds the removal of what a failed put left, also once its context has ended.
const cleanTime = 5 * time.Second

// PutNew puts a small object where none is.
func (s *Store) PutNew(ctx context.Context, key string, b []byte) (store.Version, error) {
	if err := checkSmall(key, b); err != nil {
		return "", err
	}
	t, err := s.toWrite(ctx)
	if err != nil {
		return "", err
	}
	err = t.vacant(ctx, key)
	if err == nil {
		err = t.put(ctx, key, b, func(temp string) error { return t.linkOnce(ctx, temp, key) })
	}
	if err := s.done(ctx, t, "put "+key, err); err != nil {
		return "", err
	}
	return versionOf(0, b), nil
}

// vacant spares the writing of a file whose name is taken. Only the link decides.
func (t *tree) vacant(ctx context.Context, key string) error {
	info, err := t.lstat(ctx, key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: an object is where a directory of %s must be: %w", store.ErrRefused, key, err)
	case err != nil:
		return err
	}
	return occupied(key, info)
}

func occupied(key string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: %s is %s", store.ErrRefused, key, kindOf(info.Mode()))
	}
	return store.ErrExists
}

// put writes b to a temporary file beside key, synced, has place give it its name, and removes the temporary name.
func (t *tree) put(ctx context.Context, key string, b []byte, place func(temp string) error) (err error) {
	temp := tempName(key, newID(putting))
	var f file
	err = t.inDir(ctx, path.Dir(key), func() error {
		made, err := t.create(ctx, temp)
		f = file{made, temp, t}
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
		defer cancel()
		if left := t.remove(clean, temp); err == nil && left != nil && !errors.Is(left, fs.ErrNotExist) {
			err = left
		}
		if err != nil {
			t.trim(clean, path.Dir(key))
		}
	}()
	err = f.writeAt(ctx, b, 0)
	if err == nil {
		err = f.sync(ctx)
	}
	if cerr := f.close(ctx); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err = place(temp); errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: what was written was removed before it had its name", store.ErrDoubtful)
	}
	return err
}

// linkOnce gives the file temp the name to, where no file has it, and syncs the directory. What the link answers is not believed before
// the name was looked at: the server may have carried out a request whose answer was lost, and refuse or fail the second one.
func (t *tree) linkOnce(ctx context.Context, temp, to string) error {
	err := t.link(ctx, temp, to)
	if err != nil {
		if lerr := t.linked(ctx, temp, to, err); lerr != nil {
			return lerr
		}
	}
	return t.syncDir(ctx, path.Dir(to))
}

// linked tells whether to is another name of temp, after a link said err.
func (t *tree) linked(ctx context.Context, temp, to string, err error) error {
	if errors.Is(err, errAbandoned) {
		return err
	}
	at, aerr := t.lstat(ctx, to)
	ours, oerr := t.lstat(ctx, temp)
	switch {
	case aerr == nil && oerr == nil && os.SameFile(at, ours):
		return nil
	case aerr == nil && errors.Is(err, fs.ErrExist):
		return occupied(to, at)
	}
	return err
}

// PutUnchanged puts a small object in place of the version was.
func (s *Store) PutUnchanged(ctx context.Context, key string, b []byte, was store.Version) (store.Version, error) {
	if err := checkSmall(key, b); err != nil {
		return "", err
	}
	t, err := s.toWrite(ctx)
	if err != nil {
		return "", err
	}
	number, err := t.replace(ctx, key, b, was)
	if err := s.done(ctx, t, "put "+key, err); err != nil {
		return "", err
	}
	return versionOf(number, b), nil
}

// keepVersions is how many former versions are kept. Version n is removed once one above n+keepVersions is there, and the highest is never
// removed. Invariant: while the highest is at most n+keepVersions, version n has not been removed, so a link of n is the first one. A writer that
// slept while more than that came and went may link n anew; it then finds the highest above, and believes nothing.
const keepVersions = 256

// replace links the successor of the version was.
func (t *tree) replace(ctx context.Context, key string, b []byte, was store.Version) (int, error) {
	now, err := t.current(ctx, key)
	if errors.Is(err, store.ErrAbsent) {
		return 0, fmt.Errorf("%w: nothing is there", store.ErrChanged)
	}
	if err != nil {
		return 0, err
	}
	defer now.close(ctx)
	if now.info.Size() > store.MaxSmall {
		return 0, store.ErrChanged
	}
	text, err := now.whole(ctx)
	if err != nil {
		return 0, err
	}
	if v := versionOf(now.number, text); v != was {
		return 0, fmt.Errorf("%w: it is version %s, was %s", store.ErrChanged, v, was)
	}
	number := now.number + 1
	dir := versionDir(key)
	err = t.put(ctx, key, b, func(temp string) error {
		return t.inDir(ctx, dir, func() error { return t.linkOnce(ctx, temp, numbered(dir, number)) })
	})
	if errors.Is(err, store.ErrExists) {
		return 0, fmt.Errorf("%w: version %d is there", store.ErrChanged, number)
	}
	if err != nil {
		return 0, err
	}
	return number, t.publish(ctx, key, number)
}

// publish lets the key's own file be the newest version, for people and plain copies, and removes old ones. Several may do so at once:
// each goes on until it has published the newest that it sees. Only the first look can fail the put.
func (t *tree) publish(ctx context.Context, key string, number int) error {
	dir := versionDir(key)
	list, err := t.numbers(ctx, dir)
	if err != nil {
		return fmt.Errorf("%w: version %d was put, and then: %w", store.ErrDoubtful, number, err)
	}
	if len(list) == 0 || list[len(list)-1] > number+keepVersions {
		return fmt.Errorf("%w: version %d was put while the newest became %v", store.ErrDoubtful, number, list[max(len(list)-1, 0):])
	}
	for newest := 0; len(list) > 0 && list[len(list)-1] > newest; {
		newest = list[len(list)-1]
		temp := tempName(key, newID(putting))
		if t.link(ctx, numbered(dir, newest), temp) != nil || t.rename(ctx, temp, key) != nil {
			_ = t.remove(ctx, temp)
			break
		}
		_ = t.remove(ctx, temp) // a rename between two names of one file does nothing
		if list, err = t.numbers(ctx, dir); err != nil {
			break
		}
	}
	_ = t.syncDir(ctx, path.Dir(key))
	for _, n := range list {
		if n+keepVersions < number {
			_ = t.remove(ctx, numbered(dir, n))
		}
	}
	return nil
}

// Delete removes an object and its versions: the newest ones last, so that no older one is read in between.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	t, err := s.toWrite(ctx)
	if err != nil {
		return err
	}
	return s.done(ctx, t, "delete "+key, t.delete(ctx, key))
}

func (t *tree) delete(ctx context.Context, key string) error {
	info, err := t.lstat(ctx, key)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), err == nil && info.IsDir():
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is %s", store.ErrRefused, key, kindOf(info.Mode()))
	}
	dir := versionDir(key)
	list, err := t.numbers(ctx, dir)
	if err != nil {
		return err
	}
	for _, n := range list {
		if err := t.remove(ctx, numbered(dir, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	t.forget(dir)
	_ = t.remove(ctx, dir) // it is there, and empty, also after a change that failed
	if err := t.remove(ctx, key); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := t.syncDir(ctx, path.Dir(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	t.trim(ctx, path.Dir(key))
	return nil
}
