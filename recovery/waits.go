package recovery

import (
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/replica"
)

// WaitKind names one thing that a job can wait for: a row of Waits.
type WaitKind uint8

// The waits, in the order in which a job meets them.
const (
	AwaitProcess  WaitKind = iota // a node that offers a process
	AwaitLauncher                 // anybody who works at a job that never opened
	AwaitStart                    // the node that a rank was offered to
	AwaitAttach                   // a process that runs
	AwaitSeal                     // a process that makes its initial state
	AwaitRegions                  // daemons that compare a disputed state
	AwaitAck                      // a node that has not acknowledged the fence
	AwaitSettle                   // a node of which something is still being copied
	AwaitJoin                     // a new process on its way to rp_join
	AwaitSurvivor                 // a survivor on its way to rp_join
	AwaitEnd                      // a process on its way out
	AwaitCapture                  // survivors that were told to capture
	AwaitHolder                   // a recorded holder that is not proved lost
	AwaitDisk                     // a search of the durable tier
	AwaitDaemon                   // the daemon of a rank that is to load
	AwaitParts                    // parts on their way from memory to a rank's arena
	AwaitRead                     // parts on their way from the durable tier
	AwaitGoodCopy                 // a copy that is what its digest says
	AwaitLoad                     // a process in rp_load
	AwaitMirror                   // a mirror of what was loaded
	AwaitStep                     // a rank's next step
	AwaitPeers                    // the fault that explains why a rank stopped
	AwaitNode                     // the daemon of a node whose ranks train
	AwaitArena                    // an arena that its process alone still has
	AwaitMeeting                  // the node's word for a rank at the rendezvous
	AwaitBring                    // what a node keeps of the rendezvous
	AwaitGrowth                   // the other ranks of a growth
	AwaitGrown                    // the grown state of a rank
	AwaitSlot                     // a slot that a durable write holds
	AwaitCommit                   // the last commit of a job whose ranks have left
	AwaitWrite                    // its last durable write
	AwaitKept                     // that of a job that was stopped
	AwaitReturn                   // somebody who goes on with a job that was stopped
	AwaitReadBack                 // durable generations that nobody has read back
	waitKinds
)

// WaitRule is one row: what is awaited, who ends the wait and when, what comes of it, and how it is said.
type WaitRule struct {
	Phases []replica.JobPhase
	For    string
	Judge  string // who ends it
	Bound  Bound
	Since  string            // from when the bound counts
	Then   string            // what comes of it
	Says   string            // with {rank}, {process}, {pid}, {node}, {since}, {what}
	fault  replica.FaultKind // that the leader makes of it when the bound is over; 0: somebody else ends the wait
	node   bool              // the fault names the node, not the rank
}

// Bound is how long a wait may last.
type Bound struct {
	Terms []Term        // of the configuration's delays
	Fixed time.Duration // besides
	Grows string        // what the node, or the job's own history, adds; empty: nothing
}

// Term is a multiple of one of the configuration's delays.
type Term struct {
	Times int
	Delay Delay
}

// Delay is a delay of the configuration, by its name there.
type Delay string

// The delays that bounds are made of.
const (
	settle      Delay = "settle"
	ack         Delay = "ack"
	claim       Delay = "claim"
	start       Delay = "start"
	holderGrace Delay = "holder_grace"
	resumeGrace Delay = "resume_grace"
	daemonGrace Delay = "daemon_grace"
	abandoned   Delay = "abandoned"
)

func (d Delay) of(t Timing) time.Duration {
	switch d {
	case settle:
		return t.Settle
	case ack:
		return t.Ack
	case claim:
		return t.Claim
	case start:
		return t.Start
	case holderGrace:
		return t.HolderGrace
	case resumeGrace:
		return t.ResumeGrace
	case daemonGrace:
		return t.DaemonGrace
	case abandoned:
		return t.Abandoned
	}
	panic("no delay " + string(d))
}

func sum(delays ...Delay) Bound {
	var b Bound
	for _, d := range delays {
		b.Terms = append(b.Terms, Term{1, d})
	}
	return b
}

func many(n int, d Delay) Bound { return Bound{Terms: []Term{{n, d}}} }

func fixed(d time.Duration) Bound { return Bound{Fixed: d} }

func (b Bound) and(grows string) Bound {
	b.Grows = grows
	return b
}

// Of is the bound by a configuration, without what grows; ok is false where the wait has none.
func (b Bound) Of(t Timing) (d time.Duration, ok bool) {
	d = b.Fixed
	for _, term := range b.Terms {
		d += time.Duration(term.Times) * term.Delay.of(t)
	}
	return d, b.Fixed > 0 || len(b.Terms) > 0
}

