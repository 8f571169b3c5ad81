package main

import (
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/spf13/cobra"
)

const ckptLong = `List, verify, compare, keep, copy and delete durable checkpoints, without a daemon.

WHERE is a root, with or without a job and a run below it: a directory, file:///ckpt, s3://bucket/ckpt,
gs://bucket/ckpt, az://container/ckpt, /ckpt/lm, s3://bucket/ckpt/lm/20261125T1716Z-4385b34d. @STEP behind it names a generation: @1200, with an
epoch @1200.e2, the best by a metric @best:loss, @best:accuracy:max, or by the daemons' own @best. Without it,
and with @last, the command takes the newest generation that is whole, and the next one where retention deletes that meanwhile.`

// newCkpt has the verbs on generations in stores. One more is a line here.
func newCkpt(std stdio) *cobra.Command {
	c := ckptVerbs{std, place.Finder{Notes: std.err, Keyring: new(place.Keyring)}}
	g := group("ckpt", "List, verify, compare, keep, copy and delete durable checkpoints",
		c.ls(), c.show(), c.verify(), c.diff(), c.pin(), c.unpin(), c.prune(), c.cp(), c.export(), c.imports(), c.log(), c.wait(), c.pipe(), ckptSave(std))
	g.Long = ckptLong
	g.PersistentFlags().StringVar(&c.Keyring.File, "identity", "",
		"a file with keys of age, for generations that are encrypted (default: "+place.IdentityVariable+")")
	return g
}
