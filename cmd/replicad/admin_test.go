package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/admin"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/pki"
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
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return socket
}

func someStatus() control.Status {
	root := func(b byte) replica.Digest { return replica.Digest{b} }
	gen := func(s replica.Step) replica.Generation { return replica.Generation{Epoch: 3, Step: s} }
	s := control.Status{
		Version: "v1", Node: "a", Incarnation: 7, Session: 2, Leader: "b", Term: 4, IsLeader: true, KeeperLost: true, Certificate: "this node's certificate expires in 9 days", DurableSilent: "durable directory /mnt: the file system does not answer",
		Accounts:   []control.AccountStatus{{User: 1002, Jobs: 2, MostJobs: 64, Ranks: 9, MostRanks: 131072, Rendezvous: 12 << 10, MostRendezvous: 64 << 20, Sessions: 11, MostSessions: 896, Requests: 90, MostRequests: 1024}, {User: 1003, Sessions: 1, MostSessions: 896, MostRequests: 1024}},
		PassedOver: []control.PassedOver{{Operator: "carol", Count: 2, Of: "node d, up to epoch 5", Why: "carol is revoked"}, {Count: 1, Of: "node e, up to epoch 6", Why: "no certificate"}},
		NoLink:     []control.NoLink{{Node: "c", Why: "its certificate expired", Tries: 12}},
		Refused:    []control.NoLink{{Node: "s", Incarnation: 9, Why: "superseded by 11", Tries: 3}, {Node: "t", Why: "another version", Tries: 1}},
		GossipKeys: []control.GossipKeyStatus{{Fingerprint: "0a0b0c0d", Primary: true}}, GossipUnknown: []replica.NodeName{"b"},
		Nodes: []control.NodeStatus{{Name: "a", Addr: "10.0.0.1:7400", Voter: true, State: "alive", Session: 2}, {Name: "b", Addr: "10.0.0.2:7400", Voter: true, State: "unobserved", Session: 1}, {Name: "s", Addr: "10.0.0.4:7400", State: "silent", Session: 1}, {Name: "v", State: "alive", Session: 1, Revoked: true}},
		Jobs: []control.JobStatus{{
			Name: "lm", Phase: "open", Epoch: 3, Position: replica.Position{Epoch: 3, Step: 120}, Committed: gen(120), Copies: 1, Degraded: true, DurableError: "shard 1-158/private-1.safetensors is missing",
			Ranks:   []control.RankStatus{{Rank: 0, Group: 0, Node: "a", Incarnation: 5, PID: 4242, Live: 121, State: "alive"}, {Rank: 1, Group: 1, State: "unclaimed"}},
			Waiting: []string{"node s has not pinned group 1"}, Uncommitted: 87, AtRisk: true,
			Lacks:  []replica.Lacking{{Rank: 0, Text: "model.teacher.0.weight"}, {Rank: 1, More: 2, Text: "buffer"}},
			Odds:   []control.OddsStatus{{Lost: 1, Of: 8, Ways: 8, Survive: 8}, {Lost: 2, Of: 8, Ways: 28, Survive: 24}, {Lost: 3, Of: 8, Ways: 56}},
			Losses: []control.LossStatus{{Of: "process"}, {Of: "node a", Nodes: []replica.NodeName{"a"}, Why: []string{"group 0 of step 120 is held by a alone", "no seat"}}, {Of: "rack r1", Nodes: []replica.NodeName{"b", "s"}, Resume: gen(120)}},
		}},
	}
	j := &s.Jobs[0]
	for step := replica.Step(114); step <= 120; step++ {
		j.Holdings = append(j.Holdings, control.Holding{Node: "a", Part: "group 0", Generation: gen(step), Root: root(0xaa)})
	}
	j.Holdings = append(j.Holdings, control.Holding{Node: "s", Part: "group 0", Generation: gen(120), Root: root(0xaa), Mirror: true},
		control.Holding{Node: "b", Part: "group 0", Generation: gen(120), Root: root(0xbb)}, control.Holding{Node: "b", Part: "group 10", Generation: gen(120)}, control.Holding{Node: "b", Part: "group 2", Generation: gen(120)})
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
		"leader      b (term 4)", "keeper      gone: restart this daemon", "expiry      this node's certificate expires in 9 days", "durable     durable directory /mnt: the file system does not answer", "unobserved      leader", "silent          client", "job lm", "open, epoch 3", "alive, revoked", "lacks      rank 0: model.teacher.0.weight: a restart is not the same run", "lacks      rank 1 and 2 more: buffer: a restart",
		"gossip key  0a0b0c0d, this node sends with it", "unknown of [b]: ", "step 120, as generation (3,120)", "none yet", "durable writes are tried again: shard 1-158/private-1.safetensors is missing",
		"survives   loss of 1 node: 100 %, 2 nodes: 85.71 % (all but 4 of 28 ways), 3 nodes: 0 %, of the 8 nodes that hold the committed step or vote", "at risk    one more fault would cost 87 steps (committed 120, live 207)", "degraded", "node s has not pinned group 1", "if lost    node a: group 0 of step 120 is held by a alone; no seat", "4242", "unclaimed", "aa000000  a s*", "bb000000  b",
		"unbelieved  2 revocation(s) in the name of operator carol count for nothing here, the newest of node d, up to epoch 5: carol is revoked: if it is meant, have another operator", "unbelieved  1 revocation(s) that nobody signed count",
		"user 1002   2 of 64 jobs, 9 of 131072 ranks, 12 of 65536 KiB to meet, 11 of 896 sessions here, 90 of 1024 requests in 0.1 s\n", "user 1003   1 of 896 sessions here, 0 of 1024 requests in 0.1 s\n",
		"voter c, 12 tries since 00:00:00: its certificate expired", "node s (incarnation 9), 3 tries since 00:00:00: superseded by 11", "node t, 1 tries since 00:00:00: another version",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("nothing of %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "(3,116)") || !strings.Contains(out, "(3,117)") {
		t.Errorf("want the newest 4 generations:\n%s", out)
	}
	if strings.Contains(out, "r1") {
		t.Errorf("a loss that the job survives is not worth a line:\n%s", out)
	}
	if strings.Index(out, "group 2 ") > strings.Index(out, "group 10 ") {
		t.Errorf("parts out of order:\n%s", out)
	}

	code, out, errout = try(t, "status", "--json", "--socket", socket)
	var got control.Status
	if err := json.Unmarshal([]byte(out), &got); code != exitOK || err != nil || fmt.Sprint(got) != fmt.Sprint(someStatus()) {
		t.Errorf("code %d, %v: %s%s", code, err, out, errout)
	}
}

