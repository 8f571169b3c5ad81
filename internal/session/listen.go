package session

import (
	"errors"
	"fmt"
	"net"

	"github.com/replicad/replicad/internal/unixsock"
)

// listen makes the socket of ranks and launchers.
func listen(path string) (*net.UnixListener, error) {
	ln, err := unixsock.Listen("unixpacket", path)
	if errors.Is(err, unixsock.ErrInUse) {
		return nil, fmt.Errorf("%w: stop that one, or give this one a socket of its own", err)
	}
	return ln, err
}
