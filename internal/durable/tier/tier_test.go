package tier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

const name = durabletest.JobName

// fleet writes generations of a job, as its daemons do.
type fleet struct {
	t    *testing.T
	tier *Tier
	of   Attempt
	line replica.Lineage
	last replica.Step // that next gave
	over []Claim      // of whom it took the run
	more []replica.Region

	saying func(*Said) // puts in what commits say besides; nil: nothing
}

// next is a step beyond all others.
func (f *fleet) next() replica.Step {
	f.last = max(f.last+10, 1000)
	return f.last
}

func newFleet(t *testing.T, tier *Tier, who string) *fleet {
	return &fleet{t: t, tier: tier, of: Attempt{Name: name, Job: durabletest.Job, Began: 1_764_090_960_000, Cluster: durabletest.Cluster, Fleet: who, Epoch: 1}, line: replica.Lineage{{Epoch: 1}}}
}

func gen(e replica.Epoch, s replica.Step) replica.Generation {
	return replica.Generation{Epoch: e, Step: s}
}

// parts are those of a generation, of the fleet's run.
func (f *fleet) parts(g replica.Generation) (frozen []*Part, parts []Part) {
	made := durabletest.Make(g, 1, f.more...)
	mine := func(p durabletest.Part) Part {
		m := p.Manifest
		m.Job = f.of.Job
		m.Root = safetensors.Hash(m.RootInput())
		return Part{Manifest: m, Regions: p.Regions, Read: p.Read}
	}
	fr := mine(made.Frozen[0])
	for _, p := range append(made.Groups, made.Private...) {
		part := mine(p)
		var along *Part
		if part.Manifest.Part.Kind == replica.ReplicatedPart {
			part.Manifest.FrozenRoot = fr.Manifest.Root
			part.Manifest.Root = safetensors.Hash(part.Manifest.RootInput())
			along = &fr
		}
		frozen, parts = append(frozen, along), append(parts, part)
	}
	return frozen, parts
}

// begins writes all objects of a generation; the attempt is the next one.
func (f *fleet) begins(g replica.Generation) (a Attempt, roots map[replica.Part]replica.Digest, objects []replica.Stored, err error) {
	f.of.Number++
	a = f.of
	a.Generation = g
	roots = map[replica.Part]replica.Digest{}
	frozen, parts := f.parts(g)
	for _, p := range parts {
		roots[p.Manifest.Part] = p.Manifest.Root
	}
	group, err := f.tier.Write(f.t.Context(), a, ObjectOf("n1", parts[0].Manifest.Part), frozen[0], parts[0])
	if err != nil {
		return a, nil, nil, err
	}
	private, err := f.tier.Write(f.t.Context(), a, ObjectOf("n1", parts[1].Manifest.Part), nil, parts[1:]...)
	return a, roots, []replica.Stored{group, private}, err
}

func (f *fleet) said(g replica.Generation) Said {
	s := Said{Position: replica.Position(g), Layout: durabletest.Make(g, 1).Layout, Lineage: f.line}
	if f.saying != nil {
		f.saying(&s)
	}
	return s
}

func (f *fleet) tries(step replica.Step) error {
	g := gen(f.of.Epoch, step)
	a, roots, objects, err := f.begins(g)
	if err != nil {
		return err
	}
	return f.tier.Commit(f.t.Context(), a, f.said(g), roots, objects)
}

