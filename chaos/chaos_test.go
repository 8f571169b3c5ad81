package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// A schedule can be had again, and another seed has another one.
func TestScheduleFollowsFromTheSeed(t *testing.T) {
	list := func(seed uint64, l Layout) (all []Fault) {
		for i := range 300 {
			f, ok := Schedule(seed, l, Known(), i)
			if !ok {
				t.Fatal("nothing to draw from")
			}
			all = append(all, f)
		}
		return all
	}
	a := list(7, layouts[0])
	if !reflect.DeepEqual(a, list(7, layouts[0])) {
		t.Error("two schedules of one seed differ")
	}
	if reflect.DeepEqual(a, list(8, layouts[0])) || reflect.DeepEqual(a, list(7, layouts[1])) {
		t.Error("another seed or layout has the same schedule")
	}
	seen := map[string]bool{}
	for i := range 20 {
		if f, ok := Opening(7, layouts[1], Known(), i); ok {
			seen[f.Kind] = true
		}
		if _, ok := Opening(7, layouts[1], []string{rankKill}, i); ok {
			t.Error("a fault at the opening that is not among the kinds")
		}
	}
	if _, ok := Schedule(7, layouts[0], []string{openingRank}, 0); ok {
		t.Error("a fault of the opening in the middle of a job")
	}
	for _, f := range a {
		seen[f.Kind] = true
		if f.Pair != nil {
			seen["two"] = true
		}
		if f.Third != nil {
			seen["third"] = true
			if f.Third.Kind != rankKill || f.Third.Gap > thirdGap || alone(f.Kind) {
				t.Errorf("%s, and in its recovery %+v", f.Kind, *f.Third)
			}
		}
	}
	for _, k := range append(Known(), "two", "third") {
		if !seen[k] {
			t.Errorf("300 faults have no %s", k)
		}
	}
}

// Two faults at once never take both copies of a part, and share neither the disk nor the network.
func TestPairsCanBeSurvived(t *testing.T) {
	for seed := range uint64(20) {
		for i := range 200 {
			f, _ := Schedule(seed, layouts[0], Known(), i)
			if f.Pair == nil {
				continue
			}
			if alone(f.Kind) || alone(f.Pair.Kind) {
				t.Fatalf("%s and %s at once, of which one waits for its moment", f.Kind, f.Pair.Kind)
			}
			if takesMemory(f.Kind) && takesMemory(f.Pair.Kind) || class(f.Kind) != "" && class(f.Kind) == class(f.Pair.Kind) || f.Pair.Kind == heir ||
				class(f.Kind) == "disk" && startsDaemon(f.Pair.Kind) || class(f.Pair.Kind) == "disk" && startsDaemon(f.Kind) {
				t.Fatalf("%s and %s at once", f.Kind, f.Pair.Kind)
			}
		}
	}
}

// judged is a judge and what it reports, fed with lines as processes write them.
type judged struct {
	*judge
	found []violation
}

func newJudged() *judged {
	g := &judged{}
	g.judge = newJudge("j", map[rankStep]float64{{0, 5}: 3.5}, func(v violation) { g.found = append(g.found, v) }, func(string) {})
	return g
}

func (g *judged) step(rank, pid int, epoch, step uint64, loss float64) {
	g.rank(cluster.RankEvent{Event: "step", Rank: rank, PID: pid, Epoch: epoch, Step: step, Loss: &loss})
}

func (g *judged) event(name string, epoch, step uint64) {
	g.log(cluster.LogEvent{Event: name, Job: "j", Epoch: epoch, Step: step, Time: time.Unix(int64(step), 0)})
}

