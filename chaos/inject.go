package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

// act is one fault under way: what it did, in words, and what ends it.
type act struct {
	text string
	end  func() error
}

// moment is when a fault begins or ends.
type moment struct {
	after time.Duration
	do    func() error
}

// inject carries out a fault and the one beside it, and waits until the cluster is whole again.
func (r *runner) inject(ctx context.Context, f Fault) error {
	_, step, committed := r.now()
	began := time.Now()
	var texts []string
	var moments []moment
	add := func(f Fault, from time.Duration) {
		var a act
		end := from + f.For
		if f.Kind == falling { // it has taken that time when it has begun
			end = from
		}
		moments = append(moments, moment{from, func() (err error) {
			r.faults[f.Kind]++
			a, err = r.begin(ctx, f)
			texts = append(texts, a.text)
			if alone(f.Kind) { // its time begins when its moment has come
				began = time.Now()
			}
			return err
		}}, moment{end, func() error {
			if a.end == nil {
				return nil
			}
			return a.end()
		}})
	}
	add(f, 0)
	if f.Pair != nil {
		add(*f.Pair, f.Pair.Gap)
	}
	slices.SortStableFunc(moments, func(a, b moment) int { return int(a.after - b.after) })
	var err error
	for _, m := range moments {
		if err == nil {
			err = r.pause(ctx, time.Until(began.Add(m.after)))
		}
		if e := m.do(); err == nil { // what was paused goes on, whatever else failed
			err = e
		}
		if err != nil && len(texts) == 0 {
			return err
		}
	}
	if f.Third != nil && err == nil {
		if err = r.pause(ctx, f.Third.Gap); err == nil {
			var a act
			r.faults[f.Third.Kind]++
			a, err = r.begin(ctx, *f.Third)
			texts = append(texts, "in the recovery "+a.text)
		}
	}
	healed, since := time.Now(), r.clock.now()
	what := strings.Join(texts, "; ")
	if err == nil {
		_, last, _ := r.now() // what was committed while the fault came about says nothing of the recovery from its last part
		err = r.whole(ctx, max(step, last), f.kinds()...)
	}
	r.kills += r.judge.takeKills()
	if err != nil {
		r.rec.say("fault %3d, %s step %d, committed %d: %s: NOT survived", r.next, r.job.Name, step, committed, what)
		return err
	}
	epoch, at, is := r.now()
	r.rec.say("fault %3d, %s step %d, committed %d: %s: whole %.1f s after its end; epoch %d step %d, committed %d", r.next, r.job.Name, step, committed, what, time.Since(healed).Seconds(), epoch, at, is)
	r.judge.whole()
	slower, err := r.history.add(recovered{At: healed, Layout: r.lay.like(), Kinds: kindsText(f.kinds()), Seconds: (r.clock.now() - since).Seconds()})
	if slower != "" {
		r.judge.report(violation{slow, slower})
	}
	return err
}

// kinds are those of a fault, of the one beside it, and of the one in the recovery.
func (f Fault) kinds() []string {
	kinds := []string{f.Kind}
	for _, other := range []*Fault{f.Pair, f.Third} {
		if other != nil {
			kinds = append(kinds, other.Kind)
		}
	}
	return kinds
}

// whole waits until every node and rank is there, parts have their copies, all ranks train, and commits have caught up.
func (r *runner) whole(ctx context.Context, from uint64, kinds ...string) error {
	var why string
	began := time.Now()
	err := r.await(ctx, r.bounds.recovery(kinds...), "a whole cluster", func() bool {
		committed, _ := r.journal.CommittedLocked()
		if r.allDoneLocked() {
			if why = r.behind(committed); why == "" {
				return true
			}
			return false
		}
		why = cluster.Healthy(r.journal.Status, r.cluster.Names(), r.job.Name, r.lay.World)
		for rank, s := range r.journal.Ranks { // status may be older than the fault
			if why == "" && r.judge.wasKilled(s.PID) {
				why = fmt.Sprintf("rank %d has no process after %d", rank, s.PID)
			}
		}
		if why == "" && committed <= from {
			why = fmt.Sprintf("no commit after step %d: the newest is %d", from, committed)
		}
		return why == ""
	})
	if err != nil && why != "" && errors.As(err, new(violation)) {
		r.rec.say("what was missing after %.0f s: %s; %s", time.Since(began).Seconds(), why, r.waiting())
	}
	return err
}

