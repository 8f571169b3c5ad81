package unixsock

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// Of many that start at once on what a killed process left, one has the socket; the others are told so.
func TestOneOfManyTakesASocketOver(t *testing.T) {
	for _, network := range []string{"unix", "unixpacket"} {
		path := filepath.Join(t.TempDir(), "run", "s")
		old, err := Listen(network, path)
		if err != nil {
			t.Fatal(err)
		}
		old.SetUnlinkOnClose(false)
		_ = old.Close()
		var mu sync.Mutex
		var won []*net.UnixListener
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				l, err := Listen(network, path)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won = append(won, l)
				} else if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), path) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 {
			t.Errorf("%d listen on one %s socket", len(won), network)
		}
		for _, l := range won {
			_ = l.Close()
		}
	}
}

// pair is a connection's two ends.
func pair(t *testing.T) (a, b *net.UnixConn) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := Listen("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if a, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"}); err != nil {
		t.Fatal(err)
	}
	if b, err = ln.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

func TestDescriptorsComeBesideMessages(t *testing.T) {
	a, b := pair(t)
	file, err := os.CreateTemp(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString("here"); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{nil, file} {
		if err := Send(a, []byte("hello"), f); err != nil {
			t.Fatal(err)
		}
		got, files, cut, lost, err := Receive(b, make([]byte, 16))
		if string(got) != "hello" || cut || lost || err != nil || (len(files) == 1) != (f != nil) {
			t.Fatalf("%q, %d descriptors, cut %v, lost %v: %v", got, len(files), cut, lost, err)
		}
		for _, f := range files {
			text := make([]byte, 4)
			if _, err := f.ReadAt(text, 0); err != nil || string(text) != "here" {
				t.Errorf("%q: %v", text, err)
			}
		}
		CloseAll(files)
	}
	if err := Send(a, []byte("longer"), nil); err != nil {
		t.Fatal(err)
	}
	if got, _, cut, _, err := Receive(b, make([]byte, 3)); string(got) != "lon" || !cut || err != nil {
		t.Errorf("%q, cut %v: %v", got, cut, err)
	}
	_ = a.Close()
	if got, files, _, _, err := Receive(b, make([]byte, 3)); len(got)+len(files) > 0 || err == nil {
		t.Errorf("after the end: %q, %d descriptors, %v", got, len(files), err)
	}
	if cred, err := Peer(b); err != nil || int(cred.Pid) != os.Getpid() || int(cred.Uid) != os.Geteuid() {
		t.Errorf("%+v: %v", cred, err)
	}
}
