package leader

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/replica"
)

// A durable write that died with all its daemons may lie whole in their spools. Before a resume asks the store, the leader asks the nodes, and has
// them finish the newest of those writes, beside itself: the nodes write its objects again, under a number that no other write has, and the leader
// commits it.

const (
	spoolAsk    = 5 * time.Second  // for a node to say what its spool holds
	spoolJoin   = 10 * time.Second // for the nodes that have the rest to link
	spoolAgain  = time.Second      // between two questions meanwhile
	spoolFinish = 10 * time.Minute // for the objects to be written
	// spoolNumbers lies between the number that a write had and the one that it is finished under: what was on its way when its daemon died may still come.
	spoolNumbers = 1 << 20
	// finishedFrom is the provenance of what was finished so.
	finishedFrom = "spools"
)

// telling has the launchers of a job print something.
type telling struct {
	job  replica.JobID
	text string
}

// spools asks nodes. Its methods may be called from any goroutine.
type spools struct {
	mu    sync.Mutex // guards the rest
	links map[replica.NodeName]sender
	last  uint64
	asked map[uint64]asking
	turn  chan struct{} // has one while nobody finishes anything
}

// take waits for the turn to finish something: two launchers that ask at once are to have it done once. give gives it back.
func (s *spools) take(ctx context.Context) (give func(), ok bool) {
	s.mu.Lock()
	if s.turn == nil {
		s.turn = make(chan struct{}, 1)
		s.turn <- struct{}{}
	}
	turn := s.turn
	s.mu.Unlock()
	select {
	case <-turn:
		return func() { turn <- struct{}{} }, true
	case <-ctx.Done():
		return nil, false
	}
}

// sender is a node's link.
type sender interface{ Send(m any) }

type asking struct {
	node   replica.NodeName
	answer chan control.SpoolReport // takes one
}

func (s *spools) up(n replica.NodeName, link sender) {
	s.down(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links == nil {
		s.links, s.asked = map[replica.NodeName]sender{}, map[uint64]asking{}
	}
	s.links[n] = link
}

// down ends what the node was asked.
func (s *spools) down(n replica.NodeName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, n)
	for id, a := range s.asked {
		if a.node == n {
			a.answer <- control.SpoolReport{ID: id, Failed: fmt.Sprintf("node %s has no link to the leader any more", n)}
			delete(s.asked, id)
		}
	}
}

func (s *spools) answer(n replica.NodeName, r control.SpoolReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.asked[r.ID]; ok && a.node == n {
		a.answer <- r
		delete(s.asked, r.ID)
	}
}

func (s *spools) nodes() []replica.NodeName {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.links))
}

// ask asks nodes the same, and waits for their answers. Who does not answer in time has failed.
func (s *spools) ask(ctx context.Context, nodes []replica.NodeName, o control.SpoolOrder, most time.Duration) map[replica.NodeName]control.SpoolReport {
	orders := map[replica.NodeName]control.SpoolOrder{}
	for _, n := range nodes {
		orders[n] = o
	}
	return s.askEach(ctx, orders, most)
}

// askEach asks each node something of its own.
func (s *spools) askEach(ctx context.Context, orders map[replica.NodeName]control.SpoolOrder, most time.Duration) map[replica.NodeName]control.SpoolReport {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	out := map[replica.NodeName]control.SpoolReport{}
	waits := map[uint64]asking{}
	for n, o := range orders {
		id, a, link := s.asks(n)
		if link == nil {
			out[n] = control.SpoolReport{Failed: fmt.Sprintf("node %s has no link to the leader", n)}
			continue
		}
		waits[id], o.ID = a, id
		link.Send(o)
	}
	for id, a := range waits {
		select {
		case out[a.node] = <-a.answer:
		case <-ctx.Done():
			s.mu.Lock()
			delete(s.asked, id)
			s.mu.Unlock()
			select {
			case out[a.node] = <-a.answer: // it did, while another one was waited for
			default:
				out[a.node] = control.SpoolReport{Failed: fmt.Sprintf("node %s has not answered for %v", a.node, most)}
			}
		}
	}
	return out
}

