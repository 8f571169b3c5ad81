package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/replicad/replicad/replica"
)

// Limits of a configuration, and why.
const (
	maxSocketPath                  = 107 // sun_path has 108 bytes, one of them the terminator
	minSecretBytes, maxSecretBytes = 16, 256
	maxRankUsers                   = 256
	maxVoters                      = 5 // more voters make commits slower and protect little more
	maxSeeds                       = 64
	maxInterface                   = 15 // bytes of an interface's name: IFNAMSIZ has 16, one of them the terminator
)

// FieldError says what is wrong with one field.
type FieldError struct {
	Field string // as in the file, e.g. "timing.ack"
	Value string // what was found, quoted where it is text
	Want  string // what is wanted
	Harm  string // what would happen otherwise
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %s: want %s; %s", e.Field, e.Value, e.Want, e.Harm)
}

// Validate reports all faults, joined; each is a *FieldError. The receiver is not changed, so call it after WithDefaults.
func (c *Config) Validate() error {
	v := &faults{}
	c.checkNames(v)
	c.checkAddresses(v)
	c.checkPaths(v)
	c.checkDurable(v)
	c.checkKeys(v)
	c.checkVoters(v)
	c.checkLimits(v)
	c.Timing.check(v)
	c.Raft.check(v)
	return errors.Join(v.list...)
}

// Warnings reports what is allowed and most likely not meant, each a *FieldError. Call it after WithDefaults.
func (c *Config) Warnings() []error {
	v := &faults{}
	rel, err := filepath.Rel(c.StateDir, c.DurableDir)
	if inside := !c.InBucket() && err == nil && rel != ".." && !strings.HasPrefix(rel, "../"); inside && (len(c.Voters) > 1 || !c.IsVoter()) {
		v.add("durable_dir", c.DurableDir, "a directory on one file system that all nodes mount, not one below state_dir, which is this node's own",
			"shards and commit marker land in different places, so that no durable generation is ever complete, and a loss of all memory is the end of the job")
	}
	if keys := c.DurableIdentities != "" || len(c.DurableIdentitiesCommand) > 0; keys && len(c.DurableRecipients) == 0 {
		v.add("durable_recipients", "none", "the recipients beside their keys", "generations that are encrypted are read, and what is written is not encrypted")
	}
	if c.PlaintextState {
		v.add("plaintext_state", "true", "false, unless nobody else can reach this network", "who can read it has the weights, and who can write to it changes them unseen")
	}
	return v.list
}

type faults struct{ list []error }

func (f *faults) add(field, value, want, harm string) {
	f.list = append(f.list, &FieldError{field, value, want, harm})
}

func (c *Config) checkNames(v *faults) {
	if err := replica.CheckName(string(c.Node)); err != nil {
		v.add("node", strconv.Quote(string(c.Node)), "1 to 63 of a-z, 0-9 and, inside, - _ .", "the name is in the node's certificate and in file names, and other nodes know it by it")
	}
	if n := len(c.JobSecret); n > 0 && (n < minSecretBytes || n > maxSecretBytes || strings.ContainsFunc(c.JobSecret, func(r rune) bool { return r <= ' ' || r > '~' })) {
		v.add("job_secret", fmt.Sprintf("%d bytes (not shown)", n), fmt.Sprintf("%d to %d printable ASCII characters without blanks", minSecretBytes, maxSecretBytes), "the tokens of all jobs are made from it, so a user who guesses it has them all")
	}
	if len(c.RankUsers) > maxRankUsers || slices.Contains(c.RankUsers, "") {
		v.add("rank_users", fmt.Sprintf("%d users", len(c.RankUsers)), fmt.Sprintf("at most %d names or numbers, none of them empty", maxRankUsers), "an empty name lets no user in, and no message would say so")
	}
	if c.RankGroup != "" && len(c.RankUsers) == 0 {
		v.add("rank_group", strconv.Quote(c.RankGroup), "none without rank_users", "the socket is the daemon's user's alone, and no group would reach it: name the users of the group in rank_users")
	}
	if len(c.Labels) > replica.MaxLabels {
		v.add("labels", fmt.Sprintf("%d labels", len(c.Labels)), fmt.Sprintf("at most %d", replica.MaxLabels), "the Raft log holds every node's labels")
	}
	for _, key := range sortedKeys(c.Labels) {
		if !goodLabel(key, c.Labels[key]) {
			v.add("labels."+key, strconv.Quote(c.Labels[key]), fmt.Sprintf("a key of 1 to 63 of a-z 0-9 - _ . and a value of 1 to %d printable bytes", replica.MaxLabelBytes), "a failure domain that can't be told apart does not spread copies")
		}
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		v.add("log.level", strconv.Quote(c.Log.Level), "debug, info, warn or error", "with another word it would be unclear what is left out of the log")
	}
	v.perUser(c.PerUser)
	if c.Log.PerMinute < MinLogPerMinute || c.Log.PerMinute > MaxLogPerMinute {
		v.add("log.per_minute", c.Log.PerMinute.String(), "64KiB to 1GiB", "with less the log would not tell of a recovery, with more it fills the disk of state_dir within hours")
	}
}

