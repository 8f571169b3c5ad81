package leader

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/account"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/rendezvous"
	"github.com/replicad/replicad/replica"
)

const alice, bob = 1002, 1003

// asksFor is a launcher's request for a job of a user.
func asksFor(user uint32, name string, ranks uint32) control.CreateRequest {
	return control.CreateRequest{ID: 1, Name: name, Owner: user, Layout: replica.Layout{World: ranks, Groups: make([]replica.GroupID, ranks)}}
}

// applies takes what was proposed into the state, as the log does, and says so.
func (c *chair) applies() {
	c.work.Wait()
	for len(c.in) > 0 {
		ev := <-c.in
		if o, ok := ev.(proposalOutcome); ok {
			if cmd, ok := o.cmd.(replica.CreateJob); ok {
				c.knows(&replica.Job{ID: cmd.ID, Name: cmd.Name, Owner: cmd.Owner, Layout: cmd.Layout, Phase: replica.Opening, Epoch: 1, Ranks: make([]replica.Claimed, cmd.Layout.World)})
			}
		}
		c.handle(c.t.Context(), ev)
	}
}

// 32 launchers of one user, each with a job of thousands of ranks, filled the cluster's state: nobody else created a job.
func TestAUserHasAShareOfTheJobs(t *testing.T) {
	for _, between := range []bool{false, true} { // the state has those before; or all are on their way into the log
		c := newChair(t)
		c.accounts.most = config.PerUser{Jobs: 3, Ranks: 1000, Rendezvous: 1 << 20}
		n := c.node("n1", 11)
		asks := func(user uint32, name string, ranks uint32) string {
			t.Helper()
			c.create(t.Context(), n, asksFor(user, name, ranks))
			text := ""
			for _, r := range fixture.Only[control.CreateReply](told(t, n)) {
				text = r.Refused
			}
			if between {
				c.applies()
				told(t, n)
			}
			return text
		}
		for i := range 2 {
			if text := asks(alice, fmt.Sprint("a", i), 100); text != "" {
				t.Fatal(text)
			}
		}
		for _, want := range []string{"user 1002 has 200 ranks", "801 more", "may have 1000", "per_user.ranks", `create job "large"`} {
			if text := asks(alice, "large", 801); !strings.Contains(text, want) {
				t.Errorf("a world beyond the account: %q, want %q", text, want)
			}
		}
		if text := asks(alice, "a2", 800); text != "" {
			t.Errorf("the last job: %s", text)
		}
		for _, want := range []string{"user 1002 has 3 jobs", "may have 3", "per_user.jobs"} {
			if text := asks(alice, "a3", 1); !strings.Contains(text, want) {
				t.Errorf("a job beyond the account: %q, want %q", text, want)
			}
		}
		if text := asks(bob, "b0", 1000); text != "" {
			t.Errorf("another user: %s", text)
		}
		if !between {
			continue
		}
		if text := asks(bob, "a0", 100); text != "" { // the job is there: its node tells bob whose it is
			t.Errorf("a name that alice has: %s", text)
		}
		if got := c.accounts.status(c.view, c.kv); len(got) != 2 || got[0] != (control.AccountStatus{User: alice, Jobs: 3, MostJobs: 3, Ranks: 1000, MostRanks: 1000, MostRendezvous: 1 << 20}) || got[1].Ranks != 1000 {
			t.Errorf("accounts %+v", got)
		}
		for _, job := range c.view.Jobs {
			if job.Name == "a2" {
				c.knows(fixture.Changed(job, func(j *replica.Job) { j.Phase = replica.Ended }))
			}
		}
		if text := asks(alice, "a4", 800); text != "" {
			t.Errorf("once a job has ended: %s", text)
		}
	}
}

// A create that the log refuses, or whose outcome nobody knows, is charged no longer.
func TestAJobThatNeverWasIsNotCharged(t *testing.T) {
	c := newChair(t)
	n := c.node("n1", 11)
	c.create(t.Context(), n, asksFor(alice, "a", 10))
	if len(c.accounts.minting) != 1 {
		t.Fatalf("on its way: %v", c.accounts.minting)
	}
	c.work.Wait()
	for len(c.in) > 0 {
		c.handle(t.Context(), <-c.in)
	}
	if len(c.accounts.minting) != 0 {
		t.Errorf("charged for ever: %v", c.accounts.minting)
	}
}

