package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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

// Dev returns the configuration of a one-node cluster in dir, which it makes. The first time it has makePKI put the identity
// of DevNode into the folder it is given (as pki.Init does); later it uses what is there.
func Dev(dir string, makePKI func(dir string, node replica.NodeName) error) (*Config, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("dev directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("dev directory: %w (set XDG_STATE_HOME to a folder that you may write)", err)
	}
	ids := filepath.Join(dir, "pki")
	file := func(name string) string { return filepath.Join(ids, name) }
	if _, err := os.Stat(file("ca.pem")); errors.Is(err, fs.ErrNotExist) {
		if err := makePKI(ids, DevNode); err != nil {
			return nil, fmt.Errorf("dev identity in %s: %w (set XDG_STATE_HOME to a folder with room that you may write)", ids, err)
		}
	} else if err != nil {
		return nil, fmt.Errorf("dev identity: %w", err)
	}
	c := (Config{
		Node: DevNode, Addr: "127.0.0.1:7400", GossipAddr: "127.0.0.1:7401", StateDir: dir,
		PKI:    PKI{CA: file("ca.pem"), Cert: file(string(DevNode) + ".pem"), Key: file(string(DevNode) + "-key.pem"), GossipKey: file("gossip.key")},
		Voters: []Voter{{Name: DevNode, Addr: "127.0.0.1:7400"}},
		Labels: map[string]string{"host": string(DevNode)},
	}).WithDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("dev configuration in %s:\n%w", dir, err)
	}
	return c, nil
}
