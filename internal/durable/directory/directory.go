package directory

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
)

// Store is a directory as a store. It is safe for concurrent use.
type Store struct {
	dir  string
	gate *gate
	wrap func(disk) disk // what tests put between a tree and the kernel

	quickSync time.Duration // a sync of an upload that takes less is quick
	quick     atomic.Bool   // the last one was

	close sync.Once
	mu    sync.Mutex // guards the rest
	tree  *tree      // nil: it was not opened yet
	moved error      // that the path came to name another directory, until a write was told
}

var _ store.Store = (*Store)(nil)

// Open opens a directory that is there: making it would hide that a file system is not mounted. It writes nothing.
func Open(ctx context.Context, dir string) (*Store, error) {
	return open(ctx, dir, func(d disk) disk { return d })
}

func open(ctx context.Context, dir string, wrap func(disk) disk) (*Store, error) {
	s, err := later(dir, wrap)
	if err != nil {
		return nil, err
	}
	if s.tree, err = s.open(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Later is Open for a directory that can't be opened now: each call to it tries that first.
func Later(dir string) (*Store, error) {
	return later(dir, func(d disk) disk { return d })
}

func later(dir string, wrap func(disk) disk) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return &Store{dir: dir, quickSync: quickSync, gate: &gate{dir: dir, closing: make(chan struct{})}, wrap: wrap}, nil
}

func (s *Store) open(ctx context.Context) (*tree, error) {
	t, err := openTree(ctx, s.gate, s.wrap)
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", s.dir, err)
	}
	return t, nil
}

// URL names the directory.
func (s *Store) URL() string { return (&url.URL{Scheme: "file", Path: s.dir}).String() }

// Close closes the directory, and ends calls that wait for a kernel that does not answer. Uploads that are open keep their files until they
// are aborted, or forgotten.
func (s *Store) Close() (err error) {
	s.close.Do(func() {
		close(s.gate.closing)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.tree != nil {
			err = s.tree.Close()
		}
	})
	return err
}

// Silent says since when, and in which call, the file system has not answered; empty: it answers, as far as is known.
func (s *Store) Silent() string {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	if err := s.gate.complaint(time.Now()); err != nil {
		return err.Error()
	}
	return ""
}

// Hangs says which call was given up and has not returned; nil: none. What is begun meanwhile may hang as well.
func (s *Store) Hangs() error {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	return s.gate.hangsLocked(time.Now())
}

// Names that are no keys.
const (
	aside     = "~"
	versions  = "~v-"
	putting   = 't' // first letters of an ID
	uploading = 'u'
	idLen     = 17
)

func newID(kind byte) string { return string(kind) + rand.Text()[:idLen-1] }

// tempName is where what is put under a key lies until it is whole.
func tempName(key, id string) string {
	return path.Join(path.Dir(key), aside+id+"-"+path.Base(key))
}

// parseTemp is tempName's inverse for a name in a directory.
func parseTemp(name string) (base, id string, ok bool) {
	rest, ok := strings.CutPrefix(name, aside)
	if !ok || len(rest) < idLen+2 || rest[idLen] != '-' || !validID(rest[:idLen]) {
		return "", "", false
	}
	return rest[idLen+1:], rest[:idLen], true
}

func validID(id string) bool {
	if len(id) != idLen || id[0] != putting && id[0] != uploading {
		return false
	}
	for _, c := range []byte(id[1:]) {
		if !('A' <= c && c <= 'Z' || '2' <= c && c <= '7') {
			return false
		}
	}
	return true
}

func versionDir(key string) string { return path.Join(path.Dir(key), versions+path.Base(key)) }

// versionOf names a content: its number and digest. The number alone would name another one after a deletion, the digest alone a former
// one that came back.
func versionOf(number int, b []byte) store.Version {
	sum := sha256.Sum256(b)
	return store.Version(fmt.Sprintf("%d-%s", number, hex.EncodeToString(sum[:16])))
}

// answer says in the store's words what a call of the kernel came to.
func (s *Store) answer(what string, err error) error {
	if err == nil {
		return nil
	}
	var is error
	remedy := ""
	switch {
	case errors.Is(err, store.ErrAbsent), errors.Is(err, store.ErrExists), errors.Is(err, store.ErrChanged), errors.Is(err, store.ErrRefused), errors.Is(err, store.ErrDoubtful), errors.Is(err, store.ErrCorrupt):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, ErrSilent), errors.Is(err, errAbandoned), errors.Is(err, syscall.EIO), errors.Is(err, syscall.ESTALE), errors.Is(err, syscall.ETIMEDOUT):
		is = store.ErrDoubtful
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		is = store.ErrAbsent
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		is, remedy = store.ErrRefused, ": free space in "+s.dir+", or write durable generations less often"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		is, remedy = store.ErrRefused, ": make "+s.dir+" writable for this user"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", what, err)
	default:
		is = store.ErrRefused
	}
	return fmt.Errorf("%s: %w: %w%s", what, is, err, remedy)
}

// done ends an operation that wrote to a tree: where the path names it no more, nothing of it counts.
func (s *Store) done(ctx context.Context, t *tree, what string, err error) error {
	if err == nil {
		err = s.still(ctx, t)
	} else if moved := s.still(ctx, t); errors.Is(moved, ErrMoved) {
		err = moved
	}
	return s.answer(what, err)
}

func checkSmall(key string, b []byte) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	if len(b) > store.MaxSmall {
		return fmt.Errorf("%s has %d bytes, want at most %d for one put", key, len(b), store.MaxSmall)
	}
	return nil
}
