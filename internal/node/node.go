package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/atomicfile"
	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable"
	"github.com/replicad/replicad/internal/durable/directory"
	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/leader"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/internal/owner"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/spool"
	"github.com/replicad/replicad/internal/threads"
	"github.com/replicad/replicad/membership"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Options are a daemon's besides its configuration.
type Options struct {
	Version   string
	Stderr    io.Writer // of the log
	Bootstrap bool      // this start creates the cluster
	Join      bool      // this node is a new voter: it waits until the leader has added it
	// Keeper makes sure that a keeper answers; undo takes back what it started, should the daemon not start. nil: there is one.
	// It is called once this daemon holds the ranks' socket: nobody else starts this node's keeper then. It is called again where the keeper
	// ends beside the daemon.
	Keeper func(context.Context) (undo func(), err error)
	Hangup Hangup
}

// maxServes bounds transfers served at once, in all and to one node, and the bytes of one node's requests; a further one is asked to come again.
const (
	maxServes          = 32
	maxServesPerPeer   = 16
	maxRequestsPerPeer = 64 << 20
)

// daemon is what Run wires together, in the order it is started.
type daemon struct {
	cfg      *config.Config
	opt      Options
	log      *journal.Journal
	id       *pki.Identity
	self     replica.Node
	keeper   *shm.Keeper
	sessions *session.Server
	endpoint *endpoint.Endpoint
	layer    *raftLayer
	cons     *consensus.Node    // nil on a node that doesn't vote, or whose log did not open
	unopened consensus.Standing // why it did not
	gossip   *membership.Gossip
	store    *tier.Tier
	spool    *spool.Spool
	host     *host.Host
	leader   *leader.Leader
	prober   *prober
	paths    *paths
	noted    []string // entries of addrs that this host lacks
	admin    net.Listener
	audit    *journal.Auditor
	trust    *trust
	closers  []func()

	stays    atomic.Pointer[string] // why this daemon, which was asked to end, waits; nil: it does not
	diskFull atomic.Pointer[string] // why this voter's log takes nothing more; nil: it has room
	former   atomic.Pointer[[]shm.FormerKeeper]
	said     control.Standings // by voters that do not lead, of their own part in Raft
	unlinked control.NoLinks   // why no voter takes a link of this node, while it has none
	refused  control.NoLinks   // the nodes whose links this one refused
}

// Run runs the daemon of a node until ctx ends. What can't start is an error that names it and the remedy; what was
// started by then is stopped again. Nothing of the ranks' memory is lost by stopping: the keeper holds it.
func Run(ctx context.Context, cfg *config.Config, opt Options) error {
	log, err := journal.New(opt.Stderr, cfg.Log, cfg.Node)
	if err != nil {
		return err
	}
	if err := session.CheckDescriptors(); err != nil {
		log.Failed("descriptors", string(cfg.Node), err.Error())
	}
	threads.Make(threads.Reserve)
	if why := threads.Warning(); why != "" {
		log.Failed("threads", string(cfg.Node), why)
	}
	for _, w := range cfg.Warnings() {
		log.Warn(w)
	}
	if err := manners.Raise(); err != nil {
		log.Failed("priority", strconv.Itoa(manners.Priority), fmt.Sprintf("%v: where other processes take all cores, this daemon is late, and elections come: give its unit Nice=%d", err, manners.Priority))
	}
	following, unfollow := context.WithCancel(ctx)
	var follows sync.WaitGroup
	follows.Go(func() { opt.Hangup.follow(following, log) })
	defer follows.Wait()
	defer unfollow()
	d := &daemon{cfg: cfg, opt: opt, log: log, paths: newPaths(cfg.Timing.SilentAfter)}
	defer d.close()
	if err := d.open(ctx); err != nil {
		return err
	}
	return d.run(ctx)
}

func (d *daemon) close() {
	for i := len(d.closers) - 1; i >= 0; i-- {
		d.closers[i]()
	}
	d.closers = nil
}

func (d *daemon) onClose(fn func()) { d.closers = append(d.closers, fn) }

