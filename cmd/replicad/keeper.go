package main

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

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/usage"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

const (
	keeperStart = 10 * time.Second      // within which a new keeper must answer
	keeperPoll  = 10 * time.Millisecond // how often it is looked for
)

func newKeeper(std stdio) *cobra.Command {
	var socket, logFile string
	var detach bool
	cmd := &cobra.Command{
		Use:   "keeper --socket PATH",
		Short: "Hold the memory of this node's ranks while its daemon is away",
		Long: "Holds the descriptors of arenas, so that a restarted daemon finds the memory of its ranks.\n\n" +
			"`replicad daemon` starts a keeper if none answers. The keeper stays when the daemon ends. When the\n" +
			"keeper ends beside its daemon, the next keeper gets the memory from the daemon. When both end, only the\n" +
			"ranks that run still have theirs. SIGHUP does nothing.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if socket == "" {
				return usage.Wrong(fmt.Errorf("no socket: give --socket PATH, the daemon's keeper_socket"))
			}
			if detach {
				pid, err := detachKeeper(cmd.Context(), socket, logFile)
				if err == nil {
					err = console.Write(std.out, "%d\n", pid)
				}
				return err
			}
			_, stop := hangups() // the terminal that it was started in may go
			defer stop()
			return servedUntil(cmd.Context(), shm.RunKeeper(cmd.Context(), socket))
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "unix socket `PATH` to listen on")
	cmd.Flags().BoolVar(&detach, "detach", false, "start the keeper in a session of its own, print its process id, and return once it answers")
	cmd.Flags().StringVar(&logFile, "log", "", "with --detach: `FILE` for the keeper's messages")
	return cmd
}

// detachKeeper starts a keeper that is nobody's child once this process ends: it must outlive the daemon and its terminal.
func detachKeeper(ctx context.Context, socket, logFile string) (pid int, err error) {
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
	ctx, cancel := context.WithTimeout(ctx, keeperStart)
	defer cancel()
	for !answers(socket) {
		if state := exitedState(cmd.Process.Pid); state != "" {
			return 0, fmt.Errorf("keeper on %s ended at once (%s): %s", socket, state, lastLine(logFile))
		}
		select {
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			return 0, fmt.Errorf("keeper on %s does not answer: %w: see %s", socket, context.Cause(ctx), logFile)
		case <-time.After(keeperPoll):
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

// endKeeper ends a keeper and waits until its process is gone: it may linger after it has closed its socket.
func endKeeper(pid int, socket string) error {
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
	for end := time.Now().Add(keeperStart); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(int(time.Until(end)/time.Millisecond), 0))
		switch {
		case err == nil && n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for the end of keeper %d on %s: %w", pid, socket, err)
		case time.Now().After(end):
			return fmt.Errorf("keeper %d on %s still runs %v after SIGTERM", pid, socket, keeperStart)
		}
	}
}

// answers tells whether someone listens there; a connection that says nothing means nothing to a keeper.
func answers(socket string) bool {
	conn, err := net.DialTimeout("unixpacket", socket, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// awaitKeeper waits for a keeper that something else starts.
func awaitKeeper(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, keeperStart)
	defer cancel()
	for !answers(socket) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("no keeper answers on %s: %w (start `replicad keeper --socket %s`, or leave out --wait-keeper)", socket, context.Cause(ctx), socket)
		case <-time.After(keeperPoll):
		}
	}
	return nil
}

// ensureKeeper starts a keeper if none answers, through a process in between, so that the keeper is not the daemon's child and
// leaves nothing to reap. pid is 0 if one was there.
func ensureKeeper(ctx context.Context, socket, logFile string, stderr io.Writer) (pid int, err error) {
	if answers(socket) {
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
