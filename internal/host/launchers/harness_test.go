package launchers

import (
	"cmp"
	"os"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// A rig is a pool whose owner is the test. Nothing moves but when the test says so.
type rig struct {
	*Pool
	t        *testing.T
	log      *fixture.Lines
	informed bool
	store    bool
	jobs     map[replica.JobID]*localJob
	expects  map[replica.Rank]bool // processes for these ranks wait for the daemon
	halted   map[int]bool          // processes that a signal has stopped
	sent     []any                 // to the leader
	died     []replica.Rank
	remarks  []replica.Remark
	tier     replica.Tier // that parts for ranks here came from
	peers    uint64
	requests uint64
	at       time.Time // zero: the time is now
}

func newRig(t *testing.T) *rig {
	t.Helper()
	d := &rig{t: t, log: &fixture.Lines{}, informed: true, jobs: map[replica.JobID]*localJob{}, expects: map[replica.Rank]bool{}, halted: map[int]bool{}}
	cfg := &config.Config{Node: "n1", Timing: config.Default().Timing, StateDir: "/state", DurableDir: "/state/durable"}
	log := journaltest.New(t, d.log)
	d.Pool = New(d, log, (*journal.Auditor)(nil), cfg, fixture.Cluster, "n1")
	return d
}

func (d *rig) Informed() bool { return d.informed }

func (d *rig) Era() replica.Era { return 1 }

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

func (d *rig) All() (jobs []Job) {
	for _, lj := range d.jobs {
		jobs = append(jobs, lj)
	}
	return jobs
}

func (d *rig) Send(msg any) { d.sent = append(d.sent, msg) }

func (d *rig) MayCreate(uint32) bool { return true }

func (d *rig) NextRequest() uint64 {
	d.requests++
	return d.requests
}

func (d *rig) Report(id replica.JobID) { d.sent = append(d.sent, d.reported(d.jobs[id])) }

func (d *rig) Remark(_ replica.JobID, notes []replica.Remark) {
	d.remarks = append(d.remarks, notes...)
}

func (d *rig) Expects(_ *replica.Job, r replica.Rank) bool { return d.expects[r] }

func (d *rig) Died(id replica.JobID, r replica.Rank) {
	d.died = append(d.died, r)
	d.jobs[id].ranks[r].Alive = false
}

func (d *rig) Brought(replica.JobID, replica.Epoch) (replica.Tier, time.Duration) {
	return d.tier, 1500 * time.Millisecond
}

func (d *rig) HasStore() bool { return d.store }

func (d *rig) Halted(pid int, _ uint64) bool { return d.halted[pid] }

func (d *rig) HaltedChild(pid, _ int) bool { return d.halted[pid] }

// says takes what the leader was sent since.
func (d *rig) says() []any {
	sent := d.sent
	d.sent = nil
	return sent
}

// reported is what the node's report has of launchers now.
func (d *rig) reported(lj *localJob) (r replica.NodeReport) {
	d.Of(lj).Fill(&r, cmp.Or(d.at, time.Now()))
	return r
}

func (d *rig) offers(job *replica.Job) (int, bool) { return d.Of(d.jobs[job.ID]).offers(time.Now()) }

func (d *rig) starting(lj *localJob) (ranks []replica.Rank, pids []uint64, halted []replica.Rank) {
	return d.Of(lj).starting(time.Now())
}

// running has a launcher report that a process runs.
func (d *rig) running(p session.Peer, r replica.Rank, pid uint64) {
	d.Handle(session.RunRunning{Peer: p, RunExited: wire.RunExited{Rank: r, PID: pid}}, cmp.Or(d.at, time.Now()))
}

// localJob is a job as the test has it.
type localJob struct {
	job      *replica.Job
	ranks    map[replica.Rank]*Rank
	book     *Book
	closedAt time.Time
}

func (d *rig) put(job *replica.Job) *localJob {
	lj := &localJob{job: job, ranks: map[replica.Rank]*Rank{}, book: NewBook()}
	d.jobs[job.ID] = lj
	return lj
}

func (lj *localJob) Record() *replica.Job { return lj.job }

func (lj *localJob) Launched() *Book { return lj.book }

func (lj *localJob) ClosedAt() time.Time { return lj.closedAt }

func (lj *localJob) Rank(r replica.Rank) (is Rank, known bool) {
	if rank := lj.ranks[r]; rank != nil {
		return *rank, true
	}
	return is, false
}

// attach makes this node the holder of a rank.
func (lj *localJob) attach(r replica.Rank) *Rank {
	lj.ranks[r] = &Rank{PID: 1<<23 + uint64(r), Alive: true}
	return lj.ranks[r]
}

// peer is a session.
type peer struct{ roomtest.Peer }

func newPeer(t *testing.T, id uint64, uid int) *peer {
	return &peer{roomtest.Peer{T: t, Session: id, Process: 1<<22 + int(id), Began: id, User: uid}}
}

// session is a session of this user's, from both ends.
func (d *rig) session() (session.Peer, *peer) {
	d.peers++
	p := newPeer(d.t, d.peers, os.Geteuid())
	return p, p
}

// listener is a launcher of the job whose notes the test reads.
func (d *rig) listener() (session.Peer, *peer) {
	p, end := d.session()
	d.all[p.ID()] = &launcher{peer: p, hello: wire.RunHello{Job: "job"}, accepted: true, job: fixture.JobID, starts: starts{}}
	return p, end
}

// quiet fails if anything was sent to the process that it has not read.
func (p *peer) quiet() {
	p.T.Helper()
	if len(p.Got) != 0 {
		p.T.Errorf("the process was sent message %d, want nothing", p.Got[0].Head.Type)
	}
}

func (p *peer) note() string {
	p.T.Helper()
	h, body := p.Reads()
	v, err := wire.ParseRefused(body)
	if h.Type != wire.MRunNote || err != nil {
		p.T.Fatalf("the launcher reads message %d (%v), want a note", h.Type, err)
	}
	return v.Text
}

// gets is the next message to a launcher: its type, and what a start or a note says.
func (p *peer) gets(t *testing.T) (typ uint16, rank replica.Rank, text string) {
	t.Helper()
	h, body := p.Reads()
	switch h.Type {
	case wire.MRunStart:
		s, err := wire.ParseRunStart(body)
		if err != nil {
			t.Fatal(err)
		}
		rank = s.Rank
	case wire.MRunNote:
		n, err := wire.ParseRefused(body)
		if err != nil {
			t.Fatal(err)
		}
		text = n.Text
	}
	return h.Type, rank, text
}
