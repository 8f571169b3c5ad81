// Package cluster starts and breaks a cluster on this machine, for tests and tools: nodes with a keeper, a daemon and launchers
// each, on loopback addresses and in a directory of their own, with identities and configurations as an operator would make them.
//
// Everything is a real process; this package knows of them what an operator could know: their logs, what ranks print, and the
// admin sockets. A Spawner starts the processes and ends them all, also when its own process is killed. A Journal takes in what
// they say. A Node's processes belong to the goroutine that breaks them.
//
// It imports internal/config, internal/pki and replica and must not import internal/node or any other adaptor.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

const (
	quicPort      = 7400
	gossipPort    = 7401
	maxSocketPath = 107 // the kernel's limit of a unix socket's path, without its terminator
)

// Plan says what a cluster is made of.
type Plan struct {
	Dir     string   // for identities, configurations, sockets, state and logs; it exists
	Program string   // replicad
	Nodes   []string // their names
	Voters  int      // the first so many keep the log
	Change  func(*config.Config)

	// Silence makes what is said to and by a node vanish, until end. nil: its ports are held mute, which needs its processes to be gone.
	Silence func(node string) (end func(), err error)
}

// Node is one node and its processes. One goroutine alone changes it.
type Node struct {
	Name   string
	Voter  bool
	IP     netip.Addr
	Config *config.Config
	File   string // the configuration's

	Keeper, Daemon, Launcher *Process

	// Hear takes in what a keeper or daemon says that is started from now on; nil: the followed journal does.
	Hear func(line []byte)
	// Within runs its keeper and daemon: a program and its flags, which take theirs; none: they run as they are.
	Within []string
	// User runs its keeper and daemon; 0: this process' own. Its files are the caller's to give to that user.
	User uint32

	bootstrapped bool
	speak        func() // ends its silence; nil while it is not dead
}

// Cluster is all nodes on their loopback addresses.
type Cluster struct {
	Dir   string
	Nodes []*Node

	program string
	names   []replica.NodeName
	silence func(string) (func(), error)
	spawn   *Spawner
	journal atomic.Pointer[Journal] // nil: nobody listens
	claim   net.Listener            // holds the third octet against other clusters
}

// Job is what launchers are told to run.
type Job struct {
	Name    string
	World   int
	Groups  string   // as `replicad run --groups` takes them
	Flags   []string // further ones of `replicad run`
	Command []string
	Env     []string
}

// New picks addresses, makes identities and writes configurations. Nothing is started. The journal, nil for none, gets what the processes say.
func New(plan Plan, spawn *Spawner, j *Journal) (*Cluster, error) {
	c := &Cluster{Dir: plan.Dir, program: plan.Program, silence: plan.Silence, spawn: spawn}
	c.Follow(j)
	octet, claim, err := claimOctet(len(plan.Nodes))
	if err != nil {
		return nil, err
	}
	c.claim = claim
	var names []replica.NodeName
	for i, name := range plan.Nodes {
		names = append(names, replica.NodeName(name))
		n := &Node{Name: name, Voter: i < plan.Voters, IP: address(octet, i), File: filepath.Join(plan.Dir, name+".yaml")}
		n.Config = c.configOf(n)
		c.Nodes = append(c.Nodes, n)
	}
	if err := c.write(names, plan.Change); err != nil {
		return nil, errors.Join(fmt.Errorf("a cluster's files: %w (TMPDIR or --dir choose a folder with room)", err), claim.Close())
	}
	return c, nil
}

