package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/ckpt"
	"github.com/replicad/replicad/internal/durable/formats/convert"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func (c ckptVerbs) imports() *cobra.Command {
	var f common
	var renames, recipients []string
	var step uint64
	root, into := "", convert.Into{Owner: uint32(os.Getuid())}
	cmd := f.add(&cobra.Command{
		Use:   "import DIR|FILE --to ROOT --job NAME",
		Short: "Bring weights of other programs in as a generation",
		Long: `Bring weights of other programs in as a generation of a new run, of a job that has none.

It takes a safetensors file, a folder of Hugging Face's, a folder of torch.distributed.checkpoint, or a file of torch.save's, and
tells them by their content. The run carries a Hugging Face folder's small files (config.json, tokenizer.json) along. No pickle is executed: an object of any other class than
tensors' is left out, and so is a tensor that no generation can hold. Each is named.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if into.Map, err = ckpt.Renames(renames); err != nil {
				return err
			}
			if root == "" {
				return usage.Wrong(errors.New("say where to: --to ROOT, a directory or the URL of a store"))
			}
			if err := replica.CheckJobName(into.Job); err != nil {
				return usage.Wrong(fmt.Errorf("--job: %w", err))
			}
			if into.Step = replica.Step(step); into.Step > replica.MaxStep {
				return usage.Wrong(fmt.Errorf("--step %d: want 0 to %d", step, uint64(replica.MaxStep)))
			}
			done, url, err := ckpt.Import(cmd.Context(), c.Finder, args[0], root, f.name(), recipients, into)
			if err != nil {
				return err
			}
			c.notes(done.Notes)
			if f.json {
				return console.JSON(c.std.out, done)
			}
			console.Printf(c.std.out, "imported %s (%s) into %s as step %d of job %s: %d tensors, %s%s\n", args[0], done.Format, url,
				step, into.Job, done.Tensors, console.Size(done.Bytes), alongside(done.Kept))
			return nil
		},
	}, true)
	fl := cmd.Flags()
	fl.StringVar(&root, "to", "", "the root: a directory, or the URL of a store")
	fl.StringVar(&into.Job, "job", "", "the job's name")
	fl.Uint64Var(&step, "step", 0, "the step that it is called by")
	fl.StringArrayVar(&recipients, "recipient", nil,
		"encrypt it to this recipient of age; several: to each (default: "+place.RecipientsVariable+")")
	fl.StringArrayVar(&into.Only, "only", nil, "a `PATTERN` of names, in the file or as they become ('state_dict.*'; behind ! those that do not fit); given again, all must fit")
	fl.StringArrayVar(&renames, "map", nil, "FROM=TO: names that begin with FROM begin with TO; the first that fits (of models alone: =model.)")
	return cmd
}
