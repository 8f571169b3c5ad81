package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/diff"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

var (
	fleet = write.Fleet{Cluster: durabletest.Cluster, Name: "fleet-1", Epoch: 1}
	began = time.Date(2026, 11, 25, 17, 16, 0, 0, time.UTC)
	now   = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
)

// block has parts have several.
const block = 1 << 10

// over is a catalog that waits for nothing.
func over(st store.Store, lanes int) *Catalog {
	return with(st, lanes, encrypting)
}

// encrypting are the keys of all catalogs while TestEncrypted runs other tests.
var encrypting *sealed.Keys

// with is one that encrypts, with further options.
func with(st store.Store, lanes int, keys *sealed.Keys, further ...func(*Options)) *Catalog {
	o := Options{Who: "ada", Host: "h", Keys: keys, Lanes: lanes, Block: block}
	o.Now = func() time.Time { return now }
	o.Pause = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	for _, set := range further {
		set(&o)
	}
	return New(st, o)
}

// noting gives a catalog somebody who hears of hints that could not be written.
func noting(note func(error)) func(*Options) { return func(o *Options) { o.Note = note } }

// ignoring is for a store that ignores conditions, or not.
func ignoring(is bool) func(*Options) { return func(o *Options) { o.Unconditional = is } }

func gen(step replica.Step) replica.Generation { return replica.Generation{Epoch: 1, Step: step} }

func part(p durabletest.Part) write.Part {
	return write.Part{Manifest: p.Manifest, Regions: p.Regions, Read: p.Read}
}

// wrote does what a job does for a generation, as attempt n.
func wrote(ctx context.Context, c *Catalog, g replica.Generation, groups int, n uint64) (*format.Commit, error) {
	fleet := fleet
	fleet.Epoch = g.Epoch
	return writeAs(ctx, c, g, groups, n, fleet)
}

func writeAs(ctx context.Context, c *Catalog, g replica.Generation, groups int, n uint64, fleet write.Fleet) (*format.Commit, error) {
	return writeMade(ctx, c, durabletest.Make(g, groups), n, fleet)
}

func writeMade(ctx context.Context, c *Catalog, made durabletest.Generation, n uint64, fleet write.Fleet) (*format.Commit, error) {
	g := made.Generation
	r, err := c.Begin(ctx, format.Run{Job: durabletest.JobName, ID: durabletest.Job, Owner: 7, Began: began.UnixMilli()})
	if err != nil {
		return nil, err
	}
	if err := c.Claim(ctx, r, fleet); err != nil {
		return nil, err
	}
	a := write.Attempt{Run: r, Generation: g, Write: n}
	var files []format.Written
	roots := make(map[replica.Part]replica.Digest)
	for i, p := range made.Groups {
		f, err := c.WriteFrozen(ctx, r, part(made.Frozen[i]))
		if err != nil {
			return nil, err
		}
		w, err := c.WriteGroup(ctx, a, part(p))
		if err != nil {
			return nil, err
		}
		w.Object = nil // as it comes from another node
		files = append(files, f, w)
		roots[p.Manifest.Part] = p.Manifest.Root
	}
	w, err := c.WriteObject(ctx, a, write.NodeObject("b"), part(made.Private[0]), part(made.Private[1]))
	if err != nil {
		return nil, err
	}
	for _, p := range made.Private {
		roots[p.Manifest.Part] = p.Manifest.Root
	}
	said := format.Commit{Position: replica.Position{Epoch: fleet.Epoch, Step: g.Step}, Owner: 7, Layout: made.Layout, Lineage: replica.Lineage{{Epoch: 1}, {Epoch: 2, Start: 90}}, Geometries: []replica.Digest{{3}},
		Metrics: map[string]format.Metric{"loss": format.Metric(g.Step) / 4}, Notes: map[string]string{"lr": "0.1"}}
	return c.Commit(ctx, a, fleet, said, roots, append(files, w))
}