// open acquires everything that can fail, in dependency order: identity, disk, sockets, keeper, ports, log.
// A second daemon of a node fails at the lock of its state directory, before it takes the keeper away from the first, or
// registers a memory of its own and the first one's counts as lost.
func (d *daemon) open(ctx context.Context) (err error) {
	c := d.cfg
	if d.id, err = Identity(c); err != nil {
		return err
	}
	if err := d.openState(); err != nil {
		return err
	}
	lines, err := audit.Open(filepath.Join(c.StateDir, journal.AuditFile), func(err error) { d.log.Failed("audit", "of who did what", err.Error()) })
	if err != nil {
		return err
	}
	d.onClose(lines.Close)
	d.audit = &journal.Auditor{Log: lines}
	d.trust = newTrust(d.id, c.StateDir, d.log, d.audit, func() { d.endpoint.Recheck() })
	if err := d.trust.load(); err != nil {
		return err
	}
	users, err := rankUsers(c)
	if err != nil {
		return err
	}
	if users.open != "" {
		d.log.Failed("rank_group", "who may connect to "+c.Socket, users.open)
	}
	if d.sessions, err = session.Listen(session.Config{Path: c.Socket, Token: c.JobToken, Users: users.numbers, Group: users.group, PerUser: c.PerUser.Sessions}); err != nil {
		return err
	}
	d.onClose(d.sessions.Close)
	if d.admin, err = listenAdmin(c.AdminSocket); err != nil {
		return err
	}
	d.onClose(func() { d.admin.Close() })
	if err := d.openTier(ctx); err != nil {
		return err
	}
	d.openSpool(ctx)
	undo, err := d.openKeeper(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			undo()
		}
	}()
	boot, err := bootID()
	if err != nil {
		return err
	}
	d.self = replica.Node{Name: c.Node, Incarnation: d.keeper.Incarnation(), Session: d.keeper.Session(), Boot: boot, Addr: c.Addr, Labels: c.Labels, Voter: c.IsVoter()}
	if d.self.Addrs, err = d.furtherAddrs(); err != nil {
		return err
	}
	if err = d.openNetwork(); err != nil {
		return err
	}
	return d.build()
}

// openTier makes the durable tier ready, if the configuration names one. A store that can't be used now keeps no daemon from starting, since memory
// serves without it and this node's ranks need their daemon. One that never could does.
func (d *daemon) openTier(ctx context.Context) (err error) {
	c := d.cfg
	keys, err := durableKeys(ctx, c)
	if err != nil {
		return err
	}
	settings := tier.Settings{Reader: string(c.Node), Keys: keys, Cluster: d.id.Cluster, KeepRuns: c.KeepRuns, Best: c.DurableKeep.Best, Note: func(err error) { d.log.Failed("durable", "beside reading and keeping generations", err.Error()) }}
	if !c.InBucket() && c.DurableDir == "" {
		return nil
	}
	if settings.Unconditional = c.Store.Conditions == config.NoConditions; settings.Unconditional {
		d.log.Failed("durable", "conditions of "+c.Durable, "store.conditions is none: they are not tried. Two fleets that resume one run at once are kept apart by what the server lists; if its lists lag, both write, and the fork is found at their next commit")
	}
	if d.store, err = d.makeTier(ctx, settings); err != nil {
		return err
	}
	d.onClose(func() { d.store.Close() })
	if err := d.store.Prove(ctx); errors.Is(err, tier.ErrUnconditional) {
		return fmt.Errorf("durable: %w: two fleets could overwrite each other's checkpoints there", err)
	} else if err != nil {
		d.log.Failed("durable", "the store can't be used now, and is tried again", d.store.Silent())
	}
	return nil
}

// makeTier makes the durable tier, whether or not its store can be used now. A directory that can never be one is refused.
func (d *daemon) makeTier(ctx context.Context, settings tier.Settings) (*tier.Tier, error) {
	c := d.cfg
	if !c.InBucket() {
		t, err := tier.OpenDirectory(ctx, c.DurableDir, settings)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, directory.ErrSilent) {
			return tier.DirectoryLater(c.DurableDir, settings)
		}
		return t, err
	}
	st, err := durable.Open(ctx, c.Durable, bucketSettings(c, func(n remote.Notice) {
		if n.Err != nil && n.Attempt <= 1 {
			d.log.Failed("durable", strings.TrimSpace(n.Op+" "+n.Key), n.Err.Error())
		}
	}))
	if err != nil {
		return nil, fmt.Errorf("durable: %w", err)
	}
	return tier.New(st, settings), nil
}

// bucketSettings are what a configuration says of a bucket's server.
func bucketSettings(c *config.Config, notice func(remote.Notice)) durable.Settings {
	s := c.Store
	return durable.Settings{Endpoint: s.Endpoint, Region: s.Region, Addressing: s.Addressing, Checksum: s.Checksum, Credentials: s.Credentials, Key: s.Key, PartBytes: bucketPart, Notice: notice}
}

