// Package config is the daemon's configuration: a YAML file read strictly into one struct, defaults, and a validation that
// reports every fault at once, each with the field, the value, what is wanted and the harm of a bad one.
//
// Nothing here opens a socket or looks at the machine, except that Load reads one file and Dev makes one directory. A Config
// is plain data: WithDefaults returns a copy and never changes its receiver. It imports replica and the YAML library and
// must not import any other package of this module.
package config

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/replicad/replicad/replica"
)

// Config is one daemon's configuration. Fields without "default" must be set. Relative paths in a file count from the file's folder.
type Config struct {
	// Node names this node: 1 to 63 of a-z 0-9 - _ . It is in the node's certificate; two nodes of one name would be taken for one.
	Node replica.NodeName `yaml:"node"`
	// Addr is the host:port (UDP, and TCP for state) under which the other nodes reach this node. A wildcard host can't be dialled. Where TCP does
	// not get through, state moves over UDP, at a third of the speed.
	Addr string `yaml:"addr"`
	// Addrs are further addresses of this node, on the port of Addr, at most 8: an IP address, a network such as 10.1.0.0/16, which stands for all
	// addresses of this host in it, or the name of an interface. They are looked up when the daemon starts; one that is not there then counts after the
	// next start. State moves over all that answer, and a node is lost only where none does. Each should lie in a subnet of its own: within one, the
	// kernel answers from whichever it likes. The daemon then listens on all addresses of the host unless Listen says otherwise. Default: none.
	Addrs []string `yaml:"addrs,omitempty"`
	// GossipAddr is the host:port (UDP and TCP) of gossip; it must differ from Addr.
	GossipAddr string `yaml:"gossip_addr"`
	// Listen is the host:port (UDP and TCP) on which this node listens, where it is not Addr: behind a NAT or a published port of a container.
	// What arrives at Addr must be forwarded to it, and the other nodes must see its packets come from Addr. A wildcard host is allowed, and with
	// Addrs wanted. Default: Addr; with Addrs all addresses of the host.
	Listen string `yaml:"listen,omitempty"`
	// GossipListen is for GossipAddr (UDP and TCP) what Listen is for Addr. Default: GossipAddr.
	GossipListen string `yaml:"gossip_listen,omitempty"`

	// Socket is the unix socket of local ranks and launchers. Default: run/ranks.sock in StateDir. At most 107 bytes.
	Socket string `yaml:"socket,omitempty"`
	// AdminSocket is the unix socket of `replicad status` and `replicad job`. Default: run/admin.sock in StateDir.
	AdminSocket string `yaml:"admin_socket,omitempty"`
	// KeeperSocket is the unix socket of the keeper, which holds the arenas while the daemon is away. Default: run/keeper.sock in StateDir.
	// A different one after an upgrade means a different keeper: the warm mirrors stay with the old one.
	KeeperSocket string `yaml:"keeper_socket,omitempty"`

	// StateDir holds the Raft log and the list of arenas; local disk, never a network file system or one shared between nodes.
	StateDir string `yaml:"state_dir"`
	// DurableDir holds the durable tier and must be the same file system on all nodes. It may be mounted or moved while daemons run: what is no
	// longer at the path counts as not written, and an empty mount point is refused. Where it is set, jobs write to it unless their launchers say otherwise (--durable-every). Default: durable in StateDir, which suits one node only (`replicad config check` warns).
	DurableDir string `yaml:"durable_dir,omitempty"`
	// Durable is a URL in place of DurableDir: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX (Google Cloud Storage), az://CONTAINER/PREFIX (Azure Blob
	// Storage), or file:///DIRECTORY, which is the same as DurableDir. The same on all nodes. A store
	// that does not answer keeps no daemon from starting: it is tried again. Another one than before: jobs resume from nothing that lies in the former.
	Durable string `yaml:"durable,omitempty"`
	// Store says of a bucket's URL what it does not say itself. Never a key or a token: `replicad` takes those from Credentials or the environment.
	Store Store `yaml:"store,omitempty"`

	// DurableRecipients are to whom daemons encrypt what says something of the model before it leaves them, at most 32: age1... or age1pq1..., as
	// age-keygen prints them. The same on all nodes. Sizes, metrics and notes stay readable. Default: none; nothing is encrypted. With another list
	// than before, former generations are opened by their own keys.
	DurableRecipients []string `yaml:"durable_recipients,omitempty"`
	// DurableIdentities is a file, mode 0600, with the keys, one a line: of one of DurableRecipients, and of what is to be resumed from. A daemon reads it
	// when it starts. Default: none.
	DurableIdentities string `yaml:"durable_identities,omitempty"`
	// DurableIdentitiesCommand is a program with its arguments in place of DurableIdentities, which prints the keys within 30 s. A daemon runs it when it
	// starts. Default: none.
	DurableIdentitiesCommand []string `yaml:"durable_identities_command,omitempty"`

	// SpoolDir holds parts of durable writes between memory and DurableDir, so that a slow or hanging DurableDir keeps no slot from training: a directory
	// on a local disk, whose files go with each write. What a daemon's death leaves is finished by a resume within a day. Nodes may share one. Default: spool in StateDir; "none": a write
	// reads its slot until DurableDir has all of it, and is skipped once a commit has lacked the slot for 2 s or 10 steps.
	SpoolDir string `yaml:"spool_dir,omitempty"`
	// SpoolMost bounds what lies in SpoolDir; 0 or 1MiB to 1024TiB, default 0, which is as much as leaves a tenth of its file system free. A part that is
	// larger goes as without a spool; what former writes have the room for is skipped, and reported.
	SpoolMost Bytes `yaml:"spool_most,omitempty"`
	// SpoolMemory bounds copies in host memory that are made where SpoolDir has no room for a part at all; 0 or 1MiB to 64TiB, default 0, which is none.
	// `replicad plan memory --spool-memory` counts them. Too large: the kernel kills processes.
	SpoolMemory Bytes `yaml:"spool_memory,omitempty"`

	// PKI names the files made by `replicad pki init`.
	PKI PKI `yaml:"pki"`

	// Voters are the nodes that keep the Raft log: 1, 3 or 5, the same list on every node. A node that is not among them is a client of theirs.
	Voters []Voter `yaml:"voters"`
	// Seeds are gossip addresses (host:port) asked for the others at start and after a partition; needed as soon as there are two nodes.
	Seeds []string `yaml:"seeds"`
	// Labels name the node's failure domains ("host", "rack", "zone"). Without them mirrors are spread over nodes alone, so that
	// one rack may hold every copy of a part.
	Labels map[string]string `yaml:"labels"`

	// RankUsers are the users, by name or number, whose processes may be ranks and launchers here, besides the daemon's own and root. Each reaches
	// the jobs that it created itself, as who the kernel says that it is. The socket, which RankGroup then opens to them, must lie outside of StateDir, which is closed. Default: none; the socket's mode (0600) keeps all others out.
	RankUsers []string `yaml:"rank_users,omitempty"`
	// RankGroup is the group, by name or number, that the socket of ranks is given (0660) where RankUsers names some: the kernel then keeps everybody else from
	// connecting, so that no stranger fills its queue. Default: a group that has all of RankUsers and that the daemon may give; where there is none, and with "none",
	// every user of the node may connect (0666) and is refused behind that. A process of a rank user that was started without the group, as containers do, can't connect.
	RankGroup string `yaml:"rank_group,omitempty"`
	// DaemonUser is the user, by name or number, that the daemon of this node runs as, where that is neither root nor the user of whoever asks it: launchers,
	// ranks and commands believe no other one that answers on its sockets. It counts only in a file of root or of the one who reads it. Default: none.
	DaemonUser string   `yaml:"daemon_user,omitempty"`
	daemons    []uint32 // of DaemonUser, where the file's owner may say it
	// JobSecret, 16 to 256 printable bytes and the same on all nodes, is what the tokens of jobs are made from (JobToken): ranks and launchers must
	// show their job's. Whoever can read it can make all of them, so a file that holds it must have mode 0600. Default: none; a process of a job's user then needs no token.
	JobSecret string `yaml:"job_secret,omitempty"`
	// PerUser is what one user may have of what all users share, where this node's daemon or, as the leader's, the cluster is asked for more.
	PerUser PerUser `yaml:"per_user"`
	// MemoryMargin stays free on the host when arenas are reserved, e.g. 512MiB; 16MiB to 1TiB, default 256MiB. Too small: the kernel kills
	// processes when a rank grows; too large: arenas are refused though there was room.
	MemoryMargin Bytes `yaml:"memory_margin"`
	// PlaintextState has state cross the network unencrypted between nodes whose configurations all say so, for a fabric that nobody else can reach:
	// more than twice as fast. Harm: who can read the network reads weights and optimizer state, and who can write to it changes them unseen,
	// since digests find faults and not forgery. Certificates are checked all the same when a connection opens. Default: false.
	PlaintextState bool `yaml:"plaintext_state,omitempty"`
	// DurableKeep says which durable generations of a job stay: how many of the newest that were read back, 1 to 1000, default 3, and those of the
	// others that have not so many good ones above them; or all of that and more, as {last: 3, every: 1000, epochs: true, best: {metric: loss, n: 2, order: min},
	// younger: 7d}. With 1, a shard that goes bad later leaves nothing to fall back to.
	DurableKeep replica.Keep `yaml:"durable_keep"`
	// DurableRate is how many bytes a second this node writes to DurableDir out of its spool, all jobs together; 0 (no bound) or 1MiB to 64GiB, default 0.
	// Too low: a durable write is not through when the next one is due.
	DurableRate Bytes `yaml:"durable_rate,omitempty"`
	// DurableWriters is how many nodes write to the store at once, while this node leads, 1 to 100000, default 64: the others copy their parts into their
	// spools meanwhile. Too many: a store asks all of them to slow down, or fails; too few: a durable write is not through when the next one is due.
	DurableWriters int `yaml:"durable_writers,omitempty"`
	// KeepRuns is of how many former runs of a job's name generations stay on disk, each run by the rule of DurableKeep, 1 to 1000, default 3. A run
	// begins with each start without --resume. The only good generation of a name stays, and so do runs of other clusters. Too many: they fill a disk.
	KeepRuns int `yaml:"keep_runs"`
	// ScrubRate is how many bytes a second of what lies sealed here are read again and held against their digests, so that a flipped bit is found before
	// a recovery needs the copy; 0 (never) or 1MiB to 64GiB, default 64MiB, which takes about 3 per cent of a core. Too high: it takes memory bandwidth
	// from training; never: a bad copy is found only when it is to be loaded or sent, when it may be the last.
	ScrubRate Bytes `yaml:"scrub_rate"`
	// ReadbackRate is how many bytes a second of the durable tier the leader reads back of what was just written, and holds against their digests; 1MiB to
	// 64GiB, default 1GiB. It begins with the commit. Nothing older is deleted before, and the next durable write is put off while two of a run are unread.
	// Too low: durable writes come as seldom as they can be read; too high: it takes the disk and the network from training on the leader's node.
	ReadbackRate Bytes `yaml:"readback_rate"`
	// RereadRate is how many bytes a second of the durable tier the leader reads again and holds against their digests, each generation
	// each RereadEvery; 0 (never) or 1MiB to 64GiB, default 64MiB. Too high: it takes the disk from durable writes and from other
	// users of it; never: what rots on the disk later is found out when it is the last resort.
	RereadRate Bytes `yaml:"reread_rate"`
	// RereadEvery is how long after a generation was read it is read again, 1m to 8760h, default 168h. Too short: it reads all the time; too long: a
	// disk has longer to lose both of two generations.
	RereadEvery time.Duration `yaml:"reread_every"`
	// DonorRate is how many bytes of state may leave this node, and come in to be mirrored, in a second while ranks train here: auto, which is as many as these do not feel by the times of
	// their steps; 16MiB to 64GiB; or unlimited. Default auto. Where none trains nothing is held back. Each transfer moves 32 MiB a second at least, and what
	// brings it through in 30 seconds, in 10 for a job that stands still; where lost copies are made again 8 MiB, and 5 minutes. Too low: recoveries beside
	// training and commits take long; unlimited: training slows down beside them.
	DonorRate DonorRate `yaml:"donor_rate"`

	Log    Log    `yaml:"log"`
	Timing Timing `yaml:"timing"`
	Raft   Raft   `yaml:"raft"`
}

