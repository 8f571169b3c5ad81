// Package model is a neural probabilistic language model over characters (Bengio et al. 2003), sharded in two ways: the
// hidden units over the ranks of one replica (tensor parallel) and the batch over replicas (data parallel). Its parts are
// chosen so that every class of training state occurs: weights and Adam moments that change in the optimizer window, a
// running statistic that forward changes and replicas share, a frozen table of positions, and private random numbers for
// dropout and shuffling.
//
// Everything is float32 (sums of squares float64) in a fixed order of summation: equal state and equal batches give equal
// bits. A Model is used by one goroutine. It knows nothing of replicad or of sockets and imports only the standard library.
package model

import (
	"errors"
	"fmt"
	"math"
)

// Config is the shape of a run. Every rank of a run must have the same but for Shard and Replica.
type Config struct {
	Seed            uint64
	Steps           uint64 // the cosine schedule's length
	Context         int    // characters seen
	Embed           int    // numbers a character becomes
	Hidden          int    // hidden units over all shards; a multiple of Shards
	Vocab           int
	Batch           int // examples a replica and step
	Shards, Shard   int
	Replicas        int
	Replica         int
	Dropout         float32 // in [0, 1)
	Rate            float32 // peak learning rate
	Warmup          uint64  // steps of linear warm-up
	Decay, ClipNorm float32
	PadBytes        int  // further window state, touched in every update
	Thawed          bool // the table of positions counts as window state, which just never changes: then no state is frozen
}

// Default is the demo's model; the caller sets Seed, Steps, Vocab and its place.
func Default() Config {
	return Config{Context: 32, Embed: 16, Hidden: 192, Batch: 32, Shards: 2, Replicas: 2,
		Dropout: 0.1, Rate: 4e-3, Warmup: 40, Decay: 0.01, ClipNorm: 1}
}

func (c Config) check() error {
	switch {
	case c.Context < 1 || c.Embed < 1 || c.Batch < 1 || c.Vocab < 2 || c.Vocab > 256:
		return fmt.Errorf("model: context %d, embed %d, batch %d, vocabulary %d: want positive numbers and 2 to 256 tokens", c.Context, c.Embed, c.Batch, c.Vocab)
	case c.Shards < 1 || c.Hidden < c.Shards || c.Hidden%c.Shards != 0:
		return fmt.Errorf("model: %d hidden units do not divide into %d shards", c.Hidden, c.Shards)
	case c.Shard < 0 || c.Shard >= c.Shards || c.Replica < 0 || c.Replica >= c.Replicas:
		return fmt.Errorf("model: shard %d of %d, replica %d of %d", c.Shard, c.Shards, c.Replica, c.Replicas)
	case c.Dropout < 0 || c.Dropout >= 1:
		return fmt.Errorf("model: dropout %v is not in [0, 1)", c.Dropout)
	case c.PadBytes < 0:
		return fmt.Errorf("model: %d bytes of padding", c.PadBytes)
	}
	return nil
}

// Sum adds x over the ranks of a group, in the group's fixed order; afterwards all hold the same bits.
type Sum interface{ AllReduce(x []float32) error }

// Groups are the two collectives of a rank.
type Groups struct {
	Tensor Sum // the shards of this replica
	Data   Sum // the replicas of this shard
}

// Model is one rank's shard of one replica.
type Model struct {
	State
	cfg    Config
	tokens []uint8

	// Window: change only in Update.
	weights, moment1, moment2 []float32
	stepCount                 []uint64
	pad                       []uint64
	// Volatile: changes in Backprop.
	running []float32 // mean, then variance, of each hidden unit's input
	// Frozen.
	positions []float32 // Context x Embed
	// Private: change in Backprop, before the optimizer window of the same step.
	rng, sampler []uint64

	embed, w1, b1, w2, b2 []float32 // views of weights
	grads                 []float32 // as weights, and the loss behind them
	gEmbed, gW1, gB1, gW2 []float32
	gB2                   []float32
	at                    []int
	x, hidden, norm, mask []float32 // activations, batch-major
	logits, dHidden, dx   []float32
	stats                 []float32
}

// New makes the state of one rank and initialises it; what replicad loads later overwrites it.
func New(cfg Config, tokens []uint8, alloc Alloc) (*Model, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if len(tokens) <= cfg.Context || len(tokens)-cfg.Context < cfg.Batch*cfg.Replicas {
		return nil, errors.New("model: the text is shorter than one batch")
	}
	m := &Model{State: State{alloc: alloc}, cfg: cfg, tokens: tokens}
	if err := m.allocate(); err != nil {
		return nil, err
	}
	m.initialise()
	return m, nil
}

