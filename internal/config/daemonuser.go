package config

import (
	"fmt"
	"io/fs"
	"os/user"
	"strconv"

	"github.com/replicad/replicad/internal/owner"
)

// Daemons are the users whose daemon is believed on this node's sockets, besides root and the asking one: that of DaemonUser, or none.
func (c *Config) Daemons() []uint32 { return c.daemons }

// believe takes DaemonUser's word for whose daemon is believed, and refuses a user that is none. In another user's file it does not count: whoever wrote that can
// put a daemon of his own on the socket.
func (c *Config) believe(path string, st fs.FileInfo) error {
	if c.DaemonUser == "" {
		return nil
	}
	uid, err := userNumber(c.DaemonUser)
	if err != nil {
		return &FieldError{"daemon_user", strconv.Quote(c.DaemonUser), "the name or number of the user that the daemon runs as", err.Error()}
	}
	if mode := st.Mode().Perm(); mode&0o022 != 0 {
		return &FieldError{"daemon_user", fmt.Sprintf("in a file of mode %04o", mode), "a file that its owner alone may write: chmod go-w " + path, "others could name themselves"}
	}
	if owner.Check(path, st) == nil {
		c.daemons = []uint32{uid}
	}
	return nil
}

func userNumber(text string) (uint32, error) {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return uint32(n), nil
	}
	u, err := user.Lookup(text)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(n), err
}
