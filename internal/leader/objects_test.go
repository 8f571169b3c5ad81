package leader

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

// harm is what becomes of an object.
type harm struct {
	name string
	do   func(is, other *memory.Store, key string)
}

var harms = []harm{
	{"deleted", func(is, _ *memory.Store, key string) { is.Bend(key, func([]byte) []byte { return nil }) }},
	{"emptied", func(is, _ *memory.Store, key string) { is.Bend(key, func([]byte) []byte { return []byte{} }) }},
	{"flipped", func(is, _ *memory.Store, key string) {
		is.Bend(key, func(b []byte) []byte { b[len(b)/2] ^= 4; return b })
	}},
	{"another's", func(is, other *memory.Store, key string) { // the same object of another run, or of another job
		b := []byte("{}")
		other.Bend(strings.NewReplacer("aa010203", "bb010203").Replace(key), func(there []byte) []byte {
			if there != nil {
				b = there
			}
			return there
		})
		is.Bend(key, func([]byte) []byte { return b })
	}},
	{"refused", func(is, _ *memory.Store, key string) {
		was := is.Before
		is.Before = func(call memory.Call) error {
			if call.Key == key && call.Verb != "Stat" && !call.Changes() {
				return fmt.Errorf("%s: %w", key, store.ErrRefused)
			}
			if was != nil {
				return was(call)
			}
			return nil
		}
	}},
}

var (
	tableJob  = replica.JobID{0xaa, 1, 2, 3}
	tableGens = []replica.Generation{fixture.Gen(1, 4), fixture.Gen(1, 6), fixture.Gen(3, 8)}
	writer    = replica.ClusterID{0xc2}
)

// on has the chair's tier lie over a store.
func (c *chair) on(m *memory.Store, cluster replica.ClusterID) {
	c.t.Helper()
	c.disk = tier.New(m, tier.Settings{Reader: "n1", Cluster: cluster})
	c.store = c.disk
}

