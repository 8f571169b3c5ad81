package shm

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestKeepersOfASocket(t *testing.T) {
	line := func(args ...string) []byte { return []byte(strings.Join(args, "\x00") + "\x00") }
	for want, lines := range map[bool][][]byte{
		true:  {line("/usr/bin/replicad", "keeper", "--socket", "/s/run/keeper.sock"), line("replicad", "keeper", "--socket=/s//run/keeper.sock")},
		false: {line("replicad", "keeper", "--socket", "/other"), line("replicad", "keeper", "--socket"), line("replicad", "keeper", "--detach", "--socket", "/s/run/keeper.sock"), line("replicad", "daemon", "--socket", "/s/run/keeper.sock"), nil, line("keeper")},
	} {
		for _, l := range lines {
			if got := keeps(l, "/s/run/keeper.sock"); got != want {
				t.Errorf("%q: %v", l, got)
			}
		}
	}
}

// Memory that a process holds is counted by what its pages take. A process of its own holds it: in this one memory of other tests comes and goes.
func TestMemoryHeld(t *testing.T) {
	t.Parallel()
	f, err := NewMemfd("former")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 1<<20), 4<<20); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cat") // it ends with its input
	cmd.ExtraFiles = []*os.File{f, f}
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil { // it is another program from here on
		t.Fatal(err)
	}
	defer func() {
		_ = input.Close()
		_ = cmd.Wait()
	}()
	if n, size := heldMemory(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid))); n != 2 || size != 2<<20 {
		t.Errorf("%d descriptors with %d bytes, want 2 with 1 MiB each", n, size)
	}
}

// TestAFormerKeeperIsFound: its socket was removed with its directory, and another keeper answers in its place.
func TestAFormerKeeperIsFound(t *testing.T) {
	if _, err := FormerKeepers(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("nobody answers, and former keepers are named")
	}
	socket := inProcessKeeper(t)
	k, err := DialKeeper(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	found, err := FormerKeepers(socket)
	if err != nil || len(found) > 0 {
		t.Errorf("the present keeper, in process %d, is none of a former life: %+v, %v", os.Getpid(), found, err)
	}
}
