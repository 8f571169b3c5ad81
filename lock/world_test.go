package lock

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/replicad/replicad/replica"
)

// world is a model of nodes and ranks around one State, driven by transcript commands. Its planner is the dumbest that could
// work: the newest generation of which some living node holds every part.
type world struct {
	state *State
	index uint64
	job   replica.JobID
	alive map[replica.NodeName]bool
	ranks map[replica.Rank]*rankModel
	held  map[replica.NodeName]map[heldKey]replica.Digest
	fence replica.Epoch
	count byte // UUIDs minted
}

type rankModel struct {
	word, good replica.Word
	handle     replica.Epoch
	dead       bool
}

type heldKey struct {
	part replica.Part
	gen  replica.Generation
}

func newWorld() *world {
	return &world{state: New(replica.ClusterID{1}), alive: map[replica.NodeName]bool{}, ranks: map[replica.Rank]*rankModel{},
		held: map[replica.NodeName]map[heldKey]replica.Digest{}}
}

func rootOf(p replica.Part, s replica.Step) replica.Digest {
	return replica.Digest{byte(p.Kind) + 1, byte(p.Index), byte(s), byte(s >> 8), 1}
}

func (w *world) current() *replica.Job { return w.state.View().Jobs[w.job] }

func (w *world) holder(n replica.NodeName) replica.Holder {
	return replica.Holder{Node: n, Incarnation: w.state.View().Nodes[n].Incarnation}
}

// args splits "verb a b k=v" into words and values.
type args struct {
	words []string
	vals  map[string]string
}

func parse(line string) args {
	a := args{vals: map[string]string{}}
	for _, f := range strings.Fields(line) {
		if k, v, ok := strings.Cut(f, "="); ok {
			a.vals[k] = v
		} else {
			a.words = append(a.words, f)
		}
	}
	return a
}

func (a args) word(i int) string {
	if i < len(a.words) {
		return a.words[i]
	}
	return ""
}

func (a args) num(key string, def uint64) uint64 {
	if v, ok := a.vals[key]; ok {
		return number(v)
	}
	return def
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("number %q: %v", s, err))
	}
	return n
}

// pair reads "epoch,step" or "epoch/step".
func pair(s string) (replica.Epoch, replica.Step) {
	e, st, _ := strings.Cut(strings.ReplaceAll(s, "/", ","), ",")
	return replica.Epoch(number(e)), replica.Step(number(st))
}

func generation(s string) replica.Generation {
	e, st := pair(s)
	return replica.Generation{Epoch: e, Step: st}
}

// run executes one line.
func (w *world) run(line string, out *strings.Builder) error {
	a := parse(line)
	switch verb := a.word(0); verb {
	case "enter", "back", "good", "exit", "seal", "private", "loaded":
		return w.runRank(verb, a, out)
	case "die", "silence", "wipe":
		return w.runDeath(verb, a)
	case "status":
		w.status(out)
		return nil
	case "write": // what the leader does about the durable tier
		j := w.current()
		if !DurableDue(j, j.Durable) {
			fmt.Fprintf(out, "no write is due: committed %v, written %v\n", j.Committed, j.Durable)
			return nil
		}
		d := PlanShards(j, func(n replica.NodeName) bool { return w.alive[n] })
		for _, s := range d.Shards {
			fmt.Fprintf(out, "%v by %s\n", s.Part, s.Node)
		}
		fmt.Fprintf(out, "marker by %s\n", d.Writer)
		w.apply(verb, replica.BeginDurable{Job: w.job, Write: d}, out)
		return nil
	case "again": // the same entry of the log proposed once more
		return fmt.Errorf("write the command twice")
	default:
		c, err := w.command(verb, a)
		if err != nil {
			return err
		}
		w.apply(verb, c, out)
		return nil
	}
}

