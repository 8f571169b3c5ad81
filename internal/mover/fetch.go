package mover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// ErrNoDisk is a fetch from the durable tier on a node without one.
var ErrNoDisk = errors.New("its daemon runs without the durable tier: its log has the reason; mend that, and start the daemon again")

// Wanted is a part, and where it is to come from.
type Wanted struct {
	Key transfer.Key
	// Disk is the name of the job whose durable generation is read; empty: the holders are asked.
	Disk    string
	Holders []replica.Holder
	// Receivers are nodes that fetch the part as well, this one among them where it does so for another rank: what they have of it is asked
	// for, too.
	Receivers []replica.NodeName
}

// Staging is a place that a part is written into. Exactly one of Seal and Abort is called, once no Put is under way.
type Staging interface {
	transfer.Sink
	// Seal checks the whole and makes it readable.
	Seal() error
	// Abort gives the place up, and what was written into it.
	Abort()
}

// Fetched is what became of a fetch, failed ones too.
type Fetched struct {
	// Manifest is the part's, once a source has sent it.
	Manifest replica.Manifest
	// Report counts what crossed the network, or came from disk (By["disk"]). What came from this node is in neither Bytes nor By.
	Report transfer.Report
	// Unreached are the holders that could not be dialled, and of a fetch that failed those whose lanes all stalled: their bytes do not get through.
	Unreached []replica.NodeName
	// BadDisk: the durable copy could be read, and is corrupt.
	BadDisk bool
}

// Fetch brings a part from all its holders at once, or from disk. begin names the place for it once the manifest is known; an error of
// begin sets that source aside. Every chunk is checked against the manifest, the manifest against the key's root. The place is sealed where
// nothing went wrong, else aborted; begin's caller gives it back.
func (m *Mover) Fetch(ctx context.Context, w Wanted, begin func(replica.Manifest) (Staging, error)) (got Fetched, err error) {
	var staging Staging
	stage := func(man replica.Manifest) (transfer.Sink, error) {
		s, err := begin(man)
		if err != nil {
			return nil, err
		}
		got.Manifest, staging = man, s
		return s, nil
	}
	if w.Disk != "" {
		got.Report, err = m.fromDisk(ctx, w, stage)
		got.BadDisk = errors.Is(err, store.ErrCorrupt) || errors.Is(err, transfer.ErrCorrupt) || errors.Is(err, shm.ErrCorrupt)
	} else {
		var tried dials
		got.Report, err = transfer.Fetch(ctx, w.Key, m.sources(ctx, w, &tried), stage)
		got.Unreached = tried.unreached()
		if err != nil {
			got.Unreached = append(got.Unreached, stalled(got.Report, got.Unreached)...)
		}
		m.traffic.fetched(got.Report.Lanes, time.Now())
	}
	if staging == nil {
		return got, errors.Join(err, errors.New("no source gave a manifest that could be staged"))
	}
	if err == nil {
		err = staging.Seal()
	}
	if err != nil {
		staging.Abort()
		return got, err
	}
	if local := got.Report.By[m.cfg.Self]; local > 0 {
		got.Report.Bytes -= local
		delete(got.Report.By, m.cfg.Self)
	}
	return got, nil
}

