package netfault

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// patience is how long a test waits for an event that must come; only a failing test waits it out.
const patience = 30 * time.Second

var (
	networks atomic.Uint32
	drawn    sync.Map // addresses that some test has: free, until it binds them
)

// newNodes are addresses that no other test of this package has; the kernel has proved the ports free.
func newNodes(t testing.TB, names ...string) (nodes []Node) {
	t.Helper()
	for _, name := range names {
		k := networks.Add(1)
		ip := fmt.Sprintf("127.9.%d.%d", k/250, 1+k%250)
		nodes = append(nodes, Node{Name: name, Addr: free(t, ip), GossipAddr: free(t, ip), Listen: free(t, ip), GossipListen: free(t, ip)})
	}
	return nodes
}

// free is an address whose port lies below those that the kernel gives to sockets without one. A program's socket for any address
// would take one of those between the proof and the test's own bind.
func free(t testing.TB, ip string) string {
	t.Helper()
	var err error
	for range 100 {
		addr := net.JoinHostPort(ip, strconv.Itoa(10_000+rand.IntN(20_000)))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err != nil {
			continue
		}
		var u net.PacketConn
		u, err = net.ListenPacket("udp", addr)
		l.Close()
		if err == nil {
			u.Close()
			if _, twice := drawn.LoadOrStore(addr, true); twice {
				continue
			}
			return addr
		}
	}
	t.Fatalf("no port of %s is free: %v", ip, err)
	return ""
}

func start(t testing.TB, seed uint64, nodes []Node) *Network {
	t.Helper()
	n, err := New(seed, nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// socket is a daemon's datagram port, or one of its others.
type socket struct {
	t testing.TB
	*net.UDPConn
}

func open(t testing.TB, addr string) *socket {
	t.Helper()
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &socket{t, c}
}

func (s *socket) send(to, text string) {
	s.t.Helper()
	if _, err := s.WriteToUDPAddrPort([]byte(text), netip.MustParseAddrPort(to)); err != nil {
		s.t.Fatal(err)
	}
}

// get is the next datagram and who seems to have sent it.
func (s *socket) get() (text, from string) {
	s.t.Helper()
	_ = s.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 2000)
	size, src, err := s.ReadFromUDPAddrPort(b)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b[:size]), src.String()
}

func (s *socket) want(text, from string) {
	s.t.Helper()
	if got, src := s.get(); got != text || src != from {
		s.t.Errorf("got %q from %s, want %q from %s", got, src, text, from)
	}
}

// until asks again and again: what counters say has no event.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("not yet: %s", what)
		}
	}
}

func (n *Network) count(from, to string) Count { return n.Counts()[[2]string{from, to}] }

// do fails the test for an error.
func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestPaths: either way, from the daemon's port and from another one, everything seems to come from what the sender advertises.
func TestPaths(t *testing.T) {
	nodes := newNodes(t, "a", "b", "c")
	n := start(t, 1, nodes)
	var all [][2]*socket
	for _, node := range nodes {
		all = append(all, [2]*socket{open(t, node.Listen), open(t, node.GossipListen)})
	}
	for i, from := range nodes {
		for j, to := range nodes {
			if i == j {
				continue
			}
			all[i][0].send(to.Addr, from.Name+to.Name)
			all[j][0].want(from.Name+to.Name, from.Addr)
			all[i][1].send(to.GossipAddr, from.Name+to.Name)
			all[j][1].want(from.Name+to.Name, from.GossipAddr)
		}
	}
	ip, _, _ := net.SplitHostPort(nodes[0].Listen)
	probe, other := open(t, ip+":0"), open(t, ip+":0")
	for range 2 {
		probe.send(nodes[1].Addr, "probe")
		text, from := all[1][0].get()
		if ap := netip.MustParseAddrPort(from); text != "probe" || ap.Addr().String() != ip || from == nodes[0].Addr {
			t.Errorf("%q from %s", text, from)
		}
		other.send(nodes[1].Addr, "other")
		_, second := all[1][0].get()
		all[1][0].send(second, "2")
		all[1][0].send(from, "1")
		probe.want("1", nodes[1].Addr)
		other.want("2", nodes[1].Addr)
	}
	all[2][0].send(nodes[0].Addr, strings.Repeat("x", maxDatagram))
	if text, _ := all[0][0].get(); len(text) < 2000 { // as much as the test reads
		t.Errorf("%d bytes", len(text))
	}
	all[2][0].send(nodes[0].Addr, strings.Repeat("x", maxDatagram+1))
	until(t, "one that is too long is dropped", func() bool { return n.count("c", "a").Dropped == 1 })
	until(t, "all are counted", func() bool { // after they were sent
		return n.count("a", "b") == Count{Forwarded: 6, Bytes: 24} && n.count("b", "a") == Count{Forwarded: 6, Bytes: 8} && n.count("c", "b") == Count{Forwarded: 2, Bytes: 4}
	})
}

