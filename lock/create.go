package lock

import (
	"cmp"
	"slices"

	"github.com/replicad/replicad/replica"
)

// maxJobs is how many jobs may be there that have not ended: each is in every view and every snapshot, and is looked after by one
// leader. A training cluster runs a few; hundreds are what launchers left behind that went away.
const maxJobs = 256

// createJob mints a job, or adopts that of a durable generation (protocol section 5.4). A name may be used again once its
// job has ended; a UUID is never minted twice.
func (s *State) createJob(index uint64, c replica.CreateJob) Outcome {
	if err := replica.CheckJobName(c.Name); err != nil {
		return Outcome{Err: refuse(Invalid, "create job: %v", err)}
	}
	if c.Creator != "" {
		if err := replica.CheckName(string(c.Creator)); err != nil {
			return Outcome{Err: refuse(Invalid, "create job %s: by node %v", c.Name, err)}
		}
	}
	if c.ID == (replica.JobID{}) {
		return Outcome{Err: refuse(Invalid, "create job %s: its UUID is zero", c.Name)}
	}
	naming, err := nameGroups(&c)
	if err != nil {
		return Outcome{Err: err}
	}
	if err := c.Layout.Check(); err != nil {
		return Outcome{Err: refuse(Invalid, "create job %s: %v", c.Name, err)}
	}
	opt := c.Options.WithDefaults()
	if err := opt.Check(c.Layout.NumGroups()); err != nil {
		return Outcome{Err: refuse(Invalid, "create job %s: %v", c.Name, err)}
	}
	former := s.v.Jobs[c.ID]
	if former != nil && former.Phase != replica.Ended && former.Name == c.Name {
		return Outcome{Job: former}
	}
	if j, ok := s.v.JobByName(c.Name); ok {
		return Outcome{Job: j, Err: refuse(Conflict, "create job %s: job %v of that name has not ended: end it first or use another name", c.Name, j.ID)}
	}
	if former != nil && (former.Phase != replica.Ended || c.Durable.IsZero()) {
		return Outcome{Job: former, Err: refuse(Conflict, "create job %s: UUID %v is in this log already, as job %s", c.Name, c.ID, former.Name)}
	}
	if n := s.running(); n >= maxJobs {
		return Outcome{Err: refuse(Conflict, "create job %s: %d jobs have not ended, and the cluster keeps no more: end one that nobody needs (replicad status lists them, replicad job end NAME)", c.Name, n)}
	}
	if c.From != nil {
		if err := c.From.Check(); err != nil {
			return Outcome{Err: refuse(Invalid, "create job %s: %v", c.Name, err)}
		}
	}
	if c.Limit > 0 {
		if err := fitsJob(s.v, c, c.Limit); err != nil {
			return Outcome{Job: former, Err: err}
		}
	}
	j := &replica.Job{
		ID: c.ID, Name: c.Name, Era: s.v.Era, Layout: cloneLayout(c.Layout), Options: opt, Phase: replica.Opening,
		Ranks: make([]replica.Claimed, c.Layout.World), GroupGeometry: make([]replica.Digest, c.Layout.NumGroups()),
		Mirrors: make([][]replica.NodeName, c.Layout.World), GroupMirrors: make([][]replica.NodeName, c.Layout.NumGroups()),
		Copies: c.Copies, Naming: naming, Owner: c.Owner, Creator: c.Creator, Began: c.Began, Writes: c.Writes, Fleet: s.v.Fleet, From: c.From,
	}
	if former != nil {
		j.Writes = max(j.Writes, former.Writes)
	}
	j.Options.Nondeterministic = slices.Clone(opt.Nondeterministic)
	if j.Copies == 0 {
		j.Copies = opt.MinCopies
	}
	if j.Copies < 1 || j.Copies > opt.MinCopies {
		return Outcome{Err: refuse(Invalid, "create job %s: %d copies: want 1 to min_copies, %d", c.Name, c.Copies, opt.MinCopies)}
	}
	j.Degraded = j.Copies < opt.MinCopies
	if former == nil && !c.Durable.IsZero() { // it may be one that was forgotten
		c.Epoch, j.NextIncarnation = max(c.Epoch, s.v.ForgottenEpoch), s.v.ForgottenIncarnation
	}
	if err := adopt(j, former, c); err != nil {
		return Outcome{Err: err}
	}
	s.put(index, j)
	return Outcome{Changed: true, Job: j}
}

// running counts the jobs that have not ended.
func (s *State) running() (n int) {
	for _, j := range s.v.Jobs {
		if j.Phase != replica.Ended {
			n++
		}
	}
	return n
}

