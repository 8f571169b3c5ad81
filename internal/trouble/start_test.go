//go:build cgo

package trouble_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	harness "github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

// Exit codes of replicad's help.
const (
	exitFailed = 1
	exitConfig = 3
	exitNobody = 4

	exitDoNotRequeue = 5
)

// refusal is a start that must fail: spoil breaks something and returns what the message must name.
type refusal struct {
	name  string
	code  int
	spoil func(t *testing.T, n *node) (says []string)
}

// TestDaemonDoesNotStart: whatever is wrong, the daemon ends at once with a message that names the value and the remedy, and
// leaves neither a process nor a socket of its own behind.
func TestDaemonDoesNotStart(t *testing.T) {
	for _, tc := range [][]refusal{badConfigs, badIdentities, badSockets, badPorts, badDirectories} {
		for _, tc := range tc {
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				n := newCluster(t, "n1").nodes[0]
				says := tc.spoil(t, n)
				t.Cleanup(func() {
					for _, pid := range processesOf(t, n.cfg.KeeperSocket) {
						t.Errorf("process %d was left running", pid)
						_ = syscall.Kill(pid, syscall.SIGKILL) // gone already is as good
					}
				})
				code, out := call(t, "daemon", "--bootstrap", "--config", n.File)
				if code != tc.code {
					t.Errorf("code %d, want %d", code, tc.code)
				}
				contains(t, out, says...)
				if t.Failed() {
					t.Log(out)
				}
			})
		}
	}
}

// processesOf lists the processes whose command line names a path.
func processesOf(t *testing.T, path string) (pids []int) {
	t.Helper()
	for _, pid := range allProcesses(t) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(b), path) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// changed writes the configuration with a change.
func changed(fn func(*config.Config) []string) func(*testing.T, *node) []string {
	return func(t *testing.T, n *node) []string {
		says := fn(n.cfg)
		n.write()
		return says
	}
}

var badConfigs = []refusal{
	{"no config", exitConfig, func(t *testing.T, n *node) []string {
		remove(t, n.File)
		return []string{n.File, "--config FILE", "--dev"}
	}},
	{"several faults", exitConfig, changed(func(c *config.Config) []string {
		c.MemoryMargin, c.DurableKeep.Last, c.Timing.Ack = 1<<10, -1, time.Second
		return []string{"memory_margin: 1KiB", "durable_keep: -1", "timing.ack: 1s"}
	})},
	{"unknown field", exitConfig, func(t *testing.T, n *node) []string {
		write(t, n.File, "node: n1\nadress: 127.0.0.1:7400\n")
		return []string{n.File, "[2:1]", "adress"}
	}},
	{"socket path too long", exitConfig, changed(func(c *config.Config) []string {
		c.Socket = filepath.Join(c.StateDir, strings.Repeat("x", 107))
		return []string{"socket: ", c.Socket, "107"}
	})},
}

