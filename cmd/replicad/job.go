package main

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newJob(std stdio) *cobra.Command {
	return group("job", "Act on a job", newJobEnd(std))
}

func newJobEnd(std stdio) *cobra.Command {
	var a admin
	var reason string
	cmd := &cobra.Command{
		Use:   "end NAME",
		Short: "End a job: its epoch is closed, its ranks are stopped and its memory is freed",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := replica.CheckName(args[0]); err != nil {
				return coded(exitUsage, err)
			}
			if _, err := a.call(cmd.Context(), http.MethodPost, "/job/"+args[0]+"/end?reason="+url.QueryEscape(reason)); err != nil {
				return err
			}
			_, err := fmt.Fprintf(std.out, "job %s has ended\n", args[0])
			return err
		},
	}
	a.addFlags(cmd)
	cmd.Flags().StringVar(&reason, "reason", "ended by an operator", "what the job's record says")
	return cmd
}
