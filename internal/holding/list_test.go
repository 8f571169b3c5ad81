package holding

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
)

func TestListRoundTrips(t *testing.T) {
	path := filepath.Join(t.TempDir(), "arenas.json")
	if list, err := LoadList(path); err != nil || len(list.Arenas) != 0 {
		t.Errorf("before the first one is written: %+v, %v", list, err)
	}
	for _, want := range [][]Entry{
		{{Key: "a", Job: fixture.JobID, Rank: 3, PID: 4711, Start: 1 << 63}, {Key: "b", Job: fixture.JobID, Rank: 1, Mirror: true}},
		{{Key: "b", Job: fixture.JobID, Rank: 1, Mirror: true}},
		{},
	} {
		if err := writeList(path, want); err != nil {
			t.Fatal(err)
		}
		if list, err := LoadList(path); err != nil || !reflect.DeepEqual(list.Arenas, want) {
			t.Errorf("%+v comes back as %+v: %v", want, list.Arenas, err)
		}
	}
}

func TestForeignListIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "arenas.json")
	if err := writeList(path, []Entry{}); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, b := range map[string][]byte{
		"empty":             nil,
		"garbage":           []byte("\x00\x01garbage"),
		"cut short":         good[:len(good)/2],
		"with garbage":      append(bytes.Clone(good), "}garbage"...),
		"another program's": []byte(`{"version":1,"arenas":[]}`),
		"another file's":    bytes.Replace(good, []byte(listMagic), []byte("replicad-node"), 1),
		"another version's": bytes.Replace(good, []byte(`"version": 1`), []byte(`"version": 2`), 1),
		"of odd values":     bytes.Replace(good, []byte(`"arenas": []`), []byte(`"arenas": [{"key":"k","job":"no uuid"}]`), 1),
	} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := LoadList(path)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "remove it if no rank of this node is alive") || len(list.Arenas) != 0 {
			t.Errorf("%s: %+v, %v; want an error that names the file and the remedy", what, list, err)
		}
	}
	huge, err := os.Create(path)
	if err == nil {
		_, err = huge.Write(good)
	}
	if err == nil {
		err = huge.Truncate(listCap + 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	huge.Close()
	if _, err := LoadList(path); err == nil || !strings.Contains(err.Error(), "64 MiB") {
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
		list, err := parseList(b)
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
		back, err := parseList(again)
		if err != nil || !reflect.DeepEqual(back, list) {
			t.Errorf("%+v comes back as %+v: %v", list, back, err)
		}
	})
}
