package leader

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// onlyCommitted tells whether a commit is all that happened: the once-a-step case, sent in short form. Several entries may
// have been applied since; what a commit does not touch is shared by both values, so that comparing costs little.
func onlyCommitted(was, is *replica.Job) bool {
	told := *was
	told.LastIndex, told.Position, told.Committed, told.Parts, told.Previous = is.LastIndex, is.Position, is.Committed, is.Parts, nil
	return was.Phase == replica.Open && was.Position != is.Position && reflect.DeepEqual(&told, is)
}

// created answers a launcher's request for a job.
func (l *Leader) created(from *nodeLink, m control.CreateRequest, r control.CreateReply) {
	if r.Refused != "" {
		l.audit.Refused("create", from.node.Name, audit.Fields{"job": m.Name, "refused": r.Refused})
	}
	from.SendFor(control.User(m.Owner), r)
}

// create mints a job for a launcher, once: the same name with the same layout is the same job.
func (l *Leader) create(ctx context.Context, from *nodeLink, m control.CreateRequest) {
	if !l.proved(m.Name, m.Token) {
		l.created(from, m, control.CreateReply{ID: m.ID, Refused: fmt.Sprintf("create job %q: node %s does not show the job's token as the leader knows it: give all nodes the same job_secret", m.Name, from.node.Name)})
		return
	}
	if m.From != nil {
		if err := (&wire.From{Origin: *m.From, Failed: m.FromFailed}).Check(); err != nil {
			l.created(from, m, control.CreateReply{ID: m.ID, Refused: fmt.Sprintf("create job %q: %v", m.Name, err)})
			return
		}
	}
	job, ok := l.view.JobByName(m.Name)
	if ok {
		other := cmp.Or(m.OtherLayout(job), m.OtherOrigin(job))
		if job.Stop != nil && other == "" {
			l.goOn(ctx, from, m, job)
			return
		}
		l.created(from, m, control.CreateReply{ID: m.ID, Refused: other})
		return
	}
	if was := endedBefore(l.view, m); was != "" {
		l.created(from, m, control.CreateReply{ID: m.ID, Refused: was})
		return
	}
	if err := l.accounts.mayCreate(l.view, l.kv, m); err != nil { // before anything is looked for
		l.created(from, m, control.CreateReply{ID: m.ID, Refused: err.Error()})
		return
	}
	if m.Resume && l.store == nil { // starting afresh would be a silent loss
		l.created(from, m, control.CreateReply{ID: m.ID, Refused: fmt.Sprintf("resume job %q: the leader runs without its durable tier, its log says why: mend that and start its daemon again, or leave out --resume", m.Name)})
		return
	}
	if m.Resume {
		l.work.Go(func() { l.post(l.adoptable(ctx, from, m)) })
		return
	}
	if bad := noOrigin(m); bad != "" {
		l.created(from, m, control.CreateReply{ID: m.ID, Refused: bad})
		return
	}
	l.mint(ctx, from, m, replica.CreateJob{From: m.From})
}

// endedBefore says why a job is not begun anew by a process that somebody may have started again by a rule, where nobody has said what it begins with: the newest of its name
// has ended with steps that nobody has finished. Empty: it may be.
func endedBefore(v lock.View, m control.CreateRequest) string {
	if !m.UnlessEnded || m.Resume {
		return ""
	}
	var last *replica.Job
	for _, j := range v.Jobs {
		if j.Name == m.Name && j.Phase == replica.Ended && (last == nil || j.LastIndex > last.LastIndex) {
			last = j
		}
	}
	if last == nil || last.Position.Step == 0 || recovery.HasFinished(last) {
		return ""
	}
	return fmt.Sprintf("create job %q: it ended after step %d (%s), and this would begin anew at step 0: go on with --resume (connect(resume=True)), ask for a new beginning (connect(resume=False)), or use another name",
		m.Name, last.Position.Step, last.EndReason)
}

// noOrigin says why a new job can't begin with what is asked for; empty: it can.
func noOrigin(m control.CreateRequest) string {
	if m.From == nil || m.FromFailed == "" {
		return ""
	}
	return fmt.Sprintf("begin job %q with %s: %s", m.Name, m.From.Asked, m.FromFailed)
}

// proved tells whether somebody showed the token of a job.
func (l *Leader) proved(job, token string) bool {
	return subtle.ConstantTimeCompare([]byte(l.cfg.Token(job)), []byte(token)) == 1 || l.cfg.Token(job) == ""
}

