package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// patience is how long an event that must come may take before the test gives up.
const patience = 30 * time.Second

// serve runs a server until the test ends.
func serve(t testing.TB, cfg Config) *Server {
	t.Helper()
	s := listening(t, cfg)
	runs(t, s)
	return s
}

// listening is a server that does not run yet: what clients say before it does comes in time, however slow the machine is.
func listening(t testing.TB, cfg Config) *Server {
	t.Helper()
	if cfg.Path == "" {
		cfg.Path = filepath.Join(t.TempDir(), "d.sock")
	}
	s, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// runs has it run until the test ends.
func runs(t testing.TB, s *Server) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// next takes the next event, which must be an E.
func next[E Event](t testing.TB, s *Server) E {
	t.Helper()
	select {
	case ev := <-s.Events():
		e, ok := ev.(E)
		if !ok {
			t.Fatalf("event %T %+v, want %T", ev, ev, e)
		}
		return e
	case <-time.After(patience):
		var e E
		t.Fatalf("no event, want %T", e)
		return e
	}
}

// testClient is a rank as bytes: it can send anything.
type testClient struct {
	t testing.TB
	c *net.UnixConn
}

func dial(t testing.TB, s *Server) *testClient {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: s.cfg.Path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &testClient{t, c}
}

// mayTake has the next message go, or come, within the patience of the test.
func (c *testClient) mayTake() {
	c.t.Helper()
	if err := c.c.SetDeadline(time.Now().Add(patience)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *testClient) send(typ uint16, body []byte, files ...*os.File) {
	c.t.Helper()
	c.sendRaw(wire.AppendRank(nil, wire.RankHeader{Type: typ, Request: 9, Epoch: 3, Incarnation: 4}, body), files...)
}

func (c *testClient) sendRaw(b []byte, files ...*os.File) {
	c.t.Helper()
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	c.mayTake()
	if _, _, err := c.c.WriteMsgUnix(b, oob, nil); err != nil {
		c.t.Fatal(err)
	}
}

// receive reads one message; io.EOF if the daemon hung up.
func (c *testClient) receive() (wire.RankHeader, []byte, []*os.File, error) {
	c.t.Helper()
	c.mayTake()
	b, files, _, _, err := unixsock.Receive(c.c, make([]byte, wire.MaxRankMessage))
	if errors.Is(err, unix.ECONNRESET) { // it says so once; what the daemon said before comes after that
		if b, files, _, _, err = unixsock.Receive(c.c, make([]byte, wire.MaxRankMessage)); errors.Is(err, unix.ECONNRESET) {
			err = io.EOF
		}
	}
	if err != nil {
		return wire.RankHeader{}, nil, nil, err
	}
	h, body, err := wire.ParseRank(b)
	if err != nil {
		c.t.Fatal(err)
	}
	return h, body, files, nil
}

// refused expects REFUSED and then the end.
func (c *testClient) refused(code int32) wire.Refused {
	c.t.Helper()
	h, body, _, err := c.receive()
	if err != nil || h.Type != wire.MRefused {
		c.t.Fatalf("message type %d: %v, want REFUSED", h.Type, err)
	}
	r, err := wire.ParseRefused(body)
	if err != nil || r.Code != code {
		c.t.Errorf("refused with %+v (%v), want code %d", r, err, code)
	}
	if _, _, _, err := c.receive(); !errors.Is(err, io.EOF) {
		c.t.Errorf("after the refusal: %v, want the end", err)
	}
	return r
}

func testHello() wire.Hello {
	return wire.Hello{ABI: wire.RankABI, Rank: 1, World: 4, Group: 1, Nonce: 5, PID: uint64(os.Getpid()), Job: "job"}
}

// greeted is a rank that has said hello.
func greeted(t testing.TB, s *Server) (*testClient, *conn) {
	t.Helper()
	c := dial(t, s)
	c.send(wire.MHello, testHello().Append(nil))
	return c, next[Hello](t, s).Peer.(*conn)
}

func TestHelloTellsWhoItIs(t *testing.T) {
	s := serve(t, Config{})
	c := dial(t, s)
	c.send(wire.MHello, testHello().Append(nil))
	ev := next[Hello](t, s)
	start, err := StartTime(os.Getpid())
	if err != nil || start == 0 {
		t.Fatal(err)
	}
	p := ev.Peer
	if ev.Hello != testHello() || ev.Header.Request != 9 || ev.Header.Epoch != 3 || ev.Header.Incarnation != 4 || ev.File != nil {
		t.Errorf("event %+v", ev)
	}
	if p.PID() != os.Getpid() || p.UID() != os.Getuid() || p.StartTime() != start || p.(*conn).launcher.Load() || p.ID() == 0 {
		t.Errorf("peer %v uid %d start %d", p, p.UID(), p.StartTime())
	}
	if err := p.Send(wire.RankHeader{Type: wire.MWelcome, Request: 9}, wire.Welcome{Rank: 1}.Append(nil)); err != nil {
		t.Error(err)
	}
	if h, body, _, err := c.receive(); err != nil || h.Type != wire.MWelcome || h.Request != 9 || len(body) != 48 {
		t.Errorf("%+v: %v", h, err)
	}
	_ = c.c.Close()
	if g := next[Gone](t, s); g.Peer != p || !errors.Is(g.Err, io.EOF) {
		t.Errorf("gone %+v", g)
	}
	if err := p.Send(wire.RankHeader{Type: wire.MFence}, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("sent to a peer that is gone: %v", err)
	}
}

// A process that has ended when its connection is taken names nobody: its number may be another process' by then, which would be killed for it.
func TestPeerThatHasEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, reaped := range []bool{false, true} {
		caller := exec.Command(os.Args[0])
		caller.Env = append(os.Environ(), envCall+"="+path)
		if err := caller.Start(); err != nil {
			t.Fatal(err)
		}
		end := func() {
			if err := caller.Wait(); err != nil {
				t.Fatal(err)
			}
		}
		if reaped {
			end()
		} else if err := unix.Waitid(unix.P_PID, caller.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
			t.Fatal(err)
		}
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		if p, err := newPeer(c, 1); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("reaped %v: peer %v, %v: want %v", reaped, p, err, os.ErrProcessDone)
		}
		_ = c.Close()
		if !reaped {
			end()
		}
	}
}

