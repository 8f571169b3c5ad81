package launch

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// markedPasses bounds how often processes are looked for: one may start another while it is found.
const markedPasses = 10

// killMarked kills every process of this user's whose environment has an entry, but for this one, and returns how many.
func killMarked(entry string) int {
	killed := map[int]bool{os.Getpid(): true}
	for range markedPasses {
		before := len(killed)
		for _, pid := range processes() {
			if !killed[pid] && killIf(pid, entry) {
				killed[pid] = true
			}
		}
		if len(killed) == before {
			break
		}
	}
	return len(killed) - 1
}

func processes() (pids []int) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what can't be read is not killed
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killIf kills a process that lives and has an entry in its environment. The descriptor is of the process that the environment was read of: its number
// may be another one's by then.
func killIf(pid int, entry string) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ") // empty of one that has ended
	if err != nil || !hasEntry(env, entry) {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

func hasEntry(env []byte, entry string) bool {
	for e := range bytes.SplitSeq(env, []byte{0}) {
		if string(e) == entry {
			return true
		}
	}
	return false
}
