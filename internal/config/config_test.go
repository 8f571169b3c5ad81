package config

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// good is a valid configuration of one voter of three.
func good() *Config {
	return Config{
		Node: "a", Addr: "10.0.0.1:7400", GossipAddr: "10.0.0.1:7401", StateDir: "/var/lib/replicad", DurableDir: "/mnt/durable",
		PKI:    PKI{CA: "/p/ca.pem", Cert: "/p/a.pem", Key: "/p/a-key.pem", GossipKey: "/p/gossip.key"},
		Voters: []Voter{{"a", "10.0.0.1:7400"}, {"b", "10.0.0.2:7400"}, {"c", "10.0.0.3:7400"}},
		Seeds:  []string{"10.0.0.2:7401"}, Labels: map[string]string{"rack": "r1"},
	}.WithDefaults()
}

func TestGoodIsValid(t *testing.T) {
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestWarnings(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"shared":             {func(*Config) {}, ""},
		"default":            {func(c *Config) { c.DurableDir = "/var/lib/replicad/durable" }, "durable_dir: /var/lib/replicad/durable: want"},
		"elsewhere below":    {func(c *Config) { c.DurableDir = "/var/lib/replicad/x/y" }, "durable_dir"},
		"the state dir":      {func(c *Config) { c.DurableDir = "/var/lib/replicad/" }, "durable_dir"},
		"a neighbour of it":  {func(c *Config) { c.DurableDir = "/var/lib/replicad-durable" }, ""},
		"one voter, default": {func(c *Config) { c.DurableDir, c.Voters = "/var/lib/replicad/durable", c.Voters[:1] }, ""},
		"plain text":         {func(c *Config) { c.PlaintextState = true }, "plaintext_state: true: want false"},
		"a client of one":    {func(c *Config) { c.DurableDir, c.Voters = "/var/lib/replicad/durable", c.Voters[1:2] }, "durable_dir"},
	} {
		c := good()
		tc.change(c)
		var text string
		for _, w := range c.Warnings() {
			text += w.Error()
		}
		if (text == "") != (tc.says == "") || !strings.Contains(text, tc.says) {
			t.Errorf("%s: warned of %q, want %q", name, text, tc.says)
		}
	}
}