func goodLabel(key, value string) bool {
	return replica.CheckName(key) == nil && value != "" && replica.Line(value, replica.MaxLabelBytes) == value
}

// CheckNode holds what a node registers against what its own configuration had to be.
func CheckNode(n replica.Node) error {
	if err := replica.CheckName(string(n.Name)); err != nil {
		return err
	}
	if _, _, err := splitAddr(n.Addr); err != nil {
		return fmt.Errorf("addr %.80q: want %w", n.Addr, err)
	}
	if len(n.Addrs) > replica.MaxAddrs {
		return fmt.Errorf("%d further addresses: want at most %d", len(n.Addrs), replica.MaxAddrs)
	}
	for _, a := range n.Addrs {
		if _, _, err := splitAddr(a); err != nil {
			return fmt.Errorf("further address %.80q: want %w", a, err)
		}
	}
	if len(n.Labels) > replica.MaxLabels {
		return fmt.Errorf("%d labels: want at most %d", len(n.Labels), replica.MaxLabels)
	}
	for _, key := range sortedKeys(n.Labels) {
		if !goodLabel(key, n.Labels[key]) {
			return fmt.Errorf("label %.80q: %.80q: want a key of 1 to 63 of a-z 0-9 - _ . and a value of 1 to %d printable bytes", key, n.Labels[key], replica.MaxLabelBytes)
		}
	}
	return nil
}

func (c *Config) checkAddresses(v *faults) {
	dialled := "other nodes dial it, so it must name this host on the cluster's network"
	checkAddr(v, "addr", c.Addr, dialled)
	checkAddr(v, "gossip_addr", c.GossipAddr, dialled)
	if c.Addr != "" && c.Addr == c.GossipAddr {
		v.add("gossip_addr", strconv.Quote(c.GossipAddr), "another port than addr's", "both listen on UDP, so the second one to start would find its port in use")
	}
	if c.Listen != "" {
		checkListen(v, "listen", c.Listen)
	}
	if c.GossipListen != "" {
		checkListen(v, "gossip_listen", c.GossipListen)
	}
	c.checkAddrs(v)
	if (c.Listen != "" || c.GossipListen != "" || len(c.Addrs) > 0) && overlap(c.ListenAddr(), c.GossipListenAddr()) {
		v.add("gossip_listen", strconv.Quote(c.GossipListenAddr()), "another port than "+strconv.Quote(c.ListenAddr())+", on which this node listens for the other nodes",
			"both listen on UDP, so the second one to start would find its port in use")
	}
	if len(c.Seeds) > maxSeeds {
		v.add("seeds", fmt.Sprintf("%d seeds", len(c.Seeds)), fmt.Sprintf("at most %d", maxSeeds), "every one is asked again and again after a partition")
	}
	for i, s := range c.Seeds {
		checkAddr(v, fmt.Sprintf("seeds[%d]", i), s, "gossip asks it for the other nodes")
	}
	if len(c.Seeds) == 0 && (len(c.Voters) > 1 || len(c.Voters) == 1 && !c.IsVoter()) {
		v.add("seeds", "none", "the gossip_addr of at least one other node, as soon as there are two nodes", "gossip would hear of nobody, so a dead node would be noticed by nobody's evidence but probes, and never rejoined after a partition")
	}
}

