package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// slowFile asks the next process of a rank to take its time.
func slowFile(dir string, rank int) string { return filepath.Join(dir, fmt.Sprintf("slow-%d", rank)) }

func askSlow(dir string, rank int, d time.Duration) error {
	return os.WriteFile(slowFile(dir, rank), []byte(d.String()), 0o600)
}

// Become is what ranks run in front of their trainer. With wait, a process that the launcher keeps for later learns its place
// here, for a trainer that can't wait by itself; then it takes the time that a fault asks for, and becomes the trainer.
func Become(dir string, wait bool, command []string) error {
	launcher := os.Getppid()
	if wait {
		if err := learnPlace(); err != nil {
			return err
		}
	}
	if rank, err := strconv.Atoi(os.Getenv("REPLICAD_RANK")); err == nil {
		file := slowFile(dir, rank)
		if b, err := os.ReadFile(file); err == nil {
			_ = os.Remove(file) // one start is slow, not all of them
			d, err := time.ParseDuration(string(b))
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			time.Sleep(d)
		}
	}
	program, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	// The kernel keeps for each thread whether it dies with its parent; the one that becomes the trainer need not be the first.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if os.Getppid() != launcher {
		return fmt.Errorf("the launcher (pid %d) is gone", launcher)
	}
	return fmt.Errorf("%s: %w", program, syscall.Exec(program, command, os.Environ()))
}

// learnPlace reads the line that a launcher writes to a process that waits.
func learnPlace() error {
	fd, err := strconv.Atoi(os.Getenv("REPLICAD_WAIT_FD"))
	if err != nil {
		return nil // it was started for a rank
	}
	f := os.NewFile(uintptr(fd), "place")
	defer f.Close()
	place := map[string]string{}
	if err := json.NewDecoder(f).Decode(&place); err != nil {
		return fmt.Errorf("wait for a rank: %w", err)
	}
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "REPLICAD_WAIT_") {
			_ = os.Unsetenv(name)
		}
	}
	for k, v := range place {
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	return nil
}
