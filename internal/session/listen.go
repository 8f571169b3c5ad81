package session

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/replicad/replicad/internal/unixsock"
)

// Everybody is the group of a socket that every user of the node may connect to, where [Config.Users] names some. Root's group, whose number it is, is nobody's to share.
const Everybody = 0

// listen makes the socket of ranks and launchers. One that other users may reach, in a directory that is made so if it is not there, is its group's, or everybody's.
func listen(path string, open bool, group int) (*net.UnixListener, error) {
	if dir := filepath.Dir(path); open {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("socket %s: %w: make the directory, or choose one that this user can write", path, err)
		}
		if st, err := os.Stat(dir); err == nil && st.Mode().Perm()&0o001 == 0 {
			return nil, fmt.Errorf("socket %s: other users can't reach its directory, and rank_users names some: chmod 0755 %s, or choose another one", path, dir)
		}
	}
	ln, err := unixsock.Listen("unixpacket", path)
	if errors.Is(err, unixsock.ErrInUse) {
		return nil, fmt.Errorf("%w: stop that one, or give this one a socket of its own", err)
	}
	if err != nil || !open {
		return ln, err
	}
	mode := fs.FileMode(0o666) // who connects is judged by its user
	if group != Everybody {
		mode, err = 0o660, os.Lchown(path, -1, group)
	}
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: open it to group %d: %w: name a group of the daemon's user as rank_group", path, group, err), ln.Close())
	}
	return ln, nil
}
