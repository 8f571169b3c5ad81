package mover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func digest(b []byte) replica.Digest {
	return replica.Digest(xxh3.Hash128(b).Bytes())
}

// part is a sealed part in memory: a reader of itself, and the store of a node that holds it alone.
type part struct {
	man   replica.Manifest
	bytes []byte
	bend  bool                               // its first chunk is sent with a flipped bit
	take  func(transfer.Key) (*place, error) // a push's place; nil: none is taken
	busy  func(context.Context) bool         // before a stream is served; false: it is not served

	mu             sync.Mutex
	opened, closed int
}

const chunk = 1 << 10

func newPart(n int) *part {
	p := &part{bytes: make([]byte, n)}
	for i := range p.bytes {
		p.bytes[i] = byte(i * 7)
	}
	p.man = replica.Manifest{Cluster: replica.ClusterID{1}, Era: 1, Job: replica.JobID{2}, Part: replica.OfRank(1), Generation: replica.Generation{Epoch: 3, Step: 40},
		Geometry: replica.Digest{9}, Bytes: uint64(n), ChunkBytes: chunk}
	for i := range replica.ChunkCount(p.man.Bytes, chunk) {
		off, n := replica.ChunkSpan(i, p.man.Bytes, chunk)
		p.man.Chunks = append(p.man.Chunks, digest(p.bytes[off:off+n]))
	}
	p.man.Root = digest(p.man.RootInput())
	return p
}

func (p *part) key() transfer.Key {
	m := p.man
	return transfer.Key{Cluster: m.Cluster, Era: 1, Job: m.Job, Epoch: 4, Part: m.Part, Generation: m.Generation, Root: m.Root, Rank: 1, Incarnation: 7}
}

func (p *part) Manifest() replica.Manifest { return p.man }
func (p *part) ReadChunk(i int, dst []byte) ([]byte, error) {
	off, n := replica.ChunkSpan(i, p.man.Bytes, chunk)
	copy(dst, p.bytes[off:off+n])
	if p.bend && i == 0 {
		dst[0] ^= 1
	}
	return dst[:n], nil
}

func (p *part) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed++
}

func (p *part) Open(_ replica.NodeName, k transfer.Key) (transfer.Reader, error) {
	if k != p.key() {
		return nil, transfer.ErrUnknownPart
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened++
	return p, nil
}

func (p *part) Accept(_ replica.NodeName, k transfer.Key, m replica.Manifest) (transfer.Sink, func(error) error, error) {
	if p.take == nil {
		return nil, nil, transfer.ErrRefused
	}
	s, err := p.take(k)
	if err != nil {
		return nil, nil, err
	}
	in := s.takes(m)
	return in, func(err error) error {
		in.end()
		if err == nil {
			err = s.Seal()
		}
		return err
	}, nil
}

// place takes a part.
type place struct {
	mu      sync.Mutex
	man     *replica.Manifest // of the push that it takes; nil: nobody's
	chunks  map[int][]byte
	full    error // what Seal says
	sealed  int
	aborted int
}

func newPlace() *place { return &place{chunks: map[int][]byte{}} }

// takes begins a push into the place. What has come of the same part stays.
func (p *place) takes(m replica.Manifest) *pushedInto {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.man == nil || p.man.Root != m.Root {
		clear(p.chunks)
	}
	p.man = &m
	return &pushedInto{place: p}
}

// pushedInto is the sink of one push.
type pushedInto struct {
	*place
	over bool // guarded by its mu
}

func (s *pushedInto) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

func (s *pushedInto) Put(i int, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || i < 0 || i >= len(s.man.Chunks) || digest(b) != s.man.Chunks[i] {
		return fmt.Errorf("chunk %d of %d bytes, ended: %t", i, len(b), s.over)
	}
	s.chunks[i] = slices.Clone(b)
	return nil
}

func (p *place) Have(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.chunks[i] != nil
}

func (p *place) Put(i int, b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chunks[i] = slices.Clone(b)
	return nil
}

func (p *place) Seal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.man != nil && len(p.chunks) != len(p.man.Chunks) {
		return fmt.Errorf("sealed with %d chunks of %d", len(p.chunks), len(p.man.Chunks))
	}
	p.sealed++
	return p.full
}
func (p *place) Abort() { p.aborted++ }
func (p *place) begin(replica.Manifest) (Staging, error) {
	return p, nil
}

