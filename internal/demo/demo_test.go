package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/leakcheck"

	"github.com/replicad/replicad/chaos/cluster"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// A loss that differs is no bit-equality, whatever the weights are at the end; events that were not kept are told.
func TestVerdictTellsWhatTheJournalCounted(t *testing.T) {
	d := &driver{journal: cluster.NewJournal()}
	same := make([]cluster.Digests, 4)
	d.opt.Groups = []int{0, 1, 0, 1}
	if r := d.result(nil, cluster.NewJournal(), same, same, time.Now(), 0); r.Verdict != bitEqual || strings.Contains(r.verdict(), "events") {
		t.Fatalf("of equal runs: %s", r.verdict())
	}
	d.journal.Differs, d.journal.Dropped = 2, 7
	r := d.result(nil, cluster.NewJournal(), same, same, time.Now(), 0)
	if r.Verdict != different || !strings.Contains(r.verdict(), "2 losses") || !strings.Contains(r.verdict(), "7 events") {
		t.Errorf("of two losses that differ and 7 events dropped: %s", r.verdict())
	}
	for _, name := range []string{"losses reported otherwise by a repetition", "events of the logs that were not kept"} {
		if !slices.ContainsFunc(r.Figures, func(f Figure) bool { return f.Name == name && f.Value > 0 }) {
			t.Errorf("no figure %q in %v", name, r.Figures)
		}
	}
}

// What can't work is refused before anything is started, as a wrong use of the flags.
func TestRunRefusesWhatCantWork(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		opt  Options
		want []string
	}{
		"long dir":         {Options{Dir: filepath.Join(t.TempDir(), strings.Repeat("d", 100))}, []string{"keeper.sock", "107", "--dir"}},
		"report in a file": {Options{ReportDir: filepath.Join(file, "x")}, []string{"--report", file}},
		"report is a file": {Options{ReportDir: file}, []string{"--report", file}},
		"negative pace":    {Options{Pace: -5 * time.Second}, []string{"--pace -5s"}},
		"pace of an hour":  {Options{Pace: time.Hour}, []string{"--pace 1h0m0s"}},
		"warm -1":          {Options{Warm: -1}, []string{"--warm -1"}},
		"dir that exists":  {Options{Dir: t.TempDir()}, []string{"must not exist"}},
		"dir in a file":    {Options{Dir: filepath.Join(file, "x")}, []string{file}},
	} {
		tc.opt.Trainer = os.Args[0]
		var out bytes.Buffer
		err := Run(t.Context(), tc.opt, &out, &out)
		if !errors.As(err, new(*UsageError)) || out.Len() > 0 {
			t.Errorf("%s: %v, after output %q", name, err, out.String())
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: nothing of %q in: %v", name, want, err)
			}
		}
	}
}

func TestRoom(t *testing.T) {
	dir := t.TempDir()
	if err := checkRoom(dir, 1); err != nil {
		t.Error(err)
	}
	if err := checkRoom(dir, 1<<62); err == nil || !strings.Contains(err.Error(), "no space") || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "TMPDIR or --dir") {
		t.Errorf("without room: %v", err)
	}
}

