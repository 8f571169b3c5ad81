package node

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/membership"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// gossipLines is a gossip log whose lines come on a channel, as a real member of the gossip writes them.
func gossipLines(t *testing.T, texts chan<- string, level string) *gossipLog {
	t.Helper()
	j, err := newJournal(eachLine(func(b []byte) { texts <- string(b) }), config.Log{Level: level}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	return newGossipLog(j, "n1:7001")
}

type eachLine func([]byte)

func (w eachLine) Write(b []byte) (int, error) { w(b); return len(b), nil }

// A peer that is paused between connecting and writing closes without a byte. memberlist takes that for a stream without a label,
// and the log asked whether a node of the own cluster was one of another.
func TestAnEmptyStreamIsOfNoOtherCluster(t *testing.T) {
	texts := make(chan string, 1000)
	log := gossipLines(t, texts, "debug")
	g, err := membership.Start(membership.Config{Name: "n1", Incarnation: 1, Addr: "127.0.0.1:0", Cluster: fixture.Cluster, Keys: []membership.Key{{Name: "00", Secret: make([]byte, 32)}}, QUICAddr: "127.0.0.1:7000", Logger: membership.NewLogger(log.line)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	for _, tc := range []struct {
		name, first string // bytes of the stream
		level       string
		asks        bool
	}{
		{"nothing", "", "debug", false},
		{"another label", "\xf4\x05other", "warn", true}, // memberlist's label header
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := net.Dial("tcp", g.Addr())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write([]byte(tc.first)); err != nil {
				t.Fatal(err)
			}
			c.Close()
			late := time.After(patience)
			for {
				select {
				case text := <-texts:
					if !strings.Contains(text, "unacceptable label") {
						continue
					}
					if !strings.Contains(text, `"level":"`+tc.level+`"`) || strings.Contains(text, "of another cluster") != tc.asks {
						t.Errorf("the log says %s", text)
					}
				case <-late:
					t.Fatal("memberlist said nothing of the stream")
				}
				return
			}
		})
	}
}

func TestGossipThatIsLateBlamesNoNetwork(t *testing.T) {
	says, loud := gossipSays("Was able to connect to b over TCP but UDP probes failed, network may be misconfigured")
	if !loud || strings.Contains(says, "misconfigured") || !strings.Contains(says, "short of CPU") {
		t.Errorf("it says %q", says)
	}
}

// Sixty seconds without quorum used to be 300 lines.
func TestRaftsRetriesAreFewLines(t *testing.T) {
	out := &fixture.Lines{}
	j, err := newJournal(out, config.Log{Level: "info"}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		for _, peer := range []string{"n2", "n3"} {
			j.raft(true, "failed to make requestVote RPC", "target", peer, "error", errors.New("dial"), "term", time.Now().UnixNano())
		}
		j.raft(false, "Election timeout reached, restarting election")
	}
	if n := out.Count(`"event":"raft"`); n != 3 {
		t.Errorf("%d lines, want one of each kind and peer:\n%s", n, out.String())
	}
	j.raft(true, "failed to commit logs", "error", errors.New("other"))
	j.raft(true, "failed to commit logs", "error", unix.ENOSPC)
	if n := out.Count("free space in state_dir"); n != 1 {
		t.Errorf("%d lines tell of the full disk, want one", n)
	}
}

// What is tried again five times a second for as long as a node is away is said now and then: a mirror that stays down was a gigabyte
// of warnings a day.
func TestRetriesAreSaidNowAndThen(t *testing.T) {
	out := &fixture.Lines{}
	j, err := newJournal(out, config.Log{Level: "info"}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		for _, to := range []replica.NodeName{"n2", "n3"} {
			j.pushFailed(transfer.Key{Part: replica.OfRank(0), Generation: fixture.Gen(3, replica.Step(i))}, to, errors.New("dial"))
		}
		j.retried("restore", "rank 0, epoch 4", "dial")
	}
	j.retried("restore", "rank 0, epoch 4", "digest")
	j.retried("restore", "rank 0, epoch 5", "dial")
	if n, m := out.Count(`"event":"mirror_failed"`), out.Count(`"event":"failed"`); n != 2 || m != 3 {
		t.Errorf("%d lines of parts that were not pushed to two nodes, %d of failed restores; want 2 and 3", n, m)
	}
}

func TestLimiter(t *testing.T) {
	var l limiter
	now := time.Now()
	for i, want := range []bool{true, false, false} {
		if ok, held := l.due("a", now); ok != want || held != 0 {
			t.Errorf("line %d: %v, %d", i, ok, held)
		}
	}
	if ok, held := l.due("a", now.Add(limitEvery)); !ok || held != 2 {
		t.Errorf("after a while: %v, %d held back; want 2", ok, held)
	}
	for i := range 10 * limitKinds {
		l.due(strings.Repeat("x", i), now.Add(limitEvery))
	}
	if len(l.kinds) > limitKinds {
		t.Errorf("%d kinds are remembered", len(l.kinds))
	}
	if ok, _ := l.due("new", now.Add(3*limitEvery)); !ok {
		t.Error("kinds of long ago keep a new one out")
	}
}

// Without a leader nothing is committed, and the log has to say that: one line after a while, rarely again, and one when there is one.
func TestNoLeaderIsSaidOnce(t *testing.T) {
	d := newDesk(t)
	d.cfg.Voters = []config.Voter{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}}
	said := func(noLeader, again int) {
		t.Helper()
		if n, m := d.log.Count(`"event":"no_leader"`), d.log.Count(`"event":"leader_again"`); n != noLeader || m != again {
			t.Errorf("%d lines say that there is no leader and %d that there is one again, want %d and %d", n, m, noLeader, again)
		}
	}
	up := d.link
	for range 100 {
		d.leaderless(time.Now().Add(time.Hour))
	}
	said(0, 0) // it is linked
	d.handle(linkDown{link: up, err: errLeaderSilent})
	down := time.Now()
	d.leaderless(down.Add(noLeaderAfter / 2))
	said(0, 0)
	for i := range 600 { // a minute
		d.leaderless(down.Add(noLeaderAfter + time.Duration(i)*100*time.Millisecond))
	}
	said(1, 0)
	if n := d.log.Count("nothing is committed") + d.log.Count("2 of the 3 voters must run") + d.log.Count(`"voters":["n1","n2","n3"]`); n != 3 {
		t.Errorf("the line lacks something:\n%s", d.log.String())
	}
	d.leaderless(down.Add(noLeaderAfter + 2*noLeaderAgain))
	said(2, 0)
	for range 2 {
		d.handle(linkUp{link: up, leader: "n2"})
	}
	said(2, 1)
}
