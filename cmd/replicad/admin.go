package main

import (
	"github.com/replicad/replicad/internal/admin"
	"github.com/replicad/replicad/internal/config"
	"github.com/spf13/cobra"
)

// adminFlags name the admin socket: by itself or through the configuration.
type adminFlags struct {
	target
	admin.Client
}

func (a *adminFlags) addFlags(cmd *cobra.Command) {
	a.target.addFlags(cmd)
	cmd.Flags().StringVar(&a.Socket, "socket", "", "admin `SOCKET` of the daemon, instead of --config")
}

// find reads the configuration, where that is needed: the admin socket is the one that it names.
func (a *adminFlags) find() (*config.Config, error) {
	if a.Socket != "" {
		return new(config.Config), nil
	}
	c, err := a.load(nil)
	if err == nil {
		a.Socket, a.Daemons = c.AdminSocket, c.Daemons()
	}
	return c, err
}
