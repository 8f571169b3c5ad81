package host

import (
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/transfer"
)

// yielding is how this node's transfers give way to the ranks that train on it. Owned by the host, but for the pacer.
type yielding struct {
	pacer    *manners.Pacer
	governor manners.Governor
	looked   time.Duration
}

// yield finds out how many bytes may leave, and come in to be mirrored, without the ranks here feeling it.
func (h *Host) yield() {
	now := time.Since(h.began)
	if h.cfg.DonorRate == config.Unlimited || now-h.yielding.looked < manners.LookEvery*9/10 { // ticks come a little early too
		return
	}
	h.yielding.looked = now
	var jobs []manners.Job
	for id, j := range h.jobs.all {
		if step, ok := j.Trains(); ok {
			jobs = append(jobs, manners.Job{ID: id, Step: step})
		}
	}
	limit, why := h.yielding.governor.Look(now, jobs, h.yielding.pacer.Moved())
	if fixed, is := h.cfg.DonorRate.Bytes(); is && len(jobs) > 0 {
		limit, why = float64(fixed), "donor_rate of the configuration"
	}
	h.yielding.pacer.Limit(limit, why)
}

// pacedFrom is from how many bytes a part is held back. Every commit waits for smaller ones, and nobody feels these.
const pacedFrom = 1 << 20

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

// pace has a part sent as one of its class.
func (h *Host) pace(r transfer.Reader, c manners.Class) transfer.Reader {
	if r.Manifest().Bytes < pacedFrom {
		return r
	}
	flow := h.yielding.pacer.Flow(c, r.Manifest().Bytes)
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

// paceSink has a part of so many bytes taken in as one of its class; end is called once, after the last Put.
func (h *Host) paceSink(to transfer.Sink, bytes uint64, c manners.Class) (_ transfer.Sink, end func()) {
	if bytes < pacedFrom {
		return to, func() {}
	}
	flow := h.yielding.pacer.Flow(c, bytes)
	return pacedSink{to, flow.Stream()}, flow.End
}

// drop closes a reader on the host's goroutine.
func drop(r transfer.Reader) {
	if p, ok := r.(*paced); ok {
		p.flow.End()
		r = p.Reader
	}
	r.(*holding.Reader).Drop() // each is one that handOver gave
}