func TestDescriptors(t *testing.T) {
	s := serve(t, Config{})
	c := dial(t, s)
	f, err := os.CreateTemp(t.TempDir(), "arena")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("arena"); err != nil {
		t.Fatal(err)
	}
	c.send(wire.MReattach, testHello().Append(nil), f)
	ev := next[Hello](t, s)
	b := make([]byte, 5)
	if ev.File == nil {
		t.Fatal("no descriptor")
	}
	if _, err := ev.File.ReadAt(b, 0); err != nil || string(b) != "arena" {
		t.Errorf("%q: %v", b, err)
	}
	if err := ev.Peer.SendFile(wire.RankHeader{Type: wire.MAttached}, wire.Attached{}.Append(nil), ev.File); err != nil {
		t.Error(err)
	}
	_ = ev.File.Close() // what was queued has its own
	_, _, files, err := c.receive()
	if err != nil || len(files) != 1 {
		t.Fatalf("%d descriptors: %v", len(files), err)
	}
	defer files[0].Close()
	if _, err := files[0].ReadAt(b, 0); err != nil || string(b) != "arena" {
		t.Errorf("%q: %v", b, err)
	}

	// What nobody asked for is closed: the pipe ends when the last copy of its writing end is gone.
	c2, _ := greeted(t, s)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c2.send(wire.MStopped, wire.AppendStopped(nil, 5), w, w, w)
	next[Stopped](t, s)
	c2.send(wire.MStopped, wire.AppendStopped(nil, 6), w, w, w, w, w, w, w, w, w) // more than there is room for
	next[Stopped](t, s)
	_ = w.Close()
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(b); !errors.Is(err, io.EOF) {
		t.Errorf("the daemon kept a descriptor: %v", err)
	}
	for _, n := range []int{0, 2} {
		c := dial(t, s)
		c.send(wire.MReattach, testHello().Append(nil), []*os.File{f, f}[:n]...)
		c.refused(wire.CodeInvalid)
	}
}