func (b Bound) String() string {
	var out []string
	for _, t := range b.Terms {
		if t.Times == 1 {
			out = append(out, string(t.Delay))
		} else {
			out = append(out, fmt.Sprintf("%d x %s", t.Times, t.Delay))
		}
	}
	if b.Fixed > 0 {
		out = append(out, b.Fixed.String())
	}
	if b.Grows != "" {
		out = append(out, b.Grows)
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, " + ")
}

const (
	bySize = "what the bytes take at 64 MiB/s"
	// PeersLost is how long a rank may have stopped under an open epoch before its node makes a fault of that: what really failed is found sooner.
	PeersLost = 5 * time.Second
	// SlotWait is how long, and SlotSteps for how many steps, a durable write may keep a slot that a commit lacks: whichever is over first.
	SlotWait  = 2 * time.Second
	SlotSteps = 10
	// unobserved is how many times daemon_grace the daemon of a node whose ranks train may be away.
	unobserved = 10
	// liesAfter is how long a receiver may be sent wrong bytes by all holders, who read their copies again meanwhile.
	liesAfter = 5 * time.Second
	// stands is how long a rank that is behind stands still before it is named; the bound is its node's.
	stands = 10 * time.Second
)

// saysHalted replaces how a wait for a process is said where a signal has stopped the process.
const saysHalted = "rank {rank}: process {pid} on node {node} is stopped by a signal (kill -CONT {pid})"