// adopt is the end of looking for a durable generation to open a job from.
type adopt struct {
	from    *nodeLink
	request control.CreateRequest
	command replica.CreateJob // ID zero: there is none, the job starts afresh
	refused string
	news    []string // for the launchers, once there is a job
}

// adoptPatience is how long a launcher waits for the newest durable generation to be read whole, which nobody has read back, where one behind it was. A
// larger one is gone on from as it is: the ranks check what they load.
const adoptPatience = 8 * time.Second

// adoptable looks for the newest durable generation of a job's name: its UUID, epochs and lineage are taken over (protocol
// section 5.4), whichever cluster wrote it. One of another layout is refused, not passed over, and so is a name of whose every finished generation something is
// damaged: starting afresh would be a silent loss. What is passed over is read by then, and said with the plan.
func (l *Leader) adoptable(ctx context.Context, from *nodeLink, m control.CreateRequest) adopt {
	a := adopt{from: from, request: m}
	passed := l.finishSpooled(ctx, m.Name, nil)
	all, every, err := l.store.Find(ctx, m.Name, replica.JobID{})
	found, skipped := ofOwner(m.Owner, all, every)
	newest := newestOf(found, skipped)
	switch {
	case err != nil:
		a.refused = fmt.Sprintf("resume job %q from the durable tier: %v", m.Name, err)
	case newest != nil:
		if a.refused = cmp.Or(l.unfitting(m, found, *newest), lostRun(l.store.URL(), m.Name, skipped, *newest)); a.refused == "" {
			l.adopts(ctx, &a, found, skipped, *newest)
			a.news = append(a.news, l.othersNews(m.Name, *newest, newestOf(all, every)))
		}
	default:
		s := searched{skipped: skipped}
		if wrong := s.wrong(); len(wrong) > 0 {
			a.refused = l.noneUsable(m.Name, wrong)
			break
		}
		a.command.From = m.From
		if a.refused = noOrigin(m); m.From != nil {
			break // its launchers say what it begins with
		}
		a.news = append(a.news, fmt.Sprintf("warning: nothing to resume job %q from: %s has no finished generation of it; it starts from its beginning", m.Name, l.store.URL()))
		l.log.Note2(nil, "resume", fmt.Sprintf("no durable generation of job %q: it starts afresh", m.Name))
	}
	if passed != "" && a.refused == "" {
		a.news = append(a.news, passed)
	}
	if newest == nil || a.refused != "" {
		for _, s := range skipped {
			l.log.Skipped(nil, s.Where(), s.Reason)
		}
	}
	return a
}

// ofOwner leaves out what other users wrote under a job's name, where the one who asks has written something under it, too: whoever takes a
// name, with its token, does not take what others have under it. Where nothing is the asker's, all of it is left: the refusal names whose it is.
func ofOwner(owner uint32, found []tier.Found, skipped []tier.Skipped) ([]tier.Found, []tier.Skipped) {
	foreign := func(f tier.Found) bool { return f.Owner != owner }
	lost := func(s tier.Skipped) bool { return s.Whole != nil && foreign(*s.Whole) }
	mine := slices.DeleteFunc(slices.Clone(found), foreign)
	passed := slices.DeleteFunc(slices.Clone(skipped), lost)
	if owner == 0 || len(mine) == 0 && !slices.ContainsFunc(passed, func(s tier.Skipped) bool { return s.Whole != nil }) {
		return found, skipped
	}
	return mine, passed
}

// othersNews says that another user has written under the name, and later; empty: nobody has.
func (l *Leader) othersNews(name string, mine tier.Found, newest *tier.Found) string {
	if newest == nil || newest.Owner == mine.Owner {
		return ""
	}
	return fmt.Sprintf("warning: a newer durable generation under the name %q, %v in %s, is user %d's: it is passed over, and this job goes on from what user %d wrote", name, newest.Generation, l.at(*newest), newest.Owner, mine.Owner)
}

// newestOf is the newest generation that may be good; where there is none, the newest that a mark says is damaged; nil: nor that.
func newestOf(found []tier.Found, skipped []tier.Skipped) (newest *tier.Found) {
	if len(found) > 0 {
		return &found[0]
	}
	for _, sk := range skipped {
		if f := sk.Whole; f != nil && (newest == nil || f.At > newest.At) {
			newest = f
		}
	}
	return newest
}

