package admission

import (
	"errors"
	"iter"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// A rig is a gate whose owner is the test. Nothing moves but when the test does so: what would run beside an owner waits in ends.
type rig struct {
	*Gate
	t         *testing.T
	log       *fixture.Lines
	informed  bool
	store     bool
	jobs      map[replica.JobID]*localJob
	launching map[string]bool
	runs      map[int]bool // processes that live
	creates   int          // of launchers, under way
	pace      int          // how much more may be asked; below 0: no more than that is bounded
	lacks     error        // why an arena can't be had
	fails     error        // why one can't be made
	waits     bool         // for what this node was short of
	retries   []bool
	kept      replica.Geometry // in the durable tier
	ends      []func() Event
	sent      []any    // to the leader
	did       []string // by the owner
	speaks    map[uint64]bool
	peers     uint64
	requests  uint64
	at        time.Time
}

func newRig(t *testing.T) *rig {
	t.Helper()
	d := &rig{t: t, log: &fixture.Lines{}, informed: true, jobs: map[replica.JobID]*localJob{}, launching: map[string]bool{},
		runs: map[int]bool{}, pace: -1, speaks: map[uint64]bool{}, at: time.Unix(1000, 0)}
	d.Gate = New(d, d, d, d, journaltest.New(t, d.log), (*journal.Auditor)(nil), &config.Config{Node: "n1"})
	return d
}

func (d *rig) does(what string) { d.did = append(d.did, what) }

func (d *rig) Informed() bool { return d.informed }

func (d *rig) Self() replica.Holder { return replica.Holder{Node: "n1", Incarnation: 11} }

func (d *rig) Known(id replica.JobID) Job {
	if lj := d.jobs[id]; lj != nil {
		return lj
	}
	return nil
}

func (d *rig) Named(name string) Job {
	for _, lj := range d.jobs {
		if lj.job.Name == name && lj.job.Phase != replica.Ended {
			return lj
		}
	}
	return nil
}

func (d *rig) RankOf(p session.Peer) (Job, replica.Rank) {
	for _, lj := range d.jobs {
		for r, is := range lj.ranks {
			if is.Peer == p {
				return lj, r
			}
		}
	}
	return nil, 0
}

func (d *rig) Send(msg any) { d.sent = append(d.sent, msg) }

func (d *rig) May(uint32, replica.JobID) bool {
	if d.pace == 0 {
		return false
	}
	d.pace--
	return true
}

func (d *rig) NextRequest() uint64 {
	d.requests++
	return d.requests
}

func (d *rig) Report() { d.does("reports") }

func (d *rig) Alive(pid int, _ uint64) bool { return d.runs[pid] }

func (d *rig) HandOut(j Job, c Claimed) {
	lj := d.jobs[j.Record().ID]
	lj.retired = slices.DeleteFunc(lj.retired, func(a *holding.Arena) bool { return a == c.Arena })
	if old := lj.ranks[c.Rank]; old != nil && old.Arena != c.Arena {
		lj.retired = append(lj.retired, old.Arena)
	}
	p := c.Peer
	lj.ranks[c.Rank] = &Rank{Incarnation: c.Incarnation, Arena: c.Arena, PID: p.PID(), Start: p.StartTime(), Peer: p, Alive: true}
	d.Answer(lj, c.Rank, c.Request, d.at)
}

func (d *rig) HandOutAgain(j Job, r replica.Rank, p session.Peer, request uint32) {
	d.jobs[j.Record().ID].ranks[r].Peer = p
	d.Answer(j, r, request, d.at)
}

func (d *rig) Short(_ replica.JobID, _ replica.Rank, kind want.Kind, why string, _ time.Time) {
	d.does("is short of " + kind.String() + ": " + why)
}

func (d *rig) MayTry(replica.JobID, time.Time) bool { return !d.waits }

func (d *rig) Spec(job *replica.Job, r replica.Rank) shm.Spec {
	return shm.Spec{Cluster: fixture.Cluster, Era: 1, Job: job.ID, Rank: r, ChunkBytes: room.ChunkBytes(job), Slots: room.Slots(job)}
}

func (d *rig) Descriptors() error { return nil }

func (d *rig) Room(shm.Spec) error { return d.lacks }

func (d *rig) Make(_ replica.JobID, spec shm.Spec, made func(*shm.Arena, error) Event) {
	d.does("makes an arena")
	d.ends = append(d.ends, func() Event {
		if d.fails != nil {
			return made(nil, d.fails)
		}
		return made(roomtest.Memory(d.t, spec), nil)
	})
}

func (d *rig) Unmap(*shm.Arena) { d.does("unmaps an arena") }

func (d *rig) Keep(a *shm.Arena, key string) *holding.Arena {
	d.does("keeps " + key)
	return roomtest.Hold(a, key)
}

func (d *rig) Save() { d.does("saves the list") }

func (d *rig) Park(done Event) {
	d.does("saves the list")
	d.ends = append(d.ends, func() Event { return done })
}

func (d *rig) Forget(a *holding.Arena) { d.does("forgets " + a.Key()) }

func (d *rig) HasStore() bool { return d.store }

func (d *rig) Regions(_ *replica.Job, _ replica.Rank, read func(replica.Geometry) Event) {
	d.does("reads the store")
	d.ends = append(d.ends, func() Event { return read(d.kept) })
}

func (d *rig) Launching(job string) bool { return d.launching[job] }

func (d *rig) Attached(string, replica.Rank) {}

func (d *rig) Refused(string, replica.Rank, string) {}

func (d *rig) UnderWay() int { return d.creates }

func (d *rig) UnderWayOf(uint32) int { return d.creates }

func (d *rig) Retries(time.Time) iter.Seq[bool] {
	over := d.retries
	d.retries = nil
	return slices.Values(over)
}

func (d *rig) Admit(p desk.Peer, _ desk.Caller) { d.speaks[p.ID()] = true }

func (d *rig) Leave(p desk.Peer) { delete(d.speaks, p.ID()) }

// end ends the first thing that runs beside the owner.
func (d *rig) end() error {
	if len(d.ends) == 0 {
		return errors.New("nothing runs beside the owner")
	}
	next := d.ends[0]
	d.ends = d.ends[1:]
	d.Handle(next(), d.at)
	return nil
}

// taken is what the leader was sent since.
func (d *rig) taken() []any {
	sent := d.sent
	d.sent = nil
	return sent
}

// localJob is a job as the test has it.
type localJob struct {
	job     *replica.Job
	ranks   map[replica.Rank]*Rank
	retired []*holding.Arena
	book    *Book
}

func (d *rig) put(job *replica.Job) *localJob {
	lj := &localJob{job: job, ranks: map[replica.Rank]*Rank{}, book: NewBook()}
	d.jobs[job.ID] = lj
	return lj
}

func (lj *localJob) Record() *replica.Job { return lj.job }

func (lj *localJob) View() room.JobView {
	v := room.JobView{Job: lj.job, Fenced: lj.job.ClosedEpoch, Retired: lj.retired}
	for r, is := range lj.ranks {
		v.Ranks = append(v.Ranks, room.Rank{Rank: r, Incarnation: is.Incarnation, Arena: is.Arena, Alive: is.Alive})
	}
	return v
}

func (lj *localJob) Held(r replica.Rank) (is Rank, known bool) {
	if held := lj.ranks[r]; held != nil {
		return *held, true
	}
	return is, false
}

func (lj *localJob) Retire(r replica.Rank) {
	lj.retired = append(lj.retired, lj.ranks[r].Arena)
	delete(lj.ranks, r)
}

func (lj *localJob) Admission() *Book { return lj.book }

// opening is a job whose ranks may be claimed; nobody has one.
func opening() *replica.Job {
	return fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Phase, j.Plan, j.Position, j.Committed, j.Lineage = replica.Opening, nil, replica.Position{}, replica.Generation{}, nil
		j.Ranks = make([]replica.Claimed, 2)
	})
}