// Each promise has a history that breaks it and one, close to it, that does not.
func TestJudgeSeesWhatDoesNotHold(t *testing.T) {
	for _, tc := range []struct {
		name, class string
		play        func(*judged)
	}{
		{"the undisturbed loss", "", func(g *judged) { g.step(0, 1, 1, 5, 3.5) }},
		{"another loss", wrong, func(g *judged) { g.step(0, 1, 1, 5, 3.25) }},
		{"a step twice in two epochs", "", func(g *judged) { g.step(0, 1, 1, 4, 1); g.step(0, 2, 2, 4, 1) }},
		{"a rank twice in one epoch", owner, func(g *judged) { g.step(0, 1, 1, 4, 1); g.step(0, 2, 1, 4, 1) }},
		{"a plan at the commit", "", func(g *judged) { g.event("committed", 1, 9); g.event("planned", 2, 9) }},
		{"a plan behind it", lost, func(g *judged) { g.event("committed", 1, 9); g.event("planned", 2, 8) }},
		{"a plan whose commit is heard of later", lost, func(g *judged) { g.event("planned", 2, 8); g.event("committed", 1, 9) }},
		{"commits of the plan's own epoch", "", func(g *judged) { g.event("planned", 2, 8); g.event("committed", 2, 9) }},
		{"of another job", "", func(g *judged) {
			g.event("committed", 1, 9)
			g.log(cluster.LogEvent{Event: "planned", Job: "older", Epoch: 2, Step: 1})
		}},
		{"a plan from disk", disk, func(g *judged) { g.log(cluster.LogEvent{Event: "planned", Job: "j", Epoch: 2, Tier: "durable"}) }},
		{"a dispute", wrong, func(g *judged) { g.event("dispute", 2, 8) }},
		{"a rank that left", "", func(g *judged) { g.log(cluster.LogEvent{Event: "rank_died", PID: 7, Left: true}) }},
		{"a rank that was killed", "", func(g *judged) { g.killing(7, "a test"); g.log(cluster.LogEvent{Event: "rank_died", PID: 7}) }},
		{"a rank of a node that was lost", "", func(g *judged) {
			g.excuse("n1", "a test")
			g.log(cluster.LogEvent{Event: "rank_died", PID: 7, From: "n1"})
		}},
		{"a rank that nobody killed", killed, func(g *judged) {
			g.excuse("n1", "a test")
			g.whole()
			g.log(cluster.LogEvent{Event: "rank_died", PID: 7, From: "n1"})
		}},
	} {
		g := newJudged()
		tc.play(g)
		switch {
		case tc.class == "" && len(g.found) > 0:
			t.Errorf("%s: %v", tc.name, g.found)
		case tc.class != "" && (len(g.found) != 1 || g.found[0].class != tc.class):
			t.Errorf("%s: %v, want one of class %q", tc.name, g.found, tc.class)
		}
	}
}

func TestRecorderKeepsEachViolationOnceAndEndsTheRun(t *testing.T) {
	var out bytes.Buffer
	r, err := newRecorder(&out, filepath.Join(t.TempDir(), "timeline"))
	if err != nil {
		t.Fatal(err)
	}
	r.violated(violation{killed, "x"})
	r.violated(violation{killed, "x"})
	select {
	case <-r.fatal:
		t.Error("a process that was killed ends the run: what else does not hold would not be seen")
	default:
	}
	r.violated(violation{wrong, "y"})
	<-r.fatal
	r.violated(violation{killed, "z"}) // the run is broken off: its processes are killed
	if got := totals(r.violations()); !strings.Contains(got, "1 healthy killed") || !strings.Contains(got, "1 wrong") || strings.Count(out.String(), "VIOLATED") != 2 {
		t.Errorf("%s\n%s", got, out.String())
	}
}

func TestOptionsReportAllFaults(t *testing.T) {
	_, err := Options{Faults: []string{"meteor"}, World: 1, Steps: 3, Trainer: "/nonexistent", Kills: -1}.withDefaults()
	for _, want := range []string{"meteor", "--world 1", "--steps 3", "/nonexistent", "--kills -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("nothing of %s in: %v", want, err)
		}
	}
	o, err := Options{Trainer: os.Args[0] + " --x", Faults: []string{heir}}.withDefaults()
	if l := o.layout(o.Layouts[0]); err != nil || o.Warm != 1 || l.groupList() != "0,1,0,1" || !filepath.IsAbs(o.Trainer) {
		t.Errorf("%+v, %v", o, err)
	}
}