// bucketPart is the least size of the parts of a write, in bytes: what a slow server has taken of one nobody sees.
const bucketPart = 8 << 20

// proveAgain lies between two tries of a store that could not be used when the daemon started.
const proveAgain = 30 * time.Second

// proves tries the store again until it can be used: status says why it can't.
func (d *daemon) proves(ctx context.Context) {
	if d.store == nil {
		return
	}
	t := time.NewTicker(proveAgain)
	defer t.Stop()
	for !d.store.Proved() {
		select {
		case <-t.C:
			_ = d.store.Prove(ctx) // status says so
		case <-ctx.Done():
			return
		}
	}
}

// openSpool makes ready what durable writes go through. Without it they hold their slots: training goes on all the same.
func (d *daemon) openSpool(ctx context.Context) {
	c := spool.Config{Dir: d.cfg.SpoolDir, Owner: d.cfg.Node, Epoch: uint64(time.Now().UnixNano()), Most: uint64(d.cfg.SpoolMost), Memory: uint64(d.cfg.SpoolMemory)}
	if c.Dir == config.NoSpool {
		c.Dir = ""
	}
	s, err := spool.Open(ctx, c)
	if err != nil {
		d.log.Failed("spool", "durable writes of this daemon go without one", err.Error())
		c.Dir = ""
		s, _ = spool.Open(ctx, c) // there is nothing to fail
	}
	d.spool = s
}

// Identity loads the node's credentials and checks that they are this node's.
func Identity(c *config.Config) (*pki.Identity, error) {
	id, err := pki.Load(c.PKI.CA, c.PKI.Cert, c.PKI.Key, c.PKI.GossipKey)
	if err == nil && id.Node != c.Node {
		err = fmt.Errorf("certificate %s is of node %q, the configuration of node %q: use that node's own certificate", c.PKI.Cert, id.Node, c.Node)
	}
	return id, err
}

// openKeeper dials the keeper, where that is wanted after it was started.
func (d *daemon) openKeeper(ctx context.Context) (undo func(), err error) {
	undo = func() {}
	if d.opt.Keeper != nil {
		if undo, err = d.opt.Keeper(ctx); err != nil {
			return nil, err
		}
	}
	if d.keeper, err = shm.DialKeeper(ctx, d.cfg.KeeperSocket); err != nil {
		undo()
		return nil, err
	}
	d.onClose(d.keeper.Close)
	return undo, nil
}

// returnToKeeper comes to the keeper that answers after this daemon's has ended, with the node's life as it is: where the daemon starts keepers,
// to one that it started.
func (d *daemon) returnToKeeper(ctx context.Context) (holding.Returned, error) {
	if d.opt.Keeper != nil {
		if _, err := d.opt.Keeper(ctx); err != nil { // it stays: this daemon has started
			return nil, err
		}
	}
	return shm.ReturnToKeeper(ctx, d.cfg.KeeperSocket, d.self.Incarnation, d.self.Session)
}

// stateMark is state_dir/node.json: whose directory it is. A directory of another cluster or node is refused.
type stateMark struct {
	Magic   string            `json:"magic"`
	Version int               `json:"version"`
	Cluster replica.ClusterID `json:"cluster"`
	Node    replica.NodeName  `json:"node"`
}

