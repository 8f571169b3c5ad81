//go:build cgo

package trouble_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	harness "github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/internal/racing"
)

// The program under test, built once, and what starts it: one thread for all tests, which run side by side.
var (
	replicad string
	spawner  *harness.Spawner
)

func TestMain(m *testing.M) {
	if os.Getenv(rankMode) != "" {
		os.Exit(rankMain())
	}
	if bin := os.Getenv(hostileMode); bin != "" {
		os.Exit(hostileMain(bin))
	}
	dir, err := os.MkdirTemp("", "trouble-bin-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // other users run what is in it
	}
	if err == nil {
		replicad = filepath.Join(dir, "replicad")
		err = build("../../cmd/replicad", replicad, racing.On, false)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "trouble:", err)
		_ = os.RemoveAll(dir) // a temporary directory
		os.Exit(1)
	}
	flag.Parse()
	set := func(name, to string) {
		if err := flag.Set(name, to); err != nil {
			panic(err) // there is such a flag
		}
	}
	set("test.parallel", fmt.Sprint(4*runtime.GOMAXPROCS(0))) // they wait most of the time
	if racing.On {
		set("test.parallel", fmt.Sprint(2*runtime.GOMAXPROCS(0)))
		if flag.Lookup("test.run").Value.String() == "" {
			set("test.run", racedOnly())
		}
	}
	before := leakcheck.Running()
	spawner = harness.NewSpawner()
	code := m.Run()
	if err := spawner.Close(); err != nil {
		code = max(code, 1)
		fmt.Fprintln(os.Stderr, "trouble:", err)
	}
	for _, stack := range leakcheck.Leaked(before, leakcheck.Grace) {
		code = max(code, 1)
		fmt.Fprintf(os.Stderr, "trouble: goroutine left over:\n%s\n", stack)
	}
	_ = os.RemoveAll(dir) // a temporary directory
	os.Exit(code)
}

// textlm is the example's program, built by the first test that wants it.
var textlm = sync.OnceValues(func() (string, error) {
	program := filepath.Join(filepath.Dir(replicad), "textlm")
	return program, build("../../examples/textlm", program, false, true)
})

// plain is the program under test without the race detector.
var plain = sync.OnceValues(func() (string, error) {
	if !racing.On {
		return replicad, nil
	}
	program := filepath.Join(filepath.Dir(replicad), "replicad-plain")
	return program, build("../../cmd/replicad", program, false, false)
})

// programs puts the program under test, without the race detector, and the example's into a directory, as they lie beside each other where they are installed.
func programs(dir string) error {
	for name, made := range map[string]func() (string, error){"replicad": plain, "textlm": textlm} {
		program, err := made()
		if err == nil {
			err = os.Link(program, filepath.Join(dir, name))
		}
		if err != nil {
			return fmt.Errorf("%s for %s: %w", name, dir, err)
		}
	}
	return nil
}

// build makes a program; without the race detector as `make build` does, whose objects are in the cache.
func build(pkg, to string, race, cgo bool) error {
	args, env := []string{"build", "-buildvcs=false", "-o", to, "-trimpath"}, "CGO_ENABLED=0"
	if race {
		args = append(args[:len(args)-1], "-race")
	}
	if cgo || race {
		env = "CGO_ENABLED=1"
	}
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}