// A run goes over all layouts, over those that are named, or trains the one that its flags describe.
func TestOptionsChooseLayouts(t *testing.T) {
	textlm := filepath.Join(t.TempDir(), "textlm")
	if err := os.WriteFile(textlm, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		opt  Options
		want []string
		lay  Layout // the first
	}{
		{"all, as the seed draws them", Options{Seed: 1}, drawLayouts(1), Options{Seed: 1, Trainer: textlm}.layout(drawLayouts(1)[0])},
		{"one that is named, with flags for each", Options{Seed: 3, Layouts: []string{shards}, Slots: 2, StateMB: 8, Pace: time.Second}, []string{shards},
			Layout{Name: shards, World: 4, Groups: []int{0, 1, 2, 3}, Shards: 4, Slots: 2, StateMB: 8, Steps: 300, Pace: time.Second}},
		{"one of your own", Options{World: 4, Shards: 4, Slots: 2}, []string{ownLayout},
			Layout{Name: ownLayout, World: 4, Groups: []int{0, 1, 2, 3}, Shards: 4, Slots: 2, Steps: 1000, Pace: 20 * time.Millisecond}},
		{"one of your own, by its groups", Options{Groups: []int{0, 0, 1, 1, 2, 2}}, []string{ownLayout},
			Layout{Name: ownLayout, World: 6, Groups: []int{0, 0, 1, 1, 2, 2}, Steps: 1000, Pace: 20 * time.Millisecond}},
	} {
		tc.opt.Trainer = textlm
		o, err := tc.opt.withDefaults()
		if err != nil || !slices.Equal(o.Layouts, tc.want) || !reflect.DeepEqual(o.layout(o.Layouts[0]), tc.lay) {
			t.Errorf("%s: %v, %+v, %v", tc.name, o.Layouts, o.layout(o.Layouts[0]), err)
		}
		again, err := o.withDefaults()
		if o.Again, again.Again = nil, nil; err != nil || !reflect.DeepEqual(o, again) {
			t.Errorf("%s: complete options become others: %+v, %+v, %v", tc.name, o, again, err)
		}
	}
	seen := map[string]bool{}
	for seed := range uint64(20) {
		seen[drawLayouts(seed)[0]] = true
	}
	if len(seen) != len(layouts) {
		t.Errorf("20 seeds begin with %v alone", seen)
	}
	_, err := Options{Trainer: textlm, Layouts: []string{pairs}, World: 4}.withDefaults()
	if err == nil || !strings.Contains(err.Error(), "--layouts pairs") {
		t.Errorf("a layout that is named and one that is described: %v", err)
	}
}

// Each layout draws its world, its state and its slots by the seed, the same whatever other layouts the run has, and within the memory of a
// small machine. Flags override that; another trainer than textlm, which may lack the flags, trains layouts as they are.
func TestSizesFollowFromTheSeed(t *testing.T) {
	seen := map[string]map[string]bool{}
	for _, name := range Layouts() {
		seen[name] = map[string]bool{}
		for seed := range uint64(60) {
			o := Options{Seed: seed, Trainer: "bin/textlm --positions window"}
			l := o.layout(name)
			o.Layouts = []string{name}
			if again := o.layout(name); !reflect.DeepEqual(l, again) {
				t.Errorf("seed %d: %+v, then %+v", seed, l, again)
			}
			if len(l.Groups) != l.World || l.World%max(l.Shards, 2) != 0 || l.lone() != (name != pairs) || l.Racks != (name == oneMirror) {
				t.Errorf("seed %d: %+v", seed, l)
			}
			// An arena of each rank, one of a mirror for it, and the state that trainer and undisturbed run have for themselves.
			if most := l.World * l.StateMB * (2*l.Slots + 2); most > 3<<10 {
				t.Errorf("seed %d: %s with %s needs %d MiB", seed, name, l.size(), most)
			}
			for _, what := range []string{fmt.Sprint(l.World, " ranks"), fmt.Sprint(l.StateMB, " MiB"), fmt.Sprint(l.Slots, " slots")} {
				seen[name][what] = true
				if !strings.Contains(l.size(), what) {
					t.Errorf("%q does not say %s", l.size(), what)
				}
			}
			o.Slots, o.StateMB = 4, 9
			if l := o.layout(name); l.Slots != 4 || l.StateMB != 9 {
				t.Errorf("seed %d: %+v with --slots 4 --state-mb 9", seed, l)
			}
			o = Options{Seed: seed, Trainer: "python train.py"}
			if l := o.layout(name); l.size() != (Options{Trainer: o.Trainer}).layout(name).size() {
				t.Errorf("seed %d: %s for a trainer that may not know its flags", seed, l.size())
			}
		}
		if len(seen[name]) != 2+2+3 {
			t.Errorf("60 seeds give %s %v alone", name, slices.Sorted(maps.Keys(seen[name])))
		}
	}
}

