package ckpt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/replica"
)

// Shown is what `ckpt show --json` prints.
type Shown struct {
	URL        string                     `json:"url"`
	Commit     format.Commit              `json:"commit"`
	Files      []format.File              `json:"files"`
	Tensors    []format.Tensor            `json:"tensors"`
	Beyond     []format.Beyond            `json:"beyond,omitempty"`
	Pins       []format.Pin               `json:"pins,omitempty"`
	Generators map[string][]string        `json:"generators,omitempty"` // by rank
	Loaders    map[string]json.RawMessage `json:"loaders,omitempty"`    // by rank
	Kept       []kept.File                `json:"kept_files,omitempty"`
	KeptError  string                     `json:"kept_files_error,omitempty"` // why they cannot be read
	Locked     error                      `json:"-"`                          // why what lies in it can't be read
}

// Look reads what is shown of the generation that is meant. It takes a moment, and a lease would be a pin among those that are shown.
func Look(ctx context.Context, w *place.Place) (s Shown, err error) {
	err = w.Read(ctx, func(f catalog.Found) error {
		s = Shown{URL: w.Cat.URL(), Commit: f.Commit, Files: f.Index.Files, Tensors: f.Index.Tensors, Beyond: f.Index.Beyond,
			Locked: f.Readable()}
		return w.Cat.Unleased(ctx, f, func() (err error) {
			if s.Locked == nil {
				err = s.own(ctx, w.Cat.Reader, f)
			}
			if err != nil {
				return err
			}
			if s.Pins, err = w.Cat.Pinned(ctx, f.Run, f.Generation); err != nil {
				return err
			}
			return s.carried(ctx, w.Cat.Reader, f)
		})
	})
	return s, err
}

// maxOwn bounds the ranks whose own state is read: they say much the same.
const maxOwn = 8

// own reads what the first ranks keep of their generators and loaders.
func (s *Shown) own(ctx context.Context, cat *read.Reader, f catalog.Found) error {
	s.Generators, s.Loaders = make(map[string][]string), make(map[string]json.RawMessage)
	for rank := range min(f.Layout.World, maxOwn) {
		sh, err := cat.OpenShard(ctx, f, replica.OfRank(replica.Rank(rank)))
		if err != nil {
			return err
		}
		regions, err := catalog.Regions(sh, func(r replica.Region) bool { return r.Kind == replica.Private && r.DType == replica.U8 })
		sh.Close()
		if err != nil {
			return err
		}
		for _, b := range regions {
			if states, ok := format.Generators(b); ok {
				for _, g := range states {
					s.Generators[fmt.Sprint(rank)] = append(s.Generators[fmt.Sprint(rank)], g.String())
				}
			}
			if l, ok := format.Loaders(b); ok {
				s.Loaders[fmt.Sprint(rank)] = l
			}
		}
	}
	return nil
}

// carried lists the files that the run carries.
func (s *Shown) carried(ctx context.Context, cat *read.Reader, f catalog.Found) error {
	err := cat.ReadKept(ctx, f, func(file kept.File, _ io.Reader) error {
		s.Kept = append(s.Kept, file)
		return nil
	})
	switch {
	case errors.Is(err, catalog.ErrLocked): // Locked says so of the whole
		s.KeptError, err = "encrypted: no key that was given opens them", nil
	case catalog.IsDamage(err):
		s.KeptError, err = "DAMAGED: "+err.Error(), nil
	}
	return err
}
