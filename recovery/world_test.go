package recovery_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/recovery/odds"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// world is a cluster in one goroutine: the real state machine, the real Leader, and daemons that do what protocol says, as
// far as recovery can tell. Time is a number.
type world struct {
	follows []replica.Rank // they seal what is their own of their first state: other ranks seal what their groups have in common
	pushing time.Duration  // how long a push takes that fails
	st      *lock.State
	index   uint64
	now     time.Duration
	timing  recovery.Timing
	leader  *recovery.Leader
	job     replica.JobID
	from    *replica.Origin // of the job to create; nil: it begins at step 0, or where its ranks do
	own     []replica.Step  // at which ranks begin, by a state of their own
	layout  replica.Layout  // of the job, which that has no more once it has ended
	nodes   map[replica.NodeName]*daemon
	disk    []plan.DurableGen
	// unanswered: no search of the durable tier comes to an end.
	unanswered bool
	unread     string // why the durable tier can't be searched
	scans      int
	diskBad    []replica.Generation // durable generations whose shards fail their digests when they are read
	queue      []recovery.Event
	said       []string // effects and changes, for transcripts
	nonce      uint64
	since      time.Duration                       // the job has been in its phase
	hold       map[replica.NodeName]bool           // nodes that take no offers
	liars      map[replica.NodeName]bool           // they send wrong bytes
	onPlan     func(*replica.Job)                  // called when a plan was applied
	cuts       map[[2]replica.NodeName]bool        // pairs of nodes that can't exchange parts
	relays     map[replica.Part][]replica.NodeName // who was asked to fetch a part of the plan for others
	grew       int                                 // growths that resumed
	grown      replica.Epoch                       // that of the newest
	tookBack   int                                 // and that a fault took back
	elsewise   replica.NodeName                    // the leader sees it in a life that its rank's claim does not know
	clocks     handover                            // what goes from one leader to the next
	heirs      bool                                // planted: a process takes its dead predecessor's words for its own (docs/heir.md)
}

// cut separates two nodes, or joins them again.
func (w *world) cut(a, b replica.NodeName, off bool) {
	w.cuts[[2]replica.NodeName{min(a, b), max(a, b)}] = off
}

func (w *world) reaches(a, b replica.NodeName) bool {
	return !w.cuts[[2]replica.NodeName{min(a, b), max(a, b)}]
}

// daemon is a node: its memory, and the processes it runs.
type daemon struct {
	holder   replica.Holder
	session  replica.Session
	boot     byte
	up       bool // connected
	seq      uint64
	offers   int
	spare    bool
	labels   map[string]string
	procs    map[replica.Rank]*process
	arenas   map[replica.Rank]words // what dead processes left in their ranks' arenas
	parts    []replica.Held
	fenced   replica.Epoch
	noSlot   bool           // can't capture at a fault
	rotten   []replica.Held // copies whose bytes have flipped, unnoticed
	bad      []replica.Held // and noticed
	badDisk  []replica.Held // durable parts that failed their digest here
	starting []replica.Rank // processes run for them and have not attached
	halted   []replica.Rank // of these, stopped by a signal
	pids     []uint64
	short    string
	slow     bool // its processes take long to attach
	deaf     bool // starts nothing for what it is offered
	full     bool // takes no copies of a plan's generation
	mute     bool // never says what its regions hash to
	cannot   string
	clocks   recovery.Keep
	same     unchanged
}

// unchanged is since when a daemon has had nothing else to say.
type unchanged struct {
	is replica.NodeReport
	at time.Duration
}

// words are what stands in an arena of live state, and whose it is.
type words struct {
	live   replica.Generation // the step word, IDLE
	whole  bool               // good and the staging tag say the same
	holder replica.Incarnation
}

type process struct {
	inc       replica.Incarnation
	found     words // in the arena, when it attached
	alive     bool
	live      replica.Generation
	busy      bool // in the optimizer window
	torn      bool // live state is not whole
	stopped   bool
	initial   replica.Epoch
	loaded    replica.Epoch
	stuck     bool // never comes to rest
	blocked   bool // does not load
	detached  bool
	hung      bool // stands still for longer than it may
	left      bool // said that it is done
	halted    bool // stopped by a signal
	progress  uint64
	phase     replica.Phase
	ordered   replica.Epoch // told to load
	unsealing bool          // never seals its first state
	starved   bool          // its parts do not come
	loadMS    uint64
	endingMS  uint64
	still     standing
	growth    *replica.RankGrowth // that it asks for, and waits
	grown     replica.Epoch       // whose growth has brought its arena
}

// standing is since when nothing of a process has changed, as its daemon sees it.
type standing struct {
	is [7]any
	at time.Duration
}

func (s *standing) look(now time.Duration, p *process) uint64 {
	is := [7]any{p.inc, p.live, p.stopped, p.progress, p.loaded, p.ordered, p.endingMS}
	if s.is != is {
		s.is, s.at = is, now
	}
	return uint64((now - s.at).Milliseconds())
}