func (w *world) apply(verb string, c replica.Command, out *strings.Builder) Outcome {
	w.index++
	before := w.state.View()
	o := w.state.Apply(w.index, c)
	if err := Check(before, w.state.View()); err != nil {
		fmt.Fprintf(out, "BROKEN: %v\n", err)
	}
	if j := w.current(); j != nil {
		w.fence = max(w.fence, j.ClosedEpoch)
	}
	fmt.Fprintf(out, "%d %s: ", w.index, verb)
	switch {
	case o.Err != nil:
		fmt.Fprintf(out, "refused, %v\n", o.Err)
		return o
	case !o.Changed:
		out.WriteString("nothing new")
	default:
		out.WriteString("ok")
	}
	if o.Incarnation != 0 {
		fmt.Fprintf(out, ", incarnation %d", o.Incarnation)
	}
	if j := o.Job; j != nil {
		fmt.Fprintf(out, " [%v, epoch %d, closed %d, at %v %v]", j.Phase, j.Epoch, j.ClosedEpoch, j.Position, j.Committed)
	}
	out.WriteString("\n")
	return o
}

// command builds the command of a line; what it leaves out is what an honest leader would say.
func (w *world) command(verb string, a args) (replica.Command, error) {
	j := w.current()
	switch verb {
	case "node":
		n := replica.NodeName(a.word(1))
		w.alive[n] = true
		return replica.RegisterNode{Node: replica.Node{Name: n, Incarnation: replica.NodeIncarnation(a.num("inc", 1)), Session: replica.Session(a.num("session", 1)), Boot: replica.BootID{byte(a.num("boot", 1))}}, Running: w.running(a.vals["runs"])}, nil
	case "job":
		return w.createJob(a)
	case "begin":
		return replica.Begin{Job: w.job, Epoch: replica.Epoch(number(a.word(1)))}, nil
	case "claim":
		return w.claim(a, j), nil
	case "grow":
		c := replica.Grow{Job: w.job, Epoch: replica.Epoch(a.num("epoch", uint64(j.Epoch))), Step: replica.Step(a.num("step", uint64(j.Position.Step))), Recipe: []byte(a.vals["recipe"]), What: "2 regions more"}
		for _, g := range strings.Split(a.word(1), ",") {
			c.Geometries = append(c.Geometries, replica.Digest{byte(number(g))})
		}
		return c, nil
	case "fault":
		return w.fault(a, j), nil
	case "plan":
		return w.plan(a, j)
	case "resume":
		return w.resume(a, j)
	case "commit":
		g := generation(a.word(1))
		c := replica.Commit{Job: w.job, Position: replica.Position(g), Generation: g, Parts: w.parts(j, g, a.vals["without"])}
		if v, ok := a.vals["generation"]; ok {
			c.Generation = generation(v)
		}
		return c, nil
	case "dispute":
		return w.dispute(a, j), nil
	case "condemn":
		return replica.Condemn{Job: w.job, Generation: generation(a.word(1)), Reason: "test"}, nil
	case "copies":
		return replica.SetCopies{Job: w.job, Copies: int(number(a.word(1)))}, nil
	case "mirrors":
		m := cloneNames(j.Mirrors)
		m[number(a.word(1))] = names(a.word(2))
		return replica.SetMirrors{Job: w.job, Mirrors: m, GroupMirrors: j.GroupMirrors}, nil
	case "quarantine":
		return replica.Quarantine{Job: w.job, Node: replica.NodeName(a.word(1)), Clear: a.word(2) == "clear"}, nil
	case "prove-lost":
		return replica.ProveLost{Job: w.job, Holder: replica.Holder{Node: replica.NodeName(a.word(1)), Incarnation: replica.NodeIncarnation(a.num("inc", 1))}, Why: "test"}, nil
	case "revoke":
		roles := map[string]replica.Role{"node": replica.NodeRole, "operator": replica.OperatorRole}
		return replica.Revoke{Revocation: replica.Revocation{Role: roles[a.word(1)], Name: a.word(2), Epoch: replica.CertEpoch(number(a.word(3))), Order: make([]byte, a.num("order", 100)), Certificate: make([]byte, a.num("by", 0))}}, nil
	case "durable":
		d := replica.DurableWrite{Generation: j.Committed, Position: j.Position, Writer: replica.NodeName(a.word(1))}
		if v, ok := a.vals["at"]; ok {
			d.Generation = generation(v)
		}
		for _, p := range j.Parts {
			d.Shards = append(d.Shards, replica.Shard{Part: p.Part, Node: p.Holders[0].Node, Root: p.Root})
		}
		return replica.BeginDurable{Job: w.job, Write: d}, nil
	case "durable-end":
		return replica.EndDurable{Job: w.job, Generation: generation(a.word(1)), Done: a.word(2) == "done"}, nil
	case "stop":
		return replica.StopJob{Job: w.job, Reason: a.word(1)}, nil
	case "go-on":
		return replica.StopJob{Job: w.job, Clear: true}, nil
	case "end":
		return replica.EndJob{Job: w.job, Reason: a.word(1), Epoch: replica.Epoch(a.num("epoch", 0)), Keep: a.word(2) == "keep"}, nil
	case "era":
		c := replica.NewEra{Era: replica.Era(number(a.word(1))), Epochs: map[replica.JobID]replica.Epoch{}, Lineages: map[replica.JobID]replica.Lineage{}}
		if v, ok := a.vals["epoch"]; ok {
			c.Epochs[w.job] = replica.Epoch(number(v))
		}
		c.Lineages[w.job] = lineage(a.vals["lineage"])
		return c, nil
	}
	return nil, fmt.Errorf("no such verb")
}