// Waits is everything that a job waits for: the rules take bounds, texts and faults from here, and docs/protocol.md has a copy.
var Waits = [waitKinds]WaitRule{
	AwaitProcess: {Phases: opens, For: "a node that offers a process for a rank", Judge: "the operator", Since: "the vacancy",
		Then: "launchers are told after `claim`, and each time that has doubled", Says: "rank {rank}: no node has a process for it"},
	AwaitLauncher: {Phases: []replica.JobPhase{replica.Opening}, For: "a launcher or a process of the job", Judge: "leader", Bound: sum(abandoned), Since: "the last one went",
		Then: "the job ends", Says: "no launcher and no process of the job is there"},
	AwaitStart: {Phases: opens, For: "the node that a rank was offered to", Judge: "leader", Bound: sum(claim), Since: "the offer",
		Then: "another node is offered the rank", Says: "rank {rank}: offered to node {node} {since} ago, which has not started a process yet"},
	AwaitAttach: {Phases: opens, For: "a process that was started", Judge: "its node, after `start`; then the leader", Bound: sum(start, claim), Since: "its start",
		Then: "the process is killed, the rank offered again; not where the job begins and no other rank has attached", Says: "rank {rank}: {process} on node {node} has run {since} and has not called resume() yet (rp_attach)"},
	AwaitSeal: {Phases: []replica.JobPhase{replica.Opening}, For: "the initial state of a rank that has attached", Judge: "leader", Bound: sum(start).and("with `--from` what the bytes take at 64 MiB/s"), Since: "all have attached, and one of them last got on",
		Then: "hang", fault: replica.Hang, Says: "rank {rank}: process {pid} on node {node} attached {since} ago and has not sealed its initial state yet"},
	AwaitRegions: {Phases: opens, For: "two daemons that compare a disputed state", Judge: "leader", Bound: fixed(time.Minute), Since: "the question",
		Then: "the job ends without the regions' names", Says: "node {node}: has not said yet what the regions of {what} hash to"},
	AwaitAck: {Phases: opens, For: "a node's acknowledgement of the fence", Judge: "leader", Bound: sum(ack), Since: "it is missed; under a new leader since the fence by the nodes' word, and not before it has led for `ack`/3",
		Then: "silent", fault: replica.Silent, node: true, Says: "node {node}: no acknowledgement of the fence of epoch {what} for {since}"},
	AwaitSettle: {Phases: opens, For: "a node that has acknowledged and still copies", Judge: "leader", Bound: sum(ack, settle).and("what its copies take, by its word"), Since: "its newest word",
		Then: "silent", fault: replica.Silent, node: true, Says: "node {node}: copies of its ranks are still under way"},
	AwaitJoin: {Phases: opens, For: "a new process in rp_join", Judge: "leader", Bound: sum(start), Since: "it last got on",
		Then: "hang", fault: replica.Hang, Says: "rank {rank}: process {pid} on node {node} has attached and has been on its way to rp_join for {since}"},
	AwaitSurvivor: {Phases: restings, For: "a survivor in rp_join", Judge: "leader", Bound: sum(settle, ack).and("what its node's copies take"), Since: "the fault, or it last got on",
		Then: "hang", fault: replica.Hang, Says: "rank {rank}: process {pid} on node {node} runs on, {since} after the fault: it has not called resume() again (rp_join)"},
	AwaitEnd: {Phases: []replica.JobPhase{replica.Opening, replica.Closed, replica.Planned}, For: "a process on its way out (rp_ending)", Judge: "leader", Bound: sum(settle, ack).and("the time that it has asked for"), Since: "its word",
		Then: "hang", fault: replica.Hang, Says: "rank {rank}: process {pid} on node {node} has been on its way out for {since}"},
	AwaitCapture: {Phases: []replica.JobPhase{replica.Closed}, For: "survivors that were told to capture their step", Judge: "leader", Bound: fixed(500 * time.Millisecond), Since: "the order",
		Then: "planned without it", Says: "the survivors: told to capture {what}"},
	AwaitHolder: {Phases: opens, For: "a recorded holder of what memory lacks, not proved lost", Judge: "leader", Bound: sum(holderGrace), Since: "it is missed",
		Then: "planned without it", Says: "node {node}: recorded as a holder of what memory lacks, not proved lost, and away for {since}"},
	AwaitDisk: {Phases: opens, For: "a search of the durable tier", Judge: "leader", Bound: sum(holderGrace), Since: "the question",
		Then: "asked again, and each 5 s where it can't be read", Says: "the durable tier: {what}"},
	AwaitDaemon: {Phases: []replica.JobPhase{replica.Planned}, For: "the daemon of a rank that is to load", Judge: "leader", Bound: sum(ack), Since: "its link was lost",
		Then: "silent", fault: replica.Silent, node: true, Says: "node {node}: its daemon has been away for {since}, and rank {rank} can't load {what} without it"},
	AwaitParts: {Phases: []replica.JobPhase{replica.Planned}, For: "a rank's parts, from memory", Judge: "leader", Bound: sum(settle, ack).and(bySize), Since: "a byte last came",
		Then: "health, where another node offers a process; else exception", fault: replica.Exception, Says: "rank {rank}: node {node} has not got its parts of {what} yet; none of them has moved for {since}"},
	AwaitRead: {Phases: []replica.JobPhase{replica.Planned}, For: "a rank's parts, from the durable tier", Judge: "leader", Bound: sum(start).and(bySize), Since: "a byte last came",
		Then: "as above", fault: replica.Exception, Says: "rank {rank}: node {node} has not read its parts of {what} yet; none of them has moved for {since}"},
	AwaitGoodCopy: {Phases: []replica.JobPhase{replica.Planned}, For: "one good copy of a part", Judge: "leader", Bound: fixed(liesAfter).and(bySize), Since: "all holders have sent wrong bytes",
		Then: "found by one node: its rank's fault, as above; by two: these copies don't count for 10 x `holder_grace`", fault: replica.Exception, Says: "node {node}: what every holder sends of {what} fails its digest, for {since}"},
	AwaitLoad: {Phases: []replica.JobPhase{replica.Planned}, For: "a process in rp_load", Judge: "leader", Bound: sum(settle, ack).and(bySize), Since: "it was told to load",
		Then: "hang", fault: replica.Hang, Says: "rank {rank}: process {pid} on node {node} was told {since} ago to load {what} and has not done so (rp_load, rp_ready)"},
	AwaitMirror: {Phases: []replica.JobPhase{replica.Planned}, For: "mirrors of what was loaded", Judge: "leader", Bound: sum(resumeGrace), Since: "the last rank loaded",
		Then: "the job resumes with what there is", Says: "node {node}: has no copy of {what} yet, {since} after the last rank loaded"},
	AwaitStep: {Phases: []replica.JobPhase{replica.Open}, For: "the ranks furthest behind", Judge: "its node finds it still; the leader, once all of them are",
		Bound: Bound{Grows: "`hang_factor` x its longest step, `hang_least` at least; `hang_first` before it has made two"}, Since: "its step word last changed",
		Then: "hang", fault: replica.Hang, Says: "rank {rank}: process {pid} on node {node} stands still in {what} for {since}, and the others wait for it (kill -9 {pid} has it started anew)"},
	AwaitPeers: {Phases: []replica.JobPhase{replica.Open}, For: "the fault that explains why a rank stopped", Judge: "its node", Bound: fixed(PeersLost), Since: "it stopped",
		Then: "exception", Says: "rank {rank}: process {pid} on node {node} has stopped under an open epoch, and no fault explains it"},
	AwaitNode: {Phases: []replica.JobPhase{replica.Open}, For: "the daemon of a node whose ranks train", Judge: "leader", Bound: many(unobserved, daemonGrace), Since: "its link was lost",
		Then: "silent, where other nodes offer processes for its ranks, or these are all that the others wait for", fault: replica.Silent, node: true,
		Says: "node {node}: its daemon has been away for {since}: ranks {what} train on, and nothing can be committed without it"},
	AwaitArena: {Phases: []replica.JobPhase{replica.Opening, replica.Open, replica.Closed, replica.Planned}, For: "an arena that daemon and keeper lost together, and that its process still has", Judge: "its node, which links to no leader meanwhile", Bound: Bound{Grows: "`hang_first`"}, Since: "the daemon's start",
		Then: "the process is killed, and its rank reported dead", Says: "node {node}: takes its arenas back"},
	AwaitMeeting: {Phases: gathers, For: "the word of a rank's node at the rendezvous", Judge: "leader", Bound: sum(ack), Since: "the rank was first put off",
		Then: "hang", fault: replica.Hang, Says: "rank {rank}: put off at the rendezvous for {since}: node {node} is in another life than the one that claimed it"},
	AwaitBring: {Phases: gathers, For: "what a node keeps of the rendezvous", Judge: "leader", Bound: sum(ack), Since: "a rank was first put off for it",
		Then: "silent", fault: replica.Silent, node: true, Says: "node {node}: has not brought what its ranks left at the rendezvous, for {since}"},
	AwaitGrowth: {Phases: []replica.JobPhase{replica.Open}, For: "the other ranks of a growth, and their nodes' memory for it", Judge: "leader", Bound: sum(settle, ack).and(bySize), Since: "a rank last asked, or its node had the memory",
		Then: "the growth is refused, and the ranks go on with the regions that they have", Says: "{what}: rank {rank} on node {node} {process}, for {since}"},
	AwaitGrown: {Phases: []replica.JobPhase{replica.Opening}, For: "the step that a rank seals with its new regions", Judge: "leader", Bound: sum(settle, ack).and(bySize), Since: "it last got on",
		Then: "hang; the growth is taken back", fault: replica.Hang, Says: "rank {rank}: process {pid} on node {node} has not sealed {what} with its new regions for {since} (rp_join, rp_seal_initial)"},
	AwaitSlot: {Phases: []replica.JobPhase{replica.Open}, For: "a slot that a durable write holds and the next commit lacks", Judge: "its node", Bound: fixed(SlotWait), Since: "the commit lacked it",
		Then: "the slot is given up, also where 10 steps were made before, and a later generation is written", Says: "node {node}: its durable write of {what} holds the slot that the next commit lacks: commits are {since} late"},
	AwaitCommit: {Phases: []replica.JobPhase{replica.Open}, For: "the last commit, when all ranks have left", Judge: "leader", Bound: fixed(partingGrace).and("until three times the longest time between commits"), Since: "the last rank left",
		Then: "the job ends without it", Says: "all ranks have left, and step {what} is to be committed"},
	AwaitWrite: {Phases: []replica.JobPhase{replica.Open}, For: "the last durable write, likewise", Judge: "leader", Bound: sum(abandoned).and("until a write that is under way is over"), Since: "the last rank left",
		Then: "the job ends, and says that the step is not on disk", Says: "all ranks have left, and step {what} is to be written to the durable tier"},
	AwaitKept: {Phases: []replica.JobPhase{replica.Closed}, For: "the last durable write of a job that was stopped", Judge: "leader", Bound: sum(abandoned).and("until a write that is under way is over"), Since: "the stop",
		Then: "the job ends without it", Says: "the job was stopped, and step {what} is to be written to the durable tier"},
	AwaitReturn: {Phases: []replica.JobPhase{replica.Closed}, For: "somebody who goes on with a job that was stopped", Judge: "leader", Bound: sum(abandoned), Since: "the stop",
		Then: "the job ends, and its memory is freed", Says: "the job was stopped {since} ago and stays in memory: the same replicad run goes on with it"},
	AwaitReadBack: {Phases: []replica.JobPhase{replica.Open}, For: "one of two durable generations that nobody has read back", Judge: "leader", Bound: fixed(unreadSaid), Since: "there are two",
		Then: "launchers are told, and each time that has doubled; the next durable write waits", Says: "durable writes wait: steps {what} are written, and none of them was read back for {since}"},
}

var (
	opens    = []replica.JobPhase{replica.Opening, replica.Closed}
	restings = []replica.JobPhase{replica.Closed, replica.Planned}
	gathers  = []replica.JobPhase{replica.Opening, replica.Planned, replica.Open}
)