// unfitting says why a generation can't be gone on from here, whatever its bytes are; empty: it can.
func (l *Leader) unfitting(m control.CreateRequest, found []tier.Found, f tier.Found) string {
	rival, tied := tier.Rival(found)
	switch {
	case f.Owner != m.Owner && m.Owner != 0:
		return fmt.Sprintf("resume job %q: durable generation %v in %s is user %d's, and user %d asks: resume it as that user, or use another name", m.Name, f.Generation, l.at(f), f.Owner, m.Owner)
	case m.Unlike(f.Layout) != "":
		return fmt.Sprintf("resume job %q: durable generation %v in %s has %s: start it with that layout, or without --resume", m.Name, f.Generation, l.at(f), m.Unlike(f.Layout))
	case tied:
		unread := ""
		if rival.Run.Unsure != nil {
			unread = fmt.Sprintf(" (%v)", rival.Run.Unsure)
		}
		return fmt.Sprintf("resume job %q: %s has generations of two jobs of that name, in %s and %s, and nothing says which was written last%s: move the directory of the job that is not meant elsewhere, or leave out --resume to start afresh", m.Name,
			l.store.URL(), path.Dir(l.at(f)), path.Dir(l.at(rival)), unread)
	}
	return ""
}

// lostRun says that a later run of the name has nothing that can be used: an older run does not pass for it. Empty: there is none.
func lostRun(url, name string, skipped []tier.Skipped, f tier.Found) string {
	s := searched{skipped: slices.DeleteFunc(slices.Clone(skipped), func(sk tier.Skipped) bool {
		return sk.Run.ID == f.Commit.Run || sk.Run.Order <= f.Run.Order || sk.Run.Owner != f.Owner
	})}
	wrong := s.wrong()
	if len(wrong) == 0 {
		return ""
	}
	return fmt.Sprintf("resume job %q: no durable generation of its last run, %s/%s, can be used: %s. Bring back what is damaged; or move that directory elsewhere, and resume goes on from the run before, step %d; or leave out --resume to start afresh",
		name, url, path.Dir(s.skipped[0].Where()), replica.Listed(wrong, maxWrong), f.Position.Step)
}

// at names where a generation lies.
func (l *Leader) at(f tier.Found) string { return l.store.URL() + "/" + f.Where() }

// maxWrong bounds what a refusal says of the files that are damaged, in bytes.
const maxWrong = 700

func (l *Leader) noneUsable(name string, wrong []string) string {
	return fmt.Sprintf("resume job %q: no durable generation in %s/%s can be used: %s. Bring back what is damaged, or leave out --resume to start afresh", name, l.store.URL(), name, replica.Listed(wrong, maxWrong))
}

// adopts has a job go on from the newest generation of the newest one's job of which nothing says that it is damaged.
func (l *Leader) adopts(ctx context.Context, a *adopt, found []tier.Found, skipped []tier.Skipped, newest tier.Found) {
	own := func(f tier.Found) bool { return f.Commit.Run == newest.Commit.Run }
	s := searched{found: slices.DeleteFunc(slices.Clone(found), func(f tier.Found) bool { return !own(f) }), says: a.reads()}
	s.prove(ctx, l, own)
	read := s.skipped
	if s.skipped = slices.Clone(skipped); s.good == nil { // somebody may have brought back what was damaged
		s.search(ctx, ctx, l, own)
	}
	s.skipped = append(s.skipped, read...)
	for _, sk := range s.skipped {
		l.log.Skipped(nil, sk.Where(), sk.Reason)
	}
	f := s.good
	if f == nil {
		a.refused = l.noneUsable(a.request.Name, s.wrong())
		return
	}
	a.request.Layout, a.request.NameGroups = f.Layout, false // the groups are those that its ranks had
	resumed, err := l.store.Resume(ctx, *f, l.cfg.Cluster, l.cons.State().Fleet, s.newestEpoch(*f))
	if errors.Is(err, tier.ErrFenced) {
		a.refused = fmt.Sprintf("resume job %q: %v", a.request.Name, err)
		return
	}
	if err != nil { // nothing is written without a claim: the first durable write tries again
		l.log.Failed("durable", "claim the run of job "+a.request.Name, err.Error())
	}
	a.command = replica.CreateJob{ID: f.Commit.Run, Epoch: resumed.Epoch, Writes: resumed.Writes, Began: resumed.Began, Lineage: f.Lineage, Condemned: f.Condemned, Durable: f.Generation, Geometries: f.Geometries, Recipe: f.Recipe, Grown: f.Grown, From: f.From}
	a.request.Owner = f.Owner
	a.news = []string{l.foreignNews(*f), unusedNews(a.request, *f), lackingNews(*f), plainNews(*f, l.cfg.Encrypts), notesNews(*f, a.request.Notes)}
	if s.unread {
		a.news = append(a.news, fmt.Sprintf("warning: nobody has read step %d back since it was written, and to read it now takes too long: its bytes are checked while they are loaded, and where they are damaged the job goes on from the step before", f.Position.Step))
	}
	for _, over := range resumed.Over {
		a.news = append(a.news, takenNews(*f, over))
	}
	l.log.Note2(nil, "resume", fmt.Sprintf("job %q goes on from durable generation %v in %s", a.request.Name, f.Generation, l.at(*f)))
}

