package main

import (
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

// defaultConfig is where a configuration is looked for when no flag names one.
const defaultConfig = "/etc/replicad/replicad.yaml"

// target is how verbs name the daemon of this node.
type target struct {
	file string
	dev  bool
}

func (t *target) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.file, "config", defaultConfig, "configuration `FILE` of this node's daemon")
	cmd.Flags().BoolVar(&t.dev, "dev", false, "the one-node cluster that daemon --dev starts, without a file")
	cmd.MarkFlagsMutuallyExclusive("config", "dev")
}

// load reads the configuration; with --dev it is the one that makeIdentity is for. nil: the cluster must be there.
func (t *target) load(makeIdentity func(dir string, node replica.NodeName) error) (*config.Config, error) {
	var c *config.Config
	var err error
	if t.dev {
		c, err = config.Dev(config.DevDir(), makeIdentity)
	} else {
		c, err = config.Load(t.file)
	}
	return c, coded(exitConfig, err)
}

// starts is the command that starts the daemon.
func (t *target) starts() string {
	switch {
	case t.dev:
		return "replicad daemon --dev"
	case t.file != defaultConfig:
		return "replicad daemon --config " + t.file
	}
	return "replicad daemon"
}
