package recovery_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/transcript"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/recovery/odds"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// TestTranscripts: what the leader does about each command to the world.
func TestTranscripts(t *testing.T) {
	transcript.Lines(t, func() transcript.Do {
		w := newWorld()
		return func(line string, out *strings.Builder) error {
			w.said = nil
			err := w.command(strings.Fields(line))
			if err == nil && w.leader != nil {
				err = w.settle()
			}
			for _, s := range w.said {
				fmt.Fprintln(out, "  "+s)
			}
			if err != nil {
				fmt.Fprintln(out, "  error: "+err.Error())
			}
			return nil
		}
	})
}

// args reads key=value words.
func args(words []string) map[string]string {
	m := map[string]string{}
	for _, word := range words {
		k, v, _ := strings.Cut(word, "=")
		m[k] = v
	}
	return m
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil && s != "" {
		panic(err)
	}
	return n
}

func (w *world) process(r string) *process {
	rank := replica.Rank(number(r))
	return w.nodes[w.state().Ranks[rank].Node].procs[rank]
}

func generation(s string) replica.Generation {
	e, st, _ := strings.Cut(s, ",")
	return replica.Generation{Epoch: replica.Epoch(number(e)), Step: replica.Step(number(st))}
}

func ranks(s string) (out []replica.Rank) {
	for _, r := range strings.Split(s, ",") {
		out = append(out, replica.Rank(number(r)))
	}
	return out
}