func TestCuts(t *testing.T) {
	nodes := newNodes(t, "a", "b", "c")
	n := start(t, 1, nodes)
	sockets := map[string]*socket{}
	addr := map[string]string{}
	for _, node := range nodes {
		sockets[node.Name], addr[node.Name] = open(t, node.Listen), node.Addr
	}
	for _, tc := range []struct {
		name string
		cut  func() error
		lost string
	}{
		{"none", func() error { return nil }, ""},
		{"pair", func() error { return n.Cut("a", "b") }, "ab ba"},
		{"one way", func() error { return n.CutOneWay("b", "c") }, "bc"},
		{"node", func() error { return n.Isolate("c") }, "ac bc ca cb"},
		{"pair healed", func() error { return errors.Join(n.Isolate("c"), n.HealPair("c", "a")) }, "bc cb"},
		{"all lost", func() error { return n.Shape("a", "b", 1, 0, 0) }, "ab"},
	} {
		do(t, tc.cut())
		for _, from := range []string{"a", "b", "c"} {
			for _, to := range []string{"a", "b", "c"} {
				before := n.count(from, to)
				switch {
				case from == to:
				case slices.Contains(strings.Fields(tc.lost), from+to):
					sockets[from].send(addr[to], "lost")
					until(t, tc.name+": "+from+to+" is lost", func() bool { return n.count(from, to).Dropped == before.Dropped+1 })
				default:
					sockets[from].send(addr[to], "seen")
					sockets[to].want("seen", addr[from])
				}
			}
		}
		n.Heal()
	}
	for err, want := range map[error]string{
		n.Cut("a", "x"): "a -> x", n.CutOneWay("a", "a"): "a -> a", n.Isolate("x"): `"x"`, n.HealPair("x", "a"): "x -> a", n.Shape("a", "b", 1.5, 0, 0): "loss 1.5",
		n.Shape("a", "b", math.NaN(), 0, 0): "loss NaN", n.Shape("a", "b", 0, -1, 0): "delay -1ns", n.Shape("a", "b", 0, 0, -1): "jitter -1ns", n.Shape("x", "b", 0, 0, 0): "x -> b",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestRefused: who asks where no daemon listens is told so, and who asks across a cut is not.
func TestRefused(t *testing.T) {
	nodes := newNodes(t, "a", "b", "c")
	n := start(t, 1, nodes)
	ask := func(from Node) *socket {
		ip, _, _ := net.SplitHostPort(from.Listen)
		c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(ip)}, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(nodes[1].Addr)))
		do(t, err)
		t.Cleanup(func() { c.Close() })
		return &socket{t, c}
	}
	refused := func(s *socket) func() bool {
		return func() bool {
			_, err := s.Write([]byte("?"))
			return errors.Is(err, syscall.ECONNREFUSED)
		}
	}
	a, c := ask(nodes[0]), ask(nodes[2])
	daemon := open(t, nodes[0].Listen) // the path of the daemon's own port
	until(t, "a is refused", refused(a))
	do(t, n.Cut("c", "b"))
	for range 100 {
		if refused(c)() {
			t.Fatal("c is refused across a cut")
		}
	}
	n.Heal()
	until(t, "c is refused", refused(c))
	do(t, n.CutOneWay("b", "c")) // the refusal would not arrive
	before := n.count("c", "b")
	until(t, "the port listens for c", func() bool { refused(c)(); return n.count("c", "b").Forwarded >= before.Forwarded+10 })
	if refused(c)() {
		t.Fatal("c is refused though b's answers are lost")
	}
	n.Heal()

	// The daemon's return is seen without a word from it.
	b := open(t, nodes[1].Listen)
	seen := make(chan error, 1)
	go func() {
		_, err := b.Read(make([]byte, 10))
		seen <- err
	}()
	until(t, "b is reached", func() bool {
		daemon.send(nodes[1].Addr, "here")
		select {
		case err := <-seen:
			do(t, err)
			return true
		default:
			return false
		}
	})
	until(t, "b is reached by a's probe", func() bool { _, err := a.Write([]byte("?")); return err == nil && n.count("a", "b").Forwarded > 0 })

	// From the daemon's own port the refusal is found as well: a connected socket of that port would be told.
	b.Close()
	until(t, "the port is given up", func() bool {
		daemon.send(nodes[1].Addr, "?")
		p := n.paths[[2]string{"a", "b"}].ports[0]
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.conn == nil
	})
}