func TestEachBadField(t *testing.T) {
	long := "/" + strings.Repeat("x", 107)
	for _, tc := range []struct {
		name  string
		spoil func(*Config)
		field string
		value string
	}{
		{"no node", func(c *Config) { c.Node = "" }, "node", `""`},
		{"node in capitals", func(c *Config) { c.Node = "A" }, "node", `"A"`},
		{"no addr", func(c *Config) { c.Addr, c.Voters[0].Addr = "", "10.0.0.9:7400"; c.Node = "d" }, "addr", `""`},
		{"addr without port", func(c *Config) { c.Addr = "10.0.0.1"; c.Node = "d" }, "addr", `"10.0.0.1"`},
		{"addr with port 0", func(c *Config) { c.Addr = "10.0.0.1:0"; c.Node = "d" }, "addr", `"10.0.0.1:0"`},
		{"addr with port 70000", func(c *Config) { c.Addr = "10.0.0.1:70000"; c.Node = "d" }, "addr", `"10.0.0.1:70000"`},
		{"wildcard addr", func(c *Config) { c.Addr = "[::]:7400"; c.Node = "d" }, "addr", `"[::]:7400"`},
		{"further addr with a port", func(c *Config) { c.Addrs = []string{"eth1", "10.1.0.1:7400"} }, "addrs[1]", `"10.1.0.1:7400"`},
		{"further network", func(c *Config) { c.Addrs = []string{"10.1.0.0/33"} }, "addrs[0]", `"10.1.0.0/33"`},
		{"further wildcard", func(c *Config) { c.Addrs = []string{"::"} }, "addrs[0]", `"::"`},
		{"long interface", func(c *Config) { c.Addrs = []string{"sixteen-bytes-if"} }, "addrs[0]", `"sixteen-bytes-if"`},
		{"too many addrs", func(c *Config) { c.Addrs = make([]string, 9) }, "addrs", "9 entries"},
		{"listen on one of several", func(c *Config) { c.Addrs, c.Listen = []string{"eth1"}, "10.0.0.1:7400" }, "listen", `"10.0.0.1:7400"`},
		{"further addr takes gossip's port", func(c *Config) { c.Addrs, c.GossipAddr = []string{"eth1"}, "10.0.0.9:7400" }, "gossip_listen", `"10.0.0.9:7400"`},
		{"gossip addr", func(c *Config) { c.GossipAddr = "nowhere" }, "gossip_addr", `"nowhere"`},
		{"gossip on addr", func(c *Config) { c.GossipAddr = c.Addr }, "gossip_addr", `"10.0.0.1:7400"`},
		{"listen without port", func(c *Config) { c.Listen = "10.0.0.1" }, "listen", `"10.0.0.1"`},
		{"listen with port 0", func(c *Config) { c.Listen = "0.0.0.0:0" }, "listen", `"0.0.0.0:0"`},
		{"gossip listen", func(c *Config) { c.GossipListen = "nowhere" }, "gossip_listen", `"nowhere"`},
		{"gossip listens on listen", func(c *Config) { c.Listen, c.GossipListen = "10.0.0.1:8400", "10.0.0.1:8400" }, "gossip_listen", `"10.0.0.1:8400"`},
		{"gossip listens on addr", func(c *Config) { c.GossipListen = c.Addr }, "gossip_listen", `"10.0.0.1:7400"`},
		{"wildcard listen has gossip's port", func(c *Config) { c.Listen = "0.0.0.0:7401" }, "gossip_listen", `"10.0.0.1:7401"`},
		{"socket too long", func(c *Config) { c.Socket = long }, "socket", long},
		{"admin socket too long", func(c *Config) { c.AdminSocket = long }, "admin_socket", "108"},
		{"keeper socket too long", func(c *Config) { c.KeeperSocket = long }, "keeper_socket", "108"},
		{"sockets equal", func(c *Config) { c.AdminSocket = c.Socket }, "admin_socket", "socket's"},
		{"no state dir", func(c *Config) { c.StateDir = "" }, "state_dir", `""`},
		{"no durable dir", func(c *Config) { c.DurableDir = "" }, "durable_dir", `""`},
		{"no ca", func(c *Config) { c.PKI.CA = "" }, "pki.ca", "pki init"},
		{"no cert", func(c *Config) { c.PKI.Cert = "" }, "pki.cert", "pki init"},
		{"no key", func(c *Config) { c.PKI.Key = "" }, "pki.key", "pki init"},
		{"no gossip key", func(c *Config) { c.PKI.GossipKey = "" }, "pki.gossip_key", "pki init"},
		{"no voters", func(c *Config) { c.Voters = nil }, "voters", "0 voters"},
		{"two voters", func(c *Config) { c.Voters = c.Voters[:2] }, "voters", "2 voters"},
		{"voter twice", func(c *Config) { c.Voters[2].Name = "b" }, "voters[2].name", `"b"`},
		{"voter without a name", func(c *Config) { c.Voters[2].Name = "" }, "voters[2].name", `""`},
		{"voter's addr twice", func(c *Config) { c.Voters[2].Addr = c.Voters[1].Addr }, "voters[2].addr", `"10.0.0.2:7400"`},
		{"voter's addr bad", func(c *Config) { c.Voters[1].Addr = "b" }, "voters[1].addr", `"b"`},
		{"own voter's addr", func(c *Config) { c.Voters[0].Addr = "10.0.0.9:7400" }, "voters[0].addr", "this node's addr"},
		{"no seeds", func(c *Config) { c.Seeds = nil }, "seeds", "none"},
		{"bad seed", func(c *Config) { c.Seeds = []string{"10.0.0.2:7401", "x"} }, "seeds[1]", `"x"`},
		{"too many seeds", func(c *Config) { c.Seeds = make([]string, 65) }, "seeds", "65"},
		{"label key", func(c *Config) { c.Labels = map[string]string{"Rack": "1"} }, "labels.Rack", `"1"`},
		{"label value", func(c *Config) { c.Labels = map[string]string{"rack": ""} }, "labels.rack", `""`},
		{"label that clears a terminal", func(c *Config) { c.Labels = map[string]string{"rack": "r\x1b[2J"} }, "labels.rack", `"r\x1b[2J"`},
		{"secret too long", func(c *Config) { c.JobSecret = strings.Repeat("s", 257) }, "job_secret", "257 bytes (not shown)"},
		{"secret too short", func(c *Config) { c.JobSecret = "fifteen bytes .."[:15] }, "job_secret", "15 bytes (not shown)"},
		{"secret with a blank", func(c *Config) { c.JobSecret = "sixteen bytes of" }, "job_secret", "16 bytes (not shown)"},
		{"user without a name", func(c *Config) { c.RankUsers = []string{"alice", ""} }, "rank_users", "2 users"},
		{"socket where other users don't get", func(c *Config) { c.RankUsers = []string{"alice"}; c.StateDir, c.Socket = "/s", "/s/run/ranks.sock" }, "socket", "/s/run/ranks.sock"},
		{"memory margin", func(c *Config) { c.MemoryMargin = 1 << 20 }, "memory_margin", "1MiB"},
		{"durable keep", func(c *Config) { c.DurableKeep.Last = -1 }, "durable_keep", "-1"},
		{"durable writers", func(c *Config) { c.DurableWriters = -1 }, "durable_writers", "-1"},
		{"keep runs", func(c *Config) { c.KeepRuns = -1 }, "keep_runs", "-1"},
		{"readback rate", func(c *Config) { c.ReadbackRate = 1 << 10 }, "readback_rate", "1KiB"},
		{"reread rate", func(c *Config) { c.RereadRate = 1 << 10 }, "reread_rate", "1KiB"},
		{"reread every", func(c *Config) { c.RereadEvery = time.Second }, "reread_every", "1s"},
		{"donor rate", func(c *Config) { c.DonorRate = "1MiB" }, "donor_rate", `"1MiB"`},
		{"donor rate of no kind", func(c *Config) { c.DonorRate = "fast" }, "donor_rate", `"fast"`},
		{"spool", func(c *Config) { c.SpoolDir = "a\x00" }, "spool_dir", `"a\x00"`},
		{"spool too small", func(c *Config) { c.SpoolMost = 1 << 10 }, "spool_most", "1KiB"},
		{"spool in memory too small", func(c *Config) { c.SpoolMemory = 1 << 10 }, "spool_memory", "1KiB"},
		{"durable rate", func(c *Config) { c.DurableRate = 1 << 10 }, "durable_rate", "1KiB"},
		{"scrub rate", func(c *Config) { c.ScrubRate = 1 << 10 }, "scrub_rate", "1KiB"},
		{"log level", func(c *Config) { c.Log.Level = "loud" }, "log.level", `"loud"`},
		{"no sessions", func(c *Config) { c.PerUser.Sessions = 0 }, "per_user.sessions", "0"},
		{"more sessions than there are", func(c *Config) { c.PerUser.Sessions = 1025 }, "per_user.sessions", "1025"},
		{"no requests", func(c *Config) { c.PerUser.Requests = 0 }, "per_user.requests", "0"},
		{"absurd requests", func(c *Config) { c.PerUser.Requests = 1 << 20 }, "per_user.requests", "1048576"},
		{"less than no jobs", func(c *Config) { c.PerUser.Jobs = -1 }, "per_user.jobs", "-1"},
		{"absurd ranks", func(c *Config) { c.PerUser.Ranks = 1 << 40 }, "per_user.ranks", "1099511627776"},
		{"no rendezvous", func(c *Config) { c.PerUser.Rendezvous = 0 }, "per_user.rendezvous", "0B"},
		{"absurd rendezvous", func(c *Config) { c.PerUser.Rendezvous = 1 << 40 }, "per_user.rendezvous", "1TiB"},
		{"no room for the log", func(c *Config) { c.Log.PerMinute = 0 }, "log.per_minute", "0B"},
		{"a log that fills the disk", func(c *Config) { c.Log.PerMinute = 1 << 31 }, "log.per_minute", "2GiB"},
		{"collect", func(c *Config) { c.Timing.Collect = -1 }, "timing.collect", "-1ns"},
		{"settle", func(c *Config) { c.Timing.Settle = time.Millisecond }, "timing.settle", "1ms"},
		{"ack below daemon grace", func(c *Config) { c.Timing.Ack = 5 * time.Second }, "timing.ack", "5s"},
		{"claim", func(c *Config) { c.Timing.Claim = time.Hour }, "timing.claim", "1h0m0s"},
		{"holder grace", func(c *Config) { c.Timing.HolderGrace = time.Millisecond }, "timing.holder_grace", "1ms"},
		{"resume grace", func(c *Config) { c.Timing.ResumeGrace = time.Hour }, "timing.resume_grace", "1h0m0s"},
		{"daemon grace", func(c *Config) { c.Timing.DaemonGrace = time.Millisecond }, "timing.daemon_grace", "1ms"},
		{"stall alarm", func(c *Config) { c.Timing.StallAlarm = time.Millisecond }, "timing.stall_alarm", "1ms"},
		{"probe interval", func(c *Config) { c.Timing.ProbeInterval = time.Minute }, "timing.probe_interval", "1m0s"},
		{"silent after", func(c *Config) { c.Timing.SilentAfter = 300 * time.Millisecond }, "timing.silent_after", "300ms"},
		{"heartbeat", func(c *Config) { c.Raft.Heartbeat = time.Millisecond }, "raft.heartbeat", "1ms"},
		{"election below heartbeat", func(c *Config) { c.Raft.Election = 100 * time.Millisecond }, "raft.election", "100ms"},
		{"lease above heartbeat", func(c *Config) { c.Raft.Lease = time.Second }, "raft.lease", "1s"},
		{"watchdog", func(c *Config) { c.Raft.Watchdog = 100 * time.Millisecond }, "raft.watchdog", "100ms"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := good()
			tc.spoil(c)
			err := c.Validate()
			for _, e := range unjoin(err) {
				var f *FieldError
				if !errors.As(e, &f) {
					t.Fatalf("%v is no *FieldError", e)
				}
				if f.Field == tc.field && strings.Contains(f.Error(), tc.value) {
					if f.Want == "" || f.Harm == "" {
						t.Errorf("%v names no remedy or no harm", f)
					}
					return
				}
			}
			t.Errorf("no fault in %s with %s:\n%v", tc.field, tc.value, err)
		})
	}
}