// A peer that never reads is hung up on; neither the sender nor another peer waits for it.
func TestPeerThatDoesNotRead(t *testing.T) {
	s := serve(t, Config{})
	slow, p := greeted(t, s)
	body := make([]byte, 32<<10)
	var err error
	for i := 0; err == nil; i++ {
		if i > 100000 {
			t.Fatal("never full")
		}
		err = p.Send(wire.RankHeader{Type: wire.MFence}, body)
	}
	if !errors.Is(err, ErrSlow) {
		t.Fatal(err)
	}
	if g := next[Gone](t, s); g.Peer != p || !errors.Is(g.Err, ErrSlow) {
		t.Errorf("gone %+v", g)
	}
	other, q := greeted(t, s)
	if err := q.Send(wire.RankHeader{Type: wire.MBye}, nil); err != nil {
		t.Error(err)
	}
	if h, _, _, err := other.receive(); err != nil || h.Type != wire.MBye {
		t.Errorf("%+v: %v", h, err)
	}
	_ = slow
}

// What was queued before Close arrives, in order, and then the end.
func TestCloseSendsWhatIsQueued(t *testing.T) {
	s := serve(t, Config{})
	c, p := greeted(t, s)
	for i := range uint32(100) {
		if err := p.Send(wire.RankHeader{Type: wire.MFence, Request: i}, nil); err != nil {
			t.Fatal(err)
		}
	}
	p.Refuse(100, wire.CodeRefused, "the rank is held by another process")
	p.Close()
	for i := range uint32(100) {
		if h, _, _, err := c.receive(); err != nil || h.Request != i {
			t.Fatalf("message %d: %+v: %v", i, h, err)
		}
	}
	c.refused(wire.CodeRefused)
	if g := next[Gone](t, s); !errors.Is(g.Err, ErrClosed) {
		t.Errorf("gone %+v", g)
	}
}

func TestTooManyPeers(t *testing.T) {
	s := serve(t, Config{MaxPeers: 2})
	_, _ = greeted(t, s)
	c2, p2 := greeted(t, s)
	dial(t, s).refused(wire.CodeRefused)
	next[TurnedAway](t, s)
	_ = c2.c.Close()
	if g := next[Gone](t, s); g.Peer != p2 {
		t.Errorf("gone %v", g.Peer)
	}
	greeted(t, s)
}

// A connection that says nothing is hung up on, with the reason, and one that has said hello may be silent for as long as it likes.
func TestSilentConnections(t *testing.T) {
	s := listening(t, Config{HelloWait: 100 * time.Millisecond})
	old, silent := dial(t, s), dial(t, s)
	old.send(wire.MHello, testHello().Append(nil))
	runs(t, s)
	p := next[Hello](t, s).Peer
	if r := silent.refused(wire.CodeTimeout); !strings.Contains(r.Text, "no hello came") {
		t.Errorf("%q", r.Text)
	}
	if err := p.Send(wire.RankHeader{Type: wire.MBye}, nil); err != nil {
		t.Error(err)
	}
	if h, _, _, err := old.receive(); err != nil || h.Type != wire.MBye {
		t.Errorf("%+v: %v", h, err)
	}
	old.send(wire.MStopped, wire.AppendStopped(nil, 1))
	next[Stopped](t, s)
}

// However many connections say nothing, the next that does is served: they make room, the oldest first.
func TestSilentConnectionsMakeRoom(t *testing.T) {
	s := serve(t, Config{MaxPeers: 2, HelloWait: time.Hour})
	_, keeps := greeted(t, s)
	oldest := dial(t, s)
	for range 20 {
		dial(t, s)
	}
	c, p := greeted(t, s)
	if _, _, _, err := oldest.receive(); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest silent one: %v", err)
	}
	for _, q := range []*conn{keeps, p} {
		if err := q.Send(wire.RankHeader{Type: wire.MBye}, nil); err != nil {
			t.Errorf("%v was hung up on: %v", q, err)
		}
	}
	dial(t, s).refused(wire.CodeRefused) // all seats are taken by those who said who they are
	next[TurnedAway](t, s)
	_ = c.c.Close()
	next[Gone](t, s)
	greeted(t, s)
}

