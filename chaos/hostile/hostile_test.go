package hostile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/wire"
)

// The table has what issue and documentation promise, and every pattern can be called by its name.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	brief := 0
	for _, p := range All {
		if seen[p.Name] || p.act == nil || p.Does == "" || p.Must == "" || budget[p.Who] == 0 {
			t.Errorf("pattern %+v", p)
		}
		seen[p.Name] = true
		if p.Brief {
			brief++
		}
	}
	if len(All) < 30 || brief < 10 {
		t.Errorf("%d patterns, %d of them brief", len(All), brief)
	}
	if list, unknown := pick([]string{"cbor", "nobody"}, false); len(list) != 1 || list[0].Name != "cbor" || len(unknown) != 1 {
		t.Errorf("%v, %v", list, unknown)
	}
	if err := Misbehave(t.Context(), "nobody", Target{}, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("an unknown pattern: %v", err)
	}
}

// What a daemon's log says against it fails a pattern; what belongs to another job, or to a node that misbehaves, does not.
func TestJudgeSeesWhatDoesNotHold(t *testing.T) {
	for name, tc := range map[string]struct {
		says  cluster.LogEvent
		fails string
	}{
		"a commit":            {cluster.LogEvent{Event: "committed", Job: "train", Step: 7}, ""},
		"a link":              {cluster.LogEvent{Event: "unlinked", From: "n2"}, "links lost: n2"},
		"an election":         {cluster.LogEvent{Event: "leader", From: "n3", Term: 4}, "leadership: n3: leader term 4"},
		"a fault of the job":  {cluster.LogEvent{Event: "fault", From: "n1", Job: "train", Kind: "hang"}, "the job that trains: n1: fault hang"},
		"an order to end":     {cluster.LogEvent{Event: "ended", From: "n1", Job: "train", Reason: "ended by mischief"}, "the job that trains: n1: ended"},
		"the end of training": {cluster.LogEvent{Event: "ended", From: "n1", Job: "train", Reason: "finished"}, ""},
		"a rank dies":         {cluster.LogEvent{Event: "rank_died", From: "n1", Job: "train", Step: 6}, "the job that trains: n1: rank_died"},
		"a rank has finished": {cluster.LogEvent{Event: "rank_died", From: "n1", Job: "train", Step: 400, Left: true}, ""},
		"a fault of another":  {cluster.LogEvent{Event: "fault", From: "n1", Job: "mischief"}, ""},
		"a line":              {cluster.LogEvent{Event: "offered", From: "n1", Size: mostLog}, ""},
		"a flood of lines":    {cluster.LogEvent{Event: "offered", From: "n1", Size: mostLog + 1}, "n1 logged 1024 KiB, limit 1024 KiB"},
		"the keeper has gone": {cluster.LogEvent{Event: "keeper", From: "n1"}, "its keeper is gone"},
	} {
		b := &books{}
		b.begin("train")
		b.log(cluster.LogEvent{Event: "committed", Job: "train", Step: 6})
		b.log(tc.says)
		var o Outcome
		(&runner{}).judge(&o, b.take(), func(format string, args ...any) { o.Failed = append(o.Failed, fmt.Sprintf(format, args...)) })
		if got := strings.Join(o.Failed, "; "); (tc.fails == "") != (got == "") || !strings.Contains(got, tc.fails) {
			t.Errorf("%s: %q, want %q", name, got, tc.fails)
		}
	}
	for name, s := range map[string]seen{"no commits": {}, "a long pause": {commits: 1, gap: mostGap + time.Second}} {
		failed := 0
		(&runner{}).judge(&Outcome{}, s, func(string, ...any) { failed++ })
		if failed == 0 {
			t.Errorf("%s: held", name)
		}
	}
}

