package demo

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

var day = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// feed gives a journal log lines as daemons write them: milliseconds after day, node, event and its fields.
func feed(j *cluster.Journal, lines ...string) {
	for _, l := range lines {
		var ms int
		var node, event string
		_, _ = fmt.Sscanf(l, "%d %s %s", &ms, &node, &event)
		fields := ""
		if i := strings.IndexByte(l, '{'); i >= 0 {
			fields = "," + strings.TrimSuffix(l[i+1:], "}")
		}
		at := day.Add(time.Duration(ms) * time.Millisecond).Format(time.RFC3339Nano)
		j.AddLog(node, fmt.Appendf(nil, `{"level":"info","time":%q,"event":%q%s,"message":"m"}`, at, event, fields))
	}
}

func ms(t *testing.T, what string, got *float64, want float64) {
	t.Helper()
	if got == nil || *got != want {
		t.Errorf("%s: %v, want %v ms", what, got, want)
	}
}

func TestMeasureReadsARecovery(t *testing.T) {
	j := cluster.NewJournal()
	feed(j,
		`-50 n1 fault {"epoch":1,"kind":"process-dead"}`, // an earlier one
		`1200 n1 fault {"epoch":2,"kind":"node-dead","node":"n3","detail":"silent to n1 and n2"}`,
		`1205 n1 fault {"epoch":2,"kind":"process-dead","rank":2}`,
		`1260 n1 fenced {"epoch":2}`,
		`1265 n1 planned {"epoch":3,"step":41,"tier":"peer-ram","reason":"newest eligible","steps_lost":1,"committed_lost":0}`,
		`1300 n4 moved {"epoch":3,"rank":2,"bytes":1000,"by":{"n1":600,"n2":400},"tier":"peer-ram"}`,
		`1310 n4 moved {"epoch":3,"rank":2,"bytes":24,"by":{"n2":24},"tier":"peer-ram"}`,
		`1305 n4 verified {"epoch":3,"rank":2}`,
		`1315 n4 verified {"epoch":3,"rank":2}`,
		`1340 n1 resumed {"epoch":3,"step":41}`,
		`9000 n1 fault {"epoch":3,"kind":"process-dead"}`, // a later one
	)
	f := Fault{Kind: NodeLoss, at: day}
	measure(&f, j.Log, 41, day.Add(2*time.Second))
	ms(t, "detected", f.Detected, 1200)
	ms(t, "fenced", f.Fenced, 1260)
	ms(t, "planned", f.Planned, 1265)
	ms(t, "verified", f.Verified, 1315)
	ms(t, "resumed", f.Resumed, 1340)
	if f.MovedBytes == nil || *f.MovedBytes != 1024 || *f.Sources != 2 || f.From != fromPeerRAM || f.StepsLost != 0 {
		t.Errorf("moved %v from %v sources, %s, %d lost", f.MovedBytes, f.Sources, f.From, f.StepsLost)
	}
	if !strings.Contains(f.Reason, "silent to n1 and n2") || !strings.Contains(f.Reason, "newest eligible") {
		t.Errorf("reason %q", f.Reason)
	}
}

func TestMeasureTakesTheLastPlanOfARecoveryWithAFurtherFault(t *testing.T) {
	j := cluster.NewJournal()
	feed(j,
		`10 n1 fault {"epoch":2,"kind":"process-dead"}`,
		`60 n1 fenced {"epoch":2}`,
		`61 n1 planned {"epoch":3,"step":41,"tier":"peer-ram"}`,
		`70 n4 moved {"epoch":3,"bytes":1000,"by":{"n1":1000}}`,
		`80 n1 fault {"epoch":3,"kind":"process-dead"}`,
		`130 n1 fenced {"epoch":3}`,
		`131 n1 planned {"epoch":4,"step":40,"tier":"own-ram","reason":"r"}`,
		`150 n1 resumed {"epoch":4,"step":40}`,
	)
	f := Fault{Kind: RankForward, at: day}
	measure(&f, j.Log, 42, day.Add(time.Second))
	ms(t, "detected", f.Detected, 10)
	ms(t, "fenced", f.Fenced, 60)
	ms(t, "planned", f.Planned, 131)
	ms(t, "resumed", f.Resumed, 150)
	if f.MovedBytes != nil || f.Sources != nil || f.Verified != nil {
		t.Errorf("what an abandoned plan moved is counted: %v bytes", *f.MovedBytes)
	}
	if f.StepsLost != 2 {
		t.Errorf("resumed at 40 with 42 committed: %d steps lost, want 2 whatever the log claims", f.StepsLost)
	}
}

// The disk is one source: the daemons name it as such beside the nodes that served chunks.
func TestMeasureCountsTheDiskOnce(t *testing.T) {
	j := cluster.NewJournal()
	feed(j,
		`131 n1 planned {"epoch":4,"step":40,"tier":"durable","reason":"r"}`,
		`140 n4 moved {"epoch":4,"bytes":1000,"by":{"disk":1000},"tier":"durable"}`,
		`145 n3 moved {"epoch":4,"bytes":1000,"by":{"disk":1000},"tier":"durable"}`,
		`150 n1 resumed {"epoch":4,"step":40}`,
	)
	f := Fault{Kind: GroupLoss, at: day}
	measure(&f, j.Log, 40, day.Add(time.Second))
	if f.Sources == nil || *f.Sources != 1 {
		t.Errorf("everything came from the disk, %v sources are counted", *f.Sources)
	}
}