// adopt takes over the history of a durable generation: its job's epochs, lineage and what was condemned. Where this log
// still knows the job, numbers go on from whichever side knows more, so that nothing a zombie carries is handed out again.
func adopt(j *replica.Job, former *replica.Job, c replica.CreateJob) error {
	if c.Durable.IsZero() {
		if c.Epoch != 0 || len(c.Lineage) != 0 || len(c.Condemned) != 0 || len(c.Geometries) != 0 || len(c.Recipe) != 0 || c.Grown != 0 {
			return refuse(Invalid, "create job %s: epoch %d, a lineage of %d epochs and %d geometries, but no durable generation they belong to", c.Name, c.Epoch, len(c.Lineage), len(c.Geometries))
		}
		return nil
	}
	if n := len(c.Geometries); n != 0 && n != len(j.GroupGeometry) {
		return refuse(Invalid, "create job %s: geometries of %d groups, the layout has %d", c.Name, n, len(j.GroupGeometry))
	}
	if len(c.Recipe) > replica.MaxRecipe || c.Grown > c.Durable.Epoch {
		return refuse(Invalid, "create job %s: a recipe of %d bytes, grown in epoch %d: want at most %d bytes, and not after durable generation %v", c.Name, len(c.Recipe), c.Grown, replica.MaxRecipe, c.Durable)
	}
	copy(j.GroupGeometry, c.Geometries)
	j.Recipe, j.Grown = slices.Clone(c.Recipe), c.Grown
	lineage, epoch := slices.Clone(c.Lineage), c.Epoch
	if !rising(lineage) || lineage.Last().Epoch > epoch || epoch > replica.MaxEpoch {
		return refuse(Invalid, "create job %s: lineage up to epoch %d, highest epoch %d: want rising epochs, none above the highest", c.Name, lineage.Last().Epoch, epoch)
	}
	condemned := slices.Clone(c.Condemned)
	if former != nil {
		union, err := unite(former.Lineage, lineage)
		if err != nil {
			return refuse(Conflict, "create job %s from %v: %v", c.Name, c.Durable, err)
		}
		lineage, epoch, j.NextIncarnation = union, max(epoch, former.Epoch), former.NextIncarnation
		j.Former = max(former.Former, former.Position.Step)
		for _, g := range former.Condemned {
			if !slices.Contains(condemned, g) {
				condemned = append(condemned, g)
			}
		}
	}
	if !lineage.Valid(c.Durable) {
		return refuse(Conflict, "create job %s: durable generation %v is not of its lineage %v", c.Name, c.Durable, lineage)
	}
	if slices.Contains(condemned, c.Durable) {
		return refuse(Conflict, "create job %s: durable generation %v is condemned", c.Name, c.Durable)
	}
	j.Epoch, j.ClosedEpoch, j.Lineage, j.Condemned, j.Durable = epoch, epoch, lineage, condemned, c.Durable
	return nil
}

func rising(l replica.Lineage) bool {
	for i := 1; i < len(l); i++ {
		if l[i].Epoch <= l[i-1].Epoch {
			return false
		}
	}
	return true
}

func byEpoch(a, b replica.Opened) int { return cmp.Compare(a.Epoch, b.Epoch) }

// unite is the union of two lineages of one job. Two starts of one epoch are two histories: an operator has to choose.
func unite(a, b replica.Lineage) (replica.Lineage, error) {
	u := slices.Clone(a)
	for _, o := range b {
		i, found := slices.BinarySearchFunc(u, o, byEpoch)
		switch {
		case !found:
			u = slices.Insert(u, i, o)
		case u[i].Start != o.Start:
			return nil, refuse(Conflict, "epoch %d started at step %d in one history and at %d in another: choose one", o.Epoch, u[i].Start, o.Start)
		}
	}
	return u, nil
}

// newEra goes on after an operator recovered a lost quorum from what logs were left (protocol section 2). Every job's next
// epoch lies above all that any reachable log, fence word, arena or manifest knows.
func (s *State) newEra(index uint64, c replica.NewEra) Outcome {
	if c.Era == s.v.Era {
		return Outcome{}
	}
	if c.Era < s.v.Era {
		return Outcome{Err: refuse(Stale, "era %d: this log is in era %d", c.Era, s.v.Era)}
	}
	if c.Era != s.v.Era+1 {
		return Outcome{Err: refuse(Invalid, "era %d after era %d: eras rise by one", c.Era, s.v.Era)}
	}
	for id := range c.Epochs {
		if s.v.Jobs[id] == nil {
			return Outcome{Err: refuse(Unknown, "era %d: job %v is not in this log: create it again from its durable tier", c.Era, id)}
		}
	}
	next := map[replica.JobID]*replica.Job{}
	for _, id := range s.sortedJobs() {
		j := *s.v.Jobs[id]
		if !rising(c.Lineages[id]) {
			return Outcome{Err: refuse(Invalid, "era %d, job %s: lineage %v: want rising epochs", c.Era, j.Name, c.Lineages[id])}
		}
		lineage, err := unite(j.Lineage, c.Lineages[id])
		if err != nil {
			return Outcome{Err: refuse(Conflict, "era %d, job %s: %v", c.Era, j.Name, err)}
		}
		first := c.Epochs[id]
		if first == 0 {
			first = max(j.Epoch, lineage.Last().Epoch) + 1
		}
		if first <= j.Epoch || first <= lineage.Last().Epoch || first > replica.MaxEpoch {
			return Outcome{Err: refuse(Invalid, "era %d, job %s: epoch %d: want one above %d, the highest known, and at most %d", c.Era, j.Name, first, max(j.Epoch, lineage.Last().Epoch), replica.MaxEpoch)}
		}
		j.Era, j.Lineage, j.LastIndex = c.Era, lineage, index
		if j.Phase != replica.Ended {
			takeBack(&j)
			j.Epoch, j.ClosedEpoch, j.Plan, j.Writer, j.Faults = first-1, first-1, nil, nil, nil
			j.Phase = replica.Closed
			if j.Committed.IsZero() && len(lineage) == 0 {
				j.Phase = replica.Opening
			}
		}
		next[id] = &j
	}
	s.v.Era, s.v.Jobs = c.Era, next
	return Outcome{Changed: true}
}

func cloneLayout(l replica.Layout) replica.Layout {
	l.Groups = slices.Clone(l.Groups)
	return l
}
