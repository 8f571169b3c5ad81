// Package threads keeps a daemon from the one want that Go does not survive: where the kernel gives no further thread, the runtime ends the process.
// So the threads that a daemon may need are made when it starts, and people are told when the limit is near.
//
// It imports nothing of replicad's.
package threads

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Reserve is how many threads a daemon has at least: three times what one has in a busy cluster.
const Reserve = 32

// near is how many more processes and threads there should be room for.
const near = 32

// Make has the runtime make threads until the process has n. They wait for work, and the runtime never ends them: a goroutine that blocks in the
// kernel takes one of these. At the limit it makes as many as there is room for.
func Make(n int) {
	if l, ok := tightest(); ok {
		n = min(n, l.left()/2) // the others of the group need some too
	}
	var ready, done sync.WaitGroup
	ready.Add(max(n, 0))
	for range n {
		done.Go(func() {
			runtime.LockOSThread() // so that each has one to itself
			defer runtime.UnlockOSThread()
			ready.Done()
			ready.Wait()
		})
	}
	done.Wait()
}

// Warning says that the kernel may soon give this process no further thread, and what to do about it. Empty: there is room.
func Warning() string {
	l, ok := tightest()
	if !ok || l.left() >= near {
		return ""
	}
	return fmt.Sprintf("%s lets there be %d processes and threads, and %d are there: at the limit no rank starts on this node, and a daemon that needs another thread ends: %s", l.what, l.max, l.used, l.remedy)
}

// limit is one of those that a new thread counts against.
type limit struct {
	what, remedy string
	max, used    int
}

func (l limit) left() int { return max(l.max-l.used, 0) }

// tightest is the limit with the least room. What can't be read is no limit.
func tightest() (least limit, ok bool) {
	for _, l := range append(groups("/proc/self/cgroup", "/sys/fs/cgroup"), user()...) {
		if !ok || l.left() < least.left() {
			least, ok = l, true
		}
	}
	return least, ok
}

// groups are the limits of the process's cgroup and of those above it, of both versions.
func groups(list, root string) (all []limit) {
	b, err := os.ReadFile(list)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		var mount string
		switch {
		case fields[0] == "0" && fields[1] == "":
			mount = root
			if _, err := os.Stat(filepath.Join(root, "unified")); err == nil {
				mount = filepath.Join(root, "unified")
			}
		case strings.Contains(","+fields[1]+",", ",pids,"):
			mount = filepath.Join(root, "pids")
		default:
			continue
		}
		for path := filepath.Join("/", fields[2]); ; path = filepath.Dir(path) {
			most, okMost := number(filepath.Join(mount, path, "pids.max"))
			used, okUsed := number(filepath.Join(mount, path, "pids.current"))
			if okMost && okUsed {
				all = append(all, limit{"the cgroup " + path, "raise its pids.max (TasksMax= of a unit, --pids-limit of a container)", most, used})
			}
			if path == "/" {
				break
			}
		}
	}
	return all
}

// number reads a file that has one; "max" is none.
func number(path string) (int, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	return n, err == nil
}

// user is the limit of this process's user; root has none.
func user() []limit {
	var r unix.Rlimit
	if os.Geteuid() == 0 || unix.Getrlimit(unix.RLIMIT_NPROC, &r) != nil || r.Cur > math.MaxInt32 {
		return nil
	}
	return []limit{{fmt.Sprintf("the limit of user %d", os.Geteuid()), "raise it (LimitNPROC= of a unit, ulimit -u)", int(r.Cur), threadsOf("/proc", os.Geteuid())}}
}

// threadsOf counts the threads of a user.
func threadsOf(proc string, uid int) (n int) {
	dirs, err := os.ReadDir(proc)
	if err != nil {
		return 0
	}
	for _, d := range dirs {
		if _, err := strconv.Atoi(d.Name()); err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(proc, d.Name(), "status"))
		if err != nil {
			continue // it has ended
		}
		own, has := false, 0
		for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
			switch f := strings.Fields(s.Text()); {
			case len(f) > 1 && f[0] == "Uid:":
				own = f[1] == strconv.Itoa(uid)
			case len(f) > 1 && f[0] == "Threads:":
				has, _ = strconv.Atoi(f[1])
			}
		}
		if own {
			n += has
		}
	}
	return n
}
