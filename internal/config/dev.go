package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/replicad/replicad/internal/owner"
	"github.com/replicad/replicad/replica"
)

// DevNode is the name of the one node of a --dev cluster.
const DevNode replica.NodeName = "dev"

// DevDir is where a --dev node keeps everything: replicad-dev in $XDG_STATE_HOME, else .replicad-dev in the working directory.
func DevDir() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "replicad-dev")
	}
	return ".replicad-dev"
}

// errNoDev says what to do where a dev cluster is looked for.
var errNoDev = errors.New("start it with `replicad daemon --dev`, or go to the directory that it was started in (XDG_STATE_HOME, if set, is where it lives for all directories)")

// Dev returns the configuration of a one-node cluster in dir, which it makes. The first time it has makePKI put the identity
// of DevNode into the folder it is given (as pki.Init does); later it uses what is there. Without makePKI it makes nothing, and there must be one. A folder
// that is a link, another user's, or open to others, or in whose place others may put another one, is refused before anything in it is read or written.
func Dev(dir string, makePKI func(dir string, node replica.NodeName) error) (*Config, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("dev directory: %w", err)
	}
	if longest := filepath.Join(dir, "run", "keeper.sock"); len(longest) > maxSocketPath {
		return nil, fmt.Errorf("dev directory %s: its sockets would have paths of %d bytes, and the kernel takes at most %d: set XDG_STATE_HOME to a shorter folder (/tmp/NAME), for the daemon and all that use it",
			dir, len(longest), maxSocketPath)
	}
	root, err := owner.Open(dir, makePKI != nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no dev cluster is in %s: %w", dir, errNoDev)
	}
	if err != nil {
		return nil, fmt.Errorf("dev directory %s: %w; set XDG_STATE_HOME to a folder of yours, or start it in one", dir, err)
	}
	defer root.Close()
	ids := filepath.Join(dir, "pki")
	file := func(name string) string { return filepath.Join(ids, name) }
	if _, err := root.Stat("pki/ca.pem"); errors.Is(err, fs.ErrNotExist) {
		if makePKI == nil {
			return nil, fmt.Errorf("no dev cluster is in %s: %w", dir, errNoDev)
		}
		if err := makePKI(ids, DevNode); err != nil {
			return nil, fmt.Errorf("dev identity in %s: %w (set XDG_STATE_HOME to a folder with room that you may write)", ids, err)
		}
	} else if err != nil {
		return nil, fmt.Errorf("dev identity: %w", err)
	}
	host, err := devHost(root, dir)
	if err != nil {
		return nil, fmt.Errorf("dev address: %w", err)
	}
	c := (Config{
		Node: DevNode, Addr: host + ":7400", GossipAddr: host + ":7401", StateDir: dir,
		PKI:    PKI{CA: file("ca.pem"), Cert: file(string(DevNode) + ".pem"), Key: file(string(DevNode) + "-key.pem"), GossipKey: file("gossip.key"), Operator: file("operator.pem")},
		Voters: []Voter{{Name: DevNode, Addr: host + ":7400"}},
		Labels: map[string]string{"host": string(DevNode)},
	}).WithDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("dev configuration in %s:\n%w", dir, err)
	}
	return c, nil
}

// devHost is the loopback address of the cluster in dir: one of its own, drawn from the folder's name, so that two clusters on one
// machine don't meet. It is kept in a file, because the cluster's log names it: a folder that is moved keeps its address.
func devHost(root *os.Root, dir string) (string, error) {
	const name = "address"
	b, err := root.ReadFile(name)
	if err == nil {
		host := strings.TrimSpace(string(b))
		if a, err := netip.ParseAddr(host); err != nil || !a.IsLoopback() {
			return "", fmt.Errorf("%s holds %q, want a loopback address: remove the folder %s to start afresh", filepath.Join(dir, name), host, dir)
		}
		return host, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	sum := sha256.Sum256([]byte(dir))
	host := netip.AddrFrom4([4]byte{127, 1 + sum[0]%254, 1 + sum[1]%254, 1 + sum[2]%254}).String()
	if err := root.WriteFile(name+".new", []byte(host+"\n"), 0o600); err != nil {
		return "", err
	}
	return host, root.Rename(name+".new", name)
}
