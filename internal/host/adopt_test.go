package host

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

func TestArenaListRoundTrips(t *testing.T) {
	d := newDesk(t)
	if list, err := d.loadArenas(); err != nil || len(list.Arenas) != 0 {
		t.Errorf("before the first one is written: %+v, %v", list, err)
	}
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lr.pid, lr.start = 4711, 1<<63
	retired := d.arena(shm.Spec{Rank: 1, Geometry: fixture.Geometry(t, false)})
	lj.retired = append(lj.retired, retired)
	mirrored := d.mirrorOf(lj, replica.OfRank(1), 1, false)
	d.saveArenas()
	list, err := d.loadArenas()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]arenaEntry{}
	for _, e := range list.Arenas {
		got[e.Key] = e
	}
	want := map[string]arenaEntry{lr.arena.key: {Key: lr.arena.key, Job: fixture.JobID, Rank: 0, PID: 4711, Start: 1 << 63}, retired.key: {Key: retired.key, Job: fixture.JobID, Rank: 1},
		mirrored.key: {Key: mirrored.key, Job: fixture.JobID, Rank: 1, Mirror: true}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the list is %+v, want %+v", got, want)
	}
	d.forget(mirrored)
	delete(lj.mirrors, replica.OfRank(1))
	d.saveArenas()
	if list, err := d.loadArenas(); err != nil || len(list.Arenas) != 2 {
		t.Errorf("after one was given up: %+v, %v", list, err)
	}
}

func TestForeignArenaListIsRefused(t *testing.T) {
	d := newDesk(t)
	d.saveArenas()
	d.settled()
	good, err := os.ReadFile(d.arenaListPath())
	if err != nil {
		t.Fatal(err)
	}
	for what, b := range map[string][]byte{
		"empty":             nil,
		"garbage":           []byte("\x00\x01garbage"),
		"cut short":         good[:len(good)/2],
		"with garbage":      append(bytes.Clone(good), "}garbage"...),
		"another program's": []byte(`{"version":1,"arenas":[]}`),
		"another file's":    bytes.Replace(good, []byte(arenaListMagic), []byte("replicad-node"), 1),
		"another version's": bytes.Replace(good, []byte(`"version": 1`), []byte(`"version": 2`), 1),
		"of odd values":     bytes.Replace(good, []byte(`"arenas": []`), []byte(`"arenas": [{"key":"k","job":"no uuid"}]`), 1),
	} {
		if err := os.WriteFile(d.arenaListPath(), b, 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := d.loadArenas()
		if err == nil || !strings.Contains(err.Error(), d.arenaListPath()) || !strings.Contains(err.Error(), "remove it if no rank of this node is alive") || len(list.Arenas) != 0 {
			t.Errorf("%s: %+v, %v; want an error that names the file and the remedy", what, list, err)
		}
		if err := d.Adopt(); err == nil {
			t.Errorf("%s: the daemon starts without knowing whom to wait for", what)
		}
	}
	huge, err := os.Create(d.arenaListPath())
	if err == nil {
		_, err = huge.Write(good)
	}
	if err == nil {
		err = huge.Truncate(arenaListCap + 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	huge.Close()
	if _, err := d.loadArenas(); err == nil || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("a huge file: %v", err)
	}
}

func FuzzArenaList(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte(`{"magic":"replicad-arenas","version":1,"arenas":null}`))
	f.Add([]byte(`{"magic":"replicad-arenas","version":1,"arenas":[{"key":"k","job":"0b000000-0000-0000-0000-000000000000","rank":3,"mirror":true,"pid":-1,"start":18446744073709551615}]}`))
	f.Add([]byte(`{"magic":"replicad-arenas","version":1,"Arenas":[{},{}],"arenas":[{"rank":1}]}`))
	f.Add([]byte(`{"magic":"replicad-arenas","version":1e0}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseArenas(b)
		if err != nil {
			if len(list.Arenas) != 0 || list.Magic != "" {
				t.Errorf("a list beside an error: %+v", list)
			}
			return
		}
		again, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		back, err := parseArenas(again)
		if err != nil || !reflect.DeepEqual(back, list) {
			t.Errorf("%+v comes back as %+v: %v", list, back, err)
		}
	})
}
