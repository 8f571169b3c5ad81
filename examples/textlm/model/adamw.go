package model

import "math"

// AdamW's constants.
const (
	beta1    = 0.9
	beta2    = 0.99
	adamEps  = 1e-8
	padSpace = 4096 / 8 // words between two touches of the padding: one a page
)

// Update applies AdamW to the weights with the gradients that Backprop left, and counts the step. It is the optimizer window:
// no collective, no random number, and nothing outside it changes weights, moments, counter or padding.
func (m *Model) Update() {
	m.stepCount[0]++
	t := m.stepCount[0]
	rate := m.RateAt(t)
	c1 := float32(1 - math.Pow(beta1, float64(t)))
	c2 := float32(1 - math.Pow(beta2, float64(t)))
	decay := 1 - rate*m.cfg.Decay
	for i, g := range m.grads[:len(m.weights)] {
		m1 := beta1*m.moment1[i] + (1-beta1)*g
		m2 := beta2*m.moment2[i] + (1-beta2)*g*g
		m.moment1[i], m.moment2[i] = m1, m2
		m.weights[i] = decay*m.weights[i] - rate*(m1/c1)/(float32(math.Sqrt(float64(m2/c2)))+adamEps)
	}
	for i := 0; i < len(m.pad); i += padSpace {
		m.pad[i] = splitmix(m.pad[i] ^ t)
	}
}

// RateAt is the learning rate of step t, counted from 1: linear warm-up, then a cosine down to a tenth.
func (m *Model) RateAt(t uint64) float32 {
	c := m.cfg
	if t <= c.Warmup {
		return c.Rate * float32(t) / float32(c.Warmup)
	}
	done := 1.0
	if c.Steps > c.Warmup {
		done = min(float64(t-c.Warmup)/float64(c.Steps-c.Warmup), 1)
	}
	return c.Rate * float32(0.1+0.45*(1+math.Cos(math.Pi*done)))
}

// Steps is how many updates the state has had.
func (m *Model) Steps() uint64 { return m.stepCount[0] }