// Writes that have ended are not said to be tried again, and nobody waits for one.
func TestWritesThatHaveEnded(t *testing.T) {
	const why = "another fleet owns the run: c has claimed epoch 4: let that one go on; or end it"
	s := someStatus()
	s.Jobs[0].DurableError, s.Jobs[0].DurableEnded = why, true
	socket := serveAdmin(t, func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(s); err != nil {
			t.Error(err)
		}
	})
	code, out, errout := try(t, "status", "--socket", socket)
	if code != exitOK || !strings.Contains(out, "durable writes have ended: "+why) || strings.Contains(out, "tried again") {
		t.Errorf("code %d: %s%s", code, out, errout)
	}
	var b strings.Builder
	err := followSave(t.Context(), admin.Client{Socket: socket}, stdio{out: &b, err: &b}, s.Jobs[0])
	if err == nil || err.Error() != "not on disk, and not tried again: "+why || b.Len() > 0 {
		t.Errorf("a write is followed with %v: %s", err, b.String())
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

// ordered answers on an admin socket as a daemon does, with this challenge, and says which orders came.
func ordered(t *testing.T, challenge, answer string) (socket string, orders chan control.Order) {
	t.Helper()
	orders = make(chan control.Order, 1)
	return serveAdmin(t, func(w http.ResponseWriter, r *http.Request) {
		var o control.Order
		switch r.Method + " " + r.URL.Path {
		case "GET /challenge":
			fmt.Fprintln(w, challenge)
		case "POST /order":
			if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
				t.Error(err)
			}
			orders <- o
			fmt.Fprintln(w, answer)
		default:
			http.NotFound(w, r)
		}
	}), orders
}

func TestJobEnd(t *testing.T) {
	t.Setenv(admin.OperatorVariable, "")
	socket, orders := ordered(t, "", "job lm had ended already, at step 7: finished")
	code, out, errout := try(t, "job", "end", "lm", "--reason", "that's it & all", "--socket", socket)
	if code != exitOK || out != "job lm had ended already, at step 7: finished\n" {
		t.Fatalf("code %d: %s%s", code, out, errout)
	}
	if got := <-orders; got != (control.Order{Verb: control.EndJob, Job: "lm", Why: "that's it & all"}) {
		t.Errorf("the daemon was asked %+v", got)
	}
}

