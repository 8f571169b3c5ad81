package desk

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/leader/leadertest"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

var epoch3 = scope{fixture.JobID, 3}

// A meeting is a desk and its owner, a keeper, and the leader of now. Nothing moves but when the test says so.
type meeting struct {
	*Desk
	t        *testing.T
	log      *fixture.Lines
	jobs     map[replica.JobID]Job // what the owner knows
	requests uint64
	left     int            // requests that may go
	said     []any          // to the leader, and not carried there
	errands  []func() Event // what the desk asked of its owner, in order
	keeper   *shm.Keeper

	job   *replica.Job // as the leaders know it
	chair *leadertest.Leader
	link  *control.Link // the leader's end
	term  uint64
	peers uint64
	asked uint32
	once  uint32
}

// newMeeting has both ranks of the job on this node.
func newMeeting(t *testing.T) *meeting {
	t.Helper()
	m := &meeting{t: t, log: &fixture.Lines{}, jobs: map[replica.JobID]Job{}, left: math.MaxInt, term: 6}
	m.keeper = keeper(t)
	m.Desk = New(m, journaltest.New(t, m.log))
	t.Cleanup(func() { m.dies() })
	job := fixture.Job()
	job.Ranks[1].Node, job.Ranks[1].NodeIncarnation = "n1", 11
	m.knows(job)
	m.elect()
	return m
}