func (p *place) holds(t *testing.T, want []byte) {
	t.Helper()
	var got []byte
	for i := range len(p.chunks) {
		got = append(got, p.chunks[i]...)
	}
	if string(got) != string(want) {
		t.Error("the part that arrived is not the one that was sent")
	}
}

// peer is another node, reached over pipes.
type peer struct {
	name  replica.NodeName
	store *part
	dials int
	work  sync.WaitGroup
	cut   bool // streams break off
}

func (p *peer) Peer() replica.NodeName { return p.name }
func (p *peer) Close()                 {}
func (p *peer) Open(context.Context) (net.Conn, error) {
	if p.cut {
		return nil, io.ErrClosedPipe
	}
	near, far := net.Pipe()
	p.work.Go(func() {
		if p.store.busy == nil || p.store.busy(context.Background()) {
			transfer.Serve(context.Background(), "n1", far, p.store, nil) //nolint:errcheck // the near end sees it
		}
		far.Close()
	})
	return near, nil
}

var errNoRoute = errors.New("no route")

// among makes a mover on n1 whose peers are these; told gets the ends of its pushes.
func among(t *testing.T, own transfer.Store, peers ...*peer) (m *Mover, told chan Pushed) {
	told = make(chan Pushed, 16)
	m = New(Config{Self: "n1", Parts: own, Pushed: func(p Pushed) { told <- p }, Dial: func(_ context.Context, to replica.NodeName, _ string, _ transfer.Transport) (transfer.Lane, error) {
		for _, p := range peers {
			if p.name == to {
				p.dials++
				return p, nil
			}
		}
		return nil, errNoRoute
	}})
	t.Cleanup(func() {
		m.Close()
		for _, p := range peers {
			p.work.Wait()
		}
	})
	return m, told
}

func holders(names ...replica.NodeName) (out []replica.Holder) {
	for _, n := range names {
		out = append(out, replica.Holder{Node: n, Incarnation: 1})
	}
	return out
}

// TestFetch: whoever can be dialled gives the part; who cannot is named; the place is sealed once.
func TestFetch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, at := newPart(10*chunk+5), newPlace()
		p.busy = func(context.Context) bool { time.Sleep(time.Millisecond); return true } // n3 has been dialled by then
		m, _ := among(t, nil, &peer{name: "n2", store: p})
		got, err := m.Fetch(t.Context(), Wanted{Key: p.key(), Holders: holders("n2", "n3")}, at.begin)
		if err != nil || at.sealed != 1 || at.aborted != 0 {
			t.Fatalf("sealed %d, aborted %d times, %v", at.sealed, at.aborted, err)
		}
		at.holds(t, p.bytes)
		if !slices.Equal(got.Unreached, []replica.NodeName{"n3"}) || got.Report.By["n2"] != p.man.Bytes || got.Report.Bytes != p.man.Bytes || got.Manifest.Root != p.man.Root || got.BadDisk {
			t.Fatalf("fetched %+v", got)
		}
	})
}

// TestFetchFromThisNode: what another rank here holds crosses no network, and is not counted as if it had.
func TestFetchFromThisNode(t *testing.T) {
	p, at := newPart(3*chunk), newPlace()
	m, _ := among(t, p)
	got, err := m.Fetch(t.Context(), Wanted{Key: p.key(), Holders: holders("n1")}, at.begin)
	if err != nil || got.Report.Bytes != 0 || len(got.Report.By) != 0 || len(got.Unreached) != 0 {
		t.Fatalf("fetched %+v, %v", got, err)
	}
	at.holds(t, p.bytes)
}