func mustWrite(t testing.TB, c *Catalog, g replica.Generation, groups int) {
	t.Helper()
	if _, err := wrote(t.Context(), c, g, groups, 17); err != nil {
		t.Fatal(err)
	}
}

// checkWhole compares every part of a generation with what was written.
func checkWhole(t testing.TB, c *Catalog, f find.Found, groups int) {
	t.Helper()
	made := durabletest.Make(f.Generation, groups)
	for _, p := range append(append(made.Groups, made.Frozen...), made.Private...) {
		sh, err := c.OpenShard(t.Context(), f, p.Manifest.Part)
		if err != nil {
			t.Fatal(err)
		}
		var got, buf []byte
		for i := range p.Manifest.Chunks {
			if buf, err = sh.ReadChunk(i, buf); err != nil {
				t.Fatal(err)
			}
			got = append(got, buf...)
		}
		want := format.Canonical(p.Manifest)
		want.Cluster, want.Generation = f.Cluster, f.Generation
		if !bytes.Equal(got, p.Bytes) || !reflect.DeepEqual(sh.Manifest(), want) || !reflect.DeepEqual(sh.Regions(), p.Regions) {
			t.Errorf("%v came back different", p.Manifest.Part)
		}
		sh.Close()
	}
	if faults, err := c.Verify(t.Context(), f, nil); err != nil || len(faults) != 0 {
		t.Errorf("%v, %v", faults, err)
	}
}

func finds(t testing.TB, c *Catalog) ([]find.Found, []find.Skipped) {
	t.Helper()
	found, skipped, err := c.Find(t.Context(), durabletest.JobName, durabletest.Job)
	if err != nil {
		t.Fatal(err)
	}
	return found, skipped
}

func TestRoundTrip(t *testing.T) {
	for _, groups := range []int{1, 2} {
		m := memory.New()
		c := over(m, 4)
		for _, g := range []replica.Generation{gen(90), {Epoch: 2, Step: 10}, {Epoch: 2, Step: 9}} {
			mustWrite(t, c, g, groups)
		}
		found, skipped := finds(t, over(m, 4))
		if len(found) != 3 || len(skipped) != 0 {
			t.Fatalf("found %d, skipped %v", len(found), skipped)
		}
		for i, want := range []string{"2/10", "2/9", "1/90"} {
			if found[i].Position.String() != want || found[i].Owner != 7 || found[i].Run.ID != durabletest.Job {
				t.Errorf("place %d is %+v, want %s", i, found[i].Position, want)
			}
			checkWhole(t, c, found[i], groups)
			if since, err := c.Holds(t.Context(), durabletest.JobName, durabletest.Job, found[i].Generation); err != nil || since.IsZero() {
				t.Errorf("since %v: %v", since, err)
			}
		}
		if _, err := c.Holds(t.Context(), durabletest.JobName, durabletest.Job, gen(91)); !errors.Is(err, store.ErrAbsent) {
			t.Error(err)
		}
		if others, _, err := c.Find(t.Context(), "other", replica.JobID{}); err != nil || len(others) != 0 {
			t.Error(others, err)
		}
		frozen := 0
		for _, k := range m.Keys() {
			if strings.Contains(k, "/frozen/") {
				frozen++
			}
		}
		if frozen != 2*groups {
			t.Errorf("three generations share %d frozen files, want %d", frozen, 2*groups)
		}
	}
}

