// Package store is what the durable tier asks of a store of objects, and nothing more: a directory, S3, Google's and Azure's stores and memory answer alike. Package
// storetest is its contract as a suite; each store passes all of it.
//
// A key is a slash-separated path of printable ASCII (CheckKey). No key is the directory of another. Objects are written whole: a reader
// sees all of an object or none of it, and what List, Stat and Get answer holds from the moment that the put of an object has returned.
//
// Conditions are asked for on small puts alone, because servers differ on all others. Large objects therefore lie under names that no
// other attempt has. Nothing is renamed, and no deletion has a condition.
//
// A Store may be used by several goroutines. Every call ends soon after its ctx does, also where the server or the kernel does not answer.
package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// What a store answers besides its results. A caller tells them apart with errors.Is; the texts around them name key and store.
var (
	// ErrAbsent: there is no object of that key.
	ErrAbsent = errors.New("no such object")
	// ErrExists: PutNew found an object of that key.
	ErrExists = errors.New("an object is there already")
	// ErrChanged: PutUnchanged found another version, or none.
	ErrChanged = errors.New("the object has changed since it was read")
	// ErrDoubtful: the request may have been carried out or not (a timeout, a reset, a 5xx): only reading back tells.
	ErrDoubtful = errors.New("nobody knows whether the store carried it out")
	// ErrSlowDown: the store asks for fewer requests.
	ErrSlowDown = errors.New("the store asks for fewer requests")
	// ErrRefused: the store will not do it however often it is asked (credentials, quota, a missing bucket, a read-only file system).
	ErrRefused = errors.New("the store refuses")
	// ErrCorrupt: bytes arrived that are not those that were sent.
	ErrCorrupt = errors.New("corrupt")
)

// Limits of keys and of small objects.
const (
	MaxKey     = 512      // bytes, below the root
	MaxSegment = 200      // bytes between two slashes: file systems take names of 255, and a directory puts a prefix before some
	MaxSmall   = 64 << 20 // bytes of an object that is put or got whole
)

// Version tells one content of a key from another: an ETag, or a digest of the bytes. It is opaque; empty is none, and matches nothing.
type Version string

// Info is what a store says of an object without reading it.
type Info struct {
	Key      string
	Size     int64     // bytes
	Modified time.Time // by the store's clock; zero where it says none
	Version  Version   // empty where the store would have to read the object for it
	// Checksum is the whole object's SHA-256, where the store has computed or verified it; empty where it has not.
	Checksum string // hexadecimal
}

// Pending is an upload that was neither completed nor aborted.
type Pending struct {
	Key   string
	ID    string
	Began time.Time // by the store's clock, or its writer's; of a directory and of GCS, when it was last written to
}

// Store is one root in a store: all keys lie below it, and nothing outside is touched.
type Store interface {
	// URL names the root, for people: file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix. It holds no secret.
	URL() string
	// PutNew puts a small object where none is, or fails with ErrExists. After a doubtful answer it reads back, and the same bytes there
	// are its own: a caller whose rivals may write the same bytes puts a nonce in them.
	PutNew(ctx context.Context, key string, b []byte) (Version, error)
	// PutUnchanged puts a small object in place of the version was, or fails with ErrChanged. It fails with ErrDoubtful where a doubtful
	// answer was followed by a third content: its own may have been there in between.
	PutUnchanged(ctx context.Context, key string, b []byte, was Version) (Version, error)
	// Upload begins a large object of size bytes under a key that no other attempt uses. Nothing is seen of it before Complete.
	Upload(ctx context.Context, key string, size int64) (Upload, error)
	// Get reads a small object whole; one of more than most bytes is refused before it is read.
	Get(ctx context.Context, key string, most int64) ([]byte, Version, error)
	// ReadRange fills b from byte off of an object. Fewer bytes than asked for are an error; after one b must not be used again, since a
	// call that was given up may still write to it.
	ReadRange(ctx context.Context, key string, off int64, b []byte) error
	// Stat says what is there, or ErrAbsent.
	Stat(ctx context.Context, key string) (Info, error)
	// List calls each for every object whose key begins with prefix, by key, after the key after (empty: from the first). It ends with
	// each's error, and never lists a prefix that CheckPrefix refuses. Objects of others below the root that CheckKey refuses are passed over.
	List(ctx context.Context, prefix, after string, each func(Info) error) error
	// Delete removes an object. One that is not there is no error. Its key is not used again: some servers that keep versions take the mark
	// of a deletion for an object (docs/stores.md).
	Delete(ctx context.Context, key string) error
	// Unfinished lists uploads of keys that begin with prefix, of any writer, that were neither completed nor aborted.
	Unfinished(ctx context.Context, prefix string) ([]Pending, error)
	// AbortPending ends somebody's unfinished upload and frees what it took; one that is gone is no error.
	AbortPending(ctx context.Context, p Pending) error
	// Close frees what the store holds open. Calls under way end.
	Close() error
}

// Forgetter is a store between which and its disk a kernel remembers bytes.
type Forgetter interface {
	// Forget has the next read of an object come from the disk, as far as the kernel lets it.
	Forget(ctx context.Context, key string) error
}

// Upload is one large object on its way. Parts may be put by several goroutines, in any order, and again after an error.
type Upload interface {
	// PartBytes is the size of each part but the last, in bytes. It follows from the object's size and the store's limits.
	PartBytes() int64
	// Part puts part i, from 0: bytes [i*PartBytes, ...) of the object. It returns once the store has the bytes and has checked them
	// where it can. b is not kept.
	Part(ctx context.Context, i int, b []byte) error
	// Complete makes the object exist, once all parts are there. sum is its SHA-256. A repeated one that finds its own object succeeds.
	Complete(ctx context.Context, sum [32]byte) (Info, error)
	// Abort frees what the parts took. After Complete it does nothing.
	Abort(ctx context.Context) error
}

// CheckKey tells whether a key may be used: 1 to MaxKey bytes of letters, digits and "-_.=+@" in segments of 1 to MaxSegment bytes between
// slashes, none of them "." or "..".
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("key %.64q: %d bytes, want 1 to %d", key, len(key), MaxKey)
	}
	for seg := range strings.SplitSeq(key, "/") {
		if seg == "" || seg == "." || seg == ".." {
			return fmt.Errorf("key %q: segment %q is not allowed", key, seg)
		}
		if len(seg) > MaxSegment {
			return fmt.Errorf("key %q: segment of %d bytes, want at most %d", key, len(seg), MaxSegment)
		}
		for _, c := range []byte(seg) {
			if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-_.=+@", c) >= 0) {
				return fmt.Errorf("key %q: byte %q is not allowed", key, c)
			}
		}
	}
	return nil
}

// CheckPrefix tells whether keys may begin with prefix. The empty one is that of all keys.
func CheckPrefix(prefix string) error {
	if prefix == "" || CheckKey(strings.TrimSuffix(prefix, "/")) == nil {
		return nil
	}
	if err := CheckKey(strings.TrimRight(prefix, ".") + "x"); err != nil { // "a/.." may go on as "a/..b"
		return fmt.Errorf("prefix: %w", err)
	}
	return nil
}