// The peak of a process' memory is that since it was last asked to forget it.
func TestPeakOfMemory(t *testing.T) {
	d := daemon{"self", os.Getpid()}
	if err := d.forgetPeak(); err != nil {
		t.Skipf("this kernel does not forget peaks: %v", err)
	}
	before, err := d.field("VmHWM")
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE) // memory that no earlier test has left to the heap
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b) //nolint:errcheck // it was mapped
	after, err := d.field("VmHWM")
	if err != nil || after < before+size/2 {
		t.Errorf("%d, then %d with %d more: %v", before, after, len(b), err)
	}
	if _, err := d.field("VmNothing"); err == nil {
		t.Error("a field that is not there")
	}
	if n, err := d.descriptors(); err != nil || n == 0 {
		t.Errorf("%d descriptors, %v", n, err)
	}
}

func TestReport(t *testing.T) {
	r := Report{Outcomes: []Outcome{{Pattern: All[0], Try: 2, Did: map[string]int{"b": 2, "a": 1}, PeakMiB: 30}, {Pattern: All[1], Failed: []string{"links lost: n1"}}}}
	var table bytes.Buffer
	r.Table(&table)
	for _, want := range []string{"1 a, 2 b", "held at try 2", "**failed**: links lost: n1", All[1].Must} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("%q is not in\n%s", want, &table)
		}
	}
	b, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(b), `"failed":["links lost: n1"]`) {
		t.Errorf("%s, %v", b, err)
	}
}

// The row of many sessions holds only where the user got all that per_user.sessions allows and no more; its job is ended whatever came of it.
func TestManySessionsCountsThoseThatAreTaken(t *testing.T) {
	const most = 12
	for takes, fails := range map[int]string{
		0: "0 sessions", most - besideTraining - 1: "8 sessions", most - besideTraining: "", most: "", most + 1: "13 sessions", 2000: "1,030 sessions",
	} {
		v := newVictim(t, takes)
		a := &attack{victim: &config.Config{Socket: v.socket, AdminSocket: v.admin, PerUser: config.PerUser{Sessions: most}}, did: map[string]int{}}
		err := manySessions(t.Context(), a)
		for _, fn := range a.closer {
			fn()
		}
		if (fails == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), fails) {
			t.Errorf("%d are taken: %v, want %q", takes, err, fails)
		}
		if want := min(takes, 1); len(v.orders) != want || want == 1 && !strings.Contains(<-v.orders, `"Verb":3`) {
			t.Errorf("%d are taken: its job is not ended", takes)
		}
	}
}

// victim answers as a daemon does that takes so many sessions.
type victim struct {
	socket, admin string
	orders        chan string // what came to the admin socket
}

func newVictim(t *testing.T, takes int) *victim {
	dir := t.TempDir()
	v := &victim{filepath.Join(dir, "s"), filepath.Join(dir, "a"), make(chan string, 10)}
	ranks, err := net.Listen("unixpacket", v.socket)
	if err != nil {
		t.Fatal(err)
	}
	orders, err := net.Listen("unix", v.admin)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body) // half an order is none
		v.orders <- string(b)
	})}
	var g sync.WaitGroup
	g.Go(func() {
		if err := server.Serve(orders); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	g.Go(func() {
		for i := 0; ; i++ {
			conn, err := ranks.Accept()
			if err != nil {
				return // the test is over
			}
			answer := wire.AppendRank(nil, wire.RankHeader{Type: wire.MRunOK, Request: 1}, wire.Welcome{ABI: wire.RankABI}.Append(nil))
			if i >= takes {
				answer = wire.AppendRank(nil, wire.RankHeader{Type: wire.MRefused, Request: 1}, wire.Refused{Code: wire.CodeAgain, Text: "per_user.sessions"}.Append(nil))
			}
			if _, err := conn.Write(answer); err != nil {
				t.Error(err)
			}
			defer conn.Close()
		}
	})
	t.Cleanup(func() {
		ranks.Close()
		server.Close()
		g.Wait()
	})
	return v
}