// TestStreamsAcrossACut: the host neither takes nor refuses them, in whichever direction the packets are lost; the others' are taken.
func TestStreamsAcrossACut(t *testing.T) {
	nodes := newNodes(t, "a", "b", "c")
	n := start(t, 1, nodes)
	daemon, err := net.Listen("tcp4", nodes[1].GossipListen)
	do(t, err)
	t.Cleanup(func() { daemon.Close() })
	dial := func(from Node, wait time.Duration) error {
		ip, _, _ := net.SplitHostPort(from.Listen)
		d := net.Dialer{Timeout: wait, LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
		c, err := d.Dial("tcp4", nodes[1].GossipAddr)
		if err == nil {
			c.Close()
		}
		return err
	}
	for _, cut := range []func() error{
		func() error { return n.Cut("a", "b") },
		func() error { return n.CutOneWay("a", "b") },
		func() error { return n.CutOneWay("b", "a") },
	} {
		do(t, dial(nodes[0], patience))
		do(t, cut())
		if err := dial(nodes[0], 50*time.Millisecond); !timedOut(err) {
			t.Errorf("across a cut: %v", err)
		}
		do(t, dial(nodes[2], patience))
		n.Heal()
	}
	do(t, n.Isolate("b"))
	stranger := Node{Listen: "127.0.0.1:1"}
	if err := dial(stranger, 50*time.Millisecond); !timedOut(err) {
		t.Errorf("a host that no node reaches answers a program of none: %v", err)
	}
	do(t, n.HealPair("a", "b"))
	do(t, dial(stranger, patience))
}

func timedOut(err error) bool {
	var failed net.Error
	return errors.As(err, &failed) && failed.Timeout()
}

// TestLoss: the seed and the names say which packets are lost.
func TestLoss(t *testing.T) {
	nodes := newNodes(t, "a", "b")
	n := start(t, 42, nodes)
	a, b := open(t, nodes[0].Listen), open(t, nodes[1].Listen)
	do(t, n.Shape("a", "b", 0.3, 0, 0))
	twin := newPath(42, &host{name: "a"}, &host{name: "b"})
	other := newPath(43, &host{name: "a"}, &host{name: "b"})
	r, lost, differ := &rule{loss: 0.3}, 0, false
	for i := range 400 {
		a.send(nodes[1].Addr, fmt.Sprint(i))
		gone, _ := twin.draw(r)
		if also, _ := other.draw(r); also != gone {
			differ = true
		}
		if gone {
			lost++
			until(t, "it is lost", func() bool { return n.count("a", "b").Dropped == uint64(lost) })
			continue
		}
		b.want(fmt.Sprint(i), nodes[0].Addr)
	}
	if lost < 60 || lost > 180 {
		t.Errorf("%d of 400 lost", lost)
	}
	if !differ {
		t.Error("another seed loses the same")
	}
	b.send(nodes[0].Addr, "back")
	a.want("back", nodes[1].Addr)
}

// TestDelay: what is delayed alike keeps its order, what comes later may overtake; a cut takes what is under way; and the queue has an end.
func TestDelay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPath(1, &host{name: "a"}, &host{name: "b"})
		p.back = newPath(1, &host{name: "b"}, &host{name: "a"})
		ctx := t.Context()
		go p.line.run(ctx)
		began := time.Now()
		var got []string
		pass := func(text string) {
			p.pass([]byte(text), func(b []byte) error {
				got = append(got, fmt.Sprint(string(b), time.Since(began)))
				return nil
			})
			synctest.Wait()
		}
		p.rule.Store(&rule{delay: 50 * time.Millisecond})
		for _, text := range []string{"1-", "2-", "3-"} {
			pass(text)
		}
		p.rule.Store(&rule{delay: 20 * time.Millisecond})
		pass("4-")
		p.rule.Store(new(rule))
		pass("5-")
		p.rule.Store(&rule{delay: time.Millisecond, jitter: time.Millisecond})
		pass("6-")
		p.rule.Store(new(rule))
		time.Sleep(time.Second)
		synctest.Wait()
		if len(got) != 6 || got[0] != "5-0s" || !strings.HasPrefix(got[1], "6-1.") || strings.Join(append(got[:0:0], got[2:]...), " ") != "4-20ms 1-50ms 2-50ms 3-50ms" {
			t.Errorf("%q", got)
		}

		got = nil
		p.rule.Store(&rule{delay: 50 * time.Millisecond})
		pass("under way")
		p.rule.Store(&rule{cut: true})
		pass("cut")
		time.Sleep(time.Second)
		synctest.Wait()
		if got != nil || p.dropped.Load() != 2 {
			t.Errorf("%q, %d dropped", got, p.dropped.Load())
		}

		p.rule.Store(&rule{delay: time.Minute})
		for range maxQueued + 10 {
			pass("x")
		}
		if p.dropped.Load() != 12 {
			t.Errorf("%d dropped", p.dropped.Load())
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(got) != maxQueued {
			t.Errorf("%d of %d arrive", len(got), maxQueued)
		}
	})
}