// TestCommitOnce: the same once more is no error, whichever attempt; another is.
func TestCommitOnce(t *testing.T) {
	m := memory.New()
	c := over(m, 4)
	for n := range uint64(3) {
		if com, err := wrote(t.Context(), c, gen(2), 2, 17+n); err != nil || com.Write != 17 {
			t.Fatalf("attempt %d: %+v, %v", n, com, err)
		}
	}
	found, _ := finds(t, c)
	checkWhole(t, c, found[0], 2)
	other := durabletest.Make(gen(2), 1)
	r := found[0].Run
	a := write.Attempt{Run: r, Generation: gen(2), Write: 30}
	w, err := c.WriteGroup(t.Context(), a, part(other.Groups[0]))
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.WriteObject(t.Context(), a, write.NodeObject("b"), part(other.Private[0]), part(other.Private[1]))
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.WriteFrozen(t.Context(), r, part(other.Frozen[0]))
	if err != nil {
		t.Fatal(err)
	}
	roots := map[replica.Part]replica.Digest{}
	for _, q := range append(other.Groups, other.Private...) {
		roots[q.Manifest.Part] = q.Manifest.Root
	}
	said := format.Commit{Position: replica.Position{Epoch: 1, Step: 3}, Layout: other.Layout}
	if _, err := c.Commit(t.Context(), a, fleet, said, roots, []format.Written{w, p, f}); err == nil {
		// The parts are the same but for the position: the former stays.
		if g, err := c.Get(t.Context(), r, gen(2)); err != nil || g.Position.Step != 2 {
			t.Error(g.Position, err)
		}
	}
	roots[replica.OfGroup(0)] = replica.Digest{1}
	if _, err := c.Commit(t.Context(), a, fleet, said, roots, []format.Written{w, p, f}); err == nil || !strings.Contains(err.Error(), "root") {
		t.Errorf("a root that the job has not: %v", err)
	}
	roots[replica.OfGroup(0)] = w.Object.Parts[0].Manifest.Root
	if _, err := c.Commit(t.Context(), a, fleet, said, roots, []format.Written{p, f}); err == nil {
		t.Error("committed without a part")
	}
	if _, err := c.Commit(t.Context(), a, fleet, said, roots, []format.Written{w, p}); err == nil {
		t.Error("committed without the frozen part")
	}
}

// TestWriteRefuses: what could not be read back is not written, and nothing of it stays.
func TestWriteRefuses(t *testing.T) {
	m := memory.New()
	c := over(m, 2)
	mustWrite(t, c, gen(1), 1)
	before := m.Keys()
	found, _ := finds(t, c)
	a := write.Attempt{Run: found[0].Run, Generation: gen(2), Write: 17}
	good := part(durabletest.Make(gen(2), 1).Groups[0])
	with := func(read func(i int, dst []byte) ([]byte, error)) write.Part {
		return write.Part{Manifest: good.Manifest, Regions: good.Regions, Read: read}
	}
	other := good
	other.Manifest.Job = replica.JobID{9}
	for name, p := range map[string]write.Part{
		"bytes": with(func(i int, dst []byte) ([]byte, error) {
			b, err := good.Read(i, dst)
			if i == len(good.Manifest.Chunks)-1 {
				b[0] ^= 1
			}
			return b, err
		}),
		"short":      with(func(i int, dst []byte) ([]byte, error) { b, err := good.Read(i, dst); return b[1:], err }),
		"reader":     with(func(int, []byte) ([]byte, error) { return nil, errors.New("slot was freed") }),
		"job":        other,
		"generation": part(durabletest.Make(gen(3), 1).Groups[0]),
	} {
		if _, err := c.WriteGroup(t.Context(), a, p); err == nil {
			t.Errorf("%s: written", name)
		}
	}
	if _, err := c.WriteObject(t.Context(), a, "../x", good); err == nil {
		t.Error("a name that leads outside")
	}
	if up, err := m.Unfinished(t.Context(), ""); err != nil || len(up) != 0 || !reflect.DeepEqual(m.Keys(), before) {
		t.Errorf("left over: %v, %v, %v", up, m.Keys(), err)
	}
}