// PerUser limits each user alone: who asks for more is refused with the number, or waits, and nobody else notices. The leader's file counts for
// jobs, ranks and rendezvous, so that voters should have the same.
type PerUser struct {
	// Sessions are connections of ranks and launchers to this node's daemon, which takes 1,024: 8 to 1024, default 896.
	Sessions int `yaml:"sessions"`
	// Requests are what this node's daemon asks the leader for the user's processes in a tenth of a second: questions at the rendezvous, claims of ranks, jobs to be
	// created. Further ones wait. 256 to 65536, default 1024, which is one for each process that a node has.
	Requests int `yaml:"requests"`
	// Jobs that have not ended, of the cluster's 256: 1 to 256, default 64.
	Jobs int `yaml:"jobs"`
	// Ranks of these jobs' worlds together, 1 to 1048576, default 32768, which is an eighth of what the cluster's state has room for.
	Ranks int `yaml:"ranks"`
	// Rendezvous is what keys, values and waiting processes of all these jobs take of the leader's memory: 1MiB to 1GiB, default 64MiB. A job has
	// some room for itself besides, so that its recovery goes on though its user's other jobs take all of that.
	Rendezvous Bytes `yaml:"rendezvous"`
}

// PKI names the files that are this node's identity.
type PKI struct {
	CA        string `yaml:"ca"`         // the cluster's CA certificate (ca.pem)
	Cert      string `yaml:"cert"`       // this node's certificate (<node>.pem)
	Key       string `yaml:"key"`        // its private key (<node>-key.pem), mode 0600
	GossipKey string `yaml:"gossip_key"` // the cluster's gossip key (gossip.key), mode 0600

	// Operator is an operator's certificate (operator.pem), with which `replicad node`, `voter` and `job` sign orders where their user may
	// read it and its key, operator-key.pem beside it. Default: none; an order may concern this node alone then. No daemon reads it.
	Operator string `yaml:"operator,omitempty"`
}