// TestFetchNamesWhoSentBadBytes: a good holder makes up for a bad one; with bad ones alone the place is given up.
func TestFetchNamesWhoSentBadBytes(t *testing.T) {
	good, bad := newPart(4*chunk), newPart(4*chunk)
	bad.bend = true
	m, _ := among(t, nil, &peer{name: "n2", store: bad}, &peer{name: "n3", store: good})
	at := newPlace()
	got, err := m.Fetch(t.Context(), Wanted{Key: good.key(), Holders: holders("n2")}, at.begin)
	if err == nil || at.sealed != 0 || at.aborted != 1 || !slices.Equal(got.Report.Corrupt, []replica.NodeName{"n2"}) {
		t.Fatalf("sealed %d, aborted %d times, %+v, %v", at.sealed, at.aborted, got, err)
	}
	at = newPlace()
	if _, err = m.Fetch(t.Context(), Wanted{Key: good.key(), Holders: holders("n2", "n3")}, at.begin); err != nil {
		t.Fatal(err)
	}
	at.holds(t, good.bytes)
}

// TestFetchThatFails: a whole that is wrong, a place that nobody gives, and the end of its caller.
func TestFetchThatFails(t *testing.T) {
	p := newPart(2 * chunk)
	m, _ := among(t, nil, &peer{name: "n2", store: p})
	w := Wanted{Key: p.key(), Holders: holders("n2")}
	at, torn := newPlace(), errors.New("the whole does not match")
	at.full = torn
	if _, err := m.Fetch(t.Context(), w, at.begin); !errors.Is(err, torn) || at.aborted != 1 {
		t.Fatalf("aborted %d times, %v", at.aborted, err)
	}
	full := errors.New("no place can be freed")
	if _, err := m.Fetch(t.Context(), w, func(replica.Manifest) (Staging, error) { return nil, full }); !errors.Is(err, full) {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Fetch(gone, w, newPlace().begin); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// TestFetchFromDiskThatIsNotThere: a node without the tier, and a generation that was pruned.
func TestFetchFromDiskThatIsNotThere(t *testing.T) {
	p := newPart(chunk)
	w := Wanted{Key: p.key(), Disk: "lm"}
	m, _ := among(t, nil)
	if _, err := m.Fetch(t.Context(), w, newPlace().begin); !errors.Is(err, ErrNoDisk) {
		t.Fatal(err)
	}
	for what, bad := range map[error]bool{errors.New("pruned"): false, store.ErrCorrupt: true} {
		m.cfg.Disk = lost{what}
		if got, err := m.Fetch(t.Context(), w, newPlace().begin); !errors.Is(err, what) || got.BadDisk != bad {
			t.Errorf("fetched %+v, %v", got, err)
		}
	}
}

// TestFetchFromDisk: every chunk arrives once, those that are there count as reused, and the first that fails ends the fetch.
func TestFetchFromDisk(t *testing.T) {
	p := newPart(40*chunk + 5)
	p.man.Root = shm.Root(&p.man)
	m, _ := among(t, nil)
	w := Wanted{Key: p.key(), Disk: "lm"}
	m.cfg.Disk = disk{p, -1}
	at := newPlace()
	got, err := m.Fetch(t.Context(), w, at.begin)
	if err != nil || got.Report.Bytes != p.man.Bytes || got.Report.By["disk"] != p.man.Bytes || got.Report.Reused != 0 || at.sealed != 1 {
		t.Fatalf("%+v, %v", got.Report, err)
	}
	at.holds(t, p.bytes)
	had := &halfPlace{newPlace()}
	got, err = m.Fetch(t.Context(), w, func(replica.Manifest) (Staging, error) { return had, nil })
	if err != nil || got.Report.Reused != 20*chunk+5 || got.Report.Bytes != 20*chunk {
		t.Errorf("with half of it there: %+v, %v", got.Report, err)
	}
	m.cfg.Disk = disk{p, 17}
	at = newPlace()
	if got, err := m.Fetch(t.Context(), w, at.begin); !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "chunk 17") || !got.BadDisk || at.aborted != 1 || at.sealed != 0 {
		t.Errorf("with a chunk that is damaged: %+v, %v", got, err)
	}
}

// halfPlace has the even chunks.
type halfPlace struct{ *place }

func (halfPlace) Have(i int) bool { return i%2 == 0 }

// disk has one part, of which a chunk may be damaged.
type disk struct {
	*part
	bad int
}

func (d disk) Open(context.Context, string, replica.JobID, replica.Generation, replica.Part) (OnDisk, error) {
	return d, nil
}
func (disk) Regions() []replica.Region { return nil }
func (d disk) ReadChunk(i int, dst []byte) ([]byte, error) {
	if i == d.bad {
		return nil, fmt.Errorf("digest differs: %w", store.ErrCorrupt)
	}
	return d.part.ReadChunk(i, dst)
}

// lost is a disk that has nothing.
type lost struct{ why error }

func (l lost) Open(context.Context, string, replica.JobID, replica.Generation, replica.Part) (OnDisk, error) {
	return nil, l.why
}

func next(t *testing.T, told chan Pushed, want error) {
	t.Helper()
	if p := <-told; !errors.Is(p.Err, want) {
		t.Fatalf("pushed %+v, want %v", p, want)
	}
}

func never(transfer.Key) bool  { return false }
func always(transfer.Key) bool { return true }

// TestPushReusesItsLane: one lane for all parts of a line; one that breaks is opened anew at once, and the mirror's "not yet" is not the lane's.
func TestPushReusesItsLane(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, at := newPart(3*chunk), newPlace()
		var says error
		n2 := &peer{name: "n2", store: &part{take: func(transfer.Key) (*place, error) { return at, says }}}
		m, told := among(t, nil, n2)
		line := Line{Node: "n2", Job: p.man.Job, Rank: 1}
		push := func() {
			if d := m.Push(line, Push{Key: p.key(), From: p}, never); len(d) != 0 {
				t.Fatalf("dropped %+v", d)
			}
		}
		push()
		next(t, told, nil)
		at.holds(t, p.bytes)
		push()
		next(t, told, nil)
		if n2.dials != 1 || p.closed != 2 {
			t.Fatalf("dialled %d times, closed %d readers of 2", n2.dials, p.closed)
		}
		n2.cut = true
		push()
		next(t, told, io.ErrClosedPipe)
		if n2.dials != 2 {
			t.Fatalf("dialled %d times, want once more", n2.dials)
		}
		n2.cut, says = false, transfer.ErrFenced
		push()
		next(t, told, transfer.ErrFenced)
		if n2.dials != 3 {
			t.Fatalf("dialled %d times, want once more for the broken lane alone", n2.dials)
		}
		m.Push(Line{Node: "n9", Job: p.man.Job, Rank: 1}, Push{Key: p.key(), From: p}, never)
		next(t, told, errNoRoute)
		if p.closed != 5 {
			t.Fatalf("closed %d readers of 5", p.closed)
		}
	})
}

