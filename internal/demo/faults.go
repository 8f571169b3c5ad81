package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

// How long the driver waits for things that should take far less.
const (
	patienceStart   = 90 * time.Second // of an interpreter that loads its libraries beside others
	patienceStep    = 500 * time.Millisecond
	patienceHang    = 180 * time.Second // settle and ack, or the in-process wrapper's last word
	patienceHealth  = 60 * time.Second
	patienceRecover = 60 * time.Second
	patienceDurable = 120 * time.Second // holder_grace is 60 s, should the proof of loss not come
	downtimeDaemon  = 400 * time.Millisecond
	downtimeGroup   = 2500 * time.Millisecond
	downtimeNode    = 2 * time.Second
)

// before is the job at the moment of an injection.
type before struct {
	epoch     uint64
	committed uint64
	joins     int // of all ranks
	pids      map[int]int
}

// inject carries out one fault, waits until the job has recovered from it, and returns its row.
func (d *driver) inject(ctx context.Context, kind string) (Fault, error) {
	if how, ok := rankFaults[kind]; ok {
		return d.breakRank(ctx, kind, how)
	}
	switch kind {
	case Daemon:
		return d.killDaemon(ctx)
	case NodeLoss:
		return d.killNodes(ctx, kind, d.ordinaryNode())
	case LeaderLoss:
		return d.killNodes(ctx, kind, []string{d.leader()})
	case Holder, HolderDaemon:
		return d.killHolder(ctx, kind)
	case FleetLoss:
		return d.killFleet(ctx)
	}
	names, err := d.steadyHolders(ctx)
	if err != nil {
		return Fault{}, fmt.Errorf("fault %s: %w", kind, err)
	}
	return d.killNodes(ctx, GroupLoss, names)
}

// breakRank has a rank stop itself at the wanted place, and kills it there unless it breaks by itself.
func (d *driver) breakRank(ctx context.Context, kind string, how rankFault) (Fault, error) {
	rank := d.rng.IntN(d.opt.World)
	_, step := d.latest()
	ask, err := d.request(rank, step+1+uint64(d.rng.IntN(5)), how.place, how.kind)
	if err != nil {
		return Fault{}, fmt.Errorf("fault %s: %w", kind, err)
	}
	at, err := d.awaitStopped(ctx, rank, how.place)
	if e := ask.remove(); err == nil && e != nil { // or its replacement would stop as well
		err = fmt.Errorf("fault %s: %w", kind, e)
	}
	if err != nil {
		return Fault{}, err
	}
	// Its peers go as far as they can without it, so that the kill finds the whole job waiting.
	was := d.now()
	f := Fault{Kind: kind, target: fmt.Sprintf("rank %d, step %d", rank, at.Step), at: time.Now(), step: at.Step}
	var second *asked
	if kind == RankResume {
		if second, err = d.request(d.other(rank), 0, "resume", ""); err != nil {
			return f, fmt.Errorf("fault %s: %w", kind, err)
		}
	}
	if how.kind != "" {
		f.at = at.Time() // it broke when it said so
		d.say("%s in rank %d (pid %d) in %s of step %d", how.kind, rank, at.PID, how.place, at.Step)
	} else {
		d.say("SIGKILL rank %d (pid %d) in %s of step %d", rank, at.PID, how.place, at.Step)
		if err := syscall.Kill(at.PID, syscall.SIGKILL); err != nil {
			return f, fmt.Errorf("fault %s: kill pid %d: %w", kind, at.PID, err)
		}
	}
	switch kind {
	case RankAgain:
		err = d.killAnother(ctx, &f, rank, was)
	case RankResume:
		err = d.killLoading(ctx, &f, d.other(rank), second)
	}
	if err != nil {
		return f, err
	}
	patience := patienceRecover
	if kind == RankHang {
		patience = patienceHang
	}
	if err := d.awaitResume(ctx, &f, was, patience); err != nil {
		return f, err
	}
	return f, d.checkStepWord(kind, rank, f.at)
}

// other is a rank that is not this one, the same whenever it is asked.
func (d *driver) other(rank int) int { return (rank + 1) % d.opt.World }

// asked is a file that asks a rank to break; the rank removes it itself where it goes on afterwards.
type asked struct{ file string }