// Store is where the server of a bucket is, and how it is spoken to. docs/stores.md has a table. Region, Addressing and Checksum are for s3:// alone.
type Store struct {
	// Endpoint of a server that is not the vendor's: http://HOST:PORT or https://HOST; of az:// with the account, https://ACCOUNT.blob.core.windows.net.
	// Default: what the environment says as the vendor's own tools read it, or the vendor's.
	Endpoint string `yaml:"endpoint,omitempty"`
	// Region of the bucket. Default: AWS_REGION, AWS_DEFAULT_REGION, or us-east-1. The server refuses a wrong one.
	Region string `yaml:"region,omitempty"`
	// Addressing is path or virtual. Default: path with an Endpoint, virtual without.
	Addressing string `yaml:"addressing,omitempty"`
	// Checksum is sha256, md5 or none. Default: sha256. None: a byte that the network changes is found when the checkpoint is read.
	Checksum string `yaml:"checksum,omitempty"`
	// Credentials is a file, mode 0600: of s3:// as ~/.aws/credentials, of gs:// as GOOGLE_APPLICATION_CREDENTIALS names one, of az:// with a connection
	// string. Default: the vendor's variables and files, or the machine's role.
	Credentials string `yaml:"credentials,omitempty"`
	// Key has the server encrypt what daemons write: of s3:// the id, ARN or alias of a key of KMS, of gs:// a key's whole name, of az:// an encryption scope.
	// Default: as the bucket says.
	Key string `yaml:"kms_key,omitempty"`
	// Conditions is none for a server that ignores the conditions of a put, which daemons refuse otherwise. Fleets then exclude each other by what the
	// server lists: one whose lists lag has two fleets that resume a run at once overwrite each other's checkpoints. The same on all nodes, and in all clusters
	// that use the bucket. Default: they are tried when the daemon starts.
	Conditions string `yaml:"conditions,omitempty"`
}

