package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

// operatorVariable names an operator's certificate in the environment.
const operatorVariable = "REPLICAD_OPERATOR"

// ask is a verb that gives the leader an order, through the daemon, and prints what it says. The first argument, if any, is a name.
type ask struct {
	use, short, long string
	args             int
	flags            func(*cobra.Command)
	check            func() error // the flags; nil: nothing can be wrong with them
	order            func(args []string) control.Order
	// follow says more, once the order was carried out. Nil: that is all.
	follow func(ctx context.Context, a *admin, std stdio, before control.JobStatus) error
}

func (v *ask) command(std stdio) *cobra.Command {
	var a admin
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
		o, err := loadOperator(operator, c)
		if err != nil {
			return coded(exitConfig, err)
		}
		order := v.order(args)
		var before control.JobStatus
		if v.follow != nil {
			before = a.jobOf(cmd.Context(), order.Job)
		}
		body, err := a.give(cmd.Context(), order, o)
		if err != nil {
			return err
		}
		if err = console.Write(std.out, "%s", console.Paragraph(body)); err != nil || v.follow == nil || before.ID == (replica.JobID{}) {
			return err
		}
		return v.follow(cmd.Context(), &a, std, before)
	}}
	a.addFlags(cmd)
	cmd.Flags().StringVar(&operator, "operator", "", "`FILE` of an operator's certificate, with its key beside it (default: $"+operatorVariable+", else pki.operator of the configuration)")
	if v.flags != nil {
		v.flags(cmd)
	}
	return cmd
}

// loadOperator finds who signs. Nil: nobody, and the order may concern this daemon's own node alone. One that the configuration names is
// for those who may read it; one that was named for this order must be there.
func loadOperator(file string, c *config.Config) (*pki.Operator, error) {
	if file = cmp.Or(file, os.Getenv(operatorVariable)); file == "" {
		if file = c.PKI.Operator; file == "" || !pki.CanLoadOperator(file) {
			return nil, nil
		}
	}
	return pki.LoadOperator(file)
}

// give gives an order, signed where there is somebody to sign it.
func (a *admin) give(ctx context.Context, order control.Order, o *pki.Operator) ([]byte, error) {
	if o != nil && order.Verb != control.Voters {
		text, err := a.call(ctx, http.MethodGet, "/challenge", nil)
		if err != nil {
			return nil, err
		}
		challenge, err := hex.DecodeString(string(bytes.TrimSpace(text)))
		if err != nil {
			return nil, fmt.Errorf("the leader's challenge: %w (are this program and the daemon of one release?)", err)
		}
		if order, err = order.SignedBy(o.Cluster, challenge, o.Sign); err != nil {
			return nil, err
		}
	}
	b, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	a.longer = max(order.Patience()-control.DrainTimeout, 0)
	return a.call(ctx, http.MethodPost, "/order", b)
}
