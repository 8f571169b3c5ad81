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

// jobOf is the job of a name that has not ended; zero: none is known.
func (a *admin) jobOf(ctx context.Context, name string) replica.JobID {
	s, err := a.status(ctx)
	if err != nil {
		return replica.JobID{}
	}
	for _, j := range s.Jobs {
		if j.Name == name && j.Phase != replica.Ended.String() {
			return j.ID
		}
	}
	return replica.JobID{}
}

// followWrite waits until what a job has committed is on disk, or the job has ended, and says which step is there.
func followWrite(ctx context.Context, a *admin, std stdio, id replica.JobID) error {
	said := ""
	for {
		s, err := a.status(ctx)
		if err != nil {
			return fmt.Errorf("the write goes on, and what becomes of it can't be seen: %w", err)
		}
		i := slices.IndexFunc(s.Jobs, func(j control.JobStatus) bool { return j.ID == id })
		if i < 0 {
			return nil
		}
		switch j := s.Jobs[i]; {
		case j.Phase == replica.Ended.String():
			fmt.Fprintf(std.out, "on disk: %s\n", onDisk(j))
			return nil
		case !j.Undurable && !j.Ending:
			if j.Durable.Step > 0 {
				fmt.Fprintf(std.out, "on disk: %s\n", onDisk(j))
			}
			return nil
		case j.DurableError != "" && j.DurableError != said:
			said = j.DurableError
			fmt.Fprintf(std.err, "step %d is not on disk yet, and is tried again: %s\n", j.Committed.Step, said)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(followEvery):
		}
	}
}

// onDisk names the newest durable step.
func onDisk(j control.JobStatus) string {
	if j.Durable.IsZero() {
		return "nothing"
	}
	return fmt.Sprintf("step %d", j.Durable.Step)
}