// checkDurable looks at the URL of the durable tier. What it may have beside a scheme the daemon that opens it says.
func (c *Config) checkDurable(v *faults) {
	dir, isDir := strings.CutPrefix(c.Durable, "file://")
	scheme, bucket, _ := strings.Cut(c.Durable, "://")
	bucket, _, _ = strings.Cut(bucket, "/")
	switch {
	case c.Durable == "":
		if c.Store != (Store{}) {
			v.add("store", "settings", "none, where durable is no bucket's URL", "nobody would use them")
		}
	case strings.ContainsAny(c.Durable, "@?#"):
		v.add("durable", scheme+"://...", "a URL without user, query and fragment", "whoever reads the file reads keys that are written into it; name a file in store.credentials")
	case isDir && (!filepath.IsAbs(dir) || c.DurableDir != "" && c.DurableDir != dir), c.InBucket() && c.DurableDir != "":
		v.add("durable", c.Durable, "no durable_dir beside it, and a whole path behind file://", "half of a generation would lie in another place")
	case !isDir && (!c.InBucket() || bucket == ""):
		v.add("durable", scheme+"://...", "file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX", "there is nothing to write to")
	}
	if o := c.Store; c.InBucket() && scheme != "s3" && (o.Region != "" || o.Addressing != "" || o.Checksum != "") {
		v.add("store", "region, addressing or checksum", "none of them, where durable is no s3:// URL", "nobody would use them")
	}
	if a := c.Store.Addressing; a != "" && a != "path" && a != "virtual" {
		v.add("store.addressing", a, "path or virtual", "no request would find the bucket")
	}
	if s := c.Store.Conditions; s != "" && s != NoConditions {
		v.add("store.conditions", s, "none, or nothing, which has the server tried", "two fleets could overwrite each other's checkpoints")
	}
	if s := c.Store.Checksum; s != "" && s != "sha256" && s != "md5" && s != "none" {
		v.add("store.checksum", s, "sha256, md5 or none", "no request would be sent")
	}
}

// checkKeys looks at how the durable tier is encrypted. What is no recipient, and whether a key opens it, the daemon says that starts.
func (c *Config) checkKeys(v *faults) {
	keys := c.DurableIdentities != "" || len(c.DurableIdentitiesCommand) > 0
	if len(c.DurableRecipients) > 0 && !keys {
		v.add("durable_recipients", fmt.Sprintf("%d of them", len(c.DurableRecipients)), "durable_identities or durable_identities_command beside it, with the key of one of them",
			"a generation is committed by who reads the headers of its files, and nothing could be resumed from")
	}
	if strings.Contains(strings.ToUpper(c.DurableIdentities), "AGE-SECRET-KEY-") { // as sealed.HoldsKey, which lies above this package
		v.add("durable_identities", "a key (not shown)", "the path of a file of mode 0600 that has it", "whoever reads the configuration opens every generation")
	}
	if c.DurableIdentities != "" && len(c.DurableIdentitiesCommand) > 0 {
		v.add("durable_identities_command", c.DurableIdentitiesCommand[0], "one of durable_identities and durable_identities_command", "nobody could tell which keys count")
	}
	if len(c.DurableIdentitiesCommand) > 0 && !filepath.IsAbs(c.DurableIdentitiesCommand[0]) {
		v.add("durable_identities_command", c.DurableIdentitiesCommand[0], "the program's whole path, and its arguments", "another program of that name would be asked for keys")
	}
}

func (c *Config) checkPaths(v *faults) {
	files := []struct{ field, value, harm string }{
		{"state_dir", c.StateDir, "a voter that loses its Raft log may not come back under its name"},
		{"durable_dir", cmp.Or(c.DurableDir, c.Durable), "when all memory of a group is lost there is nothing else to resume from"},
		{"spool_dir", c.SpoolDir, "a slow store would keep slots from training; \"none\" has it so"},
		{"pki.ca", c.PKI.CA, "without it no peer can be told from a stranger; make it with `replicad pki init`"},
		{"pki.cert", c.PKI.Cert, "without it no other node talks to this one; make it with `replicad pki init`"},
		{"pki.key", c.PKI.Key, "without it the certificate proves nothing; make it with `replicad pki init`"},
		{"pki.gossip_key", c.PKI.GossipKey, "without it gossip would be open to anyone; make it with `replicad pki init`"},
	}
	for _, f := range files {
		if f.value == "" || strings.ContainsRune(f.value, 0) {
			v.add(f.field, strconv.Quote(f.value), "a path", f.harm)
		}
	}
	seen := map[string]string{}
	for _, f := range []struct{ field, value string }{{"socket", c.Socket}, {"admin_socket", c.AdminSocket}, {"keeper_socket", c.KeeperSocket}} {
		if f.value == "" || len(f.value) > maxSocketPath || strings.ContainsRune(f.value, 0) {
			v.add(f.field, strconv.Quote(f.value), fmt.Sprintf("a path of 1 to %d bytes (this one has %d)", maxSocketPath, len(f.value)), "the kernel takes no longer ones for a unix socket; set a short path such as /run/replicad/ranks.sock")
			continue
		}
		if other, ok := seen[filepath.Clean(f.value)]; ok {
			v.add(f.field, strconv.Quote(f.value), "another path than "+other+"'s", "the second one to listen would find the socket in use")
		}
		seen[filepath.Clean(f.value)] = f.field
	}
	if in, err := filepath.Rel(c.StateDir, c.Socket); len(c.RankUsers) > 0 && err == nil && filepath.IsLocal(in) {
		v.add("socket", strconv.Quote(c.Socket), "a path outside of state_dir, since rank_users names other users", "state_dir is closed to them; set one such as /run/replicad/ranks.sock")
	}
}