// TestJitterIsSeeded draws times.
func TestJitterIsSeeded(t *testing.T) {
	a, b, c := newPath(7, &host{name: "a"}, &host{name: "b"}), newPath(7, &host{name: "a"}, &host{name: "b"}), newPath(7, &host{name: "b"}, &host{name: "a"})
	r, differ := &rule{loss: 0.5, delay: time.Second, jitter: time.Second}, false
	for range 100 {
		lostA, waitA := a.draw(r)
		lostB, waitB := b.draw(r)
		if lostA != lostB || waitA != waitB || waitA < time.Second || waitA > 2*time.Second {
			t.Fatal(lostA, waitA, lostB, waitB)
		}
		_, waitC := c.draw(r)
		differ = differ || waitC != waitA
	}
	if !differ {
		t.Error("both directions draw alike")
	}
}

// talk is a gossip port that accepts streams, and one that opens them.
func talk(t *testing.T, from, to Node) (l *net.TCPListener, dial func() *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.MustParseAddrPort(to.GossipListen)))
	do(t, err)
	t.Cleanup(func() { l.Close() })
	do(t, l.SetDeadline(time.Now().Add(patience)))
	ip, _, _ := net.SplitHostPort(from.GossipListen)
	return l, func() *net.TCPConn {
		t.Helper()
		c, err := net.DialTCP("tcp4", &net.TCPAddr{IP: net.ParseIP(ip)}, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(to.GossipAddr)))
		do(t, err)
		t.Cleanup(func() { c.Close() })
		do(t, c.SetDeadline(time.Now().Add(patience)))
		return c
	}
}

func accept(t *testing.T, l *net.TCPListener) *net.TCPConn {
	t.Helper()
	c, err := l.AcceptTCP()
	do(t, err)
	t.Cleanup(func() { c.Close() })
	do(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

func says(t *testing.T, c *net.TCPConn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	do(t, err)
}

func hears(t *testing.T, c *net.TCPConn, text string) {
	t.Helper()
	b := make([]byte, len(text))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != text {
		t.Fatalf("heard %q (%v), want %q", b, err, text)
	}
}

// TestStreams: they pass whole with their ends, seem to come from the advertised IP, stall at a cut, and go on when it is healed.
func TestStreams(t *testing.T) {
	nodes := newNodes(t, "a", "b")
	n := start(t, 1, nodes)
	l, dial := talk(t, nodes[0], nodes[1])
	client := dial()
	says(t, client, "hello")
	server := accept(t, l)
	hears(t, server, "hello")
	if ip, _, _ := net.SplitHostPort(nodes[0].GossipAddr); server.RemoteAddr().(*net.TCPAddr).IP.String() != ip {
		t.Errorf("a stream from %v, want %s", server.RemoteAddr(), ip)
	}

	do(t, n.CutOneWay("a", "b"))
	says(t, client, "across ")
	says(t, server, "back")
	hears(t, client, "back") // one way passes, the other does not
	if got := n.count("a", "b"); got.Bytes > 5 {
		t.Errorf("%+v passed a cut", got)
	}
	n.Heal()
	says(t, client, "later")
	hears(t, server, "across later")

	big := strings.Repeat("0123456789abcdef", 1<<16)
	n.runs.Go(func() { _, _ = io.WriteString(client, big); _ = client.CloseWrite() }) // what fails is seen below
	do(t, n.Shape("a", "b", 0.05, time.Millisecond, time.Millisecond))
	if b, err := io.ReadAll(server); err != nil || string(b) != big {
		t.Errorf("%d of %d bytes, %v", len(b), len(big), err)
	}
	says(t, server, "bye")
	do(t, server.Close())
	if b, err := io.ReadAll(client); err != nil || string(b) != "bye" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestStreamsOpenedAcrossACut: they wait until it is healed. Where no daemon listens they fail.
func TestStreamsOpenedAcrossACut(t *testing.T) {
	nodes := newNodes(t, "a", "b")
	n := start(t, 1, nodes)
	l, dial := talk(t, nodes[0], nodes[1])
	do(t, n.CutOneWay("b", "a"))
	n.runs.Go(n.Heal)
	says(t, dial(), "wait")
	hears(t, accept(t, l), "wait")

	do(t, l.Close())
	ip, _, _ := net.SplitHostPort(nodes[0].Listen)
	for _, c := range []struct {
		what, from string
		want       error
	}{
		{"to nobody", ip, syscall.ECONNRESET},
		{"of a stranger, who asks whether the host is up", "127.0.0.1", io.EOF},
	} {
		what, want := c.what, c.want
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.from)}}
		c, err := d.Dial("tcp4", nodes[1].GossipAddr)
		if err == nil { // the kernel may accept it before it is reset
			_ = c.SetDeadline(time.Now().Add(patience))
			_, err = c.Read(make([]byte, 1))
			c.Close()
		}
		if !errors.Is(err, want) {
			t.Errorf("a stream %s: %v, want %v", what, err, want)
		}
	}
}

