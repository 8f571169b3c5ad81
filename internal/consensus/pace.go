package consensus

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

const (
	paceTick  = 25 * time.Millisecond // how often a voter looks how late it comes to run, on a busy machine
	calmTick  = 8 * paceTick          // and on a calm one, where each look costs more than it finds
	paceSlots = 20                    // of a second each: a busy spell is over once none of them has it
	paceMost  = 16                    // times the configured timeouts; beyond it a dead leader would be missed for too long
	standSlot = 10                    // seconds in which who led last stands before the others
	mostLate  = 2 * time.Second       // of lateness, at most, that the watchdog of a disk allows for
)

// pace is how long a voter waits for a leader: on a machine whose cores are all taken a leader's words come late, and a voter that stood for
// election because of that would only make it worse. It follows how late this process' own goroutines come to run, which is what delays its
// reading of those words. It is the rule alone: the time is passed in.
type pace struct {
	heartbeat, election time.Duration // as configured: the least
	lease               time.Duration // as configured
	late                [paceSlots]time.Duration
	second              int64 // of the newest slot
	leads               bool  // its heartbeats go out as often as the lease needs
	stands              int64 // the second until which this node stands first
}

// ran notes that a goroutine which was to run at once came to run so late.
func (p *pace) ran(late time.Duration, now time.Duration) {
	p.turn(now)
	at := &p.late[p.second%paceSlots]
	*at = max(*at, late)
}

func (p *pace) turn(now time.Duration) {
	second := seconds(now)
	for ; p.second < second; p.second++ {
		if second-p.second > paceSlots {
			p.second = second - paceSlots
		}
		p.late[(p.second+1)%paceSlots] = 0
	}
}

func seconds(now time.Duration) int64 { return int64(now / time.Second) }

// worst is the latest of the last paceSlots seconds but one: a process that was stopped once, or moved to another machine, is no sign of taken
// cores.
func (p *pace) worst() time.Duration {
	var first, second time.Duration
	for _, l := range p.late {
		if l > first {
			first, second = l, first
		} else {
			second = max(second, l)
		}
	}
	return second
}

// lost notes that this node led and does not any more. It is the one that the others still take for their leader, whom alone they give a vote
// at once, so it stands first: while it waited as long as they do nobody would lead.
func (p *pace) lost(now time.Duration) {
	if p.leads {
		p.leads, p.stands = false, seconds(now)+standSlot
	}
}

// led notes that there is a leader, this node or another.
func (p *pace) led(self bool) { p.leads, p.stands = self, 0 }

// timeouts are those to wait now. They are doubled as often as it takes to be four times what was late, so that they seldom change.
// A leader sends heartbeats in a tenth to a fifth of its own. While no job is there, and the machine is calm, they come half as often.
// They are most of what an idle daemon does. At the latest the second of two still comes within the lease.
func (p *pace) timeouts(now time.Duration, idle bool) (heartbeat, election time.Duration) {
	p.turn(now)
	times := time.Duration(1)
	for times < paceMost && p.worst() > p.heartbeat*times/4 {
		times *= 2
	}
	switch {
	case p.leads && idle && p.calm():
		heartbeat = max(p.heartbeat, min(2*p.heartbeat, 2*p.lease))
	case p.leads || seconds(now) < p.stands:
		heartbeat = p.heartbeat
	default:
		heartbeat = p.heartbeat * times
	}
	return heartbeat, max(p.election*times, heartbeat)
}

// calm reports whether this process came to run in time.
func (p *pace) calm() bool { return p.worst() <= p.heartbeat/8 }

// keepPace has raft wait as long as the rule says, until Close.
func (n *Node) keepPace() {
	tick := paceTick
	for {
		due := time.Now().Add(tick)
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(tick):
		}
		tick = n.adjust(time.Since(due))
	}
}

// idle reports whether no job is there, as far as this node knows.
func idle(v lock.View) bool {
	for _, j := range v.Jobs {
		if j.Phase != replica.Ended {
			return false
		}
	}
	return true
}

// adjust notes how late a goroutine came to run, and tells raft where that changes how long to wait. It returns when to look again.
func (n *Node) adjust(late time.Duration) (next time.Duration) {
	now := time.Since(n.began)
	n.paceMu.Lock()
	defer n.paceMu.Unlock()
	n.pace.ran(late, now)
	n.late.Store(int64(n.pace.worst()))
	heartbeat, election := n.pace.timeouts(now, idle(n.State()))
	if next = paceTick; n.pace.calm() {
		next = calmTick
	}
	is := n.raft.ReloadableConfig()
	if is.HeartbeatTimeout == heartbeat && is.ElectionTimeout == election {
		return next
	}
	is.HeartbeatTimeout, is.ElectionTimeout = heartbeat, election
	if err := n.raft.ReloadConfig(is); err != nil {
		n.cfg.Logger.Error("raft's timeouts stay as they are", "heartbeat", heartbeat, "error", err)
	}
	return next
}

// Late is how late a goroutine of this process came to run at the worst, within the last 20 s.
func (n *Node) Late() time.Duration { return time.Duration(n.late.Load()) }

// sayStarved says why leadership was lost, where this node's processes were not scheduled: no peer and no network is to blame.
func (n *Node) sayStarved() {
	if late := n.Late(); late > n.cfg.Lease/2 {
		n.cfg.Logger.Warn(fmt.Sprintf("this node led, and lost that: its daemon waited for a core for up to %v: other processes take all of them: give them fewer threads, or the daemon a higher priority (Nice=-10 in its unit)", late.Round(time.Millisecond)), "lease", n.cfg.Lease)
	}
}