func newWorld() *world {
	w := &world{st: lock.New(replica.ClusterID{1}), timing: recovery.DefaultTiming(), job: replica.JobID{7}, nodes: map[replica.NodeName]*daemon{}, hold: map[replica.NodeName]bool{}, cuts: map[[2]replica.NodeName]bool{}, relays: map[replica.Part][]replica.NodeName{}}
	return w
}

func (w *world) state() *replica.Job { return w.st.View().Jobs[w.job] }

func (w *world) apply(c replica.Command) lock.Outcome {
	w.index++
	before := w.state()
	out := w.st.Apply(w.index, c)
	if out.Changed {
		if j := w.state(); before != nil && before.Growth != nil && j.Growth == nil {
			if j.Phase == replica.Open {
				w.grew, w.grown = w.grew+1, j.Grown
			} else {
				w.tookBack++
			}
		}
		if j := w.state(); j != nil && (before == nil || before.Phase != j.Phase || before.Epoch != j.Epoch) {
			w.since = w.now
		}
		w.tell()
	}
	return out
}

func (w *world) tell() {
	if j := w.state(); j != nil {
		nodes := w.st.View().Nodes
		if n, ok := nodes[w.elsewise]; ok {
			nodes, n.Incarnation = maps.Clone(nodes), n.Incarnation+1000
			nodes[w.elsewise] = n
		}
		w.queue = append(w.queue, recovery.JobChanged{Job: j, Nodes: nodes})
	}
}

