package want

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

type short struct{ kind Kind }

func (s short) Error() string { return "short" }
func (s short) Want() Kind    { return s.kind }

// Every error number there is: those few are wants, and nothing else is.
func TestWhatIsAWant(t *testing.T) {
	wants := map[unix.Errno]Kind{unix.EMFILE: Descriptors, unix.ENFILE: Descriptors, unix.ENOMEM: Memory, unix.ENOBUFS: Memory, unix.ENOSPC: Disk, unix.EDQUOT: Disk}
	for n := unix.Errno(1); n < 134; n++ {
		err := fmt.Errorf("arena: %w", &fs.PathError{Op: "open", Path: "/proc/meminfo", Err: n})
		if got := Of(err); got != wants[n] {
			t.Errorf("%v is a want of %v, not of %v", err, got, wants[n])
		}
		start := wants[n]
		if n == unix.EAGAIN {
			start = Processes
		}
		if got := OfStart(&os.PathError{Op: "fork/exec", Path: "python", Err: n}); got != start {
			t.Errorf("at a start %v is a want of %v, not of %v", n, got, start)
		}
	}
	if Of(nil) != Nothing || Of(errors.New("too many open files")) != Nothing {
		t.Error("what has no number is a want")
	}
	if got := Of(errors.Join(errors.New("x"), fmt.Errorf("y: %w", short{Memory}))); got != Memory {
		t.Errorf("an error that says so itself is a want of %v", got)
	}
}

func TestEachWantHasARemedy(t *testing.T) {
	for k := Descriptors; k <= Something; k++ {
		if k.String() == "nothing" || strings.Contains(k.Remedy(), "none") {
			t.Errorf("%d: %v, %q", k, k, k.Remedy())
		}
	}
	if Nothing.String() != "nothing" || Kind(200).String() != "nothing" || Kind(200).Remedy() != Nothing.Remedy() {
		t.Error("a number that is none")
	}
}

func TestDescriptor(t *testing.T) {
	if err := Descriptor(4); err != nil {
		t.Error(err)
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	err := Descriptor(4)
	if err2 := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err2 != nil {
		t.Fatal(err2)
	}
	if Of(err) != Descriptors {
		t.Errorf("without any: %v", err)
	}
}
