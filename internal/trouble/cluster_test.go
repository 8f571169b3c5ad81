//go:build cgo

package trouble_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

// cluster is nodes of one identity on loopback addresses of their own.
type cluster struct {
	t     testing.TB
	dir   string
	nodes []*node
}

// node is one node's configuration and its running programs.
type node struct {
	t              testing.TB
	cfg            *config.Config
	file           string
	keeper, daemon *process
	started        bool
	flags          []string // of the daemon
}

var hosts atomic.Uint32

// nextHost is a loopback address that no other node of these tests has.
func nextHost() string {
	n := hosts.Add(1)
	return fmt.Sprintf("127.0.%d.%d", 2+n/250, 1+n%250)
}

// freePort finds a port of host that is free for UDP and TCP.
func freePort(t testing.TB, host string) string {
	t.Helper()
	given.Lock()
	defer given.Unlock()
	for range 100 {
		l, err := net.Listen("tcp", host+":0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		u, err := net.ListenPacket("udp", addr)
		l.Close()
		if err == nil {
			u.Close()
			if !given.addrs[addr] { // the kernel may name a port again that nobody has bound yet
				given.addrs[addr] = true
				return addr
			}
		}
	}
	t.Fatalf("no free port on %s", host)
	return ""
}

// given are the addresses that freePort has returned.
var given = struct {
	sync.Mutex
	addrs map[string]bool
}{addrs: map[string]bool{}}

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
func newCluster(t testing.TB, names ...replica.NodeName) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: shortDir(t)}
	if err := pki.Init(c.pki(""), names, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(c.dir, "durable"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		host := nextHost()
		cfg := config.Config{Node: name, Addr: freePort(t, host), GossipAddr: freePort(t, host), StateDir: filepath.Join(c.dir, string(name)), DurableDir: filepath.Join(c.dir, "durable"),
			PKI: config.PKI{CA: c.pki("ca.pem"), Cert: c.pki(string(name) + ".pem"), Key: c.pki(string(name) + "-key.pem"), GossipKey: c.pki("gossip.key")},
			Log: config.Log{Commits: true}, MemoryMargin: 16 << 20, Raft: config.Raft{Heartbeat: 400 * time.Millisecond, Election: 400 * time.Millisecond, Lease: 400 * time.Millisecond}}
		c.nodes = append(c.nodes, &node{t: t, cfg: &cfg, file: filepath.Join(c.dir, string(name)+".yaml")})
	}
	for _, n := range c.nodes {
		for _, v := range c.nodes {
			n.cfg.Voters = append(n.cfg.Voters, config.Voter{Name: v.cfg.Node, Addr: v.cfg.Addr})
			n.cfg.Seeds = append(n.cfg.Seeds, v.cfg.GossipAddr)
		}
		n.cfg = n.cfg.WithDefaults()
		n.write()
	}
	return c
}

func (c *cluster) pki(file string) string { return filepath.Join(c.dir, "pki", file) }

// voters leaves the vote to the first nodes; the others are clients of theirs.
func (c *cluster) voters(k int) {
	c.t.Helper()
	for _, n := range c.nodes {
		n.cfg.Voters = n.cfg.Voters[:k]
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
	if err := n.cfg.Write(n.file); err != nil {
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
	if n.keeper == nil || !n.keeper.running() {
		if err := os.MkdirAll(filepath.Dir(n.cfg.KeeperSocket), 0o700); err != nil {
			n.t.Fatal(err)
		}
		n.keeper = spawn(n.t, string(n.cfg.Node)+" keeper", nil, replicad, "keeper", "--socket", n.cfg.KeeperSocket)
	}
	args := []string{"daemon", "--wait-keeper", "--config", n.file}
	if !n.started {
		args = append(args, "--bootstrap")
	}
	n.started = true
	args = append(args, n.flags...)
	n.daemon = spawn(n.t, string(n.cfg.Node)+" daemon", nil, replicad, args...)
}

// die ends everything of the node at once, memory too.
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

// status is the daemon's, as `replicad status --json` prints it.
type status struct {
	Leader string
	Nodes  []struct{ Name, State string }
	Jobs   []statusJob
}

type statusJob struct {
	Name, ID, Phase string
	EndReason       string `json:"end_reason"`
	Waiting         []string
	DurableError    string `json:"durable_error"`
	Epoch           replica.Epoch
	Position        struct{ Step int }
	Durable         struct{ Step int }
	Offers          []struct {
		Node      string
		Processes int
	}
	Quarantined []string
	Degraded    bool
	Parts       []statusPart
	Disputes    []struct {
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
	for end := time.Now().Add(patience); ; {
		if s = n.status(); right(s) {
			return s
		}
		if time.Now().After(end) {
			n.t.Fatalf("status of %s: %+v", n.cfg.Node, s)
		}
	}
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
	args := append([]string{"run", "--config", n.file, "--job", job, "--world", fmt.Sprint(world), "--chunk-mb", "1"}, flags...)
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