// asks notes that a node is asked; a nil link: it has none.
func (s *spools) asks(n replica.NodeName) (id uint64, a asking, link sender) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if link = s.links[n]; link == nil {
		return 0, a, nil
	}
	s.last++
	a = asking{n, make(chan control.SpoolReport, 1)}
	s.asked[s.last] = a
	return s.last, a, link
}

// spooledWrite is what spools hold of one generation, by whichever durable writes: parts with the same root are the same.
type spooledWrite struct {
	*tier.Spooled // of one of its objects
	roots         []tier.Rooted
	lost          []replica.Part // that no note has, of parts whose roots nobody knows
	differ        []replica.Part // of whose root two notes say different things
	nodes         map[replica.NodeName][]*tier.Spooled
	frozen        map[uint32]tier.Rooted // by group, what its part binds and the store does not have
}

// spooledWrites lists what may be finished, the newest position first. It takes in what nodes say, which may be anything. job is the record of the job
// that is there; nil: of none.
func spooledWrites(left map[replica.NodeName][]*tier.Spooled, may func(*tier.Spooled) bool, job *replica.Job) (list []*spooledWrite) {
	nodes := slices.Sorted(maps.Keys(left))
	for _, node := range nodes {
		for _, n := range left[node] {
			if !may(n) {
				continue
			}
			same := func(o *tier.Spooled) bool {
				return o.ID == n.ID && o.Generation == n.Generation && o.Said.Position == n.Said.Position
			}
			w := rootsBy(n, left, nodes, same, job)
			if w == nil || slices.ContainsFunc(list, func(o *spooledWrite) bool { return same(o.Spooled) && slices.Equal(o.roots, w.roots) }) {
				continue
			}
			for _, node := range nodes {
				for _, o := range left[node] {
					if same(o) && w.binds(o) {
						if w.nodes[node] = append(w.nodes[node], o); o.Number > w.Number {
							w.Spooled = o
						}
					}
				}
			}
			list = append(list, w)
		}
	}
	slices.SortStableFunc(list, func(a, b *spooledWrite) int { return newerSpooled(b.Spooled, a.Spooled) })
	return list
}

// rootsBy has the roots of a note's generation: by the job's record, by the note itself, or where no node has left all of them, by what each has left of
// one that some node knew to be committed: a commit wants the same root of all copies. nil: nobody knew.
func rootsBy(n *tier.Spooled, left map[replica.NodeName][]*tier.Spooled, nodes []replica.NodeName, same func(*tier.Spooled) bool, job *replica.Job) *spooledWrite {
	w := &spooledWrite{Spooled: n, nodes: map[replica.NodeName][]*tier.Spooled{}}
	switch {
	case job != nil && job.ID == n.ID && job.Committed == n.Generation:
		for _, p := range job.Parts {
			w.roots = append(w.roots, tier.Rooted{Part: p.Part, Root: p.Root})
		}
		return w
	case !n.Loose:
		w.roots = n.Roots
		return w
	}
	committed := false
	have := map[replica.Part]replica.Digest{}
	for _, node := range nodes {
		for _, o := range left[node] {
			if !same(o) {
				continue
			}
			if !o.Loose {
				return nil // that one says
			}
			committed = committed || !o.Candidate
			for _, r := range o.Roots {
				if was, ok := have[r.Part]; ok && was != r.Root && !slices.Contains(w.differ, r.Part) {
					w.differ = append(w.differ, r.Part)
				}
				have[r.Part] = r.Root
			}
		}
	}
	if !committed {
		return nil
	}
	for _, p := range partsOf(n.Said.Layout) {
		if root, ok := have[p]; ok {
			w.roots = append(w.roots, tier.Rooted{Part: p, Root: root})
		} else {
			w.lost = append(w.lost, p)
		}
	}
	return w
}

