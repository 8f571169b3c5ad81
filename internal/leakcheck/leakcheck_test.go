package leakcheck

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestMainFailsOnLeak runs this binary again as a package whose test leaks.
func TestMain(m *testing.M) {
	Main(m)
}

func TestLeakIsSeen(t *testing.T) {
	before := Running()
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); <-stop }()
	left := Leaked(before, 50*time.Millisecond)
	if len(left) != 1 || !strings.Contains(left[0], "TestLeakIsSeen") {
		t.Errorf("one goroutine is blocked, the check sees %d: %q", len(left), left)
	}
	close(stop)
	<-ended
	if left := Leaked(before, Grace); left != nil {
		t.Errorf("all goroutines have ended, the check sees %q", left)
	}
}

func TestMainFailsOnLeak(t *testing.T) {
	if os.Getenv("LEAKCHECK_LEAK") == "1" {
		go func() { select {} }()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestMainFailsOnLeak$")
	cmd.Env = append(os.Environ(), "LEAKCHECK_LEAK=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "leakcheck: 1 goroutine(s)") || !strings.Contains(string(out), "TestMainFailsOnLeak") {
		t.Fatalf("a run that leaks a goroutine: error %v, output:\n%s", err, out)
	}
}

func TestIDOf(t *testing.T) {
	if id, err := idOf([]byte("goroutine 42 [running]:\nmain.main()")); id != 42 || err != nil {
		t.Errorf("got %d, %v", id, err)
	}
	for _, bad := range []string{"", "goroutine", "goroutine x [y]", "thread 1 [x]"} {
		if _, err := idOf([]byte(bad)); err == nil {
			t.Errorf("%q is taken for a stack", bad)
		}
	}
}
