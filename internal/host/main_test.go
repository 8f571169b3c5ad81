package host

import (
	"io"
	"os"
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
)

// The test binary runs again as a process that does nothing until its input ends, where this is set: a rank to be killed.
const envIdle = "NODE_TEST_IDLE"

func TestMain(m *testing.M) {
	if os.Getenv(envIdle) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	leakcheck.Main(m)
}