// Voter is a node that keeps the Raft log.
type Voter struct {
	Name replica.NodeName `yaml:"name"`
	Addr string           `yaml:"addr"` // its `addr`
}

// Log says what the daemon writes to stderr, as JSON lines.
type Log struct {
	// Level is debug, info, warn or error; default info. At debug every report is a line: megabytes a minute. Above info the recovery timeline is lost.
	Level string `yaml:"level"`
	// Commits has each commit be a line at info, for programs that follow a job by the log; gigabytes a day. Default: one line each 10 seconds.
	Commits bool `yaml:"commits,omitempty"`
	// PerMinute is how many bytes a minute the log takes, besides those of commits: 64KiB to 1GiB, default 1MiB. Lines that do not fit are left
	// out, and their number is one line. At debug there is no limit.
	PerMinute Bytes `yaml:"per_minute"`
}

// The limits of Log.PerMinute.
const (
	MinLogPerMinute = 64 << 10
	MaxLogPerMinute = 1 << 30
)

// Timing holds the protocol's delays. None of them decides safety: a bad value costs time or starts needless recoveries.
type Timing struct {
	// Collect gathers faults that belong together before a plan is made: 1ms to 5s, default 50ms.
	Collect time.Duration `yaml:"collect"`
	// Settle is what a rank gets to finish an optimizer window or a copy after a fence: 100ms to 10m, default 30s.
	Settle time.Duration `yaml:"settle"`
	// Ack is how long a plan waits for a daemon's acknowledgement before that is a fault: DaemonGrace to 10m, default 10s.
	Ack time.Duration `yaml:"ack"`
	// Claim is how long a lost rank's own node has to claim it before a spare may: 100ms to 10m, default 15s.
	Claim time.Duration `yaml:"claim"`
	// Start is how long the process of a rank may take to attach (interpreter, imports, model), and from then on to come to rest while no more of
	// its arena is mapped, before it is killed and started again: 1s to 24h, default 10m. The time in which it waits for others at the rendezvous does
	// not count.
	Start time.Duration `yaml:"start"`
	// HolderGrace is how long a plan that would lose a committed step or read disk waits for holders not proved dead: 1s to 24h, default 60s.
	HolderGrace time.Duration `yaml:"holder_grace"`
	// ResumeGrace is how long Resume waits for the copies it owes before it goes on degraded: 100ms to 10m, default 10s.
	ResumeGrace time.Duration `yaml:"resume_grace"`
	// DaemonGrace is how long a node is merely unobserved, and keeps the parts it mirrors, whose daemon is down on a live host, or that is
	// silent before a step's time is known: 1s to 10m, default 10s.
	DaemonGrace time.Duration `yaml:"daemon_grace"`
	// StallAlarm is how long a node may hold commits up before it is alarmed: 1s to 24h, default 60s.
	StallAlarm time.Duration `yaml:"stall_alarm"`
	// HangFactor times the longest of a rank's last eight steps is how long it may stand still: 2 to 1000, default 10.
	HangFactor int `yaml:"hang_factor"`
	// HangLeast is how long a rank may stand still at least: 1s to 24h, default 60s.
	HangLeast time.Duration `yaml:"hang_least"`
	// HangFirst is how long it may until it has made two steps in an epoch: HangLeast to 24h, default 30m.
	HangFirst time.Duration `yaml:"hang_first"`
	// Abandoned is how long a job stays that was never opened and has no launcher left, or that was stopped (replicad job stop): 1m to 720h, default 10m.
	Abandoned time.Duration `yaml:"abandoned"`
	// StopGrace is how long a daemon that gets SIGTERM stays at most for what can't be written to the durable tier without it, as long as that write
	// moves: 1s to 24h, default 60s. The service manager must wait for longer (TimeoutStopSec, terminationGracePeriodSeconds).
	StopGrace time.Duration `yaml:"stop_grace"`
	// ProbeInterval is the time between probes of a peer's data path: 10ms to 10s, default 200ms; at least a second while no job is there.
	ProbeInterval time.Duration `yaml:"probe_interval"`
	// SilentAfter is how long probes must go unanswered before a node counts as silent: 3 x ProbeInterval to 60s, default 1s. One whose host
	// answers is unobserved, and one whose ranks train is dead only once their job has stood still for as long, and for one and a half steps.
	SilentAfter time.Duration `yaml:"silent_after"`
}