// running reads "rank,rank/incarnation": a rank alone is at its present claim.
func (w *world) running(s string) (out []replica.Running) {
	for _, v := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' }) {
		rank, inc, given := strings.Cut(v, "/")
		r := replica.Running{Job: w.job, Rank: replica.Rank(number(rank))}
		if r.Incarnation = w.current().Ranks[r.Rank].Incarnation; given {
			r.Incarnation = replica.Incarnation(number(inc))
		}
		out = append(out, r)
	}
	return out
}

func names(s string) (out []replica.NodeName) {
	for _, n := range strings.Split(s, ",") {
		if n != "" {
			out = append(out, replica.NodeName(n))
		}
	}
	return out
}

func lineage(s string) (l replica.Lineage) {
	for _, o := range strings.Split(s, ";") {
		if o != "" {
			e, st := pair(o)
			l = append(l, replica.Opened{Epoch: e, Start: st})
		}
	}
	return l
}

func (w *world) createJob(a args) (replica.Command, error) {
	c := replica.CreateJob{Name: a.word(1), Options: replica.Options{MinCopies: int(a.num("min", 0)), Slots: int(a.num("slots", 0)), Cadence: replica.Step(a.num("cadence", 0)), DurableEvery: replica.Step(a.num("every", 0)), AllowShrink: a.num("shrink", 0) == 1}}
	if v, ok := a.vals["groups"]; ok {
		for _, g := range strings.Split(v, ",") {
			c.Layout.Groups = append(c.Layout.Groups, replica.GroupID(number(g)))
		}
	}
	c.Layout.World = uint32(a.num("world", uint64(len(c.Layout.Groups))))
	c.NameGroups = a.num("name", 0) == 1
	w.count++
	c.ID = replica.JobID{byte(a.num("id", uint64(w.count)))}
	if v, ok := a.vals["durable"]; ok {
		c.Durable, c.Lineage, c.Epoch = generation(v), lineage(a.vals["lineage"]), replica.Epoch(a.num("epoch", 0))
	}
	if v, ok := a.vals["from"]; ok {
		c.From = &replica.Origin{Asked: "s3://b/ck/lm", URL: "s3://b/ck", Job: "lm", Run: replica.JobID{7}, Place: "lm/run/step", Generation: generation(v), World: 8}
	}
	for _, g := range strings.Fields(strings.ReplaceAll(a.vals["geometries"], ",", " ")) {
		c.Geometries = append(c.Geometries, replica.Digest{byte(number(g))})
	}
	if _, taken := w.state.View().JobByName(c.Name); !taken { // else it will be refused: stay with the job that is
		w.job, w.fence = c.ID, 0
		w.ranks = map[replica.Rank]*rankModel{}
		for r := range c.Layout.World {
			w.ranks[replica.Rank(r)] = &rankModel{}
		}
	}
	return c, nil
}

// claimed is who holds a rank; nobody in a job that has ended.
func claimed(j *replica.Job, r replica.Rank) replica.Claimed {
	if int(r) < len(j.Ranks) {
		return j.Ranks[r]
	}
	return replica.Claimed{}
}

