// Package memory is a store of objects in memory, for tests: right in every row of the contract, and with a hook before and after each
// call, so that a test can refuse it, cut it short, or let it happen and deny it.
//
// Its clock is the test's: one tick for each change, or what Now says. It imports store alone.
package memory

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
)

// Call names one call of the store, for hooks.
type Call struct {
	Verb string // the method's name; of uploads Part, Complete, Abort
	Key  string
	N    int // of all calls, from 0
}

func (c Call) String() string { return fmt.Sprintf("%d: %s %s", c.N, c.Verb, c.Key) }

// Changes tells whether the call changes the store.
func (c Call) Changes() bool {
	switch c.Verb {
	case "Get", "ReadRange", "Stat", "List", "Unfinished":
		return false
	}
	return true
}

// Store is one client of a root. Its hooks are called without mu.
type Store struct {
	// Before is asked before each call; an error is its answer, and nothing happens. After is asked when the call was carried out: an
	// error takes the place of its answer. Both are set before the first call.
	Before, After func(Call) error
	// Now is the store's clock; nil counts a second for each change.
	Now func() time.Time
	// Least is the size of an upload's parts, in bytes, where it does not make too many; 0: DefaultPart.
	Least int64
	// Heedless: the conditions of this client's puts are ignored. Overwrote is told of keys whose bytes such a put has changed, if it is set.
	Heedless bool
	// Replaces: completing an upload replaces what is there, as it does with S3. Otherwise other bytes are ErrExists.
	Replaces  bool
	Overwrote func(key string)

	*shared
	closed atomic.Bool
}

// shared is what all clients of a root see. mu guards it.
type shared struct {
	mu      sync.Mutex
	calls   int
	ticks   int64
	serial  int64
	objects map[string]object
	pending map[string]*upload
}

type object struct {
	b        []byte
	modified time.Time
	version  store.Version
	sum      string // of uploads; small objects have none, as with stores that don't compute one
}

// DefaultPart is small, so that tests have uploads of several parts. An object has at most so many parts and bytes as with S3.
const (
	DefaultPart = 1 << 10
	maxParts    = 10_000
	maxObject   = 5 << 40
)

// New returns an empty store.
func New() *Store {
	return &Store{shared: &shared{objects: make(map[string]object), pending: make(map[string]*upload)}}
}

// Client is another client of the same root, without hooks.
func (s *Store) Client() *Store {
	return &Store{Now: s.Now, Least: s.Least, Replaces: s.Replaces, Heedless: s.Heedless, Overwrote: s.Overwrote, shared: s.shared}
}

// Clone is a store with the same objects and uploads, and no hooks: what a program that starts now would find.
func (s *Store) Clone() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := New()
	c.ticks, c.serial = s.ticks, s.serial
	for k, o := range s.objects {
		c.objects[k] = o
	}
	for id, u := range s.pending {
		c.pending[id] = &upload{s: c, key: u.key, id: u.id, size: u.size, began: u.began, part: u.part, parts: cloneParts(u.parts)}
	}
	return c
}

func cloneParts(parts map[int][]byte) map[int][]byte {
	out := make(map[int][]byte, len(parts))
	for i, b := range parts {
		out[i] = b
	}
	return out
}