// Raft holds Raft's timings. Lease <= Heartbeat <= Election is the library's own rule.
type Raft struct {
	// Heartbeat is how long a follower goes without hearing from the leader before it stands for election: 20ms to 60s, default 400ms.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// Election is how long a candidate waits for votes: Heartbeat to 60s, default 400ms.
	Election time.Duration `yaml:"election"`
	// Lease is how long a leader leads without hearing from a majority: 10ms to Heartbeat, default 400ms.
	Lease time.Duration `yaml:"lease"`
	// Watchdog is how long a call of the log store may take before the leader hands over: Election to 60s, default 2s.
	Watchdog time.Duration `yaml:"watchdog"`
}

// Default returns what a Config has where nothing is set. Paths that depend on StateDir are WithDefaults' to fill in.
func Default() Config {
	return Config{
		PerUser:        PerUser{Sessions: 896, Requests: 1024, Jobs: 64, Ranks: 1 << 15, Rendezvous: 64 << 20},
		MemoryMargin:   256 << 20,
		DurableKeep:    replica.Keep{Last: 3},
		DurableWriters: DefaultDurableWriters,
		KeepRuns:       3,
		ScrubRate:      64 << 20,
		ReadbackRate:   1 << 30,
		RereadRate:     64 << 20,
		RereadEvery:    7 * 24 * time.Hour,
		DonorRate:      Auto,
		Log:            Log{Level: "info", PerMinute: 1 << 20},
		Timing: Timing{
			Collect: 50 * time.Millisecond, Settle: 30 * time.Second, Ack: 10 * time.Second, Claim: 15 * time.Second, Start: 10 * time.Minute,
			HolderGrace: 60 * time.Second, ResumeGrace: 10 * time.Second, DaemonGrace: 10 * time.Second, StallAlarm: 60 * time.Second,
			ProbeInterval: 200 * time.Millisecond, SilentAfter: time.Second,
			HangFactor: 10, HangLeast: time.Minute, HangFirst: 30 * time.Minute, Abandoned: 10 * time.Minute, StopGrace: time.Minute,
		},
		Raft: Raft{Heartbeat: 400 * time.Millisecond, Election: 400 * time.Millisecond, Lease: 400 * time.Millisecond, Watchdog: 2 * time.Second},
	}
}

