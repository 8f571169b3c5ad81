//go:build cgo

package trouble_test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// collective is where ranks wait for each other in each step, as they do in an all-reduce: beside the daemons, whose control plane
// is what is measured.
type collective struct {
	t     testing.TB
	addr  string
	world int
	mu    sync.Mutex
	came  map[string][]net.Conn
}

func newCollective(t testing.TB, world int) *collective {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collective{t: t, addr: l.Addr().String(), world: world, came: map[string][]net.Conn{}}
	var done sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			done.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, conn := range open {
			conn.Close()
		}
		mu.Unlock()
		done.Wait()
	})
	return c
}

// serve reads what a rank waits for, line by line; when all ranks wait for the same, all are answered.
func (c *collective) serve(conn net.Conn) {
	defer conn.Close()
	for in := bufio.NewReader(conn); ; {
		what, err := in.ReadString('\n')
		if err != nil {
			return
		}
		c.mu.Lock()
		c.came[what] = append(c.came[what], conn)
		if all := c.came[what]; len(all) == c.world {
			delete(c.came, what)
			for _, to := range all {
				_, _ = io.WriteString(to, "\n") // a rank that went is missed in the next step
			}
		}
		c.mu.Unlock()
	}
}

// meeting is a rank's side.
type meeting struct {
	conn net.Conn
	in   *bufio.Reader
}

func meet(addr string) (*meeting, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &meeting{conn, bufio.NewReader(conn)}, nil
}

// wait returns when all ranks wait for this step of this epoch, or done says that they won't.
func (m *meeting) wait(e replica.Epoch, s replica.Step, done func() bool) error {
	if _, err := fmt.Fprintf(m.conn, "%d %d\n", e, s); err != nil {
		return err
	}
	for {
		m.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := m.in.ReadByte()
		if ne, ok := errors.AsType[net.Error](err); !ok || !ne.Timeout() || done() {
			return err
		}
	}
}

// BenchmarkManyRanks measures how commits keep up with many ranks that make quick steps: SCALE_RANKS ranks (64) in groups of two on
// SCALE_NODES nodes (4), a step each SCALE_PACE_MS (100), for SCALE_SECONDS (20).
func BenchmarkManyRanks(t *testing.B) {
	env := func(name, otherwise string) int {
		n, err := strconv.Atoi(cmp.Or(os.Getenv(name), otherwise))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	ranks, nodes, pace, last := env("SCALE_RANKS", "64"), env("SCALE_NODES", "4"), env("SCALE_PACE_MS", "100"), env("SCALE_SECONDS", "20")
	var names []string
	for i := range nodes {
		names = append(names, fmt.Sprintf("n%d", i+1))
	}
	c := newCluster(t, names...)
	c.voters(min(3, nodes))
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	spec := rankSpec{Floats: 2500, Pace: time.Duration(pace) * time.Millisecond, Meet: newCollective(t, ranks).addr, Patience: 10 * patience}
	groups := make([]string, ranks) // twins on two nodes
	for r := range groups {
		groups[r] = strconv.Itoa(r % (ranks / 2))
	}
	var launchers []*process
	for i, n := range c.nodes {
		var mine []string
		for r := i * ranks / nodes; r < (i+1)*ranks/nodes; r++ {
			mine = append(mine, strconv.Itoa(r))
		}
		launchers = append(launchers, n.run("many", ranks, spec, "--groups", strings.Join(groups, ","), "--ranks", strings.Join(mine, ",")))
	}
	launchers[0].awaitLong(10*patience, "step", fields{"step": 10})
	mark := map[*node]int{}
	for _, n := range c.nodes {
		mark[n] = n.daemon.mark()
	}
	at := launchers[0].mark()
	<-time.After(time.Duration(last) * time.Second)
	steps, commits, first, newest, leaders, longest := 0, map[float64]bool{}, 0.0, 0.0, 0, 0.0
	launchers[0].scan(at, func(l line) bool {
		if l.is("step", nil) {
			s, _ := l.fields["step"].(float64)
			steps = max(steps, int(s))
		}
		return false
	})
	for _, n := range c.nodes {
		n.daemon.scan(mark[n], func(l line) bool {
			if l.is("leader", nil) {
				leaders++
			}
			if l.is("commit_seen", nil) {
				if s, ok := l.fields["step"].(float64); ok {
					commits[s] = true
					if first == 0 {
						first = s
					}
					longest = max(longest, s-newest)
					newest = max(newest, s)
				}
			}
			return false
		})
	}
	b, _ := json.Marshal(c.nodes[0].status().Jobs[0].Waiting)
	t.Logf("%d ranks on %d nodes, a step each %d ms, %d s: live %d, committed %.0f (%d commits), %d elections; waits for %.300s", ranks, nodes, pace, last, steps, newest, len(commits), leaders, b)
	t.ReportMetric(0, "ns/op")
	t.ReportMetric(float64(len(commits)), "commits")
	t.ReportMetric(float64(steps)-newest, "steps-behind")
	t.ReportMetric(float64(leaders), "elections")
}