// sources makes transfer sources of each holder: a lane over QUIC, which yields to those over TCP where these get through. A holder with several
// addresses has a lane to each. Those that fetch the part as well are asked over one lane.
func (m *Mover) sources(ctx context.Context, w Wanted, dials *dials) []transfer.Source {
	var out []transfer.Source
	for _, node := range w.Receivers {
		s := transfer.Source{Node: node, Receives: true, Dial: func(context.Context) (transfer.Lane, error) { return localLane{m}, nil }}
		if node != m.cfg.Self {
			if m.cfg.TCPLanes > 0 {
				s.Over = transfer.TCP
			}
			s.Dial = func(ctx context.Context) (transfer.Lane, error) { return m.cfg.Dial(ctx, node, "", s.Over) }
		}
		out = append(out, s)
	}
	for _, h := range w.Holders {
		if h.Node == m.cfg.Self {
			out = append(out, transfer.Source{Node: h.Node, Dial: func(context.Context) (transfer.Lane, error) { return localLane{m}, nil }})
			continue
		}
		ways := m.cfg.Ways(ctx, h.Node)
		if len(ways) < 2 {
			ways = []string{""}
		}
		lane := func(at string, over transfer.Transport) {
			out = append(out, transfer.Source{Node: h.Node, At: at, Over: over, Dial: func(ctx context.Context) (transfer.Lane, error) {
				l, err := m.cfg.Dial(ctx, h.Node, at, over)
				if err == nil || !errors.Is(ctx.Err(), context.Canceled) { // else another source was quicker
					dials.note(h.Node, err)
				}
				return l, err
			}})
		}
		for i, at := range ways {
			if i == 0 || m.cfg.TCPLanes == 0 {
				lane(at, transfer.QUIC)
			}
		}
		for i := range m.lanes(len(ways)) {
			lane(ways[i%len(ways)], transfer.TCP)
		}
	}
	return out
}

// lanes is how many lanes over TCP there are to a node with so many addresses.
func (m *Mover) lanes(ways int) int {
	if m.cfg.TCPLanes == 0 {
		return 0
	}
	return max(m.cfg.TCPLanes, ways)
}

// dials is what became of a fetch's attempts to reach its sources, which note them from goroutines of their own.
type dials struct {
	mu      sync.Mutex // guards both
	reached map[replica.NodeName]bool
	failed  []replica.NodeName
}

func (d *dials) note(n replica.NodeName, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil && d.reached == nil:
		d.reached = map[replica.NodeName]bool{n: true}
	case err == nil:
		d.reached[n] = true
	case !slices.Contains(d.failed, n):
		d.failed = append(d.failed, n)
	}
}

// unreached are the nodes that no lane got to.
func (d *dials) unreached() []replica.NodeName {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.failed), func(n replica.NodeName) bool { return d.reached[n] })
}

// stalled are the nodes that were set aside and had lanes of which none ended otherwise than by a stall.
func stalled(r transfer.Report, but []replica.NodeName) (nodes []replica.NodeName) {
	all := map[replica.NodeName]bool{}
	for _, l := range r.Lanes {
		was, known := all[l.Node]
		all[l.Node] = errors.Is(l.Err, transfer.ErrStalled) && (was || !known)
	}
	for _, n := range slices.Sorted(maps.Keys(all)) {
		if _, failed := r.Failed[n]; all[n] && failed && !slices.Contains(but, n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// fromDisk reads a part from the durable tier, every chunk verified, into the sink.
func (m *Mover) fromDisk(ctx context.Context, w Wanted, begin func(replica.Manifest) (transfer.Sink, error)) (report transfer.Report, err error) {
	if m.cfg.Disk == nil {
		return report, fmt.Errorf("read the durable tier: node %s: %w", m.cfg.Self, ErrNoDisk)
	}
	r, err := m.cfg.Disk.Open(ctx, w.Disk, w.Key.Job, w.Key.Generation, w.Key.Part)
	if err != nil {
		return report, fmt.Errorf("durable generation %v: %w", w.Key.Generation, err)
	}
	defer r.Close()
	man := r.Manifest()
	if man.Root != w.Key.Root || shm.Root(&man) != w.Key.Root {
		return report, fmt.Errorf("durable %v of generation %v has root %v, the plan names %v", w.Key.Part, w.Key.Generation, man.Root, w.Key.Root)
	}
	sink, err := begin(man)
	if err != nil {
		return report, err
	}
	buf := make([]byte, man.ChunkBytes)
	for i := range man.Chunks {
		if sink.Have(i) {
			_, n := replica.ChunkSpan(i, man.Bytes, man.ChunkBytes)
			report.Reused += n
			continue
		}
		b, err := r.ReadChunk(i, buf)
		if err == nil {
			err = sink.Put(i, b)
		}
		if err != nil {
			return report, fmt.Errorf("durable %v, chunk %d: %w", w.Key.Part, i, err)
		}
		report.Bytes += uint64(len(b))
	}
	report.By = map[replica.NodeName]uint64{"disk": report.Bytes}
	return report, nil
}
