package preload

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"net"
	"os"
	"time"

	"github.com/replicad/replicad/internal/unixsock"
)

// reportTime bounds how long a program may take to send its report.
const reportTime = 5 * time.Second

// listener takes reports in, one at a time. Its socket lies in the abstract namespace: nothing is left behind when the launcher is killed.
type listener struct {
	address string // "@..."
	ln      *net.UnixListener
}

func listen() (*listener, error) {
	name := make([]byte, 12)
	if _, err := rand.Read(name); err != nil {
		return nil, err
	}
	l := &listener{address: "@replicad-preload-" + hex.EncodeToString(name)}
	var err error
	l.ln, err = net.ListenUnix("unix", &net.UnixAddr{Name: l.address, Net: "unix"})
	return l, err
}

// run returns when ctx is done. What strangers send, or what is no report, is dropped.
func (l *listener) run(ctx context.Context, events chan<- Event) {
	defer context.AfterFunc(ctx, func() { l.ln.Close() })()
	for ctx.Err() == nil {
		conn, err := l.ln.AcceptUnix()
		if err != nil {
			select { // no descriptor is free: the next one waits
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		report, ok := take(conn)
		conn.Close()
		if !ok {
			continue
		}
		select {
		case events <- Reported{Report: report}:
		case <-ctx.Done():
		}
	}
}

// take reads a report, whose process is the one that has connected by the kernel's word.
func take(conn *net.UnixConn) (r Report, ok bool) {
	cred, err := unixsock.Peer(conn)
	if err != nil || int(cred.Uid) != os.Getuid() {
		return r, false
	}
	if err := conn.SetReadDeadline(time.Now().Add(reportTime)); err != nil {
		return r, false
	}
	b, err := io.ReadAll(io.LimitReader(conn, maxReport+1))
	if err != nil {
		return r, false
	}
	r, err = ParseReport(b)
	return r, err == nil && r.PID == int(cred.Pid)
}
