package session

import (
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
)

// The test binary runs again as another process where one of these is set.
const (
	envIdle  = "SESSION_TEST_IDLE"  // does nothing until its input ends
	envAlone = "SESSION_TEST_ALONE" // runs one test
	envCall  = "SESSION_TEST_CALL"  // connects to this socket and ends
	EnvRank  = "SESSION_TEST_RANK"  // is a rank at this socket
)

// RankProcess is that rank; set by the tests that link libreplicad.
var RankProcess func(socket string) error

func TestMain(m *testing.M) {
	if os.Getenv(envIdle) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	if socket := os.Getenv(envCall); socket != "" {
		if _, err := net.Dial("unixpacket", socket); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if socket := os.Getenv(EnvRank); socket != "" {
		if err := RankProcess(socket); err != nil {
			fmt.Fprintln(os.Stderr, "rank:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leakcheck.Main(m)
}
