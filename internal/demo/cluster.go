package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

const (
	jobName      = "demo"
	durableEvery = 50 // steps
	quicPort     = 7400
	gossipPort   = 7401
)

// homes are the nodes; the last is a spare. Rank r starts on voter r%voters, so that replicas lie on different nodes.
var homes = []string{"n1", "n2", "n3", "n4"}

const voters = 3

// homeRanks are the ranks that start on a node, as --ranks has them.
func homeRanks(home, world int) string {
	var list []string
	for r := home; home < voters && r < world; r += voters {
		list = append(list, fmt.Sprint(r))
	}
	return strings.Join(list, ",")
}

// node is one node of the demo and its processes. The goroutine of the driver alone changes it.
type node struct {
	name    string
	voter   bool
	ranks   string // preferred at the first start; a node that comes back is a spare
	ip      netip.Addr
	dir     string
	config  string
	admin   string
	started int

	keeper, daemon, launcher *process
	silence                  *mute // held while the node is dead
}

// cluster is all nodes on their loopback addresses.
type cluster struct {
	opt     Options
	dir     string
	spawn   *spawner
	journal *journal
	nodes   []*node
	claim   net.Listener // holds the third octet against other demos
}

// newCluster picks addresses, makes identities and writes configurations under dir.
func newCluster(opt Options, dir string, spawn *spawner, j *journal) (*cluster, error) {
	c := &cluster{opt: opt, dir: dir, spawn: spawn, journal: j}
	for _, sub := range []string{"logs", "faults", "durable"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("demo directory: %w", err)
		}
	}
	octet, claim, err := claimOctet()
	if err != nil {
		return nil, err
	}
	c.claim = claim
	var names []replica.NodeName
	for i, h := range homes {
		n := &node{name: h, voter: i < voters, ranks: homeRanks(i, opt.World), ip: netip.AddrFrom4([4]byte{127, 0, octet, byte(11 + i)}), dir: filepath.Join(dir, h)}
		n.config, n.admin = filepath.Join(dir, n.name+".yaml"), filepath.Join(n.dir, "run", "admin.sock")
		if err := os.MkdirAll(filepath.Join(n.dir, "run"), 0o700); err != nil {
			return nil, errors.Join(fmt.Errorf("demo directory: %w", err), claim.Close())
		}
		c.nodes = append(c.nodes, n)
		names = append(names, replica.NodeName(n.name))
	}
	err = pki.Init(filepath.Join(dir, "pki"), names, time.Now())
	for _, n := range c.nodes {
		if err == nil {
			err = os.WriteFile(n.config, []byte(c.configOf(n)), 0o600)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("demo directory: %w (TMPDIR or --dir choose a folder with room)", err), claim.Close())
	}
	return c, nil
}

// claimOctet finds x so that the demo's ports are free on 127.0.x.11 to .14, and holds a name that other demos respect.
func claimOctet() (byte, net.Listener, error) {
	var last error
	for x := range 250 {
		claim, err := net.Listen("unix", fmt.Sprintf("@replicad-demo-127.0.%d", x))
		if err != nil {
			last = err
			continue
		}
		if last = portsFree(byte(x)); last == nil {
			return byte(x), claim, nil
		}
		_ = claim.Close()
	}
	return 0, nil, fmt.Errorf("no third octet x is left for which UDP ports %d and %d of 127.0.x.11 to .14 are free: end other demos; last: %w", quicPort, gossipPort, last)
}

