//go:build cgo

package trouble_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
)

// The programs under test, built once.
var replicad string

func TestMain(m *testing.M) {
	if os.Getenv(rankMode) != "" {
		os.Exit(rankMain())
	}
	dir, err := os.MkdirTemp("", "trouble-bin-")
	if err == nil {
		replicad = filepath.Join(dir, "replicad")
		err = build("../../cmd/replicad", replicad, raceEnabled)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "trouble:", err)
		os.Exit(1)
	}
	startSpawner()
	before := leakcheck.Running()
	code := m.Run()
	for _, stack := range leakcheck.Leaked(before, leakcheck.Grace) {
		code = max(code, 1)
		fmt.Fprintf(os.Stderr, "trouble: goroutine left over:\n%s\n", stack)
	}
	_ = os.RemoveAll(dir) // a temporary directory
	os.Exit(code)
}

// build makes a program.
func build(pkg, to string, race bool) error {
	args := []string{"build", "-buildvcs=false", "-o", to}
	if race {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, pkg)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}