// peer is a session.
type peer struct{ roomtest.Peer }

// session is a session of this user's.
func (d *rig) session() *peer {
	d.peers++
	return &peer{roomtest.Peer{T: d.t, Session: d.peers, Process: 1<<22 + int(d.peers), Began: 10 * d.peers, User: os.Geteuid()}}
}

// hello brings a process that asks for rank 0.
func (d *rig) hello(change func(*wire.Hello)) *peer {
	p := d.session()
	h := wire.Hello{ABI: wire.RankABI, Rank: 0, World: 2, Group: 0, Nonce: 77, Job: "job"}
	if change != nil {
		change(&h)
	}
	d.Hello(session.Hello{Peer: p, Header: wire.RankHeader{Request: 1}, Hello: h}, d.at)
	return p
}

// attach has a process register the regions of most tests, as they are after change.
func (d *rig) attach(p *peer, change func([]replica.Region)) {
	regions := fixture.Geometry(d.t, false).Regions
	if change != nil {
		change(regions)
	}
	d.Attach(session.Attach{Peer: p, Header: wire.RankHeader{Request: 2}, Regions: regions}, d.at)
}

// refused reads a refusal and its reason.
func (p *peer) refused() (int32, string) {
	p.T.Helper()
	h, body := p.Reads()
	v, err := wire.ParseRefused(body)
	if h.Type != wire.MRefused || err != nil {
		p.T.Fatalf("the process reads message %d (%v), want a refusal", h.Type, err)
	}
	return v.Code, v.Text
}
