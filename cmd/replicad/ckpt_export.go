package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/ckpt"
	"github.com/replicad/replicad/internal/durable/formats/convert"
	"github.com/replicad/replicad/internal/usage"
	"github.com/spf13/cobra"
)

// exported is what `ckpt export --json` prints.
type exported struct {
	Job    string `json:"job"`
	Run    string `json:"run"`
	Step   uint64 `json:"step"`
	Epoch  uint64 `json:"epoch"`
	Format string `json:"format"`
	Dir    string `json:"dir"`
	convert.Done
}

func (c ckptVerbs) export() *cobra.Command {
	var f common
	var want convert.Want
	var renames []string
	cmd := f.add(&cobra.Command{
		Use:   "export WHERE[@STEP] DIR --to FORMAT",
		Short: "Write a generation as other programs read it: hf, dcp, pt, safetensors",
		Long: ckptLong + `

DIR must not be there, or be empty. It appears when all of it is written, with the files that the run carries (run --keep-file). Formats:

  hf           weights alone, in safetensors shards of at most 5 GB and an index, as from_pretrained reads them
  dcp          a folder that torch.distributed.checkpoint's FileSystemReader loads
  pt           DIR/state.pt, which torch.load(weights_only=True) loads
  safetensors  DIR/state.safetensors

What a rank has for itself (generators, the loader's place) and hyperparameters are in no export.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			ctx := cmd.Context()
			if !slices.Contains(convert.Formats, want.Format) {
				return usage.Wrong(fmt.Errorf("--to %.40q: want one of %s", want.Format, strings.Join(convert.Formats, ", ")))
			}
			if want.Map, err = ckpt.Renames(renames); err != nil {
				return err
			}
			w, err := c.Find(ctx, args[0], f.name())
			if err != nil {
				return err
			}
			defer w.Close()
			want.Dir = args[1]
			found, done, err := ckpt.Export(ctx, w, want)
			if err != nil {
				return err
			}
			c.notes(done.Notes)
			if f.json {
				return console.JSON(c.std.out, exported{found.Job, found.Run.Run, uint64(found.Generation.Step),
					uint64(found.Generation.Epoch), want.Format, want.Dir, done})
			}
			console.Printf(c.std.out, "exported step %d of %s as %s to %s: %d tensors, %s%s\n", found.Generation.Step, found.Job,
				want.Format, want.Dir, done.Tensors, console.Size(done.Bytes), alongside(done.Kept))
			return nil
		},
	}, true)
	fl := cmd.Flags()
	fl.StringVar(&want.Format, "to", "", "the format: hf, dcp, pt or safetensors")
	fl.StringArrayVar(&want.Only, "only", nil, "model (no optimizer state), trained (nothing frozen), or a pattern of names as 'model.layers.*'; several: what fits all")
	fl.StringArrayVar(&renames, "map", nil, "FROM=TO: names that begin with FROM begin with TO; the first that fits (of models alone: model.=)")
	return cmd
}