func (c *Cluster) write(names []replica.NodeName, change func(*config.Config)) error {
	for _, sub := range []string{"logs", "durable"} {
		if err := os.MkdirAll(filepath.Join(c.Dir, sub), 0o700); err != nil {
			return err
		}
	}
	if err := pki.Init(c.pki(), names, time.Now()); err != nil {
		return err
	}
	c.names = names
	for _, n := range c.Nodes {
		for _, v := range c.Nodes {
			if v.Voter {
				n.Config.Voters = append(n.Config.Voters, config.Voter{Name: v.Config.Node, Addr: v.Config.Addr})
				n.Config.Seeds = append(n.Config.Seeds, v.Config.GossipAddr)
			}
		}
		if change != nil {
			change(n.Config)
		}
		if err := n.Write(); err != nil {
			return err
		}
	}
	return nil
}

// NewIdentity gives the nodes another CA, other certificates and another gossip key, in dir: they are another cluster from their next start on, which
// Afresh makes. All of them are dead.
func (c *Cluster) NewIdentity(dir string) error {
	if err := pki.Init(dir, c.names, time.Now()); err != nil {
		return fmt.Errorf("another identity of the cluster: %w", err)
	}
	for _, n := range c.Nodes {
		n.Config.PKI = Identity(dir, n.Name)
		if err := n.Write(); err != nil {
			return err
		}
	}
	return nil
}

// Write writes the node's configuration again, for its next start.
func (n *Node) Write() error {
	*n.Config = *n.Config.WithDefaults() // in place: who keeps the pointer sees it
	return n.Config.Write(n.File)
}

func (c *Cluster) pki() string { return filepath.Join(c.Dir, "pki") }

// Identity names a node's files among those that `replicad pki init` made in dir.
func Identity(dir, node string) config.PKI {
	file := func(name string) string { return filepath.Join(dir, name) }
	return config.PKI{CA: file("ca.pem"), Cert: file(node + ".pem"), Key: file(node + "-key.pem"), GossipKey: file("gossip.key"), Operator: file("operator.pem")}
}

// Behind moves a daemon's own ports away from those that it advertises, which a network between the nodes takes.
func Behind(c *config.Config) {
	away := func(addr string) string {
		a := netip.MustParseAddrPort(addr)
		return netip.AddrPortFrom(a.Addr(), a.Port()+2).String()
	}
	c.Listen, c.GossipListen = away(c.Addr), away(c.GossipAddr)
}

func (c *Cluster) configOf(n *Node) *config.Config {
	return &config.Config{Node: replica.NodeName(n.Name), Addr: netip.AddrPortFrom(n.IP, quicPort).String(), GossipAddr: netip.AddrPortFrom(n.IP, gossipPort).String(),
		StateDir: filepath.Join(c.Dir, n.Name), DurableDir: filepath.Join(c.Dir, "durable"),
		PKI:    Identity(c.pki(), n.Name),
		Labels: map[string]string{"host": n.Name}, MemoryMargin: 64 << 20, Log: config.Log{Commits: true}} // the journal follows the job by its commits
}

// CheckSockets checks the longest path of a socket of a cluster in dir against the kernel's limit.
func CheckSockets(dir, node string) error {
	if longest := filepath.Join(dir, node, "run", "keeper.sock"); len(longest) > maxSocketPath {
		return fmt.Errorf("the path of a socket in it, %s, has %d bytes and the kernel takes at most %d: choose a shorter folder with TMPDIR or --dir", longest, len(longest), maxSocketPath)
	}
	return nil
}

func address(octet byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 0, octet, byte(11 + i)})
}

// claimOctet finds x so that the ports of so many nodes are free on 127.0.x.11 and up, and holds a name that other clusters respect.
func claimOctet(nodes int) (byte, net.Listener, error) {
	var last error
	for x := range 250 {
		claim, err := net.Listen("unix", fmt.Sprintf("@replicad-cluster-127.0.%d", x))
		if err != nil {
			last = err
			continue
		}
		if last = portsFree(byte(x), nodes); last == nil {
			return byte(x), claim, nil
		}
		_ = claim.Close()
	}
	return 0, nil, fmt.Errorf("no third octet x is left for which UDP ports %d and %d of 127.0.x.11 to .%d are free: end other clusters; last: %w", quicPort, gossipPort, 10+nodes, last)
}