// TestPushThatHangsIsGivenUp: a mirror that takes nothing any more holds a line up for as long as the part may take, and no longer.
func TestPushThatHangsIsGivenUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, life := newPart(chunk), make(chan struct{})
		n2 := &peer{name: "n2", store: &part{busy: func(context.Context) bool { <-life; return false }}}
		m, told := among(t, nil, n2)
		t.Cleanup(func() { close(life) })
		began := time.Now()
		m.Push(Line{Node: "n2", Job: p.man.Job, Rank: 1}, Push{Key: p.key(), From: p}, never)
		next(t, told, context.DeadlineExceeded)
		if took := time.Since(began); took > 2*m.pushLimit(p.man.Bytes) { // each of two tries
			t.Errorf("given up after %v", took)
		}
	})
}

// TestEndPushes: what waits is given back, nothing is told of it, and the other job's line goes on.
func TestEndPushes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, life, at := newPart(chunk), make(chan struct{}), newPlace()
		stuck := &peer{name: "n2", store: &part{busy: func(context.Context) bool { <-life; return false }}}
		m, told := among(t, nil, stuck, &peer{name: "n3", store: &part{take: func(transfer.Key) (*place, error) { return at, nil }}})
		t.Cleanup(func() { close(life) })
		for s := range replica.Step(3) {
			k := p.key()
			k.Generation.Step = s
			m.Push(Line{Node: "n2", Job: p.man.Job, Rank: 1}, Push{Key: k, From: p}, always)
		}
		synctest.Wait()
		m.EndPushes(p.man.Job)
		next(t, told, context.Canceled) // the one under way
		synctest.Wait()
		if p.closed != 3 || len(told) != 0 {
			t.Fatalf("closed %d readers of 3, told %d more ends", p.closed, len(told))
		}
		other := newPart(chunk)
		other.man.Job = replica.JobID{7}
		other.man.Root = digest(other.man.RootInput())
		m.Push(Line{Node: "n3", Job: other.man.Job, Rank: 1}, Push{Key: other.key(), From: other}, never)
		next(t, told, nil)
	})
}

