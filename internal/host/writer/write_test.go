package writer

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	durablestore "github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/spool"
	"github.com/replicad/replicad/replica"
)

// store is one that a test can hold up: it reads a chunk for each word on goOn.
type store struct {
	goOn chan struct{}
	got  []byte
	fail error
}

func (s *store) Write(ctx context.Context, a tier.Attempt, object string, frozen *tier.Part, parts ...tier.Part) (info replica.Stored, err error) {
	if frozen != nil {
		if _, err := s.Write(ctx, a, "frozen", nil, *frozen); err != nil {
			return info, err
		}
	}
	for _, p := range parts {
		if err := s.reads(ctx, p); err != nil {
			return info, err
		}
	}
	return replica.Stored{Key: object}, nil
}

func (s *store) reads(ctx context.Context, p tier.Part) error {
	for i := range p.Manifest.Chunks {
		select {
		case <-s.goOn:
		case <-time.After(fixture.Patience):
			return errors.New("nobody lets the store go on")
		}
		if s.fail != nil {
			return s.fail
		}
		b, err := p.Read(i, nil)
		if err != nil {
			return err
		}
		s.got = append(s.got, b...)
		durablestore.Moved(ctx, len(b))
	}
	return nil
}

// running is a write on its way.
type running struct {
	*node
	store *store
	dir   string // of the spool
	spool *spool.Spool
	freed chan struct{}
	ended chan error
	gone  chan struct{} // closed once nothing of it is kept
}

// runs begins the newest write. The slot is freed by a message, as by a host's.
func runs(t *testing.T, n *node, c spool.Config) *running {
	if c.Most == 0 {
		c.Most = 1 << 30 // whatever the machine's disk has free
	}
	t.Helper()
	r := &running{node: n, store: &store{goOn: make(chan struct{}, 1000)}, freed: make(chan struct{}, 1), ended: make(chan error, 1), gone: make(chan struct{})}
	if c.Dir != "" {
		r.dir, c.Owner = c.Dir, "n1"
	}
	var err error
	if r.spool, err = spool.Open(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	w := n.write
	n.released = r.freed
	go func() {
		_, err := w.Run(t.Context(), Tier{Store: r.store, Spool: r.spool}, func(string) {})
		r.ended <- err
		if w.Kept() {
			w.Release(t.Context())
		}
		close(r.gone)
	}()
	return r
}

func soon[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(fixture.Patience):
		t.Fatalf("waited for %s", what)
	}
	return v
}

func (r *running) goesOn(chunks int) {
	for range chunks {
		r.store.goOn <- struct{}{}
	}
}

// big is a node that writes a part of several chunks.
func big(t *testing.T) *node {
	n := begun(t, 2)
	if n := len(n.write.pieces[0].slot.Manifest().Chunks); n < 2 {
		t.Fatalf("the part has %d chunks", n)
	}
	return n
}

// The slot is free as soon as its part is in the spool, however long the store takes; the store gets what was in the slot. What lies in files stays
// until the whole durable write is over; nothing is left then.
func TestASlotIsFreeOnceItIsSpooled(t *testing.T) {
	for what, c := range map[string]spool.Config{"a file": {Dir: t.TempDir()}, "memory": {Memory: 1 << 20}} {
		n := big(t)
		r := runs(t, n, c)
		soon(t, "the slot", r.freed)
		if n.arena.Free(shm.Place{}); n.arena.Word(shm.Place{}).State() != replica.SlotFree || r.spool.Empty() {
			t.Errorf("%s: the slot is not free, or the spool empty", what)
		}
		if got := n.Play("passes 10s"); got != grown {
			t.Errorf("%s: reported %q", what, got)
		}
		man := n.write.pieces[0].slot.Manifest()
		r.goesOn(len(man.Chunks))
		if err := soon(t, "the end", r.ended); err != nil || !bytes.Equal(r.store.got, make([]byte, man.Bytes)) || what == "a file" && r.spool.Empty() {
			t.Errorf("%s: %v; %d bytes of %d", what, err, len(r.store.got), man.Bytes)
		}
		if moved := uint64(n.write.moved.Load()); moved != 3*man.Bytes { // into the spool, out of it, and to the store
			t.Errorf("%s: %d bytes moved, of %d", what, moved, man.Bytes)
		}
		if what == "a file" {
			n.write.end(n.Now)
		}
		if soon(t, "its removal", r.gone); !r.spool.Empty() {
			t.Errorf("%s: something is left", what)
		}
	}
}

