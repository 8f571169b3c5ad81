//go:build cgo

package trouble_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/durable/storetest"
)

// onBucket has a node's durable tier lie in a bucket.
func onBucket(t *testing.T, srv *storetest.Server) func(*config.Config) {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "credentials")
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", storetest.Access, storetest.Secret)
	if err := os.WriteFile(keys, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(c *config.Config) {
		c.DurableDir, c.Durable = "", "s3://"+srv.Bucket+"/ck"
		c.Store = config.Store{Endpoint: srv.URL, Region: "us-east-1", Credentials: keys}
	}
}

// afresh starts a node that has lost its state.
func (n *node) afresh() {
	n.t.Helper()
	if err := os.RemoveAll(n.cfg.StateDir); err != nil {
		n.t.Fatal(err)
	}
	n.flags = []string{"--bootstrap"} // again: its log is gone
	n.start()
}

// TestJobOnABucket: a job writes to a bucket, trains on while that answers nobody, and a fresh fleet goes on from what lies there.
func TestJobOnABucket(t *testing.T) {
	t.Parallel()
	srv := storetest.Start(t)
	n := one(t, onBucket(t, srv))
	l := n.run("job", 1, rankSpec{}, "--durable-every", "5")
	for range 2 {
		n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
	}
	from := n.daemon.mark()
	srv.Spoil(t, storetest.Fault{Kind: "lose-request"})
	n.daemon.awaitFrom(from, "failed", fields{"what": "durable"})
	commits := n.daemon.mark()
	for range 5 {
		n.daemon.awaitFrom(commits, "commit_seen", nil)
		commits = n.daemon.mark()
	}
	srv.Clear(t)
	n.daemon.awaitWithin(2*patience, n.daemon.mark(), "a durable write", func(l line) bool { return l.is("durable", nil) })

	l.kill()
	n.die()
	n.afresh()
	l = n.run("job", 1, rankSpec{}, "--resume", "--durable-every", "5")
	l.await("loaded", fields{"source": "durable"})
	l.awaitText(0, "resumed: step ")
	n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)

	ls := exec.Command(replicad, "ckpt", "ls", n.cfg.Durable)
	ls.Env = append(os.Environ(), "AWS_ENDPOINT_URL_S3="+srv.URL, "AWS_ACCESS_KEY_ID="+storetest.Access, "AWS_SECRET_ACCESS_KEY="+storetest.Secret, "AWS_REGION=us-east-1")
	if out, err := ls.CombinedOutput(); err != nil || !strings.Contains(string(out), "job") {
		t.Errorf("ckpt ls: %v\n%s", err, out)
	}
}

// TestABucketThatIsAway keeps no daemon from starting. Status names it, and it is used once it is there.
func TestABucketThatIsAway(t *testing.T) {
	t.Parallel()
	srv := storetest.Start(t)
	srv.Spoil(t, storetest.Fault{Kind: "lose-request"})
	n := one(t, onBucket(t, srv))
	n.daemon.await("failed", fields{"what": "durable", "subject": "the store can't be used now, and is tried again"})
	contains(t, n.statusWhen(func(s status) bool { return s.DurableSilent != "" }).DurableSilent, "probe of "+n.cfg.Durable)
	n.run("job", 1, rankSpec{}, "--durable-every", "5").await("step", fields{"step": 10})
	srv.Clear(t)
	n.daemon.awaitWithin(2*patience, 0, "a durable write", func(l line) bool { return l.is("durable", nil) })
	n.statusWhen(func(s status) bool { return s.DurableSilent == "" })
}

// TestABucketWithoutConditions is refused, with the reason.
func TestABucketWithoutConditions(t *testing.T) {
	t.Parallel()
	srv := storetest.Start(t)
	srv.Spoil(t, storetest.Fault{Method: http.MethodPut, Kind: "answer", Status: http.StatusOK, Header: map[string]string{"ETag": `"d41d8cd98f00b204e9800998ecf8427e"`}})
	n := newCluster(t, "n1").nodes[0]
	onBucket(t, srv)(n.cfg)
	n.write()
	n.launch()
	if code := n.daemon.exit(); code == 0 {
		t.Error("the daemon has started")
	}
	n.daemon.says("ignores the conditions of a put")
}

// TestTwoFleetsResumeOneRun: of two fleets of one cluster that resume the same run the later one has it. Its launcher is told whose it was, and the
// other's that it writes no more, and to whom it lost the run; it trains on.
func TestTwoFleetsResumeOneRun(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	for _, n := range c.nodes {
		n.cfg.Seeds, n.Voter = nil, true
		for _, v := range n.cfg.Voters {
			if v.Name == n.cfg.Node {
				n.cfg.Voters = []config.Voter{v}
				break
			}
		}
		n.write()
	}
	first, second := c.nodes[0], c.nodes[1]
	first.start()
	l := first.run("job", 1, rankSpec{}, "--durable-every", "5")
	for range 2 {
		first.daemon.awaitFrom(first.daemon.mark(), "durable", nil)
	}
	l.kill()
	first.die()
	first.afresh()
	overtaken := first.run("job", 1, rankSpec{Pace: 20 * time.Millisecond}, "--resume", "--durable-every", "500")
	overtaken.await("loaded", fields{"source": "durable"})
	second.start()
	l = second.run("job", 1, rankSpec{}, "--resume", "--durable-every", "5")
	l.await("loaded", fields{"source": "durable"})
	l.awaitText(0, "warning: fleet n1-")
	second.daemon.awaitFrom(0, "durable", nil)
	overtaken.awaitText(0, "warning: durable writes end: ")
	overtaken.says("another fleet owns the run: n2-", "training goes on")
	overtaken.awaitFrom(overtaken.mark(), "step", nil)
	second.daemon.awaitFrom(second.daemon.mark(), "durable", nil)
}

// TestKilledInMidWrite: a daemon and its ranks are killed while an upload is under way, again and again. Each fresh fleet goes on from the newest
// generation that was durable, and writes again.
func TestKilledInMidWrite(t *testing.T) {
	t.Parallel()
	for name, tier := range map[string]func(t *testing.T) (change func(*config.Config), stall, clear func()){
		"bucket": func(t *testing.T) (func(*config.Config), func(), func()) {
			srv := storetest.Start(t)
			stall := func() {
				srv.Spoil(t, storetest.Fault{Method: http.MethodPut, Key: ".safetensors", Kind: "stall-request", Bytes: 64})
			}
			return onBucket(t, srv), stall, func() { srv.Clear(t) }
		},
		"directory": func(*testing.T) (func(*config.Config), func(), func()) {
			return func(*config.Config) {}, func() {}, func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			change, stall, clear := tier(t)
			n := one(t, change)
			l := n.run("job", 1, rankSpec{}, "--durable-every", "5")
			for range 3 {
				from := n.daemon.mark()
				newest := int(n.daemon.awaitFrom(from, "durable", nil).fields["step"].(float64))
				stall()
				for range 6 {
					n.daemon.awaitFrom(n.daemon.mark(), "commit_seen", nil)
				}
				l.kill()
				n.die()
				clear()
				n.afresh()
				l = n.run("job", 1, rankSpec{}, "--resume", "--durable-every", "5")
				if step := int(l.await("loaded", fields{"source": "durable"}).fields["step"].(float64)); step < newest {
					t.Fatalf("it goes on from step %d, and step %d was durable", step, newest)
				}
			}
		})
	}
}