// TestPrune: what a node is not to mirror any more is broken off and given back, and what it is to mirror goes on.
func TestPrune(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		refuses, at := true, newPlace()
		m, told := among(t, nil, &peer{name: "n2", store: &part{take: func(transfer.Key) (*place, error) {
			if refuses {
				return nil, transfer.ErrNotYet // it is not to mirror the part, as far as it has read
			}
			return at, nil
		}}})
		push := func(s replica.Step) *part {
			p := newPart(chunk)
			p.man.Generation.Step = s
			p.man.Root = digest(p.man.RootInput())
			m.Push(Line{Node: "n2", Job: p.man.Job, Rank: 1}, Push{Key: p.key(), From: p}, always)
			return p
		}
		push(1)
		synctest.Wait() // it is under way
		p := push(2)
		began := time.Now()
		if d := m.Prune(replica.JobID{99}, func(Line, transfer.Key) bool { return false }); len(d) != 0 {
			t.Fatalf("another job's: %v", d)
		}
		if d := m.Prune(p.man.Job, func(l Line, _ transfer.Key) bool { return l.Node != "n2" }); len(d) != 1 || d[0].Key != p.key() {
			t.Fatalf("dropped %v, want step 2", d)
		}
		next(t, told, ErrSuperseded)
		if took := time.Since(began); took != 0 {
			t.Errorf("broken off after %v", took)
		}
		refuses = false
		push(3)
		m.Prune(p.man.Job, func(Line, transfer.Key) bool { return true })
		next(t, told, nil)
	})
}

// TestWhatIsNotTakenYetGivesWay: a mirror takes a frozen part once it has what binds that, which waits in the same line.
func TestWhatIsNotTakenYetGivesWay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		at := newPlace()
		binds := false
		m, told := among(t, nil, &peer{name: "n2", store: &part{take: func(k transfer.Key) (*place, error) {
			binds = binds || k.Part.Kind == replica.ReplicatedPart
			if !binds {
				return nil, transfer.ErrNotYet
			}
			return at, nil
		}}})
		push := func(of replica.Part) {
			p := newPart(chunk)
			p.man.Part = of
			p.man.Root = digest(p.man.RootInput())
			m.Push(Line{Node: "n2", Job: p.man.Job, Rank: 1}, Push{Key: p.key(), From: p}, always)
		}
		frozen := replica.Part{Kind: replica.FrozenPart}
		push(frozen)
		synctest.Wait() // it is under way
		began := time.Now()
		push(replica.OfGroup(0))
		next(t, told, ErrSuperseded)
		next(t, told, nil)
		push(frozen)
		next(t, told, nil)
		if took := time.Since(began); took != 0 {
			t.Errorf("through after %v", took)
		}
	})
}