func (w *world) claim(a args, j *replica.Job) replica.Command {
	r := replica.Rank(number(a.word(1)))
	h := w.holder(replica.NodeName(a.word(2)))
	h.Incarnation = replica.NodeIncarnation(a.num("inc", uint64(h.Incarnation)))
	var g replica.GroupID
	if int(r) < len(j.Ranks) { // an ended job has none
		g = j.Layout.Groups[r]
	}
	geometry := uint64(g) + 1
	if j.Grown != 0 && int(g) < len(j.GroupGeometry) { // its recipe says so
		geometry = uint64(j.GroupGeometry[g][0])
	}
	c := replica.Claim{Job: w.job, Rank: r, Expect: replica.Incarnation(a.num("expect", uint64(claimed(j, r).Incarnation))), Holder: h, Group: replica.GroupID(a.num("group", uint64(g))),
		Geometry: replica.Digest{byte(a.num("geometry", geometry))}, Nonce: a.num("nonce", w.index+100)}
	if a.word(3) != "late" {
		w.ranks[r].dead = false
	}
	return c
}

var kinds = map[string]replica.FaultKind{}

func init() {
	for k := replica.ProcessDead; k <= replica.Silent; k++ {
		kinds[k.String()] = k
	}
}

func (w *world) fault(a args, j *replica.Job) replica.Command {
	f := replica.Fault{Epoch: replica.Epoch(a.num("epoch", uint64(j.Epoch))), Kind: kinds[a.word(1)]}
	if n, ok := a.vals["node"]; ok {
		f.Node = replica.NodeName(n)
		f.NodeIncarnation = replica.NodeIncarnation(a.num("inc", uint64(w.holder(f.Node).Incarnation)))
	} else {
		f.Rank = replica.Rank(a.num("rank", 0))
		f.Incarnation = replica.Incarnation(a.num("inc", uint64(claimed(j, f.Rank).Incarnation)))
	}
	return replica.ReportFault{Job: w.job, Fault: f}
}

func (w *world) dispute(a args, j *replica.Job) replica.Command {
	d := replica.Dispute{Group: replica.GroupID(a.num("group", 0)), Generation: generation(a.word(1))}
	for _, v := range a.words[2:] { // rank:root
		r, root, _ := strings.Cut(v, ":")
		d.Votes = append(d.Votes, replica.Vote{Rank: replica.Rank(number(r)), Root: replica.Digest{byte(number(root))}})
	}
	return replica.ReportDispute{Job: w.job, Epoch: replica.Epoch(a.num("epoch", uint64(j.Epoch))), Dispute: d}
}

// holders are the living nodes that hold a part.
func (w *world) holders(p replica.Part, g replica.Generation) (out []replica.Holder) {
	for n, parts := range w.held {
		if _, ok := parts[heldKey{p, g}]; ok && w.alive[n] {
			out = append(out, w.holder(n))
		}
	}
	slices.SortFunc(out, func(a, b replica.Holder) int { return strings.Compare(string(a.Node), string(b.Node)) })
	return out
}

func (w *world) parts(j *replica.Job, g replica.Generation, without string) (out []replica.PartRoot) {
	for _, p := range allParts(j) {
		holders := slices.DeleteFunc(w.holders(p, g), func(h replica.Holder) bool { return string(h.Node) == without })
		out = append(out, replica.PartRoot{Part: p, Root: rootOf(p, g.Step), Holders: holders})
	}
	return out
}

// newest finds the newest generation of the history that is whole among living nodes.
func (w *world) newest(j *replica.Job) (best replica.Generation, ok bool) {
	seen := map[replica.Generation]bool{}
	for _, parts := range w.held {
		for k := range parts {
			seen[k.gen] = true
		}
	}
	for g := range seen {
		whole := j.Lineage.Valid(g) && g.Epoch >= j.Grown && !slices.Contains(j.Condemned, g)
		for _, d := range j.Disputed {
			whole = whole && !(j.Lineage.Valid(d.Generation) && d.Generation.Step <= g.Step)
		}
		for _, p := range allParts(j) {
			whole = whole && len(w.holders(p, g)) > 0
		}
		if whole && (!ok || g.Compare(best) > 0) {
			best, ok = g, true
		}
	}
	return best, ok
}

