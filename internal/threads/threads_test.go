package threads

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/leakcheck"
)

func TestMain(m *testing.M) {
	if os.Getenv(atLimit) != "" {
		os.Exit(runAtLimit())
	}
	leakcheck.Main(m)
}

// atLimit has this program make its threads, wait for a line, and then block in the kernel with as many as it made.
const atLimit = "THREADS_TEST_AT_LIMIT"

func runAtLimit() int {
	n := 0
	if os.Getenv(atLimit) == "reserve" {
		n = Reserve
	}
	Make(n)
	fmt.Println("ready")
	if _, err := os.Stdin.Read(make([]byte, 8)); err != nil {
		return 3
	}
	var pipes [][2]int
	done := make(chan struct{})
	var entered sync.WaitGroup
	entered.Add(Reserve - 8)
	for range Reserve - 8 { // the runtime's own have some
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return 4
		}
		pipes = append(pipes, p)
		go func() {
			entered.Done()
			_, _ = unix.Read(p[0], make([]byte, 1)) // the runtime does not know it: a thread is held
			done <- struct{}{}
		}()
	}
	entered.Wait() // all but the last few hold a thread each
	for _, p := range pipes {
		if _, err := unix.Write(p[1], []byte{0}); err != nil {
			return 5
		}
		<-done
	}
	fmt.Println("served")
	return 0
}

// TestADaemonAtTheLimitOfItsCgroup: a process that has made its threads blocks with them in the kernel though its cgroup gives no more. The control
// without ends, as Go's runtime does.
func TestADaemonAtTheLimitOfItsCgroup(t *testing.T) {
	group, err := os.MkdirTemp(pidsRoot(t), "replicad-test-")
	if err != nil {
		t.Skipf("no cgroup with a limit of processes can be made here: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(group) })
	for _, how := range []string{"reserve", "none"} {
		t.Run(how, func(t *testing.T) {
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), atLimit+"="+how)
			in, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			c.Stderr = &out
			said, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 64)
			if n, err := said.Read(buf); err != nil || !strings.Contains(string(buf[:n]), "ready") {
				t.Fatalf("it says %q: %v", buf[:n], err)
			}
			put(t, filepath.Join(group, "cgroup.procs"), fmt.Sprint(c.Process.Pid))
			used, ok := number(filepath.Join(group, "pids.current"))
			if !ok {
				t.Fatal("pids.current can't be read")
			}
			put(t, filepath.Join(group, "pids.max"), fmt.Sprint(used))
			_, _ = fmt.Fprintln(in, "go")
			err = c.Wait()
			put(t, filepath.Join(group, "pids.max"), "max")
			if died := strings.Contains(out.String(), "failed to create new OS thread") || strings.Contains(out.String(), "pthread_create failed"); (err == nil) != (how == "reserve") || died != (how == "none") {
				t.Errorf("it ended with %v: %.300s", err, out.String())
			}
		})
	}
}

func pidsRoot(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			return dir
		}
	}
	t.Skip("no cgroup is mounted here")
	return ""
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Skipf("this host's cgroup takes no limit of processes: %v", err)
	}
}

// TestLimitsOfBothVersions: each cgroup above the process counts, of both versions, and "max" is no limit.
func TestLimitsOfBothVersions(t *testing.T) {
	for name, c := range map[string]struct {
		list  string
		files map[string]string
		want  string
	}{
		"version 2":         {"0::/a/b\n", map[string]string{"a/b/pids.max": "max", "a/b/pids.current": "5", "a/pids.max": "100", "a/pids.current": "90"}, "/a 100 90"},
		"version 1":         {"8:pids:/a\n0::/\n", map[string]string{"pids/a/pids.max": "64", "pids/a/pids.current": "3"}, "/a 64 3"},
		"both, mixed":       {"3:cpu,pids:/x\n0::/x\n", map[string]string{"unified/x/pids.max": "7", "unified/x/pids.current": "7", "pids/pids.max": "9", "pids/pids.current": "1"}, "/ 9 1; /x 7 7"},
		"another's path":    {"8:pids:/docker/0f\n", map[string]string{"pids/pids.max": "50", "pids/pids.current": "2"}, "/ 50 2"},
		"no list, no limit": {"", nil, ""},
		"garbage":           {"x\n::\n1:pids\n", map[string]string{"pids/pids.max": "many"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for f, text := range c.files {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(root, f)), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, f), []byte(text+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			list := filepath.Join(root, "list")
			if err := os.WriteFile(list, []byte(c.list), 0o600); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, l := range groups(list, root) {
				got = append(got, fmt.Sprintf("%s %d %d", strings.TrimPrefix(l.what, "the cgroup "), l.max, l.used))
			}
			if s := strings.Join(got, "; "); s != c.want {
				t.Errorf("limits %q, want %q", s, c.want)
			}
		})
	}
	if n := threadsOf("/proc", os.Geteuid()); n < 1 {
		t.Errorf("this user has %d threads", n)
	}
}