// now is the newest epoch and step of any rank, and the newest commit.
func (r *runner) now() (epoch, step, committed uint64) {
	r.journal.View(func() {
		epoch, step = r.journal.LatestLocked()
		committed, _ = r.journal.CommittedLocked()
	})
	return epoch, step, committed
}

// begin looks up whom a fault means, and begins it.
func (r *runner) begin(ctx context.Context, f Fault) (act, error) {
	say := func(format string, args ...any) string {
		text := fmt.Sprintf(format, args...)
		r.rec.note("FAULT     " + text)
		return text
	}
	switch f.Kind {
	case rankKill, slowStart:
		rank := int(f.Pick) % r.lay.World
		node, pid := r.rankOf(rank)
		text := say("%s rank %d (pid %d on %s)", f.Kind, rank, pid, node)
		if f.Kind == slowStart {
			text += fmt.Sprintf(", its next process attaches %.1f s later", f.For.Seconds())
			if err := askSlow(r.dir, rank, f.For); err != nil {
				return act{}, err
			}
			f.For = 0
		}
		r.kill(pid, f.Kind)
		return act{text: text}, nil
	case rankStop:
		rank := int(f.Pick) % r.lay.World
		node, pid := r.rankOf(rank)
		text := say("%s rank %d (pid %d on %s) %.1f s", f.Kind, rank, pid, node, f.For.Seconds())
		signal(pid, syscall.SIGSTOP)
		return act{text, func() error { signal(pid, syscall.SIGCONT); return nil }}, nil
	case heir:
		return r.beginHeir(ctx, f)
	case falling:
		return r.beginFalling(ctx, f)
	case pushDaemon, pushRank, captureDaemon, captureRank, restoreDaemon, restoreRank:
		return r.beginAimed(ctx, f)
	case keeperKill:
		a := r.beginKeeper(r.cluster.Nodes[int(f.Pick)%len(nodes)], f)
		r.rec.note("FAULT     " + a.text)
		return a, nil
	case keeperLater:
		return r.beginKeeperLater(ctx, f)
	case launcherKill:
		i := int(f.Pick) % len(nodes)
		n := r.cluster.Nodes[i]
		text := say("%s of %s, away %.1f s", f.Kind, n.Name, f.For.Seconds())
		r.judge.excuse(n.Name, "its launcher was killed")
		for _, pid := range n.Ranks() {
			r.judge.killing(pid, "its launcher was killed")
		}
		n.Launcher.Kill()
		return act{text, func() error { return r.relaunch(i) }}, nil
	case daemonKill, leaderKill, mirrorKill:
		n := r.cluster.Node(r.role(f))
		if n == nil {
			return act{text: say("%s: none, every holder runs a rank", f.Kind)}, nil
		}
		text := say("%s: daemon of %s killed, away %.1f s", f.Kind, n.Name, f.For.Seconds())
		n.Daemon.Kill()
		return act{text, func() error { return r.restart(n) }}, nil
	case launcherStop, daemonStop, leaderStop:
		n := r.cluster.Node(r.role(f))
		p := n.Daemon
		if f.Kind == launcherStop {
			p = n.Launcher
		}
		text := say("%s: %s (pid %d) %.1f s", f.Kind, p.Name, p.PID(), f.For.Seconds())
		p.Signal(syscall.SIGSTOP)
		return act{text, func() error { p.Signal(syscall.SIGCONT); return nil }}, nil
	case nodeLoss:
		i := int(f.Pick) % len(nodes)
		n := r.cluster.Nodes[i]
		text := say("%s %s, away %.1f s, back empty", f.Kind, n.Name, f.For.Seconds())
		if err := r.lose(n); err != nil {
			return act{}, err
		}
		return act{text, func() error { return r.revive(i) }}, nil
	case emptied:
		return r.beginEmptied(ctx, f)
	case busy:
		a, err := r.beginBusy(f)
		r.rec.note("FAULT     " + a.text)
		return a, err
	case diskFull, diskReadOnly, diskMoved:
		text := say("%s %.1f s", f.Kind, f.For.Seconds())
		end, err := r.durable.fault(f.Kind)
		began := time.Now()
		return act{text, func() error {
			if f.Kind == diskMoved {
				r.checkMoved(began)
			}
			return end()
		}}, err
	}
	text, err := r.spoil(f)
	return act{say("%s", text), r.heal}, err
}

