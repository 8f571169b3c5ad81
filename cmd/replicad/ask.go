package main

import (
	"context"

	"github.com/replicad/replicad/internal/admin"
	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

// ask is a verb that gives the leader an order, through the daemon, and prints what it says. The first argument, if any, is a name.
type ask struct {
	use, short, long string
	args             int
	flags            func(*cobra.Command)
	check            func() error // the flags; nil: nothing can be wrong with them
	order            func(args []string) control.Order
	// follow says more, once the order was carried out. Nil: that is all.
	follow func(ctx context.Context, c admin.Client, std stdio, before control.JobStatus) error
}

func (v *ask) command(std stdio) *cobra.Command {
	var a adminFlags
	var operator string
	cmd := &cobra.Command{Use: v.use, Short: v.short, Long: v.long, Args: cobra.ExactArgs(v.args), RunE: func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			if err := replica.CheckJobName(args[0]); err != nil { // of a node or a job: which names nodes have the leader says
				return usage.Wrong(err)
			}
		}
		if v.check != nil {
			if err := v.check(); err != nil {
				return usage.Wrong(err)
			}
		}
		c, err := a.find()
		if err != nil {
			return err
		}
		o, err := admin.LoadOperator(operator, c)
		if err != nil {
			return coded(exitConfig, err)
		}
		order := v.order(args)
		var before control.JobStatus
		if v.follow != nil {
			before = a.JobOf(cmd.Context(), order.Job)
		}
		body, err := a.Give(cmd.Context(), order, o)
		if err != nil {
			return err
		}
		if err = console.Write(std.out, "%s", console.Paragraph(body)); err != nil || v.follow == nil || before.ID == (replica.JobID{}) {
			return err
		}
		return v.follow(cmd.Context(), a.Client, std, before)
	}}
	a.addFlags(cmd)
	cmd.Flags().StringVar(&operator, "operator", "",
		"`FILE` of an operator's certificate, with its key beside it (default: $"+admin.OperatorVariable+", else pki.operator of the "+
			"configuration)")
	if v.flags != nil {
		v.flags(cmd)
	}
	return cmd
}