// TestOldStepsDoNotQueueUp: behind a mirror that is slow the newest step alone waits, and the candidate breaks off what was under way.
func TestOldStepsDoNotQueueUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		streams, open := 0, make(chan struct{})
		at := newPlace()
		n2 := &peer{name: "n2", store: &part{take: func(transfer.Key) (*place, error) { return at, nil }, busy: func(context.Context) bool {
			mu.Lock()
			streams++
			first := streams == 1
			mu.Unlock()
			if first {
				<-open // nothing is read: the push is at its beginning for as long as it lasts
			}
			return !first
		}}}
		m, told := among(t, nil, n2)
		steps := map[replica.Step]*part{}
		push := func(s replica.Step, awaited func(transfer.Key) bool) (dropped []replica.Step) {
			p := newPart(tcpFrom)
			p.man.Generation.Step = s
			p.man.Root = digest(p.man.RootInput())
			steps[s] = p
			for _, d := range m.Push(Line{Node: "n2", Job: p.man.Job, Rank: 1}, Push{Key: p.key(), From: p}, awaited) {
				dropped = append(dropped, d.Key.Generation.Step)
			}
			return dropped
		}
		push(1, never)
		synctest.Wait() // it is under way
		if d := push(1, never); !slices.Equal(d, []replica.Step{1}) {
			t.Fatalf("what is under way is put a second time: dropped %v", d)
		}
		push(2, never)
		if d := push(3, never); !slices.Equal(d, []replica.Step{2}) {
			t.Fatalf("dropped %v, want step 2", d)
		}
		if d := push(4, func(k transfer.Key) bool { return k.Generation.Step == 4 }); len(d) != 0 {
			t.Fatalf("dropped %v", d)
		}
		next(t, told, ErrSuperseded) // step 1
		for _, want := range []replica.Step{4, 3} {
			if p := <-told; p.Err != nil || p.Key.Generation.Step != want {
				t.Fatalf("pushed %+v, want step %d", p, want)
			}
		}
		at.holds(t, steps[3].bytes)
		close(open)
	})
}

// TestBrokenOffWhileItDials: that a newer step is wanted says nothing of TCP.
func TestBrokenOffWhileItDials(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var over []transfer.Transport
		n2 := &peer{name: "n2", store: &part{take: func(transfer.Key) (*place, error) { return newPlace(), nil }}}
		told := make(chan Pushed, 16)
		m := New(Config{Self: "n1", TCPLanes: 1, Pushed: func(p Pushed) { told <- p }, Dial: func(ctx context.Context, _ replica.NodeName, _ string, by transfer.Transport) (transfer.Lane, error) {
			if over = append(over, by); len(over) == 1 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return n2, nil
		}})
		defer func() { m.Close(); n2.work.Wait() }()
		for _, s := range []replica.Step{1, 2} {
			p := newPart(tcpFrom)
			p.man.Generation.Step = s
			p.man.Root = digest(p.man.RootInput())
			m.Push(Line{Node: "n2", Job: p.man.Job, Rank: 1}, Push{Key: p.key(), From: p}, func(k transfer.Key) bool { return k.Generation.Step == 2 })
			synctest.Wait()
		}
		next(t, told, ErrSuperseded)
		next(t, told, nil)
		if !slices.Equal(over, []transfer.Transport{transfer.TCP, transfer.TCP}) {
			t.Errorf("dialled %v", over)
		}
	})
}

