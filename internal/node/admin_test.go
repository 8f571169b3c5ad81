package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/replica"
)

// told is a host that knows what the test says, and whose leader answers so; nil: nothing.
type told struct {
	own    host.Status
	answer *control.LeaderStatus
}

func (h told) Status(context.Context) (host.Status, bool) { return h.own, true }

func (h told) Ask(_ context.Context, _ time.Duration, question func(uint64) any) (any, bool) {
	q, ok := question(7).(control.StatusRequest)
	if !ok || h.answer == nil {
		return nil, false
	}
	return control.StatusReply{ID: q.ID, Status: *h.answer}, true
}

// Status is the leader's picture where it answers, else this node's own.
func TestStatus(t *testing.T) {
	own := host.Status{Linked: true, Leader: "n2", Term: 4, Jobs: []control.JobStatus{{Name: "job"}}, KeeperLost: true, Requests: map[uint32]int{1001: 7, 1000: 3},
		Nodes: map[replica.NodeName]replica.Node{"n1": {Name: "n1"}, "n2": {Name: "n2"}, "n3": {Name: "n3"}}}
	ask := func(own host.Status, answer *control.LeaderStatus) control.Status {
		a := &admin{host: told{own, answer}, self: "n1", log: journaltest.New(t, io.Discard), probes: newProber(t, nil), base: func() control.Status { return control.Status{Node: "n1", Leader: "n9"} }}
		a.users = func() control.Here {
			return control.Here{Sessions: map[int]int{1002: 11, 1001: 1}, MostSessions: 896, MostRequests: 1024}
		}
		return a.status(t.Context())
	}
	st := ask(own, &control.LeaderStatus{Jobs: []control.JobStatus{{Name: "job", Phase: "open", Waiting: []string{"node n2"}}}, Revoked: []replica.NodeName{"n3"}})
	if len(st.Jobs) != 1 || len(st.Jobs[0].Waiting) != 1 || len(st.Nodes) != 3 || st.Nodes[0].Name != "n1" || st.Nodes[0].State != "alive" || st.Nodes[1].State != "unknown" || st.Nodes[1].Revoked || !st.Nodes[2].Revoked || st.Leader != "n2" || st.Term != 4 || !st.KeeperLost {
		t.Errorf("status %+v", st)
	}
	st = ask(own, &control.LeaderStatus{Accounts: []control.AccountStatus{{User: 1002, Jobs: 2, MostJobs: 64}, {User: 1003, Jobs: 1, MostJobs: 64}}})
	if want := []control.AccountStatus{{User: 1000, MostSessions: 896, Requests: 3, MostRequests: 1024}, {User: 1001, Sessions: 1, MostSessions: 896, Requests: 7, MostRequests: 1024}, {User: 1002, Jobs: 2, MostJobs: 64, Sessions: 11, MostSessions: 896, MostRequests: 1024}, {User: 1003, Jobs: 1, MostJobs: 64, MostSessions: 896, MostRequests: 1024}}; !slices.Equal(st.Accounts, want) {
		t.Errorf("accounts %+v, want %+v", st.Accounts, want)
	}
	if st = ask(own, nil); len(st.Jobs) != 1 || len(st.Jobs[0].Waiting) != 0 || st.Leader != "n2" {
		t.Errorf("without the leader: %+v", st)
	}
	own.Linked = false
	if st = ask(own, nil); st.Leader != "" || len(st.Jobs) != 1 {
		t.Errorf("without a link: %+v", st)
	}
}

// Connections to the admin socket end, whatever they leave out: the headers, the body, or the next request. An order whose body is there may
// take longer than a body may.
func TestAdminConnectionsEnd(t *testing.T) {
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
	a := &admin{here: here, owner: func() uint32 { return uint32(os.Geteuid()) }, times: adminTimes{short, short, fixture.Patience, short}}
	ctx, cancel := context.WithCancel(t.Context())
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

// Where processes could start.
func TestOffers(t *testing.T) {
	reports := map[replica.NodeName]replica.NodeReport{"n2": {Offers: 2, Spare: true}, "n1": {Offers: 1}, "n3": {}}
	if got, want := control.OffersStatus(reports), []control.OfferStatus{{Node: "n1", Processes: 1}, {Node: "n2", Processes: 2, Spare: true}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The admin socket serves its daemon's user and root, whatever mode it has by now; it used to serve whom the mode let in.
func TestAdminSocketAsksWhoItIs(t *testing.T) {
	dir, err := os.MkdirTemp("", "rn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	auditor := &journal.Auditor{}
	a := &admin{audit: auditor, owner: func() uint32 { return 1001 }}
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

	l, err := listenAdmin(filepath.Join(dir, "admin.sock"))
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
