//go:build cgo

package trouble_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	harness "github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/replica"
)

// cluster is nodes of one identity, whose daemons and keepers end with the test.
type cluster struct {
	*harness.Cluster
	t     testing.TB
	nodes []*node
}

// node is one of them, with its running programs as tests hear them.
type node struct {
	*harness.Node
	t              testing.TB
	all            *harness.Cluster
	cfg            *config.Config // the Node's
	keeper, daemon *process
	flags          []string // of the daemon
}

// shortDir is a directory whose path leaves room for the names of sockets.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "trouble-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// newCluster makes the identity and the configurations of these nodes, all of them voters; nothing is started.
func newCluster(t testing.TB, names ...string) *cluster {
	t.Helper()
	all, err := harness.New(harness.Plan{Dir: shortDir(t), Program: replicad, Nodes: names, Voters: len(names)}, spawner, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(all.Release)
	c := &cluster{Cluster: all, t: t}
	for _, n := range all.Nodes {
		n.Config.SpoolMost = 1 << 30              // whatever the machine's disk has free
		n.Config.Raft.Watchdog = 30 * time.Second // and however long it takes for what other programs write: a leader that waits for it is no test's matter but one's
		nd := &node{Node: n, t: t, all: all, cfg: n.Config}
		nd.write()
		c.nodes = append(c.nodes, nd)
	}
	return c
}

// voters leaves the vote to the first nodes; the others are clients of theirs.
func (c *cluster) voters(k int) {
	c.t.Helper()
	for i, n := range c.nodes {
		n.cfg.Voters, n.Voter = n.cfg.Voters[:k], i < k
		n.write()
	}
}

// calm has voters wait longer for their leader, so that a busy machine does not change it in a test that a change would spoil.
func (c *cluster) calm() {
	c.t.Helper()
	for _, n := range c.nodes {
		n.cfg.Raft.Heartbeat, n.cfg.Raft.Election, n.cfg.Raft.Lease = 2*time.Second, 2*time.Second, 2*time.Second
		n.write()
	}
}

// one starts a cluster of one node.
func one(t testing.TB, change ...func(*config.Config)) *node {
	t.Helper()
	n := newCluster(t, "n1").nodes[0]
	for _, fn := range change {
		fn(n.cfg)
	}
	n.write()
	n.start()
	return n
}

func (n *node) write() {
	n.t.Helper()
	if err := n.Write(); err != nil {
		n.t.Fatal(err)
	}
}

// start runs the keeper, if it does not run, and the daemon, until that is linked to a leader.
func (n *node) start() {
	n.t.Helper()
	n.launch()
	n.daemon.await("linked", nil)
}

func (n *node) launch() {
	n.t.Helper()
	if n.keeper == nil || !n.keeper.Running() {
		n.keep()
	}
	n.serve()
}

// serve runs the daemon.
func (n *node) serve() {
	n.t.Helper()
	n.daemon = follow(n.t, func(hear func([]byte)) (*harness.Process, error) {
		n.Hear = hear
		err := n.all.StartDaemon(n.Node, n.flags...)
		return n.Daemon, err
	})
}

// keep runs the keeper.
func (n *node) keep() {
	n.t.Helper()
	n.keeper = follow(n.t, func(hear func([]byte)) (*harness.Process, error) {
		n.Hear = hear
		err := n.all.StartKeeper(n.Node)
		return n.Keeper, err
	})
}

// keeperAnswers waits until the keeper takes connections.
func (n *node) keeperAnswers() {
	n.t.Helper()
	var err error
	if !poll(n.t, "a connection of the keeper of "+string(n.cfg.Node), func() bool {
		var conn net.Conn
		if conn, err = net.Dial("unixpacket", n.cfg.KeeperSocket); err == nil {
			conn.Close()
		}
		return err == nil
	}) {
		n.t.Fatalf("keeper of %s: %v", n.cfg.Node, err)
	}
}

// die ends everything of the node at once, memory too; its host refuses what comes for it.
func (n *node) die() {
	n.daemon.kill()
	n.keeper.kill()
}

// call runs a verb of replicad to its end.
func call(t testing.TB, args ...string) (code int, out string) {
	t.Helper()
	p := spawn(t, "replicad "+args[0], nil, replicad, args...)
	code = p.exit()
	return code, p.output()
}

// voterRow is what a status says of one voter.
type voterRow struct {
	Name, State, Why string
	Votes, Joining   bool
}

// status is the daemon's, as `replicad status --json` prints it.
type status struct {
	Leader      string
	Term        uint64
	Incarnation replica.NodeIncarnation
	Session     replica.Session
	KeeperLost  bool `json:"keeper_lost"`

	FormerKeepers []string `json:"former_keepers"`

	Scrubbed struct{ Bytes, Bad uint64 }

	DurableSilent string `json:"durable_silent"`

	Nodes []struct {
		Name, State string
		Voter       bool
	}
	Voters     []voterRow
	GossipKeys []struct {
		Fingerprint string
		Missing     []string
		SpokenBy    []string `json:"spoken_by"`
	} `json:"gossip_keys"`
	Jobs  []statusJob
	Steps struct {
		Budget int `json:"budget_ms"`
	} `json:"leader_steps"`
	Network struct {
		HeldTo  float64 `json:"held_to_bytes_per_second"`
		HeldWhy string  `json:"held_why"`
		Paths   []statusPath
	}
}

type statusPath struct {
	Peer, Addr, State string
	Sent              uint64 `json:"sent_bytes"`
}

type statusJob struct {
	Name, ID, Phase string
	EndReason       string `json:"end_reason"`
	Waiting         []string
	DurableError    string `json:"durable_error"`
	Resumed         string
	From            struct{ URL, Run string }
	Epoch           replica.Epoch
	Position        struct{ Step int }
	Durable         struct{ Step int }
	DurableAgeMS    uint64 `json:"durable_age_ms"`
	Offers          []struct {
		Node      string
		Processes int
	}
	Quarantined []string
	Degraded    bool
	Parts       []statusPart
	Commits     *struct {
		Count, Steps int
		Why          string
	}
	Disputes []struct {
		Group, Step int
		Majority    bool
		Suspects    []int
		Votes       []struct {
			Rank       int
			Node, Root string
		}
	}
	Ranks []struct {
		Rank, PID   int
		Incarnation replica.Incarnation
		State       string
	}
}

type statusPart struct {
	Part  string
	Nodes []replica.NodeName
}

func (n *node) status() (s status) {
	n.t.Helper()
	code, out := call(n.t, "status", "--json", "--socket", n.cfg.AdminSocket)
	if err := json.Unmarshal([]byte(out), &s); code != 0 || err != nil {
		n.t.Fatalf("status: code %d, %v:\n%s", code, err, out)
	}
	return s
}

// statusWhen asks until the answer is right: between two leaders a node rightly names none, and a loaded machine may change its
// leader at any time.
func (n *node) statusWhen(right func(status) bool) (s status) {
	n.t.Helper()
	if !poll(n.t, "the right status of "+string(n.cfg.Node), func() bool { s = n.status(); return right(s) }) {
		n.t.Fatalf("status of %s: %+v", n.cfg.Node, s)
	}
	return s
}

// linked is an answer that a leader gave.
func linked(s status) bool { return s.Leader != "" }

// job is the newest one of a name; zero if there is none.
func (s status) job(name string) (found statusJob) {
	for _, j := range s.Jobs {
		if j.Name == name && (found.Name == "" || j.Phase != "ended") {
			found = j
		}
	}
	return found
}

// run starts a launcher for a job whose ranks are this test binary.
func (n *node) run(job string, world int, spec rankSpec, flags ...string) *process {
	n.t.Helper()
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	args := append([]string{"run", "--config", n.File, "--job", job, "--world", fmt.Sprint(world), "--chunk-mb", "1", "--durable-every", "0"}, flags...)
	return spawn(n.t, job+" launcher", spec.env(), replicad, append(args, "--", self)...)
}

// rank starts a rank beside any launcher.
func (n *node) rank(job string, rank, world, group int, spec rankSpec) *process {
	n.t.Helper()
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	env := append(spec.env(), "REPLICAD_SOCKET="+n.cfg.Socket, "REPLICAD_JOB="+job, fmt.Sprintf("REPLICAD_RANK=%d", rank), fmt.Sprintf("REPLICAD_WORLD=%d", world), fmt.Sprintf("REPLICAD_GROUP=%d", group))
	return spawn(n.t, fmt.Sprintf("rank %d of %s", rank, job), env, self)
}

// contains fails the test unless text has every one of these.
func contains(t testing.TB, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%q is not in:\n%s", w, text)
		}
	}
}
