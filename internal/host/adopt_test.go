package host

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/mirrors"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

func TestArenaListRoundTrips(t *testing.T) {
	d := newRig(t)
	if list, err := d.loadArenas(); err != nil || len(list.Arenas) != 0 {
		t.Errorf("before the first one is written: %+v, %v", list, err)
	}
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lr.PID, lr.Start = 4711, 1<<63
	retired := d.arena(shm.Spec{Rank: 1, Geometry: fixture.Geometry(t, false)})
	lj.Retired = append(lj.Retired, retired)
	d.seal(retired, slot(0), lj.Job.Committed, 1) // needed
	mirrored := d.mirrorOf(lj, replica.OfRank(1), 1, false)
	d.saveArenas()
	list, err := d.loadArenas()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]holding.Entry{}
	for _, e := range list.Arenas {
		got[e.Key] = e
	}
	want := map[string]holding.Entry{lr.Arena.Key(): {Key: lr.Arena.Key(), Job: fixture.JobID, Rank: 0, PID: 4711, Start: 1 << 63}, retired.Key(): {Key: retired.Key(), Job: fixture.JobID, Rank: 1},
		mirrored.Key(): {Key: mirrored.Key(), Job: fixture.JobID, Rank: 1, Mirror: true}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the list is %+v, want %+v", got, want)
	}
	d.notify(d.mirrors, mirrors.Short{Arena: mirrored, Err: errors.New("no memory")})
	d.saveArenas()
	if list, err := d.loadArenas(); err != nil || len(list.Arenas) != 2 {
		t.Errorf("after one was given up: %+v, %v", list, err)
	}
}

// A daemon whose list is no list does not start: it would not know whom to wait for.
func TestForeignArenaListIsRefused(t *testing.T) {
	d := newRig(t)
	d.settled()
	if err := os.WriteFile(arenaListPath(d.cfg), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Adopt(); err == nil || !strings.Contains(err.Error(), arenaListPath(d.cfg)) {
		t.Errorf("adopts with %v, want an error that names the list", err)
	}
}