func TestOptionsReportAllFaults(t *testing.T) {
	_, err := Options{Faults: []string{"node", "meteor"}, NoFaults: true, Steps: 3, StateMB: -1, Trainer: "/nonexistent", LogLevel: "warn"}.withDefaults()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"--no-faults", "meteor", "--steps 3", "--state-mb -1", "/nonexistent", `--log-level "warn"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
}

// A store that was named has the loss of the whole fleet among the faults; without one the demo is as it was.
func TestAStoreBringsTheLossOfTheFleet(t *testing.T) {
	for durable, want := range map[string]bool{"": false, "ck": true, "file:///ck": true, "s3://b/ck": true} {
		o, err := Options{Trainer: os.Args[0], Groups: []int{0, 1}, Durable: durable}.withDefaults()
		if got := slices.Contains(o.Faults, FleetLoss); err != nil || got != want {
			t.Errorf("--durable %q: %v, %v", durable, o.Faults, err)
		}
	}
	for _, bad := range []string{"gs://b", "s3://", "s3:///ck", "file://"} {
		if _, err := (Options{Trainer: os.Args[0], Durable: bad}).withDefaults(); err == nil || !strings.Contains(err.Error(), "--durable "+bad) {
			t.Errorf("--durable %s: %v", bad, err)
		}
	}
}

// Two nodes that hold a part are lost at once in the fault holder: a job of two copies would go back to its disk.
func TestHolderWantsThreeCopies(t *testing.T) {
	for copies, want := range map[int]int{0: 3, 3: 3, 4: 4} {
		o, err := Options{Faults: []string{NodeLoss, Holder}, Copies: copies, Trainer: os.Args[0]}.withDefaults()
		if err != nil || o.Copies != want {
			t.Errorf("of --copies %d: %d, %v", copies, o.Copies, err)
		}
	}
	for _, copies := range []int{-1, 1, 2, 5} {
		if _, err := (Options{Faults: []string{Holder}, Copies: copies, Trainer: os.Args[0]}).withDefaults(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("--copies %d", copies)) {
			t.Errorf("of --copies %d: %v", copies, err)
		}
	}
	if o, err := (Options{Faults: []string{HolderDaemon}, Trainer: os.Args[0]}).withDefaults(); err != nil || o.Copies != 0 {
		t.Errorf("a daemon comes back, and the job keeps %d copies: %v", o.Copies, err)
	}
}

// A part counts as on its way from others than the node that fetches it and the one that was lost.
// Ranks lie in groups as the shards say, and the trainer is told.
func TestShardsLayOutTheGroups(t *testing.T) {
	textlm := filepath.Join(t.TempDir(), "textlm")
	if err := os.WriteFile(textlm, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		opt   Options
		world int
		want  string
		flags string
	}{
		{Options{}, 4, "0,1,0,1", ""},
		{Options{Shards: 3}, 3, "0,1,2", "--shards 3"},
		{Options{Shards: 3, World: 6}, 6, "0,1,2,0,1,2", "--shards 3"},
		{Options{Shards: 1, World: 3}, 3, "0,0,0", "--shards 1"},
	} {
		tc.opt.Trainer = textlm
		o, err := tc.opt.withDefaults()
		if command := strings.Join(o.trainer(), " "); err != nil || o.World != tc.world || o.groupList() != tc.want || !strings.HasSuffix(command, tc.flags) || tc.flags == "" && strings.Contains(command, "--shards") {
			t.Errorf("%+v: %d ranks in %s, %s: %v", tc.opt, o.World, o.groupList(), command, err)
		}
	}
	for _, bad := range []Options{{Shards: -1, Trainer: textlm}, {Shards: 3, World: 4, Trainer: textlm}} {
		if _, err := bad.withDefaults(); err == nil || !strings.Contains(err.Error(), "shards") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestSending(t *testing.T) {
	e := cluster.LogEvent{Event: "fetching", Part: "group 0", From: "n4", Holders: []string{"n1", "n3", "n4"}}
	if got := sending(e, "n3"); !slices.Equal(got, []string{"n1"}) {
		t.Errorf("from %v", got)
	}
	private, other := e, e
	private.Part, other.Event = "rank 0", "moved"
	for _, e := range []cluster.LogEvent{private, other} {
		if got := sending(e, "n3"); len(got) > 0 {
			t.Errorf("from %v of %+v", got, e)
		}
	}
}

func TestConfigurationsAreValidAndLogAtInfo(t *testing.T) {
	for asked, want := range map[string]string{"": "info", "debug": "debug"} {
		o, err := Options{Trainer: os.Args[0], LogLevel: asked}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		c, err := newCluster(o, t.TempDir(), nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Release()
		for _, n := range c.Nodes {
			if got, err := config.Load(n.File); err != nil || got.Log.Level != want {
				t.Errorf("node %s, asked for %q: %v, want log level %s", n.Name, asked, err, want)
			}
		}
	}
}

func TestRunRefusesADirectoryThatExists(t *testing.T) {
	dir := t.TempDir()
	err := Run(t.Context(), Options{Dir: dir, Trainer: os.Args[0]}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Fatalf("a directory that exists gives %v", err)
	}
}

func TestTableShowsNothingForWhatDidNotHappen(t *testing.T) {
	out := table([]Fault{{Kind: Daemon, target: "n1", From: fromOwnRAM, Resumed: new(812.4), away: 400 * time.Millisecond, Reason: "training did not notice"}})
	for _, want := range []string{"daemon", "812", "0.4 s", "training did not notice"} {
		if !strings.Contains(out, want) {
			t.Errorf("table without %q:\n%s", want, out)
		}
	}
	if bytes.Contains([]byte(out), []byte("NaN")) || strings.Contains(out, "<nil>") {
		t.Errorf("table shows absent values:\n%s", out)
	}
}