// DefaultDurableWriters is how many nodes write a durable generation at once.
const DefaultDurableWriters = 64

// WithDefaults returns a copy in which zero fields have their defaults. It is for configurations made by programs; Load tells a zero
// that a file has from a field that it leaves out.
func (c Config) WithDefaults() *Config {
	out, d := c, Default()
	out.Addrs, out.Voters, out.Seeds, out.Labels = slices.Clone(c.Addrs), slices.Clone(c.Voters), slices.Clone(c.Seeds), maps.Clone(c.Labels)
	out.DurableRecipients, out.DurableIdentitiesCommand = slices.Clone(c.DurableRecipients), slices.Clone(c.DurableIdentitiesCommand)
	setDefault(&out.PerUser.Sessions, d.PerUser.Sessions)
	setDefault(&out.PerUser.Requests, d.PerUser.Requests)
	setDefault(&out.PerUser.Jobs, d.PerUser.Jobs)
	setDefault(&out.PerUser.Ranks, d.PerUser.Ranks)
	setDefault(&out.PerUser.Rendezvous, d.PerUser.Rendezvous)
	setDefault(&out.MemoryMargin, d.MemoryMargin)
	setDefault(&out.DurableKeep, d.DurableKeep)
	setDefault(&out.DurableWriters, d.DurableWriters)
	setDefault(&out.KeepRuns, d.KeepRuns)
	setDefault(&out.ScrubRate, d.ScrubRate)
	setDefault(&out.ReadbackRate, d.ReadbackRate)
	setDefault(&out.RereadRate, d.RereadRate)
	setDefault(&out.RereadEvery, d.RereadEvery)
	setDefault(&out.DonorRate, d.DonorRate)
	setDefault(&out.Log.Level, d.Log.Level)
	setDefault(&out.Log.PerMinute, d.Log.PerMinute)
	setDefault(&out.Timing.HangFactor, d.Timing.HangFactor)
	for i, f := range out.Timing.fields() {
		setDefault(f, *d.Timing.fields()[i])
	}
	for i, f := range out.Raft.fields() {
		setDefault(f, *d.Raft.fields()[i])
	}
	out.fillPaths()
	return &out
}