// What is aimed at needs a copy that takes a while, and mirrors of groups.
func TestLayoutsLackMoments(t *testing.T) {
	for _, tc := range []struct {
		layout, kind string
		has          bool
	}{{pairs, captureRank, false}, {pairs, rankKill, true}, {shards, pushDaemon, true}, {oneMirror, openingRank, true}, {pairs, heir, true}, {shards, heir, false}} {
		if why := (Options{}).layout(tc.layout).lacks(tc.kind); (why == "") != tc.has {
			t.Errorf("%s with %s: %q", tc.kind, tc.layout, why)
		}
	}
	l := Options{StateMB: 64}.layout(pairs)
	if l.lacks(captureRank) != "" || l.lacks(pushRank) == "" {
		t.Errorf("large pairs have captures to aim at, and no push of a group")
	}
}

// A recovery is bounded by a calm one of the same run and by the time limits that its kind may have to wait out.
func TestBoundsFollowACalmRecovery(t *testing.T) {
	slow, fast := bounds{calm: 4 * time.Second}, bounds{calm: time.Second / 2}
	if fast.recovery(rankKill) >= slow.recovery(rankKill) || fast.recovery(rankKill) >= fast.recovery(rankKill, nodeLoss) {
		t.Errorf("%v, %v, %v", fast.recovery(rankKill), slow.recovery(rankKill), fast.recovery(rankKill, nodeLoss))
	}
	for kind, l := range limits {
		if !slices.Contains(Known(), kind) || l <= ordinary {
			t.Errorf("%s has the limit %v", kind, l)
		}
	}
	for kind, l := range lasts {
		if l[1] > longest {
			t.Errorf("%s lasts up to %v", kind, l[1])
		}
	}
}

// Time in which a thread waited for a core that others had counts less, as far as the calm job did not have that too; some always counts.
func TestBoundsGoByTheTimeThatIsServed(t *testing.T) {
	waited := map[int]time.Duration{}
	s := newServed(func() map[int]time.Duration { return maps.Clone(waited) })
	at := time.Now()
	pass := func(worst time.Duration) time.Duration {
		before := s.now()
		waited[1], waited[2] = waited[1]+worst, waited[2]+worst/10
		at = at.Add(time.Second)
		s.look(at)
		return s.now() - before
	}
	pass(0)
	for range 4 {
		if got := pass(200 * time.Millisecond); got != time.Second {
			t.Errorf("%v of a second of the calm job count", got)
		}
	}
	if calm := s.calmed(); calm != 0.8 {
		t.Errorf("a core was at hand for %v of the calm job", calm)
	}
	for _, tc := range []struct{ worst, want time.Duration }{
		{0, time.Second}, {200 * time.Millisecond, time.Second}, {600 * time.Millisecond, time.Second / 2},
		{time.Second, time.Second / 4},
	} {
		if got := pass(tc.worst); (got - tc.want).Abs() > time.Microsecond {
			t.Errorf("%v count of a second in which a thread waited %v for a core, want %v", got, tc.worst, tc.want)
		}
	}
	waited[3] = time.Hour // a thread that is seen for the first time
	if got := pass(0); got != time.Second {
		t.Errorf("%v count of a second in which a thread began", got)
	}
}