func portsFree(x byte) error {
	m := &mute{}
	defer m.release()
	for i := range homes {
		ip := netip.AddrFrom4([4]byte{127, 0, x, byte(11 + i)})
		for _, port := range []uint16{quicPort, gossipPort} {
			a := netip.AddrPortFrom(ip, port)
			if err := errors.Join(m.bind(unix.SOCK_DGRAM, a, time.Time{}), m.bind(unix.SOCK_STREAM, a, time.Time{})); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *cluster) configOf(n *node) string {
	var b strings.Builder
	w := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	ids := filepath.Join(c.dir, "pki")
	w("node: %s\naddr: %s:%d\ngossip_addr: %s:%d", n.name, n.ip, quicPort, n.ip, gossipPort)
	w("state_dir: %q\ndurable_dir: %q", n.dir, filepath.Join(c.dir, "durable"))
	w("pki:\n  ca: %q\n  cert: %q\n  key: %q\n  gossip_key: %q", filepath.Join(ids, "ca.pem"), filepath.Join(ids, n.name+".pem"), filepath.Join(ids, n.name+"-key.pem"), filepath.Join(ids, "gossip.key"))
	w("labels:\n  host: %s\nmemory_margin: 64MiB\nlog:\n  level: %s\nvoters:", n.name, c.opt.LogLevel)
	for _, v := range c.nodes {
		if v.voter {
			w("  - name: %s\n    addr: %s:%d", v.name, v.ip, quicPort)
		}
	}
	w("seeds:")
	for _, v := range c.nodes {
		if v.voter {
			w("  - %s:%d", v.ip, gossipPort)
		}
	}
	return b.String()
}

// startControl starts the keeper and the daemon of a node.
func (c *cluster) startControl(n *node) error {
	if err := c.startKeeper(n); err != nil {
		return err
	}
	return c.startDaemon(n)
}

func (c *cluster) startKeeper(n *node) (err error) {
	n.keeper, err = c.spawn.start(n.name+" keeper", logPath(c.dir, n.name+"-keeper"), nil, nil, nil,
		c.opt.Program, "keeper", "--socket", filepath.Join(n.dir, "run", "keeper.sock"))
	return c.guard(n.keeper, true, err)
}

// startDaemon bootstraps a voter at its first start alone: one whose log was lost must not invent a cluster.
func (c *cluster) startDaemon(n *node) (err error) {
	args := []string{"daemon", "--wait-keeper", "--config", n.config}
	if n.voter && n.started == 0 {
		args = append(args, "--bootstrap")
	}
	n.started++
	n.daemon, err = c.spawn.start(n.name+" daemon", logPath(c.dir, n.name+"-daemon"), nil, nil,
		func(line []byte) { c.journal.addLog(n.name, line) }, c.opt.Program, args...)
	return c.guard(n.daemon, true, err)
}

// guard is the spawner's, of a process that was started.
func (c *cluster) guard(p *process, lasting bool, err error) error {
	if err == nil {
		c.spawn.guard(p, c.journal, lasting)
	}
	return err
}

// startRanks starts the node's launcher, for its own ranks or as a spare.
func (c *cluster) startRanks(n *node, spare bool) (err error) {
	args := []string{"run", "--config", n.config, "--job", jobName, "--world", fmt.Sprint(c.opt.World), "--groups", c.opt.groupList(), "--durable-every", fmt.Sprint(durableEvery)}
	if spare || n.ranks == "" {
		args = append(args, "--spare", "--capacity", fmt.Sprint(c.opt.World))
	} else {
		args = append(args, "--ranks", n.ranks)
	}
	if c.opt.Warm > 0 {
		args = append(args, "--warm", fmt.Sprint(c.opt.Warm))
	}
	args = append(append(args, "--"), append(c.opt.trainer(), "--pace", c.opt.Pace.String())...)
	n.launcher, err = c.spawn.start(n.name+" launcher", logPath(c.dir, n.name+"-ranks"), []string{"TEXTLM_FAULT_DIR=" + c.faultDir()},
		func(line []byte) { c.journal.addRank(n.name, line) }, nil, c.opt.Program, args...)
	return c.guard(n.launcher, false, err)
}

func (c *cluster) faultDir() string { return filepath.Join(c.dir, "faults") }

// kill ends everything on a node at once, the daemon first so that it reports nothing, and makes its addresses silent.
func (c *cluster) kill(n *node) error {
	ranks := n.rankPIDs()
	n.daemon.signal(syscall.SIGKILL)
	n.keeper.signal(syscall.SIGKILL)
	n.launcher.signal(syscall.SIGKILL)
	for _, pid := range ranks {
		_ = syscall.Kill(pid, syscall.SIGKILL) // its launcher's death kills it as well
	}
	quic, gossip := netip.AddrPortFrom(n.ip, quicPort), netip.AddrPortFrom(n.ip, gossipPort)
	var err error
	n.silence, err = holdMute([]netip.AddrPort{quic, gossip}, []netip.AddrPort{gossip}, 2*time.Second)
	for _, p := range []*process{n.daemon, n.keeper, n.launcher} {
		if p != nil {
			<-p.gone
		}
	}
	return err
}

// rankPIDs are the ranks that the node's launcher runs now.
func (n *node) rankPIDs() []int {
	if n.launcher == nil || !n.launcher.running() {
		return nil
	}
	return children(n.launcher.pid())
}

// revive starts a killed node again, with its state directory and empty memory, as a spare.
func (c *cluster) revive(n *node) error {
	n.silence.release()
	n.silence = nil
	if err := c.startControl(n); err != nil {
		return err
	}
	return c.startRanks(n, true)
}

func (c *cluster) node(name string) *node {
	for _, n := range c.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

func (c *cluster) names() (names []string) {
	for _, n := range c.nodes {
		names = append(names, n.name)
	}
	return names
}

// watch keeps the journal's view of every daemon's status fresh until ctx ends.
func (c *cluster) watch(ctx context.Context) {
	var wg sync.WaitGroup
	for _, n := range c.nodes {
		wg.Go(func() {
			tick := time.NewTicker(150 * time.Millisecond)
			defer tick.Stop()
			for {
				s, err := fetchStatus(ctx, n.admin)
				if err != nil {
					s = nil
				}
				c.journal.view(func() {
					c.journal.status[n.name] = s
					c.journal.touchLocked()
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

// stop asks the daemons to end, which they should do by themselves; close kills what does not.
func (c *cluster) stop() {
	for _, n := range c.nodes {
		n.launcher.signal(syscall.SIGTERM)
	}
	for _, n := range c.nodes {
		waitGone(n.launcher, 3*time.Second)
		n.daemon.signal(syscall.SIGTERM)
	}
	for _, n := range c.nodes {
		waitGone(n.daemon, 3*time.Second)
		n.keeper.signal(syscall.SIGTERM)
	}
	for _, n := range c.nodes {
		waitGone(n.keeper, time.Second)
	}
}

func waitGone(p *process, patience time.Duration) {
	if p == nil {
		return
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-p.gone:
	case <-t.C:
	}
}

// release gives addresses back.
func (c *cluster) release() {
	for _, n := range c.nodes {
		n.silence.release()
	}
	_ = c.claim.Close()
}
