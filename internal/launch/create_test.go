package launch

import (
	"errors"
	"fmt"
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

// What the job began with is said before the job is there: nothing is read after that.
func TestCreateSaysWhatTheJobBeganWith(t *testing.T) {
	d := newDaemon(t)
	var said []string
	done := make(chan error, 1)
	go func() {
		done <- Create(t.Context(), Options{Socket: d.path, Job: "lm", World: 4, Command: []string{"true"}, Logf: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }})
	}()
	p, _ := d.accept()
	p.send(wire.MRunNote, wire.Refused{Text: "from: step 7"}.Append(nil))
	p.send(wire.MRunOK, wire.Welcome{ABI: wire.RankABI}.Append(nil))
	if err := <-done; err != nil || !slices.Equal(said, []string{"from: step 7"}) {
		t.Errorf("%q, %v", said, err)
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
	o := Options{Socket: "/s", Job: "lm", Token: "secret", Admin: "/a", Program: "/bin/replicad", Groups: []replica.GroupID{0, 1}, Env: []string{"A=b", "REPLICAD_RANK=3", "REPLICAD_IDENTITY=/k"}}
	want := []string{"A=b", "REPLICAD_IDENTITY=/k", "PYTHONHASHSEED=0", "REPLICAD_SOCKET=/s", "REPLICAD_JOB=lm", "REPLICAD_HOST=127.0.0.1", "REPLICAD_GROUPS=0,1", "REPLICAD_TOKEN=secret", "REPLICAD_ADMIN_SOCKET=/a", "REPLICAD_PROGRAM=/bin/replicad", "REPLICAD_SLOTS=2"}
	if got := o.Environ(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A rank is told of as many slots as the job gets that this launcher creates.
func TestSlotsThatTheJobGets(t *testing.T) {
	apart, pairs := []replica.GroupID{0, 1}, []replica.GroupID{0, 1, 0, 1}
	for name, c := range map[string]struct {
		o    Options
		want int
	}{
		"one group":               {Options{World: 2}, 4},
		"a rank alone":            {Options{World: 1}, 2},
		"a rank alone, one copy":  {Options{World: 1, MinCopies: 1}, 4},
		"each rank apart":         {Options{World: 2, Groups: apart}, 2},
		"pairs":                   {Options{World: 4, Groups: pairs}, 4},
		"pairs, three copies":     {Options{World: 4, Groups: pairs, MinCopies: 3}, 2},
		"groups to be named":      {Options{World: 4, Named: true}, 2},
		"as many as are asked of": {Options{World: 2, Groups: apart, Slots: 3}, 3},
	} {
		if got := c.o.slots(); got != c.want {
			t.Errorf("%s: %d slots, want %d", name, got, c.want)
		}
	}
}