// openState takes the state directory for this daemon's life, and marks it as this node's at its first start.
func (d *daemon) openState() error {
	dir := d.cfg.StateDir
	if err := owner.Folder(dir, true); err != nil { // nothing is laid into a directory of somebody else
		return fmt.Errorf("state_dir %s: %w; give the daemon a directory that it alone may write", dir, err)
	}
	want := stateMark{Magic: "replicad-node", Version: 1, Cluster: d.id.Cluster, Node: d.cfg.Node}
	if _, err := checkMark(dir, want); err != nil {
		return err
	}
	if err := d.lockState(); err != nil {
		return err
	}
	marked, err := checkMark(dir, want) // another daemon may have been there first
	if err == nil && !marked {
		b, _ := json.Marshal(want)
		if err := atomicfile.Write(filepath.Join(dir, "node.json"), b); err != nil {
			return fmt.Errorf("state_dir %s: %w: is it writable, and its disk not full?", dir, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	return probeState(dir)
}

// lockState keeps every other daemon out of the state directory, whatever its ports and sockets, until this process ends. The lock has a
// file of its own: the mark is replaced when it is written, and its lock would stay with the file that was there before.
func (d *daemon) lockState() error {
	path := filepath.Join(d.cfg.StateDir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("state_dir %s: %w: is it writable, and its disk not full?", d.cfg.StateDir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("state_dir %s is in use by another running daemon, which has %s open: stop that one (two daemons of one node would take each other's memory for lost), or give this node a state_dir of its own", d.cfg.StateDir, path)
		}
		return fmt.Errorf("state_dir %s: lock %s: %w: put it on a file system that has locks", d.cfg.StateDir, path, err)
	}
	d.onClose(func() { f.Close() })
	return nil
}

// checkMark reads the mark of a state directory, which must be the wanted one; false: it has none yet. The directory itself must be
// this user's, and nobody else may write it: what another one laid there would be taken for this node's own.
func checkMark(dir string, want stateMark) (marked bool, err error) {
	if err := owner.Folder(dir, false); err != nil {
		return false, fmt.Errorf("state_dir: %w", err)
	}
	path := filepath.Join(dir, "node.json")
	b, err := readShort(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("state_dir %s: %w", dir, err)
	}
	have, err := parseStateMark(b)
	if err != nil {
		return true, fmt.Errorf("state_dir %s: %s is not what a daemon writes there: %w: restore the file, or use an empty directory", dir, path, err)
	}
	if have != want {
		return true, fmt.Errorf("state_dir %s belongs to node %q of cluster %s (version %d), this is node %q of cluster %s: use its own directory, or an empty one", dir, have.Node, have.Cluster, have.Version, want.Node, want.Cluster)
	}
	return true, nil
}

// probeState finds out whether a state directory takes a file.
func probeState(dir string) error {
	probe, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return fmt.Errorf("state_dir %s: %w: the daemon must be able to write there", dir, err)
	}
	probe.Close()
	return os.Remove(probe.Name())
}

// maxStateMark is more than a daemon writes into node.json, in bytes.
const maxStateMark = 4 << 10

// readShort reads the mark of a state directory, which may be anything.
func readShort(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a named pipe is not waited for
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file: move it away", path), err)
	}
	return io.ReadAll(io.LimitReader(f, maxStateMark+1))
}

func parseStateMark(b []byte) (m stateMark, err error) {
	if len(b) > maxStateMark {
		return m, fmt.Errorf("more than %d bytes", maxStateMark)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return stateMark{}, err
	}
	return m, nil
}

func bootID() (replica.BootID, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return replica.BootID{}, fmt.Errorf("kernel boot id: %w", err)
	}
	id, err := replica.ParseUUID(strings.TrimSpace(string(b)))
	return replica.BootID(id), err
}

// furtherAddrs looks up what addrs names. An entry that this host lacks keeps no daemon from starting: an interface that is gone must not cost
// the node.
func (d *daemon) furtherAddrs() ([]string, error) {
	if len(d.cfg.Addrs) == 0 {
		return nil, nil
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("addrs: list this host's interfaces: %w", err)
	}
	var host []config.HostAddr
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			continue // it went away meanwhile
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				host = append(host, config.HostAddr{Interface: i.Name, IP: p.Addr().Unmap()})
			}
		}
	}
	addrs, missing, err := d.cfg.FurtherAddrs(host)
	for _, m := range missing {
		d.log.Warn(m)
		d.noted = append(d.noted, m.Error())
	}
	return addrs, err
}

func (d *daemon) openNetwork() (err error) {
	c := d.cfg
	reset, err := resetKey(c.StateDir)
	if err != nil {
		return err
	}
	d.endpoint, err = endpoint.Listen(endpoint.Config{Addr: c.ListenAddr(), ServerTLS: d.id.ServerTLS(string(endpoint.Raft), string(endpoint.Control), string(endpoint.Bulk)), ClientTLS: d.id.ClientTLS, PeerName: pki.PeerName,
		Plaintext: c.PlaintextState, ProbeKeys: d.id.GossipKeys, ResetKey: reset, Revoked: d.id.CheckRevoked, Logf: func(f string, args ...any) { d.log.Failed("endpoint", c.Addr, fmt.Sprintf(f, args...)) },
		Refused: func(peer replica.NodeName, why string) { d.refused.Add(replica.Holder{Node: peer}, why, time.Now()) }})
	if err != nil {
		return err
	}
	d.onClose(func() { d.endpoint.Close() })
	d.endpoint.SetProbeReply(endpoint.ProbeReply{Node: d.self.Name, Incarnation: d.self.Incarnation, Session: d.self.Session, Adopting: true, Boot: d.self.Boot})
	if err := d.openRaft(); err != nil {
		return err
	}
	d.gossip, err = membership.Start(membership.Config{Name: c.Node, Incarnation: d.self.Incarnation, Addr: c.GossipListenAddr(), Advertise: c.GossipAddr, Cluster: d.id.Cluster, Keys: namedKeys(d.id.GossipKeys()), Seeds: c.Seeds, QUICAddr: c.Addr,
		Logger: membership.NewLogger(journal.NewGossipLog(d.log, c.GossipAddr).Line)})
	if err != nil {
		return err
	}
	d.onClose(func() { d.gossip.Close() })
	return nil
}

