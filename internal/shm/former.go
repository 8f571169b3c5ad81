package shm

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/replicad/replicad/internal/unixsock"
)

// FormerKeeper is a keeper whose socket another one has taken: nobody can reach it any more, and it holds memory.
type FormerKeeper struct {
	PID         int
	Descriptors int    // of memory, that it holds
	Bytes       uint64 // that these take
}

// FormerKeepers finds this user's keepers of a socket that do not answer there: their socket file was removed, with the directory that it lay in. Where no
// keeper answers nobody can tell which is the present one, and none is named.
func FormerKeepers(socket string) (found []FormerKeeper, err error) {
	c, err := net.DialTimeout("unixpacket", socket, keeperTimeout)
	if err != nil {
		return nil, fmt.Errorf("keeper at %s: %w", socket, err)
	}
	present, err := unixsock.Peer(c.(*net.UnixConn)) // a connection that says nothing means nothing to a keeper
	c.Close()
	if err != nil {
		return nil, fmt.Errorf("keeper at %s: %w", socket, err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		dir := filepath.Dir(line)
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == int(present.Pid) || pid == os.Getpid() {
			continue
		}
		st, err := os.Stat(dir)
		if err != nil { // it has ended meanwhile
			continue
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); !ok || int(sys.Uid) != os.Geteuid() {
			continue
		}
		argv, err := os.ReadFile(line)
		if err != nil || !keeps(argv, socket) {
			continue
		}
		k := FormerKeeper{PID: pid}
		k.Descriptors, k.Bytes = heldMemory(dir)
		found = append(found, k)
	}
	return found, nil
}

// keeps tells whether a command line is a keeper's of that socket. One that starts a keeper and ends is none.
func keeps(argv []byte, socket string) bool {
	var args []string
	for a := range bytes.SplitSeq(bytes.TrimSuffix(argv, []byte{0}), []byte{0}) {
		args = append(args, string(a))
	}
	at := slices.Index(args, "--socket")
	of := ""
	if at >= 0 && at+1 < len(args) {
		of = args[at+1]
	}
	for _, a := range args {
		if s, ok := strings.CutPrefix(a, "--socket="); ok {
			of = s
		}
	}
	return slices.Contains(args, "keeper") && !slices.Contains(args, "--detach") && of != "" && filepath.Clean(of) == filepath.Clean(socket)
}

// heldMemory counts the memfds of a process, and what their pages take.
func heldMemory(proc string) (n int, size uint64) {
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return 0, 0 // it has ended, or may not be looked at
	}
	for _, fd := range fds {
		path := filepath.Join(proc, "fd", fd.Name())
		if to, err := os.Readlink(path); err != nil || !strings.HasPrefix(to, "/memfd:") {
			continue
		}
		n++
		if st, err := os.Stat(path); err == nil {
			if sys, ok := st.Sys().(*syscall.Stat_t); ok {
				size += uint64(sys.Blocks) * 512
			}
		}
	}
	return n, size
}

// Text says what a former keeper is, and what to do.
func (k FormerKeeper) Text() string {
	return fmt.Sprintf("process %d is the keeper of a former life of this node, whose state_dir was emptied: it holds %d MiB in %d descriptors, and nobody can use them any more: end it (kill %d)", k.PID, k.Bytes>>20, k.Descriptors, k.PID)
}