// TestDamage bends every object of the newest of two generations in many ways: what a list or a header shows, Find passes over with a
// reason; what they don't, reading finds. The older generation is always there, and frozen parts have a twin.
func TestDamage(t *testing.T) {
	clean := memory.New()
	c := over(clean, 4)
	mustWrite(t, c, gen(2), 2)
	mustWrite(t, c, gen(4), 2)
	for keys := clean.Keys(); len(keys) > 0; keys = keys[min(racing.Stride, len(keys)):] {
		key := keys[0]
		p, name, ok := find.Split(key)
		if !ok {
			continue
		}
		n := format.ParseName(name)
		for how, bend := range map[string]func(b []byte) []byte{
			"gone":   func([]byte) []byte { return nil },
			"cut":    func(b []byte) []byte { return b[:max(len(b)-2, 0)] }, // the last byte of a document is the end of a line
			"empty":  func(b []byte) []byte { return b[:0:0] },
			"longer": func(b []byte) []byte { return append(b, 0) },
			"begin":  func(b []byte) []byte { b[0] ^= 1; return b },
			"head":   func(b []byte) []byte { b[40] ^= 1; return b },
			"middle": func(b []byte) []byte { b[len(b)/2] ^= 0x10; return b },
			"end":    func(b []byte) []byte { b[len(b)-1] ^= 0x10; return b },
		} {
			m := clean.Clone()
			m.Bend(key, bend)
			d := over(m, 4)
			found, skipped, err := d.Find(t.Context(), p.Job, durabletest.Job)
			if err != nil {
				t.Fatalf("%s %s: %v", name, how, err)
			}
			what := fmt.Sprintf("%s %s: found %d, skipped %v", name, how, len(found), skipped)
			if len(found) == 0 || found[len(found)-1].Generation != gen(2) && !(n.OfGeneration() && n.Generation == gen(2)) {
				t.Fatal(what)
			}
			bad, mended := 0, false
			for _, f := range found {
				faults, err := d.Verify(t.Context(), f, nil)
				if err != nil || len(faults) > 0 {
					bad++
				}
				switch {
				case mended && err == nil && len(faults) == 0:
				case n.Kind == format.SharedKind:
					mended = true
					if err != nil || len(faults) != 1 || !faults[0].Twin {
						t.Errorf("%s: a twin serves: %v, %v", what, faults, err)
						continue
					}
					if err := d.Repair(t.Context(), f, faults); err != nil {
						t.Errorf("%s: %v", what, err)
					}
					checkWhole(t, d, f, 2)
				case err != nil && (f.Generation != n.Generation || !strings.Contains(err.Error(), name)):
					t.Errorf("%s: %v", what, err)
				case err == nil:
					checkWhole(t, d, f, 2)
				}
			}
			matters := n.Kind == format.ShardKind || n.Kind == format.IndexKind || n.Kind == format.CommitKind
			if matters && len(found) == 2 && bad == 0 {
				t.Errorf("%s: nobody notices", what)
			}
			if n.Kind == format.CommitKind && how != "gone" && len(skipped) != 1 {
				t.Error(what)
			}
		}
	}
}

// TestOneBadReadIsNoDamage: a byte that a read got wrong and the next one right says nothing of the generation.
func TestOneBadReadIsNoDamage(t *testing.T) {
	m := memory.New()
	c := over(m, 1)
	mustWrite(t, c, gen(2), 1)
	found, _ := finds(t, c)
	d := over(&flipping{Store: m, at: 5}, 1)
	if faults, err := d.Verify(t.Context(), found[0], nil); err != nil || len(faults) != 0 {
		t.Errorf("%v, %v", faults, err)
	}
}

// flipping spoils what one read returns.
type flipping struct {
	store.Store
	at int
}

func (f *flipping) ReadRange(ctx context.Context, key string, off int64, b []byte) error {
	err := f.Store.ReadRange(ctx, key, off, b)
	if f.at--; f.at == 0 {
		b[len(b)/2] ^= 1
	}
	return err
}

