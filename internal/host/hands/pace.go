package hands

import (
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/transfer"
)

// yielding is how this node's transfers give way to the ranks that train on it.
type yielding struct {
	governor manners.Governor
	looked   time.Duration
}

// Yield finds out how many bytes may leave, and come in to be mirrored, without the ranks here feeling it. up is for how long the daemon
// has run.
func (h *Hands) Yield(up time.Duration, training func() []manners.Job) {
	rate := h.Config.Config.DonorRate
	if rate == config.Unlimited || up-h.yield.looked < manners.LookEvery*9/10 { // ticks come a little early too
		return
	}
	h.yield.looked = up
	jobs := training()
	limit, why := h.yield.governor.Look(up, jobs, h.Pacer.Moved())
	if fixed, is := rate.Bytes(); is && len(jobs) > 0 {
		limit, why = float64(fixed), "donor_rate of the configuration"
	}
	h.Pacer.Limit(limit, why)
}

// PacedFrom is from how many bytes a part is held back. Every commit waits for smaller ones, and nobody feels these.
const PacedFrom = 1 << 20

// paced is a part that is sent at a pace.
type paced struct {
	transfer.Reader
	flow *manners.Flow
}

// pacedReceiving is one that is on its way here itself.
type pacedReceiving struct {
	transfer.Receiving
	flow *manners.Flow
}

// Pace has a part sent as one of its class.
func (h *Hands) Pace(r transfer.Reader, c manners.Class) transfer.Reader {
	if r.Manifest().Bytes < PacedFrom {
		return r
	}
	flow := h.Pacer.Flow(c, r.Manifest().Bytes)
	if on, ok := r.(transfer.Receiving); ok {
		return &pacedReceiving{on, flow}
	}
	return &paced{r, flow}
}

func (p *paced) Pace() func(bytes int)          { return p.flow.Stream() }
func (p *pacedReceiving) Pace() func(bytes int) { return p.flow.Stream() }

func (p *paced) Close() {
	p.flow.End()
	p.Reader.Close()
}

func (p *pacedReceiving) Close() {
	p.flow.End()
	p.Receiving.Close()
}

// pacedSink is where a part goes that another node pushes here: to take it in costs the ranks here what sending it does, and more. While a Put
// waits, nothing is read, so that the transport holds the sender back too.
type pacedSink struct {
	transfer.Sink
	pace func(bytes int)
}

func (s pacedSink) Put(i int, b []byte) error {
	s.pace(len(b))
	return s.Sink.Put(i, b)
}

// PaceSink has a part of so many bytes taken in as one of its class; end is called once, after the last Put.
func (h *Hands) PaceSink(to transfer.Sink, bytes uint64, c manners.Class) (_ transfer.Sink, end func()) {
	if bytes < PacedFrom {
		return to, func() {}
	}
	flow := h.Pacer.Flow(c, bytes)
	return pacedSink{to, flow.Stream()}, flow.End
}

// Drop closes a reader on the node's goroutine.
func Drop(r transfer.Reader) {
	if p, ok := r.(*paced); ok {
		p.flow.End()
		r = p.Reader
	}
	r.(*holding.Reader).Drop() // each is one that Push gave
}
