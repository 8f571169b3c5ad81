package chaos

import (
	"math/rand/v2"
	"slices"
	"time"
)

// The kinds of faults. A schedule is drawn from them; what a role means (the leader, a mirror) is looked up when its time has come.
const (
	rankKill     = "rank"          // SIGKILL a rank
	rankStop     = "rank-stop"     // SIGSTOP it for a while
	slowStart    = "slow"          // SIGKILL a rank; its next process takes its time before it attaches
	heir         = "heir"          // SIGKILL a rank while the leader's daemon is stopped, and starve a twin
	launcherKill = "launcher"      // SIGKILL a launcher, which ends its ranks; another one comes a while later
	launcherStop = "launcher-stop" // SIGSTOP it for a while
	daemonKill   = "daemon"        // SIGKILL a daemon; it comes back a while later
	daemonStop   = "daemon-stop"   // SIGSTOP it for a while
	leaderKill   = "leader"        // as daemon, of the node that leads
	leaderStop   = "leader-stop"   // as daemon-stop, of the node that leads
	mirrorKill   = "mirror"        // as daemon, of a node that holds parts and runs no rank; it stays away for longer
	falling      = "leaders"       // as mirror, while one leader after the other falls: what is due then is due in time
	nodeLoss     = "node"          // SIGKILL everything on a node and silence its addresses; it comes back empty
	emptied      = "voter-emptied" // as node, of a voter, whose state_dir is emptied too; it is started again with --bootstrap
	diskFull     = "disk-full"     // the durable directory has no room
	diskReadOnly = "disk-readonly" // nothing may be written there
	diskMoved    = "disk-moved"    // another directory lies in its place
	netPair      = "net-pair"      // two nodes do not hear each other
	netOneWay    = "net-oneway"    // one node does not hear another
	netIsolate   = "net-isolate"   // a node hears nobody
	netLoss      = "net-loss"      // a node's packets are lost, one in ten
	netDelay     = "net-delay"     // they come late

	busy = "busy" // forty processes take every core for a while; only where it is asked for, since all else is slow meanwhile

	keeperKill  = "keeper"       // SIGKILL a keeper beside its daemon; it is started again a while later
	keeperLater = "keeper-later" // the same; then the daemon is restarted, then a rank dies

	// Those that wait for a moment that slot words show.
	pushDaemon    = "push-daemon"    // SIGKILL the daemon of a mirror while a group's part comes in
	pushRank      = "push-rank"      // SIGKILL the rank whose part that is
	captureDaemon = "capture-daemon" // SIGKILL the daemon of a rank that copies its state into its arena
	captureRank   = "capture-rank"   // SIGKILL that rank
	restoreDaemon = "restore-daemon" // lose a node, and SIGKILL a daemon that fetches what the plan needs
	restoreRank   = "restore-rank"   // lose a node, and SIGKILL the rank for which that is fetched
	openingRank   = "opening-rank"   // SIGKILL a rank while first states are pushed, its own or another's, before the job has opened
)

// Known are the kinds that can be asked for.
func Known() []string {
	return []string{rankKill, rankStop, slowStart, heir, launcherKill, launcherStop, daemonKill, daemonStop, leaderKill, leaderStop, mirrorKill, falling, nodeLoss, emptied,
		diskFull, diskReadOnly, diskMoved, netPair, netOneWay, netIsolate, netLoss, netDelay, keeperKill, keeperLater,
		pushDaemon, pushRank, captureDaemon, captureRank, restoreDaemon, restoreRank, openingRank, busy}
}

// usual are the kinds that are drawn from where none are asked for.
func usual() []string {
	return slices.DeleteFunc(Known(), func(k string) bool { return k == busy })
}

// A Fault is one entry of a schedule.
type Fault struct {
	Kind  string
	Gap   time.Duration // from a whole cluster to the injection, or from the first of two to the second
	Pick  uint32        // which of those that can be meant
	Other uint32        // the second of a pair
	For   time.Duration // how long it lasts
	Lead  time.Duration // heir: from the leader's pause to the kill
	Rest  time.Duration // heir: how long a twin that came to rest is stopped; 0: it is not
	Look  time.Duration // heir: from its word that it rests to that
	Pair  *Fault        // injected while this one lasts
	Third *Fault        // injected while the cluster recovers from these
}

// lasts are the shortest and the longest time of a kind.
var lasts = map[string][2]time.Duration{
	rankStop: {100 * time.Millisecond, 4 * time.Second}, slowStart: {500 * time.Millisecond, 4 * time.Second}, heir: {900 * time.Millisecond, 1400 * time.Millisecond},
	launcherKill: {100 * time.Millisecond, 3 * time.Second}, launcherStop: {200 * time.Millisecond, 4 * time.Second},
	daemonKill: {100 * time.Millisecond, 5 * time.Second}, daemonStop: {100 * time.Millisecond, 5 * time.Second},
	leaderKill: {100 * time.Millisecond, 5 * time.Second}, leaderStop: {100 * time.Millisecond, 5 * time.Second},
	mirrorKill: {time.Second, 25 * time.Second}, falling: {12 * time.Second, 24 * time.Second}, nodeLoss: {1500 * time.Millisecond, 5 * time.Second}, emptied: {500 * time.Millisecond, 5 * time.Second},
	diskFull: {2 * time.Second, 6 * time.Second}, diskReadOnly: {2 * time.Second, 6 * time.Second}, diskMoved: {2 * time.Second, 6 * time.Second},
	netPair: {500 * time.Millisecond, 25 * time.Second}, netOneWay: {500 * time.Millisecond, 25 * time.Second}, netIsolate: {300 * time.Millisecond, 6 * time.Second},
	netLoss: {time.Second, 5 * time.Second}, netDelay: {time.Second, 5 * time.Second},
	busy:       {10 * time.Second, 20 * time.Second},
	keeperKill: {100 * time.Millisecond, 3 * time.Second}, keeperLater: {100 * time.Millisecond, 3 * time.Second},
	pushDaemon: {100 * time.Millisecond, 5 * time.Second}, captureDaemon: {100 * time.Millisecond, 5 * time.Second}, restoreDaemon: {100 * time.Millisecond, 3 * time.Second},
}