// readingTold is how often a launcher prints how far a reading is that it waits for.
const readingTold = 30 * time.Second

// reads has the launcher hear how a reading goes on that it waits for: it is to give nothing up.
func (a *adopt) reads() readingSays {
	var told time.Duration
	return func(f tier.Found, read uint64, since time.Duration) {
		r := control.CreateReply{ID: a.request.ID, Waits: true}
		if told == 0 || since < told || since-told >= readingTold {
			told = since
			r.Text = fmt.Sprintf("resume: step %d is read before a process is started, since nobody has read it back since it was written: %s of %s so far", f.Position.Step, sizeText(min(read, f.Bytes)), sizeText(f.Bytes))
		}
		if a.from != nil {
			a.from.SendFor(control.User(a.request.Owner), r)
		}
	}
}

// unusedNews says that a job does not begin with what --from names, since it has a state of its own; empty: nothing was named.
func unusedNews(m control.CreateRequest, f tier.Found) string {
	if m.From == nil {
		return ""
	}
	return fmt.Sprintf("--from %s is not used: job %q has a durable state of its own, step %d, and goes on from there", m.From.Asked, m.Name, f.Position.Step)
}

// foreignNews says that a run changes its cluster; empty: it does not.
func (l *Leader) foreignNews(f tier.Found) string {
	if f.Cluster == l.cfg.Cluster {
		return ""
	}
	return fmt.Sprintf("step %d, which the job goes on from, was written by cluster %v: the run is this cluster's now (%v), and that one writes nothing durable to it any more", f.Position.Step, f.Cluster, l.cfg.Cluster)
}

// takenNews names the fleet that the run of a generation is taken from, where it may have begun just now, or was not alone.
func takenNews(f tier.Found, over tier.Claim) string {
	if f.Generation.Epoch >= over.Epoch {
		return fmt.Sprintf("warning: fleet %s (cluster %v) claimed epoch %d of this run at %s, and another fleet did so too: if it still trains, it writes nothing durable any more, so end one of the two jobs; replicad ckpt verify reads what they wrote", over.Fleet, over.Cluster,
			over.Epoch, time.UnixMilli(over.At).UTC().Format("2006-01-02 15:04:05 MST"))
	}
	return fmt.Sprintf("warning: fleet %s (cluster %v) took this run at %s and has committed nothing since step %d: if it still trains, it writes nothing durable any more, so end one of the two jobs", over.Fleet, over.Cluster,
		time.UnixMilli(over.At).UTC().Format("2006-01-02 15:04:05 MST"), f.Position.Step)
}

// newestEpoch is the newest epoch that a job which goes on from a generation may have had: what it writes lies behind what is passed over.
func (s *searched) newestEpoch(f tier.Found) replica.Epoch {
	e := max(f.Lineage.Last().Epoch, f.Generation.Epoch)
	for _, other := range s.found {
		e = max(e, other.Lineage.Last().Epoch, other.Generation.Epoch)
	}
	for _, sk := range s.skipped {
		if sk.Run.ID == f.Commit.Run {
			e = max(e, sk.Generation.Epoch)
		}
	}
	return e
}

// lackingNews says what the durable generation lacks that a job opens from. Empty: nothing.
func lackingNews(m tier.Found) string {
	var rows []string
	for _, l := range m.Lacks {
		rows = append(rows, fmt.Sprintf("%s (%s)", l.Text, l.Who()))
	}
	if len(rows) == 0 {
		return ""
	}
	const most = 700 // of a note's text, which has the rest of the sentence too
	names := strings.Join(rows, "; ")
	if len(names) > most {
		names = replica.Cut(names, most) + "..."
	}
	return fmt.Sprintf("warning: step %d, which the job goes on from, lacks %s: this is not the same run; session.noticed says what to do", m.Position.Step, names)
}