func TestReportHasTheFieldsOfItsContract(t *testing.T) {
	dir := t.TempDir()
	if err := sample().write(dir); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	keys := func(v any, want ...string) {
		t.Helper()
		m, ok := v.(map[string]any)
		if !ok || len(m) != len(want) {
			t.Fatalf("%v: want exactly the fields %v", v, want)
		}
		for _, k := range want {
			if _, ok := m[k]; !ok {
				t.Errorf("field %q is missing in %v", k, m)
			}
		}
	}
	keys(got, "verdict", "faults", "figures")
	faults, figures := got["faults"].([]any), got["figures"].([]any)
	for _, f := range faults {
		keys(f, "kind", "detected_ms", "fenced_ms", "planned_ms", "moved_bytes", "sources", "verified_ms", "resumed_ms", "steps_lost", "from", "reason")
	}
	for _, f := range figures {
		keys(f, "name", "unit", "value", "limit", "ratio")
	}
	if d := faults[1].(map[string]any); d["moved_bytes"] != nil || d["detected_ms"] != nil {
		t.Errorf("a fault that moved nothing must have null, has %v", d)
	}
}

func TestReportPageStandsAlone(t *testing.T) {
	r := sample()
	r.Faults[0].Reason = `<script>alert("x")</script>`
	b, err := r.html()
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, banned := range []string{"<script", "http://", "https://", "src=", "@import", "url(", "NaN", "Inf", "ZgotmplZ"} {
		if strings.Contains(page, banned) {
			t.Errorf("the page contains %q", banned)
		}
	}
	for _, want := range []string{"<svg", "bit-equal", "rank-forward", "peer-ram"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if path := os.Getenv("DEMO_SAMPLE_PAGE"); path != "" { // to look at it
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	empty := &result{report: report{Verdict: different}, differs: []string{"weights of rank 1"}}
	if b, err = empty.html(); err != nil || !strings.Contains(string(b), "weights of rank 1") || strings.Contains(string(b), "NaN") {
		t.Errorf("a report without faults and losses: %v", err)
	}
}

// sample is a result as a run gives it.
func sample() *result {
	f := func(kind, target string, step uint64, detected, fenced, planned, verified, resumed, first float64, bytes uint64, sources int, lost uint64, from, reason string, away time.Duration) Fault {
		r := Fault{Kind: kind, target: target, step: step, StepsLost: lost, From: from, Reason: reason, away: away, Resumed: &resumed}
		if detected > 0 {
			r.Detected, r.Fenced, r.Planned, r.firstStep = &detected, &fenced, &planned, &first
		}
		if bytes > 0 {
			r.MovedBytes, r.Sources, r.Verified = &bytes, &sources, &verified
		}
		return r
	}
	faults := []Fault{
		f(RankForward, "rank 2, step 140", 140, 4, 58, 63, 71, 92, 121, 1<<20, 2, 0, fromPeerRAM, "process-dead; newest generation that every group holds", 0),
		f(Daemon, "n2", 420, 0, 0, 0, 0, 640, 0, 0, 0, 0, fromOwnRAM, "training did not notice: epoch 3, process ids and open calls kept", 430*time.Millisecond),
		f(NodeLoss, "n3", 700, 1210, 1264, 1270, 1309, 1370, 1402, 3<<20, 3, 0, fromPeerRAM, "node-dead (silent to n1 and n2)", 2100*time.Millisecond),
		f(GroupLoss, "n1+n4", 1210, 1180, 4100, 4152, 4310, 4380, 4431, 5<<20, 1, 37, fromDurable, "node-dead; memory of group 0 is proved lost, newest on disk is step 1150", 2600*time.Millisecond),
	}
	r := &result{report: report{Verdict: bitEqual, Faults: faults}, opt: Options{Seed: 7, Steps: 1500}, when: day, digest: strings.Repeat("ab", 32),
		loss: map[uint64]float64{}, baseline: map[uint64]float64{}}
	noise := uint64(1)
	for s := uint64(1); s <= 1500; s++ {
		noise = noise*6364136223846793005 + 1442695040888963407
		l := 2 + 2.6/(1+float64(s)/60) + 0.5*(float64(noise>>40)/(1<<24)-0.5)
		r.loss[s], r.baseline[s] = l, l
	}
	j := cluster.NewJournal()
	j.Commits, j.Lags, j.Repeats = []cluster.Commit{{At: day, Step: 1}, {At: day, Step: 2}}, map[uint64]float64{1: 900, 2: 1500}, 40
	r.Figures = figures(faults, j, 70*time.Second, 44*time.Second, Options{Steps: 1500, Trainer: "bin/textlm"})
	return r
}
