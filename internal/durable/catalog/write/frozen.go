package write

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// WriteFrozen writes the frozen part of a group, twice, unless it is there. A file that has the very part stays as it is, whoever wrote it:
// the indexes of other generations name its bytes. A twin that rotted or went is written anew, from the other one or from memory. What is
// there is looked at once in the life of a catalog, and after each read that failed.
func (c *Writer) WriteFrozen(ctx context.Context, r find.Run, p Part) (w format.Written, err error) {
	name := frozenName(p.Manifest, 'a')
	if w, ok := c.read.Seen(r, name); ok {
		return w, nil
	}
	if w, err = c.freeze(ctx, r, p); err != nil {
		return w, fmt.Errorf("write the frozen part of group %d of job %s: %w", p.Manifest.Part.Index, r.Job, err)
	}
	c.read.See(r, name, w)
	return w, nil
}

func (c *Writer) freeze(ctx context.Context, r find.Run, p Part) (good format.Written, err error) {
	twins, err := c.twins(ctx, r, p.Manifest)
	if err != nil {
		return good, err
	}
	var there [2]error
	for i, n := range twins {
		var w format.Written
		if w, there[i] = c.frozenThere(ctx, r, n, p.Manifest); damage.Fatal(there[i]) != nil || errors.Is(there[i], format.ErrNewer) {
			return good, there[i]
		}
		switch {
		case there[i] == nil && good.Object == nil:
			good = w
		case there[i] == nil && w.File.SHA256 != good.File.SHA256:
			there[i] = fmt.Errorf("%s: %w: another file than its twin", n, store.ErrCorrupt)
		}
	}
	anew := twins
	if good.Object == nil && c.keys.Seals() { // what is encrypted once more has other bytes than the indexes say that name these
		anew = sealedTwins(twins[0], format.NewSeal(c.keys.Tag()))
	}
	for i, n := range twins {
		if there[i] == nil {
			continue
		}
		if !errors.Is(there[i], store.ErrAbsent) {
			if err := c.objects.Remove(ctx, r.Key(n)); err != nil {
				return good, err
			}
		}
		if good.Object == nil {
			good, err = c.write(ctx, r, anew[i], []Part{p})
		} else {
			err = c.objects.Transfer(ctx, r.Under(good.File.Key), c.objects, r.Key(anew[i]), good.File)
		}
		if err != nil {
			return good, err
		}
	}
	good.File.Key, good.File.Twin = anew[0].String(), anew[1].String()
	return good, nil
}

// twins are the names of a frozen part. Encrypted ones are looked for: what is encrypted to others than these recipients, or to nobody, is
// another file. Who has no key of them cannot tell what lies there, and writes beside it.
func (c *Writer) twins(ctx context.Context, r find.Run, m replica.Manifest) (twins [2]format.Name, err error) {
	n := frozenName(m, 'a')
	if c.keys.Seals() && c.keys.Check() == nil {
		begins := strings.TrimSuffix(r.Key(n), ".a"+path.Ext(n.String())) + "."
		err = c.objects.List(ctx, begins, "", func(info store.Info) error {
			if o := format.ParseName(strings.TrimPrefix(info.Key, r.Prefix())); o.SealedFor(c.keys.Tag()) {
				n.Seal = o.Seal
				return objects.ErrStop
			}
			return nil
		})
	}
	if c.keys.Seals() && n.Seal == "" {
		n.Seal = format.NewSeal(c.keys.Tag())
	}
	return sealedTwins(n, n.Seal), err
}

func sealedTwins(n format.Name, seal string) (twins [2]format.Name) {
	n.Seal = seal
	twins[0], twins[1] = n, n
	twins[1].Twin = 'b'
	return twins
}

// frozenThere looks at one twin of a frozen part: whether it has the part, and every byte of it.
func (c *Writer) frozenThere(ctx context.Context, r find.Run, n format.Name, m replica.Manifest) (w format.Written, err error) {
	w, err = c.isWritten(ctx, r, n, []replica.Manifest{m})
	if errors.Is(err, find.ErrLocked) { // its name says that a key of these opens it
		err = fmt.Errorf("%s: %w: it was changed: no key opens it", n, store.ErrCorrupt)
	}
	return w, err
}

func frozenName(m replica.Manifest, twin byte) format.Name {
	return format.Name{Kind: format.SharedKind, Group: m.Part.Index, Root: m.Root, Twin: twin}
}