// A node that waits for its turn has copied its part into the spool, and is not silent. It gives the store something once it is told.
func TestAWriteWaitsForItsTurn(t *testing.T) {
	n := newNode(t, 2)
	n.Play("seals rank-0 slot:0 5")
	n.Play("named 5 slot:0 turns")
	r := runs(t, n, spool.Config{Dir: t.TempDir()})
	r.goesOn(100)
	soon(t, "the slot", r.freed)
	if got := n.Play("passes 1m"); got != grown || n.write.over || len(r.ended) > 0 {
		t.Errorf("it has ended before its turn: %s", got)
	}
	if n.Play("turn 2"); n.write.turned {
		t.Error("it is another write's turn")
	}
	n.Play("turn 1")
	if err := soon(t, "the end", r.ended); err != nil || len(r.store.got) == 0 {
		t.Errorf("it ends with %v, %d bytes", err, len(r.store.got))
	}
	n.Play("turn 1") // again
	n.Play("turn 2") // the word may come before the node knows of the write
	first := n.write
	n.Play("seals rank-0 slot:1 9")
	if n.Play("named 9 slot:1 turns"); n.write == first || !n.write.turned {
		t.Error("it was its turn before it began")
	}
}

// The frozen part is read where it lies, also once the slot is free.
func TestAFrozenPartIsWrittenAlong(t *testing.T) {
	n := newNode(t, 2)
	n.arena = roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, true), Slots: 2})
	frozen := roomtest.Seal(t, n.arena, shm.Place{Kind: shm.Frozen}, gen5, replica.Digest{})
	info := roomtest.Seal(t, n.arena, shm.Place{Kind: shm.Slot}, gen5, frozen.Root)
	n.Play("named 5 slot:0")
	r := runs(t, n, spool.Config{Dir: t.TempDir()})
	soon(t, "the slot", r.freed)
	n.Play("passes 200ms")
	if n.held() || n.arena.Readers(shm.Place{Kind: shm.Frozen}) != 1 {
		t.Error("the slot is held, or the frozen part is not")
	}
	r.goesOn(len(frozen.Digests) + len(info.Digests))
	if err := soon(t, "the end", r.ended); err != nil || uint64(len(r.store.got)) != frozen.Bytes+info.Bytes {
		t.Errorf("it ends with %v, %d bytes", err, len(r.store.got))
	}
	soon(t, "the frozen part", r.freed)
}