// Calls is how many calls there were.
func (s *Store) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// Bend changes an object behind everybody's back; nil removes it.
func (s *Store) Bend(key string, change func([]byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[key]
	if o.b = change(bytes.Clone(o.b)); o.b == nil {
		delete(s.objects, key)
		return
	}
	s.objects[key] = o
}

// Replace puts other bytes in the place of an upload, as a program would that deleted it and uploaded them.
func (s *Store) Replace(key string, change func([]byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := change(bytes.Clone(s.objects[key].b))
	sum := sha256.Sum256(b)
	s.objects[key] = object{b, s.tickLocked(), store.Version(fmt.Sprint("replaced", s.ticks)), hex.EncodeToString(sum[:])}
}

// Keys lists what is there.
func (s *Store) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]string, 0, len(s.objects))
	for k := range s.objects {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Age makes all that is there older.
func (s *Store) Age(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, o := range s.objects {
		o.modified = o.modified.Add(-by)
		s.objects[k] = o
	}
	for _, u := range s.pending {
		u.began = u.began.Add(-by)
	}
}

// do carries one call out between its hooks.
func (s *Store) do(ctx context.Context, verb, key string, act func() error) error {
	s.mu.Lock()
	call := Call{verb, key, s.calls}
	s.calls++
	s.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := checked(verb, key); err != nil {
		return err
	}
	if s.closed.Load() {
		return fmt.Errorf("%s %s: %w", strings.ToLower(verb), key, os.ErrClosed)
	}
	if s.Before != nil {
		if err := s.Before(call); err != nil {
			return fmt.Errorf("%s %s: %w", strings.ToLower(verb), key, err)
		}
	}
	s.mu.Lock()
	err := act()
	s.mu.Unlock()
	if s.After != nil {
		if denied := s.After(call); denied != nil {
			err = denied
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", strings.ToLower(verb), key, err)
	}
	return nil
}

// checked refuses keys and prefixes that no store takes.
func checked(verb, key string) error {
	if verb == "List" || verb == "Unfinished" {
		return store.CheckPrefix(key)
	}
	return store.CheckKey(key)
}

// tickLocked is the time of a change.
func (s *Store) tickLocked() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	s.ticks++
	return time.Unix(1_700_000_000+s.ticks, 0)
}

// putLocked refuses a key that is another's directory, or has one for its own.
func (s *Store) putLocked(key string, b []byte, sum string) (store.Version, error) {
	for k := range s.objects {
		if strings.HasPrefix(k, key+"/") || strings.HasPrefix(key, k+"/") {
			return "", fmt.Errorf("%s is there: no key is the directory of another", k)
		}
	}
	s.serial++
	v := store.Version(fmt.Sprint(s.serial))
	s.objects[key] = object{bytes.Clone(b), s.tickLocked(), v, sum}
	return v, nil
}

// URL names the store.
func (s *Store) URL() string { return "memory:" }

// PutNew puts a small object where none is.
func (s *Store) PutNew(ctx context.Context, key string, b []byte) (v store.Version, err error) {
	err = s.do(ctx, "PutNew", key, func() (err error) {
		if len(b) > store.MaxSmall {
			return fmt.Errorf("%d bytes, at most %d", len(b), store.MaxSmall)
		}
		if _, ok := s.objects[key]; ok && !s.heedlessLocked(key, b) {
			return store.ErrExists
		}
		v, err = s.putLocked(key, b, "")
		return err
	})
	return v, err
}

// PutUnchanged puts a small object in place of a version.
func (s *Store) PutUnchanged(ctx context.Context, key string, b []byte, was store.Version) (v store.Version, err error) {
	err = s.do(ctx, "PutUnchanged", key, func() (err error) {
		if o, ok := s.objects[key]; (!ok || o.version != was) && !s.heedlessLocked(key, b) {
			return store.ErrChanged
		}
		v, err = s.putLocked(key, b, "")
		return err
	})
	return v, err
}

// heedlessLocked tells whether a put is carried out whose condition does not hold.
func (s *Store) heedlessLocked(key string, b []byte) bool {
	if o, ok := s.objects[key]; s.Heedless && ok && s.Overwrote != nil && !bytes.Equal(o.b, b) {
		s.Overwrote(key)
	}
	return s.Heedless
}

// Get reads a small object.
func (s *Store) Get(ctx context.Context, key string, most int64) (b []byte, v store.Version, err error) {
	err = s.do(ctx, "Get", key, func() error {
		o, ok := s.objects[key]
		if !ok {
			return store.ErrAbsent
		}
		if int64(len(o.b)) > most {
			return fmt.Errorf("%d bytes, at most %d", len(o.b), most)
		}
		b, v = bytes.Clone(o.b), o.version
		return nil
	})
	return b, v, err
}

// ReadRange reads a piece of an object.
func (s *Store) ReadRange(ctx context.Context, key string, off int64, b []byte) error {
	return s.do(ctx, "ReadRange", key, func() error {
		o, ok := s.objects[key]
		if !ok {
			return store.ErrAbsent
		}
		if off < 0 || off+int64(len(b)) > int64(len(o.b)) {
			return fmt.Errorf("%w: bytes %d to %d of %d", store.ErrCorrupt, off, off+int64(len(b)), len(o.b))
		}
		copy(b, o.b[off:])
		return nil
	})
}

// Stat says what is there.
func (s *Store) Stat(ctx context.Context, key string) (info store.Info, err error) {
	err = s.do(ctx, "Stat", key, func() error {
		o, ok := s.objects[key]
		if !ok {
			return store.ErrAbsent
		}
		info = o.info(key)
		return nil
	})
	return info, err
}

func (o object) info(key string) store.Info {
	return store.Info{Key: key, Size: int64(len(o.b)), Modified: o.modified, Version: o.version, Checksum: o.sum}
}

// List calls each for every object, by key.
func (s *Store) List(ctx context.Context, prefix, after string, each func(store.Info) error) error {
	var list []store.Info
	err := s.do(ctx, "List", prefix, func() error {
		for k, o := range s.objects {
			if strings.HasPrefix(k, prefix) && k > after && store.CheckKey(k) == nil {
				list = append(list, o.info(k))
			}
		}
		return nil
	})
	slices.SortFunc(list, func(a, b store.Info) int { return strings.Compare(a.Key, b.Key) })
	for _, info := range list {
		if err == nil {
			err = each(info)
		}
	}
	return err
}

// Delete removes an object.
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.do(ctx, "Delete", key, func() error {
		delete(s.objects, key)
		return nil
	})
}

