package session

import (
	"io"
	"os"
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
)

// envIdle makes the test binary a process that does nothing until its input ends.
const envIdle = "SESSION_TEST_IDLE"

func TestMain(m *testing.M) {
	if os.Getenv(envIdle) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	leakcheck.Main(m)
}