// TestLargePartsTakeTurns: no more than so many are sent to a node at once, and small ones do not wait for them.
func TestLargePartsTakeTurns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		large, open := 0, make(chan struct{})
		n2 := &peer{name: "n2", store: &part{take: func(transfer.Key) (*place, error) { return newPlace(), nil }}}
		told := make(chan Pushed, 16)
		m := New(Config{Self: "n1", Pushed: func(p Pushed) { told <- p }, Dial: func(context.Context, replica.NodeName, string, transfer.Transport) (transfer.Lane, error) {
			return n2, nil
		}})
		defer func() { m.Close(); n2.work.Wait() }()
		send := func(r replica.Rank, bytes int) {
			p := newPart(bytes)
			m.Push(Line{Node: "n2", Job: p.man.Job, Rank: r}, Push{Key: p.key(), From: &slowPart{part: p, begins: func() { mu.Lock(); large++; mu.Unlock(); <-open }, slow: bytes >= tcpFrom}}, never)
		}
		for r := range replica.Rank(largeAtOnce + 3) {
			send(r, tcpFrom)
		}
		synctest.Wait()
		mu.Lock()
		if large != largeAtOnce {
			t.Errorf("%d large parts are sent at once, want %d", large, largeAtOnce)
		}
		mu.Unlock()
		send(0, chunk)
		next(t, told, nil) // the small one
		close(open)
		for range largeAtOnce + 3 {
			next(t, told, nil)
		}
	})
}

// TestLargePartTakesFreeLanes: a part that is large enough goes over as many lanes as there may be and as others leave it.
func TestLargePartTakesFreeLanes(t *testing.T) {
	bubble.Test(t, largePartTakesFreeLanes) // a push has a deadline, which a machine with thirty programs outlasts
}

func largePartTakesFreeLanes(t *testing.T) {
	p := newPart(16 << 20)
	n2 := &peer{name: "n2", store: &part{take: func(transfer.Key) (*place, error) { return newPlace(), nil }}}
	var opened atomic.Int32
	told := make(chan Pushed, 16)
	m := New(Config{Self: "n1", TCPLanes: 2, Pushed: func(p Pushed) { told <- p }, Dial: func(context.Context, replica.NodeName, string, transfer.Transport) (transfer.Lane, error) {
		return countedLane{n2, &opened}, nil
	}})
	defer func() { m.Close(); n2.work.Wait() }()
	push := func(want int32) {
		t.Helper()
		opened.Store(0)
		m.Push(Line{Node: "n2", Job: p.man.Job, Rank: 1}, Push{Key: p.key(), From: p}, never)
		if next(t, told, nil); opened.Load() != want {
			t.Errorf("%d streams, want %d", opened.Load(), want)
		}
	}
	push(2)
	for range largeAtOnce - 1 {
		m.turns["n2"] <- struct{}{}
	}
	push(1)
	if n := len(m.turns["n2"]); n != largeAtOnce-1 {
		t.Errorf("%d turns are taken, want %d", n, largeAtOnce-1)
	}
}

// countedLane counts its streams.
type countedLane struct {
	*peer
	opened *atomic.Int32
}

func (l countedLane) Open(ctx context.Context) (net.Conn, error) {
	l.opened.Add(1)
	return l.peer.Open(ctx)
}

// slowPart is a part whose first chunk is read late.
type slowPart struct {
	*part
	begins func()
	slow   bool
}

func (p *slowPart) ReadChunk(i int, dst []byte) ([]byte, error) {
	if i == 0 && p.slow {
		p.begins()
	}
	return p.part.ReadChunk(i, dst)
}

// A shard of gigabytes takes longer than a small part may.
func TestPushLimit(t *testing.T) {
	m := New(Config{})
	defer m.Close()
	if small, large := m.pushLimit(1<<20), m.pushLimit(64<<30); small > 4*time.Second || large < 1000*time.Second {
		t.Errorf("a push of 1 MiB may take %v, one of 64 GiB %v", small, large)
	}
}

