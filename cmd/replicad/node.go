package main

import (
	"net/http"
	"net/url"

	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newNode(std stdio) *cobra.Command {
	return group("node", "Act on a node", newNodeLost(std))
}

func newNodeLost(std stdio) *cobra.Command {
	var a admin
	var why string
	cmd := &cobra.Command{
		Use:   "lost NAME",
		Short: "Say that a node's memory is gone: recovery stops waiting for the copies it held",
		Long: `Say that a node's memory is gone for good.

A node that has only fallen silent may come back with the newest state in its memory, so recovery waits holder_grace for it
before it gives up a committed step or reads disk. If you know better (the machine was powered off, reimaged, taken away),
this ends the wait. It can't be taken back: what that life of the node held is never used again. A node that is connected
is refused.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := replica.CheckName(args[0]); err != nil {
				return coded(exitUsage, err)
			}
			body, err := a.call(cmd.Context(), http.MethodPost, "/node/"+args[0]+"/lost?why="+url.QueryEscape(why))
			if err != nil {
				return err
			}
			_, err = std.out.Write(body)
			return err
		},
	}
	a.addFlags(cmd)
	cmd.Flags().StringVar(&why, "why", "no reason given", "what the job's record says")
	return cmd
}