func (m *Model) allocate() error {
	c := m.cfg
	units, in := c.Hidden/c.Shards, c.Context*c.Embed
	sizes := []int{c.Vocab * c.Embed, units * in, units, c.Vocab * units, c.Vocab}
	total := 0
	for _, n := range sizes {
		total += n
	}
	var fault error
	f32 := func(name string, k Kind, cl Class, shape ...int) []float32 {
		x, err := m.f32(name, k, cl, shape...)
		fault = errors.Join(fault, err)
		return x
	}
	u64 := func(name string, k Kind, cl Class, n int) []uint64 {
		x, err := m.u64(name, k, cl, n)
		fault = errors.Join(fault, err)
		return x
	}
	m.weights = f32("weights", Replicated, Window, total)
	m.moment1 = f32("adam.m", Replicated, Window, total)
	m.moment2 = f32("adam.v", Replicated, Window, total)
	m.stepCount = u64("schedule.step", Replicated, Window, 1)
	if c.PadBytes > 0 {
		m.pad = u64("padding", Replicated, Window, (c.PadBytes+7)/8)
	}
	m.running = f32("running", Replicated, Volatile, 2, units)
	table := Frozen
	if c.Thawed {
		table = Window
	}
	m.positions = f32("positions", Replicated, table, c.Context, c.Embed)
	m.rng = u64("rng", Private, Volatile, 4)
	m.sampler = u64("sampler", Private, Volatile, samplerWords)
	if fault != nil {
		return fault
	}

	m.grads = make([]float32, total+1)
	views := func(flat []float32) (v [5][]float32) {
		for i, n := range sizes {
			v[i], flat = flat[:n:n], flat[n:]
		}
		return v
	}
	w, g := views(m.weights), views(m.grads)
	m.embed, m.w1, m.b1, m.w2, m.b2 = w[0], w[1], w[2], w[3], w[4]
	m.gEmbed, m.gW1, m.gB1, m.gW2, m.gB2 = g[0], g[1], g[2], g[3], g[4]
	m.at = make([]int, c.Batch)
	m.x, m.dx = make([]float32, c.Batch*in), make([]float32, in)
	m.hidden, m.norm = make([]float32, c.Batch*units), make([]float32, c.Batch*units)
	m.mask, m.dHidden = make([]float32, c.Batch*units), make([]float32, units)
	m.logits = make([]float32, c.Batch*c.Vocab)
	m.stats = make([]float32, 2*units)
	return nil
}

func (m *Model) initialise() {
	c := m.cfg
	units, in := c.Hidden/c.Shards, c.Context*c.Embed
	first := c.Shard * units // this shard's first unit
	for i := range m.embed {
		m.embed[i] = 0.5 * unit(c.Seed, 1, uint64(i), 0)
	}
	scale := float32(math.Sqrt(3 / float64(in)))
	for j := range units {
		for k := range in {
			m.w1[j*in+k] = scale * unit(c.Seed, 2, uint64(first+j), uint64(k))
		}
	}
	scale = float32(math.Sqrt(3/float64(c.Hidden))) * 0.5
	for v := range c.Vocab {
		for j := range units {
			m.w2[v*units+j] = scale * unit(c.Seed, 3, uint64(v), uint64(first+j))
		}
	}
	for j := range units {
		m.running[j], m.running[units+j] = 0, 1
	}
	for i := range c.Context {
		for e := range c.Embed {
			angle := float64(i) / math.Pow(1000, float64(e/2*2)/float64(c.Embed))
			m.positions[i*c.Embed+e] = 0.2 * float32(math.Sin(angle+float64(e%2)*math.Pi/2))
		}
	}
	for i := range m.pad {
		m.pad[i] = splitmix(c.Seed + uint64(c.Shard)<<48 + uint64(i))
	}
	// Dropout differs on every rank; the two shards of a replica must see the same examples.
	seedRNG(m.rng, splitmix(c.Seed^0xd209)+uint64(c.Replica*c.Shards+c.Shard)*4)
	m.sampler[pass], m.sampler[cursor], m.sampler[key] = 0, 0, splitmix(c.Seed^0x5a3b)
}

// Digests name the final state: of the weights, of all replicated state, and of this rank's private state.
func (m *Model) Digests() (weights, replicated, private string) {
	return m.Digest(func(r Region) bool { return r.Name == "weights" }),
		m.Digest(func(r Region) bool { return r.Kind == Replicated }),
		m.Digest(func(r Region) bool { return r.Kind == Private })
}
