package lock

import "github.com/replicad/replicad/replica"

// stopJob closes the epoch of a job for somebody who asked for it, or lets the job go on. Its ranks stop; what is committed stays in memory,
// and may still be written to the durable tier. A stop that ends the job is not taken back.
func stopJob(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.StopJob) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	switch {
	case c.Clear && j.Stop == nil:
		return false, nil
	case c.Clear && j.Stop.End:
		return false, refuse(Conflict, "job %s is being ended (%s), and goes on no more", j.Name, j.Stop.Reason)
	case c.Clear:
		j.Stop = nil
		return true, nil
	case j.Committed.IsZero():
		return false, refuse(NotYet, "stop of job %s: it has committed nothing that could be kept: end it", j.Name)
	case j.Stop != nil:
		return false, nil
	}
	stop(j, nodes, c.Reason, false)
	return true, nil
}

func stop(j *replica.Job, nodes map[replica.NodeName]replica.Node, reason string, end bool) {
	closeEpoch(j, nodes)
	j.Stop = &replica.Stop{Reason: replica.Cut(reason, MaxReason), End: end}
}

// notStopped refuses what begins an epoch, or takes part in one, of a job that was stopped.
func notStopped(j *replica.Job, what string) error {
	if j.Stop != nil {
		return refuse(NotYet, "%s: job %s is stopped: %s", what, j.Name, j.Stop.Reason)
	}
	return nil
}
