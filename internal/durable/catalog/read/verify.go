package read

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Fault is a file that is not what its index says.
type Fault struct {
	Key  string `json:"key"` // below the run
	What string `json:"what"`
	// Twin: the file's twin is whole, and the generation readable.
	Twin bool `json:"twin,omitempty"`
	// Beside: it holds nothing of the state, and the generation is readable.
	Beside bool `json:"beside,omitempty"`
}

// Verify reads a generation whole: every file against its SHA-256, every chunk against its digest, both twins of frozen parts. progress
// hears how many bytes of how many were read, from several goroutines. An error means that a byte of the generation cannot be had; faults
// alone, that a twin is bad, or what its run carries beside the state. ErrNone: the generation was deleted meanwhile.
func (c *Reader) Verify(ctx context.Context, f find.Found, progress func(read, of uint64)) (faults []Fault, err error) {
	return c.VerifyAs(ctx, f, How{}, progress)
}

// How says how to read a generation whole.
type How struct {
	// Cold reads from the disk what a kernel remembers of the files, and lets it forget them afterwards. Otherwise a read of what was
	// just written would show nothing of the disk.
	Cold bool
	// Back reads back what was just written. What the store computed when it took an object, where that is the whole object's SHA-256,
	// stands for reading it. Frozen parts that were read so before, and that all generations of a run name, are looked at and not read.
	Back bool
	Only string // reads one file alone, and its twin; empty: all
	// Pace is called before so many bytes are used, and takes its time; nil: none.
	Pace func(ctx context.Context, bytes int) error
}

// twin is a file that is to be read, or its twin.
type twin struct {
	file format.File
	key  string
}

// toRead lists the files of a generation, and their twins behind them.
func toRead(f find.Found, how How) (list []twin) {
	for _, file := range f.Index.Files {
		if how.Only != "" && file.Key != how.Only {
			continue
		}
		list = append(list, twin{file, file.Key})
		if file.Twin != "" {
			list = append(list, twin{file, file.Twin})
		}
	}
	return list
}