// tryOf is the key of the one object of a name.
func tryOf(t *testing.T, c *Catalog, a write.Attempt, name string) string {
	t.Helper()
	list, err := c.Tries(t.Context(), a, name)
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	return a.Run.Key(list[0])
}

// TestSwapped: an object of one generation in the place of another's is refused.
func TestSwapped(t *testing.T) {
	m := memory.New()
	c := over(m, 4)
	mustWrite(t, c, gen(2), 2)
	mustWrite(t, c, gen(4), 2)
	found, _ := finds(t, c)
	of := func(g replica.Generation) []string {
		return []string{found[0].Run.Key(format.Name{Kind: format.CommitKind, Generation: g}), found[0].Run.Key(format.Name{Kind: format.IndexKind, Generation: g, Write: 17}),
			tryOf(t, c, write.Attempt{Run: found[0].Run, Generation: g, Write: 17}, "group-0"), tryOf(t, c, write.Attempt{Run: found[0].Run, Generation: g, Write: 17}, "node-b")}
	}
	for i, key := range of(gen(4)) {
		s := m.Clone()
		from, _, err := m.Get(t.Context(), of(gen(2))[i], 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		s.Bend(key, func([]byte) []byte { return from })
		d := over(s, 4)
		found, skipped := finds(t, d)
		if len(found) == 1 && len(skipped) == 1 && found[0].Generation == gen(2) {
			continue
		}
		if _, err := d.Verify(t.Context(), found[0], nil); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%s: %v", key, err)
		}
		n := format.ParseName(strings.TrimPrefix(key, found[0].Run.Prefix()))
		p := replica.OfGroup(0)
		if n.Shard == "node-b" {
			p = replica.OfRank(0)
		}
		if _, err := d.OpenShard(t.Context(), found[0], p); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%s: opened: %v", key, err)
		}
	}
}

// TestFence: one fleet owns an epoch; who went on before wins, and who comes back commits no more.
func TestFence(t *testing.T) {
	m := memory.New()
	c := over(m, 1)
	mustWrite(t, c, gen(2), 1)
	runs, err := c.Runs(t.Context(), durabletest.JobName)
	if err != nil || len(runs) != 1 {
		t.Fatal(runs, err)
	}
	r := runs[0]
	if err := c.Claim(t.Context(), r, write.Fleet{Cluster: fleet.Cluster, Name: "fleet-2", Epoch: 2}); err != nil {
		t.Fatal(err)
	}
	if err := c.Claim(t.Context(), r, write.Fleet{Cluster: fleet.Cluster, Name: "fleet-2", Epoch: 2}); err != nil {
		t.Errorf("its own claim again: %v", err)
	}
	if err := c.Claim(t.Context(), r, write.Fleet{Cluster: fleet.Cluster, Name: fleet.Name, Epoch: 2}); !errors.Is(err, write.ErrFenced) || !strings.Contains(err.Error(), "fleet-2") || !strings.Contains(err.Error(), "--resume") {
		t.Errorf("a claimed epoch: %v", err)
	}
	if _, err := wrote(t.Context(), c, gen(4), 1, 18); !errors.Is(err, write.ErrFenced) {
		t.Errorf("the former fleet commits: %v", err)
	}
	if found, _ := finds(t, c); len(found) != 1 {
		t.Errorf("found %d", len(found))
	}
	// What was restored keeps its name of an earlier epoch: the epoch that counts is the job's present one.
	if com, err := writeAs(t.Context(), c, gen(6), 1, 19, write.Fleet{Cluster: fleet.Cluster, Name: "fleet-2", Epoch: 2}); err != nil || com.Position.Epoch != 2 {
		t.Errorf("the fleet that owns the run: %v", err)
	}
}

