//go:build cgo

package trouble_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/durable/storetest"
)

// named is how soon people hear what ails a store, and where.
const named = 30 * time.Second

// answered is an error as a store says it.
func answered(status int, code, more string) storetest.Fault {
	return storetest.Fault{Kind: "answer", Status: status, Body: "<Error><Code>" + code + "</Code><Message>as the test wants it</Message>" + more + "</Error>"}
}

// on has a fault happen to the parts of shards.
func on(f storetest.Fault) storetest.Fault {
	f.Method, f.Key, f.Query = http.MethodPut, ".safetensors", "partNumber="
	return f
}

// TestABadStore: whatever a store does, log, status and launcher name node, object, code and what is done, within half a minute. Training and commits go
// on. Once it is well a generation becomes durable, and uploads are ended.
func TestABadStore(t *testing.T) {
	const part = ".safetensors in s3://plain/ck: "
	for _, tc := range []struct {
		name  string
		fault storetest.Fault
		says  []string // what ails it, and what is done
		long  bool
	}{
		{"slow down", on(answered(503, "SlowDown", "")), []string{part + "HTTP 503 SlowDown", "it is tried again"}, false},
		{"too many requests", on(storetest.Fault{Kind: "answer", Status: 429}), []string{part + "HTTP 429", "it is tried again"}, true},
		{"internal error", on(answered(500, "InternalError", "")), []string{part + "HTTP 500 InternalError", "it is tried again"}, true},
		{"stall in a part", on(storetest.Fault{Kind: "stall-request", Bytes: 1000}), []string{".safetensors: nothing moved for 10s", "after 30s the request is given up and made again"}, false},
		{"stall of all", storetest.Fault{Kind: "stall"}, []string{"nothing moved for 10s", "after 30s the request is given up and made again"}, true},
		{"reset", on(storetest.Fault{Kind: "lose-request"}), []string{part + "no answer: ", "it is tried again"}, false},
		{"error in a success", on(storetest.Fault{Kind: "answer", Status: 200, Body: "<Error><Code>InternalError</Code></Error>"}), []string{part + "HTTP 500 ", "it is tried again"}, false},
		{"a page for an error", on(storetest.Fault{Kind: "answer", Status: 502, Body: "<html>Bad Gateway</html>"}), []string{part + "HTTP 502", "it is tried again"}, true},
		{"credentials expire", on(answered(400, "ExpiredToken", "")), []string{part + "HTTP 400 ExpiredToken", ": renew ", "it is tried again"}, false},
		{"clock skew", answered(403, "RequestTimeTooSkewed", ""), []string{"in s3://plain/ck: HTTP 403 RequestTimeTooSkewed", "this node's clock is wrong: set it", "tried again"}, true},
		{"bucket gone", answered(404, "NoSuchBucket", ""), []string{"in s3://plain/ck: HTTP 404 NoSuchBucket", "make the bucket, or name one that is there", "tried again"}, false},
		{"quota", storetest.Fault{Method: http.MethodPut, Kind: "answer", Status: 403, Body: answered(0, "QuotaExceeded", "").Body}, []string{"in s3://plain/ck: HTTP 403 QuotaExceeded", "free space, raise it, or keep fewer generations", "tried again"}, true},
		{"commits are refused", storetest.Fault{Method: http.MethodPut, Key: ".json", Kind: "answer", Status: 503, Body: answered(0, "SlowDown", "").Body}, []string{".json in s3://plain/ck: HTTP 503 SlowDown", "it is tried again"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.long && os.Getenv("TROUBLE_LONG") == "" {
				t.Skip("set TROUBLE_LONG")
			}
			t.Parallel()
			srv := storetest.Start(t)
			n := one(t, onBucket(t, srv))
			l := n.run("job", 1, rankSpec{}, "--durable-every", "5")
			n.daemon.await("durable", nil)
			b := begin(n, l)
			srv.Spoil(t, tc.fault)
			b.named("n1", tc.says...)
			b.trainsOn()
			srv.Clear(t)
			b.recovers()
			// That of the write under way is there. Where the store refused the end of uploads too, those that it caught are the sweep's, after its grace:
			// one of each object of the node's.
			most := 1
			if tc.fault.Method == "" {
				most += 2
			}
			n.statusWhen(func(status) bool { return srv.Unfinished(t) <= most })
		})
	}
}

// badly is a job while its store is bad.
type badly struct {
	n     *node
	l     *process
	heard int // of the launcher
	from  int // of the leader's log
}

// begin begins once all is well: a machine that stood still may have made a write wait already, and people hear of one trouble once.
func begin(n *node, l *process) badly {
	n.t.Helper()
	n.statusWhen(func(s status) bool {
		return linked(s) && s.job("job").Durable.Step > 0 && s.job("job").DurableError == ""
	})
	return badly{n, l, l.mark(), n.daemon.mark()}
}