// optionalPath is a path whose default lies in StateDir.
type optionalPath struct {
	field string
	path  *string
	below []string
}

func (c *Config) optionalPaths() []optionalPath {
	return []optionalPath{{"socket", &c.Socket, []string{"run", "ranks.sock"}}, {"admin_socket", &c.AdminSocket, []string{"run", "admin.sock"}},
		{"keeper_socket", &c.KeeperSocket, []string{"run", "keeper.sock"}}, {"durable_dir", &c.DurableDir, []string{"durable"}}, {"spool_dir", &c.SpoolDir, []string{"spool"}}}
}

func (c *Config) fillPaths() {
	if dir, ok := strings.CutPrefix(c.Durable, "file://"); ok && c.DurableDir == "" {
		c.DurableDir = dir
	}
	for _, f := range c.optionalPaths() {
		if c.StateDir != "" && !(f.field == "durable_dir" && c.InBucket()) {
			setDefault(f.path, filepath.Join(append([]string{c.StateDir}, f.below...)...))
		}
	}
}

// InBucket tells whether the durable tier is a bucket, and no directory.
func (c *Config) InBucket() bool {
	return slices.ContainsFunc(bucketSchemes, func(s string) bool { return strings.HasPrefix(c.Durable, s) })
}

var bucketSchemes = []string{"s3://", "gs://", "az://"}

// NoConditions is Store.Conditions of a server that ignores them.
const NoConditions = "none"

// NoSpool is a SpoolDir that is none.
const NoSpool = "none"

// HasTier tells whether the configuration names a durable tier: where it is the default, below StateDir, nobody has asked for one.
func (c *Config) HasTier() bool {
	return c.InBucket() || c.DurableDir != "" && c.DurableDir != filepath.Join(c.StateDir, "durable")
}

// ListenAddr is the host:port (UDP) to bind.
func (c *Config) ListenAddr() string {
	if _, port, err := splitAddr(c.Addr); c.Listen == "" && len(c.Addrs) > 0 && err == nil {
		return net.JoinHostPort(netip.IPv4Unspecified().String(), strconv.Itoa(int(port))) // Go binds IPv6 with it
	}
	return cmp.Or(c.Listen, c.Addr)
}

// GossipListenAddr is the host:port (UDP and TCP) to bind for gossip.
func (c *Config) GossipListenAddr() string { return cmp.Or(c.GossipListen, c.GossipAddr) }

// Host is the host part of Addr: where this node's ranks bind their own sockets. Empty if Addr is malformed.
func (c *Config) Host() string {
	host, _, err := splitAddr(c.Addr)
	if err != nil {
		return ""
	}
	return host
}

// IsVoter tells whether this node is among the voters.
func (c *Config) IsVoter() bool {
	return slices.ContainsFunc(c.Voters, func(v Voter) bool { return v.Name == c.Node })
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (t *Timing) fields() []*time.Duration {
	return []*time.Duration{&t.Collect, &t.Settle, &t.Ack, &t.Claim, &t.Start, &t.HolderGrace, &t.ResumeGrace, &t.DaemonGrace, &t.StallAlarm, &t.ProbeInterval, &t.SilentAfter, &t.HangLeast, &t.HangFirst, &t.Abandoned, &t.StopGrace}
}

func (r *Raft) fields() []*time.Duration {
	return []*time.Duration{&r.Heartbeat, &r.Election, &r.Lease, &r.Watchdog}
}
