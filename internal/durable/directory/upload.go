package directory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
)

// partBytes is how much of an upload is synced at once: a whole shard would fill the machine's memory with what is not on disk yet. A writer without
// a spool has freed its slot once the last parts are in memory, and has moved nothing while a slow disk syncs them: they are to be few.
const (
	partBytes  = 4 << 20
	maxParts   = 10_000 // as of the other stores: what keeps track of parts has one bound
	mostUpload = 1 << 50
)

// upload is a file under a temporary name. Its parts may be written at once; the end excludes them.
type upload struct {
	store *Store
	tree  *tree
	key   string
	temp  string
	size  int64
	part  int64
	file  file

	mu   sync.Mutex // guards the rest, and is held while the upload ends
	here []bool     // parts that are written and synced
	torn error      // why nothing may be written any more
	over bool       // completed or aborted
	info store.Info // of a completed one
}

// Upload begins a large object.
func (s *Store) Upload(ctx context.Context, key string, size int64) (store.Upload, error) {
	if err := store.CheckKey(key); err != nil {
		return nil, err
	}
	if size < 0 || size > mostUpload {
		return nil, fmt.Errorf("upload %s: %d bytes, want 0 to %d", key, size, int64(mostUpload))
	}
	t, err := s.toWrite(ctx)
	if err != nil {
		return nil, err
	}
	u := &upload{store: s, tree: t, key: key, temp: tempName(key, newID(uploading)), size: size, part: partFor(size)}
	u.here = make([]bool, (size+u.part-1)/u.part)
	if err = t.vacant(ctx, key); err == nil {
		err = t.inDir(ctx, path.Dir(key), func() error {
			f, err := t.create(ctx, u.temp)
			u.file = file{f, u.temp, t}
			return err
		})
	}
	if err != nil {
		return nil, s.answer("upload "+key, err)
	}
	return u, nil
}

// partFor is the size of an object's parts: whole MiB, and few enough of them.
func partFor(size int64) int64 {
	const mib = 1 << 20
	least := (size + maxParts - 1) / maxParts
	return max(partBytes, (least+mib-1)/mib*mib)
}

func (u *upload) PartBytes() int64 { return u.part }

// Part writes part i and syncs it. One that was given up may still be written, over what comes later: the upload ends with it.
func (u *upload) Part(ctx context.Context, i int, b []byte) error {
	if i < 0 || i >= len(u.here) || int64(len(b)) != min(u.part, u.size-int64(i)*u.part) {
		return fmt.Errorf("part %d of %s has %d bytes, of an object of %d in parts of %d", i, u.key, len(b), u.size, u.part)
	}
	if err := u.open(); err != nil {
		return u.store.answer(fmt.Sprintf("part %d of %s", i, u.key), err)
	}
	err := u.put(ctx, b, int64(i)*u.part)
	u.mu.Lock()
	if errors.Is(err, errAbandoned) {
		u.torn = fmt.Errorf("%w: begin the upload anew: %w", store.ErrDoubtful, err)
	}
	if err == nil {
		u.here[i] = true
	}
	u.mu.Unlock()
	return u.store.done(ctx, u.tree, fmt.Sprintf("part %d of %s", i, u.key), err)
}

// put writes bytes and syncs them. A disk that was slow, or that nobody knows yet, syncs a step at a time: the kernel takes bytes at once, and one
// sync of all that several parts have written would show nothing of them for long.
func (u *upload) put(ctx context.Context, b []byte, off int64) error {
	for len(b) > 0 {
		n := min(len(b), step)
		if u.store.quick.Load() {
			n = len(b)
		}
		if err := u.file.writeAt(ctx, b[:n], off); err != nil {
			return err
		}
		began := time.Now()
		if err := u.file.sync(ctx); err != nil {
			return err
		}
		u.store.quick.Store(time.Since(began) < u.store.quickSync)
		store.Moved(ctx, 1) // what the kernel had taken is on the disk
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// quickSync is how long the sync of a part may take for the next ones to be synced whole: what several lanes have written waits for it.
const quickSync = time.Second

var errOver = errors.New("the upload has ended")

func (u *upload) open() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return errOver
	}
	return u.torn
}

// Complete gives the file its name.
func (u *upload) Complete(ctx context.Context, _ [32]byte) (store.Info, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	info, err := u.completeLocked(ctx)
	return info, u.store.done(ctx, u.tree, "complete "+u.key, err)
}

func (u *upload) completeLocked(ctx context.Context) (store.Info, error) {
	switch {
	case u.over && u.info.Key != "":
		return u.info, nil
	case u.over:
		return store.Info{}, fmt.Errorf("%w: %w", store.ErrAbsent, errOver)
	case u.torn != nil:
		return store.Info{}, u.torn
	}
	for i, here := range u.here {
		if !here {
			return store.Info{}, fmt.Errorf("part %d of %d was not put", i, len(u.here))
		}
	}
	if err := u.file.sync(ctx); err != nil {
		return store.Info{}, err
	}
	info, err := through(ctx, u.tree.gate, lookPatience, "looking at "+u.temp, u.file.Stat)
	if err != nil {
		return store.Info{}, err
	}
	if info.Size() != u.size {
		return store.Info{}, fmt.Errorf("%w: %s has %d bytes, %d were written", store.ErrCorrupt, u.temp, info.Size(), u.size)
	}
	if err := u.tree.linkOnce(ctx, u.temp, u.key); errors.Is(err, fs.ErrNotExist) {
		return store.Info{}, fmt.Errorf("%w: the upload was aborted by another: %w", store.ErrAbsent, err)
	} else if err != nil {
		return store.Info{}, err
	}
	u.over, u.info = true, infoOf(u.key, info)
	_ = u.tree.remove(ctx, u.temp) // Unfinished shows it otherwise
	_ = u.file.close(ctx)          // it was synced
	return u.info, nil
}

// Abort removes the file. Parts that are being written end in a file without a name.
func (u *upload) Abort(ctx context.Context) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return nil
	}
	err := u.tree.remove(ctx, u.temp)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return u.store.answer("abort "+u.key, err)
	}
	u.over = true
	_ = u.file.close(ctx) // nothing of it is wanted
	u.tree.trim(ctx, path.Dir(u.key))
	return nil
}
