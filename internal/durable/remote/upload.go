package remote

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
)

// MaxParts is how many parts an object has at most: what S3 allows.
const MaxParts = 10_000

// PartFor is the size of an object's parts: at least so many bytes, and few enough of them.
func PartFor(size, atLeast int64) int64 {
	const mib = 1 << 20
	least := (size + MaxParts - 1) / MaxParts
	if least <= atLeast {
		return atLeast
	}
	return (least + mib - 1) / mib * mib
}

// stillRate is how fast a server that says nothing may be putting the parts of an upload together, in bytes a second.
const stillRate = 32 << 20

// Finish completes an upload until the object is there. Servers answer a repeated completion with success or with "no such upload", so only
// the object tells. Nobody else puts one of its name, so its size tells that it is this one. An upload that was aborted is store.ErrAbsent.
func (c *Call) Finish(size int64, complete func(ctx context.Context) error, head func(ctx context.Context) (store.Info, error)) (store.Info, error) {
	c.Trace.Stall = c.c.Stall + time.Duration(size/stillRate)*time.Second // a server may copy all parts before it says anything
	for {
		f := c.Once(complete)
		switch {
		case f == nil, f.Class.doubts(), f.Class == NoUpload, f.Class == Absent, f.Class == Exists, f.Class == Contended:
			var info store.Info
			hf := c.Repeat(func(ctx context.Context) (err error) {
				info, err = head(ctx)
				return err
			})
			if hf == nil && info.Size != size {
				return store.Info{}, c.Fail(nil, store.ErrCorrupt, fmt.Errorf("the object there has %d bytes, not %d", info.Size, size))
			}
			if hf == nil {
				return info, nil
			}
			if f == nil && hf.Class == Absent {
				f = &Failure{Class: Doubtful, Text: "the answer was success, and the object is not there", Err: store.ErrDoubtful}
			}
			if f != nil && f.Class == NoUpload && hf.Class == Absent {
				return store.Info{}, c.Fail(f) // it was aborted
			}
			if f == nil || hf.Class != Absent {
				f = hf
			}
		}
		if !c.Again(f) {
			return store.Info{}, c.Fail(f)
		}
	}
}

// Parts are what an upload does at its store.
type Parts struct {
	Part func(ctx context.Context, i int, b []byte) error
	Join func(ctx context.Context) error // makes the object of the parts, or an empty one of none; NoUpload where they are gone
	Head func(ctx context.Context) (store.Info, error)
	Free func(ctx context.Context) error // what the parts of an upload that was not completed took; what is gone is no error
	Done func(ctx context.Context) error // the same after the completion; nil: nothing is left then
}

// Upload is an upload in parts. It is a store.Upload.
type Upload struct {
	c    *Client
	key  string
	size int64
	part int64
	ops  Parts

	mu   sync.Mutex // guards the rest
	here []bool
	over bool       // completed or aborted
	info store.Info // of a completed one
}

// NewUpload makes an upload of size bytes.
func (c *Client) NewUpload(key string, size, atLeast int64, ops Parts) *Upload {
	u := &Upload{c: c, key: key, size: size, part: PartFor(size, atLeast), ops: ops}
	u.here = make([]bool, (size+u.part-1)/u.part)
	return u
}

// PartBytes is the size of each part but the last.
func (u *Upload) PartBytes() int64 { return u.part }

// Count is how many parts there are.
func (u *Upload) Count() int { return len(u.here) }

// Part puts part i.
func (u *Upload) Part(ctx context.Context, i int, b []byte) error {
	if i < 0 || i >= len(u.here) || int64(len(b)) != min(u.part, u.size-int64(i)*u.part) {
		return fmt.Errorf("part %d of %s has %d bytes, of an object of %d in parts of %d", i, u.key, len(b), u.size, u.part)
	}
	c := u.c.Begin(ctx, fmt.Sprintf("part %d of", i), u.key)
	if f := c.Repeat(func(ctx context.Context) error { return u.ops.Part(ctx, i, b) }); f != nil {
		return c.Fail(f)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.here[i] = true
	return nil
}

// Complete makes the object exist.
func (u *Upload) Complete(ctx context.Context, sum [32]byte) (store.Info, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	c := u.c.Begin(ctx, "complete", u.key)
	switch {
	case u.over && u.info.Key != "":
		return u.info, nil
	case u.over:
		return store.Info{}, c.Fail(nil, store.ErrAbsent, errors.New("the upload was aborted"))
	}
	if i := slices.Index(u.here, false); i >= 0 {
		return store.Info{}, c.Fail(nil, fmt.Errorf("part %d of %d was not put", i, len(u.here)))
	}
	if len(u.here) == 0 && sum != sha256.Sum256(nil) {
		return store.Info{}, c.Fail(nil, store.ErrCorrupt, errors.New("the digest of an empty object is another"))
	}
	info, err := c.Finish(u.size, u.ops.Join, u.ops.Head)
	switch {
	case err == nil:
		u.over, u.info = true, info
		if len(u.here) > 0 && u.ops.Done != nil {
			_ = c.Repeat(u.ops.Done) // what stays is listed as unfinished, and aborted later
		}
	case errors.Is(err, store.ErrAbsent):
		_ = c.Repeat(u.ops.Free) // a part that was on its way during the abort
	}
	return info, err
}

// Abort frees what the parts took.
func (u *Upload) Abort(ctx context.Context) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return nil
	}
	if len(u.here) > 0 {
		c := u.c.Begin(ctx, "abort", u.key)
		if f := c.Repeat(u.ops.Free); f != nil {
			return c.Fail(f)
		}
	}
	u.over = true
	return nil
}
