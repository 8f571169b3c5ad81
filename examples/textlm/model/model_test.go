package model

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
)

// alone is the collective of one rank.
type alone struct{}

func (alone) AllReduce([]float32) error { return nil }

var single = Groups{Tensor: alone{}, Data: alone{}}

// text is small, of 7 tokens, and not random: there is something to learn.
func text(n int) []uint8 {
	b := make([]uint8, n)
	for i := range b {
		b[i] = uint8((i*i/3 + i) % 7)
	}
	return b
}

func tiny() Config {
	return Config{Seed: 3, Steps: 100, Context: 5, Embed: 4, Hidden: 8, Vocab: 7, Batch: 6, Shards: 1, Replicas: 1,
		Dropout: 0.25, Rate: 0.02, Warmup: 5, Decay: 0.01, ClipNorm: 1e9}
}

func newModel(t *testing.T, c Config) *Model {
	t.Helper()
	m, err := New(c, text(400), Heap)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// loss runs a forward pass with everything but the weights as it was before the last Backprop.
func (m *Model) lossAgain(t *testing.T, at []int, mask, running []float32) float64 {
	t.Helper()
	copy(m.at, at)
	copy(m.mask, mask)
	m.embedBatch()
	m.hiddenInputs()
	copy(m.running, running)
	m.activate()
	if err := m.outputs(alone{}); err != nil {
		t.Fatal(err)
	}
	return float64(m.softmax())
}

func TestGradientsAgainstFiniteDifferences(t *testing.T) {
	m := newModel(t, tiny())
	for range 3 { // away from the initial state
		if _, err := m.Backprop(single, nil); err != nil {
			t.Fatal(err)
		}
		m.Update()
	}
	if _, err := m.Backprop(single, nil); err != nil {
		t.Fatal(err)
	}
	at, mask, running, grads := slices.Clone(m.at), slices.Clone(m.mask), slices.Clone(m.running), slices.Clone(m.grads)
	const h = 1e-2
	var worst, largest float64
	for i := range m.weights {
		was := m.weights[i]
		m.weights[i] = was + h
		up := m.lossAgain(t, at, mask, running)
		m.weights[i] = was - h
		down := m.lossAgain(t, at, mask, running)
		m.weights[i] = was
		numeric := (up - down) / (2 * h)
		worst = max(worst, math.Abs(numeric-float64(grads[i])))
		largest = max(largest, math.Abs(numeric))
	}
	if worst > 2e-3*max(largest, 1) || largest < 1e-3 {
		t.Fatalf("gradients differ from finite differences by up to %g; the largest is %g", worst, largest)
	}
}

func TestLossFalls(t *testing.T) {
	c := tiny()
	c.Hidden, c.Batch, c.ClipNorm = 16, 16, 1
	m := newModel(t, c)
	var first, last float32
	for i := range 100 {
		loss, err := m.Backprop(single, nil)
		if err != nil {
			t.Fatal(err)
		}
		if i < 5 {
			first += loss / 5
		}
		if i >= 95 {
			last += loss / 5
		}
		m.Update()
	}
	if last > first-0.5 {
		t.Fatalf("mean loss %v in the first five steps, %v in the last five of 100: it should fall by more than 0.5", first, last)
	}
}

// ring sums over goroutines in the order of ranks, as the real collective does.
type ring struct {
	mu      sync.Mutex
	turn    *sync.Cond
	n       int
	bufs    [][]float32
	arrived int
	round   int
	sum     []float32
}

func newRing(n int) *ring {
	r := &ring{n: n, bufs: make([][]float32, n)}
	r.turn = sync.NewCond(&r.mu)
	return r
}

type seat struct {
	*ring
	i int
}

func (s seat) AllReduce(x []float32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bufs[s.i] = slices.Clone(x)
	round := s.round
	if s.arrived++; s.arrived == s.n {
		s.sum = slices.Clone(s.bufs[0])
		for _, b := range s.bufs[1:] {
			for i, v := range b {
				s.sum[i] += v
			}
		}
		s.arrived = 0
		s.round++
		s.turn.Broadcast()
	}
	for s.round == round {
		s.turn.Wait()
	}
	copy(x, s.sum)
	return nil
}

func TestShardedRunMatchesUnsharded(t *testing.T) {
	whole := tiny()
	whole.Dropout, whole.Batch, whole.ClipNorm = 0, 12, 0.5 // dropout is drawn per rank, so it must be off to compare
	w := newModel(t, whole)
	part := whole
	part.Batch, part.Shards, part.Replicas = 6, 2, 2
	var ms [2][2]*Model // replica, shard
	tensor, data := [2]*ring{newRing(2), newRing(2)}, [2]*ring{newRing(2), newRing(2)}
	for r := range 2 {
		for s := range 2 {
			c := part
			c.Replica, c.Shard = r, s
			ms[r][s] = newModel(t, c)
		}
	}
	for step := range 20 {
		want, err := w.Backprop(single, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.Update()
		var wg sync.WaitGroup
		for r := range 2 {
			for s := range 2 {
				wg.Go(func() {
					got, err := ms[r][s].Backprop(Groups{Tensor: seat{tensor[r], s}, Data: seat{data[s], r}}, nil)
					if err != nil || math.Abs(float64(got-want)) > 1e-4 {
						t.Errorf("step %d replica %d shard %d: loss %v, unsharded %v, error %v", step, r, s, got, want, err)
					}
					ms[r][s].Update()
				})
			}
		}
		wg.Wait()
	}
	units := whole.Hidden / 2
	in := whole.Context * whole.Embed
	for s := range 2 {
		a, _, _ := ms[0][s].Digests()
		b, _, _ := ms[1][s].Digests()
		if a != b {
			t.Errorf("shard %d: the replicas' weights differ", s)
		}
		near(t, fmt.Sprint("w1 of shard ", s), ms[0][s].w1, w.w1[s*units*in:(s+1)*units*in])
		near(t, "embedding", ms[0][s].embed, w.embed)
		near(t, "running mean", ms[0][s].running[:units], w.running[s*units:(s+1)*units])
	}
}

func near(t *testing.T, what string, a, b []float32) {
	t.Helper()
	for i := range a {
		if math.Abs(float64(a[i]-b[i])) > 2e-3 {
			t.Errorf("%s: element %d is %v, unsharded %v", what, i, a[i], b[i])
			return
		}
	}
}

// Backprop may run while the window regions of the step before are copied, and the optimizer window while nothing but them
// changes.
func TestRegionsChangeOnlyWhenTheirClassSays(t *testing.T) {
	c := tiny()
	c.PadBytes = 64 << 10
	m := newModel(t, c)
	digest := func() map[string]string {
		d := map[string]string{}
		for _, r := range m.Regions {
			d[r.Name] = m.Digest(func(o Region) bool { return o.Name == r.Name })
		}
		return d
	}
	start := digest()
	if _, err := m.Backprop(single, nil); err != nil {
		t.Fatal(err)
	}
	forward := digest()
	m.Update()
	window := digest()
	for _, r := range m.Regions {
		inForward, inWindow := start[r.Name] != forward[r.Name], forward[r.Name] != window[r.Name]
		wantForward := r.Class == Volatile
		wantWindow := r.Kind == Replicated && r.Class == Window
		if inForward != wantForward || inWindow != wantWindow {
			t.Errorf("region %s: changed in forward %v (want %v), in the optimizer window %v (want %v)", r.Name, inForward, wantForward, inWindow, wantWindow)
		}
	}
}

func TestSamplerVisitsEveryPlaceOnceAPass(t *testing.T) {
	const n, batch, replicas = 50, 4, 3
	states := make([][]uint64, replicas)
	for r := range states {
		states[r] = []uint64{0, 0, 77}
	}
	var order [2][]int
	for p := range order {
		seen := map[int]bool{}
		for range n / (batch * replicas) {
			for r, s := range states {
				at := make([]int, batch)
				nextBatch(s, at, r, replicas, n)
				if s[pass] != uint64(p) {
					t.Fatalf("pass %d began early, want %d", s[pass], p)
				}
				for _, i := range at {
					if i < 0 || i >= n || seen[i] {
						t.Fatalf("pass %d: place %d comes twice or does not exist", p, i)
					}
					seen[i] = true
					order[p] = append(order[p], i)
				}
			}
		}
	}
	if slices.Equal(order[0], order[1]) {
		t.Fatal("the second pass has the order of the first")
	}
}

// Batches of another size go on behind the places that were seen.
func TestSamplerCountsPlaces(t *testing.T) {
	const n = 60
	s := []uint64{0, 0, 9}
	seen := map[int]bool{}
	for _, batch := range []int{7, 7, 3, 20, 11, 12} {
		at := make([]int, batch)
		nextBatch(s, at, 0, 1, n)
		for _, place := range at {
			seen[place] = true
		}
	}
	if len(seen) != n || s[pass] != 0 || s[cursor] != n {
		t.Errorf("%d of %d places were seen in pass %d, up to place %d", len(seen), n, s[pass], s[cursor])
	}
}

func TestPermuteIsAPermutation(t *testing.T) {
	for _, n := range []int{1, 2, 3, 16, 17, 1000} {
		seen := make([]bool, n)
		for i := range n {
			p := permute(i, n, 12345)
			if p < 0 || p >= n || seen[p] {
				t.Fatalf("n %d: %d -> %d comes twice or lies outside", n, i, p)
			}
			seen[p] = true
		}
	}
}

func TestScheduleWarmsUpAndDecays(t *testing.T) {
	m := newModel(t, tiny())
	if a, b := m.RateAt(1), m.RateAt(5); a >= b || b != m.cfg.Rate {
		t.Errorf("warm-up: rate %v at step 1, %v at step 5, want it to rise to %v", a, b, m.cfg.Rate)
	}
	if a, b := m.RateAt(50), m.RateAt(100); a <= b || math.Abs(float64(b-0.1*m.cfg.Rate)) > 1e-6 {
		t.Errorf("cosine: rate %v at step 50, %v at step 100, want it to fall to a tenth of %v", a, b, m.cfg.Rate)
	}
}

func TestConfigFaultsAreNamed(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"shards":  func(c *Config) { c.Shards = 3 },
		"replica": func(c *Config) { c.Replica = 1 },
		"dropout": func(c *Config) { c.Dropout = 1 },
		"batch":   func(c *Config) { c.Batch = 0 },
		"padding": func(c *Config) { c.PadBytes = -1 },
		"text":    func(c *Config) { c.Batch = 4000 },
	} {
		c := tiny()
		change(&c)
		if _, err := New(c, text(400), Heap); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func BenchmarkStep(b *testing.B) {
	c := Default()
	c.Vocab, c.Steps, c.Shards, c.Replicas = 93, 1000, 1, 1
	c.Hidden /= 2
	tokens := make([]uint8, 100000)
	for i := range tokens {
		tokens[i] = uint8(i * 31 % 93)
	}
	m, err := New(c, tokens, Heap)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Backprop(single, nil); err != nil {
			b.Fatal(err)
		}
		m.Update()
	}
}
