package session

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/replicad/replicad/internal/unixsock"
)

// listen makes the socket of ranks and launchers; an open one can be reached by every user, in a directory that is made so if it is not there.
func listen(path string, open bool) (*net.UnixListener, error) {
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
	if err == nil && open {
		if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // who connects is judged by its user
			_ = ln.Close()
			return nil, fmt.Errorf("socket %s: %w", path, err)
		}
	}
	return ln, err
}