// written is a store with three generations of a run in two epochs: one kept for good, one read back, and what lies beside them.
func (c *chair) written(id replica.JobID) *memory.Store {
	c.t.Helper()
	m := memory.New()
	c.on(m, writer)
	defer c.disk.Close()
	for _, g := range tableGens {
		c.writes("job", writer, id, g)
	}
	err := c.disk.Keep(c.t.Context(), "job", id, tableGens[0], "paper")
	found, _, ferr := c.disk.Find(c.t.Context(), "job", id)
	if err := errors.Join(err, ferr); err != nil || len(found) != 3 {
		c.t.Fatal(len(found), err)
	}
	if err := c.disk.ReadBack(c.t.Context(), found[1], tier.How{}); err != nil {
		c.t.Fatal(err)
	}
	last, _, err := m.Get(c.t.Context(), "job/last.json", 1<<20)
	if err == nil {
		_, err = m.PutNew(c.t.Context(), "job/best.json", last)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// nameOf is an object's key below its run.
func nameOf(key string) format.Name {
	if parts := strings.SplitN(key, "/", 3); len(parts) == 3 {
		return format.ParseName(parts[2])
	}
	return format.Name{}
}

// spoils tells which generation a harm to an object makes unusable; zero: none.
func (h harm) spoils(key string) (g replica.Generation) {
	switch n := nameOf(key); n.Kind {
	case format.CommitKind, format.IndexKind, format.ShardKind:
		return n.Generation
	case format.Stray, format.ClaimKind, format.SharedKind, format.KeptKind, format.PinKind, format.ReadKind, format.RunKind, format.SummaryKind, format.TrashKind:
	}
	return g
}

// TestResumesWithoutAnObject harms each object of a run, alone and with any other one, in each way. A fleet of another cluster then resumes it, writes, and
// resumes again: it goes on from the newest generation that nobody has harmed, whatever became of the small objects, or it is refused with the name of what is
// wrong, before a process is started. It is never told that another fleet owns the run.
func TestResumesWithoutAnObject(t *testing.T) {
	t.Parallel()
	c := newChair(t)
	clean, other := c.written(tableJob), c.written(replica.JobID{0xbb, 1, 2, 3})
	keys := clean.Keys()
	type pick struct {
		key string
		harm
	}
	row := func(harmed ...pick) {
		t.Helper()
		m := clean.Clone()
		var name string
		whole := slices.Clone(tableGens)
		for _, p := range harmed {
			name += p.key + " " + p.name + "; "
			p.do(m, other, p.key)
			whole = slices.DeleteFunc(whole, func(g replica.Generation) bool { return g == p.spoils(p.key) })
		}
		var mended atomic.Bool // a lease of the adoption may still be ending in a goroutine of the tier when the store answers again
		if fails := m.Before; fails != nil {
			m.Before = func(call memory.Call) error {
				if mended.Load() {
					return nil
				}
				return fails(call)
			}
		}
		c.on(m, fixture.Cluster)
		defer c.disk.Close()
		a := c.adoptable(t.Context(), nil, askToResume)
		says := a.refused + strings.Join(a.news, "; ")
		switch {
		case strings.Contains(says, "owns the run"):
			t.Errorf("%s is told: %s", name, says)
			return
		case len(whole) == 0 && (a.refused == "" || !strings.Contains(a.refused, "step 8: ") || !strings.Contains(a.refused, "Bring back")):
			t.Errorf("%s nothing is left: adopts %v, refused: %q", name, a.command.Durable, a.refused)
			return
		case len(whole) == 0:
			return
		case a.refused != "" || a.command.Durable != whole[len(whole)-1] || a.command.ID != tableJob || a.command.Epoch < 3:
			t.Errorf("%s adopts %v in an epoch behind %d, want %v; refused: %q", name, a.command.Durable, a.command.Epoch, whole[len(whole)-1], a.refused)
			return
		}
		if a := c.adoptable(t.Context(), nil, askToResume); a.refused != "" || a.command.Durable != whole[len(whole)-1] { // a leader of the same fleet
			t.Errorf("%s asked again adopts %v, refused: %q", name, a.command.Durable, a.refused)
		}
		mended.Store(true)
		fleet := c.cons.State().Fleet
		next := replica.Generation{Epoch: a.command.Epoch + 1, Step: 20}
		at := tier.Attempt{Name: "job", Job: tableJob, Began: a.command.Began, Cluster: fixture.Cluster, Fleet: fleet, Epoch: next.Epoch, Generation: next, Number: a.command.Writes + 1}
		said, roots, objects, err := c.objects(at)
		if err == nil {
			said.Lineage = append(a.command.Lineage, replica.Opened{Epoch: next.Epoch, Start: a.command.Durable.Step})
			err = c.disk.Commit(t.Context(), at, said, roots, objects)
		}
		if err != nil {
			t.Errorf("%s it writes with %v", name, err)
			return
		}
		for _, key := range keys {
			if n := nameOf(key); key != format.RootKey && n.Kind != format.RunKind {
				continue
			}
			b, _, err := m.Get(t.Context(), key, 1<<20)
			if perr := errors.Join(err, readable(key, b)); perr != nil {
				t.Errorf("%s after a write: %s: %v", name, key, perr)
			}
		}
		if a := c.adoptable(t.Context(), nil, askToResume); a.refused != "" || a.command.Durable != next {
			t.Errorf("%s later it adopts %v, refused: %q", name, a.command.Durable, a.refused)
		}
	}
	rows := 0
	rots := func(p pick) bool { // what was read back is trusted: who loads it finds this, and goes on from the one before
		n := nameOf(p.key)
		return n.Kind == format.ShardKind && n.Generation == tableGens[1] && p.name != "deleted" && p.name != "emptied"
	}
	for i, key := range keys {
		for _, h := range harms {
			if p := (pick{key, h}); !rots(p) {
				rows++
				row(p)
			}
		}
		for j := i + 1; j < len(keys); j++ {
			p, q := pick{key, harms[(i+j)%len(harms)]}, pick{keys[j], harms[(i*j)%len(harms)]}
			if !rots(p) && !rots(q) && (i*len(keys)+j)%racing.Stride == 0 {
				rows++
				row(p, q)
			}
		}
	}
	t.Logf("%d rows of %d objects", rows, len(keys))
}

// readable tells whether run.json or replicad.json is what it should be.
func readable(key string, b []byte) error {
	if key == format.RootKey {
		return format.ParseRoot(b)
	}
	parts := strings.SplitN(key, "/", 3)
	_, err := format.ParseRun(b, format.Place{Job: parts[0], Run: parts[1]})
	return err
}

// Two fleets that resume at once a run whose run.json is missing, or damaged, exclude each other as ever.
func TestTwoFleetsResumeWithoutRunJSON(t *testing.T) {
	t.Parallel()
	c := newChair(t)
	clean := c.written(tableJob)
	for _, h := range harms[:4] {
		m := clean.Clone()
		for _, key := range m.Keys() {
			if nameOf(key).Kind == format.RunKind {
				h.do(m, clean, key)
			}
		}
		c.on(m, fixture.Cluster)
		one, two := c.disk, tier.New(m.Client(), tier.Settings{Reader: "n2", Cluster: writer})
		seen := func(s *tier.Tier) tier.Found {
			found, _, err := s.Find(t.Context(), "job", replica.JobID{})
			if err != nil || len(found) != 3 || found[0].Run.Claimed != 3 {
				t.Fatalf("%s: %d found, %v", h.name, len(found), err)
			}
			return found[0]
		}
		f, g := seen(one), seen(two)
		is, err := one.Resume(t.Context(), f, fixture.Cluster, "n1-a", 3)
		if err != nil || is.Epoch != 3 {
			t.Errorf("%s: the first: epoch behind %d, %v", h.name, is.Epoch, err)
		}
		if _, err := two.Resume(t.Context(), g, writer, "n2-b", 3); !errors.Is(err, tier.ErrFenced) || !strings.Contains(err.Error(), "n1-a") {
			t.Errorf("%s: the second: %v", h.name, err)
		}
		if is, err := two.Resume(t.Context(), seen2(t, two), writer, "n2-b", 3); err != nil || is.Epoch != 4 || len(is.Over) != 1 {
			t.Errorf("%s: the second again: epoch behind %d, %v", h.name, is.Epoch, err)
		}
		one.Close()
		two.Close()
	}
}

// seen2 looks again.
func seen2(t *testing.T, s *tier.Tier) tier.Found {
	t.Helper()
	found, _, err := s.Find(t.Context(), "job", replica.JobID{})
	if err != nil || len(found) != 3 {
		t.Fatal(len(found), err)
	}
	return found[0]
}

// Where two runs have a name, and what says which was written last cannot be read, nobody guesses.
func TestNobodyGuessesWhichRunIsTheLast(t *testing.T) {
	t.Parallel()
	c := newChair(t)
	m := memory.New()
	c.on(m, fixture.Cluster)
	defer c.disk.Close()
	later := replica.JobID{0xbb, 1, 2, 3}
	c.writes("job", fixture.Cluster, tableJob, fixture.Gen(1, 4))
	c.writes("job", fixture.Cluster, later, fixture.Gen(1, 2))
	found, _, err := c.disk.Find(t.Context(), "job", tableJob)
	if err == nil { // the first is the last now, and has committed nothing since
		_, err = c.disk.Resume(t.Context(), found[0], fixture.Cluster, "n7", 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	harms[2].do(m, m, found[0].Run.Under("epochs/000002.json"))
	a := c.adoptable(t.Context(), nil, control.CreateRequest{Name: "job", Layout: askToResume.Layout, Resume: true})
	for _, want := range []string{"nothing says which was written last", "epochs/000002.json", "--resume"} {
		if !strings.Contains(a.refused, want) {
			t.Errorf("adopts %v of %v; %q does not say %q", a.command.Durable, a.command.ID, a.refused, want)
		}
	}
}
