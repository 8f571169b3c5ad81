package membership

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// patience is how long a test waits for an event that must come; only a failing test waits it out.
const patience = 30 * time.Second

var testKey = []Key{{"5a", bytes.Repeat([]byte{0x5a}, keyBytes)}}

// peer is a running member.
type peer struct {
	*Gossip
	stop  func()
	crash func()
}

func startPeer(t *testing.T, cfg Config) *peer {
	t.Helper()
	if cfg.Keys == nil {
		cfg.Keys = testKey
	}
	if cfg.Cluster == (replica.ClusterID{}) {
		cfg.Cluster = replica.ClusterID{1}
	}
	if cfg.QUICAddr == "" {
		cfg.QUICAddr = string(cfg.Name) + ":7000"
	}
	g, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var run sync.WaitGroup
	run.Go(func() {
		if err := g.Run(context.Background()); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	var once sync.Once
	end := func(farewell bool) func() {
		return func() {
			once.Do(func() {
				if err := g.shutdown(farewell); err != nil {
					t.Errorf("shut down %s: %v", cfg.Name, err)
				}
				run.Wait()
			})
		}
	}
	p := &peer{g, end(true), end(false)}
	t.Cleanup(p.crash)
	return p
}

// await waits for an event; others before it are passed over.
func (p *peer) await(t *testing.T, want Event) {
	t.Helper()
	deadline := time.After(patience)
	var got []Event
	for {
		select {
		case ev := <-p.Events():
			if ev == want {
				return
			}
			got = append(got, ev)
		case <-deadline:
			t.Fatalf("%s: no event %+v among %+v; members %+v", p.cfg.Name, want, got, p.Members())
		}
	}
}

func (p *peer) member(name replica.NodeName) Member {
	for _, m := range p.Members() {
		if m.Name == name {
			return m
		}
	}
	return Member{}
}

func TestJoinCrashAndReturn(t *testing.T) {
	a := startPeer(t, Config{Name: "a", Incarnation: 1, Addr: "127.0.0.1:0"})
	seeds := []string{a.Addr()}
	b := startPeer(t, Config{Name: "b", Incarnation: 2, Addr: "127.0.0.2:0", Seeds: seeds})
	c := startPeer(t, Config{Name: "c", Incarnation: 3, Addr: "127.0.0.3:0", Seeds: seeds})
	for _, p := range []*peer{a, b} {
		p.await(t, Event{"c", Alive, 3})
		if got, want := p.member("c"), (Member{"c", 3, "c:7000", c.Addr(), true, "5a"}); got != want {
			t.Errorf("%s knows %+v, want %+v", p.cfg.Name, got, want)
		}
	}

	addr := c.Addr()
	c.crash()
	a.await(t, Event{"c", Suspect, 3})
	if m := a.member("c"); m.Alive || m.Incarnation != 3 {
		t.Errorf("after the suspicion: %+v", m)
	}

	c = startPeer(t, Config{Name: "c", Incarnation: 4, Addr: addr, Seeds: seeds})
	a.await(t, Event{"c", Alive, 4})
	b.await(t, Event{"c", Alive, 4})
	c.stop()
	a.await(t, Event{"c", Left, 4})
	b.await(t, Event{"c", Left, 4})
	if m := b.member("c"); m.Alive {
		t.Errorf("after it left: %+v", m)
	}
}

// TestQuickReturn: a node that is back in another life before anybody missed it is taken as it is now.
func TestQuickReturn(t *testing.T) {
	a := startPeer(t, Config{Name: "a", Incarnation: 1, Addr: "127.0.0.1:0"})
	b := startPeer(t, Config{Name: "b", Incarnation: 2, Addr: "127.0.0.2:0", Seeds: []string{a.Addr()}})
	a.await(t, Event{"b", Alive, 2})
	addr := b.Addr()
	b.crash()
	startPeer(t, Config{Name: "b", Incarnation: 5, Addr: addr, Seeds: []string{a.Addr()}, QUICAddr: "b:7001"})
	a.await(t, Event{"b", Alive, 5})
	if m := a.member("b"); m != (Member{"b", 5, "b:7001", addr, true, "5a"}) {
		t.Errorf("%+v", m)
	}
}

// TestReturnElsewhere: the name of a dead node comes back at another address.
func TestReturnElsewhere(t *testing.T) {
	a := startPeer(t, Config{Name: "a", Incarnation: 1, Addr: "127.0.0.1:0"})
	b := startPeer(t, Config{Name: "b", Incarnation: 2, Addr: "127.0.0.2:0", Seeds: []string{a.Addr()}})
	a.await(t, Event{"b", Alive, 2})
	b.crash()
	a.await(t, Event{"b", Suspect, 2})
	startPeer(t, Config{Name: "b", Incarnation: 6, Addr: "127.0.0.4:0", Seeds: []string{a.Addr()}})
	a.await(t, Event{"b", Alive, 6})
}

// TestForeignersStayOut: neither another cluster's label nor another key gets in. Both knock; a third, proper node is seen
// after them.
func TestForeignersStayOut(t *testing.T) {
	var mu sync.Mutex
	complaints := make(chan string, 64)
	logger := NewLogger(func(level, msg string) {
		mu.Lock()
		defer mu.Unlock()
		if level == "ERR" || level == "WARN" {
			select {
			case complaints <- msg:
			default:
			}
		}
	})
	a := startPeer(t, Config{Name: "a", Incarnation: 1, Addr: "127.0.0.1:0", Logger: logger})
	for i, cfg := range []Config{{Cluster: replica.ClusterID{9}}, {Keys: []Key{{"01", bytes.Repeat([]byte{1}, keyBytes)}}}} {
		cfg.Name, cfg.Incarnation, cfg.Addr, cfg.Seeds = replica.NodeName(fmt.Sprintf("x%d", i)), 7, "127.0.0.2:0", []string{a.Addr()}
		x := startPeer(t, cfg)
		select {
		case <-complaints:
		case <-time.After(patience):
			t.Fatal("the foreigner was not even noticed")
		}
		x.stop()
	}
	b := startPeer(t, Config{Name: "b", Incarnation: 2, Addr: "127.0.0.3:0", Seeds: []string{a.Addr()}})
	a.await(t, Event{"b", Alive, 2})
	b.await(t, Event{"a", Alive, 1})
	for _, m := range append(a.Members(), b.Members()...) {
		if strings.HasPrefix(string(m.Name), "x") {
			t.Errorf("a foreigner got in: %+v", m)
		}
	}
}

func TestStartRefuses(t *testing.T) {
	a := startPeer(t, Config{Name: "a", Addr: "127.0.0.1:0"})
	good := Config{Name: "b", Addr: "127.0.0.2:0", Cluster: replica.ClusterID{1}, Keys: testKey, QUICAddr: "b:1"}
	for name, c := range map[string]struct {
		change func(*Config)
		texts  []string
	}{
		"address in use": {func(c *Config) { c.Addr = a.Addr() }, []string{a.Addr(), "in use", "another address"}},
		"bad address":    {func(c *Config) { c.Addr = "nowhere" }, []string{"nowhere", "host:port"}},
		"bad advertised": {func(c *Config) { c.Advertise = "nowhere" }, []string{"nowhere", "host:port", "others reach"}},
		"all at once": {func(c *Config) { c.Name, c.Keys, c.QUICAddr, c.Cluster = "../b", nil, "b", replica.ClusterID{} },
			[]string{"../b", "no gossip key", "QUIC address", "cluster is zero"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			c.change(&cfg)
			g, err := Start(cfg)
			if err == nil {
				g.Close()
				t.Fatal("no error")
			}
			for _, s := range c.texts {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("error %q lacks %q", err, s)
				}
			}
		})
	}
}

// TestAdvertise: what others are told is not what is bound, and streams come from the address that is.
func TestAdvertise(t *testing.T) {
	seed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer seed.Close()
	b := startPeer(t, Config{Name: "b", Addr: "127.0.0.2:0", Advertise: "127.0.0.9:7999", Seeds: []string{seed.Addr().String()}})
	if b.Addr() != "127.0.0.9:7999" {
		t.Errorf("others are told %s", b.Addr())
	}
	conn, err := seed.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if from := conn.RemoteAddr().(*net.TCPAddr).IP.String(); from != "127.0.0.2" {
		t.Errorf("a stream from %s", from)
	}
}

func TestRunAfterClose(t *testing.T) {
	a := startPeer(t, Config{Name: "a", Addr: "127.0.0.1:0"})
	a.stop()
	if err := a.Run(context.Background()); err != nil {
		t.Errorf("Run after Close: %v", err)
	}
}

func TestQueueDropsOldest(t *testing.T) {
	b := newBook("a", nil)
	b.mu.Lock()
	for i := range maxEvents + 10 {
		b.pushLocked(Event{Node: "n", Kind: Alive, Incarnation: replica.NodeIncarnation(i)})
	}
	b.mu.Unlock()
	if first := <-b.events; first.Incarnation != 10 || b.dropped.Load() != 10 {
		t.Errorf("the first left is %+v, %d dropped", first, b.dropped.Load())
	}
}

func TestAbsent(t *testing.T) {
	b := newBook("a", nil)
	b.members["alive"] = entry{Member{Addr: "1:1", Alive: true}, false}
	b.members["dead"] = entry{Member{Addr: "2:2"}, false}
	b.members["left"] = entry{Member{Addr: "3:3"}, true}
	if got, want := strings.Join(b.absent([]string{"1:1", "2:2", "4:4"}), " "), "2:2 4:4"; got != want {
		t.Errorf("absent are %q, want %q", got, want)
	}
}

func FuzzParseMeta(f *testing.F) {
	f.Add(appendMeta(nil, meta{incarnation: 7, addr: "10.0.0.1:7000"}))
	f.Add(appendMeta(nil, meta{incarnation: 1 << 63, addr: "[::1]:7000", leaving: true}))
	f.Add(append(appendMeta(nil, meta{addr: "h:1"}), 1, 2, 3))
	f.Add(appendMeta(nil, meta{addr: "h:1", keys: "01, 02"}))
	f.Add([]byte{1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3, 'h', ':', '1'}) // of a release without names of keys
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{1}, maxMeta+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMeta(b)
		if err != nil {
			return
		}
		if err := checkAddr(m.addr); err != nil {
			t.Error(err)
		}
		if again := appendMeta(nil, m); b[0] == metaVersion && !bytes.Equal(again, b) {
			t.Errorf("%x is written %x", b, again)
		}
	})
}