// Orders are signed by the operator that a flag, the environment or a readable file of the configuration names, in this order.
func TestOrdersAreSigned(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Init(dir, []replica.NodeName{"a"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"flag", "env"} {
		if code, _, errout := try(t, "pki", "operator", "--dir", dir, name); code != exitOK {
			t.Fatal(errout)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	id, err := pki.Load(at("ca.pem"), at("a.pem"), at("a-key.pem"), at("gossip.key"))
	if err != nil {
		t.Fatal(err)
	}
	challenge := strings.Repeat("5a", 32)
	socket, orders := ordered(t, challenge, "done")
	file := filepath.Join(t.TempDir(), "a.yaml")
	text := fmt.Sprintf("node: a\naddr: 127.0.0.1:7400\ngossip_addr: 127.0.0.1:7401\nvoters: [{name: a, addr: \"127.0.0.1:7400\"}]\nstate_dir: %s\nadmin_socket: %s\npki: {ca: %s, cert: %s, key: %s, gossip_key: %s, operator: %s}\n",
		dir, socket, at("ca.pem"), at("a.pem"), at("a-key.pem"), at("gossip.key"), at("operator.pem"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	flag, env := "--operator="+at("operator-flag.pem"), at("operator-env.pem")
	for _, tc := range []struct {
		who, env string
		args     []string
		want     control.Order
	}{
		{"flag", env, []string{"node", "drain", "b", "--degrade", flag}, control.Order{Verb: control.Drain, Node: "b", Degrade: true, Within: control.DrainTimeout}},
		{"env", env, []string{"node", "lost", "b", "--why", "burnt"}, control.Order{Verb: control.Lost, Node: "b", Why: "burnt"}},
		{"operator", "", []string{"node", "clear", "b"}, control.Order{Verb: control.Clear, Node: "b"}},
		{"operator", "", []string{"voter", "add", "b", "10.0.0.2:7400"}, control.Order{Verb: control.AddVoter, Node: "b", Addr: "10.0.0.2:7400"}},
		{"operator", "", []string{"voter", "remove", "b"}, control.Order{Verb: control.RemoveVoter, Node: "b"}},
		{"operator", "", []string{"job", "end", "lm", "--reason", ""}, control.Order{Verb: control.EndJob, Job: "lm", Why: "ended by an operator"}},
		{"", "", []string{"voter", "list"}, control.Order{Verb: control.Voters}},
	} {
		t.Setenv(admin.OperatorVariable, tc.env)
		if code, _, errout := try(t, append(tc.args, "--config", file)...); code != exitOK {
			t.Fatalf("%v: code %d: %s", tc.args, code, errout)
		}
		got := <-orders
		p := got.Proof
		if got.Proof = nil; got != tc.want {
			t.Errorf("%v: ordered %+v, want %+v", tc.args, got, tc.want)
		}
		if (p != nil) != (tc.who != "") {
			t.Errorf("%v: signed: %v", tc.args, p != nil)
		}
		if p == nil {
			continue
		}
		again, err := pki.LoadOperator(at("operator.pem"))
		if err != nil {
			t.Fatal(err)
		}
		message, err := got.Signed(again.Cluster, bytes.Repeat([]byte{0x5a}, 32))
		if err != nil {
			t.Fatal(err)
		}
		if who, _, err := id.CheckOperator(p.Certificate, message, p.Signature, time.Now()); who != tc.who || err != nil {
			t.Errorf("%v: signed by %q, want %q: %v", tc.args, who, tc.who, err)
		}
	}
	t.Setenv(admin.OperatorVariable, at("operator-none.pem"))
	if code, _, errout := try(t, "node", "clear", "b", "--config", file); code != exitConfig || !strings.Contains(errout, "operator-none.pem") {
		t.Errorf("an operator that is not there: code %d: %s", code, errout)
	}
	t.Setenv(admin.OperatorVariable, "")
	if err := os.Remove(at("operator-key.pem")); err != nil {
		t.Fatal(err)
	}
	if code, _, errout := try(t, "node", "clear", "b", "--config", file); code != exitOK {
		t.Errorf("a configuration whose operator this user can't read: code %d: %s", code, errout)
	} else if got := <-orders; got.Proof != nil {
		t.Error("signed without a key")
	}
}
