package remote

import (
	"context"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
)

// MaxParts is how many parts an object has at most: what S3 allows.
const MaxParts = 10_000

// PartFor is the size of an object's parts: at least so many bytes, and few enough of them.
func PartFor(size, atLeast int64) int64 {
	const mib = 1 << 20
	least := (size + MaxParts - 1) / MaxParts
	return max(atLeast, (least+mib-1)/mib*mib)
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
