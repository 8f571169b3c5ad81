package ckpt

import (
	"context"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/formats/convert"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/usage"
)

func Renames(list []string) (out []convert.Rename, err error) {
	for _, s := range list {
		r, err := convert.ParseRename(s)
		if err != nil {
			return nil, usage.Wrong(err)
		}
		out = append(out, r)
	}
	return out, nil
}

// Export writes the generation that is meant as other programs read it.
func Export(ctx context.Context, w *place.Place, want convert.Want) (found catalog.Found, done convert.Done, err error) {
	want.Refused = func(err error) {
		console.Printf(w.Notes, "read without a lease, so that retention may delete it meanwhile: %s\n", console.Line(err.Error()))
	}
	want.Moved = NewMeter(w.Notes, "export").Moved
	err = w.Read(ctx, func(f catalog.Found) (err error) {
		found = f
		done, err = convert.Export(ctx, w.Cat, f, want)
		return err
	})
	return found, done, err
}

// Import brings weights of other programs into a root, as a generation that is encrypted to the recipients. url is the root's.
func Import(ctx context.Context, c place.Finder, from, root, who string, recipients []string, into convert.Into) (done convert.Imported,
	url string, err error) {
	keys, err := c.Sealing(recipients, false)
	if err != nil {
		return done, "", err
	}
	st, err := place.OpenStore(ctx, root, c.Notes)
	if err != nil {
		return done, "", err
	}
	defer st.Close()
	into.Moved = NewMeter(c.Notes, "import").Moved
	done, err = convert.Import(ctx, from, catalog.New(st, catalog.Options{Who: who, Keys: keys,
		Note: func(err error) { console.Printf(c.Notes, "note: %s\n", console.Line(err.Error())) }}), into)
	return done, st.URL(), err
}