// memory is what the keeper holds of this voter's promises, so that an old log that is put back is found out. Nil: there is none, and the others are asked.
func (d *daemon) memory() consensus.Memory {
	files, err := d.keeper.All()
	f := files[holding.PromiseKey]
	delete(files, holding.PromiseKey)
	for _, other := range files { // the host takes its own back
		_ = other.Close()
	}
	if err == nil && f == nil {
		if f, err = shm.NewMemfd(holding.PromiseFile); err == nil {
			err = errors.Join(f.Truncate(consensus.MemoryBytes), d.keeper.Put(holding.PromiseKey, f))
		}
	}
	if err != nil {
		d.log.Failed("raft", "the keeper does not remember what this voter promises", err.Error())
		if f != nil {
			_ = f.Close()
		}
		return nil
	}
	d.onClose(func() { _ = f.Close() })
	return f
}

// openRaft starts the voter. One whose log does not open runs as a client: sessions and the data plane start without it. One whose log is empty, or older
// than what it promised, runs without a vote until a leader has taken it in.
func (d *daemon) openRaft() error {
	c := d.cfg
	if !c.IsVoter() {
		return nil
	}
	var voters []consensus.Voter
	var names []replica.NodeName
	for _, v := range c.Voters {
		voters = append(voters, consensus.Voter{Name: v.Name, Addr: v.Addr})
		names = append(names, v.Name)
	}
	d.layer = newRaftLayer(d.endpoint, d.paths, c.Addr, names)
	d.endpoint.Handle(endpoint.Raft, d.layer.accept)
	var err error
	d.cons, err = consensus.Start(consensus.Config{ID: c.Node, Addr: c.Addr, Dir: filepath.Join(c.StateDir, "raft"), Voters: voters, Bootstrap: d.opt.Bootstrap, Join: d.opt.Join, Memory: d.memory(), Layer: d.layer, Cluster: d.id.Cluster,
		Heartbeat: c.Raft.Heartbeat, Election: c.Raft.Election, Lease: c.Raft.Lease, WatchdogAfter: c.Raft.Watchdog,
		Logger: consensus.NewLogger(d.log.Raft)})
	if err != nil {
		d.log.Failed("raft", "this voter runs as a client", err.Error())
		d.cons, d.unopened = nil, consensus.FailedStart(err)
		return nil
	}
	d.layer.cons.Store(d.cons)
	d.onClose(func() { d.cons.Close() })
	return nil
}

// standing is where this node's voter stands; false: it is none, by its configuration.
func (d *daemon) standing() (consensus.Standing, bool) {
	switch {
	case !d.cfg.IsVoter():
		return consensus.Standing{}, false
	case d.cons == nil:
		return d.unopened, true
	}
	return d.cons.Standing(), true
}

// votersText is what this node alone can tell of who votes, while no leader answers.
func (d *daemon) votersText() string {
	text, of := "VOTER\tADDRESS", "this node's configuration"
	if d.cons != nil && len(d.cons.Voters()) > 0 {
		of = "this node's own log"
	}
	for _, v := range d.votersKnown() {
		text += fmt.Sprintf("\n%s\t%s", v.Name, v.Addr)
		if v.Why != "" {
			text += "\tdoes not vote: " + v.Why
		}
	}
	return text + "\nno leader answers: this is of " + of + ", and may be older than what the others have"
}

