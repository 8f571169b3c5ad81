package model

import "math"

const (
	momentum = 0.95 // of the running statistic
	epsilon  = 1e-5
)

// Backprop draws the next batch and leaves the gradients of the mean loss over all replicas, which it returns, clipped to the
// norm. It changes private and volatile state, never window state: it may run while the weights of the step before are still
// being copied. midway, if not nil, is called when the running statistic has changed and the logits are not yet known.
func (m *Model) Backprop(g Groups, midway func()) (loss float32, err error) {
	nextBatch(m.sampler, m.at, m.cfg.Replica, m.cfg.Replicas, len(m.tokens)-m.cfg.Context)
	m.drawMask()
	m.embedBatch()
	m.hiddenInputs()
	if err := m.updateRunning(g.Data); err != nil {
		return 0, err
	}
	if midway != nil {
		midway()
	}
	m.activate()
	if err := m.outputs(g.Tensor); err != nil {
		return 0, err
	}
	m.grads[len(m.grads)-1] = m.softmax()
	if err := m.backward(g); err != nil {
		return 0, err
	}
	if err := m.clip(g.Tensor); err != nil {
		return 0, err
	}
	return m.grads[len(m.grads)-1], nil
}

// drawMask draws this step's dropout, scaled so that the expected activation stays.
func (m *Model) drawMask() {
	p := m.cfg.Dropout
	if p == 0 {
		for i := range m.mask {
			m.mask[i] = 1
		}
		return
	}
	limit, keep := uint32(float64(p)*(1<<16)), 1/(1-p)
	for i := 0; i < len(m.mask); {
		for word := next(m.rng); i < len(m.mask); word >>= 16 {
			m.mask[i] = keep
			if uint32(word&0xffff) < limit {
				m.mask[i] = 0
			}
			if i++; i%4 == 0 {
				break
			}
		}
	}
}

// embedBatch looks the batch's characters up and adds their positions.
func (m *Model) embedBatch() {
	e, in := m.cfg.Embed, m.cfg.Context*m.cfg.Embed
	for b, at := range m.at {
		row := m.x[b*in:][:in]
		for i, token := range m.tokens[at : at+m.cfg.Context] {
			from, pos := m.embed[int(token)*e:][:e], m.positions[i*e:][:e]
			for k := range e {
				row[i*e+k] = from[k] + pos[k]
			}
		}
	}
}

// hiddenInputs puts each unit's weighted input into norm, and its sums over the batch into stats.
func (m *Model) hiddenInputs() {
	units, in := len(m.b1), m.cfg.Context*m.cfg.Embed
	clear(m.stats)
	for b := range m.cfg.Batch {
		x, z := m.x[b*in:][:in], m.norm[b*units:][:units]
		for j := range units {
			v := m.b1[j] + dot(m.w1[j*in:][:in], x)
			z[j] = v
			m.stats[j] += v
			m.stats[units+j] += v * v
		}
	}
}

// updateRunning folds the batch's mean and variance, over all replicas, into the running statistic.
func (m *Model) updateRunning(data Sum) error {
	if err := data.AllReduce(m.stats); err != nil {
		return err
	}
	units, n := len(m.b1), float32(m.cfg.Batch*m.cfg.Replicas)
	for j := range units {
		mean := m.stats[j] / n
		variance := max(m.stats[units+j]/n-mean*mean, 0)
		m.running[j] = momentum*m.running[j] + (1-momentum)*mean
		m.running[units+j] = momentum*m.running[units+j] + (1-momentum)*variance
	}
	return nil
}

// inverse is what unit j's input is scaled by.
func (m *Model) inverse(j int) float32 {
	return 1 / float32(math.Sqrt(float64(m.running[len(m.b1)+j]+epsilon)))
}

// activate normalises the inputs by the running statistic, which counts as a constant, and applies tanh.
func (m *Model) activate() {
	units := len(m.b1)
	for j := range units {
		mean, inv := m.running[j], m.inverse(j)
		for b := range m.cfg.Batch {
			m.hidden[b*units+j] = float32(math.Tanh(float64((m.norm[b*units+j] - mean) * inv)))
		}
	}
}