func (r *asked) remove() error {
	if err := os.Remove(r.file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (d *driver) request(rank int, step uint64, place, kind string) (*asked, error) {
	file := filepath.Join(faultDir(d.cluster.Dir), fmt.Sprintf("stop-%d", rank))
	d.journal.View(func() { delete(d.journal.Stops, rank) })
	if err := os.WriteFile(file+".new", []byte(strings.TrimSpace(fmt.Sprintf("%d %s %s", step, place, kind))+"\n"), 0o600); err != nil {
		return nil, err
	}
	return &asked{file}, os.Rename(file+".new", file)
}

// awaitStopped waits until a rank says that it is where it was asked to stop.
func (d *driver) awaitStopped(ctx context.Context, rank int, place string) (at cluster.RankEvent, err error) {
	err = d.await(ctx, patienceStart, fmt.Sprintf("rank %d to stop itself in %s", rank, place), func() bool {
		var ok bool
		at, ok = d.journal.Stops[rank]
		return ok && at.Phase == place
	})
	return at, err
}

// killLoading kills a rank that stopped itself between the load of the recovered state and the word that it is done.
func (d *driver) killLoading(ctx context.Context, f *Fault, rank int, ask *asked) error {
	at, err := d.awaitStopped(ctx, rank, "resume")
	if e := ask.remove(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("fault %s: %w", f.Kind, err)
	}
	f.target += fmt.Sprintf(", then rank %d", rank)
	d.say("SIGKILL rank %d (pid %d) while it recovers", rank, at.PID)
	return syscall.Kill(at.PID, syscall.SIGKILL)
}

// killAnother waits for the plan that answers the first death and kills another rank while it is carried out: that plan's epoch
// never opens, or is closed at once, and the job has to come back all the same.
func (d *driver) killAnother(ctx context.Context, f *Fault, first int, was before) error {
	other := (first + 1 + d.rng.IntN(d.opt.World-1)) % d.opt.World
	pid := 0 // where survivors don't stay in their processes, another than at the first death
	err := d.await(ctx, patienceRecover, fmt.Sprintf("a plan for the death of rank %d", first), func() bool {
		pid = d.journal.Ranks[other].PID
		return syscall.Kill(pid, 0) == nil && slices.ContainsFunc(d.journal.Log, func(e cluster.LogEvent) bool { return e.Event == "planned" && e.Epoch > was.epoch })
	})
	if err != nil {
		return err
	}
	d.say("SIGKILL rank %d (pid %d) while that plan is carried out", other, pid)
	f.target += fmt.Sprintf(", then rank %d", other)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("fault %s: kill pid %d: %w", f.Kind, pid, err)
	}
	return nil
}

// checkStepWord sees that the word which outlived the rank says where it died.
func (d *driver) checkStepWord(kind string, rank int, at time.Time) error {
	want := rankFaults[kind].word
	if want == "" {
		return nil
	}
	for _, e := range d.events() {
		if e.Event == "rank_died" && e.Rank == rank && !e.Time.Before(at) {
			if e.Phase != want {
				return fmt.Errorf("fault %s: the step word that survives rank %d reads %s, want %s", kind, rank, e.Phase, want)
			}
			return nil
		}
	}
	return fmt.Errorf("fault %s: no daemon logged the death of rank %d and its step word", kind, rank)
}

// killDaemon takes a daemon away under its ranks and brings it back: training must not notice.
func (d *driver) killDaemon(ctx context.Context) (Fault, error) {
	name := d.nodeWithRanks()
	n := d.cluster.Node(name)
	was := d.now()
	_, step := d.latest()
	f := Fault{Kind: Daemon, target: name, at: time.Now(), step: step, From: fromOwnRAM, epoch: was.epoch}
	d.say("SIGKILL the daemon of %s (pid %d); its ranks go on", name, n.Daemon.PID())
	n.Daemon.Kill()
	// It comes back after a moment in which training goes on; the wait is on steps, which the job must keep making.
	goal := step + 5
	err := d.await(ctx, patienceRecover, fmt.Sprintf("training to pass step %d while the daemon of %s is away", goal, name), func() bool {
		_, s := d.journal.LatestLocked()
		return s >= goal
	})
	if err != nil {
		return f, err
	}
	if err := d.pause(ctx, downtimeDaemon-time.Since(f.at)); err != nil {
		return f, err
	}
	if err := d.cluster.StartDaemon(n); err != nil {
		return f, err
	}
	f.away = time.Since(f.at)
	_, live := d.latest()
	var caughtUp time.Time
	err = d.await(ctx, patienceRecover, fmt.Sprintf("commits to catch up with step %d after the daemon of %s came back", live, name), func() bool {
		for _, c := range slices.Backward(d.journal.Commits) {
			if c.Step < live {
				break
			}
			caughtUp = c.At
		}
		return !caughtUp.IsZero()
	})
	if err != nil {
		return f, err
	}
	f.Resumed = new(float64(caughtUp.Sub(f.at).Microseconds()) / 1000)
	is := d.now()
	switch {
	case is.epoch != was.epoch:
		return f, fmt.Errorf("daemon fault: epoch %d became %d: training noticed that a daemon restarted", was.epoch, is.epoch)
	case !maps.Equal(is.pids, was.pids):
		return f, fmt.Errorf("daemon fault: process ids by rank were %v and are %v", was.pids, is.pids)
	case is.joins != was.joins:
		return f, fmt.Errorf("daemon fault: a rank was sent back to join (%d joins, before %d)", is.joins, was.joins)
	}
	f.Reason = fmt.Sprintf("training did not notice: epoch %d, process ids and open calls kept; commits caught up at step %d", was.epoch, live)
	return f, nil
}

// killNodes kills everything on some nodes at once and brings them back empty.
func (d *driver) killNodes(ctx context.Context, kind string, names []string) (Fault, error) {
	was := d.now()
	_, step := d.latest()
	f := Fault{Kind: kind, target: strings.Join(names, "+"), step: step}
	hadRanks := d.hostsRanks(names)
	d.say("kill %s: keeper, daemon, launcher and ranks; its addresses fall silent", f.target)
	f.at = time.Now()
	for _, name := range names {
		if err := d.cluster.Kill(d.cluster.Node(name)); err != nil {
			return f, fmt.Errorf("fault %s: %w", kind, err)
		}
	}
	patience := patienceRecover
	if kind == GroupLoss {
		// Nobody can be asked for the group's state: only its nodes, back with empty memory, prove that it is gone.
		patience = patienceDurable
		if err := d.pause(ctx, downtimeGroup-time.Since(f.at)); err != nil {
			return f, err
		}
		if err := d.reviveAll(&f, names); err != nil {
			return f, err
		}
	}
	var err error
	if hadRanks {
		err = d.awaitResume(ctx, &f, was, patience)
	} else {
		err = d.awaitCommits(ctx, &f, was)
	}
	if err == nil && kind != GroupLoss {
		if err = d.pause(ctx, downtimeNode-time.Since(f.at)); err == nil {
			err = d.reviveAll(&f, names)
		}
	}
	return f, err
}

// killFleet kills every node at once. A fresh fleet, which knows nothing of the job and has another pki, goes on from what is durable.
func (d *driver) killFleet(ctx context.Context) (Fault, error) {
	was := d.now()
	_, step := d.latest()
	f := Fault{Kind: FleetLoss, target: strings.Join(d.cluster.Names(), "+"), step: step}
	d.say("kill %s: keepers, daemons, launchers and ranks; nothing is left but what is durable", f.target)
	f.at = time.Now()
	d.resume = true
	if err := d.freshFleet("pki-fresh"); err != nil {
		return f, fmt.Errorf("fault %s: %w", f.Kind, err)
	}
	f.away = time.Since(f.at)
	d.say("a fresh fleet is there after %.1f s, without state, log and memory, with a pki of its own; its launchers have --resume", f.away.Seconds())
	return f, d.awaitResume(ctx, &f, was, patienceDurable)
}

// freshFleet kills every node, and starts all of them with nothing that they had, as another cluster, and launchers.
func (d *driver) freshFleet(pki string) error {
	for _, n := range d.cluster.Nodes {
		if err := d.cluster.Kill(n); err != nil {
			return err
		}
	}
	if err := d.cluster.NewIdentity(filepath.Join(d.cluster.Dir, pki)); err != nil {
		return err
	}
	for i, n := range d.cluster.Nodes {
		err := d.cluster.Afresh(n)
		if err == nil {
			err = d.launch(i, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *driver) reviveAll(f *Fault, names []string) error {
	for _, name := range names {
		if err := d.revive(name); err != nil {
			return fmt.Errorf("fault %s: %w", f.Kind, err)
		}
	}
	f.away = time.Since(f.at)
	d.say("%s is back with an empty memory after %.1f s", f.target, f.away.Seconds())
	return nil
}

// awaitResume waits until every rank has made a step in an epoch that was opened after the injection, and measures.
func (d *driver) awaitResume(ctx context.Context, f *Fault, was before, patience time.Duration) error {
	var epoch uint64
	var resumed, first time.Time
	err := d.await(ctx, patience, fmt.Sprintf("all ranks to make a step after fault %s (%s), in an epoch after %d", f.Kind, f.target, was.epoch), func() bool {
		epoch, resumed = was.epoch, time.Time{}
		for _, e := range d.journal.Log {
			if e.Event == "resumed" && e.Epoch > epoch && !e.Time.Before(f.at) {
				epoch, resumed = e.Epoch, e.Time
			}
		}
		first = time.Time{}
		n := 0
		for _, r := range d.journal.Ranks {
			if r.Epoch == epoch && epoch > was.epoch {
				n++
				if r.FirstInEpoch.After(first) {
					first = r.FirstInEpoch
				}
			}
		}
		return n == d.opt.World && !resumed.IsZero()
	})
	if err != nil {
		return err
	}
	var events []cluster.LogEvent
	d.journal.View(func() { events = slices.Clone(d.journal.Log) })
	end := first
	if resumed.After(end) {
		end = resumed
	}
	measure(f, events, was.committed, end)
	f.firstStep = new(float64(first.Sub(f.at).Microseconds()) / 1000)
	switch {
	case f.From != fromDurable && f.StepsLost > 0:
		return fmt.Errorf("fault %s: resumed %d steps below the committed step %d without having read the disk (%s)", f.Kind, f.StepsLost, was.committed, f.Reason)
	case f.lastResort() && f.From != fromDurable:
		return fmt.Errorf("fault %s: every holder was killed, and yet the state came from %s (%s)", f.Kind, f.From, f.Reason)
	case !f.lastResort() && f.From == fromDurable:
		return fmt.Errorf("fault %s: the disk was read though memory could serve (%s)", f.Kind, f.Reason)
	}
	return nil
}

// awaitCommits waits for a commit under a new leader, where the lost leader held no rank.
func (d *driver) awaitCommits(ctx context.Context, f *Fault, was before) error {
	_, live := d.latest()
	var at time.Time
	err := d.await(ctx, patienceRecover, fmt.Sprintf("commits to pass step %d after %s was lost", live, f.target), func() bool {
		n := len(d.journal.Commits)
		if n == 0 || d.journal.Commits[n-1].Step <= live || d.journal.Commits[n-1].At.Before(f.at) {
			return false
		}
		at = d.journal.Commits[n-1].At
		return true
	})
	if err != nil {
		return err
	}
	for _, e := range d.events() {
		if e.Event == "leader" && e.Time.After(f.at) && f.Detected == nil {
			f.Detected = new(float64(e.Time.Sub(f.at).Microseconds()) / 1000)
		}
	}
	f.From, f.epoch = fromOwnRAM, was.epoch
	f.Resumed = new(float64(at.Sub(f.at).Microseconds()) / 1000)
	f.Reason = "it held no rank: training did not notice, commits went on under the new leader"
	return nil
}

// nodeWithRanks is a random node that runs ranks.
func (d *driver) nodeWithRanks() string {
	names := d.rankNodes()
	return names[d.rng.IntN(len(names))]
}

// ordinaryNode is a random node that runs ranks and does not lead, where there is one.
func (d *driver) ordinaryNode() []string {
	names := slices.DeleteFunc(d.rankNodes(), func(n string) bool { return n == d.leader() })
	if len(names) == 0 {
		names = d.rankNodes()
	}
	return []string{names[d.rng.IntN(len(names))]}
}

// rankNodes are the nodes that run ranks now, in order.
func (d *driver) rankNodes() (names []string) {
	d.journal.View(func() {
		for _, r := range d.journal.Ranks {
			if !slices.Contains(names, r.Node) {
				names = append(names, r.Node)
			}
		}
	})
	slices.Sort(names)
	return names
}

func (d *driver) hostsRanks(names []string) bool {
	return slices.ContainsFunc(d.rankNodes(), func(n string) bool { return slices.Contains(names, n) })
}

// holdersSteady is longer than what a status has of other nodes may be old: they report each second, and the status is asked for each 150 ms.
const holdersSteady = 1500 * time.Millisecond

// steadyHolders are the group's holders once they have not changed for that long. A mirror that has just moved would be left out, and
// the group would live on there.
func (d *driver) steadyHolders(ctx context.Context) (names []string, err error) {
	began := time.Now()
	for names = d.groupHolders(); ; {
		if err := d.pause(ctx, holdersSteady); err != nil {
			return nil, err
		}
		now := d.groupHolders()
		if slices.Equal(now, names) || time.Since(began) > patienceRecover {
			return now, nil
		}
		names = now
	}
}

// groupHolders are all nodes that hold parts of one group: where its ranks run, and who mirrors it. Of the two groups the
// one whose loss leaves more voters is taken, so that the figures are those of the data and not of a lost quorum.
func (d *driver) groupHolders() (best []string) {
	fewest := len(d.cluster.Nodes) + 1
	for group := range slices.Max(d.opt.Groups) + 1 {
		var holders []string
		add := func(n string) {
			if !slices.Contains(holders, n) && d.cluster.Node(n) != nil {
				holders = append(holders, n)
			}
		}
		d.journal.View(func() {
			for r, s := range d.journal.Ranks {
				if d.opt.Groups[r] == group {
					add(s.Node)
				}
			}
			for _, s := range d.journal.Status {
				if j := s.Job(d.job); j != nil {
					for _, h := range j.Holdings {
						if h.Part == fmt.Sprintf("group %d", group) {
							add(h.Node)
						}
					}
				}
			}
		})
		voters := 0
		for _, n := range holders {
			if d.cluster.Node(n).Voter {
				voters++
			}
		}
		if voters < fewest {
			fewest, best = voters, holders
		}
	}
	slices.Sort(best)
	return best
}
