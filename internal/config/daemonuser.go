package config

import (
	"fmt"
	"io/fs"
	"os/user"
	"strconv"

	"github.com/replicad/replicad/internal/owner"
)

// Daemons are the users whose daemon is believed on this node's sockets, besides root and the asking one: that of DaemonUser, or none.
func (c *Config) Daemons() []uint32 {
	if uid, err := userNumber(c.DaemonUser); c.DaemonUser != "" && err == nil {
		return []uint32{uid}
	}
	return nil
}

// checkDaemonUser refuses a user that is none, or that somebody named who can as well put a daemon of his own in its place.
func (c *Config) checkDaemonUser(path string, st fs.FileInfo) error {
	if c.DaemonUser == "" {
		return nil
	}
	if _, err := userNumber(c.DaemonUser); err != nil {
		return &FieldError{"daemon_user", strconv.Quote(c.DaemonUser), "the name or number of the user that the daemon runs as", err.Error()}
	}
	if err := owner.Check(path, st); err != nil {
		return &FieldError{"daemon_user", strconv.Quote(c.DaemonUser), "a file of root or of the user who reads it", err.Error()}
	}
	if mode := st.Mode().Perm(); mode&0o022 != 0 {
		return &FieldError{"daemon_user", fmt.Sprintf("in a file of mode %04o", mode), "a file that its owner alone may write: chmod go-w " + path, "others could name themselves"}
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
