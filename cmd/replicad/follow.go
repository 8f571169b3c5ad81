package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// followEvery lies between two looks at a write that somebody waits for.
const followEvery = 200 * time.Millisecond

// jobOf is the job of a name that has not ended; its ID is zero where none is known.
func (a *admin) jobOf(ctx context.Context, name string) (job control.JobStatus) {
	s, err := a.status(ctx)
	if err != nil {
		return job
	}
	for _, j := range s.Jobs {
		if j.Name == name && j.Phase != replica.Ended.String() {
			return j
		}
	}
	return job
}

// followed looks at a job until is says that there is nothing to wait for, and tells meanwhile why nothing is on disk yet. Nil: the job is forgotten.
func (a *admin) followed(ctx context.Context, std stdio, id replica.JobID, is func(control.JobStatus) bool) (*control.JobStatus, error) {
	said := ""
	for {
		s, err := a.status(ctx)
		if err != nil {
			return nil, fmt.Errorf("the write goes on, and what becomes of it can't be seen: %w", err)
		}
		i := slices.IndexFunc(s.Jobs, func(j control.JobStatus) bool { return j.ID == id })
		if i < 0 {
			return nil, nil
		}
		j := s.Jobs[i]
		if j.Phase == replica.Ended.String() || is(j) {
			return &j, nil
		}
		if j.DurableError != "" && j.DurableError != said {
			said = j.DurableError
			fmt.Fprintf(std.err, "not on disk yet, and tried again: %s\n", said)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(followEvery):
		}
	}
}

// followWrite waits until what a job has committed is on disk, or the job has ended, and says which step is there.
func followWrite(ctx context.Context, a *admin, std stdio, before control.JobStatus) error {
	j, err := a.followed(ctx, std, before.ID, func(j control.JobStatus) bool { return !j.Undurable && !j.Ending })
	if err == nil && j != nil && (j.Phase == replica.Ended.String() || j.Durable.Step > 0) {
		fmt.Fprintf(std.out, "on disk: %s\n", onDisk(*j))
	}
	return err
}

// followSave waits until what the job had committed when it was asked, or something newer, is on disk.
func followSave(ctx context.Context, a *admin, std stdio, before control.JobStatus) error {
	j, err := a.followed(ctx, std, before.ID, func(j control.JobStatus) bool { return j.Durable.Compare(before.Committed) >= 0 })
	switch {
	case err != nil || j == nil:
		return err
	case j.Durable.Compare(before.Committed) < 0:
		return fmt.Errorf("job %s has ended (%s), and step %d of it is not on disk, where the newest is: %s", j.Name, j.EndReason, before.Committed.Step, onDisk(*j))
	}
	fmt.Fprintf(std.out, "on disk: %s\n", onDisk(*j))
	return nil
}

// onDisk names the newest durable step.
func onDisk(j control.JobStatus) string {
	if j.Durable.IsZero() {
		return "nothing"
	}
	return fmt.Sprintf("step %d", j.Durable.Step)
}