// takesMemory tells whether a kind loses what a node holds: of two such at once neither copy of a part might be left, which no
// system survives without the disk.
func takesMemory(kind string) bool { return kind == nodeLoss || kind == emptied || kind == keeperKill }

// alone tells whether a kind has no other one beside it: it waits for a moment of its own.
func alone(kind string) bool {
	_, aimed := aims[kind]
	return aimed || kind == heir || kind == falling || kind == keeperLater || kind == emptied || kind == busy
}

// Opening is the fault at the beginning of the i-th job: in every second one, and in each where nothing else is asked for.
func Opening(seed uint64, l Layout, kinds []string, i int) (f Fault, ok bool) {
	rng := rand.New(rand.NewPCG(seed^l.salt(), 0x09e4+uint64(i)))
	f = Fault{Kind: openingRank, Pick: rng.Uint32()}
	only := !slices.ContainsFunc(kinds, func(k string) bool { return k != openingRank })
	return f, slices.Contains(kinds, openingRank) && (rng.IntN(2) == 0 || only)
}

// Schedule is the i-th fault of a layout's jobs under a seed; false where all kinds are of other moments. It depends on nothing else
// but the kinds to draw from.
func Schedule(seed uint64, l Layout, kinds []string, i int) (f Fault, ok bool) {
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k string) bool { return aims[k].opening })
	if len(kinds) == 0 {
		return Fault{}, false
	}
	rng := rand.New(rand.NewPCG(seed^l.salt(), 0xc4a05+uint64(i)))
	f = draw(rng, kinds)
	if rng.IntN(4) == 0 { // one in four has a second fault beside it
		rest := slices.DeleteFunc(slices.Clone(kinds), func(k string) bool {
			return k == f.Kind || alone(k) || clash(k, f.Kind)
		})
		if len(rest) > 0 && !alone(f.Kind) {
			p := draw(rng, rest)
			p.Gap = time.Duration(rng.Int64N(int64(800 * time.Millisecond)))
			f.Pair = &p
		}
	}
	if rng.IntN(4) == 0 && !alone(f.Kind) && f.Kind != busy { // and one in four another in the recovery: a rank, whose memory stays
		f.Third = &Fault{Kind: rankKill, Pick: rng.Uint32(), Gap: time.Duration(rng.Int64N(int64(thirdGap)))}
	}
	return f, true
}

// thirdGap is how long after the end of the others the third fault comes at the latest: calm recoveries take less.
const thirdGap = 600 * time.Millisecond

// clash tells whether two kinds at once are more than can be asked for: both copies of a part, two faults of one thing, or a daemon that
// starts without its durable directory. That one refuses to start and says what to mend; whoever supervises it starts it again.
func clash(a, b string) bool {
	return takesMemory(a) && takesMemory(b) || class(a) == class(b) && class(a) != "" || class(a) == "disk" && startsDaemon(b) || class(b) == "disk" && startsDaemon(a)
}

// startsDaemon tells whether a kind ends a daemon and starts it again.
func startsDaemon(kind string) bool {
	return slices.Contains([]string{daemonKill, leaderKill, mirrorKill, falling, nodeLoss, emptied}, kind)
}

// class names what only one fault at a time can have: the disk, the network.
func class(kind string) string {
	switch kind {
	case diskFull, diskReadOnly, diskMoved:
		return "disk"
	case netPair, netOneWay, netIsolate, netLoss, netDelay:
		return "net"
	}
	return ""
}

func draw(rng *rand.Rand, kinds []string) Fault {
	f := Fault{Kind: kinds[rng.IntN(len(kinds))], Pick: rng.Uint32(), Other: rng.Uint32()}
	between := func(from, to time.Duration) time.Duration { return from + time.Duration(rng.Int64N(int64(to-from)+1)) }
	f.Gap = between(100*time.Millisecond, 1500*time.Millisecond)
	if l, ok := lasts[f.Kind]; ok {
		f.For = between(l[0], l[1])
		if short := l[0] + (l[1]-l[0])/4; rng.IntN(2) == 0 { // half of them are short
			f.For = min(f.For, between(l[0], short))
		}
	}
	f.Lead = between(100*time.Millisecond, 450*time.Millisecond) // then another one leads
	f.Look = between(0, 1500*time.Microsecond)
	if rng.IntN(5) > 0 {
		f.Rest = between(600*time.Millisecond, 900*time.Millisecond)
	}
	return f
}
