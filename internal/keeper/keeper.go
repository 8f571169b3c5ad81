// Package keeper starts a keeper beside a daemon that finds none, and waits for one or ends it. The keeper is nobody's child: it outlives
// its daemon and the terminal of both, with the memory of the ranks. What a keeper does is in internal/shm.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	startTime = 10 * time.Second      // within which a new keeper must answer
	poll      = 10 * time.Millisecond // how often it is looked for
)

// Detach starts a keeper that is nobody's child once this process ends: it must outlive the daemon and its terminal.
func Detach(ctx context.Context, socket, logFile string) (pid int, err error) {
	if logFile == "" {
		logFile = os.DevNull
	}
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, fmt.Errorf("keeper's log: %w", err)
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("keeper: %w", err)
	}
	cmd := exec.Command(self, "keeper", "--socket", socket)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("keeper: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for !Answers(socket) {
		if state := exitedState(cmd.Process.Pid); state != "" {
			return 0, fmt.Errorf("keeper on %s ended at once (%s): %s", socket, state, lastLine(logFile))
		}
		select {
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			return 0, fmt.Errorf("keeper on %s does not answer: %w: see %s", socket, context.Cause(ctx), logFile)
		case <-time.After(poll):
		}
	}
	return cmd.Process.Pid, nil
}

// exitedState reaps the process if it has ended and says how; empty while it runs.
func exitedState(pid int) string {
	var ws syscall.WaitStatus
	if got, err := syscall.Wait4(pid, &ws, syscall.WNOHANG, nil); err != nil || got != pid {
		return ""
	}
	if ws.Signaled() {
		return ws.Signal().String()
	}
	return "status " + strconv.Itoa(ws.ExitStatus())
}

// lastLine is what the keeper said last, or where to look for it.
func lastLine(log string) string {
	const most = 4096
	f, err := os.Open(log)
	if err != nil {
		return "see " + log
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd) // from the start it is as well
	}
	b, _ := io.ReadAll(io.LimitReader(f, most)) // what could be read is better than nothing
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if said := strings.TrimPrefix(lines[len(lines)-1], "replicad: "); said != "" {
		return said
	}
	return "see " + log
}

// end ends a keeper and waits until its process is gone: it may linger after it has closed its socket.
func end(pid int, socket string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil // ended by itself
	}
	if err == nil {
		defer unix.Close(fd)
		err = unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("stop keeper %d on %s: %w", pid, socket, err)
	}
	for end := time.Now().Add(startTime); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(int(time.Until(end)/time.Millisecond), 0))
		switch {
		case err == nil && n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for the end of keeper %d on %s: %w", pid, socket, err)
		case time.Now().After(end):
			return fmt.Errorf("keeper %d on %s still runs %v after SIGTERM", pid, socket, startTime)
		}
	}
}

// Answers tells whether someone listens there; a connection that says nothing means nothing to a keeper.
func Answers(socket string) bool {
	conn, err := net.DialTimeout("unixpacket", socket, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// Await waits for a keeper that something else starts.
func Await(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for !Answers(socket) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("no keeper answers on %s: %w (start `replicad keeper --socket %s`, or leave out --wait-keeper)", socket,
				context.Cause(ctx), socket)
		case <-time.After(poll):
		}
	}
	return nil
}

// Ensure starts a keeper if none answers, through a process in between, so that the keeper is not the daemon's child and
// leaves nothing to reap. pid is 0 if one was there.
func Ensure(ctx context.Context, socket, logFile string, stderr io.Writer) (pid int, err error) {
	if Answers(socket) {
		return 0, nil
	}
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return 0, fmt.Errorf("keeper's socket: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("keeper: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, "keeper", "--detach", "--socket", socket, "--log", logFile)
	cmd.Stderr = stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("start a keeper on %s: %w: what it said is above", socket, err)
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return 0, fmt.Errorf("start a keeper on %s: it said %.80q instead of its process id", socket, out)
	}
	return pid, nil
}
