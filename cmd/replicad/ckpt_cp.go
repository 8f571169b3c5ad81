package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func (c ckpt) cp() *cobra.Command {
	var f common
	all := false
	var anew rewriting
	cmd := f.add(&cobra.Command{
		Use:   "cp WHERE[@STEP] ROOT",
		Short: "Copy a generation to another root, every byte checked",
		Long: ckptLong + `

The copy keeps job and run; its commit comes last. What is there already is not copied again; what is damaged there is written anew.

A copy is encrypted as its source is, whatever ` + place.RecipientsVariable + ` says, and needs no key. --decrypt makes a plain copy, and
--recipient one that is encrypted to others; both read with --identity.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			keys, err := anew.keys(c.Keyring)
			if err != nil {
				return err
			}
			w, err := c.Find(ctx, args[0], f.name())
			if err != nil {
				return err
			}
			defer w.Close()
			if err := place.CheckTarget(ctx, args[1]); err != nil {
				return err
			}
			st, err := place.OpenStore(ctx, args[1], c.std.err)
			if err != nil {
				return err
			}
			defer st.Close()
			to := catalog.New(st, catalog.Options{Who: f.name(), Keys: keys,
				Note: func(err error) { console.Printf(c.std.err, "note: %s\n", console.Line(err.Error())) }})
			rows, told := []verdict{}, false
			one := func(found catalog.Found) error {
				if found.Sealed == nil && len(anew.recipients) == 0 && !anew.decrypt && !told && os.Getenv(place.RecipientsVariable) != "" {
					told = true
					console.Printf(c.std.err,
						"note: step %d of %s is not encrypted, nor is its copy: cp does not read %s; --recipient encrypts a copy\n", found.Generation.Step, found.Job, place.RecipientsVariable)
				}
				mended, err := c.copy(ctx, w, found, to, anew, c.slow(fmt.Sprintf("copy of step %d of %s", found.Generation.Step, found.Job)))
				if err != nil {
					return err
				}
				rows = append(rows, verdict{Job: found.Job, Run: found.Run.Run, Step: found.Generation.Step, Epoch: found.Generation.Epoch, Good: true, Bytes: found.Bytes})
				if mended {
					console.Printf(c.std.err, "step %d of %s in %s was damaged: what was wrong is written anew, and all of it was read\n",
						found.Generation.Step, found.Job, to.URL())
				}
				if !f.json {
					console.Printf(c.std.out, "copied step %d of %s to %s, %s\n", found.Generation.Step, found.Job, to.URL(),
						console.Size(found.Bytes))
				}
				return nil
			}
			if !all {
				err = w.Read(ctx, one)
			} else {
				err = c.oldestFirst(ctx, w, func(found catalog.Found) error {
					err := one(found)
					if !errors.Is(err, catalog.ErrNone) {
						return err
					}
					rows = append(rows, verdict{Job: found.Job, Run: found.Run.Run, Step: found.Generation.Step, Epoch: found.Generation.Epoch, Deleted: true, Bytes: found.Bytes})
					if !f.json {
						console.Printf(c.std.out, "not copied: step %d of %s was deleted meanwhile\n", found.Generation.Step, found.Job)
					}
					return err
				}, one)
			}
			if err != nil {
				return err
			}
			if f.json {
				return console.JSON(c.std.out, rows)
			}
			return nil
		},
	}, true)
	cmd.Flags().BoolVar(&all, "all", false, "every generation that is whole")
	cmd.Flags().BoolVar(&anew.decrypt, "decrypt", false, "make a plain copy of what is encrypted")
	cmd.Flags().StringArrayVar(&anew.recipients, "recipient", nil, "encrypt the copy to this recipient of age; several: to each")
	return cmd
}

// oldestFirst calls each with every generation that is whole. The newest is the last: until it is there, what is there is older and whole. Of one that was
// deleted meanwhile each returns catalog.ErrNone; where that is the newest of a job there is a newer one, with which newest is called.
func (c ckpt) oldestFirst(ctx context.Context, w *place.Place, each, newest func(f catalog.Found) error) error {
	gone := make(map[string]bool) // of a job's newest
	found, _, err := w.Every(ctx)
	if err != nil {
		return err
	}
	for _, f := range slices.Backward(found) {
		err := each(f)
		if err != nil && w.Remembers(ctx, f, err) {
			continue
		}
		if gone[f.Job] = errors.Is(err, catalog.ErrNone); err != nil && !gone[f.Job] {
			return err
		}
	}
	for _, job := range slices.Sorted(maps.Keys(gone)) {
		if of := *w; gone[job] {
			of.Job, of.At = job, nil
			if err := of.Read(ctx, newest); err != nil {
				return err
			}
		}
	}
	return nil
}

// rewriting are the flags of cp that have a copy written anew.
type rewriting struct {
	decrypt    bool
	recipients []string
}

// keys are to whom the copy is encrypted, and what reads a former one that is there; nil: the copy is as what it is of, or plain.
func (r rewriting) keys(ring *place.Keyring) (*sealed.Keys, error) {
	if r.decrypt && len(r.recipients) > 0 {
		return nil, usage.Wrong(errors.New("--decrypt makes a plain copy, --recipient an encrypted one: give one of them"))
	}
	if len(r.recipients) == 0 {
		return nil, nil
	}
	ids, err := ring.Identities()
	if err != nil {
		return nil, err
	}
	k, err := sealed.New(r.recipients, ids)
	if err != nil {
		return nil, usage.Wrong(fmt.Errorf("--recipient: %w", err))
	}
	return k, nil
}

func (c ckpt) copy(ctx context.Context, w *place.Place, f catalog.Found, to *catalog.Catalog, anew rewriting, far *slow) (mended bool,
	err error) {
	how, moving := "", far.written(ctx, f.Bytes)
	if f.Sealed != nil && anew.decrypt || len(anew.recipients) > 0 {
		how = map[bool]string{true: ", decrypted", false: ", encrypted to others"}[anew.decrypt]
		err = w.Cat.CopyAnew(moving, f, to)
	} else {
		mended, err = w.Cat.Copy(moving, f, to)
	}
	if err != nil {
		return mended, err
	}
	why := "from " + w.Cat.URL() + how
	if mended {
		why += "; what was damaged here was written anew"
	}
	return mended, to.Log(ctx, f.Job, format.Log{Verb: "cp", Run: f.Run.Run, Generations: []replica.Generation{f.Generation}, Why: why})
}
