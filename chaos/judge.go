package chaos

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

// The ways in which a run fails.
const (
	wrong  = "wrong"          // state or loss that the undisturbed run does not have
	lost   = "committed lost" // the job went back behind a committed step
	disk   = "disk"           // the disk was read though memory held the step, or it lacks what status says is there
	owner  = "two owners"     // two processes made steps as one rank in one epoch
	killed = "healthy killed" // a process ended that no fault explains
	ended  = "job ended"      // the job, or a process that was to last
	slow   = "slow"           // beyond the bounds
	left   = "left over"

	standstill  = "standstill"  // nothing is committed, or the cluster does not become whole
	uncommitted = "uncommitted" // the job ended, and its last steps never counted
	exitCode    = "exit code"   // a launcher ended otherwise than its job
)

var classes = []string{wrong, lost, disk, owner, killed, ended, standstill, uncommitted, exitCode, slow, left}

// violation is one promise that did not hold.
type violation struct{ class, text string }

func (v violation) Error() string { return v.class + ": " + v.text }

// judge compares what the processes of one job say with the undisturbed run, as they say it. Journals call it locked; its own lock
// guards it against the driver.
type judge struct {
	job    string
	losses map[rankStep]float64 // of the undisturbed run
	ends   bool                 // a rank's process ends when a peer is lost
	report func(violation)
	note   func(string) // for the timeline

	mu      sync.Mutex // guards all below
	dead    map[int]string
	excused map[string]string // by node: why its ranks may end
	owners  map[[2]uint64]int // pid by rank and epoch
	plans   map[uint64]uint64 // step by epoch
	commits map[uint64]uint64 // newest step by epoch
	wrongAt map[rankStep]bool // reported
	kills   int               // of ranks, that were killed on purpose since takeKills
	live    uint64            // newest step
	lag     uint64            // most steps that live was ahead of a commit
	gap     time.Duration     // longest time between two commits
	last    time.Time         // of the newest commit
	durable time.Time         // of the newest durable generation

	times     []time.Time // of the commits
	elections int

	trapped   int // a process that is to be stopped, trapAfter its word, when sprung is closed
	trapAfter time.Duration
	sprung    chan struct{}
}

type rankStep struct {
	rank int
	step uint64
}

func newJudge(job string, losses map[rankStep]float64, report func(violation), note func(string)) *judge {
	return &judge{job: job, losses: losses, report: report, note: note, dead: map[int]string{}, excused: map[string]string{}, owners: map[[2]uint64]int{},
		plans: map[uint64]uint64{}, commits: map[uint64]uint64{}, wrongAt: map[rankStep]bool{}}
}

// killing says that a process of a rank is about to be killed, and why.
func (g *judge) killing(pid int, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead[pid] == "" {
		g.kills++
	}
	g.dead[pid] = why
}

func (g *judge) wasKilled(pid int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dead[pid] != ""
}

// excuse says that processes of ranks may end on a node until the cluster is whole again.
func (g *judge) excuse(node, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.excused[node] = why
}

func (g *judge) whole() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.excused)
}

// trap has a process stopped a moment after it says that its epoch is over for it. The returned channel is closed then.
func (g *judge) trap(pid int, after time.Duration) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trapped, g.trapAfter, g.sprung = pid, after, make(chan struct{})
	return g.sprung
}

// springLocked stops the process in the reader's goroutine: what a detour takes is longer than the process needs.
func (g *judge) springLocked() {
	for end := time.Now().Add(g.trapAfter); time.Now().Before(end); { // shorter than a timer keeps
	}
	signal(g.trapped, syscall.SIGSTOP)
	g.trapped = 0
	close(g.sprung)
}

// pace is the longest time between two commits, and the most steps that training was ahead of one.
func (g *judge) pace() (gap time.Duration, lag uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gap, g.lag
}

// takeKills counts the ranks' processes that were killed since the last call.
func (g *judge) takeKills() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.kills
	g.kills = 0
	return n
}