func (w *world) command(f []string) error {
	a := args(f[1:])
	switch f[0] {
	case "node": // node NAME offers=N [spare] [rack=R]
		labels := map[string]string{}
		if a["rack"] != "" {
			labels["rack"] = a["rack"]
		}
		_, spare := a["spare"]
		w.addNode(replica.NodeName(f[1]), number(a["offers"]), spare, labels)
	case "job": // job groups=0,1,0,1 [durable] [copies=N] [votes] [lone=N] [from=STEP] [own=STEP,STEP...]
		var groups []replica.GroupID
		for _, g := range strings.Split(a["groups"], ",") {
			groups = append(groups, replica.GroupID(number(g)))
		}
		o := replica.Options{MinCopies: number(a["copies"]), DurableEvery: replica.Step(number(a["durable"]))}
		_, o.RequireVotes = a["votes"]
		o.LoneAhead = replica.Step(number(a["lone"]))
		if step, ok := a["from"]; ok {
			w.from = begun(replica.Step(number(step)))
		}
		for _, step := range strings.FieldsFunc(a["own"], func(c rune) bool { return c == ',' }) {
			w.own = append(w.own, replica.Step(number(step)))
		}
		w.create(groups, o)
	case "start": // start RANK NODE
		return w.start(replica.Rank(number(f[1])), replica.NodeName(f[2]))
	case "steps": // steps N [uncommitted]
		_, open := a["uncommitted"]
		for range number(f[1]) {
			if err := w.step(!open); err != nil {
				return err
			}
		}
		w.status()
	case "kill": // kill RANK: its process dies
		p := w.process(f[1])
		p.alive = false
		for _, d := range w.nodes {
			if d.procs[replica.Rank(number(f[1]))] == p {
				d.offers++ // its launcher could start it again
			}
		}
	case "at": // at RANKS EPOCH,STEP [busy] [torn] [unsealed]: where these ranks are now
		g := generation(f[2])
		_, busy := a["busy"]
		_, torn := a["torn"]
		_, unsealed := a["unsealed"]
		for _, r := range ranks(f[1]) {
			p := w.process(fmt.Sprint(r))
			p.live, p.busy, p.torn, p.stopped = g, busy, torn, false
			w.seal(r, g, replica.PrivatePart)
			if !busy && !torn && !unsealed {
				w.seal(r, g, replica.ReplicatedPart)
			}
		}
	case "private": // private RANKS EPOCH,STEP: they have begun the step, no more
		for _, r := range ranks(f[1]) {
			w.seal(r, generation(f[2]), replica.PrivatePart)
		}
	case "leave-window": // leave-window RANKS: they finish their update and seal it
		for _, r := range ranks(f[1]) {
			p := w.process(fmt.Sprint(r))
			p.busy = false
			w.seal(r, p.live, replica.ReplicatedPart)
		}
	case "die": // die NODES: they fall silent, with all that is on them; the probes agree after 1 s
		for _, n := range strings.Split(f[1], ",") {
			w.dieNode(replica.NodeName(n))
		}
		if _, quiet := a["unnoticed"]; !quiet {
			for _, n := range strings.Split(f[1], ",") {
				d := w.nodes[replica.NodeName(n)]
				w.queue = append(w.queue, recovery.Evidence{Fault: replica.Fault{Kind: replica.NodeDead, Node: d.holder.Node, NodeIncarnation: d.holder.Incarnation}})
			}
		}
	case "boot": // boot NODES: they come back with empty memory
		for _, n := range strings.Split(f[1], ",") {
			w.boot(replica.NodeName(n))
		}
	case "daemon-down":
		w.stopDaemon(replica.NodeName(f[1]))
	case "daemon-up": // the same memory, another session
		w.startDaemon(replica.NodeName(f[1]))
	case "next-life": // keeper and daemon start anew beside living ranks
		w.nextLife(replica.NodeName(f[1]))
	case "cut": // the control stream is lost
		w.stopDaemon(replica.NodeName(f[1]))
	case "join":
		w.connect(replica.NodeName(f[1]))
	case "evidence": // evidence KIND rank=R [inc=I] epoch=E
		kinds := map[string]replica.FaultKind{"exception": replica.Exception, "hang": replica.Hang, "health": replica.Health, "torn": replica.Torn}
		r := replica.Rank(number(a["rank"]))
		inc := w.state().Ranks[r].Incarnation
		if a["inc"] != "" {
			inc = replica.Incarnation(number(a["inc"]))
		}
		w.queue = append(w.queue, recovery.Evidence{Fault: replica.Fault{Kind: kinds[f[1]], Rank: r, Incarnation: inc, Epoch: replica.Epoch(number(a["epoch"]))}})
	case "holds": // holds NODE PART EPOCH,STEP [mirror] [bad] [by=RANK]: add a sealed part
		w.addPart(f, a)
	case "drop": // drop NODE EPOCH,STEP [part]: free a sealed part
		g := generation(f[2])
		d := w.nodes[replica.NodeName(f[1])]
		d.parts = slices.DeleteFunc(d.parts, func(h replica.Held) bool {
			return h.Generation == g && (len(f) < 4 || h.Part == part(f[3]))
		})
	case "durable": // durable EPOCH,STEP: the durable tier has it
		w.addDurable(generation(f[1]))
	case "no-slot":
		w.nodes[replica.NodeName(f[1])].noSlot = true
	case "mute": // mute NODE: it never says what its regions hash to
		w.nodes[replica.NodeName(f[1])].mute = true
	case "unmute":
		w.nodes[replica.NodeName(f[1])].mute = false
	case "cannot": // cannot NODE: it says that it can't hash its regions
		w.nodes[replica.NodeName(f[1])].cannot = "the part is not here any more"
	case "no-mirrors": // no-mirrors NODE: it takes no copies, however long
		w.nodes[replica.NodeName(f[1])].full = true
	case "mirrors":
		w.nodes[replica.NodeName(f[1])].full = false
	case "no-offers":
		w.hold[replica.NodeName(f[1])] = true
	case "block": // block RANKS: they don't load what is planned
		for _, r := range ranks(f[1]) {
			w.process(fmt.Sprint(r)).blocked = true
		}
	case "unblock":
		for _, r := range ranks(f[1]) {
			w.process(fmt.Sprint(r)).blocked = false
		}
	case "rot": // rot NODE EPOCH,STEP PART: a bit of that copy flips, unnoticed until it is read
		p, g := part(f[3]), generation(f[2])
		d := w.nodes[replica.NodeName(f[1])]
		d.rotten = append(d.rotten, replica.Held{Part: p, Generation: g, Root: root(p, g)})
	case "reread": // reread NODE: it reads its copies again, and gives up those that have rotted
		d := w.nodes[replica.NodeName(f[1])]
		for _, h := range d.rotten {
			d.parts = slices.DeleteFunc(d.parts, func(x replica.Held) bool {
				return x.Part == h.Part && x.Generation == h.Generation && x.Root == h.Root
			})
		}
		d.bad, d.rotten = append(d.bad, d.rotten...), nil
	case "disk-rot": // disk-rot EPOCH,STEP: its shards fail their digests when they are read
		w.diskBad = append(w.diskBad, generation(f[1]))
	case "reject": // reject RANK TEXT: it finds what it loaded bad
		r := replica.Rank(number(f[1]))
		w.queue = append(w.queue, recovery.Rejected{Epoch: w.state().Epoch, Rank: r, Incarnation: w.state().Ranks[r].Incarnation, Why: strings.Join(f[2:], " ")})
	case "misload": // misload RANK: it loads other bytes than planned
		r := replica.Rank(number(f[1]))
		w.queue = append(w.queue, recovery.Evidence{Fault: replica.Fault{Epoch: w.state().Epoch, Kind: replica.BadDigest, Rank: r, Incarnation: w.state().Ranks[r].Incarnation, Detail: "loaded other bytes"}})
	case "hung": // hung RANKS: they stand still for longer than they may; their daemons kill those that are found to hang
		for _, r := range ranks(f[1]) {
			w.process(fmt.Sprint(r)).hung = true
		}
	case "halted": // halted RANK: its process is stopped by a signal
		w.process(f[1]).halted = true
	case "launch": // launch NODE RANKS: its launcher starts processes for them of its own accord, which take long to attach
		d := w.nodes[replica.NodeName(f[1])]
		d.slow, d.starting = true, append(d.starting, ranks(f[2])...)
		d.offers -= len(ranks(f[2]))
	case "short": // short NODE [WANT]: it is short of that, or of nothing any more
		w.nodes[replica.NodeName(f[1])].short = strings.Join(f[2:], " ")
	case "slow": // slow NODE: its processes take long to attach
		w.nodes[replica.NodeName(f[1])].slow = true
	case "attach": // attach NODE: those that took long claim their ranks now
		d := w.nodes[replica.NodeName(f[1])]
		d.slow = false
		for _, r := range d.starting {
			d.offers++
			if err := w.start(r, replica.NodeName(f[1])); err != nil {
				return err
			}
		}
		d.starting = nil
	case "fails": // fails NODE: those that took long end before they attach
		d := w.nodes[replica.NodeName(f[1])]
		d.offers += len(d.starting)
		d.starting = nil
	case "dispute": // dispute EPOCH,STEP RANK:ROOT...: these ranks of group 0 have reported these roots
		d := replica.Dispute{Generation: generation(f[1])}
		for _, v := range f[2:] {
			r, root, _ := strings.Cut(v, ":")
			d.Votes = append(d.Votes, replica.Vote{Rank: replica.Rank(number(r)), Root: replica.Digest{byte(number(root))}})
		}
		return w.apply(replica.ReportDispute{Job: w.job, Epoch: w.state().Epoch, Dispute: d}).Err
	case "condemn":
		w.apply(replica.Condemn{Job: w.job, Generation: generation(f[1]), Reason: "test"})
	case "prove": // the operator says that a node's memory is gone
		w.apply(replica.ProveLost{Job: w.job, Holder: w.nodes[replica.NodeName(f[1])].holder, Why: "operator"})
	case "drain": // drain NODE: the operator has its ranks move
		n := replica.NodeName(f[1])
		w.apply(replica.Quarantine{Job: w.job, Node: n})
		return w.apply(replica.ReportFault{Job: w.job, Fault: replica.Fault{Epoch: w.state().Epoch, Kind: replica.Drain, Node: n, NodeIncarnation: w.nodes[n].holder.Incarnation}}).Err
	case "grow": // grow RANKS [geometry=N] [recipe=N] [differs=TEXT] [refused=TEXT] [unprepared]: they ask for other regions where they stand
		g := replica.RankGrowth{Geometry: replica.Digest{byte(number(a["geometry"]))}, Recipe: replica.Digest{byte(number(a["recipe"]))}, What: "2 regions more", Differs: a["differs"], Refused: a["refused"], Bytes: 64 << 20}
		_, unprepared := a["unprepared"]
		g.Prepared = !unprepared && g.Refused == ""
		w.ask(ranks(f[1]), g)
	case "unsealing": // unsealing RANKS: they never seal what they are to begin with
		for _, r := range ranks(f[1]) {
			w.process(fmt.Sprint(r)).unsealing = true
		}
	case "follows": // follows RANKS: they seal what is their own alone of what they are to begin with
		w.follows = ranks(f[1])
	case "leave": // leave RANKS: they have done their last step
		for _, r := range ranks(f[1]) {
			w.process(fmt.Sprint(r)).left = true
		}
	case "commit": // commit EPOCH,STEP: what was asked for is there
		return w.commit(generation(f[1]))
	case "write": // the durable writer begins with what is committed
		j := w.state()
		d := replica.DurableWrite{Generation: j.Committed, Position: j.Position}
		for _, p := range j.Parts {
			d.Writer = p.Holders[0].Node
			d.Shards = append(d.Shards, replica.Shard{Part: p.Part, Root: p.Root, Node: d.Writer})
		}
		return w.apply(replica.BeginDurable{Job: w.job, Write: d}).Err
	case "written": // written EPOCH,STEP [failed]: it is done
		_, failed := a["failed"]
		return w.apply(replica.EndDurable{Job: w.job, Generation: generation(f[1]), Done: !failed}).Err
	case "stop": // stop [ends]: somebody asks for that
		_, ends := a["ends"]
		if ends {
			return w.apply(replica.EndJob{Job: w.job, Reason: "enough", Keep: true}).Err
		}
		return w.apply(replica.StopJob{Job: w.job, Reason: "enough"}).Err
	case "go-on": // launchers have come that go on
		return w.apply(replica.StopJob{Job: w.job, Clear: true}).Err
	case "new-leader":
		w.newLeader()
	case "wait":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			return err
		}
		return w.wait(d)
	case "survives": // survives [lost=NODES] [kept=NODES] [absent=NODES] [voters=NODES] [mute=NODES]: what the loss of these would come to
		w.survives(odds.Loss{Nodes: append(nodeList(a["lost"]), nodeList(a["kept"])...), Kept: a["kept"] != "", Absent: nodeList(a["absent"]), Voters: nodeList(a["voters"]), Mute: nodeList(a["mute"])})
	case "status":
		w.status()
	default:
		return fmt.Errorf("unknown command %q", f[0])
	}
	return nil
}