// Some descriptors are left for Raft, the disk and the operator: whoever would take one of these is told to come again.
func TestDescriptorsAreLeft(t *testing.T) {
	s := serve(t, Config{MaxDescriptor: 1})
	if r := dial(t, s).refused(wire.CodeAgain); !strings.Contains(r.Text, "descriptors in use") || !strings.Contains(r.Text, "LimitNOFILE") {
		t.Errorf("%q", r.Text)
	}
}

// Want of descriptors passes: whoever connects meanwhile is told to come again. Nothing else may be closed meanwhile, since its number would be
// free: so this test has a process of its own, without what earlier tests leave to the collector of garbage.
func TestWantOfDescriptors(t *testing.T) {
	if os.Getenv(envAlone) == "" {
		alone := exec.Command(os.Args[0], "-test.run=^TestWantOfDescriptors$", "-test.v")
		alone.Env = append(os.Environ(), envAlone+"=yes")
		if out, err := alone.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestWantOfDescriptors")) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	s := serve(t, Config{})
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	free, err := unix.Dup(fd) // the lowest number that is free: the connection's
	if err != nil {
		t.Fatal(err)
	}
	one := unix.Rlimit{Cur: uint64(free) + 1, Max: was.Max}
	b := make([]byte, wire.MaxRankMessage)
	n := 0
	err = errors.Join(unix.Close(free), unix.Setrlimit(unix.RLIMIT_NOFILE, &one), unix.Connect(fd, &unix.SockaddrUnix{Name: s.cfg.Path}))
	if err == nil {
		n, err = unix.Read(fd, b)
	}
	if err := errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)); err != nil {
		t.Fatal(err)
	}
	_, body, err := wire.ParseRank(b[:n])
	if err != nil {
		t.Fatal(err)
	}
	if r, err := wire.ParseRefused(body); err != nil || r.Code != wire.CodeAgain || !strings.Contains(r.Text, "too many open files") {
		t.Errorf("refused with %+v, %v", r, err)
	}
	if ev := next[Short](t, s); want.Of(ev.Err) != want.Descriptors {
		t.Errorf("the daemon hears %v", ev.Err)
	}
	greeted(t, s)
}

func TestTooFewDescriptors(t *testing.T) {
	for most, good := range map[int]bool{24: false, leastDescriptors - 1: false, leastDescriptors: true, 1 << 20: true} {
		if err := tooFew(most); (err == nil) != good || err != nil && !strings.Contains(err.Error(), "LimitNOFILE") {
			t.Errorf("%d: %v", most, err)
		}
	}
	if err := CheckDescriptors(); err != nil {
		t.Skipf("this test's own process has as few: %v", err)
	}
}