func (w *world) say(format string, args ...any) {
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

func (w *world) addNode(name replica.NodeName, offers int, spare bool, labels map[string]string) {
	w.nodes[name] = &daemon{holder: replica.Holder{Node: name}, offers: offers, spare: spare, labels: labels, procs: map[replica.Rank]*process{}}
	w.boot(name)
}

// boot starts a node with empty memory.
func (w *world) boot(name replica.NodeName) {
	d := w.nodes[name]
	w.nonce++
	d.holder.Incarnation, d.session, d.boot = replica.NodeIncarnation(w.nonce), 0, byte(w.nonce)
	d.offers += len(d.procs)
	d.parts, d.procs, d.arenas, d.fenced = nil, map[replica.Rank]*process{}, map[replica.Rank]words{}, 0
	w.startDaemon(name)
}

// nextLife starts keeper and daemon anew beside the node's ranks, which give their arenas back. Its mirrors are gone.
func (w *world) nextLife(name replica.NodeName) {
	d := w.nodes[name]
	w.nonce++
	d.holder.Incarnation, d.session = replica.NodeIncarnation(w.nonce), 0
	d.parts = slices.DeleteFunc(d.parts, func(h replica.Held) bool { return h.Mirror })
	w.startDaemon(name)
}

// startDaemon starts a daemon over the memory that is there.
func (w *world) startDaemon(name replica.NodeName) {
	d := w.nodes[name]
	d.session++
	d.up, d.clocks = true, recovery.Keep{} // what the daemon kept in its memory is gone
	var running []replica.Running
	for _, r := range slices.Sorted(maps.Keys(d.procs)) {
		if d.procs[r].alive {
			running = append(running, replica.Running{Job: w.job, Rank: r, Incarnation: d.procs[r].inc})
		}
	}
	w.apply(replica.RegisterNode{Node: replica.Node{Name: name, Incarnation: d.holder.Incarnation, Session: d.session, Boot: replica.BootID{d.boot}, Labels: d.labels}, Running: running})
	w.queue = append(w.queue, recovery.NodeUp{Holder: d.holder, Session: d.session})
}

func (w *world) stopDaemon(name replica.NodeName) {
	w.nodes[name].up = false
	w.queue = append(w.queue, recovery.NodeGone{Node: name})
}

func (w *world) connect(name replica.NodeName) {
	d := w.nodes[name]
	d.up = true
	w.queue = append(w.queue, recovery.NodeUp{Holder: d.holder, Session: d.session})
}

func (w *world) newLeader() {
	w.leader, w.queue = recovery.NewLeader(w.job, w.timing), nil
	w.clocks.term, w.clocks.handing, w.clocks.began = w.clocks.term+1, recovery.Handing{}, w.now
	w.tell()
	for _, n := range w.names() {
		if d := w.nodes[n]; d.up {
			w.queue = append(w.queue, recovery.NodeUp{Holder: d.holder, Session: d.session})
			if l, ok := d.clocks.Word(w.now, w.job); ok {
				w.queue = append(w.queue, recovery.Kept{From: n, Ledger: l})
			}
		}
	}
}

// handover is what the leader hands out for the next one.
type handover struct {
	term    uint64
	began   time.Duration
	handing recovery.Handing
}

// handOut has the nodes keep what the job's clocks read.
func (w *world) handOut() {
	readings, ok := w.clocks.handing.Look(w.now, w.clocks.began, w.leader.Clocks)
	for _, n := range w.names() {
		d := w.nodes[n]
		if j := w.state(); d.up && j != nil {
			d.clocks.Follow(w.now, j)
		}
		if d.up && ok {
			d.clocks.Take(w.now, replica.Ledger{Job: w.job, Term: w.clocks.term, Seq: uint64(w.now), Readings: readings})
		}
	}
}

// begun is an origin whose state is that of a step.
func begun(step replica.Step) *replica.Origin {
	return &replica.Origin{Asked: "s3://b/ck/lm", URL: "s3://b/ck", Job: "lm", Run: replica.JobID{7}, Place: "lm/run/step", Generation: replica.Generation{Epoch: 2, Step: step}, World: 8}
}

// begins is the step of the state that a rank seals first.
func (w *world) begins(j *replica.Job, r replica.Rank) replica.Step {
	if int(r) < len(w.own) {
		return w.own[r]
	}
	return j.Start()
}

func (w *world) create(groups []replica.GroupID, o replica.Options) {
	w.layout = replica.Layout{World: uint32(len(groups)), Groups: groups}
	w.apply(replica.CreateJob{ID: w.job, Name: "job", Layout: w.layout, Options: o, From: w.from})
	w.newLeader()
}

func (w *world) names() []replica.NodeName { return slices.Sorted(maps.Keys(w.nodes)) }

func (w *world) start(r replica.Rank, n replica.NodeName) error {
	j, d := w.state(), w.nodes[n]
	if int(r) >= len(j.Ranks) {
		return errors.New("the job has ended")
	}
	w.nonce++
	geometry := j.GroupGeometry[j.Layout.Groups[r]] // what the recipe makes of it
	if geometry.IsZero() {
		geometry = replica.Digest{9}
	}
	out := w.apply(replica.Claim{Job: w.job, Rank: r, Expect: j.Ranks[r].Incarnation, Holder: d.holder, Group: j.Layout.Groups[r], Geometry: geometry, Nonce: w.nonce})
	if out.Err != nil {
		return out.Err
	}
	for _, other := range w.nodes { // superseded incarnations are killed
		if p := other.procs[r]; p != nil && other.up {
			other.end(r)
		}
	}
	d.offers--
	d.procs[r] = &process{inc: out.Incarnation, alive: true, stopped: true, found: d.arenas[r]}
	return nil
}

// end takes a process away; its arena stays.
func (d *daemon) end(r replica.Rank) {
	d.arenas[r] = d.procs[r].words()
	delete(d.procs, r)
	d.offers++
}

// words are what stands in the process's arena: its own, once it has state, and until then what it found there.
func (p *process) words() words {
	if p.loaded == 0 && p.initial == 0 {
		return p.found
	}
	return words{live: p.live, whole: !p.busy && !p.torn, holder: p.inc}
}

// believed are the words that count as the process's own.
func (w *world) believed(p *process) words {
	if v := p.words(); v.holder == p.inc || w.heirs {
		return v
	}
	return words{}
}

// capture is what daemon and library do at the order to capture the live state as g. A process that has never had state seals what its
// memory holds: nothing of the job.
func (w *world) capture(d *daemon, r replica.Rank, p *process, g replica.Generation) {
	v, part := w.believed(p), replica.OfGroup(w.state().Layout.Groups[r])
	if !d.up || !p.alive || v.live != g || !v.whole || d.noSlot || d.noRoom(r, w.state()) || !w.heirs && p.loaded != g.Epoch {
		return
	}
	h := replica.Held{Part: part, Generation: g, Root: root(part, g), Rank: r, Producer: p.inc}
	if p.loaded == 0 && p.initial == 0 {
		h.Root[15]++
	}
	if w.heirs {
		h.Producer = 0
	}
	d.keep(h)
}

// noRoom tells whether every slot of a rank's arena holds something that a capture must leave: there is no other than committed or newer.
func (d *daemon) noRoom(r replica.Rank, j *replica.Job) bool {
	n := 0
	for _, h := range d.parts {
		if h.Part.Kind == replica.ReplicatedPart && h.Rank == r && !h.Mirror && h.Generation.Step >= j.Committed.Step {
			n++
		}
	}
	return n >= max(2, j.Options.Slots)
}

// root is what a part of a generation hashes to.
func root(p replica.Part, g replica.Generation) (d replica.Digest) {
	d = replica.Digest{1, byte(p.Kind)}
	binary.BigEndian.PutUint32(d[2:], p.Index)
	binary.BigEndian.PutUint32(d[6:], uint32(g.Epoch))
	binary.BigEndian.PutUint32(d[10:], uint32(g.Step))
	return d
}

func (d *daemon) hold(p replica.Part, g replica.Generation, r replica.Rank, mirror bool) {
	d.keep(replica.Held{Part: p, Generation: g, Root: root(p, g), Rank: r, Mirror: mirror})
}

func (d *daemon) keep(h replica.Held) {
	if !slices.Contains(d.parts, h) {
		d.parts = append(d.parts, h)
	}
}

// seal seals the replicated or private part of a rank, and mirrors the latter.
func (w *world) seal(r replica.Rank, g replica.Generation, k replica.PartKind) {
	j := w.state()
	h := replica.Held{Part: replica.OfRank(r), Generation: g, Rank: r, Producer: j.Ranks[r].Incarnation}
	mirrors := j.Mirrors[r]
	if k == replica.ReplicatedPart {
		group := j.Layout.Groups[r]
		h.Part, mirrors = replica.OfGroup(group), j.GroupMirrors[group]
	}
	if w.heirs {
		h.Producer = 0
	}
	h.Root = root(h.Part, g)
	from := w.nodes[j.Ranks[r].Node]
	from.keep(h)
	h.Mirror = true
	for _, m := range mirrors {
		switch {
		case w.nodes[m].up && w.reaches(from.holder.Node, m):
			w.nodes[m].keep(h)
		case from.up:
			w.queue = append(w.queue, recovery.Unreached{From: from.holder.Node, To: []replica.NodeName{m}, Part: h.Part, Took: w.pushing})
		}
	}
}

// fetch brings a part into a rank's arena, from wherever it lies; what came from disk has no producer.
func (w *world) fetch(d *daemon, s replica.Source, g replica.Generation, r replica.Rank) {
	h := replica.Held{Part: s.Part, Generation: g, Root: s.Root, Rank: r}
	for _, n := range w.names() {
		for _, x := range w.nodes[n].parts {
			if x.Part == h.Part && x.Generation == g && x.Root == s.Root && !x.Mirror && x.Rank == r && w.nodes[n] == d {
				return // it is there
			}
			if x.Part == h.Part && x.Generation == g && x.Root == s.Root {
				h.Producer, h.Fetched = x.Producer, x.Fetched || x.Rank != r
			}
		}
	}
	d.keep(h)
}

// holders finds who of the connected nodes holds a part.
func (w *world) holders(p replica.Part, g replica.Generation) (out []replica.Holder) {
	j := w.state()
	for _, n := range w.names() {
		d := w.nodes[n]
		if d.up && !lock.HolderFaulted(j, d.holder) && slices.ContainsFunc(d.parts, func(h replica.Held) bool { return h.Part == p && h.Generation == g }) {
			out = append(out, d.holder)
		}
	}
	return out
}

// commit commits a generation if enough nodes hold it.
func (w *world) commit(g replica.Generation) error {
	j := w.state()
	c := replica.Commit{Job: w.job, Position: replica.Position(g), Generation: g}
	for i := range j.Layout.NumGroups() {
		p := replica.OfGroup(replica.GroupID(i))
		c.Parts = append(c.Parts, replica.PartRoot{Part: p, Root: root(p, g), Holders: w.holders(p, g)})
	}
	for r := range j.Ranks {
		p := replica.OfRank(replica.Rank(r))
		c.Parts = append(c.Parts, replica.PartRoot{Part: p, Root: root(p, g), Holders: w.holders(p, g)})
	}
	if out := w.apply(c); out.Err != nil {
		return out.Err
	}
	w.retain(2)
	return nil
}

// retain frees what is older than the committed generation and the newest n steps before it.
func (w *world) retain(n replica.Step) {
	j := w.state()
	for _, d := range w.nodes {
		d.parts = slices.DeleteFunc(d.parts, func(h replica.Held) bool {
			return h.Generation != j.Committed && h.Generation.Step+n <= j.Position.Step
		})
	}
}

// step has every rank train one step; whoever is asked for seals and commits.
func (w *world) step(commit bool) error {
	g, err := w.train()
	if err != nil {
		return err
	}
	for r := range w.state().Ranks {
		w.seal(replica.Rank(r), g, replica.PrivatePart)
		w.seal(replica.Rank(r), g, replica.ReplicatedPart)
	}
	if commit {
		return w.commit(g)
	}
	return nil
}

// walk has every rank train one step of which private parts alone are sealed.
func (w *world) walk() bool {
	g, err := w.train()
	for r := range w.state().Ranks {
		if err == nil {
			w.seal(replica.Rank(r), g, replica.PrivatePart)
		}
	}
	return err == nil
}

// train has every rank make the next step.
func (w *world) train() (g replica.Generation, err error) {
	j := w.state()
	if j.Phase != replica.Open {
		return g, fmt.Errorf("job is %v", j.Phase)
	}
	for r, c := range j.Ranks {
		p := w.nodes[c.Node].procs[replica.Rank(r)]
		if p == nil || !p.alive || p.stopped || p.busy || p.growth != nil {
			return g, fmt.Errorf("rank %d does not step", r)
		}
		p.live.Epoch, p.live.Step = j.Epoch, p.live.Step+1
		g = p.live
	}
	return g, nil
}

// react lets a daemon do what the state machine asks of it.
func (w *world) react(n replica.NodeName) {
	j, d := w.state(), w.nodes[n]
	if j == nil || !d.up || j.Phase == replica.Ended {
		return
	}
	d.fenced = max(d.fenced, j.ClosedEpoch)
	for _, r := range slices.Sorted(maps.Keys(d.procs)) {
		p := d.procs[r]
		if j.Ranks[r].Incarnation != p.inc {
			d.end(r) // superseded
			continue
		}
		if p.alive && slices.ContainsFunc(j.Faults, func(f replica.Fault) bool {
			return (f.Kind == replica.Hang || f.Kind == replica.Outvoted) && !f.OfNode() && f.Rank == r && f.Incarnation == p.inc
		}) {
			p.alive = false // killed
			d.offers++
		}
		if p.alive && p.grown > j.Grown && p.grown <= j.ClosedEpoch {
			p.alive = false // its growth was taken back
			d.offers++
		}
		if !p.alive {
			continue
		}
		p.answer(j)
		switch {
		case j.Growth != nil && j.Phase == replica.Opening:
			if p.grown == j.Epoch && p.initial != j.Epoch && !p.unsealing {
				p.initial, p.live = j.Epoch, replica.Generation{Epoch: j.Epoch, Step: j.Growth.Step}
				d.hold(replica.OfGroup(j.Layout.Groups[r]), p.live, r, false)
				d.hold(replica.OfRank(r), p.live, r, false)
			}
		case j.Phase == replica.Opening && j.Epoch > j.ClosedEpoch && p.initial != j.Epoch && len(j.Lineage) == 0 && p.unsealing:
		case j.Phase == replica.Opening && j.Epoch > j.ClosedEpoch && p.initial != j.Epoch && len(j.Lineage) == 0:
			g := replica.Generation{Epoch: j.Epoch, Step: w.begins(j, r)}
			p.initial = j.Epoch
			if !slices.Contains(w.follows, r) {
				p.live = g
				d.hold(replica.OfGroup(j.Layout.Groups[r]), g, r, false)
			}
			d.hold(replica.OfRank(r), g, r, false)
		case j.ClosedEpoch >= j.Epoch && !p.stuck && !p.busy:
			p.stopped, p.left = true, false
		case j.Phase == replica.Planned && p.loaded != j.Epoch && p.blocked:
			if !p.starved {
				p.ordered = j.Epoch
			}
		case j.Phase == replica.Planned && p.loaded != j.Epoch:
			w.load(d, r, p, j.Plan)
		case j.Phase == replica.Open && p.loaded == j.Epoch:
			p.stopped = false
		}
	}
	if j.Phase == replica.Planned || j.Phase == replica.Open && j.Previous != nil {
		w.fetchMirrors(n, d, j.Plan)
	}
}

// answer is what a daemon does about a growth that its rank asks for: the job has it, or was closed first.
func (p *process) answer(j *replica.Job) {
	g := p.growth
	if g == nil || j.Phase == replica.Open && j.Epoch == g.Epoch {
		return
	}
	p.growth = nil
	if j.Growth != nil && j.Phase == replica.Opening && j.Epoch == g.Epoch+1 && g.Prepared {
		p.grown, p.live, p.loaded, p.initial, p.ordered, p.found, p.stopped = j.Epoch, replica.Generation{}, 0, 0, 0, words{}, true
	}
}

// ask has ranks ask for other regions, at the step at which they stand.
func (w *world) ask(list []replica.Rank, g replica.RankGrowth) {
	j := w.state()
	for _, r := range list {
		p := w.nodes[j.Ranks[r].Node].procs[r]
		if p == nil || !p.alive || p.stopped || p.busy || p.live.Epoch != j.Epoch {
			continue
		}
		is := g
		w.nonce++
		is.Ask, is.Epoch, is.Step = w.nonce, j.Epoch, p.live.Step
		if r == 0 {
			is.RecipeBytes = []byte("recipe")
		}
		p.growth = &is
	}
}

// touch has every copy of a planned part read: what has rotted is noticed, given up and named.
func (w *world) touch(s replica.Source, g replica.Generation) {
	is := func(h replica.Held) bool { return h.Part == s.Part && h.Generation == g && h.Root == s.Root }
	for _, d := range w.nodes {
		for _, h := range d.rotten {
			if is(h) && d.up {
				d.parts = slices.DeleteFunc(d.parts, is)
				d.bad = append(d.bad, h)
			}
		}
		if d.up {
			d.rotten = slices.DeleteFunc(d.rotten, is)
		}
	}
}

// available tells whether a node can have a part of the plan from somewhere; r is the rank that it is for.
func (w *world) available(n replica.NodeName, r replica.Rank, s replica.Source, g replica.Generation) bool {
	w.touch(s, g)
	if s.Tier == replica.Disk {
		return !slices.Contains(w.diskBad, g)
	}
	holders, off := slices.Clone(s.Holders), []replica.NodeName(nil)
	for _, m := range w.relays[s.Part] {
		holders = append(holders, w.nodes[m].holder)
	}
	defer func() {
		if len(off) > 0 && w.nodes[n].up {
			w.queue = append(w.queue, recovery.Unreached{From: n, To: off, Part: s.Part, Fetch: true, Epoch: w.state().Epoch, Rank: r})
		}
	}()
	for _, h := range holders {
		d := w.nodes[h.Node]
		if !w.reaches(n, h.Node) {
			off = append(off, h.Node)
			continue
		}
		if w.liars[h.Node] && h.Node != n && d.up {
			w.queue = append(w.queue, recovery.Corrupt{From: n, By: h.Node, Part: s.Part, Generation: g, Root: s.Root})
			continue
		}
		if d.up && d.holder == h && slices.ContainsFunc(d.parts, func(x replica.Held) bool { return x.Part == s.Part && x.Generation == g && x.Root == s.Root }) {
			off = nil
			return true
		}
	}
	return false
}

func (w *world) load(d *daemon, r replica.Rank, p *process, plan *replica.Plan) {
	group, _ := plan.Source(replica.OfGroup(plan.Layout.Groups[r]))
	own, _ := plan.Source(replica.OfRank(r))
	for _, s := range []replica.Source{group, own} {
		if s.Tier == replica.Disk && slices.Contains(w.diskBad, plan.Generation) {
			if h := (replica.Held{Part: s.Part, Generation: plan.Generation, Root: s.Root, Rank: r}); !slices.Contains(d.badDisk, h) {
				d.badDisk = append(d.badDisk, h)
			}
		}
	}
	if n := d.holder.Node; !w.available(n, r, group, plan.Generation) || !w.available(n, r, own, plan.Generation) {
		return
	}
	w.fetch(d, group, plan.Generation, r)
	w.fetch(d, own, plan.Generation, r)
	p.live, p.loaded, p.torn = replica.Generation{Epoch: plan.Epoch, Step: plan.Generation.Step}, plan.Epoch, false
}

func (w *world) fetchMirrors(n replica.NodeName, d *daemon, plan *replica.Plan) {
	if d.full {
		return
	}
	fetch := func(p replica.Part, r replica.Rank, names []replica.NodeName) {
		if s, ok := plan.Source(p); ok && slices.Contains(names, n) {
			loaded := false // the rank's own node may have staged it meanwhile
			for _, o := range w.nodes {
				loaded = loaded || o.up && w.reaches(n, o.holder.Node) && slices.ContainsFunc(o.parts, func(x replica.Held) bool { return x.Part == p && x.Generation == plan.Generation })
			}
			if loaded || w.available(n, r, s, plan.Generation) {
				d.hold(p, plan.Generation, r, true)
			}
		}
	}
	for r, names := range plan.Mirrors {
		fetch(replica.OfRank(replica.Rank(r)), replica.Rank(r), names)
	}
	for g, names := range plan.GroupMirrors {
		fetch(replica.OfGroup(replica.GroupID(g)), 0, names)
	}
	for p, names := range w.relays {
		fetch(p, 0, names)
	}
}

func (w *world) report(n replica.NodeName) replica.NodeReport {
	d := w.nodes[n]
	d.seq++
	rep := replica.NodeReport{Job: w.job, Holder: d.holder, Session: d.session, Seq: d.seq, Fenced: d.fenced, Settled: true, Parts: slices.Clone(d.parts), Offers: d.offers, Spare: d.spare, Epoch: w.state().Epoch, Phase: w.state().Phase, SinceMS: uint64((w.now - w.since).Milliseconds()), Bad: slices.Clone(d.bad), BadDisk: slices.Clone(d.badDisk), Starting: slices.Clone(d.starting), StartingPIDs: slices.Clone(d.pids), StartingHalted: slices.Clone(d.halted), Short: d.short}
	if d.short != "" {
		rep.Offers = 0
	}
	if w.hold[n] {
		rep.Offers = 0
	}
	for _, r := range slices.Sorted(maps.Keys(d.procs)) {
		p := d.procs[r]
		phase := p.phase
		if p.busy {
			phase, rep.Settled = replica.Updating, rep.Settled && !p.alive
		}
		v := w.believed(p)
		rep.Ranks = append(rep.Ranks, replica.RankReport{Rank: r, Incarnation: p.inc, Alive: p.alive, Attached: p.alive && !p.detached, PID: uint64(p.inc),
			Live: replica.PackWord(v.live.Epoch, v.live.Step, phase), Good: v.live.Word(), Settled: !p.busy, Stopped: p.stopped && p.alive, Whole: p.alive && v.whole,
			Initial: p.initial, Loaded: p.loaded, Hung: p.hung && p.alive, Left: p.left, Progress: p.progress, Halted: p.halted && p.alive, Ordered: p.ordered, LoadMS: p.loadMS, EndingMS: p.endingMS, Growth: p.growth, StillMS: p.still.look(w.now, p)})
	}
	for r, c := range w.state().Ranks { // claims of this life of the node that no process of it has: nobody else reports their deaths
		if p := d.procs[replica.Rank(r)]; c.Incarnation != 0 && c.Node == n && c.NodeIncarnation == d.holder.Incarnation && (p == nil || p.inc < c.Incarnation) {
			rep.Ranks = append(rep.Ranks, replica.RankReport{Rank: replica.Rank(r), Incarnation: c.Incarnation, Settled: true})
		}
	}
	is := rep
	is.Seq, is.SinceMS, is.Ranks = 0, 0, slices.Clone(rep.Ranks)
	for i := range is.Ranks {
		is.Ranks[i].StillMS = 0
	}
	if !reflect.DeepEqual(is, d.same.is) {
		d.same = unchanged{is, w.now}
	}
	rep.StillMS = uint64((w.now - d.same.at).Milliseconds())
	return rep
}

// settle lets everybody react until nothing changes any more, without time passing.
func (w *world) settle() error {
	for range 200 {
		before := w.index
		n := len(w.queue)
		w.drain()
		for _, name := range w.names() {
			w.react(name)
			if w.nodes[name].up {
				w.queue = append(w.queue, recovery.Report{NodeReport: w.report(name)})
			}
		}
		w.drain()
		if w.index == before && n == 0 && len(w.queue) == 0 {
			return nil
		}
	}
	return errors.New("no rest after 200 rounds: leader and state machine disagree for ever")
}

func (w *world) drain() {
	for len(w.queue) > 0 {
		ev := w.queue[0]
		w.queue = w.queue[1:]
		w.feed(ev)
	}
}

func (w *world) feed(ev recovery.Event) {
	if w.leader == nil {
		return
	}
	for _, e := range w.leader.Step(w.now, ev) {
		w.carryOut(e)
	}
}

func (w *world) carryOut(e recovery.Effect) {
	switch e := e.(type) {
	case recovery.Propose:
		out := w.apply(e.Command)
		if _, plan := e.Command.(replica.ApplyPlan); plan && out.Changed && w.onPlan != nil {
			w.onPlan(out.Job)
		}
		w.say("propose %s%s", describe(e.Command), refusal(out.Err))
		w.queue = append(w.queue, recovery.Outcome{Cmd: e.Command, Err: out.Err})
	case recovery.Offer:
		w.say("offer rank %d (from incarnation %d) to %s", e.Rank, e.Expect, e.Node)
		if d := w.nodes[e.Node]; d.deaf {
			break
		} else if d.slow && d.offers > 0 {
			d.offers--
			d.starting = append(d.starting, e.Rank)
		} else if d.up && !w.hold[e.Node] && d.offers > 0 {
			if p := d.procs[e.Rank]; p != nil {
				d.end(e.Rank)
			}
			if err := w.start(e.Rank, e.Node); err != nil {
				w.say("  claim refused: %v", err)
			}
		}
	case recovery.Capture:
		w.say("capture %v", e.Generation)
		for _, d := range w.nodes {
			for r, p := range d.procs {
				w.capture(d, r, p, e.Generation)
			}
		}
	case recovery.Mirror:
		w.say("mirror %v", e.Generation)
		for _, d := range w.nodes {
			for _, h := range d.parts {
				if d.up && h.Generation == e.Generation && !h.Mirror {
					w.seal(h.Rank, h.Generation, h.Part.Kind)
				}
			}
		}
	case recovery.Relay:
		w.say("relay %v for rank %d by %s", e.Part, e.Rank, e.Node)
		w.relays[e.Part] = append(w.relays[e.Part], e.Node)
	case recovery.ScanDurable:
		w.scans++
		w.say("scan the durable tier")
		if w.unanswered {
			break
		}
		if w.unread != "" {
			w.queue = append(w.queue, recovery.DurableUnread{Why: w.unread})
			break
		}
		w.queue = append(w.queue, recovery.DurableFound{Generations: w.disk})
	case recovery.AskRegions:
		w.say("ask %s for the regions of %v of %v, rank %d", e.Node, e.Part, e.Generation, e.Rank)
		if d := w.nodes[e.Node]; d.up && !d.mute {
			r := replica.RegionReport{Job: w.job, Generation: e.Generation, Part: e.Part, Rank: e.Rank, Root: e.Root, Failed: d.cannot}
			if r.Failed == "" { // what differs is in the second one
				r.Regions = []replica.RegionDigest{{Name: "model.wpe", Digest: replica.Digest{1}}, {Name: "model.wte", Digest: e.Root}}
			}
			w.queue = append(w.queue, recovery.Regions{RegionReport: r})
		}
	case recovery.RefuseGrowth:
		w.say("refuse the growth of rank %d on %s: %s", e.Rank, e.Node, e.Why)
		if p := w.nodes[e.Node].procs[e.Rank]; p != nil && p.growth != nil && p.growth.Ask == e.Ask && w.nodes[e.Node].up {
			p.growth = nil
		}
	case recovery.Note:
		w.say("%s: %s", e.Code, e.Text)
	}
}

// wait lets time pass, waking the leader when it asked to be.
func (w *world) wait(d time.Duration) error {
	end := w.now + d
	for {
		if err := w.settle(); err != nil {
			return err
		}
		at, ok := w.leader.Next()
		if !ok || at > end {
			w.now = end
			w.feed(recovery.Tick{})
			if err := w.settle(); err != nil {
				return err
			}
			w.handOut()
			return nil
		}
		w.now = max(w.now, at)
		w.feed(recovery.Tick{})
		if at, ok := w.leader.Next(); ok && at <= w.now {
			return fmt.Errorf("at %v the leader asks for a tick at %v: it would spin", w.now, at)
		}
	}
}

func refusal(err error) string {
	if err == nil {
		return ""
	}
	return " -> refused: " + err.Error()
}

func describe(c replica.Command) string {
	switch c := c.(type) {
	case replica.ReportFault:
		if c.Fault.OfNode() {
			return fmt.Sprintf("fault in epoch %d: %v of node %s", c.Fault.Epoch, c.Fault.Kind, c.Fault.Node)
		}
		return fmt.Sprintf("fault in epoch %d: %v of rank %d incarnation %d", c.Fault.Epoch, c.Fault.Kind, c.Fault.Rank, c.Fault.Incarnation)
	case replica.ApplyPlan:
		return "plan " + describePlan(c.Plan)
	case replica.Resume:
		var thin []string
		for _, p := range c.Parts {
			if len(p.Holders) < 2 {
				thin = append(thin, p.Part.String())
			}
		}
		s := fmt.Sprintf("resume %d with %d copies", c.Epoch, c.Copies)
		if c.Spread {
			s = fmt.Sprintf("spread %d on %d nodes", c.Epoch, c.Copies)
		}
		if len(thin) > 0 {
			s += ", one holder only: " + strings.Join(thin, ", ")
		}
		return s
	case replica.Begin:
		return fmt.Sprintf("begin %d", c.Epoch)
	case replica.Grow:
		return fmt.Sprintf("growth of epoch %d at step %d by %s, geometries %v, recipe %q", c.Epoch, c.Step, c.What, c.Geometries, c.Recipe)
	case replica.Condemn:
		return fmt.Sprintf("condemn %v: %s", c.Generation, c.Reason)
	case replica.SetCopies:
		return fmt.Sprintf("copies %d", c.Copies)
	case replica.SetMirrors:
		return fmt.Sprintf("mirrors %v groups %v", c.Mirrors, c.GroupMirrors)
	case replica.Quarantine:
		return "quarantine " + string(c.Node)
	case replica.EndJob:
		return "end: " + c.Reason
	case replica.RegisterNode:
		return "register " + string(c.Node.Name)
	}
	return fmt.Sprintf("%T", c)
}

func describePlan(p replica.Plan) string {
	s := fmt.Sprintf("%d: T = %v", p.Epoch, p.Generation)
	if p.CommittedLost > 0 {
		s += fmt.Sprintf(", %d steps lost", p.CommittedLost)
	}
	if p.Unvouched {
		s += ", unvouched"
	}
	s += "; " + p.Reason
	for _, src := range p.Sources {
		var names []string
		for _, h := range src.Holders {
			names = append(names, string(h.Node))
		}
		s += fmt.Sprintf("\n    %v: %v %s", src.Part, src.Tier, strings.Join(names, " "))
	}
	return s + fmt.Sprintf("\n    mirrors %v groups %v", p.Mirrors, p.GroupMirrors)
}

func nodeList(s string) (out []replica.NodeName) {
	for _, n := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' }) {
		out = append(out, replica.NodeName(n))
	}
	return out
}

// survival is the answer on what the leader knows now.
func (w *world) survival(l odds.Loss) odds.Survival {
	in, ok := w.leader.Known()
	if !ok {
		panic("the leader has not heard of the job")
	}
	return odds.Survives(in, l)[0]
}

func (w *world) survives(l odds.Loss) {
	s := w.survival(l)
	if why := s.Why(); len(why) > 0 {
		w.say("no: %s", strings.Join(why, "\n      "))
	} else {
		w.say("yes")
	}
	if !s.Resume.IsZero() {
		var parts []string
		for _, p := range s.Held(s.Resume) {
			var names []string
			for _, h := range p.Holders {
				names = append(names, string(h.Node))
			}
			parts = append(parts, fmt.Sprintf("%v %s", p.Part, strings.Join(names, " ")))
		}
		w.say("  on from %v: %s", s.Resume, strings.Join(parts, ", "))
	}
	if len(s.Moves) > 0 {
		w.say("  %d processes elsewhere, %d offered", len(s.Moves), s.Offered)
	}
	if cost := s.Cost(); cost != "" {
		w.say("  costs: %s", cost)
	}
}
