package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/node"
	"github.com/replicad/replicad/replica"
)

// serveAdmin answers on a real admin socket as handler does.
func serveAdmin(t *testing.T, handler http.HandlerFunc) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "a")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv, ended := &http.Server{Handler: handler}, make(chan error, 1)
	go func() { ended <- srv.Serve(ln) }()
	t.Cleanup(func() {
		if err := srv.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return socket
}

func someStatus() node.Status {
	root := func(b byte) replica.Digest { return replica.Digest{b} }
	gen := func(s replica.Step) replica.Generation { return replica.Generation{Epoch: 3, Step: s} }
	s := node.Status{
		Version: "v1", Node: "a", Incarnation: 7, Session: 2, Leader: "b", Term: 4, IsLeader: true, KeeperLost: true, DurableSilent: "durable directory /mnt: the file system does not answer",
		Nodes: []node.NodeStatus{{Name: "a", Addr: "10.0.0.1:7400", Voter: true, State: "alive", Session: 2}, {Name: "b", Addr: "10.0.0.2:7400", Voter: true, State: "unobserved", Session: 1}, {Name: "s", Addr: "10.0.0.4:7400", State: "silent", Session: 1}},
		Jobs: []node.JobStatus{{
			Name: "lm", Phase: "open", Epoch: 3, Position: replica.Position{Epoch: 3, Step: 120}, Committed: gen(120), Copies: 1, Degraded: true, DurableError: "shard 1-158/private-1.safetensors is missing",
			Ranks:   []node.RankStatus{{Rank: 0, Group: 0, Node: "a", Incarnation: 5, PID: 4242, Live: 121, State: "alive"}, {Rank: 1, Group: 1, State: "unclaimed"}},
			Waiting: []string{"node s has not pinned group 1"}, Uncommitted: 87, AtRisk: true,
		}},
	}
	j := &s.Jobs[0]
	for step := replica.Step(114); step <= 120; step++ {
		j.Holdings = append(j.Holdings, node.Holding{Node: "a", Part: "group 0", Generation: gen(step), Root: root(0xaa)})
	}
	j.Holdings = append(j.Holdings, node.Holding{Node: "s", Part: "group 0", Generation: gen(120), Root: root(0xaa), Mirror: true},
		node.Holding{Node: "b", Part: "group 0", Generation: gen(120), Root: root(0xbb)}, node.Holding{Node: "b", Part: "group 10", Generation: gen(120)}, node.Holding{Node: "b", Part: "group 2", Generation: gen(120)})
	return s
}

func TestStatus(t *testing.T) {
	socket := serveAdmin(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/status" {
			http.NotFound(w, r)
			return
		}
		if err := json.NewEncoder(w).Encode(someStatus()); err != nil {
			t.Error(err)
		}
	})
	code, out, errout := try(t, "status", "--socket", socket)
	if code != exitOK {
		t.Fatalf("code %d: %s", code, errout)
	}
	for _, want := range []string{
		"leader   b (term 4)", "keeper   gone: restart this daemon", "durable  durable directory /mnt: the file system does not answer", "unobserved  leader", "silent      client", "job lm", "open, epoch 3", "step 120, as generation (3,120)", "none yet", "durable writes are tried again: shard 1-158/private-1.safetensors is missing",
		"87 steps since: one more fault may cost them", "degraded", "node s has not pinned group 1", "4242", "unclaimed", "aa000000  a s*", "bb000000  b",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("nothing of %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "(3,116)") || !strings.Contains(out, "(3,117)") {
		t.Errorf("want the newest %d generations:\n%s", maxGenerations, out)
	}
	if strings.Index(out, "group 2 ") > strings.Index(out, "group 10 ") {
		t.Errorf("parts out of order:\n%s", out)
	}

	code, out, errout = try(t, "status", "--json", "--socket", socket)
	var got node.Status
	if err := json.Unmarshal([]byte(out), &got); code != exitOK || err != nil || fmt.Sprint(got) != fmt.Sprint(someStatus()) {
		t.Errorf("code %d, %v: %s%s", code, err, out, errout)
	}
}

func TestAdminFailures(t *testing.T) {
	broken := serveAdmin(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			http.Error(w, "no job of that name", http.StatusNotFound)
			return
		}
		fmt.Fprint(w, "not JSON")
	})
	for _, args := range []string{"status", "status --json"} {
		if code, _, errout := try(t, append(strings.Fields(args), "--socket", broken)...); code != exitFailed || !strings.Contains(errout, "status") {
			t.Errorf("%s of a broken daemon: code %d: %s", args, code, errout)
		}
	}
	if code, _, errout := try(t, "job", "end", "x", "--socket", broken); code != exitFailed || !strings.Contains(errout, "no job of that name") {
		t.Errorf("code %d: %s", code, errout)
	}
}

func TestJobEnd(t *testing.T) {
	asked := make(chan string, 1)
	socket := serveAdmin(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "job lm had ended already, at step 7: finished")
		asked <- r.Method + " " + r.URL.Path + " " + r.URL.Query().Get("reason")
	})
	code, out, errout := try(t, "job", "end", "lm", "--reason", "that's it & all", "--socket", socket)
	if code != exitOK || out != "job lm had ended already, at step 7: finished\n" {
		t.Fatalf("code %d: %s%s", code, out, errout)
	}
	if got := <-asked; got != "POST /job/lm/end that's it & all" {
		t.Errorf("the daemon was asked %q", got)
	}
}