// The rendezvous of all of a user's jobs is one account. A job has something for itself besides, so that its recovery needs no room there.
func TestAUserHasAShareOfTheRendezvous(t *testing.T) {
	c := newChair(t)
	c.accounts.most = config.PerUser{Jobs: 8, Ranks: 1000, Rendezvous: 1 << 20}
	n := c.node("n1", 11)
	job := func(id byte, owner uint32) *replica.Job {
		j := fixture.Changed(fixture.Job(), func(j *replica.Job) {
			j.ID, j.Name, j.Owner = replica.JobID{id}, fmt.Sprint("job-", id), owner
			for r := range j.Ranks {
				j.Ranks[r].Node, j.Ranks[r].NodeIncarnation = "n1", 11
			}
		})
		c.knows(j).gathered = true
		return j
	}
	first, second, other := job(1, alice), job(2, alice), job(3, bob)
	once := uint32(0)
	sets := func(j *replica.Job, epoch replica.Epoch, key string, bytes int) string {
		t.Helper()
		once++
		c.rendezvous(n, control.KVRequest{ID: 1, Op: control.KVSet, Job: j.ID, Epoch: epoch, Key: key, Value: make([]byte, bytes), Nonce: 7, Once: once})
		replies := fixture.Only[control.KVReply](told(t, n))
		if len(replies) != 1 {
			t.Fatalf("%d replies", len(replies))
		}
		return replies[0].Refused
	}
	fill := func(j *replica.Job) (bytes int, refused string) {
		t.Helper()
		for i := 0; i < 1000 && refused == ""; i++ {
			if refused = sets(j, j.Epoch, fmt.Sprint("k", i), 32<<10); refused == "" {
				bytes += 32 << 10
			}
		}
		return bytes, refused
	}
	n1, text := fill(first)
	for _, want := range []string{"user 1002", "bytes at the rendezvous", "may have 1048576", "per_user.rendezvous"} {
		if !strings.Contains(text, want) {
			t.Errorf("refused with %q, want %q", text, want)
		}
	}
	asks := func(op control.KVOp, key string) control.KVReply {
		t.Helper()
		c.rendezvous(n, control.KVRequest{ID: 1, Op: op, Job: first.ID, Epoch: first.Epoch, Key: key, Nonce: 7})
		replies := fixture.Only[control.KVReply](told(t, n))
		if len(replies) != 1 {
			t.Fatalf("%d replies", len(replies))
		}
		return replies[0]
	}
	if r := asks(control.KVGet, "k0"); r.Refused != "" || len(r.Value) != 32<<10 {
		t.Errorf("what is there is not read: %q", r.Refused)
	}
	for i := 0; i < 1000 && sets(first, first.Epoch, fmt.Sprint("small", i), 0) == ""; i++ {
	}
	if r := asks(control.KVGet, "absent"); !strings.Contains(r.Refused, "per_user.rendezvous") {
		t.Errorf("one more that waits: %+v", r)
	}
	n2, _ := fill(second)
	if n1 < 900<<10 || n1 > 1<<20 || n2 < 200<<10 || n2 > 300<<10 {
		t.Errorf("the first job keeps %d bytes, the second %d: want the account, and what a job has for itself", n1, n2)
	}
	if n3, _ := fill(other); n3 < 900<<10 {
		t.Errorf("another user's job keeps %d bytes", n3)
	}
	if text := sets(second, second.Epoch+2, "ahead", 1); text == "" {
		t.Error("a write two epochs ahead is taken")
	}
	// The second job's epoch closes and it recovers, while the first one fills the account.
	c.view.Index++
	closed := fixture.Changed(second, func(j *replica.Job) { j.Phase, j.ClosedEpoch = replica.Closed, j.Epoch })
	c.knows(closed)
	c.kv.Advance(second.ID, closed.ClosedEpoch+1)
	if text := sets(closed, closed.ClosedEpoch+1, "addr", 1000); text != "" {
		t.Errorf("the recovery has no room: %s", text)
	}
	if got := c.accounts.status(c.view, c.kv); len(got) != 2 || got[0].User != alice || got[0].Jobs != 2 || got[0].Rendezvous < n1 {
		t.Errorf("accounts %+v", got)
	}
}