// partsOf lists the parts of each generation of a job.
func partsOf(l replica.Layout) (list []replica.Part) {
	for g := range l.NumGroups() {
		list = append(list, replica.OfGroup(replica.GroupID(g)))
	}
	for r := range l.World {
		list = append(list, replica.OfRank(replica.Rank(r)))
	}
	return list
}

// binds tells whether a note has no other root than the write.
func (w *spooledWrite) binds(n *tier.Spooled) bool {
	return !slices.ContainsFunc(n.Roots, func(r tier.Rooted) bool {
		return r.Part.Kind != replica.FrozenPart && !slices.Contains(w.roots, r)
	})
}

func newerSpooled(a, b *tier.Spooled) int {
	p, q := a.Said.Position, b.Said.Position
	return cmp.Or(cmp.Compare(p.Epoch, q.Epoch), cmp.Compare(p.Step, q.Step), a.Generation.Compare(b.Generation), cmp.Compare(a.Number, b.Number))
}

// shares says which node is to write which parts: each one that has it and as little as others, of those that have not failed. An error says what is
// lacking.
func (w *spooledWrite) shares(failed map[replica.NodeName]string) (by map[replica.NodeName][]replica.PartRoot, err error) {
	if len(w.differ) > 0 {
		return nil, fmt.Errorf("nodes have different roots of %v", w.differ[0])
	}
	lacks := func(p replica.Part) error { return fmt.Errorf("no node that is linked has %v of it", p) }
	if len(w.lost) > 0 {
		return nil, lacks(w.lost[0])
	}
	by = map[replica.NodeName][]replica.PartRoot{}
	for _, r := range w.roots {
		var to replica.NodeName
		for _, node := range slices.Sorted(maps.Keys(w.nodes)) {
			if w.has(node, r) && failed[node] == "" && (to == "" || len(by[node]) < len(by[to])) {
				to = node
			}
		}
		if to == "" {
			return nil, lacks(r.Part)
		}
		by[to] = append(by[to], replica.PartRoot{Part: r.Part, Root: r.Root})
		if f, is := w.frozen[r.Part.Index]; is && r.Part.Kind == replica.ReplicatedPart {
			by[to] = append(by[to], replica.PartRoot{Part: f.Part, Root: f.Root})
		}
	}
	return by, nil
}

// has tells whether a node's spool has a part, and what it binds that the store does not have.
func (w *spooledWrite) has(node replica.NodeName, r tier.Rooted) bool {
	lies := func(r tier.Rooted) bool {
		return slices.ContainsFunc(w.nodes[node], func(n *tier.Spooled) bool { return slices.Contains(n.Parts, r.Part) && slices.Contains(n.Roots, r) })
	}
	f, binds := w.frozen[r.Part.Index]
	return lies(r) && (!binds || r.Part.Kind != replica.ReplicatedPart || lies(f))
}

// thaws finds the frozen parts that the write binds in the files of generations of its run. What is not there a spool is to have.
func (w *spooledWrite) thaws(found []tier.Found) (list []replica.Stored, err error) {
	w.frozen = map[uint32]tier.Rooted{}
	seen := map[tier.Rooted]bool{}
	for _, notes := range w.nodes {
		for _, n := range notes {
			for _, r := range n.Frozen {
				if seen[r] {
					continue
				}
				seen[r] = true
				s, ok := frozenIn(found, w.ID, r)
				if !ok {
					w.frozen[r.Part.Index] = r
					if !slices.ContainsFunc(slices.Collect(maps.Keys(w.nodes)), func(n replica.NodeName) bool {
						return w.has(n, tier.Rooted{Part: replica.OfGroup(replica.GroupID(r.Part.Index)), Root: w.rootOf(r.Part.Index)})
					}) {
						return nil, fmt.Errorf("the frozen part of group %d is not in the store", r.Part.Index)
					}
					continue
				}
				list = append(list, s)
			}
		}
	}
	return list, nil
}