func unjoin(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return nil
}

// TestEveryDurationIsChecked: a field that is added without a range would pass here unnoticed otherwise.
func TestEveryDurationIsChecked(t *testing.T) {
	for _, group := range []string{"Timing", "Raft"} {
		typ := reflect.TypeOf(*good())
		sf, _ := typ.FieldByName(group)
		for i := range sf.Type.NumField() {
			c := good()
			reflect.ValueOf(c).Elem().FieldByName(group).Field(i).SetInt(-1)
			name := strings.ToLower(group) + "." + sf.Type.Field(i).Tag.Get("yaml")
			if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name+": -1") {
				t.Errorf("%s = -1ns is not refused: %v", name, err)
			}
		}
	}
}

func TestAllFaultsTogether(t *testing.T) {
	err := new(Config).Validate()
	for _, field := range []string{"node", "addr", "gossip_addr", "socket", "state_dir", "pki.ca", "voters", "memory_margin", "timing.settle", "raft.election"} {
		if !strings.Contains(err.Error(), field+":") {
			t.Errorf("an empty configuration: nothing about %s in\n%v", field, err)
		}
	}
	secret := good()
	secret.JobSecret = "geheim geheim geheim"
	if err := secret.Validate(); err == nil || strings.Contains(err.Error(), "geheim") {
		t.Errorf("a bad token is shown or not refused: %v", err)
	}
}