// build makes the two owners and joins them to what they need.
func (d *daemon) build() error {
	c := d.cfg
	d.prober = &prober{path: d.endpoint, paths: d.paths, gossip: d.gossip, interval: c.Timing.ProbeInterval, silent: c.Timing.SilentAfter, grace: c.Timing.DaemonGrace, peers: map[replica.NodeName]peerState{}}
	var disk host.Tier
	if d.store != nil {
		disk = d.store
	}
	d.host = host.New(host.Config{Daemon: c, Cluster: d.id.Cluster, Self: d.self, Journal: d.log, Audit: d.audit, Sessions: d.sessions, Keeper: d.keeper, Return: d.returnToKeeper, Dial: d.dialLane, Ways: d.waysOf, TCPLanes: tcpLanes, Hears: d.prober.hears, NotVoting: func() []string { return notVoting(d.votersKnown()) }, Learn: d.trust.learn, Store: disk, Spool: d.spool})
	d.prober.host = d.host
	if err := d.host.Adopt(); err != nil {
		return err
	}
	if d.cons != nil {
		var shelf leader.Tier
		if d.store != nil {
			shelf = d.store
		}
		d.leader = leader.New(leader.Config{Log: d.cons, Cluster: d.id.Cluster, Node: d.self.Name, Timing: c.Timing, Tier: shelf, Encrypts: len(c.DurableRecipients) > 0, DurableWriters: c.DurableWriters, PerUser: c.PerUser, Reread: leader.RereadConfig{Back: uint64(c.ReadbackRate), Every: c.RereadEvery, Rate: uint64(c.RereadRate), Keep: c.DurableKeep}, Journal: d.log, Audit: d.audit, Refused: &d.refused,
			Answers: d.prober.answers, Hears: d.prober.hears, Quiet: d.prober.quiet, Token: c.JobToken, Operators: d.id.CheckOperator, Learn: d.trust.learn, Newest: d.newestEpoch, Standing: d.raftWord})
	}
	d.endpoint.Handle(endpoint.Control, d.serveControl)
	st, gate := d.host.Parts(), transfer.NewGate(maxServes, maxServesPerPeer, maxRequestsPerPeer)
	d.endpoint.Handle(endpoint.Bulk, func(ctx context.Context, conn *endpoint.Conn) {
		m := d.paths.accepted(conn.Peer(), conn.RemoteAddr(), func() { conn.Close(errDeadWay.Error()) })
		defer m.end()
		serveBulk(ctx, conn, st, gate, m)
	})
	d.endpoint.HandleTCP(func(ctx context.Context, conn *endpoint.TCPConn) {
		manners.Lower()
		m := d.paths.accepted(conn.Peer(), conn.RemoteAddr(), func() { _ = conn.Close() })
		defer m.end()
		transfer.ServeAll(ctx, conn.Peer(), servedConn{conn, m}, st, gate) //nolint:errcheck // as in serveBulk
	})
	return nil
}

// serveControl serves a control-class connection: each stream is a link to this node as leader.
func (d *daemon) serveControl(ctx context.Context, conn *endpoint.Conn) {
	if d.leader == nil {
		why := "this node does not vote"
		if st, votes := d.standing(); votes {
			why = "this node's voter " + st.String()
		}
		conn.Refuse(endpoint.CodeNoClass, clip(why, maxRefusal))
		return
	}
	var links sync.WaitGroup
	defer links.Wait()
	for {
		s, err := conn.Accept(ctx)
		if err != nil {
			return
		}
		links.Go(func() { d.leader.Serve(ctx, conn.Peer(), s) })
	}
}

