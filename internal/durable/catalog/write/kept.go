package write

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/durable/store"
)

// keptLook is what a look at the tar of a run's files found.
type keptLook struct {
	ref format.Ref
	err error
}

// KeepFiles has a run carry a tar of files from now on, unless it carries one already: the first one stays. there is what the run carries
// then. tar is called where none is.
func (c *Writer) KeepFiles(ctx context.Context, r find.Run, tar func() ([]byte, error)) (there format.Ref, err error) {
	if there, err = c.keepFiles(ctx, r, tar); err != nil {
		err = fmt.Errorf("keep files in run %s of job %s: %w", r.Run, r.Job, err)
	}
	return there, err
}

func (c *Writer) keepFiles(ctx context.Context, r find.Run, tar func() ([]byte, error)) (there format.Ref, err error) {
	if there, err = c.KeptFiles(ctx, r); !errors.Is(err, store.ErrAbsent) {
		return there, err
	}
	b, err := tar()
	if err != nil {
		return there, err
	}
	if _, err := kept.List(bytes.NewReader(b)); err != nil { // nobody could read it back
		return there, err
	}
	if b, err = c.SealTar(b); err != nil {
		return there, err
	}
	if other, err := c.objects.PutOnce(ctx, r.Under(format.KeptKey), b); err != nil && other == nil {
		return there, err
	}
	return c.KeptFiles(ctx, r) // read back: where several put one at once, one of them is there
}

// SealTar encrypts a tar where the catalog encrypts.
func (c *Writer) SealTar(tar []byte) ([]byte, error) {
	if !c.keys.Seals() {
		return tar, nil
	}
	return c.keys.SealBytes(tar)
}

// KeptFiles looks at the tar that a run carries, and reads it whole the first time. ErrAbsent: it carries none.
func (c *Writer) KeptFiles(ctx context.Context, r find.Run) (there format.Ref, err error) {
	key := r.Under(format.KeptKey)
	info, err := c.objects.Stat(ctx, key)
	if err != nil {
		return there, err
	}
	c.mu.Lock()
	was, ok := c.kept[info]
	c.mu.Unlock()
	if ok {
		return was.ref, was.err
	}
	b, _, err := c.objects.Get(ctx, key)
	if err != nil {
		return there, err
	}
	is := keptLook{ref: format.Ref{Key: format.KeptKey, Bytes: uint64(len(b)), SHA256: format.Sum(b)}}
	tar, err := c.read.OpenTar(b)
	if err == nil {
		_, err = kept.List(bytes.NewReader(tar))
	}
	if err != nil && !errors.Is(err, find.ErrLocked) { // of what is locked the digest has to do
		is = keptLook{err: fmt.Errorf("%s: %w: %w: delete that object, and start the run again with --resume and --keep-file", key,
			store.ErrCorrupt, err)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept[info] = is
	return is.ref, is.err
}

// Carried is what a COMMIT says of the files that its run carries. A tar that is none is left out and told: the state is what counts.
func (c *Writer) Carried(ctx context.Context, r find.Run) (*format.Ref, error) {
	there, err := c.KeptFiles(ctx, r)
	switch {
	case err == nil:
		return &there, nil
	case errors.Is(err, store.ErrAbsent):
		return nil, nil
	case damage.Is(err):
		c.objects.Note(fmt.Errorf("the commits of run %s of job %s name no kept files: %w", r.Run, r.Job, err))
		return nil, nil
	}
	return nil, err
}