// Unfinished lists uploads under way.
func (s *Store) Unfinished(ctx context.Context, prefix string) (list []store.Pending, err error) {
	err = s.do(ctx, "Unfinished", prefix, func() error {
		for _, u := range s.pending {
			if strings.HasPrefix(u.key, prefix) {
				list = append(list, store.Pending{Key: u.key, ID: u.id, Began: u.began})
			}
		}
		return nil
	})
	slices.SortFunc(list, func(a, b store.Pending) int { return strings.Compare(a.Key+" "+a.ID, b.Key+" "+b.ID) })
	return list, err
}

// AbortPending ends an upload.
func (s *Store) AbortPending(ctx context.Context, p store.Pending) error {
	return s.do(ctx, "AbortPending", p.Key, func() error {
		delete(s.pending, p.ID)
		return nil
	})
}

// Close ends the client: its calls fail from then on.
func (s *Store) Close() error {
	s.closed.Store(true)
	return nil
}

type upload struct {
	s     *Store
	key   string
	id    string
	size  int64
	part  int64
	began time.Time
	parts map[int][]byte
	done  *store.Info // guarded by the store's mu
}

// Upload begins a large object.
func (s *Store) Upload(ctx context.Context, key string, size int64) (store.Upload, error) {
	var u *upload
	err := s.do(ctx, "Upload", key, func() error {
		if size < 0 || size > maxObject {
			return fmt.Errorf("an object of %d bytes, want 0 to %d", size, int64(maxObject))
		}
		s.serial++
		part := max(cmp.Or(s.Least, DefaultPart), (size+maxParts-1)/maxParts)
		u = &upload{s: s, key: key, id: fmt.Sprint("u", s.serial), size: size, part: part, began: s.tickLocked(), parts: make(map[int][]byte)}
		s.pending[u.id] = u
		return nil
	})
	if err != nil {
		return nil, err
	}
	return u, nil
}

func (u *upload) PartBytes() int64 { return u.part }

func (u *upload) Part(ctx context.Context, i int, b []byte) error {
	return u.s.do(ctx, "Part", u.key, func() error {
		if u.s.pending[u.id] == nil {
			return fmt.Errorf("%w: the upload is gone", store.ErrAbsent)
		}
		if want := min(u.part, u.size-int64(i)*u.part); i < 0 || want <= 0 || int64(len(b)) != want {
			return fmt.Errorf("part %d has %d bytes, want %d", i, len(b), want)
		}
		u.parts[i] = bytes.Clone(b)
		return nil
	})
}

func (u *upload) Complete(ctx context.Context, sum [32]byte) (info store.Info, err error) {
	err = u.s.do(ctx, "Complete", u.key, func() error {
		if u.done != nil {
			info = *u.done
			return nil
		}
		if u.s.pending[u.id] == nil {
			return fmt.Errorf("%w: the upload is gone", store.ErrAbsent)
		}
		var b []byte
		for i := range len(u.parts) {
			b = append(b, u.parts[i]...)
		}
		if int64(len(b)) != u.size || sha256.Sum256(b) != sum {
			return fmt.Errorf("%w: %d bytes of %d, or another SHA-256", store.ErrCorrupt, len(b), u.size)
		}
		if o, ok := u.s.objects[u.key]; ok && !bytes.Equal(o.b, b) && !u.s.Replaces {
			return store.ErrExists
		}
		if _, err := u.s.putLocked(u.key, b, hex.EncodeToString(sum[:])); err != nil {
			return err
		}
		delete(u.s.pending, u.id)
		info = u.s.objects[u.key].info(u.key)
		u.done = &info
		return nil
	})
	return info, err
}

func (u *upload) Abort(ctx context.Context) error {
	return u.s.do(ctx, "Abort", u.key, func() error {
		delete(u.s.pending, u.id)
		return nil
	})
}