// maxRefusal is how much of why a voter does not lead its refusal of a link says, in bytes.
const maxRefusal = 300

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// run runs every part until ctx ends or one fails, then waits for all: the members of the group end with its context, the
// host before the leader and the endpoint, so that what it still says finds listeners. They outlive ctx for as long as it takes
// to hand leadership over.
func (d *daemon) run(stop context.Context) error {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(stop))
	defer cancel(nil)
	defer context.AfterFunc(stop, func() {
		d.linger(ctx)
		d.handOver()
		cancel(context.Cause(stop))
	})()
	all := &parts{cancel: cancel, late: d.endsLate}
	start := func(name string, fn func(context.Context) error) { all.start(ctx, name, fn) }
	start("durable", func(ctx context.Context) error {
		d.proves(ctx)
		return nil
	})
	start("disk", d.watchDisk)
	start("former keepers", d.watchFormer)
	start("endpoint", d.endpoint.Run)
	start("sessions", d.sessions.Run)
	start("gossip", d.gossip.Run)
	if d.leader != nil {
		start("leader", func(ctx context.Context) error { d.leader.Run(ctx); return nil })
	}
	start("host", func(ctx context.Context) error { d.host.Run(ctx); return nil })
	start("adoption", d.speak)
	start("certificate", func(ctx context.Context) error {
		(&certificate{id: d.id, log: d.log, gossip: d.gossip}).run(ctx)
		return nil
	})
	start("trust", func(ctx context.Context) error { d.trust.run(ctx); return nil })
	start("prober", func(ctx context.Context) error { d.prober.run(ctx); return nil })
	a := &admin{host: d.host, self: d.self.Name, audit: d.audit, log: d.log, store: d.store, probes: d.prober, base: d.baseStatus, members: func() []membership.Member { return d.gossip.Members() }, version: d.opt.Version, owner: func() uint32 { return uint32(os.Geteuid()) },
		users: func() control.Here {
			return control.Here{Sessions: d.sessions.Users(), MostSessions: d.cfg.PerUser.Sessions, MostRequests: d.cfg.PerUser.Requests}
		}}
	a.voters = d.votersText
	if d.leader != nil {
		a.here = d.leader.BesideHere
	}
	start("admin", func(ctx context.Context) error { return a.serve(ctx, d.admin) })
	all.wait(ctx)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// endsLate has people know what a daemon that was told to end still waits for.
func (d *daemon) endsLate(names []string) {
	d.log.Failed("leaving", strings.Join(names, ", "), fmt.Sprintf("the rest of this daemon ended %v ago, and it waits for this: kill -9 of it loses nothing while its keeper runs, which has the memory; kill -QUIT says what it waits for", endLate))
}

// linger waits, before the daemon ends, for what can't be written to the durable tier without it: for as long as the write moves, and for
// timing.stop_grace at most. Another signal ends the process, and the wait with it.
func (d *daemon) linger(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Timing.StopGrace)
	defer cancel()
	d.host.Leave(ctx, func(why string) {
		d.stays.Store(&why)
		d.log.Note2(nil, "leaving", "this daemon was asked to end: "+why)
	})
}

// handOver gives leadership to another voter before the daemon ends, so that no step waits for the others to miss it. The wait is
// bounded by two election timeouts; a leader without another voter that keeps up ends as it would by a crash.
func (d *daemon) handOver() {
	if d.cons == nil || len(d.cons.Voters()) < 2 {
		return
	}
	if _, _, term, leads := d.cons.Leadership(); leads {
		d.log.HandedOver(term, d.cons.Transfer())
	}
}

// speak waits until adoption is over, then answers probes as itself and links to the leader: until then this node counts as
// silent, because what it would say of its memory would not be true.
func (d *daemon) speak(ctx context.Context) error {
	if err := d.host.AwaitAdoption(ctx); err != nil {
		return nil
	}
	d.endpoint.SetProbeReply(endpoint.ProbeReply{Node: d.self.Name, Incarnation: d.self.Incarnation, Session: d.self.Session, Boot: d.self.Boot})
	d.log.Ready(d.self)
	var served sync.WaitGroup // this node's links to itself
	defer served.Wait()
	hello := func() (control.Hello, bool) {
		running, ok := d.host.Running(ctx)
		return control.Hello{Cluster: d.id.Cluster, Node: d.self, Running: running, Raft: d.raftWord()}, ok
	}
	k := &linker{hello: hello, self: d.raftLeader, moved: d.raftMoved, dial: d.linkDialer(ctx, &served), failed: d.linkFailed, raft: d.raftWord, heard: func(n replica.NodeName, s control.Standing) { d.said.Add(n, s, time.Now()) }}
	k.post = func(ev host.Event) {
		if _, up := ev.(host.LinkUp); up {
			d.ledAgain()
		}
		d.host.Post(ev)
	}
	for _, v := range d.cfg.Voters {
		if v.Name == d.cfg.Node && d.leader == nil && len(d.cfg.Voters) > 1 {
			continue // it does not lead, and status says so: it is no link that fails
		}
		k.voters = append(k.voters, voterAddr{v.Name, v.Addr})
	}
	k.run(ctx)
	return nil
}

// ledAgain forgets what voters said, or failed to say, before a leader answered. A voter that waited to begin votes by now: without a leader once more,
// within StandingKept, it was named as what keeps the others from one.
func (d *daemon) ledAgain() {
	d.unlinked.Clear()
	d.said.Clear()
}

