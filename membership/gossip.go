package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/replicad/replicad/replica"
)

// Key is a key of the cluster's gossip. A node speaks with its primary key, and hears who speaks with any that it has.
type Key struct {
	Name   string // shown, and told to the other nodes: it must not tell the secret
	Secret []byte // 32 bytes
}

// Config is a Gossip's.
type Config struct {
	Name        replica.NodeName
	Incarnation replica.NodeIncarnation
	Addr        string // host:port to bind, UDP and TCP
	Advertise   string // host:port under which others reach Addr; empty: Addr itself
	Cluster     replica.ClusterID
	Keys        []Key       // the cluster's, the primary one first: whoever has one can make any node look alive or dead
	Seeds       []string    // host:port of some other nodes' gossip; forgotten partitions heal only through them
	QUICAddr    string      // host:port of this node's endpoint, as others dial it
	Logger      *log.Logger // nil: none; see NewLogger

	change func(*memberlist.Config) // of tests, which may have many members on a small machine; nil: nothing
}

const (
	keyBytes      = 32
	rejoinEvery   = 5 * time.Second
	rejoinAtOnce  = 3 // addresses tried in one round: a dead one costs streamTimeout
	streamTimeout = 2 * time.Second
	leaveTimeout  = 300 * time.Millisecond
)

// Validate reports all faults.
func (c Config) Validate() error {
	var errs []error
	if err := replica.CheckName(string(c.Name)); err != nil {
		errs = append(errs, fmt.Errorf("name: %w", err))
	}
	if c.Cluster == (replica.ClusterID{}) {
		errs = append(errs, errors.New("cluster is zero: clusters could merge"))
	}
	errs = append(errs, checkKeys(c.Keys))
	if err := checkAddr(c.QUICAddr); err != nil {
		errs = append(errs, fmt.Errorf("QUIC address: %w", err))
	}
	for _, s := range c.Seeds {
		if err := checkAddr(s); err != nil {
			errs = append(errs, fmt.Errorf("seeds: %w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("membership: %w", err)
	}
	return nil
}

func checkKeys(keys []Key) error {
	if len(keys) == 0 {
		return errors.New("no gossip key: anybody could take part")
	}
	for _, k := range keys {
		if len(k.Secret) != keyBytes {
			return fmt.Errorf("gossip key has %d bytes, want %d", len(k.Secret), keyBytes)
		}
	}
	return checkKeyNames(keyNames(keys))
}

func keyNames(keys []Key) string {
	var names []string
	for _, k := range keys {
		names = append(names, k.Name)
	}
	return strings.Join(names, ", ")
}

// Gossip is this node's part in the gossip.
type Gossip struct {
	cfg  Config
	book *book
	ring *memberlist.Keyring
	list *memberlist.Memberlist
	ways *transport

	life  context.Context // ends with Close
	end   context.CancelFunc
	runs  sync.WaitGroup
	mu    sync.Mutex // guards ended, so that no Run begins once Close waits
	ended bool
	close func() error
}

// Start binds the ports and takes part. Others are looked for once Run runs.
func Start(cfg Config) (*Gossip, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = log.New(io.Discard, "", 0)
	}
	g := &Gossip{cfg: cfg, book: newBook(cfg.Name, cfg.Logger)}
	if err := g.book.say(meta{incarnation: cfg.Incarnation, addr: cfg.QUICAddr, keys: keyNames(cfg.Keys)}); err != nil {
		return nil, fmt.Errorf("membership: %w", err)
	}
	conf, err := g.settings()
	if err != nil {
		return nil, err
	}
	if g.ways, err = listen(conf, g.near); err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("gossip address %s is in use (UDP or TCP): another daemon or program has it: stop that one or configure another address: %w", cfg.Addr, err)
		}
		return nil, fmt.Errorf("gossip on %s: %w", cfg.Addr, err)
	}
	conf.Transport = g.ways
	if g.list, err = memberlist.Create(conf); err != nil {
		return nil, errors.Join(fmt.Errorf("gossip on %s: %w", cfg.Addr, err), g.ways.Shutdown())
	}
	g.life, g.end = context.WithCancel(context.Background())
	g.close = sync.OnceValue(func() error { return g.shutdown(true) })
	return g, nil
}