func (c *Config) checkVoters(v *faults) {
	if n := len(c.Voters); n%2 == 0 || n > maxVoters {
		v.add("voters", fmt.Sprintf("%d voters", n), "1, 3 or 5", "an even number survives no more failures than one less, and more than 5 slow every commit; with none there is no Raft")
	}
	names, addrs := map[replica.NodeName]bool{}, map[string]bool{}
	for i, w := range c.Voters {
		field := fmt.Sprintf("voters[%d]", i)
		if replica.CheckName(string(w.Name)) != nil || names[w.Name] {
			v.add(field+".name", strconv.Quote(string(w.Name)), "the name of a node, each once", "votes are counted by name, so one node would have two or none")
		}
		checkAddr(v, field+".addr", w.Addr, "the other nodes dial the voter there")
		if addrs[w.Addr] && w.Addr != "" {
			v.add(field+".addr", strconv.Quote(w.Addr), "an address that no other voter has", "two voters on one address are one, so a majority is counted that isn't there")
		}
		if w.Name == c.Node && w.Addr != c.Addr {
			v.add(field+".addr", strconv.Quote(w.Addr), fmt.Sprintf("%q, this node's addr", c.Addr), "the other voters would dial an address on which this node does not listen")
		}
		names[w.Name], addrs[w.Addr] = true, true
	}
}

func (c *Config) checkLimits(v *faults) {
	if c.MemoryMargin < 16<<20 || c.MemoryMargin > 1<<40 {
		v.add("memory_margin", c.MemoryMargin.String(), "16MiB to 1TiB", "too small a margin lets the kernel kill processes when a rank grows, too large a one refuses arenas for which there was room")
	}
	for _, f := range c.DurableKeep.Faults() {
		v.add(strings.TrimSuffix("durable_keep."+f.Field, "."), f.Value, f.Want, "with none the last resort would be deleted as soon as it is written, more than this fill a disk, and a rule that is none keeps nothing")
	}
	if c.DurableRate != 0 && (c.DurableRate < 1<<20 || c.DurableRate > 64<<30) {
		v.add("durable_rate", c.DurableRate.String(), "0 (no bound) or 1MiB to 64GiB, in a second", "at less a durable generation takes longer than anybody waits for one")
	}
	if c.DurableWriters < 1 || c.DurableWriters > 100_000 {
		v.add("durable_writers", strconv.Itoa(c.DurableWriters), "1 to 100000", "with none nothing is ever written, and so many nodes no cluster has")
	}
	if c.KeepRuns < 1 || c.KeepRuns > 1000 {
		v.add("keep_runs", strconv.Itoa(c.KeepRuns), "1 to 1000", "with none the run before would be deleted as soon as the next one has written, and more than this fill a disk")
	}
	if c.ScrubRate != 0 && (c.ScrubRate < 1<<20 || c.ScrubRate > 64<<30) {
		v.add("scrub_rate", c.ScrubRate.String(), "0 (never) or 1MiB to 64GiB, in a second", "too low a rate takes weeks to read a node's memory once, too high a one takes memory bandwidth from training")
	}
	if c.SpoolMost != 0 && (c.SpoolMost < 1<<20 || c.SpoolMost > 1<<50) {
		v.add("spool_most", c.SpoolMost.String(), "0 (a tenth of the file system stays free) or 1MiB to 1024TiB", "in less no part has room, and each durable write holds its slot")
	}
	if c.SpoolMemory != 0 && (c.SpoolMemory < 1<<20 || c.SpoolMemory > 64<<40) {
		v.add("spool_memory", c.SpoolMemory.String(), "0 (none) or 1MiB to 64TiB", "in less no part has room, and more than a host has gets processes killed")
	}
	if c.ReadbackRate < 1<<20 || c.ReadbackRate > 64<<30 {
		v.add("readback_rate", c.ReadbackRate.String(), "1MiB to 64GiB, in a second", "nothing is deleted before what is newer was read back, so that too low a rate puts durable writes off; too high a one takes the disk and the network from training")
	}
	if c.RereadRate != 0 && (c.RereadRate < 1<<20 || c.RereadRate > 64<<30) {
		v.add("reread_rate", c.RereadRate.String(), "0 (never) or 1MiB to 64GiB, in a second", "too low a rate takes weeks to read the durable tier once, too high a one takes the disk from durable writes")
	}
	if c.RereadEvery < time.Minute || c.RereadEvery > 8760*time.Hour {
		v.add("reread_every", c.RereadEvery.String(), "1m to 8760h", "too short a period reads the disk all the time, too long a one gives it time to lose all that is kept")
	}
	if rate, ok := c.DonorRate.Bytes(); c.DonorRate != Auto && c.DonorRate != Unlimited && (!ok || rate < 16<<20 || rate > 64<<30) {
		v.add("donor_rate", strconv.Quote(string(c.DonorRate)), "auto, unlimited, or 16MiB to 64GiB, in a second", "too low a rate has commits and recoveries wait beside a job that trains")
	}
}

