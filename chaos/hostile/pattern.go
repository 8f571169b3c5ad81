package hostile

import (
	"context"
	"slices"
)

// Who misbehaves.
type Who string

// The six, from the one that has nothing to the one that is the daemon's own user.
const (
	Author    Who = "author"    // of a file that is read, or of a store's answers
	Stranger  Who = "stranger"  // on the network, without a certificate of the cluster
	Peer      Who = "peer"      // on the network, with a node's certificate and the gossip key
	Neighbour Who = "neighbour" // on the host, with a user whom nobody named
	Rank      Who = "rank"      // on the host, with a user that may have ranks
	Admin     Who = "admin"     // on the host, with the daemon's own user
)

// budget is what a daemon may need beyond a quarter more than it has idle, in bytes. SECURITY.md says where it comes from.
var budget = map[Who]uint64{
	Author:    16 << 20,  // commands read such files, in processes of their own
	Stranger:  128 << 20, // 256 handshakes a second, each kept for 3 s
	Peer:      160 << 20, // 64 MiB of requests, a frame of 16 MiB, 3,072 streams, and as much again until it is collected
	Neighbour: 32 << 20,  // the kernel keeps it out
	Rank:      96 << 20,  // 1,024 sessions with a buffer of 64 KiB each
	Admin:     64 << 20,  // 256 connections with 64 KiB of header or order each
}

// Pattern is one way to misbehave.
type Pattern struct {
	Name  string `json:"name"`
	Who   Who    `json:"who"`
	Does  string `json:"does"`
	Must  string `json:"must"` // what the daemon has to do about it, beside what it always has to
	Brief bool   `json:"-"`    // one of those that a test runs
	Long  bool   `json:"-"`    // it may last for up to 9 times what others do
	At    place  `json:"-"`

	Most uint64 `json:"-"` // what a daemon may need beyond what it has as the pattern begins, in bytes; 0: a quarter more than idle, and the budget of who misbehaves

	Relinks bool `json:"-"` // a node's daemon is restarted beside it, again and again

	act func(context.Context, *attack) error
}

// place is the node that is attacked.
type place int

const (
	leader   place = iota // the one that leads when the pattern begins
	follower              // another voter
)

// pick takes the named patterns in the table's order; no names: all of them.
func pick(names []string, brief bool) (list []Pattern, unknown []string) {
	for _, n := range names {
		if !slices.ContainsFunc(All, func(p Pattern) bool { return p.Name == n }) {
			unknown = append(unknown, n)
		}
	}
	for _, p := range All {
		if len(names) == 0 && (!brief || p.Brief) || slices.Contains(names, p.Name) {
			list = append(list, p)
		}
	}
	return list, unknown
}