// TestRunsOfAName: the run that began last, or was taken up last, comes first, whatever the clocks say.
func TestRunsOfAName(t *testing.T) {
	m := memory.New()
	c := over(m, 1)
	var runs []find.Run
	for i, day := range []int{5, 1, 9} {
		r, err := c.Begin(t.Context(), format.Run{Job: "lm", ID: replica.JobID{byte(i + 1)}, Began: began.AddDate(0, 0, day).UnixMilli()})
		if err != nil {
			t.Fatal(err)
		}
		again, err := c.Begin(t.Context(), format.Run{Job: "lm", ID: r.ID, Began: began.AddDate(1, 0, 0).UnixMilli()})
		if err != nil || again != r {
			t.Errorf("begun again: %+v, %v, want %+v", again, err, r)
		}
		runs = append(runs, r)
	}
	order := func() (ids string) {
		list, err := c.Runs(t.Context(), "lm")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			ids += fmt.Sprint(r.ID[0])
		}
		return ids
	}
	if got := order(); got != "321" {
		t.Errorf("order %s", got)
	}
	if err := c.Claim(t.Context(), runs[1], write.Fleet{Cluster: fleet.Cluster, Name: "f", Epoch: 4}); err != nil {
		t.Fatal(err)
	}
	if got := order(); got != "231" {
		t.Errorf("order %s after run 2 was taken up", got)
	}
	if jobs, err := c.Jobs(t.Context()); err != nil || !reflect.DeepEqual(jobs, []string{"lm"}) {
		t.Error(jobs, err)
	}
}

// counting counts what a store of S3's kind would be asked: a list has 1,000 keys a page.
func counting(m *memory.Store) *paged { return &paged{Store: m} }

type paged struct {
	store.Store
	requests      int
	bytes, ranges atomic.Int64
}

func (p *paged) ReadRange(ctx context.Context, key string, off int64, b []byte) error {
	p.bytes.Add(int64(len(b)))
	p.ranges.Add(1)
	return p.Store.ReadRange(ctx, key, off, b)
}

func (p *paged) Get(ctx context.Context, key string, most int64) ([]byte, store.Version, error) {
	p.requests++
	return p.Store.Get(ctx, key, most)
}

func (p *paged) List(ctx context.Context, prefix, after string, each func(store.Info) error) error {
	p.requests++
	n := 0
	return p.Store.List(ctx, prefix, after, func(info store.Info) error {
		if n++; n > 1000 && n%1000 == 1 {
			p.requests++
		}
		return each(info)
	})
}