// rootOf is the root of a group's part.
func (w *spooledWrite) rootOf(group uint32) replica.Digest {
	i := slices.IndexFunc(w.roots, func(r tier.Rooted) bool { return r.Part.Kind == replica.ReplicatedPart && r.Part.Index == group })
	if i < 0 {
		return replica.Digest{}
	}
	return w.roots[i].Root
}

func frozenIn(found []tier.Found, run replica.JobID, r tier.Rooted) (s replica.Stored, ok bool) {
	for _, f := range found {
		if f.Commit.Run != run {
			continue
		}
		for _, at := range f.Index.Parts {
			if at.Part == r.Part && at.Root == r.Root {
				return tier.StoredOf(f.Index.Files[at.File]), true
			}
		}
	}
	return s, false
}

// said is what the commit says, with what ranks of all nodes lack.
func (w *spooledWrite) said() tier.Said {
	said := w.Said
	said.Lacks = nil
	for _, node := range slices.Sorted(maps.Keys(w.nodes)) {
		for _, n := range w.nodes[node] {
			for _, l := range n.Said.Lacks {
				if !slices.Contains(said.Lacks, l) {
					said.Lacks = append(said.Lacks, l)
				}
			}
		}
	}
	said.Provenance = maps.Clone(said.Provenance)
	if said.Provenance == nil {
		said.Provenance = map[string]string{}
	}
	said.Provenance[finishedFrom] = w.who()
	return said
}

// who names the nodes.
func (w *spooledWrite) who() string {
	names := slices.Sorted(maps.Keys(w.nodes))
	text := ""
	for i, n := range names {
		if i == 8 {
			return fmt.Sprintf("%s and %d more nodes", text, len(names)-i)
		}
		text += map[bool]string{true: ", "}[i > 0] + string(n)
	}
	return text
}

// finishSpooled finishes the newest durable write of a name that died with its daemons, where the spools hold all of it and it is newer than what the
// store has: of a job that is to be opened, or, with a record, of one that is there. passed is for people: what could not be used, and why.
func (l *Leader) finishSpooled(ctx context.Context, name string, job *replica.Job) (passed string) {
	give, ok := l.spools.take(ctx)
	if !ok {
		return ""
	}
	defer give()
	left := l.inSpools(ctx, name)
	if len(left) == 0 {
		return ""
	}
	found, skipped, err := l.store.Find(ctx, name, replica.JobID{})
	if err != nil {
		return "" // who asked the spools finds it so
	}
	may := mayFinish(found, job)
	list := spooledWrites(left, may, job)
	for began := l.now(); len(list) > 0 && l.now()-began < spoolJoin && ctx.Err() == nil; { // nodes of the newest may be about to link
		if _, err := list[0].shares(nil); err == nil {
			break
		}
		select {
		case <-time.After(spoolAgain):
		case <-ctx.Done():
		}
		list = spooledWrites(l.inSpools(ctx, name), may, job)
	}
	for _, w := range list {
		err := l.finishes(ctx, w, found, skipped, job)
		if err == nil {
			l.log.Note2(job, "resume", fmt.Sprintf("step %d of job %s is finished from the spools of %s", w.Said.Position.Step, name, w.who()))
			return passed
		}
		l.log.Failed("durable", fmt.Sprintf("finish step %d of job %s from the spools", w.Said.Position.Step, name), err.Error())
		if passed == "" {
			passed = fmt.Sprintf("warning: step %d lies in the spools of %s and can't be used: %v", w.Said.Position.Step, w.who(), err)
		}
	}
	return passed
}

// mayFinish tells what may be finished: of a job that is there what it may go on from, of one that is to be opened what is newer in the newest run.
func mayFinish(found []tier.Found, job *replica.Job) func(*tier.Spooled) bool {
	return func(n *tier.Spooled) bool {
		if job != nil && (n.ID != job.ID || !job.Lineage.Valid(n.Generation) || slices.Contains(job.Condemned, n.Generation)) {
			return false
		}
		for _, f := range found {
			if job == nil && f.Commit.Run != n.ID {
				return false // another run is the newest of the name
			}
			if f.Commit.Run == n.ID {
				return cmp.Or(cmp.Compare(n.Said.Position.Epoch, f.Position.Epoch), cmp.Compare(n.Said.Position.Step, f.Position.Step)) > 0
			}
		}
		return true
	}
}