func (d *daemon) raftLeader() (replica.NodeName, string, uint64) {
	if d.cons == nil {
		return "", "", 0
	}
	name, addr, term, _ := d.cons.Leadership()
	return name, addr, term
}

// linkDialer opens control streams to voters. Where the voter is this node, that is a pipe, which is served until ctx ends.
func (d *daemon) linkDialer(ctx context.Context, served *sync.WaitGroup) dialer {
	return func(within context.Context, name replica.NodeName, addr string) (net.Conn, error) {
		if name == d.cfg.Node {
			if d.leader == nil {
				return nil, errors.New("this node's voter did not start")
			}
			near, far := net.Pipe()
			served.Go(func() { d.leader.Serve(ctx, name, far) })
			return near, nil
		}
		return tryEach(within, d.paths.ways(name, addr), func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := d.endpoint.Dial(ctx, addr, name, endpoint.Control)
			if err != nil {
				return nil, err
			}
			s, err := conn.Open(ctx)
			if err != nil {
				conn.Close("no stream")
				return nil, err
			}
			return linkConn{s, conn}, nil
		})
	}
}

// linkFailed says why a voter took no link of this node: in the log each limitEvery, and in status until there is a link.
func (d *daemon) linkFailed(v voterAddr, err error) {
	why := whyNoLink(err, d.cfg.PKI.Cert, d.id.NotAfter(), time.Now())
	d.unlinked.Add(replica.Holder{Node: v.name}, why, time.Now())
	d.log.Retried("link", fmt.Sprintf("voter %s at %s", v.name, v.addr), why)
}

// whyNoLink blames the node's own certificate where it has ended: what a voter says of it is not said to this end.
func whyNoLink(err error, certificate string, notAfter, now time.Time) string {
	if !errors.Is(err, endpoint.ErrIdentity) || !now.After(notAfter) {
		return err.Error()
	}
	return fmt.Sprintf("this node's certificate %s expired at %s: issue another with `replicad pki renew` and copy the node's two files here: %v", certificate, notAfter.Format(time.RFC3339), err)
}

// linkConn closes the connection with its one stream.
type linkConn struct {
	net.Conn
	conn *endpoint.Conn
}

func (c linkConn) Close() error {
	err := c.Conn.Close()
	c.conn.Close("link closed")
	return err
}

func (d *daemon) baseStatus() control.Status {
	s := control.Status{Version: d.opt.Version, Cluster: d.id.Cluster, Node: d.self.Name, Incarnation: d.self.Incarnation, Session: d.self.Session, Jobs: []control.JobStatus{}, Nodes: []control.NodeStatus{},
		NoLink: d.unlinked.Now(time.Now()), Refused: d.refused.Now(time.Now())}
	if why := threads.Warning(); why != "" {
		s.Warnings = append(s.Warnings, why)
	}
	if why := d.stays.Load(); why != nil {
		s.Leaving = *why
	}
	if d.endpoint != nil {
		s.Network.Notes = slices.Concat(d.noted, d.endpoint.Notes())
		s.Network.Sent, s.Network.Received = d.endpoint.Moved()
		s.Network.Paths = d.paths.status()
	}
	s.Certificate, _ = pki.Expires(d.id.NotAfter(), time.Now())
	if err := d.id.OwnRevoked(); err != nil {
		s.Certificate = err.Error()
	}
	s.Revoked, s.PassedOver = revokedStatus(d.id), d.trust.passedOver()
	s.Voters, s.FormerKeepers, s.LogUnwritten = d.votersKnown(), d.formerText(), d.log.Unwritten()
	if d.gossip != nil {
		s.Warnings = append(s.Warnings, d.gossip.Warnings()...)
		s.GossipKeys = gossipKeyStatus(d.id.GossipKeys(), d.cfg.Node, d.gossip.Members())
	}
	if d.cons != nil {
		s.Leader, _, s.Term, s.IsLeader = d.cons.Leadership()
		s.LateMS = d.cons.Late().Milliseconds()
	}
	return s
}

// newestEpoch is the newest that this node has seen of a name's certificates; of its own it sees the one that it presents.
func (d *daemon) newestEpoch(role replica.Role, name string) replica.CertEpoch {
	newest := d.id.Newest(role, name)
	if role == replica.NodeRole && name == string(d.cfg.Node) {
		newest = max(newest, d.id.Epoch())
	}
	return newest
}
