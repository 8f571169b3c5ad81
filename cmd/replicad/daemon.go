package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/keeper"
	"github.com/replicad/replicad/internal/launch"
	"github.com/replicad/replicad/internal/node"
	"github.com/replicad/replicad/internal/owner"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newDaemon(std stdio) *cobra.Command {
	var t target
	var bootstrap, join, waitKeeper bool
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Run this node's daemon",
		Long: "Runs the daemon of this node until SIGINT or SIGTERM. Its log is JSON lines on stderr. At SIGHUP it reads\n" +
			"log.level of its configuration anew, and goes on.\n\n" +
			"If no keeper answers on keeper_socket, the daemon starts one. The keeper holds the memory of the ranks\n" +
			"and stays when the daemon ends. Where the keeper is a service of its own, give --wait-keeper: otherwise\n" +
			"the two race for the socket at boot.\n\n" +
			"Start a new cluster with --bootstrap on one or all of its voters. The cluster begins once all of them\n" +
			"are up and none has a log. The flag may stay: a voter whose log is lost, or older than what it\n" +
			"promised, never begins a second history. The next leader sends it the log and lets it vote again.\n\n" +
			"To replace a voter by another node:\n\n" +
			"  1. replicad voter remove OLD\n" +
			"  2. name the node among the voters of its own configuration, and start it with --join\n" +
			"  3. replicad voter add NEW ADDR",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			told, stop := launch.Hangups()
			defer stop()
			c, err := t.load(func(dir string, name replica.NodeName) error {
				return pki.Init(dir, []replica.NodeName{name}, time.Now())
			})
			if err != nil {
				return err
			}
			if err := makeDirs(c); err != nil {
				return coded(exitConfig, err)
			}
			if _, err := node.Identity(c); err != nil {
				return coded(exitConfig, err)
			}
			defer paceCollector()()
			keeper := func(ctx context.Context) (undo func(), err error) {
				return keeper.ForDaemon(ctx, c, waitKeeper, std.err)
			}
			err = node.Run(cmd.Context(), c, node.Options{Version: versionText(), Stderr: std.err, Bootstrap: bootstrap || t.dev, Join: join, Keeper: keeper, Hangup: node.Hangup{Told: told, Level: t.logLevel}})
			if t.dev && err != nil && strings.Contains(err.Error(), "is in use") { // gossip's library drops the cause
				err = fmt.Errorf("%w (this dev cluster's address is in %s, drawn for its folder: stop the other program, or set XDG_STATE_HOME to another folder, whose cluster has another address)", err, filepath.Join(c.StateDir, "address"))
			}
			return servedUntil(cmd.Context(), err)
		},
	}
	t.addFlags(cmd)
	cmd.Flags().BoolVar(&waitKeeper, "wait-keeper", false, "wait for a keeper that something else starts, for example a service, and start none")
	cmd.Flags().BoolVar(&bootstrap, "bootstrap", false, "a new cluster may begin here, with the configured voters, if none of them has a log")
	cmd.Flags().BoolVar(&join, "join", false, "new voter with an empty log: wait until replicad voter add has added it")
	cmd.MarkFlagsMutuallyExclusive("bootstrap", "join")
	cmd.MarkFlagsMutuallyExclusive("dev", "join")
	return cmd
}

// logLevel is the log's level as the configuration has it now.
func (t *target) logLevel() (string, error) {
	c, err := t.load(nil)
	if err != nil {
		return "", err
	}
	return c.Log.Level, nil
}

// makeDirs makes the folders that are this node's own.
func makeDirs(c *config.Config) error {
	if err := owner.Folder(c.StateDir, true); err != nil {
		return fmt.Errorf("state_dir %s: %w; give the daemon a directory that it alone may write", c.StateDir, err)
	}
	if node.OwnsDurable(c) {
		if err := os.MkdirAll(c.DurableDir, 0o700); err != nil {
			return fmt.Errorf("durable_dir %s: %w: give the daemon a directory that it may write", c.DurableDir, err)
		}
	}
	return nil
}
