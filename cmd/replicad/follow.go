package main

import (
	"context"

	"github.com/replicad/replicad/internal/admin"
	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/status"
)

// followWrite waits until what a job has committed is on disk, or the job has ended, and prints which step is there.
func followWrite(ctx context.Context, c admin.Client, std stdio, before control.JobStatus) error {
	j, err := c.Written(ctx, std.err, before)
	if j != nil {
		console.Printf(std.out, "on disk: %s\n", status.OnDisk(*j))
	}
	return err
}

// followSave waits until what the job had committed when it was asked, or something newer, is on disk, and prints which step is there.
func followSave(ctx context.Context, c admin.Client, std stdio, before control.JobStatus) error {
	j, err := c.Saved(ctx, std.err, before)
	if j != nil {
		console.Printf(std.out, "on disk: %s\n", status.OnDisk(*j))
	}
	return err
}
