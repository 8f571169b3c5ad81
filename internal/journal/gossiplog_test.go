package journal

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/membership"
)

// gossipLines is a gossip log whose lines come on a channel, as a real member of the gossip writes them.
func gossipLines(t *testing.T, texts chan<- string, level string) *GossipLog {
	t.Helper()
	j, err := New(eachLine(func(b []byte) { texts <- string(b) }), config.Log{Level: level}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	return NewGossipLog(j, "n1:7001")
}

type eachLine func([]byte)

func (w eachLine) Write(b []byte) (int, error) { w(b); return len(b), nil }

// A peer that is paused between connecting and writing closes without a byte. It is not asked whether it is of another cluster.
func TestAnEmptyStreamIsOfNoOtherCluster(t *testing.T) {
	texts := make(chan string, 1000)
	log := gossipLines(t, texts, "debug")
	g, err := membership.Start(membership.Config{Name: "n1", Incarnation: 1, Addr: "127.0.0.1:0", Cluster: fixture.Cluster, Keys: []membership.Key{{Name: "00", Secret: make([]byte, 32)}}, QUICAddr: "127.0.0.1:7000", Logger: membership.NewLogger(log.Line)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	for _, tc := range []struct {
		name, first string // bytes of the stream
		level, says string
		asks        bool
	}{
		{"nothing", "", "debug", "before it said anything", false},
		{"another label", "\xf4\x05other", "warn", "unacceptable label", true}, // memberlist's label header
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
			late := time.After(20 * time.Second) // only a failing test waits it out
			for {
				select {
				case text := <-texts:
					if !strings.Contains(text, tc.says) {
						continue
					}
					if !strings.Contains(text, `"level":"`+tc.level+`"`) || strings.Contains(text, "of another cluster") != tc.asks {
						t.Errorf("the log says %s", text)
					}
				case <-late:
					t.Fatal("nothing is said of the stream")
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
