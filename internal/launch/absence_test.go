package launch

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/wire"
)

// A daemon that stays away is said again, ever more rarely, with how long that is and what to do.
func TestADaemonThatStaysAwayIsSaidAgain(t *testing.T) {
	gone := &net.OpError{Op: "dial", Net: "unixpacket", Err: os.NewSyscallError("connect", syscall.ENOENT)}
	refused := &refusedError{wire.Refused{Code: wire.CodeAgain, Text: "1 of 9"}}
	began := time.Unix(1000, 0)
	var a absence
	var at []time.Duration
	o := &Options{Socket: "/s", Start: "replicad daemon --dev"}
	for waited := time.Duration(0); waited <= 3*time.Hour; waited += time.Second {
		if said := a.news(began.Add(waited), o, gone); said != "" {
			at = append(at, waited)
			if !strings.HasSuffix(said, "no daemon on /s (no such file or directory): start it with `replicad daemon --dev`, or check --socket") || (waited > 0) != strings.HasPrefix(said, "for "+waited.String()+" now: ") {
				t.Errorf("after %v it says %q", waited, said)
			}
		}
	}
	if want := []time.Duration{0, 30 * time.Second, 90 * time.Second, 210 * time.Second}; len(at) > 10 || !slices.Equal(at[:len(want)], want) || at[len(at)-1]-at[len(at)-2] != awayMost {
		t.Errorf("it is said after %v", at)
	}
	if said := a.news(began.Add(4*time.Hour), o, refused); !strings.Contains(said, "1 of 9") || strings.HasPrefix(said, "for ") {
		t.Errorf("of another reason it says %q", said)
	}
	if said := (&absence{}).news(began, &Options{Socket: "/s"}, errors.New("EOF")); said != "no daemon on /s (EOF): start it with `replicad daemon`, or check --socket" {
		t.Errorf("it says %q", said)
	}
	denied := fmt.Errorf("%w: user 7 may not connect: rank_users", &net.OpError{Op: "dial", Net: "unixpacket", Err: os.NewSyscallError("connect", syscall.EACCES)})
	if said := (&absence{}).news(began, o, denied); !strings.Contains(said, "user 7 may not connect: rank_users") || strings.Contains(said, "start it") {
		t.Errorf("of a socket that is closed to this user it says %q", said)
	}
}