// TestClose with everything under way: streams that wait, packets that are delayed, flows, a port that is refused.
func TestClose(t *testing.T) {
	nodes := newNodes(t, "a", "b")
	n, err := New(1, nodes)
	do(t, err)
	_, dial := talk(t, nodes[0], nodes[1])
	open(t, nodes[1].Listen)
	a := open(t, nodes[0].Listen)
	says(t, dial(), "passes")
	do(t, n.Shape("a", "b", 0, time.Hour, 0))
	says(t, dial(), "is late")
	a.send(nodes[1].Addr, "late")
	waits := dial()
	do(t, n.Cut("a", "b"))
	says(t, waits, "waits")
	do(t, n.Close())
	do(t, n.Close())
	for _, node := range nodes { // everything is free again
		open(t, node.Addr)
		open(t, node.GossipAddr)
	}
}

func TestNewRefuses(t *testing.T) {
	good := newNodes(t, "a", "b")
	for name, tc := range map[string]struct {
		spoil func([]Node)
		says  string
	}{
		"one name":        {func(n []Node) { n[1].Name = "a" }, `nodes "a" and "a"`},
		"one IP":          {func(n []Node) { n[1].Listen, n[1].GossipListen = n[0].Addr, n[0].GossipAddr }, "listening IPs that differ"},
		"two IPs":         {func(n []Node) { n[1].GossipListen = n[0].GossipListen }, "want one IP"},
		"no address":      {func(n []Node) { n[0].Addr = "" }, `address ""`},
		"another network": {func(n []Node) { n[0].Listen = "10.0.0.1:7400" }, "127.x.y.z:port"},
		"IPv6":            {func(n []Node) { n[0].GossipAddr = "[::1]:7400" }, "127.x.y.z:port"},
	} {
		nodes := slices.Clone(good)
		tc.spoil(nodes)
		n, err := New(1, nodes)
		if err == nil {
			n.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %s", name, err, tc.says)
		}
	}
	open(t, good[1].Addr)
	if n, err := New(1, good); !errors.Is(err, syscall.EADDRINUSE) {
		if err == nil {
			n.Close()
		}
		t.Errorf("an address that somebody has: %v", err)
	}
}

func TestParsePorts(t *testing.T) {
	text := "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n" +
		"  870: 3B02007F:A17D 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 40337 2 00000000d992dea4 0\n" +
		" 2722: 00000000:1CE8 00000000:0000 07\n\n nonsense\n 1: 00:00 x\n 1: 0000000G:0000 x\n 1: 00000000:10000 x\n"
	got := parsePorts(text)
	if runtime.GOARCH != "s390x" && (len(got) != 2 || !got[netip.MustParseAddrPort("127.0.2.59:41341")] || !got[netip.MustParseAddrPort("0.0.0.0:7400")]) {
		t.Error(got)
	}
	var b boundPorts
	s := open(t, "127.0.0.1:0")
	if !b.has(s.LocalAddr().(*net.UDPAddr).AddrPort()) {
		t.Errorf("%v is not found", s.LocalAddr())
	}
}