// inSpools asks all nodes what their spools hold of a name.
func (l *Leader) inSpools(ctx context.Context, name string) map[replica.NodeName][]*tier.Spooled {
	left := map[replica.NodeName][]*tier.Spooled{}
	for node, r := range l.spools.ask(ctx, l.spools.nodes(), control.SpoolOrder{Name: name}, spoolAsk) {
		for _, b := range r.Left {
			n, err := tier.ParseSpooled(b)
			if err != nil || n.Job != name || n.Node != node || n.Cluster != l.cfg.Cluster {
				l.log.Failed("spool", "what node "+string(node)+" says of its spool", fmt.Sprintf("it is of job %s: %v", name, err))
				continue
			}
			left[node] = append(left[node], n)
		}
	}
	return left
}

// finishes has a write finished and committed.
func (l *Leader) finishes(ctx context.Context, w *spooledWrite, found []tier.Found, skipped []tier.Skipped, job *replica.Job) error {
	frozen, err := w.thaws(found)
	if err != nil {
		return err
	}
	a := tier.Attempt{Name: w.Job, Job: w.ID, Owner: w.Owner, Began: w.Began, Cluster: l.cfg.Cluster, Generation: w.Generation, Number: min(w.Number, math.MaxInt64>>1) + spoolNumbers}
	if job != nil {
		a.Fleet, a.Epoch = job.Fleet, job.Lineage.Last().Epoch
	} else {
		a.Fleet, a.Epoch = l.cons.State().Fleet, behind(w, found, skipped)
	}
	objects, err := l.writesSpooled(ctx, w, &a)
	if err != nil {
		return err
	}
	objects = append(frozen, objects...)
	roots := map[replica.Part]replica.Digest{}
	for _, r := range w.roots {
		roots[r.Part] = r.Root
	}
	return l.store.Commit(ctx, a, w.said(), roots, objects)
}

// writesSpooled has the nodes write the parts. What one of them can't write, because it was damaged in its spool, another one may have.
func (l *Leader) writesSpooled(ctx context.Context, w *spooledWrite, a *tier.Attempt) (objects []replica.Stored, err error) {
	failed := map[replica.NodeName]string{}
	for ; ; a.Number++ {
		by, lacks := w.shares(failed)
		if lacks != nil && err != nil {
			return nil, err
		} else if lacks != nil {
			return nil, lacks
		}
		orders := map[replica.NodeName]control.SpoolOrder{}
		for n, parts := range by {
			orders[n] = control.SpoolOrder{Name: w.Job, Job: w.ID, Generation: w.Generation, As: a.Number, Fleet: a.Fleet, Epoch: a.Epoch, Parts: parts}
		}
		objects, err = nil, nil
		for n, r := range l.spools.askEach(ctx, orders, spoolFinish) {
			if objects = append(objects, r.Wrote...); r.Failed != "" {
				failed[n], err = r.Failed, fmt.Errorf("node %s: %s", n, r.Failed)
			}
		}
		if err == nil {
			return objects, nil
		}
	}
}

// behind is an epoch behind all that the run has had, as far as anybody here knows.
func behind(w *spooledWrite, found []tier.Found, skipped []tier.Skipped) replica.Epoch {
	e := max(w.Epoch, w.Generation.Epoch, w.Said.Position.Epoch)
	for _, f := range found {
		if f.Commit.Run == w.ID {
			e = max(e, f.Generation.Epoch, f.Run.Claimed, f.Lineage.Last().Epoch)
		}
	}
	for _, s := range skipped {
		if s.Run.ID == w.ID {
			e = max(e, s.Generation.Epoch, s.Run.Claimed)
		}
	}
	return e + 1
}
