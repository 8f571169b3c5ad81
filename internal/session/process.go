package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/unixsock"
)

// process names one life of a pid.
type process struct {
	pid   int
	start uint64
}

// Watch announces the end of a process by one Exited event, at once if it is gone already or the pid is another's by now. A
// process that is watched is not watched twice.
func (s *Server) Watch(pid int, start uint64) error {
	who := process{pid, start}
	s.mu.Lock()
	_, known := s.watched[who]
	full := len(s.watched) >= maxWatched
	if !known && !full {
		s.watched[who] = struct{}{}
	}
	s.mu.Unlock()
	if known {
		return nil
	}
	if full {
		return fmt.Errorf("watch process %d: %d are watched, the limit", pid, maxWatched)
	}
	f, err := openProcess(pid, start)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.unwatch(who)
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	if !s.start(func() { s.await(who, f) }) {
		s.unwatch(who)
		if f != nil {
			_ = f.Close()
		}
		return fmt.Errorf("watch process %d: %w", pid, errServerEnded)
	}
	return nil
}

func (s *Server) unwatch(who process) {
	s.mu.Lock()
	delete(s.watched, who)
	s.mu.Unlock()
}

// await waits for a process' end on its pidfd; a nil f has ended.
func (s *Server) await(who process, f *os.File) {
	defer s.unwatch(who)
	if f != nil {
		defer f.Close()
		defer context.AfterFunc(s.ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
		gone := false
		for !gone {
			c, err := f.SyscallConn()
			if err == nil {
				err = c.Read(func(fd uintptr) bool { gone = exited(int(fd)); return gone })
			}
			// Only its end may be announced as its end; whatever else the poller met is tried again.
			if s.ctx.Err() != nil || err != nil && !s.pause(100*time.Millisecond) {
				return
			}
		}
	}
	s.emit(Exited{who.pid, who.start})
}

// exited tells whether the process of a pidfd has ended.
func exited(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// openProcess opens a pidfd, non-blocking so that the runtime's poller waits on it. os.ErrProcessDone if the process has ended
// or the pid belongs to another one.
func openProcess(pid int, start uint64) (*os.File, error) {
	if pid <= 0 {
		return nil, os.ErrProcessDone
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	// The pid was this process' at some moment after the pidfd was opened, so the pidfd is of this process or its end is seen.
	if now, err := StartTime(pid); err != nil || now != start || exited(fd) {
		_ = f.Close()
		if err != nil && !errors.Is(err, os.ErrProcessDone) {
			return nil, err
		}
		return nil, os.ErrProcessDone
	}
	return f, nil
}

// Alive tells whether the process that had this pid at this start time still runs; one that waits to be reaped does not.
func Alive(pid int, start uint64) bool {
	f, err := openProcess(pid, start)
	if err == nil {
		_ = f.Close()
	}
	return !errors.Is(err, os.ErrProcessDone) // what can't be found out is no death
}

// Kill ends that process by SIGKILL, and no other that may have its pid by now. One that has ended is no error.
func Kill(pid int, start uint64) error {
	f, err := openProcess(pid, start)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	defer f.Close()
	err = unixsock.Control(f, func(fd int) error { return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) })
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}

// StartTime is when a process started, in clock ticks since boot (field 22 of /proc/pid/stat): with the pid it names one
// process. os.ErrProcessDone if there is none.
func StartTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, os.ErrProcessDone
	}
	if err != nil {
		return 0, fmt.Errorf("start time of process %d: %w", pid, err)
	}
	return parseStartTime(b)
}

// Halted tells whether the kernel has that process stopped, by a signal or a debugger. What can't be found out is not.
func Halted(pid int, start uint64) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	began, err := parseStartTime(b)
	return err == nil && began == start && halted(b)
}

// HaltedChild tells likewise of a child of another process, which knows it by its pid alone. Where that number is of another namespace it is no
// child's.
func HaltedChild(pid, parent int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	return len(fields) > 1 && string(fields[1]) == strconv.Itoa(parent) && halted(b)
}

// halted reads field 3, the state; that of a process whose threads are all stopped is the first one's.
func halted(stat []byte) bool {
	rest := bytes.TrimLeft(stat[bytes.LastIndexByte(stat, ')')+1:], " ")
	return len(rest) > 0 && (rest[0] == 'T' || rest[0] == 't')
}

// Mapped is how many bytes of shared memory and files that process has in reach, by its page tables: it rises while the process
// prefaults its arena. 0 where it can't be found out.
func Mapped(pid int) uint64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	return parseMapped(b) * uint64(os.Getpagesize())
}

// parseMapped reads the third field of statm.
func parseMapped(statm []byte) uint64 {
	fields := bytes.Fields(statm)
	if len(fields) < 3 {
		return 0
	}
	n, err := strconv.ParseUint(string(fields[2]), 10, 64)
	if err != nil || n > 1<<40 {
		return 0
	}
	return n
}

// parseStartTime reads field 22. The command name before it may hold anything, parentheses and spaces too.
func parseStartTime(stat []byte) (uint64, error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 { // the first one here is field 3
		return 0, fmt.Errorf("process status with %d fields after the name, want 20", len(fields))
	}
	n, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("process status: start time: %w", err)
	}
	return n, nil
}