func all(text string, want ...string) bool {
	for _, w := range want {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// named waits until log, launcher and status say what ails the store.
func (b badly) named(node string, says ...string) {
	b.n.t.Helper()
	failing := func(text string) bool { return all(text, says...) }
	// The daemons' logs have no remedy of their own.
	b.n.daemon.awaitWithin(named, b.from, "what ails the store", func(l line) bool {
		return l.is("failed", fields{"what": "durable"}) && all(l.text, says[0], "node "+node)
	})
	b.l.awaitWithin(named, b.heard, "what ails the store", func(l line) bool {
		return strings.Contains(l.text, "warning: ") && failing(l.text) && strings.Contains(l.text, "node "+node)
	})
	contains(b.n.t, b.n.statusWhen(func(s status) bool { return strings.Contains(s.job("job").DurableError, says[0]) }).job("job").DurableError, "node "+node)
}

// trainsOn waits for commits.
func (b badly) trainsOn() {
	b.n.t.Helper()
	for range 5 {
		b.n.daemon.awaitFrom(b.n.daemon.mark(), "commit_seen", nil)
	}
	if b.l.saw(func(l line) bool { return l.is("fenced", nil) }) {
		b.n.t.Error("training was disturbed")
	}
}

// recovers waits for a generation, and for the word that all is well.
func (b badly) recovers() {
	b.n.t.Helper()
	b.n.daemon.awaitWithin(3*patience, b.n.daemon.mark(), "a durable write", func(l line) bool { return l.is("durable", nil) })
	b.l.awaitText(b.heard, "durable writes work again")
	s := b.n.statusWhen(func(s status) bool {
		return s.job("job").DurableError == "" && s.DurableSilent == "" && s.job("job").DurableAgeMS > 0
	})
	if age := time.Duration(s.job("job").DurableAgeMS) * time.Millisecond; age > patience {
		b.n.t.Errorf("the newest durable generation is %v old", age)
	}
}

// TestABadStoreOnOneNode: one of two nodes has another region than the bucket, or is sent elsewhere. It is that node which is named.
func TestABadStoreOnOneNode(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault storetest.Fault
		says  []string
		long  bool
	}{
		{"region", answered(400, "AuthorizationHeaderMalformed", "<Region>us-east-1</Region>"), []string{"in s3://plain/ck: HTTP 400 AuthorizationHeaderMalformed", "its region is us-east-1", "set the region that the server names"}, false},
		{"redirect", answered(301, "PermanentRedirect", "<Endpoint>elsewhere</Endpoint>"), []string{"in s3://plain/ck: HTTP 301 PermanentRedirect", "set its endpoint and region on this node"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.long && os.Getenv("TROUBLE_LONG") == "" {
				t.Skip("set TROUBLE_LONG")
			}
			t.Parallel()
			srv := storetest.Start(t)
			c := newCluster(t, "n1", "n2")
			c.voters(1)
			change := onBucket(t, srv)
			for i, n := range c.nodes {
				change(n.cfg)
				if i == 1 {
					n.cfg.Store.Region = "eu-west-1"
				}
				n.write()
				n.start()
			}
			var launchers []*process
			for i, n := range c.nodes {
				launchers = append(launchers, n.run("job", 2, rankSpec{}, "--ranks", fmt.Sprint(i), "--durable-every", "5"))
			}
			c.nodes[0].daemon.await("durable", nil)
			b := begin(c.nodes[0], launchers[1])
			tc.fault.Access = "/eu-west-1/"
			srv.Spoil(t, tc.fault)
			b.named("n2", tc.says...)
			b.trainsOn()
			srv.Clear(t)
			b.recovers()
		})
	}
}

// TestAStoreThatIsKilled: its server goes, in the middle of writes, and what was in it. It comes back empty: what is committed is written anew.
func TestAStoreThatIsKilled(t *testing.T) {
	t.Parallel()
	srv := storetest.Start(t)
	n := one(t, onBucket(t, srv))
	l := n.run("job", 1, rankSpec{}, "--durable-every", "5")
	n.daemon.await("durable", nil)
	b := begin(n, l)
	srv.Kill()
	b.named("n1", "in s3://plain/ck: no answer: ", "connection refused")
	b.trainsOn()
	srv.Restart(t)
	b.recovers()
}

// TestAStoreThatStopsReading: it takes nothing more, below a job of short steps. Commits go on, with and without a spool.
func TestAStoreThatStopsReading(t *testing.T) {
	for _, c := range []struct {
		slots int
		spool string
		long  bool
	}{{2, "", false}, {2, config.NoSpool, false}, {3, config.NoSpool, true}} {
		t.Run(fmt.Sprintf("%d slots, spool %q", c.slots, c.spool), func(t *testing.T) {
			if c.long && os.Getenv("TROUBLE_LONG") == "" {
				t.Skip("set TROUBLE_LONG")
			}
			t.Parallel()
			srv := storetest.Start(t)
			cl := newCluster(t, "n1", "n2", "n3")
			cl.voters(1)
			change := onBucket(t, srv)
			for _, n := range cl.nodes {
				change(n.cfg)
				n.cfg.SpoolDir = c.spool
				n.write()
				n.start()
			}
			var launchers []*process
			for i, n := range cl.nodes[:2] {
				launchers = append(launchers, n.run("job", 2, rankSpec{Floats: 1 << 16, Pace: 100 * time.Millisecond}, "--groups", "0,1", "--ranks", fmt.Sprint(i), "--slots", fmt.Sprint(c.slots), "--durable-every", "10"))
			}
			leader := cl.nodes[0]
			leader.daemon.awaitWithin(3*patience, 0, "a durable write", func(l line) bool { return l.is("durable", nil) })
			b := begin(leader, launchers[0])
			// An upload does not even begin, so that no part is read.
			srv.Spoil(t, storetest.Fault{Method: http.MethodPut, Kind: "stall-request"}, storetest.Fault{Method: http.MethodPost, Kind: "stall-request"})
			b.l.awaitWithin(3*patience, b.heard, "what ails the store", func(l line) bool {
				return strings.Contains(l.text, "warning: ") && strings.Contains(l.text, "s3://plain/ck") || strings.Contains(l.text, "nothing moved for 10s")
			})
			launchers[0].awaitLong(3*patience, "step", fields{"step": launchers[0].steps(b.heard, "step")[0] + 90})
			commitsGoOn(t, leader.daemon, b.from)
			srv.Clear(t)
			b.recovers()
		})
	}
}