// restart starts a daemon that has ended.
func (r *runner) restart(n *cluster.Node) error {
	if n.Dead() || n.Daemon.Running() {
		return nil
	}
	return r.cluster.StartDaemon(n)
}

// lose kills all that runs on a node.
func (r *runner) lose(n *cluster.Node) error {
	r.judge.excuse(n.Name, "its node was lost")
	for _, pid := range n.Ranks() {
		r.judge.killing(pid, "its node was lost")
	}
	return r.cluster.Kill(n)
}

// revive brings a lost node back, empty, as a spare.
func (r *runner) revive(i int) error {
	if err := r.cluster.Revive(r.cluster.Nodes[i]); err != nil {
		return err
	}
	return r.relaunch(i)
}

// heal ends what spoil began; a dead node's silence stays.
func (r *runner) heal() error {
	r.network.Heal()
	for _, n := range r.cluster.Nodes {
		if n.Dead() {
			if err := r.network.Isolate(n.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// spoil begins a fault of the network.
func (r *runner) spoil(f Fault) (text string, err error) {
	a := r.cluster.Nodes[int(f.Pick)%len(nodes)].Name
	b := r.cluster.Nodes[(int(f.Pick)+1+int(f.Other)%(len(nodes)-1))%len(nodes)].Name
	seconds := f.For.Seconds()
	switch f.Kind {
	case netPair:
		return fmt.Sprintf("%s and %s do not hear each other for %.1f s", a, b, seconds), r.network.Cut(a, b)
	case netOneWay:
		return fmt.Sprintf("%s does not hear %s for %.1f s", b, a, seconds), r.network.CutOneWay(a, b)
	case netIsolate:
		r.judge.excuse(a, "its node heard nobody")
		return fmt.Sprintf("%s hears nobody for %.1f s", a, seconds), r.network.Isolate(a)
	}
	loss, delay := 0.1, time.Duration(0)
	if f.Kind == netDelay {
		loss, delay = 0, 50*time.Millisecond
	}
	for _, other := range r.cluster.Names() {
		if other != a && err == nil {
			if err = r.network.Shape(a, other, loss, delay, delay); err == nil {
				err = r.network.Shape(other, a, loss, delay, delay)
			}
		}
	}
	return fmt.Sprintf("%s: loss %.2f, delay %v for %.1f s", a, loss, delay, seconds), err
}

// beginHeir kills a rank between two steps while nobody leads for a second, so that its replacement on the same node, which inherits
// the dead process's memory, is there before the survivors have come to rest. A twin of the rank may hardly get the processor.
func (r *runner) beginHeir(ctx context.Context, f Fault) (act, error) {
	leader := r.cluster.Node(r.leader())
	rank := int(f.Pick) % r.lay.World
	for range r.lay.World { // its own daemon must be there, or nobody takes the replacement in
		if node, _ := r.rankOf(rank); node != leader.Name {
			break
		}
		rank = (rank + 1) % r.lay.World
	}
	node, pid := r.rankOf(rank)
	twin := slices.IndexFunc(r.lay.Groups, func(g int) bool { return g == r.lay.Groups[rank] })
	if twin == rank {
		twin = rank + 1 + slices.Index(r.lay.Groups[rank+1:], r.lay.Groups[rank])
	}
	twinNode, twinPID := r.rankOf(twin)
	text := fmt.Sprintf("heir of rank %d (pid %d on %s), daemon of %s stopped %.1f s", rank, pid, node, leader.Name, f.For.Seconds())
	began := time.Now()
	r.rec.note("FAULT     " + text)
	leader.Daemon.Signal(syscall.SIGSTOP)
	err := r.pause(ctx, f.Lead)
	if f.Rest > 0 {
		text += fmt.Sprintf(", rank %d (pid %d on %s) starved", twin, twinPID, twinNode)
		signal(twinPID, syscall.SIGSTOP)
	}
	r.kill(pid, heir)
	if err == nil {
		err = r.pause(ctx, time.Until(began.Add(f.For)))
	}
	leader.Daemon.Signal(syscall.SIGCONT)
	if f.Rest > 0 {
		if err == nil { // the replacement comes first
			err = r.pause(ctx, f.Rest/2)
		}
		if e := r.starve(ctx, twinPID, f); err == nil {
			err = e
		}
	}
	return act{text: text}, err
}

// starve lets a survivor run until it says that its epoch is over, and stops it again: it is at rest then, and does nothing of what it is
// told next for longer than a leader waits for it.
func (r *runner) starve(ctx context.Context, pid int, f Fault) error {
	trapped := r.judge.trap(pid, f.Look)
	signal(pid, syscall.SIGCONT)
	t := time.NewTimer(time.Second)
	defer t.Stop()
	var err error
	select {
	case <-trapped:
		err = r.pause(ctx, f.Rest)
	case <-t.C: // it was at rest before
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	r.judge.trap(0, 0)
	signal(pid, syscall.SIGCONT)
	return err
}

// signal reaches one process; one that has ended already is as good. No number is below 2 but by a mistake, and would mean many.
func signal(pid int, sig syscall.Signal) {
	if pid > 1 {
		_ = syscall.Kill(pid, sig)
	}
}

// kill ends a rank's process.
func (r *runner) kill(pid int, why string) {
	done := false
	r.journal.View(func() {
		for _, s := range r.journal.Ranks {
			done = done || s.PID == pid && s.Done
		}
	})
	if done { // its job may have finished while the fault waited for its moment: how it ends then is its program's own, and no loss
		return
	}
	r.judge.killing(pid, why)
	signal(pid, syscall.SIGKILL)
}

// relaunch starts a node's launcher again, as a spare; after the job's end that would begin a new one.
func (r *runner) relaunch(i int) error {
	n := r.cluster.Nodes[i]
	done := false
	r.journal.View(func() { done = r.allDoneLocked() })
	if done || n.Dead() || n.Launcher.Running() {
		return nil
	}
	return r.launch(i, true)
}

// rankOf is where a rank runs.
func (r *runner) rankOf(rank int) (node string, pid int) {
	r.journal.View(func() {
		if s := r.journal.Ranks[rank]; s != nil {
			node, pid = s.Node, s.PID
		}
	})
	return node, pid
}

// role is the node that a fault means.
func (r *runner) role(f Fault) string {
	pick := func(list []string) string { return list[int(f.Pick)%len(list)] }
	switch f.Kind {
	case leaderKill, leaderStop:
		return r.leader()
	case mirrorKill, falling:
		var list []string
		r.journal.View(func() {
			for _, name := range r.cluster.Names() {
				runs := false
				for _, s := range r.journal.Ranks {
					runs = runs || s.Node == name
				}
				holds := false
				for _, s := range r.journal.Status {
					if j := s.Job(r.job.Name); j != nil {
						holds = holds || slices.ContainsFunc(j.Holdings, func(h cluster.Holding) bool { return h.Node == name })
					}
				}
				if holds && !runs {
					list = append(list, name)
				}
			}
		})
		if len(list) == 0 { // a node that runs ranks may hold commits up while its daemon is away: it is no mirror
			return ""
		}
		return pick(list)
	}
	return pick(r.cluster.Names())
}

// leader is who leads, as the nodes see it; the first node if nobody knows.
func (r *runner) leader() (name string) {
	name = nodes[0]
	r.journal.View(func() {
		term := uint64(0)
		for _, s := range r.journal.Status {
			if s != nil && r.cluster.Node(s.Leader) != nil && s.Term >= term {
				name, term = s.Leader, s.Term
			}
		}
	})
	return name
}

// checkMoved compares what was logged as durable with the directory that the configurations name.
func (r *runner) checkMoved(since time.Time) {
	r.judge.mu.Lock()
	newest := r.judge.durable
	r.judge.mu.Unlock()
	if n := r.durable.markers(); n == 0 && newest.After(since.Add(time.Second)) {
		r.rec.violated(violation{disk, fmt.Sprintf("generations count as durable, and %s has none: the directory was moved away %.1f s ago", r.durable.dir, time.Since(since).Seconds())})
	}
}

// watchCommits sees that commits go on, fault or no fault: in time while ranks train, and before the time for the longest fault and the
// recovery from it is over in any case.
func (r *runner) watchCommits(ctx context.Context) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var from, at uint64
	since := r.clock.now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_, live, committed := r.now()
		waited := r.clock.now() - since
		still := func(what string) {
			r.rec.violated(violation{standstill, fmt.Sprintf("no commit after step %d of %s for %.0f s, while ranks %s: %s", committed, r.job.Name, waited.Seconds(), what, r.waiting())})
			r.keepStatus()
		}
		switch {
		case committed != from || live < at:
			from, at, since = committed, live, r.clock.now()
		case committed >= uint64(r.lay.Steps):
		case live > at+10 && waited > r.bounds.commits:
			still(fmt.Sprintf("trained from step %d to %d", at, live))
			return
		case waited > r.bounds.commits+longest+r.bounds.recovery(nodeLoss):
			still(fmt.Sprintf("stand at step %d", live))
			return
		}
	}
}

// waiting is what status says that the job waits for, as its leader sees it.
func (r *runner) waiting() (text string) {
	text = "no leader says what for"
	r.journal.View(func() {
		for name, s := range r.journal.Status {
			if j := s.Job(r.job.Name); j != nil && s.Leader == name {
				text = fmt.Sprintf("the leader %s waits for %q", name, j.Waiting)
			}
		}
	})
	return text
}

// keepStatus writes every daemon's newest status, and what all slot words say, beside the logs. The first state counts.
func (r *runner) keepStatus() {
	file := filepath.Join(r.dir, "words.txt")
	if _, err := os.Stat(file); err == nil {
		return
	}
	_ = os.WriteFile(file, []byte(r.wordsText()), 0o600)
	r.journal.View(func() {
		for name, s := range r.journal.Status {
			if b, err := json.MarshalIndent(s, "", "  "); err == nil {
				_ = os.WriteFile(filepath.Join(r.dir, "status-"+name+".json"), b, 0o600)
			}
		}
	})
}

// leftOver ends the cluster as an operator would, and names what does not go.
func (r *runner) leftOver(finished bool) (list []string) {
	if finished {
		r.cluster.Stop(20 * time.Second)
	}
	for _, n := range r.cluster.Nodes {
		for _, p := range []*cluster.Process{n.Launcher, n.Daemon, n.Keeper} {
			if p != nil && p.Running() && finished {
				list = append(list, p.Name+" does not end on SIGTERM")
			}
			p.Kill()
		}
	}
	if !finished {
		return list
	}
	for _, pid := range cluster.Children(os.Getpid()) {
		cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if len(cmd) > 0 { // a zombie holds nothing and has none
			list = append(list, fmt.Sprintf("process %d: %s", pid, strings.ReplaceAll(string(cmd), "\x00", " ")))
		}
	}
	if b, err := os.ReadFile("/proc/net/unix"); err == nil {
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, r.dir+"/") {
				list = append(list, "socket "+strings.TrimSpace(line))
			}
		}
	}
	return list
}