func (w *world) dieNode(n replica.NodeName) {
	d := w.nodes[n]
	for _, p := range d.procs {
		p.alive = false
	}
	d.up = false
	w.queue = append(w.queue, recovery.NodeGone{Node: n})
}

func part(s string) replica.Part {
	i := uint32(number(s[1:]))
	if s[0] == 'g' {
		return replica.OfGroup(replica.GroupID(i))
	}
	return replica.OfRank(replica.Rank(i))
}

func (w *world) addPart(f []string, a map[string]string) {
	p, g := part(f[2]), generation(f[3])
	h := replica.Held{Part: p, Generation: g, Root: root(p, g), Rank: replica.Rank(number(a["by"]))}
	_, h.Mirror = a["mirror"]
	if _, bad := a["bad"]; bad {
		h.Root[0] ^= 0xff
	}
	d := w.nodes[replica.NodeName(f[1])]
	d.parts = append(d.parts, h)
}

func (w *world) addDurable(g replica.Generation) {
	d := plan.DurableGen{Generation: g, Position: replica.Position(g), Parts: map[replica.Part]replica.Digest{}}
	j := w.state()
	for i := range j.Layout.NumGroups() {
		d.Parts[replica.OfGroup(replica.GroupID(i))] = root(replica.OfGroup(replica.GroupID(i)), g)
	}
	for r := range j.Ranks {
		d.Parts[replica.OfRank(replica.Rank(r))] = root(replica.OfRank(replica.Rank(r)), g)
	}
	w.disk = append(w.disk, d)
}

func (w *world) status() {
	j := w.state()
	var on []string
	for r, c := range j.Ranks {
		on = append(on, fmt.Sprintf("%d@%s", r, c.Node))
	}
	if j.Previous != nil {
		w.say("%v is kept", j.Previous.Generation)
	}
	if j.Grown != 0 {
		w.say("grown in epoch %d to %v by %q", j.Grown, j.GroupGeometry, j.Recipe)
	}
	w.say("%v: epoch %d (closed %d), position %v, committed %v, copies %d, ranks %s, lineage %v", j.Phase, j.Epoch, j.ClosedEpoch, j.Position, j.Committed, j.Copies, strings.Join(on, " "), j.Lineage)
}