// rank takes a line of a trainer.
func (g *judge) rank(e cluster.RankEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if (e.Event == "fenced" || e.Event == "peer-lost") && g.trapped != 0 && e.PID == g.trapped {
		g.springLocked()
	}
	if e.Event != "step" {
		if e.Event != "start" {
			g.note(fmt.Sprintf("rank %d (pid %d): %s epoch %d step %d", e.Rank, e.PID, e.Event, e.Epoch, e.Step))
		}
		return
	}
	g.live = e.Step
	key := [2]uint64{uint64(e.Rank), e.Epoch}
	if was, ok := g.owners[key]; ok && was != e.PID {
		g.report(violation{owner, fmt.Sprintf("processes %d and %d both made steps as rank %d in epoch %d", was, e.PID, e.Rank, e.Epoch)})
	}
	g.owners[key] = e.PID
	at := rankStep{e.Rank, e.Step}
	if want, ok := g.losses[at]; ok && e.Loss != nil && *e.Loss != want && !g.wrongAt[at] {
		g.wrongAt[at] = true
		if len(g.wrongAt) == 1 { // the first says it; what follows from it does not help
			g.report(violation{wrong, fmt.Sprintf("rank %d (pid %d) has loss %v at step %d, epoch %d; undisturbed %v", e.Rank, e.PID, *e.Loss, e.Step, e.Epoch, want)})
		}
	}
}

// log takes a line of a daemon.
func (g *judge) log(e cluster.LogEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e.Job != "" && e.Job != g.job {
		return
	}
	switch e.Event {
	case "committed":
		g.committed(e)
	case "planned":
		g.note(fmt.Sprintf("%s: plan: epoch %d from step %d (%s) unvouched=%v %s", e.From, e.Epoch, e.Step, e.Tier, e.Unvouched, e.Reason))
		g.plans[e.Epoch] = e.Step
		g.checkPlan(e.Epoch)
		if e.Tier == "durable" {
			g.report(violation{disk, fmt.Sprintf("epoch %d goes on from step %d on disk: %s", e.Epoch, e.Step, e.Reason)})
		}
	case "resumed":
		g.note(fmt.Sprintf("%s: epoch %d is open at step %d", e.From, e.Epoch, e.Step))
	case "fault", "dispute", "quarantined", "condemned", "ended", "note", "offered", "claimed":
		g.note(fmt.Sprintf("%s: %s %s %s node=%s rank=%d epoch=%d step=%d %s%s", e.From, e.Event, e.Kind, e.Code, e.Node, e.Rank, e.Epoch, e.Step, e.Detail, e.Text+e.Reason))
		if e.Event == "dispute" || e.Event == "quarantined" || e.Event == "condemned" {
			g.report(violation{wrong, fmt.Sprintf("%s: %s, epoch %d step %d: copies of one generation differ", e.From, e.Event, e.Epoch, e.Step)})
		}
	case "rank_died":
		why := g.dead[e.PID]
		if why == "" {
			why = g.excused[e.From]
		}
		g.note(fmt.Sprintf("%s: rank %d (pid %d) ended in %s at step %d; %s", e.From, e.Rank, e.PID, e.Phase, e.Step, why))
		if why == "" && !e.Left && !g.ends {
			g.report(violation{killed, fmt.Sprintf("rank %d (pid %d) on %s ended at step %d, and no fault was its own", e.Rank, e.PID, e.From, e.Step)})
		}
	case "durable":
		g.durable = e.Time
	case "leader", "node_state":
		if e.Event == "leader" {
			g.elections++
		}
		g.note(fmt.Sprintf("%s: %s %s %s term %d", e.From, e.Event, e.Node, e.State, e.Term))
	}
}

func (g *judge) committed(e cluster.LogEvent) {
	if e.Step > g.commits[e.Epoch] {
		g.times = append(g.times, e.Time)
		g.commits[e.Epoch] = e.Step
		if !g.last.IsZero() {
			g.gap = max(g.gap, e.Time.Sub(g.last))
		}
		g.last = e.Time
		if g.live > e.Step {
			g.lag = max(g.lag, g.live-e.Step)
		}
	}
	for epoch := range g.plans {
		if epoch > e.Epoch {
			g.checkPlan(epoch)
		}
	}
}

// checkPlan compares a plan with what was committed in the epochs before it, whichever is heard of first.
func (g *judge) checkPlan(epoch uint64) {
	for before, step := range g.commits {
		if before < epoch && step > g.plans[epoch] {
			g.report(violation{lost, fmt.Sprintf("epoch %d goes on from step %d; step %d had been committed in epoch %d", epoch, g.plans[epoch], step, before)})
			return
		}
	}
}

// memoryOf counts the memory files that a process has open, but for what its voter has promised.
func memoryOf(pid int) (n int) {
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if to, err := os.Readlink(dir + e.Name()); err == nil && strings.HasPrefix(to, "/memfd:") && !strings.HasPrefix(to, "/memfd:replicad-promises") {
			n++
		}
	}
	return n
}
