package main

import (
	"context"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

func newJob(std stdio) *cobra.Command {
	return group("job", "Act on a job", newJobEnd(std))
}

func newJobEnd(std stdio) *cobra.Command {
	var reason string
	v := &ask{use: "end NAME", args: 1, short: "End a job: its epoch is closed, its ranks are stopped and its memory is freed",
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&reason, "reason", "ended by an operator", "what the job's record says")
		},
		call: func(ctx context.Context, a *admin, args []string) ([]byte, error) {
			return a.call(ctx, http.MethodPost, "/job/"+args[0]+"/end?reason="+url.QueryEscape(reason))
		}}
	return v.command(std)
}
