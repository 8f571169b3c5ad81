package read

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
)

// OpenTar gives the tar that lies in what a run carries. ErrLocked: it is encrypted, and no key here opens it.
func (c *Reader) OpenTar(b []byte) ([]byte, error) {
	if !sealed.Is(b) {
		return b, nil
	}
	tar, err := c.keys.OpenBytes(b)
	return tar, damage.Corrupted(err)
}

// ReadKept reads the files that a generation's run carries, as they were when it was committed; none where its COMMIT names none. Its bytes
// are checked before the first file is given.
func (c *Reader) ReadKept(ctx context.Context, f find.Found, each func(file kept.File, content io.Reader) error) error {
	if f.KeptFiles == nil {
		return nil
	}
	b, err := c.KeptBytes(ctx, f)
	if err == nil {
		b, err = c.OpenTar(b)
	}
	if err != nil {
		return fmt.Errorf("read the files kept with generation %v of job %s: %w", f.Generation, f.Job, err)
	}
	return kept.Read(bytes.NewReader(b), each)
}

// KeptBytes reads the tar that a COMMIT names.
func (c *Reader) KeptBytes(ctx context.Context, f find.Found) ([]byte, error) {
	want := f.KeptFiles
	b, _, err := c.objects.Get(ctx, f.Run.Under(want.Key))
	if err != nil {
		return nil, damage.Lying(want.Key, err)
	}
	if got := format.Sum(b); uint64(len(b)) != want.Bytes || got != want.SHA256 {
		return nil, damage.New(want.Key, damage.WholeFile, "SHA-256 differs",
			fmt.Errorf("%s: %w: %d bytes, SHA-256 %s; the commit says %d, %s", want.Key, store.ErrCorrupt, len(b), got, want.Bytes,
				want.SHA256))
	}
	return b, nil
}

// verifyKept reads the tar that a COMMIT names. What is wrong with it is no damage of the state: the generation is resumed from as before.
func (c *Reader) verifyKept(ctx context.Context, f find.Found, how How) (*Fault, error) {
	if f.KeptFiles == nil {
		return nil, nil
	}
	if how.Pace != nil {
		if err := how.Pace(ctx, int(f.KeptFiles.Bytes)); err != nil {
			return nil, err
		}
	}
	read := func() error {
		if how.Cold {
			c.objects.Forget(ctx, f.Run.Under(f.KeptFiles.Key))
			defer c.objects.Forget(ctx, f.Run.Under(f.KeptFiles.Key))
		}
		_, err := c.KeptBytes(ctx, f)
		return err
	}
	err := read()
	if damage.Is(err) { // what memory or the network did to one read the next does not repeat
		how.Cold = true
		err = read()
	}
	if err == nil || !damage.Is(err) {
		return nil, err
	}
	return &Fault{Key: f.KeptFiles.Key, What: err.Error(), Beside: true}, nil
}