func portsFree(x byte, nodes int) error {
	m := &Mute{}
	defer m.Release()
	for i := range nodes {
		for _, port := range []uint16{quicPort, gossipPort} {
			a := netip.AddrPortFrom(address(x, i), port)
			if err := errors.Join(m.bind(unix.SOCK_DGRAM, a, time.Time{}), m.bind(unix.SOCK_STREAM, a, time.Time{})); err != nil {
				return err
			}
		}
	}
	return nil
}

// Node finds a node; nil if there is none of that name.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Names are those of all nodes.
func (c *Cluster) Names() (names []string) {
	for _, n := range c.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// Log is the file that takes what a process says.
func (c *Cluster) Log(name string) string { return LogPath(c.Dir, name) }

// Start starts the keeper, unless it runs, and the daemon of a node.
func (c *Cluster) Start(n *Node, flags ...string) error {
	if n.Keeper == nil || !n.Keeper.Running() {
		if err := c.StartKeeper(n); err != nil {
			return err
		}
	}
	return c.StartDaemon(n, flags...)
}

// StartKeeper starts the process that holds a node's memory.
func (c *Cluster) StartKeeper(n *Node) (err error) {
	if err := os.MkdirAll(filepath.Dir(n.Config.KeeperSocket), 0o700); err != nil {
		return fmt.Errorf("the directory of %s's sockets: %w (TMPDIR or --dir choose a folder with room)", n.Name, err)
	}
	command := c.within(n, "keeper", "--socket", n.Config.KeeperSocket)
	n.Keeper, err = c.spawn.StartAs(n.User, n.Name+" keeper", c.Log(n.Name+"-keeper"), nil, c.to(n), command[0], command[1:]...)
	return c.guard(n.Keeper, true, err)
}

// StartDaemon bootstraps a voter at its first start alone: one whose log was lost must not invent a cluster.
func (c *Cluster) StartDaemon(n *Node, flags ...string) (err error) {
	args := append([]string{"daemon", "--wait-keeper", "--config", n.File}, flags...)
	if n.Voter && !n.bootstrapped {
		args = append(args, "--bootstrap")
	}
	n.bootstrapped = true
	command := c.within(n, args...)
	n.Daemon, err = c.spawn.StartAs(n.User, n.Name+" daemon", c.Log(n.Name+"-daemon"), nil, c.to(n), command[0], command[1:]...)
	return c.guard(n.Daemon, true, err)
}

// within is a command of the program's as a node runs it.
func (c *Cluster) within(n *Node, args ...string) []string {
	return slices.Concat(n.Within, []string{c.program}, args)
}

// to is where a node's keeper and daemon are heard.
func (c *Cluster) to(n *Node) Output {
	if n.Hear != nil {
		return Output{Both: n.Hear}
	}
	return Output{Both: func(line []byte) {
		if j := c.journal.Load(); j != nil {
			j.AddLog(n.Name, line)
		}
	}}
}

// Follow has this journal take in what is said from now on.
func (c *Cluster) Follow(j *Journal) { c.journal.Store(j) }

// guard is the spawner's, of a process that was started.
func (c *Cluster) guard(p *Process, lasting bool, err error) error {
	if j := c.journal.Load(); err == nil && j != nil {
		c.spawn.Guard(p, j, lasting)
	}
	return err
}

// Launch starts a launcher of a job on a node: for these ranks (as `replicad run --ranks` takes them), or for none as a spare.
func (c *Cluster) Launch(n *Node, job Job, ranks string) (err error) {
	args := []string{"run", "--config", n.File, "--job", job.Name, "--world", fmt.Sprint(job.World), "--durable-every", "0"} // unless the job's flags say otherwise
	if job.Groups != "" {
		args = append(args, "--groups", job.Groups)
	}
	if ranks == "" {
		args = append(args, "--spare", "--capacity", fmt.Sprint(job.World))
	} else {
		args = append(args, "--ranks", ranks)
	}
	args = append(append(append(args, job.Flags...), "--"), job.Command...)
	out := func(line []byte) {
		if j := c.journal.Load(); j != nil {
			j.AddRank(n.Name, line)
		}
	}
	n.Launcher, err = c.spawn.Start(n.Name+" launcher", c.Log(n.Name+"-ranks"), job.Env, Output{Out: out}, c.program, args...)
	return c.guard(n.Launcher, false, err)
}

// Kill ends everything on a node at once, the daemon first so that it reports nothing, and makes its addresses silent.
func (c *Cluster) Kill(n *Node) error {
	ranks := n.Ranks()
	var err error
	if c.silence != nil {
		n.speak, err = c.silence(n.Name)
	}
	for _, p := range []*Process{n.Daemon, n.Keeper, n.Launcher} {
		p.Signal(syscall.SIGKILL)
	}
	for _, pid := range ranks {
		_ = syscall.Kill(pid, syscall.SIGKILL) // its launcher's death kills it as well
	}
	if c.silence == nil {
		quic, gossip := netip.AddrPortFrom(n.IP, quicPort), netip.AddrPortFrom(n.IP, gossipPort)
		var m *Mute
		m, err = HoldMute([]netip.AddrPort{quic, gossip}, []netip.AddrPort{gossip}, 2*time.Second)
		n.speak = m.Release
	}
	for _, p := range []*Process{n.Daemon, n.Keeper, n.Launcher} {
		if p != nil {
			<-p.Gone
		}
	}
	return err
}

// Revive starts a killed node's keeper and daemon again, with its state directory and empty memory.
func (c *Cluster) Revive(n *Node) error {
	n.hear()
	return c.Start(n)
}

// Afresh starts a killed node as on the first day: with nothing of its state, of its log or in its memory.
func (c *Cluster) Afresh(n *Node) error {
	if err := os.RemoveAll(n.Config.StateDir); err != nil {
		return fmt.Errorf("the state of %s: %w", n.Name, err)
	}
	n.bootstrapped = false
	return c.Revive(n)
}

// hear ends the node's silence.
func (n *Node) hear() {
	if n.speak != nil {
		n.speak()
		n.speak = nil
	}
}

// Dead tells whether the node was killed and has not been revived.
func (n *Node) Dead() bool { return n.speak != nil }

// Ranks are the processes that the node's launcher runs now, those that wait for a rank too.
func (n *Node) Ranks() []int {
	if n.Launcher == nil || !n.Launcher.Running() {
		return nil
	}
	return Children(n.Launcher.PID())
}

// Watch keeps the followed journal's view of every daemon's status fresh until ctx ends.
func (c *Cluster) Watch(ctx context.Context) {
	var wg sync.WaitGroup
	for _, n := range c.Nodes {
		wg.Go(func() {
			tick := time.NewTicker(150 * time.Millisecond)
			defer tick.Stop()
			for {
				s, err := FetchStatus(ctx, n.Config.AdminSocket)
				if err != nil {
					s = nil
				}
				j := c.journal.Load()
				j.View(func() {
					j.Status[n.Name] = s
					j.TouchLocked()
				})
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
	wg.Wait()
}

// Stop asks everything to end, and waits so long for each; the spawner kills what does not.
func (c *Cluster) Stop(patience time.Duration) {
	end := func(of func(*Node) *Process) {
		for _, n := range c.Nodes {
			of(n).Signal(syscall.SIGTERM)
		}
		for _, n := range c.Nodes {
			of(n).wait(patience)
		}
	}
	end(func(n *Node) *Process { return n.Launcher })
	end(func(n *Node) *Process { return n.Daemon })
	end(func(n *Node) *Process { return n.Keeper })
}

// Release gives addresses back.
func (c *Cluster) Release() {
	for _, n := range c.Nodes {
		n.hear()
	}
	_ = c.claim.Close()
}
