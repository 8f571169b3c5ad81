package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// status asks the daemon, whose member is the test; the leader answers what answer says, or nothing.
func (d *desk) status(answer []control.JobStatus) control.Status {
	d.t.Helper()
	return d.statusOf(control.LeaderStatus{Jobs: answer})
}

func (d *desk) statusOf(answer control.LeaderStatus) control.Status {
	d.t.Helper()
	a := &admin{m: d.member, probes: newProber(d, d.t), base: func() control.Status { return control.Status{Node: "n1"} }}
	var st control.Status
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	d.work.Go(func() { defer close(done); st = a.status(ctx) })
	for {
		select {
		case <-done:
			return st
		case ev := <-d.in:
			d.handle(ev)
			if d.link == nil {
				continue
			}
			for _, q := range fixture.Only[control.StatusRequest](d.says()) {
				if answer.Jobs != nil {
					b, err := json.Marshal(answer)
					if err != nil {
						d.t.Fatal(err)
					}
					d.leaderSays(control.StatusReply{ID: q.ID, JSON: b})
				} else if q.ID%2 == 0 {
					cancel() // who asked has gone
				}
			}
		}
	}
}

// Status is the leader's picture where it answers, else this node's own; a request that got no answer is not kept.
func TestStatus(t *testing.T) {
	d := newDesk(t)
	d.put(fixture.Job())
	st := d.status([]control.JobStatus{{Name: "job", Phase: "open", Waiting: []string{"node n2"}}})
	if len(st.Jobs) != 1 || len(st.Jobs[0].Waiting) != 1 || len(st.Nodes) != 3 || st.Nodes[0].Name != "n1" || st.Nodes[0].State != "alive" || st.Nodes[1].State != "unknown" {
		t.Errorf("status %+v", st)
	}
	for range 2 {
		if st = d.status(nil); len(st.Jobs) != 1 || len(st.Jobs[0].Waiting) != 0 || st.Jobs[0].Position != (replica.Position{Epoch: 3, Step: 5}) || len(st.Jobs[0].Ranks) != 2 {
			t.Errorf("without the leader: %+v", st)
		}
	}
	if len(d.statuses) != 0 {
		t.Errorf("%d requests are kept that nobody waits for", len(d.statuses))
	}
	d.link = nil
	if st = d.status(nil); st.Leader != "" || len(st.Jobs) != 1 {
		t.Errorf("without a link: %+v", st)
	}
}

