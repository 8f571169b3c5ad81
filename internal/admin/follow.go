package admin

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/status"
	"github.com/replicad/replicad/replica"
)

const (
	// followEvery lies between two polls of a write that somebody waits for.
	followEvery = 200 * time.Millisecond
	// followSaid lies between two reasons why it is not there: with a bad disk each part of each try has its own.
	followSaid = 30 * time.Second
)

// JobOf is the job of a name that has not ended; its ID is zero where none is known.
func (c Client) JobOf(ctx context.Context, name string) (job control.JobStatus) {
	s, err := c.Status(ctx)
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

// followed polls a job until is returns that there is nothing to wait for, and notes meanwhile why nothing is on disk yet. Nil: the job is
// forgotten.
func (c Client) followed(ctx context.Context, notes io.Writer, id replica.JobID, is func(control.JobStatus) bool) (*control.JobStatus,
	error) {
	said, saidAt := "", time.Time{}
	for {
		s, err := c.Status(ctx)
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
		if j.DurableEnded && !j.Ending { // a job that is to end waits for no write then
			return nil, fmt.Errorf("not on disk, and not tried again: %s", j.DurableError)
		}
		if j.DurableError != "" && !j.DurableEnded && j.DurableError != said && time.Since(saidAt) >= followSaid {
			if said == "" {
				console.Printf(notes, "%s\n",
					"the daemons write it; Ctrl-C ends this command alone, and `replicad status` shows what becomes of the write. A job "+
						"that was stopped or is to end waits for it for timing.abandoned, then its memory is freed")
			}
			said, saidAt = j.DurableError, time.Now()
			console.Printf(notes, "not on disk yet, and tried again: %s\n", said)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(followEvery):
		}
	}
}

// Written waits until what a job has committed is on disk, or the job has ended. Nil: nothing of it is there, or the job is forgotten.
func (c Client) Written(ctx context.Context, notes io.Writer, before control.JobStatus) (*control.JobStatus, error) {
	j, err := c.followed(ctx, notes, before.ID, func(j control.JobStatus) bool { return !j.Undurable && !j.Ending })
	if err != nil || j == nil || j.Phase != replica.Ended.String() && j.Durable.Step == 0 {
		return nil, err
	}
	return j, nil
}

// Saved waits until what the job had committed when it was asked, or something newer, is on disk. Nil: the job is forgotten.
func (c Client) Saved(ctx context.Context, notes io.Writer, before control.JobStatus) (*control.JobStatus, error) {
	j, err := c.followed(ctx, notes, before.ID, func(j control.JobStatus) bool { return j.Durable.Compare(before.Committed) >= 0 })
	switch {
	case err != nil || j == nil:
		return nil, err
	case j.Durable.Compare(before.Committed) < 0:
		return nil, fmt.Errorf("job %s has ended (%s), and step %d of it is not on disk, where the newest is: %s", j.Name, j.EndReason,
			before.Committed.Step, status.OnDisk(*j))
	}
	return j, nil
}
