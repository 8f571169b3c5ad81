package main

import (
	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/ckpt"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/spf13/cobra"
)

func (c ckptVerbs) cp() *cobra.Command {
	var f common
	var anew ckpt.Copying
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
			keys, err := anew.Keys(c.Keyring)
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
			rows := []ckpt.Verdict{}
			err = ckpt.Copy(ctx, w, to, anew, func(v ckpt.Verdict) {
				switch rows = append(rows, v); {
				case f.json:
				case v.Deleted:
					console.Printf(c.std.out, "not copied: step %d of %s was deleted meanwhile\n", v.Step, v.Job)
				default:
					console.Printf(c.std.out, "copied step %d of %s to %s, %s\n", v.Step, v.Job, to.URL(), console.Size(v.Bytes))
				}
			})
			if err != nil {
				return err
			}
			if f.json {
				return console.JSON(c.std.out, rows)
			}
			return nil
		},
	}, true)
	cmd.Flags().BoolVar(&anew.All, "all", false, "every generation that is whole")
	cmd.Flags().BoolVar(&anew.Decrypt, "decrypt", false, "make a plain copy of what is encrypted")
	cmd.Flags().StringArrayVar(&anew.Recipients, "recipient", nil, "encrypt the copy to this recipient of age; several: to each")
	return cmd
}