func keeper(t *testing.T) *shm.Keeper {
	t.Helper()
	dir, err := os.MkdirTemp("", "rn") // t.TempDir's path is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "keeper.sock")
	server, err := shm.ListenKeeper(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	k, err := shm.DialKeeper(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// Send keeps what the leader is told, as it comes out of a link.
func (m *meeting) Send(msg any) {
	m.t.Helper()
	frames, err := control.Encode(control.ToLeader, msg)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, frame := range frames {
		k, b, err := wire.Read(bytes.NewReader(frame), control.MaxLinkFrame)
		if err != nil {
			m.t.Fatal(err)
		}
		msg, err := control.Decode(control.ToLeader, k, b)
		if err != nil {
			m.t.Fatalf("kind %d: %v", k, err)
		}
		m.said = append(m.said, msg)
	}
}

func (m *meeting) May(replica.JobID) bool {
	if m.left == 0 {
		return false
	}
	m.left--
	return true
}

func (m *meeting) NextRequest() uint64 {
	m.requests++
	return m.requests
}

func (m *meeting) Job(id replica.JobID) (Job, bool) {
	job, known := m.jobs[id]
	return job, known
}

func (m *meeting) Park(key string, f *os.File, done Event) {
	m.t.Helper()
	mine, err := unixsock.Duplicate(f)
	if err != nil {
		m.t.Fatal(err)
	}
	m.errands = append(m.errands, func() Event {
		if err := m.keeper.Put(key, mine); err != nil {
			m.t.Error(err)
		}
		mine.Close()
		return done
	})
}

func (m *meeting) Unpark(key string) {
	m.errands = append(m.errands, func() Event {
		if err := m.keeper.Drop(key); err != nil {
			m.t.Error(err)
		}
		return nil
	})
}

func (m *meeting) Beside(work func() Event) { m.errands = append(m.errands, work) }

// knows has leader and owner know the job as it is now; the owner fences what is closed of it.
func (m *meeting) knows(job *replica.Job) {
	m.job = job
	is := Job{Closed: job.ClosedEpoch, Ended: job.Phase == replica.Ended, EndReason: job.EndReason}
	m.jobs[job.ID] = is
	if is.Ended {
		is.Closed = replica.MaxEpoch
	}
	m.Fence(job.ID, is.Closed)
	m.JobsTold()
	if m.chair != nil {
		m.chair.Knows(job)
	}
}

// elect changes the leader: the new one knows the log, and nothing of what the old one was told.
func (m *meeting) elect() {
	m.term++
	m.chair = leadertest.New(m.t, m.term)
	m.link = m.chair.Node("n1", 11)
	m.chair.Knows(m.job)
	m.linkAnew()
}

// linkAnew loses what is on its way to the leader, which the desk is told of as of a new one.
func (m *meeting) linkAnew() {
	m.said = nil
	m.Resend()
}

// says takes what the leader was told and has not heard.
func (m *meeting) says() []any {
	said := m.said
	m.said = nil
	return said
}

// carry carries everything that both sides have said.
func (m *meeting) carry() {
	m.t.Helper()
	for moved := true; moved; {
		moved = false
		for _, msg := range m.says() {
			m.chair.Message(m.t.Context(), "n1", msg)
			moved = true
		}
		for _, reply := range fixture.Only[control.KVReply](leadertest.Said(m.t, m.link)) {
			m.Reply(reply)
			moved = true
		}
	}
}

// runs does everything that the desk asked of its owner.
func (m *meeting) runs() {
	for len(m.errands) > 0 {
		errand := m.errands[0]
		m.errands = m.errands[1:]
		if ev := errand(); ev != nil {
			m.Handle(ev)
		}
	}
}

// serve carries everything that both sides have said, and does what the desk asks of its owner.
func (m *meeting) serve() {
	m.t.Helper()
	m.carry()
	m.runs()
}

// parked lists the keys under which the keeper holds something.
func (m *meeting) parkedKeys() map[string]bool {
	m.t.Helper()
	keys := map[string]bool{}
	for key, f := range m.held() {
		f.Close()
		keys[key] = true
	}
	return keys
}

func (m *meeting) held() map[string]*os.File {
	m.t.Helper()
	m.runs()
	files, err := m.keeper.All()
	if err != nil {
		m.t.Fatal(err)
	}
	return files
}

// dies closes what a daemon's death closes.
func (m *meeting) dies() {
	for _, l := range m.ledgers {
		if l.file != nil {
			l.file.Close()
		}
	}
}

// restart puts another daemon's desk in this one's place, which takes back what the keeper holds. It knows no job.
func (m *meeting) restart() {
	m.t.Helper()
	m.runs()
	m.dies()
	m.Desk, m.said, m.jobs = New(m, journaltest.New(m.t, m.log)), nil, map[replica.JobID]Job{}
	for key, f := range m.held() {
		if !Records(key) {
			m.t.Errorf("the keeper has %s", key)
		}
		if !m.Adopt(key, f) {
			m.Unpark(key)
		}
	}
}

// restarts kills the daemon and the leader. The ranks' processes live, and come back on sessions of their own.
func (m *meeting) restarts(guests ...*guest) {
	m.t.Helper()
	m.restart()
	m.knows(m.job)
	m.elect()
	for _, g := range guests {
		*g = *m.guest(g.rank)
	}
	m.serve()
}

// guest is a rank's process at the rendezvous, and its session.
type guest struct {
	m    *meeting
	id   uint64
	rank replica.Rank
	last uint32   // its newest request
	told []string // what it was sent, described
}

// peer is a session of a process that was not admitted.
func (m *meeting) peer(rank replica.Rank) *guest {
	m.peers++
	return &guest{m: m, id: m.peers, rank: rank}
}

func (m *meeting) guest(rank replica.Rank) *guest {
	g := m.peer(rank)
	m.Admit(g, Caller{fixture.JobID, rank, 70 + uint64(rank)})
	return g
}

func (g *guest) ID() uint64 { return g.id }

func (g *guest) Send(h wire.RankHeader, body []byte) error {
	g.m.t.Helper()
	if h.Request != g.last {
		g.m.t.Errorf("message %d answers request %d, the newest is %d", h.Type, h.Request, g.last)
	}
	g.told = append(g.told, describe(g.m.t, h, body))
	return nil
}

func (g *guest) Refuse(req uint32, code int32, text string) {
	g.m.t.Helper()
	if req != g.last {
		g.m.t.Errorf("request %d is refused, the newest is %d", req, g.last)
	}
	g.told = append(g.told, fmt.Sprint("refused ", code, " ", text))
}

func describe(t *testing.T, h wire.RankHeader, body []byte) (said string) {
	t.Helper()
	var err error
	switch h.Type {
	case wire.MKVOK:
		var code int32
		code, err = wire.ParseKVOK(body)
		said = fmt.Sprint("ok ", code)
	case wire.MKVValue:
		var v wire.KVValue
		v, err = wire.ParseKVValue(body)
		said = fmt.Sprintf("value %d %s", v.Code, v.Value)
	case wire.MKVTotal:
		var v wire.KVTotal
		v, err = wire.ParseKVTotal(body)
		said = fmt.Sprint("total ", v.Code, " ", v.Total)
	case wire.MScoped:
		var v wire.Scoped
		v, err = wire.ParseScoped(body)
		said = fmt.Sprint("scope ", v.Epoch)
	default:
		said = fmt.Sprint("message ", h.Type)
	}
	if err != nil {
		t.Error(err)
	}
	return said
}

// asks sends a request of an epoch; a write gets the next number.
func (g *guest) asks(epoch replica.Epoch, op uint16, kv wire.KV) {
	switch op {
	case wire.MKVSet, wire.MKVAdd, wire.MKVCompareSet, wire.MKVDelete:
		if kv.Once == 0 {
			g.m.once++
			kv.Once = g.m.once
		}
	}
	g.m.asked++
	g.last = g.m.asked
	g.m.Ask(g, wire.RankHeader{Type: op, Request: g.last, Epoch: epoch}, op, kv)
}

// ask sends a request of epoch 3.
func (g *guest) ask(op uint16, kv wire.KV) { g.asks(3, op, kv) }

// askScope asks which epoch is to come.
func (g *guest) askScope() {
	g.m.asked++
	g.last = g.m.asked
	g.m.AskScope(g, wire.RankHeader{Type: wire.MScope, Request: g.last})
}

// hears describes the next message to the process; "nothing" where there is none.
func (g *guest) hears() string {
	if len(g.told) == 0 {
		return "nothing"
	}
	said := g.told[0]
	g.told = g.told[1:]
	return said
}

// tells asks, has it served, and compares the answer.
func (g *guest) tells(want string, op uint16, kv wire.KV) {
	g.m.t.Helper()
	g.ask(op, kv)
	g.m.serve()
	if got := g.hears(); got != want {
		g.m.t.Fatalf("message %d of key %q is answered %q, want %q", op, kv.Key, got, want)
	}
}

// quiet fails if anything was sent to the process that it has not heard.
func (g *guest) quiet() {
	g.m.t.Helper()
	if len(g.told) != 0 {
		g.m.t.Errorf("the process was sent %q, want nothing", g.told)
	}
}

func addend(n int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }

// loses takes what the leader has said, which then never arrives.
func (m *meeting) loses() { leadertest.Said(m.t, m.link) }