func TestDefaultsLeaveTheCallersValue(t *testing.T) {
	c := Config{StateDir: "/s", Seeds: []string{"x"}, Labels: map[string]string{"a": "b"}, Voters: []Voter{{"a", "b"}}}
	before := Config{StateDir: "/s", Seeds: []string{"x"}, Labels: map[string]string{"a": "b"}, Voters: []Voter{{"a", "b"}}}
	d := c.WithDefaults()
	d.Seeds[0], d.Labels["a"], d.Voters[0].Name = "y", "z", "q"
	if !reflect.DeepEqual(c, before) {
		t.Errorf("WithDefaults or its result changed the caller's value: %+v", c)
	}
	if d.Socket != "/s/run/ranks.sock" || d.DurableDir != "/s/durable" || d.Timing.HolderGrace != time.Minute {
		t.Errorf("defaults are missing: %+v", d)
	}
	set := Config{Timing: Timing{Settle: time.Second}, MemoryMargin: 1 << 30}.WithDefaults()
	if set.Timing.Settle != time.Second || set.MemoryMargin != 1<<30 {
		t.Errorf("defaults overwrote what was set: %+v", set)
	}
}

// A daemon advertised what it bound, so nothing could be put between two of them: no NAT, no container, no test that cuts a pair.
func TestListen(t *testing.T) {
	c := good()
	if c.ListenAddr() != c.Addr || c.GossipListenAddr() != c.GossipAddr {
		t.Errorf("listens on %s and %s", c.ListenAddr(), c.GossipListenAddr())
	}
	for _, hosts := range [][2]string{{"10.9.0.1:7400", ""}, {"", "10.9.0.1:7401"}, {"0.0.0.0:7400", "0.0.0.0:7401"}, {"[::]:7400", "[::]:7401"}, {"10.9.0.1:7400", "10.9.0.2:7400"}} {
		c := good()
		c.Listen, c.GossipListen = hosts[0], hosts[1]
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
		if hosts[0] != "" && c.ListenAddr() != hosts[0] || hosts[1] != "" && c.GossipListenAddr() != hosts[1] {
			t.Errorf("listens on %s and %s, want %v", c.ListenAddr(), c.GossipListenAddr(), hosts)
		}
		if c.Host() != "10.0.0.1" {
			t.Errorf("host %s", c.Host())
		}
	}
}