// plainNews says that a run which was encrypted goes on without. Empty: it does not.
func plainNews(f tier.Found, encrypts bool) string {
	if f.Sealed == nil || encrypts {
		return ""
	}
	return fmt.Sprintf("warning: step %d, which the job goes on from, is encrypted, and what this job writes is not: no durable_recipients are set here", f.Position.Step)
}

// notesNews says which notes of a run are other ones than the run's that it goes on from. What was noted there by the program it may yet note here.
func notesNews(f tier.Found, notes []replica.Remark) string {
	var rows []string
	for _, n := range notes {
		switch was, known := f.Notes[n.Name]; {
		case !known:
			rows = append(rows, fmt.Sprintf("%s is %q, and was not noted", n.Name, n.Text))
		case was != n.Text:
			rows = append(rows, fmt.Sprintf("%s is %q, and was %q", n.Name, n.Text, was))
		}
	}
	if len(rows) == 0 {
		return ""
	}
	return fmt.Sprintf("notes differ from those of step %d, which the job goes on from: %s", f.Position.Step, replica.Listed(rows, maxWrong))
}

// tell has the launchers of a job print something, on all nodes.
func (l *Leader) tell(job replica.JobID, text string) {
	for _, n := range l.links.of {
		n.Send(control.Tell{Job: job, Text: text})
	}
}

// mint creates the job, under the adopted identity where there is one, and tells its launchers the news.
func (l *Leader) mint(ctx context.Context, from *nodeLink, m control.CreateRequest, c replica.CreateJob, news ...string) {
	if c.ID == (replica.JobID{}) {
		rand.Read(c.ID[:])
	}
	if c.Began == 0 {
		c.Began = uint64(max(time.Now().UnixMilli(), 1))
	}
	c.Name, c.Layout, c.NameGroups, c.Options, c.Owner, c.Creator = m.Name, m.Layout, m.NameGroups, m.Options, m.Owner, from.node.Name
	if c.Options.Slots == 0 { // named in the command: a log that is read again makes the same job
		c.Options.Slots = m.Layout.DefaultSlots(m.Options.MinCopies)
	}
	c.Limit = lock.MaxView
	err := l.accounts.mayCreate(l.view, l.kv, m)
	if err == nil {
		err = lock.Fits(l.view, c)
	}
	if err != nil {
		l.created(from, m, control.CreateReply{ID: m.ID, Refused: err.Error()})
		return
	}
	charged := l.accounts.charge(m.Owner, world(m.Layout.World))
	c.Copies = max(1, min(m.Options.WithDefaults().MinCopies, len(l.view.Nodes)))
	l.propose(ctx, c.ID, c, fromDriver, func(out lock.Outcome, err error) {
		charged()
		r := control.CreateReply{ID: m.ID, Retry: err != nil} // without an answer of the log nobody knows whether there will be a job
		if err == nil {
			err = out.Err
		}
		if err != nil {
			if _, ok := l.cons.State().JobByName(m.Name); !ok { // two launchers may have asked at once
				r.Refused = err.Error()
			}
		}
		l.created(from, m, r)
		for _, text := range news {
			if err == nil && text != "" {
				l.tell(c.ID, text)
			}
		}
	})
}

// fenced logs, once per closed epoch, that every surviving daemon has acknowledged the fence and settled.
func (l *Leader) fenced(led *ledJob) {
	if led.job.Phase != replica.Closed || led.fenced == led.job.ClosedEpoch {
		return
	}
	dead := map[replica.Holder]bool{}
	for _, f := range led.job.Faults {
		if f.OfNode() {
			dead[replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation}] = true
		}
	}
	for _, c := range led.job.Ranks {
		h := replica.Holder{Node: c.Node, Incarnation: c.NodeIncarnation}
		if r, ok := led.reports[c.Node]; c.Incarnation != 0 && !dead[h] && (!ok || r.Fenced < led.job.ClosedEpoch || !r.Settled) {
			return
		}
	}
	led.fenced = led.job.ClosedEpoch
	l.log.Fenced(led.job)
}

// parting has ranks whose last steps differ do them again: they have all left, and recovery ends the job once those are committed, or
// can't be. The epoch may be closed before any is.
func (l *Leader) parting(ctx context.Context, led *ledJob) {
	if led.disputing || led.job.Phase != replica.Open || !led.recovery.AllLeft() {
		return
	}
	if d := lock.Parting(led.job, led.reports); d != nil {
		led.disputing = true
		l.propose(ctx, led.job.ID, *d, fromDriver, nil)
	}
}
