package consensus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// patience is how long a test waits for an event that must come; only a failing test waits it out.
const patience = 30 * time.Second

var testCluster = replica.ClusterID{0xc1}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// memNet connects voters of one process by address.
type memNet struct {
	mu     sync.Mutex
	layers map[string]*memLayer
}

func newMemNet() *memNet { return &memNet{layers: make(map[string]*memLayer)} }

type memLayer struct {
	net    *memNet
	addr   string
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (n *memNet) layer(addr string) *memLayer {
	l := &memLayer{net: n, addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.layers[addr] = l
	return l
}

func (l *memLayer) Dial(ctx context.Context, addr string, _ replica.NodeName) (net.Conn, error) {
	l.net.mu.Lock()
	to := l.net.layers[addr]
	l.net.mu.Unlock()
	if to == nil {
		return nil, fmt.Errorf("nobody at %s", addr)
	}
	here, there := net.Pipe()
	select {
	case to.conns <- there:
		return here, nil
	case <-to.closed:
		return nil, fmt.Errorf("refused by %s", addr)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *memLayer) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memLayer) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *memLayer) Addr() net.Addr { return memAddr(l.addr) }

type memAddr string

func (a memAddr) Network() string { return "mem" }
func (a memAddr) String() string  { return string(a) }

// A trio is three voters that can be stopped and started again. Those over pipes are in virtual time, in which no election comes too late.
type trio struct {
	t     testing.TB
	dir   string
	names []replica.NodeName
	layer func(name replica.NodeName) StreamLayer
	addr  func(name replica.NodeName) string
	wrap  func(name replica.NodeName, l raft.LogStore) raft.LogStore
	tune  func(*Config)
	nodes map[replica.NodeName]*Node
	kept  map[replica.NodeName]*testMemory // what keepers hold; a voter without one has a new keeper at each start
}

// testMemory is a Memory in memory.
type testMemory struct {
	mu sync.Mutex // guards b
	b  [MemoryBytes]byte
}

func (m *testMemory) ReadAt(b []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copy(b, m.b[off:]), nil
}

func (m *testMemory) WriteAt(b []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copy(m.b[off:], b), nil
}

func newTrio(t testing.TB) *trio {
	mem := newMemNet()
	c := &trio{t: t, dir: t.TempDir(), names: []replica.NodeName{"n1", "n2", "n3"}, nodes: make(map[replica.NodeName]*Node), kept: map[replica.NodeName]*testMemory{}}
	c.addr = func(name replica.NodeName) string { return string(name) + ":7000" }
	c.layer = func(name replica.NodeName) StreamLayer { return mem.layer(c.addr(name)) }
	c.wrap = func(_ replica.NodeName, l raft.LogStore) raft.LogStore { return l }
	c.tune = func(*Config) {}
	t.Cleanup(c.stopAll)
	return c
}

func (c *trio) config(name replica.NodeName) Config {
	cfg := Config{
		ID: name, Addr: c.addr(name), Dir: filepath.Join(c.dir, string(name)), Cluster: testCluster,
		Heartbeat: 300 * time.Millisecond, Election: 300 * time.Millisecond, Lease: 250 * time.Millisecond,
		WatchdogAfter: patience, // off, unless a test is about it
		Logger:        testLogger(c.t),
	}
	for _, v := range c.names {
		cfg.Voters = append(cfg.Voters, Voter{v, c.addr(v)})
	}
	if m := c.kept[name]; m != nil {
		cfg.Memory = m
	}
	c.tune(&cfg)
	return cfg
}

func (c *trio) start(name replica.NodeName, bootstrap bool) *Node {
	c.t.Helper()
	cfg := c.config(name)
	cfg.Bootstrap, cfg.Layer = bootstrap, c.layer(name)
	n, err := start(cfg, func(l raft.LogStore) raft.LogStore { return c.wrap(name, l) })
	if err != nil {
		c.t.Fatal(err)
	}
	c.nodes[name] = n
	return n
}

func (c *trio) startAll(bootstrap bool) *trio {
	c.t.Helper()
	for _, name := range c.names {
		c.start(name, bootstrap)
	}
	return c
}

func (c *trio) stop(name replica.NodeName) {
	if n := c.nodes[name]; n != nil {
		delete(c.nodes, name)
		if err := n.Close(); err != nil {
			c.t.Errorf("close %s: %v", name, err)
		}
	}
}

func (c *trio) stopAll() {
	var g sync.WaitGroup
	for name, n := range c.nodes {
		g.Go(func() {
			if err := n.Close(); err != nil {
				c.t.Errorf("close %s: %v", name, err)
			}
		})
	}
	g.Wait()
	clear(c.nodes)
}

// until waits for a condition that changes of these nodes bring about.
func (c *trio) until(what string, cond func() bool) {
	c.t.Helper()
	cases := make([]<-chan struct{}, 0, 4)
	for _, n := range c.nodes {
		cases = append(cases, n.Changes())
	}
	for len(cases) < 4 {
		cases = append(cases, nil)
	}
	deadline := time.After(patience)
	for !cond() {
		select {
		case <-cases[0]:
		case <-cases[1]:
		case <-cases[2]:
		case <-cases[3]:
		case <-deadline:
			for name, n := range c.nodes {
				leader, addr, term, isSelf := n.Leadership()
				c.t.Logf("%s: leader %q at %q, term %d, isSelf %v, %v, barrier passed in term %d, stuck %v, applied %d", name, leader, addr, term, isSelf, n.raft.State(), n.ready.Load(), n.dog.stuck(), n.State().Index)
			}
			c.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// leader waits for a ready leader among the running nodes, other than the one named.
func (c *trio) leader(not replica.NodeName) *Node {
	c.t.Helper()
	var found *Node
	c.until("a leader", func() bool {
		for name, n := range c.nodes {
			if _, _, _, isSelf := n.Leadership(); isSelf && name != not {
				found = n
			}
		}
		return found != nil
	})
	return found
}

// propose registers a node by that name through whoever leads, as a client would: it tries again only when nothing was proposed, or where the state of
// a leader has nothing of it. On a machine without time one loses its term over a proposal.
func (c *trio) propose(name replica.NodeName) uint64 {
	c.t.Helper()
	ctx := within(c.t)
	for {
		index, out, err := c.leader("").Propose(ctx, register(name))
		switch {
		case err == nil && out.Err == nil:
			return index
		case errors.Is(err, ErrNotLeader), errors.Is(err, ErrBusy):
		case errors.Is(err, ErrUnknown) && ctx.Err() == nil: // a leader that is ready has applied all that the one before committed
			if s := c.leader("").State(); s.Nodes[name].Name == name {
				return s.Index
			}
		default:
			c.t.Fatalf("propose %s: %v, %v", name, err, out.Err)
		}
	}
}

// awaitNode waits until all running voters have applied the registration.
func (c *trio) awaitNode(name replica.NodeName) {
	c.t.Helper()
	c.until(fmt.Sprintf("%s on all voters", name), func() bool {
		for _, n := range c.nodes {
			if _, ok := n.State().Nodes[name]; !ok {
				return false
			}
		}
		return true
	})
}

func register(name replica.NodeName) replica.Command {
	return replica.RegisterNode{Node: replica.Node{Name: name, Incarnation: 1, Session: 1, Addr: "127.0.0.1:1", Labels: map[string]string{"rack": "r"}}}
}

// testLogger hands raft's complaints to the test: they are read when it fails.
func testLogger(t testing.TB) hclog.Logger {
	if !testing.Verbose() {
		return hclog.NewNullLogger()
	}
	return NewLogger(func(isError bool, msg string, args ...any) {
		fmt.Printf("%s: raft (error %v): %s %v\n", t.Name(), isError, msg, args)
	})
}