var badIdentities = []refusal{
	{"no certificate", exitConfig, func(t *testing.T, n *node) []string {
		remove(t, n.cfg.PKI.Cert)
		return []string{n.cfg.PKI.Cert, "replicad pki init"}
	}},
	{"no gossip key", exitConfig, func(t *testing.T, n *node) []string {
		remove(t, n.cfg.PKI.GossipKey)
		return []string{n.cfg.PKI.GossipKey, "replicad pki init"}
	}},
	{"key for all to read", exitConfig, func(t *testing.T, n *node) []string {
		if err := os.Chmod(n.cfg.PKI.Key, 0o644); err != nil {
			t.Fatal(err)
		}
		return []string{n.cfg.PKI.Key, "chmod 600"}
	}},
	{"garbage for a certificate", exitConfig, func(t *testing.T, n *node) []string {
		write(t, n.cfg.PKI.Cert, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
		return []string{n.cfg.PKI.Cert, "replicad pki"}
	}},
	{"expired certificate", exitConfig, func(t *testing.T, n *node) []string {
		dir := filepath.Join(shortDir(t), "old")
		if err := pki.Init(dir, []replica.NodeName{n.cfg.Node}, time.Now().Add(-3*365*24*time.Hour)); err != nil {
			t.Fatal(err)
		}
		n.cfg.PKI = harness.Identity(dir, n.Name)
		n.write()
		return []string{n.cfg.PKI.Cert, "expired at", "replicad pki renew"}
	}},
	{"certificate of another cluster", exitConfig, func(t *testing.T, n *node) []string {
		other := newCluster(t, n.Name).nodes[0]
		n.cfg.PKI.Cert, n.cfg.PKI.Key = other.cfg.PKI.Cert, other.cfg.PKI.Key
		n.write()
		return []string{n.cfg.PKI.Cert, n.cfg.PKI.CA, "cluster", "take both from one"}
	}},
	{"certificate of another node", exitConfig, func(t *testing.T, n *node) []string {
		if err := pki.AddNodes(filepath.Dir(n.cfg.PKI.CA), []replica.NodeName{"n9"}, time.Now()); err != nil {
			t.Fatal(err)
		}
		n.cfg.PKI = harness.Identity(filepath.Dir(n.cfg.PKI.CA), "n9")
		n.write()
		return []string{n.cfg.PKI.Cert, `"n9"`, `"n1"`, "own certificate"}
	}},
}

var badSockets = []refusal{
	{"ranks' socket in use", exitFailed, func(t *testing.T, n *node) []string {
		listen(t, "unixpacket", n.cfg.Socket)
		return []string{n.cfg.Socket, "in use", "stop that one"}
	}},
	{"admin socket in use", exitFailed, func(t *testing.T, n *node) []string {
		listen(t, "unix", n.cfg.AdminSocket)
		return []string{n.cfg.AdminSocket, "stop that one"}
	}},
	{"a file for the ranks' socket", exitFailed, func(t *testing.T, n *node) []string {
		precious(t, n.cfg.Socket)
		return []string{n.cfg.Socket, "something else", "move it"}
	}},
	{"a file for the admin socket", exitFailed, func(t *testing.T, n *node) []string {
		precious(t, n.cfg.AdminSocket)
		return []string{n.cfg.AdminSocket, "something else", "move it"}
	}},
	{"a file for the keeper's socket", exitFailed, func(t *testing.T, n *node) []string {
		precious(t, n.cfg.KeeperSocket)
		return []string{n.cfg.KeeperSocket, "something else", "move it"}
	}},
	{"directory of the ranks' socket not writable", exitFailed, func(t *testing.T, n *node) []string {
		n.cfg.Socket = filepath.Join(readOnly(t), "run", "ranks.sock")
		n.write()
		return []string{n.cfg.Socket, "choose one that this user can write"}
	}},
	{"directory of the admin socket not writable", exitFailed, func(t *testing.T, n *node) []string {
		n.cfg.AdminSocket = filepath.Join(readOnly(t), "admin.sock")
		n.write()
		return []string{n.cfg.AdminSocket, "directory that this user can write"}
	}},
	{"directory of the keeper's socket not writable", exitFailed, func(t *testing.T, n *node) []string {
		n.cfg.KeeperSocket = filepath.Join(readOnly(t), "keeper.sock")
		n.write()
		return []string{n.cfg.KeeperSocket, "choose a directory that this user can write"}
	}},
}

var badPorts = []refusal{
	{"port in use", exitFailed, func(t *testing.T, n *node) []string {
		listen(t, "udp", n.cfg.Addr)
		return []string{n.cfg.Addr, "in use", "configure another address"}
	}},
	{"gossip's UDP port in use", exitFailed, func(t *testing.T, n *node) []string {
		listen(t, "udp", n.cfg.GossipAddr)
		return []string{n.cfg.GossipAddr, "in use", "configure another address"}
	}},
	{"gossip's TCP port in use", exitFailed, func(t *testing.T, n *node) []string {
		listen(t, "tcp", n.cfg.GossipAddr)
		return []string{n.cfg.GossipAddr, "in use", "configure another address"}
	}},
	{"address of another machine", exitFailed, func(t *testing.T, n *node) []string {
		n.cfg.Addr, n.cfg.Voters[0].Addr = "192.0.2.1:7400", "192.0.2.1:7400"
		n.write()
		return []string{"192.0.2.1:7400", "not one of this host's", "configure one that is"}
	}},
}

var badDirectories = []refusal{
	{"state_dir not writable", exitConfig, func(t *testing.T, n *node) []string {
		n.cfg.StateDir = filepath.Join(readOnly(t), "state")
		n.write()
		return []string{"state_dir", n.cfg.StateDir, "that it alone may write"}
	}},
	{"state_dir is a file", exitConfig, func(t *testing.T, n *node) []string {
		write(t, n.cfg.StateDir, "")
		return []string{"state_dir", n.cfg.StateDir, "that it alone may write"}
	}},
	{"state_dir full", exitFailed, func(t *testing.T, n *node) []string {
		n.cfg.StateDir = full(t, tmpfs(t, "64k"))
		n.write()
		return []string{"state_dir", n.cfg.StateDir, "no space left", "full"}
	}},
	{"state_dir of another cluster", exitFailed, func(t *testing.T, n *node) []string {
		other := one(t)
		other.die()
		n.cfg.StateDir = other.cfg.StateDir
		n.write()
		return []string{"state_dir " + n.cfg.StateDir, "belongs to", "use its own directory"}
	}},
	{"durable_dir not writable", exitFailed, func(t *testing.T, n *node) []string {
		n.cfg.DurableDir = readOnly(t)
		n.write()
		return []string{"durable", n.cfg.DurableDir, "writable for this user"}
	}},
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// precious is a file that must be there at the end.
func precious(t *testing.T, path string) {
	t.Helper()
	write(t, path, "precious")
	t.Cleanup(func() {
		if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
			t.Errorf("%s was overwritten: %v", path, err)
		}
	})
}

// listen holds an address until the end of the test.
func listen(t *testing.T, network, addr string) {
	t.Helper()
	var c interface{ Close() error }
	var err error
	switch network {
	case "udp":
		c, err = net.ListenPacket(network, addr)
	case "tcp":
		c, err = net.Listen(network, addr)
	default:
		if err = os.MkdirAll(filepath.Dir(addr), 0o700); err == nil {
			c, err = net.Listen(network, addr)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
}

// tmpfs mounts a small file system; only root may.
func tmpfs(t *testing.T, size string) string {
	t.Helper()
	dir := shortDir(t)
	if err := unix.Mount("none", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Skipf("needs a small file system of its own, which only root may mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// full fills a file system up and returns its directory.
func full(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "ballast"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 4096); ; {
		if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
			return dir
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// readOnly is a directory in which nothing can be made: by mode, or where root ignores that by mount.
func readOnly(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		dir := shortDir(t)
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(dir, 0o700) }) // for its removal, which complains if that fails
		return dir
	}
	dir := tmpfs(t, "64k")
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, "size=64k"); err != nil {
		t.Skipf("root writes anywhere, and can't remount read-only here: %v", err)
	}
	return dir
}

func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	socket := filepath.Join(dir, "none.sock")
	code, out := call(t, "status", "--socket", socket)
	if code != exitNobody {
		t.Errorf("code %d", code)
	}
	contains(t, out, socket, "replicad daemon", "--socket")

	r := (&node{t: t, cfg: &config.Config{Socket: socket}}).rank("j", 0, 1, 0, rankSpec{Patience: time.Millisecond})
	if code := r.exit(); code != 1 {
		t.Errorf("code %d", code)
	}
	r.says(socket, "no such socket", "start the daemon of this node")
}

// TestSecondDaemon: a second daemon of the same node neither starts nor disturbs the first, nor takes the keeper from it, whether it has
// the same configuration or, with the same state directory, ports and sockets of its own.
func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	n := one(t)
	l := n.run("calm", 1, rankSpec{})
	l.await("step", fields{"step": 5})
	second, free := *n.cfg, newCluster(t, "n1").nodes[0].cfg
	second.Addr, second.GossipAddr = free.Addr, free.GossipAddr
	second.Socket, second.AdminSocket, second.KeeperSocket = second.Socket+"2", second.AdminSocket+"2", second.KeeperSocket+"2"
	second.Voters = []config.Voter{{Name: "n1", Addr: second.Addr}}
	apart := n.File + "2"
	if err := second.Write(apart); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{n.File, apart} {
		code, out := call(t, "daemon", "--config", file)
		if code != exitFailed {
			t.Errorf("code %d", code)
		}
		contains(t, out, n.cfg.StateDir, "in use by another running daemon", "stop that one")
	}
	from := n.daemon.mark()
	n.daemon.awaitFrom(from, "commit_seen", nil)
	n.run("next", 1, rankSpec{}).await("step", fields{"step": 5}) // the keeper still serves the first
	if s := n.statusWhen(linked); s.Leader != "n1" || s.Nodes[0].State != "alive" {
		t.Errorf("%+v", s)
	}
	n.daemon.kill()
	n.start() // the first one's session goes on
	from = n.daemon.mark()
	n.daemon.awaitFrom(from, "commit_seen", nil)
}
