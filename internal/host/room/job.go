package room

import (
	"fmt"
	"os"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Over reports whether a job has ended, or was stopped: its ranks are to end.
func Over(job *replica.Job) bool { return job.Phase == replica.Ended || job.Stop != nil }

// Waits reports whether time may change something of one of these jobs. What the others still hold is given back at the host's own pace.
func Waits(jobs []JobView) bool {
	return slices.ContainsFunc(jobs, func(v JobView) bool { return v.Job.Phase != replica.Ended })
}

// Adopted reports whether a job opens from a durable generation: nobody initialises anything then.
func Adopted(job *replica.Job) bool { return job.Committed.IsZero() && !job.Durable.IsZero() }

// AwaitsProcesses reports whether a job waits for processes to attach or to come to rest.
func AwaitsProcesses(job *replica.Job) bool {
	return job.Phase == replica.Opening || job.Phase == replica.Closed
}

// Foreign is that a job is another user's than the one who asks for a part in it. Empty: it is that one's, or root or the daemon asks.
func Foreign(job *replica.Job, uid int) string {
	if uid == 0 || uid == os.Geteuid() || uint32(uid) == job.Owner {
		return ""
	}
	return fmt.Sprintf("job %q is user %d's, and this process is user %d's: start it as that user, or use another name for a job of "+
		"your own", job.Name, job.Owner, uid)
}

// Superseded reports whether a newer incarnation holds the rank, or nobody will: an ended job has no ranks any more.
func Superseded(job *replica.Job, r replica.Rank, inc replica.Incarnation) bool {
	return job.Phase == replica.Ended || job.Ranks[r].Incarnation > inc
}