// writes makes generations durable, and keeps some.
func (f *fleet) writes(keep int, steps ...replica.Step) {
	f.t.Helper()
	for _, step := range steps {
		if err := f.tries(step); err != nil {
			f.t.Fatal(err)
		}
		if err := f.tier.Prune(f.t.Context(), Retention{Name: name, Job: f.of.Job, Lineage: f.line, Keep: replica.Keep{Last: keep}}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// looks finds what lies there at a step, to be gone on from.
func (f *fleet) looks(from replica.Step) (at Found, was replica.Epoch, err error) {
	found, _, err := f.tier.Find(f.t.Context(), name, f.of.Job)
	if err != nil {
		return at, 0, err
	}
	i := slices.IndexFunc(found, func(g Found) bool { return g.Generation.Step == from })
	return found[i], found[0].Generation.Epoch, nil
}

// takes claims the next epoch, and opens it at what was found.
func (f *fleet) takes(at Found, was replica.Epoch) error {
	is, err := f.tier.Resume(f.t.Context(), at, f.of.Cluster, f.of.Fleet, was)
	if err != nil {
		return err
	}
	f.of.Epoch, f.of.Number, f.of.Began, f.over = is.Epoch+1, is.Writes, is.Began, is.Over
	f.line = append(slices.Clone(at.Lineage), replica.Opened{Epoch: is.Epoch + 1, Start: at.Generation.Step})
	return nil
}

// resumes does both.
func (f *fleet) resumes(from replica.Step) error {
	at, was, err := f.looks(from)
	if err != nil {
		return err
	}
	return f.takes(at, was)
}

// reads reads a generation back.
func (f *fleet) reads(step replica.Step) error {
	f.t.Helper()
	list, err := f.tier.List(f.t.Context(), name)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, l := range list {
		if l.Generation.Step == step {
			g, err := f.tier.Look(f.t.Context(), name, l.Run.ID, l.Generation)
			if err != nil {
				f.t.Fatal(err)
			}
			return f.tier.ReadBack(f.t.Context(), g, How{})
		}
	}
	f.t.Fatalf("no step %d", step)
	return nil
}

// lies says what lies there: steps with their states.
func (f *fleet) lies() string {
	f.t.Helper()
	list, err := f.tier.List(f.t.Context(), name)
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	for _, l := range list {
		out = append(out, fmt.Sprintf("%d %s", l.Generation.Step, l.State))
	}
	return strings.Join(out, ", ")
}

func (f *fleet) wants(what string) {
	f.t.Helper()
	if got := f.lies(); got != what {
		f.t.Fatalf("there lie %q, want %q", got, what)
	}
}

// inMemory is a tier over a root in memory.
func inMemory(t *testing.T, s Settings) (*Tier, *memory.Store) {
	st := memory.New()
	tier := New(st, s)
	t.Cleanup(func() { tier.Close() })
	return tier, st
}

// rot changes the last byte of the one object whose key ends so.
func rot(t *testing.T, dir, pattern string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, name, "*", pattern))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	b, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(found[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// What is written is found, the newest first, and read as it was.
func TestWhatIsWrittenIsRead(t *testing.T) {
	tier, _ := inMemory(t, Settings{Reader: "n1"})
	f := newFleet(t, tier, "a")
	f.writes(5, 10, 20)
	found, skipped, err := tier.Find(t.Context(), name, replica.JobID{})
	if err != nil || len(found) != 2 || len(skipped) != 0 || found[0].Generation != gen(1, 20) || found[0].Write != 2 {
		t.Fatalf("found %+v, passed over %+v, %v", found, skipped, err)
	}
	for _, p := range durabletest.Make(gen(1, 20), 1).Private {
		r, err := tier.Open(t.Context(), name, durabletest.Job, gen(1, 20), p.Manifest.Part)
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		for i := range r.Manifest().Chunks {
			b, err := r.ReadChunk(i, nil)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, b...)
		}
		r.Close()
		if !bytes.Equal(got, p.Bytes) {
			t.Errorf("%v reads otherwise", p.Manifest.Part)
		}
	}
	if _, err := tier.Holds(t.Context(), name, durabletest.Job, gen(1, 30)); !errors.Is(err, catalog.ErrNone) {
		t.Errorf("of a generation that nobody wrote: %v", err)
	}
	_, err = tier.Holds(t.Context(), name, durabletest.Job, gen(1, 20))
	if err := errors.Join(err, f.reads(20)); err != nil {
		t.Fatal(err)
	}
	f.wants("20 good, 10 unread")
}

// A run that began with a generation of another one says so for good, and so does each of its generations.
func TestARunSaysWhatItBeganWith(t *testing.T) {
	tier, st := inMemory(t, Settings{})
	from := &replica.Origin{Asked: "s3://b/ck/lm", URL: "s3://b/ck", Job: "lm", Run: replica.JobID{7}, Place: "lm/run/step", Generation: gen(2, 2180), World: 8}
	f := newFleet(t, tier, "a")
	f.of.From, f.saying = from, func(s *Said) { s.From = from }
	f.writes(5, 2190)
	found, _, err := tier.Find(t.Context(), name, replica.JobID{})
	if err != nil || len(found) != 1 || found[0].From == nil || *found[0].From != *from {
		t.Fatalf("found %+v, %v", found, err)
	}
	keys := keysOf(t, st, "/run.json")
	if len(keys) != 1 {
		t.Fatalf("%q", keys)
	}
	b, _, err := st.Get(t.Context(), keys[0], 1<<20)
	if err != nil || !strings.Contains(string(b), `"step 2180 of s3://b/ck/lm"`) {
		t.Errorf("run.json has %s, %v", b, err)
	}
	from.World = 0
	if err := f.tries(2200); err == nil {
		t.Error("an origin that is none is written")
	}
}

// A damaged newest generation does not push a good one out, and counts for nothing until it is found whole.
func TestDamageIsNoReasonToDelete(t *testing.T) {
	dir := t.TempDir()
	tier, err := OpenDirectory(t.Context(), dir, Settings{Reader: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer tier.Close()
	f := newFleet(t, tier, "a")
	f.writes(1, 10)
	if err := f.reads(10); err != nil {
		t.Fatal(err)
	}
	f.writes(1, 20)
	const file = "step-00000020.e1/group-0.w2.safetensors"
	rot(t, dir, file)
	if err := f.reads(20); !IsDamage(err) || !strings.HasPrefix(Plain(err), "group-0.w2.safetensors, chunk ") {
		t.Fatalf("it reads with %v", err)
	}
	f.writes(1, 30)
	f.wants("30 unread, 20 damaged, 10 good")
	if _, err := tier.Holds(t.Context(), name, durabletest.Job, gen(1, 20)); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("the damaged one is claimed: %v", err)
	}
	if _, err := tier.Open(t.Context(), name, durabletest.Job, gen(1, 20), replica.OfGroup(0)); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("the damaged one opens: %v", err)
	}
	rot(t, dir, file) // it is as it was
	if err := f.reads(20); err != nil {
		t.Fatal(err)
	}
	f.writes(1, 40)
	f.wants("40 unread, 30 unread, 20 good")
}

// A read that fails, for whatever it was made, has the generation read whole, and that noted.
func TestAReadThatFailsIsNoted(t *testing.T) {
	dir := t.TempDir()
	tier, err := OpenDirectory(t.Context(), dir, Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer tier.Close()
	f := newFleet(t, tier, "a")
	f.writes(5, 10)
	rot(t, dir, "step-00000010.e1/group-0.w1.safetensors")
	r, err := tier.Open(t.Context(), name, durabletest.Job, gen(1, 10), replica.OfGroup(0))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	last := len(r.Manifest().Chunks) - 1
	if _, err := r.ReadChunk(last, nil); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("the last chunk reads with %v", err)
	}
	f.wants("10 damaged")
}

// What a run went on from stays until as many newer ones as are kept were read back.
func TestWhatARunWentOnFromStays(t *testing.T) {
	tier, _ := inMemory(t, Settings{})
	f := newFleet(t, tier, "a")
	f.writes(1, 10)
	if err := errors.Join(f.reads(10), f.resumes(10)); err != nil {
		t.Fatal(err)
	}
	f.writes(1, 20, 30)
	f.wants("30 unread, 20 unread, 10 good")
	if err := f.reads(30); err != nil {
		t.Fatal(err)
	}
	f.writes(1, 40)
	f.wants("40 unread, 30 good")
}

// Of two fleets that resume one run at once one wins. The other is told whose it is. They may be of two clusters, and call themselves the same.
func TestTwoFleetsResumeOneRun(t *testing.T) {
	t.Run("one cluster", func(t *testing.T) { twoResume(t, "b", durabletest.Cluster) })
	t.Run("two clusters", func(t *testing.T) { twoResume(t, "b", replica.ClusterID{9}) })
	t.Run("of one name", func(t *testing.T) { twoResume(t, "a", replica.ClusterID{9}) })
}

func twoResume(t *testing.T, name string, cluster replica.ClusterID) {
	t.Helper()
	tier, st := inMemory(t, Settings{})
	newFleet(t, tier, "first").writes(5, 10)
	a, b := newFleet(t, tier, "a"), newFleet(t, New(st, Settings{Cluster: cluster}), name)
	b.of.Cluster = cluster
	at, was, err := b.looks(10)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.resumes(10), a.resumes(10)); err != nil || a.of.Epoch != 2 || a.over != nil { // its leader may have changed
		t.Fatalf("the first fleet resumes with %v, in epoch %d, over %+v", err, a.of.Epoch, a.over)
	}
	if err := b.takes(at, was); !errors.Is(err, ErrFenced) || !strings.Contains(err.Error(), "a (cluster ") || !strings.Contains(err.Error(), "resume again") {
		t.Fatalf("the second fleet resumes with %v", err)
	}
	if keys := keysOf(t, st, "/000003.json"); len(keys) != 0 {
		t.Errorf("who lost has claimed %q", keys)
	}
	a.writes(5, 20)
}

// A fleet that died with a claim and no commit keeps nobody waiting. Should it live, or come back in a later epoch of its own, it writes no more.
func TestAFleetThatCommittedNothingIsGoneOnFromAtOnce(t *testing.T) {
	tier, st := inMemory(t, Settings{})
	newFleet(t, tier, "first").writes(5, 10)
	a, b := newFleet(t, tier, "a"), newFleet(t, New(st, Settings{}), "b")
	if err := errors.Join(a.resumes(10), b.resumes(10)); err != nil {
		t.Fatal(err)
	}
	if b.of.Epoch != 3 || len(b.over) != 1 || b.over[0].Fleet != "a" || b.over[0].Epoch != 2 {
		t.Errorf("the next fleet opens epoch %d, over %+v", b.of.Epoch, b.over)
	}
	if log, _, err := tier.cat.Logs(t.Context(), name, 1); err != nil || len(log) != 1 || log[0].Verb != "resume" || !strings.Contains(log[0].Why, "b takes the run from a, which had claimed epoch 2") {
		t.Errorf("the log has %+v, %v", log, err)
	}
	for _, e := range []replica.Epoch{2, 3, 4, 9} {
		a.of.Epoch = e
		if err := a.tries(20); !errors.Is(err, ErrFenced) || !strings.Contains(err.Error(), "b (cluster ") {
			t.Errorf("the first one commits in epoch %d with %v", e, err)
		}
	}
	b.writes(5, 20)
	b.of.Epoch = 9
	b.writes(5, 30)
	if keys := keysOf(t, st, ".json"); slices.ContainsFunc(keys, func(k string) bool { return strings.Contains(k, "epochs/000004") }) {
		t.Errorf("who was overtaken has claimed an epoch: %q", keys)
	}
}

// A fleet that finds its epoch claimed writes nothing.
func TestAForeignClaimEndsWrites(t *testing.T) {
	tier, st := inMemory(t, Settings{})
	newFleet(t, tier, "a").writes(5, 10)
	b := newFleet(t, New(st, Settings{}), "b")
	if err := b.tries(20); !errors.Is(err, ErrFenced) {
		t.Errorf("it writes with %v", err)
	}
	b.wants("10 unread")
}

// What a write left that was given up goes, its own objects alone; a commit of it that comes late finds no place, and one that came stays.
func TestDiscard(t *testing.T) {
	tier, st := inMemory(t, Settings{})
	f := newFleet(t, tier, "a")
	f.writes(5, 10)
	g := gen(1, 20)
	a, roots, objects, err := f.begins(g)
	if err != nil {
		t.Fatal(err)
	}
	again, roots2, objects2, err := f.begins(g)
	if err != nil {
		t.Fatal(err)
	}
	all := []string{"group-0", "node-n1"}
	if err := tier.Discard(t.Context(), a, all[:1]); err != nil {
		t.Fatal(err)
	}
	if err := tier.Discard(t.Context(), a, all[1:]); err != nil { // another node
		t.Fatal(err)
	}
	if keys := keysOf(t, st, ".w2.safetensors"); len(keys) != 0 {
		t.Errorf("there are %q", keys)
	}
	if err := tier.Commit(t.Context(), a, f.said(g), roots, objects); err == nil {
		t.Error("what was discarded is committed")
	}
	if err := tier.Commit(t.Context(), again, f.said(g), roots2, objects2); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tier.Discard(t.Context(), again, all), f.reads(20)); err != nil {
		t.Errorf("a commit that came lost its objects: %v", err)
	}
}

func keysOf(t *testing.T, st store.Store, suffix string) (keys []string) {
	t.Helper()
	err := st.List(t.Context(), "", "", func(i store.Info) error {
		if strings.HasSuffix(i.Key, suffix) {
			keys = append(keys, i.Key)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// A generation that the store refuses to read is passed over as what it is; one that may be newer is not taken for gone.
func TestWhatIsRefusedIsUnreadable(t *testing.T) {
	tier, st := inMemory(t, Settings{})
	newFleet(t, tier, "a").writes(5, 10, 20)
	st.Before = func(c memory.Call) error {
		if c.Verb == "Get" && strings.HasSuffix(c.Key, "commits/step-00000020.e1.json") {
			return store.ErrRefused
		}
		return nil
	}
	found, skipped, err := tier.Find(t.Context(), name, durabletest.Job)
	if err != nil || len(found) != 1 || len(skipped) != 1 || skipped[0].State != catalog.Unreadable || skipped[0].Generation != gen(1, 20) {
		t.Errorf("found %v, passed over %+v, %v", found, skipped, err)
	}
}

// Former runs go by the rule too.
func TestFormerRunsGo(t *testing.T) {
	tier, _ := inMemory(t, Settings{KeepRuns: 1})
	for i := range 3 {
		f := newFleet(t, tier, fmt.Sprint(i))
		f.of.Job[0] = byte(i)
		f.writes(1, replica.Step(10+i))
		if err := f.reads(replica.Step(10 + i)); err != nil {
			t.Fatal(err)
		}
		f.writes(1, replica.Step(20+i))
		if err := f.reads(replica.Step(20 + i)); err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			f.writes(1, 30)
			if got := f.lies(); !strings.HasPrefix(got, "30 unread, 22 good") || strings.Contains(got, "20 ") || !strings.Contains(got, "21 good") {
				t.Errorf("there lie %s", got)
			}
		}
	}
}

// What each rule keeps stays: multiples, epochs of the loader, the best, what somebody wants kept, what is young. best.json names the best.
func TestRulesOfKeeping(t *testing.T) {
	const day = 24 * time.Hour
	for want, k := range map[string]replica.Keep{
		"90":          {Last: 1},
		"90 80":       {Last: 2},
		"90 60 30":    {Last: 1, Every: 30},
		"90 80 50 20": {Last: 1, Epochs: true}, // epochs 0: 10, 20; 1: 30 to 50; 2: 60 to 80; 3: 90
		"90 70 40":    {Last: 1, Best: replica.Best{Metric: "loss", N: 2}},
		"90 20 10":    {Last: 1, Best: replica.Best{Metric: "loss", N: 2, Order: replica.BestMax}},
		"90 70 60 40": {Last: 1, Best: replica.Best{Metric: "loss", N: 2, Order: replica.BestMin}, Every: 60},
		"90 80 70":    {Last: 1, Younger: replica.Age((day + day/2) / time.Second)}, // one in 12 hours
	} {
		tier, st := inMemory(t, Settings{KeepRuns: 1, Best: k.Best})
		f := newFleet(t, tier, "a")
		loss := map[replica.Step]Metric{10: 9, 20: 8, 30: 7, 40: 1, 50: 6, 60: 5, 70: 2, 80: 4, 90: 3}
		epoch := map[replica.Step]uint64{30: 1, 40: 1, 50: 1, 60: 2, 70: 2, 80: 2, 90: 3}
		for step := replica.Step(10); step <= 90; step += 10 {
			e := epoch[step]
			f.saying = func(s *Said) {
				s.Metrics, s.Loader, s.At = map[string]Metric{"loss": loss[step]}, &e, int64(step)/10*(day/2).Milliseconds()
			}
			if err := errors.Join(f.tries(step), f.reads(step)); err != nil {
				t.Fatal(err)
			}
		}
		if err := tier.Prune(t.Context(), Retention{Name: name, Job: f.of.Job, Lineage: f.line, Keep: k}); err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(strings.ReplaceAll(f.lies(), " good", ""), ",", ""); got != want {
			t.Errorf("%+v: there lie %s, want %s", k, got, want)
		}
		if best := slices.Contains(st.Keys(), name+"/best.json"); best != (k.Best.N > 0) {
			t.Errorf("%+v: best.json is there: %v", k, best)
		}
	}
	tier, _ := inMemory(t, Settings{})
	if err := tier.Prune(t.Context(), Retention{Name: name, Job: durabletest.Job, Lineage: nil, Keep: replica.Keep{}}); err == nil {
		t.Error("a rule that keeps nothing is taken")
	}
}

// What somebody wants kept is kept, until it is unpinned.
func TestKept(t *testing.T) {
	tier, _ := inMemory(t, Settings{KeepRuns: 1})
	f := newFleet(t, tier, "a")
	f.writes(1, 10)
	if err := tier.Keep(t.Context(), name, f.of.Job, gen(f.of.Epoch, 10), "epoch 1"); err != nil {
		t.Fatal(err)
	}
	if err := f.reads(10); err != nil {
		t.Fatal(err)
	}
	f.writes(1, 20)
	if err := f.reads(20); err != nil {
		t.Fatal(err)
	}
	f.writes(1, 30)
	if got := f.lies(); !strings.Contains(got, "10 good") {
		t.Errorf("there lie %s", got)
	}
	if err := tier.Keep(t.Context(), name, f.of.Job, gen(f.of.Epoch, 11), "epoch 1"); !errors.Is(err, catalog.ErrNone) {
		t.Errorf("one that is not there is kept: %v", err)
	}
}

// A job of the same name may train in another cluster that has the same store: its runs are no former ones.
func TestRunsOfOtherClustersAreLeftAlone(t *testing.T) {
	tier, _ := inMemory(t, Settings{KeepRuns: 1})
	other := newFleet(t, tier, "other")
	other.of.Cluster = replica.ClusterID{9}
	for i := range 4 {
		other.of.Job, other.of.Number = replica.JobID{0x90 + byte(i)}, 0
		other.writes(1, replica.Step(90+i))
	}
	for i := range 3 {
		f := newFleet(t, tier, fmt.Sprint(i))
		f.of.Job[0] = byte(i)
		f.writes(1, replica.Step(10+i))
		if err := f.reads(replica.Step(10 + i)); err != nil {
			t.Fatal(err)
		}
		f.writes(1, replica.Step(20+i))
	}
	got := other.lies()
	for i := range 4 {
		if !strings.Contains(got, fmt.Sprintf("%d unread", 90+i)) {
			t.Errorf("step %d of the other cluster is gone: %s", 90+i, got)
		}
	}
	if strings.Contains(got, "10 good") {
		t.Errorf("a former run of this cluster is kept: %s", got)
	}
}

// A cluster goes on with the run of another one: what it opens is its own, frozen parts too, its durable writes and the rules of keeping go on with the
// run, and the other cluster's former runs stay. The other cluster writes no more; should it come back, it takes the run in turn.
func TestAnotherClusterGoesOn(t *testing.T) {
	second := replica.ClusterID{9}
	dir := t.TempDir()
	open := func(s Settings) *Tier {
		t.Helper()
		tier, err := OpenDirectory(t.Context(), dir, s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tier.Close() })
		return tier
	}
	here := open(Settings{Reader: "n1", Cluster: durabletest.Cluster})
	for i := range 2 {
		before := newFleet(t, here, "before")
		before.of.Job = replica.JobID{0x70 + byte(i)}
		before.writes(1, replica.Step(80+i))
	}
	a := newFleet(t, here, "a")
	a.writes(5, 10, 20)
	there := open(Settings{Reader: "m1", Cluster: second, KeepRuns: 1})
	b := newFleet(t, there, "b")
	b.of.Cluster = second
	if err := b.resumes(20); err != nil {
		t.Fatal(err)
	}
	b.opens(1, 20, second)
	if err := a.tries(30); !errors.Is(err, ErrFenced) || !strings.Contains(err.Error(), "b (cluster "+second.String()) {
		t.Errorf("the other cluster writes with %v", err)
	}
	b.writes(1, 30)
	if err := b.reads(30); err != nil {
		t.Fatal(err)
	}
	b.writes(1, 40)
	b.opens(2, 40, second)
	b.wants("40 unread, 30 good, 81 unread, 80 unread")
	if err := errors.Join(a.resumes(40), a.tries(50)); err != nil {
		t.Fatal(err)
	}
	a.opens(2, 40, durabletest.Cluster)
	if err := b.tries(60); !errors.Is(err, ErrFenced) || !strings.Contains(err.Error(), "a (cluster "+durabletest.Cluster.String()) {
		t.Errorf("it writes with %v, after the first one came back", err)
	}
}

// opens reads all parts of a generation, whose manifests are a cluster's.
func (f *fleet) opens(e replica.Epoch, step replica.Step, cluster replica.ClusterID) {
	f.t.Helper()
	frozen, parts := f.parts(gen(e, step))
	for _, p := range append(slices.DeleteFunc(frozen, func(p *Part) bool { return p == nil }), &parts[0], &parts[1], &parts[2]) {
		r, err := f.tier.Open(f.t.Context(), name, f.of.Job, gen(e, step), p.Manifest.Part)
		if err != nil {
			f.t.Fatal(err)
		}
		if m := r.Manifest(); m.Cluster != cluster || m.Root != p.Manifest.Root || safetensors.Hash(m.RootInput()) != m.Root {
			f.t.Errorf("%v is of cluster %v, root %v; want %v, %v", p.Manifest.Part, m.Cluster, m.Root, cluster, p.Manifest.Root)
		}
		for i := range r.Manifest().Chunks {
			if _, err := r.ReadChunk(i, nil); err != nil {
				f.t.Error(err)
			}
		}
		r.Close()
	}
}

// A run whose order is no less than the last one's, or unsure, is its rival: nothing says which of the two was written last.
func TestRival(t *testing.T) {
	of := func(run byte, order uint64, unsure error) (f Found) {
		f.Commit.Run, f.Run.Order, f.Run.Unsure = replica.JobID{run}, order, unsure
		return f
	}
	away := errors.New("away")
	for want, list := range map[byte][][]Found{
		0: {nil, {of(1, 5, nil)}, {of(1, 5, nil), of(1, 5, nil)}, {of(1, 5, nil), of(2, 4, nil)}, {of(1, 5, away), of(1, 5, away), of(2, 4, nil)}},
		2: {{of(1, 5, nil), of(2, 5, nil)}, {of(1, 5, nil), of(1, 5, nil), of(2, 4, away)}},
		3: {{of(1, 5, nil), of(2, 4, nil), of(3, 3, away)}},
	} {
		for _, found := range list {
			if f, rival := Rival(found); rival != (want != 0) || rival && f.Commit.Run != (replica.JobID{want}) {
				t.Errorf("the rival of the first in %+v is %v: %v", found, f.Commit.Run, rival)
			}
		}
	}
}

// A reader that is broken off takes no damage in.
func TestAnEndedReadSaysNothing(t *testing.T) {
	tier, _ := inMemory(t, Settings{})
	f := newFleet(t, tier, "a")
	f.writes(5, 10)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := tier.Open(ctx, name, durabletest.Job, gen(1, 10), replica.OfGroup(0))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cancel()
	_, _ = r.ReadChunk(0, nil) // it may have been read ahead
	f.wants("10 unread")
}

// Nothing is written to a store before its conditions were seen to hold, and one that did not answer is tried again.
func TestAStoreIsTriedBeforeItIsWrittenTo(t *testing.T) {
	tier, st := inMemory(t, Settings{})
	away := errors.New("away")
	st.Before = func(c memory.Call) error {
		if c.Changes() && away != nil {
			return fmt.Errorf("%w: %w", store.ErrDoubtful, away)
		}
		return nil
	}
	f := newFleet(t, tier, "a")
	if err := f.tries(10); !errors.Is(err, away) || tier.Proved() || !strings.Contains(tier.Silent(), "away") {
		t.Errorf("it writes with %v; %q", err, tier.Silent())
	}
	away = nil
	f.writes(5, 20)
	if tier.Silent() != "" || !tier.Proved() {
		t.Errorf("it is said to be silent: %q", tier.Silent())
	}
	if keys := keysOf(t, st, ".w1.safetensors"); len(keys) != 0 {
		t.Errorf("there are %q", keys)
	}
}

// A write waits longer for a probe than a daemon that starts: where many write the store asks each for fewer requests.
func TestAWriteWaitsForItsProbe(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		tier, st := inMemory(t, Settings{})
		st.Before = func(c memory.Call) error {
			time.Sleep(time.Second)
			return nil
		}
		if err := tier.Prove(t.Context()); err == nil {
			t.Error("a daemon waits for it at its start")
		}
		newFleet(t, tier, "a").writes(10)
	})
}

// A store that takes every put is refused.
func TestAStoreWithoutConditions(t *testing.T) {
	tier, st := inMemory(t, Settings{})
	st.Heedless = true
	if err := newFleet(t, tier, "a").tries(10); !errors.Is(err, ErrUnconditional) {
		t.Errorf("it writes with %v", err)
	}
	if keys := keysOf(t, tier.st, ""); len(keys) != 0 {
		t.Errorf("there are %q", keys)
	}
}

// Where it was said that a store has no conditions nobody tries them. Of two fleets that resume a run there one opens, whose it was writes no more, and a
// claim that a dead one left beside another's is named to the next.
func TestWithoutConditionsByName(t *testing.T) {
	tier, st := inMemory(t, Settings{Unconditional: true})
	st.Heedless = true
	if err := tier.Prove(t.Context()); err != nil || !tier.Proved() || len(keysOf(t, st, "")) != 0 {
		t.Errorf("it is tried with %v, and has %q", err, keysOf(t, st, ""))
	}
	first := newFleet(t, tier, "first")
	first.writes(5, 10)
	a, b := newFleet(t, tier, "a"), newFleet(t, New(st.Client(), Settings{Unconditional: true}), "b")
	at, was, err := b.looks(10)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.resumes(10); err != nil {
		t.Fatal(err)
	}
	if err := b.takes(at, was); !errors.Is(err, ErrFenced) || !strings.Contains(err.Error(), "a (cluster ") {
		t.Errorf("the second one resumes with %v", err)
	}
	a.writes(5, 20)
	if err := first.tries(30); !errors.Is(err, ErrFenced) {
		t.Errorf("the first fleet writes on: %v", err)
	}
	r, err := tier.cat.At(t.Context(), name, durabletest.Job)
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range []string{"c", "d"} { // they have died before they listed what is beside their own
		forked(t, st, r, 3, who)
	}
	if err := b.resumes(20); err != nil || b.of.Epoch != 4 || len(b.over) != 2 {
		t.Fatalf("it resumes with %v, in epoch %d, over %+v", err, b.of.Epoch, b.over)
	}
	b.writes(5, 30)
	for _, who := range []string{"e", "f"} { // the lists of their store lag: each has seen itself alone
		forked(t, st, r, 5, who)
	}
	e := newFleet(t, tier, "e")
	e.of.Epoch, e.of.Number = 5, 90
	if err := e.tries(40); !errors.Is(err, ErrFenced) || !strings.Contains(err.Error(), "f (cluster ") {
		t.Errorf("one of two that have one epoch commits with %v", err)
	}
	at, _, err = b.looks(30)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.takes(at, 5); err != nil || b.of.Epoch != 6 || len(b.over) != 2 { // as if something were committed there
		t.Errorf("it resumes with %v, in epoch %d, over %+v", err, b.of.Epoch, b.over)
	}
}

// forked puts a claim as a fleet does that resumes a run.
func forked(t *testing.T, st store.Store, r catalog.Run, e replica.Epoch, who string) {
	t.Helper()
	claim := Claim{Run: r.ID, Epoch: e, Cluster: durabletest.Cluster, Fleet: who, Takes: true, Order: 1}
	raw, err := claim.Seal()
	if err == nil {
		_, err = st.PutNew(t.Context(), r.Key(format.Name{Kind: format.ClaimKind, Epoch: e, Fleet: format.FleetKey(claim.Cluster, who)}), raw)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A store without conditions that does not answer is not taken for one that does.
func TestWithoutConditionsAndSilent(t *testing.T) {
	tier, st := inMemory(t, Settings{Unconditional: true})
	st.Before = func(memory.Call) error { return store.ErrDoubtful }
	if err := tier.Prove(t.Context()); !errors.Is(err, store.ErrDoubtful) || tier.Proved() || tier.Silent() == "" {
		t.Errorf("%v, %q", err, tier.Silent())
	}
}

// A stripped generation is read as others are, and nothing goes on from it: the one before it is found, and it is said why the newer one is not.
func TestAStrippedOneIsPassedOver(t *testing.T) {
	tier, st := inMemory(t, Settings{})
	f := newFleet(t, tier, "a")
	f.more = durabletest.Trained()
	f.writes(3, 10, 20)
	cat := catalog.New(st, catalog.Options{})
	found, _, err := cat.Find(t.Context(), name, f.of.Job)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cat.Strip(t.Context(), found[0], "test", false); err != nil {
		t.Fatal(err)
	}
	found, skipped, err := tier.Find(t.Context(), name, f.of.Job)
	if err != nil || len(found) != 1 || found[0].Generation != gen(1, 10) || len(skipped) != 1 || skipped[0].Generation != gen(1, 20) || skipped[0].State != catalog.Stripped || !strings.Contains(skipped[0].Plain, "stripped of its optimizer state") {
		t.Fatalf("%+v, %+v, %v", found, skipped, err)
	}
	at, err := tier.Look(t.Context(), name, f.of.Job, gen(1, 20))
	if err != nil || !at.Stripped {
		t.Fatal(at, err)
	}
	if err := tier.ReadBack(t.Context(), at, How{}); err != nil {
		t.Fatal(err)
	}
	if err := tier.Prune(t.Context(), Retention{Name: name, Job: f.of.Job, Lineage: f.line, Keep: replica.Keep{Last: 1}}); err != nil {
		t.Fatal(err)
	}
	if found, _, err := tier.Find(t.Context(), name, f.of.Job); err != nil || len(found) != 1 {
		t.Errorf("the one that can be gone on from went: %v, %v", found, err)
	}
}

// What is kept as good is looked at before another one goes for it: one that has lost a file pushes nothing out, and is marked.
func TestALookBeforeAnythingGoes(t *testing.T) {
	dir := t.TempDir()
	tier, err := OpenDirectory(t.Context(), dir, Settings{Reader: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer tier.Close()
	f := newFleet(t, tier, "a")
	f.writes(3, 10, 20)
	if err := errors.Join(f.reads(10), f.reads(20)); err != nil {
		t.Fatal(err)
	}
	lost, err := filepath.Glob(filepath.Join(dir, name, "*", "step-00000020.e1", "group-0.w2.safetensors"))
	if err != nil || len(lost) != 1 {
		t.Fatal(lost, err)
	}
	if err := os.Remove(lost[0]); err != nil {
		t.Fatal(err)
	}
	f.wants("20 good, 10 good")
	if err := tier.Prune(t.Context(), Retention{Name: name, Job: f.of.Job, Lineage: f.line, Keep: replica.Keep{Last: 1}}); err != nil {
		t.Fatal(err)
	}
	f.wants("20 damaged, 10 good")
}

// What cannot be found whole is marked by whoever looks for it.
func TestFindMarksDamage(t *testing.T) {
	for _, look := range []string{"find", "look"} {
		tier, m := inMemory(t, Settings{})
		f := newFleet(t, tier, "a")
		f.writes(3, 10, 20)
		if err := errors.Join(f.reads(10), f.reads(20)); err != nil {
			t.Fatal(err)
		}
		at, _, err := f.looks(20)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Delete(t.Context(), at.Run.Under(at.Commit.Index.Key)); err != nil {
			t.Fatal(err)
		}
		if look == "find" {
			_, _, err = tier.Find(t.Context(), name, durabletest.Job)
		} else if _, err = tier.Look(t.Context(), name, durabletest.Job, gen(1, 20)); IsDamage(err) {
			err = nil
		}
		if err != nil {
			t.Fatal(err)
		}
		f.wants("20 damaged, 10 good")
	}
}

// A store that does not answer the look has nothing deleted.
func TestNoAnswerDeletesNothing(t *testing.T) {
	tier, m := inMemory(t, Settings{})
	var refuses atomic.Bool
	m.Before = func(c memory.Call) error {
		if refuses.Load() && c.Verb == "Get" && strings.Contains(c.Key, "step-00000020.e1") {
			return store.ErrRefused
		}
		return nil
	}
	f := newFleet(t, tier, "a")
	f.writes(3, 10, 20)
	if err := errors.Join(f.reads(10), f.reads(20)); err != nil {
		t.Fatal(err)
	}
	refuses.Store(true)
	if err := tier.Prune(t.Context(), Retention{Name: name, Job: f.of.Job, Lineage: f.line, Keep: replica.Keep{Last: 1}}); !errors.Is(err, store.ErrRefused) {
		t.Errorf("pruned with %v", err)
	}
	refuses.Store(false)
	f.wants("20 good, 10 good")
}