func TestHost(t *testing.T) {
	if h := good().Host(); h != "10.0.0.1" {
		t.Errorf("host %q", h)
	}
	if h := (&Config{Addr: "x"}).Host(); h != "" {
		t.Errorf("host %q of a malformed address", h)
	}
}

func TestDev(t *testing.T) {
	dir, made := filepath.Join(t.TempDir(), "dev"), 0
	makePKI := func(ids string, node replica.NodeName) error {
		made++
		if err := os.MkdirAll(ids, 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(ids, "ca.pem"), nil, 0o600)
	}
	var hosts []string
	for _, d := range []string{dir, dir, filepath.Join(t.TempDir(), "other")} {
		c, err := Dev(d, makePKI)
		if err != nil {
			t.Fatal(err)
		}
		if a, err := netip.ParseAddr(c.Host()); !c.IsVoter() || c.StateDir != d || err != nil || !a.IsLoopback() {
			t.Errorf("%+v", c)
		}
		hosts = append(hosts, c.Host())
	}
	if made != 2 {
		t.Errorf("the identity was made %d times for two clusters", made)
	}
	if hosts[0] != hosts[1] || hosts[0] == hosts[2] {
		t.Errorf("addresses %v, want one for each folder", hosts)
	}
	if err := os.WriteFile(filepath.Join(dir, "address"), []byte("10.0.0.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Dev(dir, makePKI); err == nil || !strings.Contains(err.Error(), `"10.0.0.1"`) {
		t.Errorf("an address that others reach: %v", err)
	}
	if _, err := Dev(filepath.Join(dir, "x"), func(string, replica.NodeName) error { return errors.New("no entropy") }); err == nil || !strings.Contains(err.Error(), "no entropy") {
		t.Errorf("a failing callback: %v", err)
	}
	deep := t.TempDir() + strings.Repeat("/long", 40)
	if _, err := Dev(deep, makePKI); err == nil || !strings.Contains(err.Error(), "socket") || !strings.Contains(err.Error(), "set XDG_STATE_HOME to a shorter folder") {
		t.Errorf("a directory too deep for sockets: %v", err)
	}
	if _, err := os.Stat(deep); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory too deep for sockets was made: %v", err)
	}
}

func TestDevDir(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/home/me/.local/state")
	if d := DevDir(); d != "/home/me/.local/state/replicad-dev" {
		t.Error(d)
	}
	t.Setenv("XDG_STATE_HOME", "")
	if d := DevDir(); d != ".replicad-dev" {
		t.Error(d)
	}
}
