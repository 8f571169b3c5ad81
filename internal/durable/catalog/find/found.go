package find

import (
	"time"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// Found is a generation that is committed and whose files are all there.
type Found struct {
	format.Commit
	Run   Run
	Index *format.Index
	// Abandoned: a later epoch of the run began before it. It is no ancestor of what is newest.
	Abandoned bool
	// Read is when the newest whole read of it ended, which found every byte; zero: nobody has read it.
	Read time.Time
	// Touched: a file of it was written after that read, by the store's times: somebody may have changed it.
	Touched bool

	newest time.Time // when a file of it was written last, by the store's times
	locked error     // what Readable says
}

// Where names the generation below the root of its store, for people and to tell it from others.
func (f *Found) Where() string {
	return f.Run.Under(format.StepName(f.Generation))
}

// Began is when its run began, as its directory says, in milliseconds since 1970; 0: the directory says nothing.
func (f *Found) Began() uint64 {
	if began, _, ok := format.ParseRunName(f.Run.Run); ok {
		return uint64(began.UnixMilli())
	}
	return 0
}

// Shards lists its parts as the daemons name them.
func (f *Found) Shards() (list []replica.ShardInfo) {
	for _, p := range f.Index.Parts {
		file := f.Index.Files[p.File]
		list = append(list, replica.ShardInfo{Part: p.Part, File: file.Key, Bytes: file.Bytes, Root: p.Root})
	}
	return list
}

// Readable says why nothing can be read of what lies in a generation: it is encrypted, and no key was given. nil: it can be. Without a key
// a generation is found, listed, verified by the digests of its files, copied as it lies, kept and deleted all the same.
func (f *Found) Readable() error { return f.locked }