// span is the range of one duration.
type span struct {
	field    string
	value    time.Duration
	min, max time.Duration
	harm     string
}

func (f *faults) spans(list []span) {
	for _, s := range list {
		if s.value < s.min || s.value > s.max {
			f.add(s.field, s.value.String(), fmt.Sprintf("%v to %v", s.min, s.max), s.harm)
		}
	}
}

func (t *Timing) check(v *faults) {
	const ms, sec, minute, day = time.Millisecond, time.Second, time.Minute, 24 * time.Hour
	v.spans([]span{
		{"timing.collect", t.Collect, ms, 5 * sec, "too short: what failed together takes several recoveries; too long: every recovery is later by as much"},
		{"timing.settle", t.Settle, 100 * ms, 10 * minute, "too short: windows and copies that would have finished are torn and a step is lost; too long: a rank that hangs in its window holds recovery up"},
		{"timing.ack", t.Ack, max(t.DaemonGrace, sec), 10 * minute, "shorter than daemon_grace a daemon that is merely restarting would become a fault; too long: a silent one holds every plan up"},
		{"timing.claim", t.Claim, 100 * ms, 10 * minute, "too short: a rank moves to a spare though its own node, with warm memory, was about to restart it; too long: the spare waits"},
		{"timing.start", t.Start, sec, day, "too short: a process that is slow to import or to build its model is killed over and over; too long: one that hangs there holds its rank's recovery up"},
		{"timing.holder_grace", t.HolderGrace, sec, day, "too short: committed steps are given up or disk is read although a holder was about to answer; too long: a job without one waits"},
		{"timing.resume_grace", t.ResumeGrace, 100 * ms, 10 * minute, "too short: jobs go on with fewer copies than asked for; too long: a slow mirror holds the job up"},
		{"timing.daemon_grace", t.DaemonGrace, sec, 10 * minute, "too short: an upgrade of the daemon moves its mirrors; too long: commits wait for a mirror whose daemon never comes back"},
		{"timing.stall_alarm", t.StallAlarm, sec, day, "too short: alarms in every slow step; too long: nobody hears that nothing has been committed for hours"},
		{"timing.hang_least", t.HangLeast, sec, day, "too short: a pause that nobody declared (a slow read, a swap) is taken for a hang; too long: a hang costs as much"},
		{"timing.hang_first", t.HangFirst, t.HangLeast, day, "too short: compilation and the first batch are taken for a hang; too long: a rank that hangs at its start costs as much"},
		{"timing.abandoned", t.Abandoned, minute, 30 * day, "too short: a job is gone before its launchers are started again; too long: jobs that nobody wants stay in every view"},
		{"timing.stop_grace", t.StopGrace, sec, day, "too short: the newest commit of a job is not on disk when all its nodes go down; too long: a daemon whose disk is slow holds a shutdown up"},
		{"timing.probe_interval", t.ProbeInterval, 10 * ms, 10 * sec, "too short: probes cost what training needs; too long: a dead node is noticed late"},
		{"timing.silent_after", t.SilentAfter, 3 * t.ProbeInterval, minute, "shorter than three probes one lost packet looks like a dead node; too long: a dead node is noticed late"},
	})
	if t.HangFactor < 2 || t.HangFactor > 1000 {
		v.add("timing.hang_factor", strconv.Itoa(t.HangFactor), "2 to 1000", "too small: a step that takes longer than usual is taken for a hang; too large: a hang costs as many steps")
	}
}