// All is every pattern, in the order in which they are tried.
var All = []Pattern{
	{Name: "nothing", Who: Stranger, Does: "nothing: the control", Must: "what it always does", Brief: true, act: func(ctx context.Context, a *attack) error { a.wait(ctx); return nil }},
	{Name: "udp-garbage", Who: Stranger, Does: "datagrams of random bytes and sizes at the port of the data path", Must: "drop them", Brief: true, act: udpGarbage},
	{Name: "initials-leader", Long: true, Who: Stranger, Does: "150,000 QUIC Initials a second with random connection ids at the leader", Must: "stay the leader", act: initials},
	{Name: "initials-follower", Long: true, Who: Stranger, Does: "the same at a follower", Must: "keep its link and its vote", At: follower, act: initials},
	{Name: "initials-relink", Long: true, Relinks: true, Who: Stranger, Does: "the same at the leader, while a node's daemon is restarted", Must: "take its link within a second more than without", act: initials},
	{Name: "versions", Who: Stranger, Does: "packets of QUIC versions that do not exist", Must: "answer with its own version, no larger than what came", act: versions},
	{Name: "half-open", Who: Stranger, Does: "real first flights of TLS from 2,000 clients that never go on", Must: "forget each within 3 s", act: halfOpen},
	{Name: "lane-silent", Long: true, Who: Stranger, Does: "10,000 TCP connections, 1,024 at once, that say nothing or half a record of TLS", Must: "keep 256, each for 3 s", act: laneSilent},
	{Name: "no-certificate", Who: Stranger, Does: "handshakes without a client certificate", Must: "refuse in the handshake", Brief: true, act: noCertificate},
	{Name: "foreign-ca", Who: Stranger, Does: "handshakes with a node's certificate of another cluster", Must: "refuse in the handshake", Brief: true, act: foreignCA},
	{Name: "expired", Who: Stranger, Does: "handshakes with a certificate of this cluster that has expired", Must: "refuse in the handshake", act: expired},
	{Name: "probe-key", Who: Stranger, Does: "20,000 probes with a wrong key a second", Must: "answer none", act: probeKey},
	{Name: "probe-replay", Who: Stranger, Does: "one recorded probe, again and again", Must: "answer with no more bytes than came", act: probeReplay},
	{Name: "gossip-garbage", Who: Stranger, Does: "datagrams at the gossip port, with and without the cluster's label", Must: "drop them", Brief: true, act: gossipGarbage},
	{Name: "gossip-silent", Long: true, Who: Stranger, Does: "400 TCP connections to the gossip port that say nothing", Must: "hang up within seconds", act: gossipSilent},
	{Name: "gossip-loris", Who: Stranger, Does: "TCP connections that announce 2 GiB or 60 KiB and send a byte at a time", Must: "hang up, and allocate nothing for what is announced", act: gossipLoris},
	{Name: "gossip-bulk", Long: true, Who: Stranger, Most: 32 << 20, Does: "100 TCP connections at once from 25 addresses to the gossip port, each with 1 or 20 MiB of noise that it announces as an encrypted message", Must: "read 8 at a time and 4 MiB in all, hang up on each", act: gossipBulk},
	{Name: "gossip-unkeyed", Who: Stranger, Does: "exchanges of state that are not encrypted", Must: "refuse each, and take nobody in", act: gossipUnkeyed},

	{Name: "alpn", Who: Peer, Does: "connections of a protocol that no daemon speaks", Must: "refuse in the handshake", act: alpn},
	{Name: "connections", Long: true, Who: Peer, Does: "up to 10,000 connections of one node", Must: "keep 48, refuse the others with the limit", act: connections},
	{Name: "lane-many", Long: true, Who: Peer, Does: "up to 10,000 lanes of one node over TCP", Must: "keep 64, refuse the others", act: laneMany},
	{Name: "lane-slow", Long: true, Who: Peer, Does: "64 lanes with requests a byte at a time, of others' parts", Must: "refuse each by name", act: laneSlow},
	{Name: "streams-control", Long: true, Who: Peer, Does: "3,072 streams of the control class that say nothing", Must: "end each after 2 s", Brief: true, act: silentStreams},
	{Name: "streams-bulk", Who: Peer, Does: "3,072 streams of the bulk class that say nothing", Must: "hold no more than the streams", act: silentBulk},
	{Name: "frames", Long: true, Who: Peer, Does: "frames with a wrong magic, version, length or checksum, and cut ones, on links", Must: "hang up on each", act: frames},
	{Name: "cbor", Who: Peer, Does: "hellos that nest 500 deep, announce 2^32 elements, repeat keys, or are no map", Must: "hang up on each", Brief: true, act: cborBombs},
	{Name: "hello-name", Who: Peer, Does: "hellos in the name of another node, and of another cluster", Must: "refuse, and name both", Brief: true, act: helloName},
	{Name: "hello-labels", Who: Peer, Does: "hellos with huge labels, and addresses that are none", Must: "refuse, and name the rule", act: helloLabels},
	{Name: "hello-lives", Who: Peer, Does: "a new incarnation of itself with each of thousands of links", Must: "refuse beyond a pace", act: helloLives},
	{Name: "link-kinds", Who: Peer, Does: "messages of kinds that are none, or are the leader's, on a good link", Must: "hang up on each", act: linkKinds},
	{Name: "link-16m", Who: Peer, Does: "frames of 16 MiB on a good link, whole and all but the last byte", Must: "keep at most the one that is being read", act: linkLarge},
	{Name: "reports", Who: Peer, Does: "reports of jobs, its own and others', as fast as the link takes them", Must: "keep the others' links, and believe none", act: reports},
	{Name: "lies", Who: Peer, Does: "evidence, suspicions, claims, rendezvous words and orders about what is others'", Must: "refuse or ignore each", act: lies},
	{Name: "views", Who: Peer, Does: "asks for the whole state again and again and reads nothing", Must: "hang up once its queue is full", act: views},
	{Name: "bulk-headers", Long: true, Who: Peer, Does: "headers of requests of 64 MiB and 4 GiB, and 4 MiB of each body", Must: "refuse, or hold no more than one peer's 64 MiB", act: bulkHeaders},
	{Name: "bulk-unknown", Who: Peer, Does: "requests for parts, jobs and clusters that there are not, and for others' parts", Must: "refuse each by name", Brief: true, act: bulkUnknown},
	{Name: "bulk-manifests", Who: Peer, Does: "pushes of manifests with absurd sizes, counts, and digests that are not theirs", Must: "refuse each by name", Brief: true, act: bulkManifests},
	{Name: "bulk-garbage", Who: Peer, Does: "random bytes, cut frames and resets on streams of the bulk class", Must: "hang up on each", act: bulkGarbage},
	{Name: "raft-client", Who: Peer, Does: "raft connections of a node that is no voter", Must: "refuse by name", act: raftClient},
	{Name: "raft-garbage", Who: Peer, Does: "random bytes, and lengths of 2 GiB, on raft streams with a voter's certificate", Must: "hang up, and allocate nothing for what is announced", act: raftGarbage},
	{Name: "raft-streams", Who: Peer, Does: "1,000 raft streams of a voter that say nothing", Must: "take those of the other voters", act: raftStreams},

	{Name: "neighbour-socket", Who: Neighbour, Does: "connects to the ranks' socket and hangs up, as fast as it can, four at once", Must: "be out of its reach: `rank_group` has the kernel refuse", act: neighbourSocket},
	{Name: "neighbour-folder", Long: true, Who: Neighbour, Does: "plants a `.replicad-dev` in a shared folder, with links to root's files, where root then uses `--dev`; swaps root's own for such a one where the folder is not sticky", Must: "not be asked; each command refuses, names the planter or the folder, and writes nothing", Brief: true, act: neighbourFolder},
	{Name: "neighbour-daemon", Long: true, Who: Neighbour, Does: "answers where a daemon should, for a launcher and a command of root's", Must: "not be asked; each refuses, names who answers, and sends it nothing", act: neighbourDaemon},

	{Name: "file-bombs", Long: true, Who: Author, Does: "`ckpt import` of a DCP folder whose metadata of 1 MB asks for 18 million pieces, and of a safetensors header of 95 MB", Must: "not be asked; the command refuses within 384 MiB", act: fileBombs},
	{Name: "store-answers", Long: true, Who: Author, Does: "`ckpt ls` of a store with a key, a page and tags without end, and an empty page that more follow", Must: "not be asked; the command refuses within 384 MiB", act: storeAnswers},

	{Name: "rank-silent", Long: true, Who: Rank, Does: "1,000 connections that say nothing", Must: "hang up after 5 s, let a rank in meanwhile", act: rankSilent},
	{Name: "rank-messages", Who: Rank, Does: "malformed, oversized and misplaced messages, and descriptors nobody asked for", Must: "refuse each with the reason", Brief: true, act: rankMessages},
	{Name: "rank-arenas", Who: Rank, Does: "arenas that are no memfd, not sealed, too short, or have absurd counts", Must: "refuse each with the reason", Brief: true, act: rankArenas},
	{Name: "rank-token", Who: Rank, Does: "hellos without the job's token, or with another job's", Must: "refuse each with the remedy", act: rankToken},
	{Name: "rank-regions", Long: true, Who: Rank, Does: "65,536 regions, absurd shapes, and names that are no text", Must: "refuse each with the reason", act: rankRegions},
	{Name: "rank-scribble", Long: true, Who: Rank, Does: "attaches, then writes random words all over its own arena", Must: "judge it alone", act: rankScribble},
	{Name: "rank-dies", Long: true, Who: Rank, Does: "attaches and dies, again and again", Must: "give its job up within the budget, and its memory back", act: rankDies},
	{Name: "rank-rendezvous", Long: true, Who: Rank, Does: "words of 64 MiB in all at the rendezvous of its own job", Must: "refuse beyond the cap", act: rankRendezvous},
	{Name: "rank-launchers", Who: Rank, Does: "launchers with absurd worlds, capacities and names", Must: "refuse each with the reason", act: rankLaunchers},
	{Name: "rank-unread", Who: Rank, Does: "asks and never reads the answers", Must: "hang up once its queue is full", act: rankUnread},
	{Name: "rank-seats", Who: Rank, Does: "a job of 8,000 ranks, and a launcher that offers 8,000 processes and starts none", Must: "believe what a node could hold, ask bit by bit", Brief: true, At: follower, act: seats},
	{Name: "rank-seats-leader", Who: Rank, Does: "the same at the leader", Must: "lead on", act: seats},
	{Name: "rank-absent", Who: Rank, Does: "asks for keys that are not there, as fast as it can", Must: "ask the leader at a pace, keep one question", At: follower, act: rankAbsent},
	{Name: "rank-ahead", Who: Rank, Does: "words of 6 MiB in all in epochs to come", Must: "refuse all beyond the next", Brief: true, act: rankAhead},
	{Name: "rank-jobs", Who: Rank, Does: "creates jobs until it may not", Must: "refuse beyond 64, with the number", Brief: true, act: manyJobs},
	{Name: "rank-sessions", Who: Rank, Does: "1,030 sessions of one user", Must: "take 893 or more, which is 896 less the training job's launcher and two ranks; refuse beyond 896, with the number", Brief: true, act: manySessions},

	{Name: "admin-idle", Long: true, Who: Admin, Does: "500 connections to the admin socket, half of them after one answer", Must: "hang up on them, and serve others meanwhile", act: adminIdle},
	{Name: "admin-loris", Long: true, Who: Admin, Does: "headers and bodies a byte at a time", Must: "hang up within seconds", act: adminLoris},
	{Name: "admin-body", Who: Admin, Does: "an order of 1 GiB, announced and in chunks", Must: "refuse after 64 KiB", act: adminBody},
	{Name: "admin-orders", Who: Admin, Does: "orders that are no JSON, no order, or of others' matters without a signature", Must: "refuse each with the reason", Brief: true, act: adminOrders},
	{Name: "keeper", Long: true, Who: Admin, Does: "junk, silence and descriptors at the keeper's socket", Must: "keep the daemon's memory", act: keeper},
}