// Connections to the admin socket end, whatever they leave out: the headers, the body, or the next request. An order whose body is there may
// take longer than a body may.
func TestAdminConnectionsEnd(t *testing.T) {
	d := newDesk(t)
	dir, err := os.MkdirTemp("", "rn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := listenAdmin(filepath.Join(dir, "a.sock"))
	if err != nil {
		t.Fatal(err)
	}
	const short = 50 * time.Millisecond
	var slow sync.WaitGroup
	here := func(ctx context.Context, _ control.Order) (control.OperatorReply, bool) {
		select {
		case <-ctx.Done():
			return control.Refusal("its context ended"), true
		case <-time.After(3 * short):
			return control.OperatorReply{Text: "done"}, true
		}
	}
	a := &admin{m: d.member, base: func() control.Status { return control.Status{Node: "n1"} }, here: here, owner: func() uint32 { return uint32(os.Geteuid()) }, times: adminTimes{short, short, fixture.Patience, short}}
	ctx, cancel := context.WithCancel(d.ctx)
	slow.Go(func() {
		if err := a.serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	defer slow.Wait()
	defer cancel()
	for name, tc := range map[string]struct{ say, hears string }{
		"nothing":              {"", ""},
		"half a header":        {"POST /order HTTP/1.1\r\nHost: a", ""},
		"no body":              {"POST /order HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n{", "400 Bad Request"},
		"a body of a question": {"GET /status HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n{", "400 Bad Request"},
		"a long body":          {"POST /order HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n" + strings.Repeat(" ", maxOrder+1), "400 Bad Request"},
		"a slow order":         {"POST /order HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n{\"Verb\":3,\"Job\":\"j\"}", "done"},
		"an idle connection":   {"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n", "404 Not Found"},
	} {
		c, err := net.Dial("unix", filepath.Join(dir, "a.sock"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, tc.say); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = c.SetReadDeadline(time.Now().Add(fixture.Patience))
		heard, err := io.ReadAll(c)
		if os.IsTimeout(err) || !strings.Contains(string(heard), tc.hears) {
			t.Errorf("%s: %q, %v; want the connection to end after %q", name, heard, err, tc.hears)
		}
		_ = c.Close()
	}
}

// The daemon notices that its keeper has gone though it asks it for nothing; it says so, and goes on.
func TestLostKeeper(t *testing.T) {
	d := newDesk(t)
	d.put(fixture.Job())
	d.link = nil // nobody to be asked
	dir, err := os.MkdirTemp("", "rn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	server, err := shm.ListenKeeper(filepath.Join(dir, "k.sock"))
	if err != nil {
		t.Fatal(err)
	}
	life, kill := context.WithCancel(d.ctx)
	dead := make(chan error, 1)
	go func() { dead <- server.Run(life) }()
	defer func() {
		kill()
		if err := <-dead; err != nil {
			t.Error(err)
		}
	}()
	if d.keeper, err = shm.DialKeeper(d.ctx, filepath.Join(dir, "k.sock")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.keeper.Close)

	running, stop := context.WithCancel(d.ctx)
	over := make(chan struct{})
	go func() { defer close(over); d.run(running) }()
	defer func() {
		stop()
		<-over
		d.ended = make(chan struct{}) // the desk's cleanup closes it once more
	}()
	a := &admin{m: d.member, probes: newProber(d, t), base: func() control.Status { return control.Status{} }}
	lost := func() (lost bool) {
		d.do(running, func() { lost = d.keeperLost })
		return lost
	}
	if lost() || a.status(d.ctx).KeeperLost {
		t.Error("a keeper that answers is taken for lost")
	}
	kill()
	for late := time.After(fixture.Patience); !lost(); {
		select {
		case <-late:
			t.Fatal("nobody noticed")
		default:
		}
	}
	if st := a.status(d.ctx); !st.KeeperLost || len(st.Jobs) != 1 {
		t.Errorf("status %+v", st)
	}
	for _, want := range []string{`"level":"error"`, `"event":"keeper"`, "restart the daemon when convenient"} {
		if n := d.log.Count(want); n != 1 {
			t.Errorf("%s is logged %d times", want, n)
		}
	}
}

func TestRankStates(t *testing.T) {
	job := fixture.Job()
	job.Layout.World, job.Layout.Groups = 3, []replica.GroupID{0, 0, 0}
	job.Ranks = append(job.Ranks, replica.Claimed{})
	for want, r := range map[string]replica.RankReport{
		"left": {Left: true, Alive: true, Attached: true, Stopped: true}, "dead": {Stopped: true}, "unobserved": {Alive: true}, "stopped": {Alive: true, Attached: true, Stopped: true}, "alive": {Alive: true, Attached: true},
	} {
		r.Incarnation, r.PID, r.Live = 4, 4711, replica.PackWord(3, 6, replica.Updating)
		s := control.StatusOf(job, map[replica.NodeName]replica.NodeReport{"n1": {Ranks: []replica.RankReport{{Incarnation: 3}, r}}})
		if got := s.Ranks[0]; got.State != want || got.PID != 4711 || got.Live != 6 {
			t.Errorf("rank 0 is %+v, want %s", got, want)
		}
		if s.Ranks[1].State != "unobserved" || s.Ranks[2].State != "unclaimed" {
			t.Errorf("the others are %s and %s", s.Ranks[1].State, s.Ranks[2].State)
		}
	}
}

// What survives a loss: the recorded holders that have kept their memory, and where processes could start.
func TestHoldersAndOffers(t *testing.T) {
	job := fixture.Job()
	nodes := map[replica.NodeName]replica.Node{"n1": {Name: "n1", Incarnation: 11}, "n2": {Name: "n2", Incarnation: 23}}
	job.Parts = []replica.PartRoot{{Part: replica.OfGroup(0), Holders: []replica.Holder{{Node: "n1", Incarnation: 11}, {Node: "n2", Incarnation: 22}, {Node: "n9", Incarnation: 1}}}, {Part: replica.OfRank(1)}}
	want := []control.PartStatus{{Part: "group 0", Nodes: []replica.NodeName{"n1"}}, {Part: "private 1", Nodes: []replica.NodeName{}}}
	if got := control.PartsStatus(job, nodes); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v: n2 came back without its memory, n9 is not registered", got, want)
	}
	reports := map[replica.NodeName]replica.NodeReport{"n2": {Offers: 2, Spare: true}, "n1": {Offers: 1}, "n3": {}}
	if got, want := control.OffersStatus(reports), []control.OfferStatus{{Node: "n1", Processes: 1}, {Node: "n2", Processes: 2, Spare: true}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The admin socket serves its daemon's user and root, whatever mode it has by now; it used to serve whom the mode let in.
func TestAdminSocketAsksWhoItIs(t *testing.T) {
	d := newDesk(t)
	a := &admin{m: d.member, owner: func() uint32 { return 1001 }}
	served := a.guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") }))
	for uid, want := range map[uint32]int{1001: http.StatusOK, 0: http.StatusOK, 1002: http.StatusForbidden} {
		r := httptest.NewRequest(http.MethodGet, "/status", nil)
		w := httptest.NewRecorder()
		served.ServeHTTP(w, r.WithContext(withValue(r, asker{uid: uid})))
		if w.Code != want || want == http.StatusForbidden && !strings.Contains(w.Body.String(), "user 1002 may not use the admin socket of user 1001") {
			t.Errorf("user %d: %d %s", uid, w.Code, w.Body)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/status", nil)
	w := httptest.NewRecorder()
	served.ServeHTTP(w, r.WithContext(withValue(r, asker{err: net.ErrClosed})))
	if w.Code != http.StatusForbidden {
		t.Errorf("nobody knows who: %d %s", w.Code, w.Body)
	}

	l, err := listenAdmin(filepath.Join(d.cfg.StateDir, "admin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	defer l.Close()
	if u := withUser(t.Context(), far).Value(userKey{}).(asker); u.err != nil || u.uid != uint32(os.Getuid()) {
		t.Errorf("at the other end is %+v", u)
	}
	near, _ := net.Pipe()
	if u := withUser(t.Context(), near).Value(userKey{}).(asker); u.err == nil {
		t.Errorf("at the other end of a pipe is %+v", u)
	}
}

func withValue(r *http.Request, u asker) context.Context {
	return context.WithValue(r.Context(), userKey{}, u)
}