// As many ranks as one leader is meant for meet after a fault, while another job of their user fills the account.
func TestALargeJobMeetsBesideAFullAccount(t *testing.T) {
	const world, nodes = 10_000, 10
	c := newChair(t)
	var links []*nodeLink
	for i := range nodes {
		links = append(links, c.node(replica.NodeName(fmt.Sprint("n", i)), 11))
	}
	for id := range byte(2) {
		c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) {
			j.ID, j.Name, j.Owner, j.Layout = replica.JobID{id}, fmt.Sprint("job-", id), alice, replica.Layout{World: world, Groups: make([]replica.GroupID, world)}
			j.Ranks = make([]replica.Claimed, world)
			for r := range j.Ranks {
				j.Ranks[r] = replica.Claimed{Incarnation: 1, Node: links[r%nodes].node.Name, NodeIncarnation: 11}
			}
			j.Phase, j.ClosedEpoch = replica.Closed, j.Epoch
		})).gathered = true
	}
	full, job := c.jobs[replica.JobID{0}].job, c.jobs[replica.JobID{1}].job
	for i := 0; c.kv.Bytes(full.ID) < int(c.accounts.most.Rendezvous)-rendezvous.MaxValueBytes; i++ {
		if _, err := c.kv.Write(full.ID, full.ClosedEpoch+1, rendezvous.Write{Op: rendezvous.Set, Key: fmt.Sprint(i), Value: make([]byte, rendezvous.MaxValueBytes-100)}); err != nil {
			t.Fatal(err)
		}
	}
	most := 0
	asks := func(m control.KVRequest) {
		t.Helper()
		m.Job, m.Epoch, m.Nonce = job.ID, job.ClosedEpoch+1, uint64(m.Rank)+1
		c.rendezvous(links[m.Rank%nodes], m)
		most = max(most, c.kv.Bytes(job.ID))
	}
	answers := func() (n int) {
		t.Helper()
		for _, l := range links {
			for _, r := range fixture.Only[control.KVReply](told(t, l)) {
				if n++; r.Refused != "" || r.Again || r.Fenced {
					t.Fatalf("%+v, the job has %d bytes", r, most)
				}
			}
		}
		return n
	}
	token := make([]byte, 24)
	for r := range replica.Rank(world) {
		asks(control.KVRequest{Op: control.KVSet, Rank: r, Key: fmt.Sprint("meet/", r), Value: token, Once: 1})
	}
	answers()
	for r := range replica.Rank(world) {
		asks(control.KVRequest{Op: control.KVGet, Rank: r, Key: "meet/last"})
	}
	asks(control.KVRequest{Op: control.KVSet, Rank: 0, Key: "meet/last", Value: token, Once: 2})
	if n := answers(); n != world+1 {
		t.Errorf("%d have the key for which all waited", n)
	}
	for _, barrier := range []string{"left", "meet", "pg"} { // the first is of a gathering that one of them left
		for r := range replica.Rank(world) {
			if barrier != "left" || r > 0 {
				asks(control.KVRequest{Op: control.KVBarrier, Rank: r, Key: barrier, Members: world})
			}
		}
		if n := answers(); n != world && barrier != "left" {
			t.Errorf("%d of %d came through barrier %q", n, world, barrier)
		}
	}
	if most < 700*world || most > account.Own(world) {
		t.Errorf("they took %d bytes, and have %d for themselves", most, account.Own(world))
	}
}

// 1,024 answers to creates and claims that a node had not read closed its link, for all users.
func TestAnswersToOneUserCloseNoLink(t *testing.T) {
	const each = 2000
	c := newChair(t)
	n := c.node("n1", 11)
	job := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.ID, j.Owner = replica.JobID{2}, bob })
	c.knows(job)
	told(t, n)
	for i := range uint64(each) {
		c.create(t.Context(), n, control.CreateRequest{ID: i, Name: "huge", Owner: alice, Layout: replica.Layout{World: replica.MaxRanks}})
		c.message(t.Context(), n, control.ClaimRequest{ID: i, Claim: replica.Claim{Job: replica.JobID{1}, Holder: replica.Holder{Node: "n2"}}})
	}
	n.Send(replica.Candidate{Job: job.ID})
	select {
	case <-n.Down:
		t.Fatal("the link is closed")
	default:
	}
	got := told(t, n)
	if creates, claims := len(fixture.Only[control.CreateReply](got)), len(fixture.Only[control.ClaimReply](got)); creates != each || claims != each {
		t.Errorf("%d creates and %d claims are answered, want %d", creates, claims, each)
	}
	if at := slices.IndexFunc(got, func(m any) bool { c, ok := m.(replica.Candidate); return ok && c.Job == job.ID }); at < 0 || at > 2*64 {
		t.Errorf("the word of another user's commit is number %d", at)
	}
}