// The words of an arena are read from outside, through the descriptors of whoever has it.
func TestWordsOfAnotherProcess(t *testing.T) {
	region := replica.Region{Name: "weights", DType: replica.U8, Kind: replica.Replicated, Class: replica.Window, Shape: []uint64{8192}, Bytes: 8192}
	g, err := replica.NewGeometry([]replica.Region{region})
	if err != nil {
		t.Fatal(err)
	}
	a, err := shm.Create(shm.Spec{Cluster: replica.ClusterID{1}, Job: replica.JobID{1}, Rank: 2, Geometry: g, Slots: 2, Mirror: true, ChunkBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	w := newWords("n1")
	defer w.close()
	w.find(os.Getpid())
	w.find(os.Getpid()) // it is known already
	list := w.spots(false)
	if len(list) != 2 || list[0].rank != 2 || !list[0].mirror || list[0].now().State() != replica.SlotFree {
		t.Fatalf("%v", list)
	}
	copying := list[0]
	copying.word = replica.PackSlot(1, replica.SlotCopying)
	for _, tc := range []struct {
		aim    string
		both   bool
		word   replica.SlotWord
		waited time.Duration
		want   bool
	}{
		{pushDaemon, true, copying.word, 0, true}, {pushDaemon, false, copying.word, 0, false}, {pushDaemon, false, copying.word, aimPatience, true},
		{pushDaemon, true, list[0].word, 0, false}, {captureRank, true, copying.word, 0, false}, {restoreRank, true, copying.word, 0, true},
		{openingRank, false, copying.word, 0, true}, // no mirror has private parts before the first step
	} {
		s := copying
		s.both, s.word = tc.both, tc.word
		if aims[tc.aim].wants(s, tc.waited) != tc.want {
			t.Errorf("%s at %v, which has the private part %v, after %v: want %v", tc.aim, s, tc.both, tc.waited, tc.want)
		}
	}
}

// A job that ended is judged by its last commit.
func TestAJobThatEndsUncommitted(t *testing.T) {
	r := &runner{lay: Layout{Steps: 500}, bounds: bounds{rest: 1}}
	if why := r.behind(499); why != "" {
		t.Error(why)
	}
	if why := r.behind(238); !strings.Contains(why, "238") {
		t.Errorf("%q", why)
	}
}

// A failed run's report has what is needed to understand it.
func TestReportHasTimelineLogsAndStatus(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "report")
	if err := os.MkdirAll(filepath.Join(from, "0", "logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	files := []string{"timeline.txt", "0/logs/n1-daemon.log", "0/n1.yaml", "0/status-n1.json", "0/words.txt"}
	for _, f := range append(files, "secret") {
		if err := os.WriteFile(filepath.Join(from, f), []byte(f), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyOut(from, to, true); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(filepath.Join(to, f)); err != nil || string(b) != f {
			t.Errorf("%s: %q, %v", f, b, err)
		}
	}
	if _, err := os.Stat(filepath.Join(to, "secret")); !errors.Is(err, os.ErrNotExist) {
		t.Error("it copies what it does not know")
	}
}

// What a moved directory has is not what generations were written to.
func TestDurableDirectoryMovesAwayAndBack(t *testing.T) {
	spawn := cluster.NewSpawner()
	defer spawn.Close()
	d, err := newDurable(spawn, filepath.Join(t.TempDir(), "disk"), 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	marker := filepath.Join(d.dir, "job", "run", "commits", "step-00000002.e1.json")
	err = spawn.Do(func() error {
		return errors.Join(os.MkdirAll(filepath.Dir(marker), 0o700), os.WriteFile(marker, nil, 0o600))
	})
	if err != nil || d.markers() != 1 {
		t.Fatalf("%d markers, %v", d.markers(), err)
	}
	for _, kind := range []string{diskFull, diskReadOnly, diskMoved} {
		if why := d.lacks(kind); why != "" {
			t.Logf("%s: %s", kind, why)
			continue
		}
		end, err := d.fault(kind)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		write := spawn.Do(func() error { return os.WriteFile(filepath.Join(d.dir, "x"), bytes.Repeat([]byte("x"), 4096), 0o600) })
		if moved := kind == diskMoved; moved != (write == nil) || moved == (d.markers() == 1) {
			t.Errorf("%s: a file there: %v; %d markers", kind, write, d.markers())
		}
		if err := end(); err != nil || d.markers() != 1 {
			t.Errorf("after %s: %d markers, %v", kind, d.markers(), err)
		}
	}
	if err := d.forget("job"); err != nil || d.markers() != 0 {
		t.Errorf("%d markers of a job that is over, %v", d.markers(), err)
	}
}

// A process that waits for a rank learns its place, once.
func TestSlowStartIsAskedForOnce(t *testing.T) {
	dir := t.TempDir()
	if err := askSlow(dir, 3, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	t.Setenv("REPLICAD_RANK", "3")
	for range 2 {
		if err := Become(dir, false, []string{"/nonexistent/trainer"}); err == nil || !strings.Contains(err.Error(), "/nonexistent/trainer") {
			t.Error(err)
		}
		if _, err := os.Stat(slowFile(dir, 3)); !errors.Is(err, os.ErrNotExist) {
			t.Error("the next start is slow as well")
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(w, `{"REPLICAD_RANK":"5"}`); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(r.Fd())) // learnPlace closes it: a number that r closed once more might be another file's by then
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	t.Setenv("REPLICAD_WAIT_FD", fmt.Sprint(fd))
	defer w.Close()
	if err := learnPlace(); err != nil || os.Getenv("REPLICAD_RANK") != "5" || os.Getenv("REPLICAD_WAIT_FD") != "" {
		t.Errorf("rank %q, %v", os.Getenv("REPLICAD_RANK"), err)
	}
}