// outputs leaves the logits of the batch: each shard's share, summed, and the bias.
func (m *Model) outputs(tensor Sum) error {
	units, vocab := len(m.b1), m.cfg.Vocab
	for b := range m.cfg.Batch {
		h, mask, d := m.hidden[b*units:][:units], m.mask[b*units:][:units], m.norm[b*units:][:units]
		for j := range d {
			d[j] = h[j] * mask[j] // norm now holds what the output layer sees
		}
		out := m.logits[b*vocab:][:vocab]
		for v := range out {
			out[v] = dot(m.w2[v*units:][:units], d)
		}
	}
	if err := tensor.AllReduce(m.logits); err != nil {
		return err
	}
	for i := range m.logits {
		m.logits[i] += m.b2[i%vocab]
	}
	return nil
}

// softmax turns the logits into their gradient and returns this replica's share of the mean loss.
func (m *Model) softmax() float32 {
	vocab := m.cfg.Vocab
	share := 1 / float32(m.cfg.Batch*m.cfg.Replicas)
	var loss float64
	for b, at := range m.at {
		row := m.logits[b*vocab:][:vocab]
		want := int(m.tokens[at+m.cfg.Context])
		top := row[0]
		for _, v := range row {
			top = max(top, v)
		}
		chosen := row[want] - top
		var sum float64
		for v := range row {
			e := math.Exp(float64(row[v] - top))
			row[v] = float32(e)
			sum += e
		}
		loss += math.Log(sum) - float64(chosen)
		scale := share / float32(sum)
		for v := range row {
			row[v] *= scale
		}
		row[want] -= share
	}
	return float32(loss) * share
}

// backward fills the gradients and sums them: the embedding's over the shards, everything over the replicas.
func (m *Model) backward(g Groups) error {
	units, vocab, in, e := len(m.b1), m.cfg.Vocab, m.cfg.Context*m.cfg.Embed, m.cfg.Embed
	clear(m.grads[:len(m.grads)-1])
	for b, at := range m.at {
		x, out := m.x[b*in:][:in], m.logits[b*vocab:][:vocab]
		d, h, mask := m.norm[b*units:][:units], m.hidden[b*units:][:units], m.mask[b*units:][:units]
		clear(m.dHidden)
		for v, s := range out {
			m.gB2[v] += s
			axpy(m.gW2[v*units:][:units], s, d)
			axpy(m.dHidden, s, m.w2[v*units:][:units])
		}
		clear(m.dx)
		for j, s := range m.dHidden {
			if s *= mask[j] * (1 - h[j]*h[j]) * m.inverse(j); s == 0 {
				continue
			}
			m.gB1[j] += s
			axpy(m.gW1[j*in:][:in], s, x)
			axpy(m.dx, s, m.w1[j*in:][:in])
		}
		for i, token := range m.tokens[at : at+m.cfg.Context] {
			axpy(m.gEmbed[int(token)*e:][:e], 1, m.dx[i*e:][:e])
		}
	}
	if err := g.Tensor.AllReduce(m.gEmbed); err != nil {
		return err
	}
	return g.Data.AllReduce(m.grads)
}

// clip scales the gradients so that their norm over all shards is at most ClipNorm. Embedding and output bias are the same
// on every shard and count once.
func (m *Model) clip(tensor Sum) error {
	sharded := []float32{squares(m.gW1) + squares(m.gB1) + squares(m.gW2)}
	if err := tensor.AllReduce(sharded); err != nil {
		return err
	}
	norm := float32(math.Sqrt(float64(sharded[0] + squares(m.gEmbed) + squares(m.gB2))))
	if norm > m.cfg.ClipNorm {
		scale := m.cfg.ClipNorm / norm
		for i := range m.grads[:len(m.grads)-1] {
			m.grads[i] *= scale
		}
	}
	return nil
}

// dot sums in four strands that are added in a fixed order.
func dot(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	b = b[:len(a)]
	i := 0
	for ; i+4 <= len(a); i += 4 {
		p, q := a[i:i+4:i+4], b[i:i+4:i+4]
		s0 += p[0] * q[0]
		s1 += p[1] * q[1]
		s2 += p[2] * q[2]
		s3 += p[3] * q[3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return (s0 + s1) + (s2 + s3)
}

// axpy adds s*x to y.
func axpy(y []float32, s float32, x []float32) {
	x = x[:len(y)]
	i := 0
	for ; i+4 <= len(y); i += 4 {
		p, q := y[i:i+4:i+4], x[i:i+4:i+4]
		p[0] += s * q[0]
		p[1] += s * q[1]
		p[2] += s * q[2]
		p[3] += s * q[3]
	}
	for ; i < len(y); i++ {
		y[i] += s * x[i]
	}
}

func squares(x []float32) float32 {
	var s float64
	for _, v := range x {
		s += float64(v) * float64(v)
	}
	return float32(s)
}