func (w *world) plan(a args, j *replica.Job) (replica.Command, error) {
	p := replica.Plan{Epoch: j.Epoch + 1, Cites: a.num("cites", j.LastIndex), Layout: j.Layout, Ranks: slices.Clone(j.Ranks), Reason: "test"}
	switch {
	case a.word(1) == "init":
		p.Epoch, p.Initial, p.Generation = j.Epoch, true, replica.Generation{Epoch: j.Epoch, Step: replica.Step(a.num("step", uint64(grownStep(j))))}
	case a.vals["at"] != "":
		p.Generation = generation(a.vals["at"])
	default:
		g, ok := w.newest(j)
		if !ok {
			return nil, fmt.Errorf("nothing is eligible")
		}
		p.Generation = g
	}
	if j.Phase == replica.Opening {
		p.Epoch = j.Epoch
	}
	p.Epoch = replica.Epoch(a.num("epoch", uint64(p.Epoch)))
	var nodes []replica.NodeName
	for n, up := range w.alive {
		if up {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	for r, c := range p.Ranks {
		m := []replica.NodeName{}
		for i := range nodes {
			if n := nodes[(r+i)%len(nodes)]; n != c.Node && len(m) == 0 {
				m = append(m, n)
			}
		}
		p.Mirrors = append(p.Mirrors, m)
	}
	if r, ok := a.vals["claim-of"]; ok { // a plan made on a claim that is not
		p.Ranks[number(r)].Incarnation++
	}
	for _, part := range allParts(j) {
		s := replica.Source{Part: part, Root: rootOf(part, p.Generation.Step), Tier: replica.PeerRAM, Holders: w.holders(part, p.Generation)}
		if a.word(1) == "disk" || len(s.Holders) == 0 {
			s.Tier, s.Holders = replica.Disk, nil
		}
		p.Sources = append(p.Sources, s)
	}
	return replica.ApplyPlan{Job: w.job, Plan: p}, nil
}

// resume loads the planned generation everywhere, unless the line says "without=node", and says who holds it.
func (w *world) resume(a args, j *replica.Job) (replica.Command, error) {
	c := replica.Resume{Job: w.job, Epoch: replica.Epoch(a.num("epoch", uint64(j.Epoch))), Copies: int(a.num("copies", 2))}
	if j.Plan == nil {
		return c, nil
	}
	g := j.Plan.Generation
	for r, claim := range j.Ranks {
		rank := replica.Rank(r)
		w.hold(claim.Node, replica.OfRank(rank), g)
		w.hold(claim.Node, replica.OfGroup(j.Layout.Groups[r]), g)
		for _, m := range j.Mirrors[r] {
			w.hold(m, replica.OfRank(rank), g)
		}
	}
	c.Parts = w.parts(j, g, a.vals["without"])
	if v, ok := a.vals["root"]; ok {
		c.Parts[0].Root = replica.Digest{byte(number(v))}
	}
	return c, nil
}

// grownStep is the step that the ranks of a job which grows seal anew; 0: it does not grow.
func grownStep(j *replica.Job) replica.Step {
	if j.Growth == nil {
		return j.Start()
	}
	return j.Growth.Step
}

func (w *world) hold(n replica.NodeName, p replica.Part, g replica.Generation) {
	if !w.alive[n] {
		return
	}
	if w.held[n] == nil {
		w.held[n] = map[heldKey]replica.Digest{}
	}
	w.held[n][heldKey{p, g}] = rootOf(p, g.Step)
}

func (w *world) runDeath(verb string, a args) error {
	switch verb {
	case "die":
		w.ranks[replica.Rank(number(a.word(1)))].dead = true
	case "silence", "wipe": // a node falls silent; its memory is gone for good
		n := replica.NodeName(a.word(1))
		w.alive[n] = false
		delete(w.held, n)
		for r, c := range w.current().Ranks {
			if c.Node == n {
				w.ranks[replica.Rank(r)].dead = true
			}
		}
	}
	return nil
}

// runRank moves ranks' words by the tables of words.go: "enter 0,1 5", "exit all 5".
func (w *world) runRank(verb string, a args, out *strings.Builder) error {
	j := w.current()
	var ranks []replica.Rank
	if a.word(1) == "all" {
		for r := range j.Ranks {
			if !w.ranks[replica.Rank(r)].dead {
				ranks = append(ranks, replica.Rank(r))
			}
		}
	} else {
		for _, s := range strings.Split(a.word(1), ",") {
			ranks = append(ranks, replica.Rank(number(s)))
		}
	}
	for _, r := range ranks {
		s := replica.Step(a.num("step", 0))
		if len(a.words) > 2 {
			s = replica.Step(number(a.word(2)))
		}
		if err := w.rankStep(verb, j, r, s); err != nil {
			fmt.Fprintf(out, "rank %d: %v\n", r, err)
		} else {
			m := w.ranks[r]
			fmt.Fprintf(out, "rank %d: {%d, %d, %v} good (%d,%d)\n", r, m.word.Epoch(), m.word.Step(), m.word.Phase(), m.good.Epoch(), m.good.Step())
		}
	}
	return nil
}

func (w *world) rankStep(verb string, j *replica.Job, r replica.Rank, s replica.Step) error {
	m := w.ranks[r]
	move := func(to replica.Word) error {
		if err := NextStep(m.word, to); err != nil {
			return err
		}
		m.word = to
		return nil
	}
	e := m.handle
	g := replica.Generation{Epoch: e, Step: s}
	private := func() {
		w.hold(j.Ranks[r].Node, replica.OfRank(r), g)
		for _, n := range j.Mirrors[r] {
			w.hold(n, replica.OfRank(r), g)
		}
	}
	switch verb {
	case "loaded":
		m.handle = j.Epoch
		m.good = replica.PackWord(j.Epoch, s, 0)
		return move(replica.PackWord(j.Epoch, s, replica.Idle))
	case "private": // what step_enter seals before it stores UPDATING
		private()
		return nil
	case "enter":
		private()
		before := m.word
		if err := move(replica.PackWord(e, s, replica.Updating)); err != nil {
			return err
		}
		if err := MayEnter(before, e, s, w.fence); err != nil {
			m.word = before
			return err
		}
		return nil
	case "good":
		to := replica.PackWord(e, s, 0)
		if err := NextGood(m.good, to); err != nil {
			return err
		}
		m.good = to
		return nil
	case "exit":
		if err := move(replica.PackWord(e, s, replica.Updated)); err != nil {
			return err
		}
		return move(replica.PackWord(e, s, replica.Idle))
	case "seal":
		if err := MaySeal(m.good, g); err != nil {
			return err
		}
		w.hold(j.Ranks[r].Node, replica.OfGroup(j.Layout.Groups[r]), g)
		return nil
	}
	return fmt.Errorf("verb %s", verb)
}

func (w *world) status(out *strings.Builder) {
	j := w.current()
	fmt.Fprintf(out, "%s: %v, epoch %d, closed %d, lineage %v, at %v %v, copies %d", j.Name, j.Phase, j.Epoch, j.ClosedEpoch, j.Lineage, j.Position, j.Committed, j.Copies)
	if j.Degraded {
		out.WriteString(", degraded")
	}
	if j.Growth != nil {
		fmt.Fprintf(out, ", grows at %d from %v", j.Growth.Step, j.Growth.Geometries)
	}
	if j.Grown != 0 || len(j.Recipe) > 0 {
		fmt.Fprintf(out, ", grown in %d by %q", j.Grown, j.Recipe)
	}
	out.WriteString("\n")
	for r, c := range j.Ranks {
		fmt.Fprintf(out, "  rank %d: incarnation %d on %s/%d, mirrors %v\n", r, c.Incarnation, c.Node, c.NodeIncarnation, j.Mirrors[r])
	}
	for _, f := range j.Faults {
		if f.OfNode() {
			fmt.Fprintf(out, "  fault: %v of node %s/%d\n", f.Kind, f.Node, f.NodeIncarnation)
		} else {
			fmt.Fprintf(out, "  fault: %v of rank %d/%d\n", f.Kind, f.Rank, f.Incarnation)
		}
	}
	for _, d := range j.Disputed {
		fmt.Fprintf(out, "  disputed: %v of group %d, suspects %v\n", d.Generation, d.Group, d.Suspects)
	}
	if len(j.Proved)+len(j.Condemned)+len(j.Quarantined) > 0 {
		fmt.Fprintf(out, "  lost %v, condemned %v, quarantined %v\n", j.Proved, j.Condemned, j.Quarantined)
	}
	for _, r := range w.state.View().Revoked {
		fmt.Fprintf(out, "  revoked: %v %s up to epoch %d\n", r.Role, r.Name, r.Epoch)
	}
	if g, ok := w.newest(j); ok {
		fmt.Fprintf(out, "  newest whole: %v\n", g)
	}
}