// TestPushOverTCP: a large part goes over TCP, a small one over QUIC; where TCP does not get through, QUIC serves, and TCP rests.
func TestPushOverTCP(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		large, small := newPart(tcpFrom), newPart(tcpFrom-1)
		var over []transfer.Transport
		var blocked bool
		told := make(chan Pushed, 16)
		var peers []*peer
		var tcp *peer // the newest lane
		m := New(Config{Self: "n1", TCPLanes: 2, Pushed: func(p Pushed) { told <- p }, Dial: func(_ context.Context, _ replica.NodeName, _ string, by transfer.Transport) (transfer.Lane, error) {
			over = append(over, by)
			if blocked && by == transfer.TCP {
				return nil, errNoRoute
			}
			p := &peer{name: "n2", store: &part{take: func(transfer.Key) (*place, error) { return newPlace(), nil }}}
			if peers = append(peers, p); by == transfer.TCP {
				tcp = p
			}
			return p, nil
		}})
		defer func() {
			m.Close()
			for _, p := range peers {
				p.work.Wait()
			}
		}()
		pushes := func(p *part, want ...transfer.Transport) {
			t.Helper()
			over = nil
			m.Push(Line{Node: "n2", Job: p.man.Job, Rank: 1}, Push{Key: p.key(), From: p}, never)
			next(t, told, nil)
			if !slices.Equal(over, want) {
				t.Errorf("dialled %v, want %v", over, want)
			}
		}
		pushes(small, transfer.QUIC)
		pushes(large, transfer.TCP)
		pushes(large)
		tcp.cut = true
		pushes(large, transfer.TCP) // what broke may be the old connection alone
		tcp.cut, blocked = true, true
		pushes(large, transfer.TCP, transfer.QUIC)
		pushes(large) // over QUIC
		time.Sleep(tcpRest)
		blocked = false
		pushes(large, transfer.TCP)
	})
}

// TestFetchBlamesWhomNoLaneReached: a holder that TCP does not reach is none that could not be dialled.
func TestFetchBlamesWhomNoLaneReached(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPart(8 << 20)
		var peers []*peer
		m := New(Config{Self: "n1", TCPLanes: 2, Dial: func(_ context.Context, to replica.NodeName, _ string, by transfer.Transport) (transfer.Lane, error) {
			if by == transfer.TCP || to == "n3" {
				return nil, errNoRoute
			}
			from := &peer{name: to, store: p}
			peers = append(peers, from)
			return from, nil
		}})
		at := newPlace()
		got, err := m.Fetch(t.Context(), Wanted{Key: p.key(), Holders: holders("n2", "n3")}, at.begin)
		if err != nil || !slices.Equal(got.Unreached, []replica.NodeName{"n3"}) || got.Report.Failed["n2"] != "" || got.Report.Failed["n3"] == "" {
			t.Fatalf("%+v, %v", got, err)
		}
		at.holds(t, p.bytes)
		m.Close()
		for _, p := range peers {
			p.work.Wait()
		}
	})
}

// TestEachAddressHasALane: a fetch opens a lane over QUIC to the first address of a holder, and lanes over TCP to all of them; without TCP
// one over QUIC to each. A holder with one address is dialled as its node knows it.
func TestEachAddressHasALane(t *testing.T) {
	ways := map[replica.NodeName][]string{"n2": {"a", "b", "c"}, "n3": {"d"}}
	for lanes, want := range map[int][]string{
		2: {"n2 a QUIC", "n2 a TCP", "n2 b TCP", "n2 c TCP", "n3  QUIC", "n3  TCP", "n3  TCP"},
		4: {"n2 a QUIC", "n2 a TCP", "n2 b TCP", "n2 c TCP", "n2 a TCP", "n3  QUIC", "n3  TCP", "n3  TCP", "n3  TCP", "n3  TCP"},
		0: {"n2 a QUIC", "n2 b QUIC", "n2 c QUIC", "n3  QUIC"},
	} {
		m := New(Config{Self: "n1", TCPLanes: lanes, Ways: func(_ context.Context, n replica.NodeName) []string { return ways[n] }})
		var got []string
		for _, s := range m.sources(t.Context(), Wanted{Holders: holders("n2", "n3")}, new(dials)) {
			got = append(got, fmt.Sprintf("%s %s %v", s.Node, s.At, s.Over))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d lanes over TCP: %q, want %q", lanes, got, want)
		}
		m.Close()
	}
}
