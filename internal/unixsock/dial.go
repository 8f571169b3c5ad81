package unixsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"

	"github.com/replicad/replicad/internal/owner"
)

// DaemonUID is the variable by which a launcher tells its ranks which user's daemon it was served by, besides root and their own.
const DaemonUID = "REPLICAD_DAEMON_UID"

// StrangerError is who answers on a socket and is not to be believed: nothing was sent to it.
type StrangerError struct {
	Path string
	UID  uint32
}

func (e *StrangerError) Error() string {
	if e.UID == owner.OverflowUID() {
		return fmt.Sprintf("socket %s is answered by a user that this user namespace does not know (shown as %d): start both in one user namespace, or, if that is the daemon, set %s=%d", e.Path, e.UID, DaemonUID, e.UID)
	}
	return fmt.Sprintf("socket %s is answered by a process of user %d, and this one, of user %d, believes its own user and root: name another one as daemon_user in a configuration of root or this user, or set %s=%d if that is the daemon", e.Path, e.UID, os.Geteuid(), DaemonUID, e.UID)
}

// Dial connects to a socket of network "unix" or "unixpacket" and asks the kernel who answers, as of when it began to listen: root, the user of this
// process, one of daemons, or the one that $REPLICAD_DAEMON_UID names; a [StrangerError] else. Whoever may write a socket's folder can put one of its own there.
func Dial(ctx context.Context, network, path string, daemons ...uint32) (*net.UnixConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, path)
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("%w: user %d may not connect, with the groups of this process: be one whom rank_users of the node's configuration names, and have the socket's group (see id; containers have --group-add)", err, os.Geteuid())
	}
	if err != nil {
		return nil, err
	}
	conn := c.(*net.UnixConn)
	cred, err := Peer(conn)
	if err == nil && !believed(cred.Uid, daemons) {
		err = &StrangerError{path, cred.Uid}
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// believed tells whether a user's process may serve this one. That no user namespace knows one says nothing of who it is.
func believed(uid uint32, daemons []uint32) bool {
	if uid == owner.OverflowUID() {
		return os.Getenv(DaemonUID) == strconv.FormatUint(uint64(uid), 10)
	}
	return owner.Trusted(uid) || slices.Contains(daemons, uid) || os.Getenv(DaemonUID) == strconv.FormatUint(uint64(uid), 10)
}