func (r *Raft) check(v *faults) {
	const ms, minute = time.Millisecond, time.Minute
	v.spans([]span{
		{"raft.heartbeat", r.Heartbeat, 20 * ms, minute, "too short: a busy machine changes leaders without need; too long: nothing is committed or planned until the loss of a leader is noticed"},
		{"raft.election", r.Election, max(r.Heartbeat, 20*ms), minute, "raft wants at least heartbeat; too long: split votes take as long to be repeated"},
		{"raft.lease", r.Lease, 10 * ms, max(r.Heartbeat, 10*ms), "raft wants at most heartbeat; longer, a leader cut off from the majority would believe in itself after another was elected"},
		{"raft.watchdog", r.Watchdog, max(r.Election, 20*ms), minute, "shorter than an election a slow fsync moves leadership in circles; too long: a leader with a stalled disk keeps leading and nothing is committed"},
	})
}

func checkAddr(v *faults, field, addr, harm string) {
	if _, _, err := splitAddr(addr); err != nil {
		v.add(field, strconv.Quote(addr), err.Error(), harm)
	}
}

func checkListen(v *faults, field, addr string) {
	if _, _, err := splitBind(addr); err != nil {
		v.add(field, strconv.Quote(addr), err.Error(), "the daemon binds it, so it must be an address of this host, or the wildcard")
	}
}

// overlap tells whether two addresses that are bound would contend for a port.
func overlap(a, b string) bool {
	hostA, portA, errA := splitBind(a)
	hostB, portB, errB := splitBind(b)
	return errA == nil && errB == nil && portA == portB && (hostA == hostB || wildcard(hostA) || wildcard(hostB))
}

func wildcard(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}

// splitAddr is for an address that is dialled. Its errors say what is wanted.
func splitAddr(addr string) (host string, port uint16, err error) {
	host, port, err = splitBind(addr)
	if err == nil && wildcard(host) {
		return "", 0, errors.New("an address that can be dialled, not the wildcard")
	}
	return host, port, err
}

// splitBind is for an address that is bound: the wildcard is one. Its errors say what is wanted.
func splitBind(addr string) (host string, port uint16, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil || host == "" || strings.ContainsAny(host, " \t\r\n\x00/") {
		return "", 0, errors.New("host:port, such as 10.0.0.1:7400")
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil || n == 0 {
		return "", 0, errors.New("host:port with a port from 1 to 65535")
	}
	return host, uint16(n), nil
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// perUser checks what one user may have.
func (f *faults) perUser(u PerUser) {
	for _, k := range []struct {
		name        string
		is          int
		least, most int
		harm        string
	}{
		{"sessions", u.Sessions, 8, 1024, "with fewer a user could run no job here, and a daemon takes no more"},
		{"requests", u.Requests, 256, 1 << 16, "with fewer some of a user's jobs could ask nothing, and with more a user takes the leader's time"},
		{"jobs", u.Jobs, 1, 256, "with none the user could run nothing, and a cluster has no more"},
		{"ranks", u.Ranks, 1, 1 << 20, "with none the user could run nothing, and no job has more"},
	} {
		if k.is < k.least || k.is > k.most {
			f.add("per_user."+k.name, strconv.Itoa(k.is), fmt.Sprintf("%d to %d", k.least, k.most), k.harm)
		}
	}
	if u.Rendezvous < 1<<20 || u.Rendezvous > 1<<30 {
		f.add("per_user.rendezvous", u.Rendezvous.String(), "1MiB to 1GiB", "with less ranks could not meet, and with more a user fills the leader's memory")
	}
}