// TestListIsCheap: 1,000 generations are listed with at most 5 requests, their metrics among them.
func TestListIsCheap(t *testing.T) {
	m := memory.New()
	c := over(m, 1)
	mustWrite(t, c, gen(1), 1)
	found, _ := finds(t, c)
	f := found[0]
	var rows []format.Row
	for step := replica.Step(2); step <= 1000; step++ {
		com := f.Commit
		com.Generation.Step, com.Position.Step = step, step
		com.Index.Key = format.Name{Kind: format.IndexKind, Generation: com.Generation, Write: com.Write}.String()
		com.Metrics = map[string]format.Metric{"loss": format.Metric(step)}
		b, err := com.Seal()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{f.Run.Key(format.Name{Kind: format.CommitKind, Generation: com.Generation}), f.Run.Under(com.Index.Key)} {
			if _, err := m.PutNew(t.Context(), key, b); err != nil {
				t.Fatal(err)
			}
		}
		rows = append(rows, com.Row())
	}
	if err := c.Summarize(t.Context(), f.Run.Place, func(was []format.Row) []format.Row { return append(was, rows...) }); err != nil {
		t.Fatal(err)
	}
	if err := c.Pin(t.Context(), f.Run, gen(7), "ada", "paper", time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := c.MarkRead(t.Context(), f, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := m.PutNew(t.Context(), f.Run.Key(format.Name{Kind: format.ShardKind, Generation: gen(1001), Write: 18, Shard: "group-0"}), nil); err != nil {
		t.Fatal(err)
	}
	p := counting(m)
	list, err := over(p, 4).List(t.Context(), durabletest.JobName)
	if err != nil || len(list) != 1001 {
		t.Fatal(len(list), err)
	}
	if p.requests > 5 {
		t.Errorf("%d requests", p.requests)
	}
	t.Logf("%d requests", p.requests)
	var unfinished, good, pinned, measured int
	for _, l := range list {
		if l.State == find.Unfinished {
			unfinished++
		}
		if l.State == find.Good && l.Generation == gen(1) {
			good++
		}
		if len(l.Pins) == 1 && l.Pins[0].Who == "ada" && l.Generation == gen(7) {
			pinned++
		}
		if l.Row.Metrics["loss"] != 0 {
			measured++
		}
	}
	if unfinished != 1 || good != 1 || pinned != 1 || measured != 1000 {
		t.Errorf("unfinished %d, good %d, pinned %d, measured %d", unfinished, good, pinned, measured)
	}
}

// TestForeignKeys: what others put beside ours is passed over.
func TestForeignKeys(t *testing.T) {
	m := memory.New()
	c := over(m, 4)
	mustWrite(t, c, gen(2), 1)
	for i := range 3000 {
		if _, err := m.PutNew(t.Context(), fmt.Sprintf("%s/2foreign-%d/x", durabletest.JobName, i), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"zzz", "Strange/20261125T1716Z-ab010203/run.json", durabletest.JobName + "/20261125T1716Z-ab010203/commits/x", durabletest.JobName + "/20261125T1716Z-ab010203/step-00000009.e1/foreign"} {
		if _, err := m.PutNew(t.Context(), key, []byte("?")); err != nil {
			t.Fatal(err)
		}
	}
	p := counting(m)
	d := over(p, 1)
	list, err := d.List(t.Context(), durabletest.JobName)
	if err != nil || len(list) != 1 || p.requests > 12 {
		t.Errorf("%d lines, %d requests, %v", len(list), p.requests, err)
	}
	found, skipped := finds(t, d)
	if len(found) != 1 || len(skipped) != 0 {
		t.Errorf("%v, %v", found, skipped)
	}
	m.Age(time.Hour)
	if s, err := c.Sweep(t.Context(), found[0].Run, time.Minute); err != nil || len(s.Objects) != 0 {
		t.Errorf("swept %+v, %v", s, err)
	}
}

// TestHintsLie: nothing that a hint says is believed.
func TestHintsLie(t *testing.T) {
	m := memory.New()
	c := over(m, 1)
	mustWrite(t, c, gen(2), 1)
	found, _ := finds(t, c)
	for _, h := range []format.Hint{{Run: "20200101T0000Z-00000000", SHA256: strings.Repeat("0", 64)}, {Run: found[0].Run.Run, Generation: gen(999), SHA256: strings.Repeat("0", 64)}} {
		b, err := h.Seal()
		if err != nil {
			t.Fatal(err)
		}
		m.Bend(durabletest.JobName+"/last.json", func([]byte) []byte { return b })
		m.Bend(found[0].Run.Under(format.SummaryKey), func([]byte) []byte { return []byte("{") })
		if again, _ := finds(t, c); len(again) != 1 {
			t.Errorf("found %d", len(again))
		}
		if list, err := c.List(t.Context(), durabletest.JobName); err != nil || len(list) != 1 || list[0].Row.Bytes == 0 {
			t.Errorf("%+v, %v", list, err)
		}
	}
	mustWrite(t, c, gen(3), 1)
	b, _, err := m.Get(t.Context(), durabletest.JobName+"/last.json", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if h, err := format.ParseHint(b); err != nil || h.Generation != gen(3) {
		t.Errorf("last.json is at %+v, %v: a commit is newer than the position that it says", h, err)
	}
}

// TestBest: best.json names the generation with the best metric, whichever came last.
func TestBest(t *testing.T) {
	for largest, want := range map[bool]replica.Step{false: 2, true: 8} { // the loss of a step is a quarter of it
		m := memory.New()
		c := New(m, Options{Best: "loss", Largest: largest})
		for _, step := range []replica.Step{4, 2, 8, 6} {
			mustWrite(t, c, gen(step), 1)
		}
		b, _, err := m.Get(t.Context(), durabletest.JobName+"/"+format.BestKey, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if h, err := format.ParseHint(b); err != nil || h.Generation.Step != want || h.Metric != "loss" {
			t.Errorf("%+v, %v", h, err)
		}
	}
}

func TestDiff(t *testing.T) {
	m := memory.New()
	c := over(m, 4)
	mustWrite(t, c, gen(2), 2)
	mustWrite(t, c, gen(4), 2)
	found, _ := finds(t, c)
	if d, err := diff.Generations(t.Context(), c, found[0], c, found[0]); err != nil || len(d) != 0 {
		t.Errorf("with itself: %v, %v", d, err)
	}
	list, err := diff.Generations(t.Context(), c, found[1], c, found[0])
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]diff.Difference)
	for _, d := range list {
		seen[fmt.Sprint(d.Tensor, d.Index)] = d
	}
	w := seen["weight1"]
	if w.What != "values" || w.Of != 35 || w.Elements < 30 || seen["private-0/cursor0"].Of != 2 || len(seen["base0"].What) != 0 {
		t.Errorf("%v", list)
	}
	mustWrite(t, c, gen(6), 1)
	found, _ = finds(t, c)
	list, err = diff.Generations(t.Context(), c, found[1], c, found[0])
	if err != nil {
		t.Fatal(err)
	}
	missing := 0
	for _, d := range list {
		if d.What == "missing" && d.Index == 1 {
			missing++
		}
	}
	if missing != 7 { // group 1's regions, frozen ones among them
		t.Errorf("%d missing of group 1: %v", missing, list)
	}
}

func parsed(name string) format.Name { return format.ParseName(name) }

// TestPartsAreReadOnce: chunks in order take each byte from the store once, in blocks, and from several goroutines the same bytes.
func TestPartsAreReadOnce(t *testing.T) {
	m := memory.New()
	mustWrite(t, over(m, 1), gen(2), 1)
	for _, lanes := range []int{1, 4} {
		p := counting(m)
		c := over(p, lanes)
		found, _ := finds(t, c)
		sh, err := c.OpenShard(t.Context(), found[0], replica.OfGroup(0))
		if err != nil {
			t.Fatal(err)
		}
		p.bytes.Store(0)
		p.ranges.Store(0)
		want := durabletest.Make(gen(2), 1).Groups[0]
		var buf []byte
		for i := range want.Manifest.Chunks {
			if buf, err = sh.ReadChunk(i, buf); err != nil {
				t.Fatal(err)
			}
		}
		sh.Close()
		if got := p.bytes.Load(); got > int64(len(want.Bytes)) || p.ranges.Load() > int64(len(want.Bytes))/block+1 {
			t.Errorf("%d lanes: %d bytes in %d requests, of a part of %d", lanes, got, p.ranges.Load(), len(want.Bytes))
		}
		if sh, err = c.OpenShard(t.Context(), found[0], replica.OfGroup(0)); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for k := range want.Manifest.Chunks {
					i := (k*(w+1) + 5*w) % len(want.Manifest.Chunks)
					b, err := sh.ReadChunk(i, nil)
					off, n := replica.ChunkSpan(i, want.Manifest.Bytes, want.Manifest.ChunkBytes)
					if err != nil || !bytes.Equal(b, want.Bytes[off:off+n]) {
						t.Errorf("chunk %d: %v", i, err)
					}
				}
			})
		}
		wg.Wait()
		sh.Close()
		if b, err := sh.ReadChunk(0, nil); err != nil || len(b) == 0 {
			t.Errorf("after Close: %v", err)
		}
	}
}