// VerifyAs is Verify, in a way.
func (c *Reader) VerifyAs(ctx context.Context, f find.Found, how How, progress func(read, of uint64)) (faults []Fault, err error) {
	todo := toRead(f, how)
	var total, done uint64
	for _, w := range todo {
		total += w.file.Bytes
	}
	var mu sync.Mutex // guards done and bad
	bad := make(map[string]error)
	err = c.objects.Each(ctx, len(todo), func(ctx context.Context, i int) error {
		w := todo[i]
		err := c.verify(ctx, f, w.file, w.key, how, func(n uint64) {
			mu.Lock()
			defer mu.Unlock()
			done += n
			if progress != nil {
				progress(done, total)
			}
		})
		if err != nil && damage.Fatal(err) == nil {
			again := how
			again.Cold, again.Back = true, false
			// what memory or the network did to one read the next does not repeat
			err = c.verify(ctx, f, w.file, w.key, again, func(uint64) {})
		}
		if ferr := damage.Fatal(err); ferr != nil || ctx.Err() != nil {
			return errors.Join(ferr, context.Cause(ctx))
		}
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			bad[w.key] = err
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("verify generation %v of job %s: %w", f.Generation, f.Job, err)
	}
	var beside *Fault
	if how.Only == "" {
		beside, err = c.verifyKept(ctx, f, how)
	}
	if err != nil {
		return nil, fmt.Errorf("verify generation %v of job %s: %w", f.Generation, f.Job, err)
	}
	var lost []error
	for _, w := range todo {
		why := bad[w.key]
		if why == nil {
			continue
		}
		other := w.file.Twin
		if w.key == other {
			other = w.file.Key
		}
		whole := other != "" && bad[other] == nil
		faults = append(faults, Fault{Key: w.key, What: why.Error(), Twin: whole})
		c.Doubt(f.Run, format.ParseName(w.key))
		if !whole {
			lost = append(lost, why)
		}
	}
	if beside != nil {
		faults = append(faults, *beside)
	}
	if len(lost) > 0 {
		why := c.find.OrDeleted(ctx, f.Run, f.Generation, errors.Join(lost...))
		if errors.Is(why, find.ErrNone) {
			faults = nil
		}
		return faults, fmt.Errorf("verify generation %v of job %s: %w", f.Generation, f.Job, why)
	}
	return faults, nil
}

// verify reads one file.
func (c *Reader) verify(ctx context.Context, f find.Found, file format.File, key string, how How, read func(n uint64)) error {
	if how.Cold {
		c.objects.Forget(ctx, f.Run.Under(key))
		defer c.objects.Forget(ctx, f.Run.Under(key))
	}
	info, err := c.objects.Stat(ctx, f.Run.Under(key))
	if err == nil && info.Size != int64(file.Bytes) {
		err = fmt.Errorf("%w: %d bytes, the index says %d", store.ErrCorrupt, info.Size, file.Bytes)
	}
	if err != nil {
		return damage.Lying(key, err)
	}
	full := f.Run.Under(key)
	c.mu.Lock()
	backed := c.backed[full]
	c.mu.Unlock()
	if how.Back && (backed || info.Checksum != "" && info.Checksum == file.SHA256) {
		read(file.Bytes)
		return nil
	}
	got, err := c.readWhole(ctx, f, file, key, how.Pace, read)
	if err == nil && got == file.SHA256 && file.Twin != "" {
		c.mu.Lock()
		c.backed[full] = true
		c.mu.Unlock()
	}
	if err == nil && got != file.SHA256 {
		err = damage.New(key, damage.WholeFile, "SHA-256 differs", fmt.Errorf("%s: %w: SHA-256 %s, the index says %s", key,
			store.ErrCorrupt, got, file.SHA256))
	}
	return err
}

// readWhole reads a file of a generation; of one that is encrypted and has no key here its SHA-256 has to do.
func (c *Reader) readWhole(ctx context.Context, f find.Found, file format.File, key string, pace func(context.Context, int) error,
	read func(n uint64)) (sum string, err error) {
	if f.Readable() != nil {
		return c.ReadFile(ctx, f.Run, file, key, nil, nil, pace, read)
	}
	o, s, err := c.Object(ctx, f.Run, file, key)
	if err != nil {
		return "", err
	}
	if err := c.belongs(f, file, o); err != nil {
		return "", err
	}
	return c.ReadFile(ctx, f.Run, file, key, o, s, pace, read)
}

// ReadFile reads a file whole, checks every chunk of its parts, and returns its SHA-256. Without an object its bytes alone are read.
func (c *Reader) ReadFile(ctx context.Context, r find.Run, file format.File, key string, o *format.Object, seal *sealed.File,
	pace func(context.Context, int) error, read func(n uint64)) (sum string, err error) {
	s := c.objects.Stream(ctx, r.Under(key), int64(file.Bytes))
	defer s.Close()
	h := sha256.New()
	take := func(b []byte) error {
		if pace != nil {
			if err := pace(ctx, len(b)); err != nil {
				return err
			}
		}
		if err := s.Fill(b); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		_, _ = h.Write(b) // it returns no error
		read(uint64(len(b)))
		return nil
	}
	if o == nil {
		b := make([]byte, min(file.Bytes, 1<<20))
		for left := file.Bytes; left > 0; left -= uint64(len(b)) {
			b = b[:min(left, uint64(len(b)))]
			if err := take(b); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("%x", h.Sum(nil)), nil
	}
	if seal != nil {
		plain := seal.Stream(take)
		take = func(b []byte) error {
			err := plain(b)
			if errors.Is(err, sealed.ErrDamaged) {
				err = damage.New(key, damage.WholeFile, "it does not decrypt", fmt.Errorf("%s: %w", key, damage.Corrupted(err)))
			}
			return err
		}
	}
	if err := take(make([]byte, o.Head)); err != nil {
		return "", err
	}
	for i := range o.Parts {
		if err := chunks(key, o.Head, &o.Parts[i], take); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// chunks reads the chunks of a part in order, and checks each.
func chunks(key string, head uint64, p *format.Packed, take func(b []byte) error) error {
	m := &p.Manifest
	dst := make([]byte, min(uint64(m.ChunkBytes), m.Bytes))
	for i := range m.Chunks {
		_, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		from, size, err := extent(p, i)
		if err != nil {
			return err
		}
		packed := dst[n-size : n]
		if err := take(packed); err != nil {
			return err
		}
		if err := scatter(p, i, dst[:n], packed); err != nil {
			return err
		}
		if got := safetensors.Hash(dst[:n]); got != m.Chunks[i] {
			return damage.New(key, i, "digest differs", fmt.Errorf("%s: chunk %d at offset %d: %w: digest %v, want %v", key, i,
				head+p.At+from, store.ErrCorrupt, got, m.Chunks[i]))
		}
	}
	return nil
}