// A byte that the spool's disk has changed fails the write.
func TestARottenSpool(t *testing.T) {
	n := big(t)
	r := runs(t, n, spool.Config{Dir: t.TempDir()})
	soon(t, "the slot", r.freed)
	files, err := filepath.Glob(filepath.Join(r.dir, "*.group-0.1.spool"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the spool has %q, %v", files, err)
	}
	f, err := os.OpenFile(files[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	man := n.write.pieces[0].slot.Manifest()
	if _, err := f.WriteAt([]byte{1}, int64(man.Bytes)-1); err != nil {
		t.Fatal(err)
	}
	f.Close()
	r.goesOn(len(man.Chunks))
	if err := soon(t, "the end", r.ended); !errors.Is(err, shm.ErrCorrupt) || !strings.Contains(err.Error(), files[0]) {
		t.Errorf("it ends with %v", err)
	}
	if last := len(man.Chunks) - 1; len(r.store.got) != last*int(man.ChunkBytes) {
		t.Errorf("the store got %d bytes", len(r.store.got))
	}
}

// An object that is written lies in the spool until those of other nodes are written too: if all die now, it is written again with them.
func TestAnObjectThatIsWrittenIsKept(t *testing.T) {
	n := big(t)
	r := runs(t, n, spool.Config{Dir: t.TempDir()})
	r.goesOn(len(n.write.pieces[0].slot.Manifest().Chunks))
	if err := soon(t, "the end", r.ended); err != nil {
		t.Fatal(err)
	}
	next, err := spool.Open(t.Context(), spool.Config{Dir: r.dir, Owner: "n1", Epoch: 99, Most: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if list, passed := LeftBehind(t.Context(), next, "n1", fixture.Cluster); len(list) != 1 || len(passed) != 0 {
		t.Errorf("told are %d, passed over %q", len(list), passed)
	}
	n.Play("named")
	soon(t, "its removal", r.gone)
	if list, passed := LeftBehind(t.Context(), next, "n1", fixture.Cluster); len(list) != 0 || len(passed) != 0 {
		t.Errorf("once the write is over told are %d, passed over %q", len(list), passed)
	}
}

// dies leaves what a write has in the spool, as a daemon's death does, and opens it in the next life.
func (r *running) dies(t *testing.T) *spool.Spool {
	t.Helper()
	soon(t, "the slot", r.freed)
	files, err := os.ReadDir(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	left := t.TempDir()
	for _, f := range files {
		if err := os.Link(filepath.Join(r.dir, f.Name()), filepath.Join(left, f.Name())); err != nil {
			t.Fatal(err)
		}
	}
	r.write.end(r.Now)
	if err := soonError(t, r); !errors.Is(err, holding.ErrDropped) {
		t.Fatal(err)
	}
	sp, err := spool.Open(t.Context(), spool.Config{Dir: left, Owner: "n1", Epoch: 99, Most: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return sp
}

// What a daemon's death leaves in the spool is told, and written, by the next one; and what of it cannot be used is named.
func TestAWriteThatDiedIsFinished(t *testing.T) {
	const file, note = "n1+0.0b000000-0000-0000-0000-000000000000.3-5.group-0.1.spool", "n1+0.0b000000-0000-0000-0000-000000000000.3-5.group-0.2.note.spool"
	for what, c := range map[string]struct {
		spoil  func(path string) error // of the file
		note   func(path string) error
		node   replica.NodeName
		passed string // why it is not told; empty: it is
		failed error  // with what its writing ends
	}{
		"whole":           {},
		"of another node": {node: "n2", passed: "it is of node n1"},
		"truncated":       {spoil: func(p string) error { return os.Truncate(p, 7) }, passed: "it has 7 bytes"},
		"gone":            {spoil: os.Remove, passed: "file does not exist"},
		"a link":          {spoil: func(p string) error { return errors.Join(os.Remove(p), os.Symlink("/etc/passwd", p)) }, passed: "file does not exist"},
		"flipped": {spoil: func(p string) error {
			return flip(p, func(b []byte) int { return len(b) - 1 })
		}, failed: shm.ErrCorrupt},
		"its note flipped":   {note: func(p string) error { return flip(p, func(b []byte) int { return len(b) / 2 }) }, passed: "corrupt"},
		"its note truncated": {note: func(p string) error { return os.Truncate(p, 100) }, passed: "corrupt"},
	} {
		t.Run(what, func(t *testing.T) {
			n := big(t)
			r := runs(t, n, spool.Config{Dir: t.TempDir()})
			sp := r.dies(t)
			left := filepath.Dir(must(t, sp)[0].File)
			for name, spoil := range map[string]func(string) error{file: c.spoil, note: c.note} {
				if spoil != nil {
					if err := spoil(filepath.Join(left, name)); err != nil {
						t.Fatal(err)
					}
				}
			}
			self := replica.NodeName("n1")
			if c.node != "" {
				self = c.node
			}
			list, passed := LeftBehind(t.Context(), sp, self, fixture.Cluster)
			if c.passed != "" {
				if len(list) != 0 || len(passed) != 1 || !strings.Contains(passed[0], c.passed) {
					t.Errorf("told are %d; passed over %q, want %q", len(list), passed, c.passed)
				}
				return
			}
			if len(list) != 1 || len(passed) != 0 || list[0].Generation != gen5 || list[0].Job != n.View.Job.Name || len(list[0].Roots) != 2 || list[0].Said.Lacks[0].Text != "buffer" {
				t.Fatalf("told are %+v; passed over %q", list, passed)
			}
			to := &store{goOn: make(chan struct{}, 1000)}
			for range 1000 {
				to.goOn <- struct{}{}
			}
			a := tier.Attempt{Job: list[0].ID, Generation: gen5, Number: 77}
			s, err := Finish(t.Context(), Tier{Store: to, Spool: sp}, a, list[0].Object, nil, []Pick{{list[0], 0}})
			if !errors.Is(err, c.failed) || err == nil && (s.Key != "group-0" || !bytes.Equal(to.got, make([]byte, n.write.pieces[0].slot.Manifest().Bytes))) {
				t.Errorf("it is written with %v, as %+v, %d bytes", err, s, len(to.got))
			}
		})
	}
}

func must(t *testing.T, sp *spool.Spool) []spool.Left {
	t.Helper()
	list, err := sp.Left(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("left are %+v, %v", list, err)
	}
	return list
}

func flip(path string, at func([]byte) int) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b[at(b)] ^= 1
	return os.WriteFile(path, b, 0o600)
}

// A spool that other writes have filled skips the next one, and holds no slot. A part that would never fit goes the way that it went without one.
func TestASpoolWithoutRoom(t *testing.T) {
	n := big(t)
	bytes := n.write.pieces[0].slot.Manifest().Bytes
	r := runs(t, n, spool.Config{Dir: t.TempDir(), Most: bytes})
	soon(t, "the slot", r.freed)
	first := n.write

	n.arena.Free(shm.Place{Index: 1})
	n.Play("seals rank-0 slot:1 9")
	n.Play("named 9 slot:1")
	n.released = make(chan struct{}, 1)
	if _, err := n.write.Run(t.Context(), Tier{Store: r.store, Spool: r.spool}, nil); !errors.Is(err, spool.ErrFull) {
		t.Errorf("beside the first it ends with %v", err)
	}
	soon(t, "its slot", n.released)
	if first.end(n.Now); !errors.Is(soonError(t, r), holding.ErrDropped) || !r.spool.Empty() {
		t.Error("the first does not end")
	}

	n = big(t)
	r = runs(t, n, spool.Config{Dir: t.TempDir(), Most: bytes - 1})
	r.goesOn(len(n.write.pieces[0].slot.Manifest().Chunks))
	if err := soon(t, "the end", r.ended); err != nil || uint64(len(r.store.got)) != bytes {
		t.Errorf("without room: %v, %d bytes", err, len(r.store.got))
	}
	if why := n.write.ails(n.Now); !strings.Contains(why, "no room") {
		t.Errorf("of its slot it says %q", why)
	}
}

// grown is what the leader is told of a part that is read whole.
const grown = "after 10s: leader: group 0 of (3,5), write 1, has 10048 bytes, late 0 ms\n"

// soonError is how a run ends whose store goes on.
func soonError(t *testing.T, r *running) error {
	t.Helper()
	r.goesOn(1)
	return soon(t, "the end", r.ended)
}

// A store that fails leaves nothing in the spool.
func TestAStoreThatFails(t *testing.T) {
	n := big(t)
	r := runs(t, n, spool.Config{Dir: t.TempDir()})
	soon(t, "the slot", r.freed)
	r.store.fail = errors.New("no space left")
	r.goesOn(1)
	if err := soon(t, "the end", r.ended); err == nil || !r.spool.Empty() {
		t.Errorf("it ends with %v", err)
	}
}

// What a commit waits for while a part is copied is said with another remedy.
func TestASlowSpoolIsNamed(t *testing.T) {
	w := &Write{pieces: []*piece{{bytes: 4 << 20}, {bytes: 1 << 20}}, seen: mark{at: time.Unix(100, 0)}}
	w.pieces[0].read.Store(3 << 20)
	w.road.Store(&road{through: "/fast/file"})
	for at, want := range map[time.Time]string{
		time.Unix(100, 1): "3 of 5 MiB were copied to /fast/file: the file system of spool_dir is slow for that. Give it a faster local disk, or the job more slots (--slots)",
		time.Unix(103, 0): "No byte of it was taken for 3s: see what ails the file system of spool_dir. Give it a faster local disk, or the job more slots (--slots)",
	} {
		if got := w.ails(at); got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
}
