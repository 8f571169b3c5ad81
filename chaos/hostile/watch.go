package hostile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

// daemon is what /proc says of one.
type daemon struct {
	node string
	pid  int
}

// field reads a size of /proc/PID/status, in bytes.
func (d daemon) field(name string) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			kib, err := strconv.ParseUint(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", d.pid, name)
}

// forgetPeak has the kernel measure the peak of resident memory from now on.
func (d daemon) forgetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", d.pid), []byte("5"), 0)
}

// descriptors counts the open ones.
func (d daemon) descriptors() (int, error) {
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.pid))
	return len(list), err
}

// books count what the daemons of the job's nodes say while a pattern lasts.
type books struct {
	job string

	mu       sync.Mutex // guards the rest
	commits  int
	newest   uint64
	last     time.Time // of the newest commit
	gap      time.Duration
	unlinked []string
	leaders  []string
	troubles []string       // faults of the job that trains, deaths of its ranks
	logged   map[string]int // bytes by node, but for the lines that the run asks for at each commit
}

// log takes a line of a daemon; the journal calls it.
func (b *books) log(e cluster.LogEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Event != "committed" && e.Event != "commit_seen" {
		if b.logged == nil {
			b.logged = map[string]int{}
		}
		b.logged[e.From] += e.Size
	}
	switch e.Event {
	case "committed":
		if e.Job == b.job && e.Step > b.newest {
			now := time.Now()
			if !b.last.IsZero() {
				b.gap = max(b.gap, now.Sub(b.last))
			}
			b.commits, b.newest, b.last = b.commits+1, e.Step, now
		}
	case "unlinked":
		b.unlinked = append(b.unlinked, e.From)
	case "leader", "leadership_moves":
		b.leaders = append(b.leaders, fmt.Sprintf("%s: %s term %d", e.From, e.Event, e.Term))
	case "fault", "rank_died", "dispute", "quarantined", "condemned", "ended", "planned":
		if e.Job == b.job && atItsEnd(e) {
			b.last = time.Time{} // no commit is awaited any more
		} else if e.Job == b.job {
			b.troubles = append(b.troubles, fmt.Sprintf("%s: %s %s rank %d epoch %d step %d %s%s%s", e.From, e.Event, e.Kind, e.Rank, e.Epoch, e.Step, e.Detail, e.Text, e.Reason))
		}
	case "keeper":
		b.troubles = append(b.troubles, e.From+": its keeper is gone")
	}
}

// atItsEnd tells whether a job that has trained all its steps says so, as it may on a slow machine while a pattern lasts. An end
// before that is found by finish, which wants the digests of the last step.
func atItsEnd(e cluster.LogEvent) bool {
	return e.Event == "ended" && e.Reason == "finished" || e.Event == "rank_died" && e.Left
}

// seen is what was counted since the last call.
type seen struct {
	commits                    int
	gap                        time.Duration
	unlinked, leaders, trouble []string
	logged                     map[string]int
}

func (b *books) take() seen {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := seen{b.commits, b.gap, b.unlinked, b.leaders, b.troubles, b.logged}
	if !b.last.IsZero() {
		s.gap = max(s.gap, time.Since(b.last))
	}
	b.commits, b.gap, b.unlinked, b.leaders, b.troubles, b.logged = 0, 0, nil, nil, nil, nil
	return s
}

// stalls measures for how long this process did not get to run though it was due: what a daemon beside it misses then is not an attack's doing.
type stalls struct {
	mu   sync.Mutex // guards most
	most time.Duration
}

func (s *stalls) run(ctx context.Context) {
	const every = 10 * time.Millisecond
	t := time.NewTimer(every)
	defer t.Stop()
	for {
		due := time.Now().Add(every)
		t.Reset(every)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		s.mu.Lock()
		s.most = max(s.most, time.Since(due))
		s.mu.Unlock()
	}
}

func (s *stalls) take() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := s.most
	s.most = 0
	return most
}

// begin follows another job.
func (b *books) begin(job string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.job, b.newest, b.last = job, 0, time.Time{}
}