// The reason reaches a client that sends on, and does not read until it has sent everything.
func TestReasonOutlivesWhatIsStillSent(t *testing.T) {
	s := serve(t, Config{})
	c, _ := greeted(t, s)
	many := make([]replica.Region, wire.MaxRegionsPerMessage)
	for i := range many {
		many[i] = region("a")
	}
	bad := bytes.Replace(wire.AppendRank(nil, wire.RankHeader{Type: wire.MRegions}, wire.AppendRegions(nil, 0, many)), []byte("a\x00"), []byte("\xff\x00"), 1)
	c.sendRaw(bad)
	next[Gone](t, s) // from here on nobody takes what it says for more than noise
	for i := range 100 {
		c.mayTake()
		_, err := c.c.Write(wire.AppendRank(nil, wire.RankHeader{Type: wire.MRegions}, wire.AppendRegions(nil, uint32(i*len(many)), many)))
		if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
			break // a client that takes seconds is not listened to for as long, and finds the reason all the same
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if r := c.refused(wire.CodeInvalid); !strings.Contains(r.Text, "not UTF-8") {
		t.Errorf("%q", r.Text)
	}
}

// One user's geometries that have begun and not ended are bounded together: each is 16 MiB of records.
func TestRegionsOfAUserAreBounded(t *testing.T) {
	s := serve(t, Config{})
	many := make([]replica.Region, wire.MaxRegionsPerMessage)
	for i := range many {
		many[i] = region("a")
	}
	begin := func() *testClient {
		c, _ := greeted(t, s)
		for first := 0; first < replica.MaxRegions; first += len(many) {
			c.send(wire.MRegions, wire.AppendRegions(nil, uint32(first), many[:min(len(many), replica.MaxRegions-first)]))
		}
		c.send(wire.MScope, nil) // all before it has been taken
		next[Scope](t, s)
		return c
	}
	var all []*testClient
	for range maxRegistering / replica.MaxRegions {
		all = append(all, begin())
	}
	c, _ := greeted(t, s)
	c.send(wire.MRegions, wire.AppendRegions(nil, 0, many))
	if r := c.refused(wire.CodeAgain); !strings.Contains(r.Text, "try again") {
		t.Errorf("%q", r.Text)
	}
	next[Gone](t, s)
	all[0].send(wire.MAttach, wire.AppendAttach(nil, replica.MaxRegions, replica.NoGroup)) // one that ends makes room
	if ev := next[Attach](t, s); len(ev.Regions) != replica.MaxRegions {
		t.Errorf("%d regions", len(ev.Regions))
	}
	_ = all[1].c.Close() // and so does one that goes away
	next[Gone](t, s)
	begin()
	begin()
}

// 40 sessions that sent 65,536 regions each, and never attached, held 422 MiB.
func TestRegionsWithoutAnAttach(t *testing.T) {
	s := listening(t, Config{HelloWait: 20 * time.Millisecond}) // six times that for all regions
	without, with := dial(t, s), dial(t, s)
	for _, c := range []*testClient{without, with} {
		c.send(wire.MHello, testHello().Append(nil))
		c.send(wire.MRegions, wire.AppendRegions(nil, 0, []replica.Region{region("a")}))
	}
	with.send(wire.MAttach, wire.AppendAttach(nil, 1, replica.NoGroup))
	runs(t, s)
	if r := without.refused(wire.CodeTimeout); !strings.Contains(r.Text, "no attach") {
		t.Errorf("%q", r.Text)
	}
	<-time.After(8 * 20 * time.Millisecond) // a session whose geometry has ended may be quiet for longer
	with.send(wire.MScope, nil)
	came := map[string]int{}
	for range 5 { // of two sessions, which wait for nobody's order
		came[fmt.Sprintf("%T", next[Event](t, s))]++
	}
	if want := map[string]int{"session.Hello": 2, "session.Attach": 1, "session.Gone": 1, "session.Scope": 1}; !maps.Equal(came, want) {
		t.Errorf("events %v, want %v", came, want)
	}
}

func TestRunHangsUpAtItsEnd(t *testing.T) {
	s, err := Listen(Config{Path: filepath.Join(t.TempDir(), "d.sock")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	c, p := greeted(t, s)
	flood := dial(t, s) // its reader blocks on a full event queue
	flood.send(wire.MHello, testHello().Append(nil))
	for range eventQueue + 4 { // few enough beyond it for the socket to hold
		flood.send(wire.MStopped, wire.AppendStopped(nil, 1))
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, _, _, err := c.receive(); !errors.Is(err, io.EOF) {
		t.Errorf("the session outlived the server: %v", err)
	}
	if err := p.Send(wire.RankHeader{Type: wire.MFence}, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := s.Watch(os.Getpid(), 1); err == nil {
		t.Error("watched after the end")
	}
	if _, err := os.Stat(s.cfg.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left over: %v", err)
	}
	s.Close()
}

func TestPeerString(t *testing.T) {
	if got := fmt.Sprint(&conn{id: 3, pid: 4}); got != "peer 3 (pid 4)" {
		t.Error(got)
	}
}

// A session that says nothing takes little: one user may have hundreds.
func TestSilentSessionsTakeLittle(t *testing.T) {
	s := serve(t, Config{})
	greeted(t, s) // what the first one takes for all
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const n, each = 100, 32 << 10
	before := heap()
	for range n {
		greeted(t, s)
	}
	if after := heap(); after > before+n*each {
		t.Errorf("%d sessions take %d bytes each, want at most %d", n, (after-before)/n, each)
	}
}