// settings follow the measurements for fast suspicion without flapping: about 1.1 s at 64 nodes.
func (g *Gossip) settings() (*memberlist.Config, error) {
	bind, err := net.ResolveTCPAddr("tcp", g.cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("gossip address %q: %w: want host:port of this node", g.cfg.Addr, err)
	}
	c := memberlist.DefaultLANConfig()
	c.Name = string(g.cfg.Name)
	c.BindAddr, c.BindPort, c.AdvertisePort = "0.0.0.0", bind.Port, bind.Port
	if bind.IP != nil {
		c.BindAddr = bind.IP.String()
	}
	if g.cfg.Advertise != "" {
		others, err := net.ResolveTCPAddr("tcp", g.cfg.Advertise)
		if err != nil {
			return nil, fmt.Errorf("gossip address %q: %w: want host:port under which others reach this node", g.cfg.Advertise, err)
		}
		c.AdvertiseAddr, c.AdvertisePort = others.IP.String(), others.Port
	}
	if g.ring, err = memberlist.NewKeyring(secrets(g.cfg.Keys), g.cfg.Keys[0].Secret); err != nil {
		return nil, fmt.Errorf("gossip keys: %w", err)
	}
	c.Label, c.Keyring = g.cfg.Cluster.String(), g.ring
	c.GossipVerifyIncoming, c.GossipVerifyOutgoing, c.SkipInboundLabelCheck = true, true, false
	c.EnableCompression = false // a decompression bomb for no gain
	c.ProbeInterval, c.ProbeTimeout = 200*time.Millisecond, 100*time.Millisecond
	c.SuspicionMult, c.SuspicionMaxTimeoutMult, c.IndirectChecks = 3, 3, 3
	c.AwarenessMaxMultiplier = 8
	c.TCPTimeout = streamTimeout
	c.UDPBufferSize = 1200 // a tunnel of 1,280 bytes carries it
	c.HandoffQueueDepth = 4096
	c.DeadNodeReclaimTime = time.Millisecond // a dead node's name may come back at another address at once
	c.RequireNodeNames = false               // seeds are addresses
	c.DelegateProtocolMin, c.DelegateProtocolMax, c.DelegateProtocolVersion = 1, 1, 1
	c.Delegate, c.Events, c.Alive, c.Conflict = g.book, g.book, g.book, g.book
	c.Logger, c.LogOutput = g.cfg.Logger, nil
	if g.cfg.change != nil {
		g.cfg.change(c)
	}
	return c, nil
}

// SetKeys has this node use other keys from now on, and tells the others their names; one caller at a time. The new primary key should be
// known to every other node: what is said with it is lost on those that lack it.
func (g *Gossip) SetKeys(keys []Key) error {
	if err := checkKeys(keys); err != nil {
		return fmt.Errorf("membership: %w", err)
	}
	if err := setRing(g.ring, secrets(keys)); err != nil {
		return fmt.Errorf("gossip keys: %w", err)
	}
	g.book.change(func(m *meta) { m.keys = keyNames(keys) })
	_ = g.list.UpdateNode(leaveTimeout) // it waits for the news to be out, which go out by themselves
	return nil
}

// setRing never removes a key but the last: the library moves those behind it over the list that its readers are reading.
func setRing(ring *memberlist.Keyring, keys [][]byte) error {
	if err := errors.Join(ring.AddKey(keys[0]), ring.UseKey(keys[0])); err != nil {
		return err
	}
	foreign := func(have []byte) bool {
		return !slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, have) })
	}
	for have := ring.GetKeys(); slices.ContainsFunc(have, foreign); have = ring.GetKeys() {
		if err := ring.RemoveKey(have[len(have)-1]); err != nil {
			return err
		}
	}
	for _, k := range keys {
		if err := ring.AddKey(k); err != nil {
			return err
		}
	}
	return nil
}

func secrets(keys []Key) (list [][]byte) {
	for _, k := range keys {
		list = append(list, k.Secret)
	}
	return list
}

// Events are hints of changes, this node's own included; see the package comment.
func (g *Gossip) Events() <-chan Event { return g.book.events }

// Members is everybody known, by name, this node included; those that are not Alive too.
func (g *Gossip) Members() []Member { return g.book.list() }

// near tells whether an address is a member's or a seed's.
func (g *Gossip) near(a netip.Addr) bool {
	return g.book.has(a) || slices.ContainsFunc(g.cfg.Seeds, func(s string) bool { return hostOf(s) == a })
}

// Warnings say what is wrong at the gossip port.
func (g *Gossip) Warnings() []string { return g.ways.warnings() }

// Addr is the gossip address under which others reach this node.
func (g *Gossip) Addr() string { return g.list.LocalNode().Address() }

// Run looks for seeds and lost members that are not alive here, at once and then every few seconds, until ctx ends or Close
// is called. memberlist alone forgets the dead, so a partition longer than its memory would never heal.
func (g *Gossip) Run(ctx context.Context) error {
	g.mu.Lock()
	if g.ended {
		g.mu.Unlock()
		return nil
	}
	g.runs.Add(1)
	g.mu.Unlock()
	defer g.runs.Done()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.life, cancel)()
	for {
		g.rejoin(ctx)
		// Jittered, so that nodes cut off together don't come back in step.
		wait := time.NewTimer(rejoinEvery/2 + rand.N(rejoinEvery))
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case <-wait.C:
		}
	}
}

func (g *Gossip) rejoin(ctx context.Context) {
	addrs := g.book.absent(g.cfg.Seeds)
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	for _, addr := range addrs[:min(len(addrs), rejoinAtOnce)] {
		if ctx.Err() != nil {
			return
		}
		if _, err := g.list.Join([]string{addr}); err != nil {
			g.cfg.Logger.Printf("[DEBUG] memberlist: rejoin %s: %v", addr, err)
		}
	}
}

// Close tells the others that this node goes down, and ends the gossip. It is idempotent and waits for Run.
func (g *Gossip) Close() error { return g.close() }

// shutdown without a farewell is what a crash looks like to the others.
func (g *Gossip) shutdown(farewell bool) error {
	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	g.end()
	g.runs.Wait()
	if farewell {
		// Best effort: those whom it does not reach suspect this node, which is true as well.
		g.book.change(func(m *meta) { m.leaving = true })
		_ = g.list.UpdateNode(leaveTimeout)
		_ = g.list.Leave(leaveTimeout)
	}
	return g.list.Shutdown()
}
