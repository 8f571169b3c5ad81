package launch

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Create asks for the job as a launcher that may be given no rank, and returns once the job is there.
func TestCreateStartsNothing(t *testing.T) {
	d := newDaemon(t)
	o := Options{Socket: d.path, Job: "lm", World: 4, Groups: []replica.GroupID{0, 1, 0, 1}, Ranks: []replica.Rank{1}, Command: []string{"true"}}
	done := make(chan error, 1)
	go func() { done <- Create(t.Context(), o) }()
	p, hello := d.accept()
	if hello.Capacity != 0 || !hello.Spare || len(hello.Ranks) != 0 || hello.World != 4 || len(hello.Groups) != 4 {
		t.Errorf("hello %+v", hello)
	}
	p.send(wire.MRunOK, wire.Welcome{ABI: wire.RankABI}.Append(nil))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestCreateSaysWhyNot(t *testing.T) {
	d := newDaemon(t)
	done := make(chan error, 1)
	go func() {
		done <- Create(t.Context(), Options{Socket: d.path, Job: "lm", World: 4, Command: []string{"true"}})
	}()
	p, _ := d.accept()
	p.send(wire.MRefused, wire.Refused{Code: wire.CodeRefused, Text: "it runs with 2 ranks"}.Append(nil))
	if err := <-done; err == nil || !strings.Contains(err.Error(), "it runs with 2 ranks") {
		t.Fatalf("refused: %v", err)
	}
}

func TestCreateWithoutADaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	err := Create(t.Context(), Options{Socket: path, Job: "lm", World: 4, Command: []string{"true"}, Patience: 50 * time.Millisecond})
	if !errors.Is(err, ErrNoDaemon) || !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
}

func TestEnvironOfAnotherLauncher(t *testing.T) {
	o := Options{Socket: "/s", Job: "lm", Token: "secret", Admin: "/a", Groups: []replica.GroupID{0, 1}, Env: []string{"A=b", "REPLICAD_RANK=3"}}
	want := []string{"A=b", "REPLICAD_SOCKET=/s", "REPLICAD_JOB=lm", "REPLICAD_HOST=127.0.0.1", "REPLICAD_GROUPS=0,1", "REPLICAD_TOKEN=secret", "REPLICAD_ADMIN_SOCKET=/a"}
	if got := o.Environ(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
