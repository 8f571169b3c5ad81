package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// mirror holds private parts of another node's rank, in an arena of the daemon's own. Owned by the member.
type mirror struct {
	rank  replica.Rank
	arena *arenaRef // nil until the first part says how large they are
}

// pushQueue bounds what waits for one mirror node: beyond it the oldest is dropped, since only the newest can be committed.
const pushQueue = 64

// push is one sealed private part on its way to a mirror.
type push struct {
	key    transfer.Key
	reader transfer.Reader
}

// pusher streams private parts to one node, in order, over one lane of its own. Its goroutine ends with the member.
type pusher struct {
	node  replica.NodeName
	queue chan push
}

// pushKey is one part sent to one mirror; pushState is what is known of it there.
type pushKey struct {
	node       replica.NodeName
	generation replica.Generation
}

type pushState struct {
	sent time.Time
	done bool
}

// pushed is the end of a push.
type pushEnded struct {
	job  replica.JobID
	rank replica.Rank
	key  pushKey
	err  error
}

// pushAgain is how long a mirror's answer may take before the candidate's part is sent again.
const pushAgain = 150 * time.Millisecond

func (m *member) pushEnded(ev pushEnded) {
	lj := m.jobs[ev.job]
	if lj == nil || lj.ranks[ev.rank] == nil {
		return
	}
	lr := lj.ranks[ev.rank]
	if ev.err == nil {
		lr.pushed[ev.key] = pushState{lr.pushed[ev.key].sent, true}
	}
	for k := range lr.pushed {
		if k.generation.Step < lj.job.Committed.Step {
			delete(lr.pushed, k)
		}
	}
}

// mirrorAgain sends the private parts that a commit waits for to their mirrors once more, acknowledged or not: a push may have
// met a daemon that was away, this daemon may have been when they were sealed, or the mirror has freed what it had.
func (m *member) mirrorAgain(lj *localJob) {
	if lj.job.Phase != replica.Open || time.Since(lj.candidateAt) < pushAgain || lj.candidate.Generation.Epoch != lj.job.Position.Epoch {
		return
	}
	for _, lr := range lj.ranks {
		for _, p := range lr.arena.Places() {
			if p.Kind != shm.Ring {
				continue
			}
			if info, err := lr.arena.Sealed(p); err == nil && info.Generation == lj.candidate.Generation {
				m.mirror(lj, lr, p, info, true)
			}
		}
	}
}

// mirror sends a just sealed private part to the nodes that mirror it: every step, before the update it belongs to ends.
func (m *member) mirror(lj *localJob, lr *localRank, p shm.Place, info shm.Info, again bool) {
	if int(lr.rank) >= len(lj.job.Mirrors) {
		return
	}
	for _, node := range lj.job.Mirrors[lr.rank] {
		pk := pushKey{node, info.Generation}
		if st := lr.pushed[pk]; node == m.self.Name || st.done && !again || time.Since(st.sent) < pushAgain {
			continue
		}
		lr.pushed[pk] = pushState{sent: time.Now()}
		k := transfer.Key{Cluster: m.cluster, Era: lj.job.Era, Job: lj.job.ID, Epoch: lj.job.Epoch, Part: replica.OfRank(lr.rank), Generation: info.Generation, Root: info.Root, Rank: lr.rank, Incarnation: lr.incarnation}
		r, err := m.reader(lj, located{lr.arena, p, info, replica.Held{Part: k.Part, Rank: lr.rank}})
		if err != nil {
			continue
		}
		pu := m.pushers[node]
		if pu == nil {
			pu = &pusher{node: node, queue: make(chan push, pushQueue)}
			m.pushers[node] = pu
			m.spawn(func(ctx context.Context) memberEvent { m.runPusher(ctx, pu); return nil })
		}
		select {
		case pu.queue <- push{k, r}:
		default:
			old := <-pu.queue
			old.reader.Close()
			pu.queue <- push{k, r}
		}
	}
}

func (m *member) runPusher(ctx context.Context, pu *pusher) {
	var lane transfer.Lane
	defer func() {
		if lane != nil {
			lane.Close()
		}
		for {
			select {
			case p := <-pu.queue:
				p.reader.Close()
			default:
				return
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-pu.queue:
			err := errors.New("not tried")
			for try := 0; try < 2 && err != nil && ctx.Err() == nil; try++ { // a lane that broke since the last step is opened anew
				if lane == nil {
					if lane, err = m.dialLane(ctx, pu.node); err != nil {
						lane = nil
						break
					}
				}
				if err = m.pushOne(ctx, lane, p); err != nil && !errors.Is(err, transfer.ErrFenced) && !errors.Is(err, transfer.ErrNotYet) {
					lane.Close()
					lane = nil
				}
			}
			p.reader.Close()
			if err != nil && ctx.Err() == nil {
				m.log.pushFailed(p.key, pu.node, err)
			}
			m.post(pushEnded{p.key.Job, p.key.Rank, pushKey{pu.node, p.key.Generation}, err})
		}
	}
}

func (m *member) pushOne(ctx context.Context, lane transfer.Lane, p push) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return transfer.Push(ctx, lane, p.key, p.reader)
}

// bulkLane is a lane over a bulk-class QUIC connection.
type bulkLane struct{ *endpoint.Conn }

func (l bulkLane) Open(ctx context.Context) (transfer.Stream, error) {
	s, err := l.Conn.Open(ctx)
	if err != nil {
		return nil, err // a nil *Stream in an interface would not be nil
	}
	return s, nil
}
func (l bulkLane) Close() { l.Conn.Close("lane done") }

func (m *member) dialLane(ctx context.Context, node replica.NodeName) (transfer.Lane, error) {
	var n replica.Node
	var ok bool
	if !m.do(ctx, func() { n, ok = m.nodes[node] }) {
		return nil, context.Cause(ctx)
	}
	if !ok {
		return nil, fmt.Errorf("node %s is not registered", node)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := m.endpoint.Dial(ctx, n.Addr, node, endpoint.Bulk)
	if err != nil {
		return nil, err
	}
	return bulkLane{c}, nil
}

// sources makes a transfer source of each holder that answers; this node's own other arenas are read over a pipe.
func (m *member) sources(ctx context.Context, holders []replica.Holder) []transfer.Source {
	var out []transfer.Source
	for _, h := range holders {
		out = append(out, transfer.Source{Node: h.Node, Dial: func(ctx context.Context) (transfer.Lane, error) {
			if h.Node == m.self.Name {
				return &localLane{m: m}, nil
			}
			return m.dialLane(ctx, h.Node)
		}})
	}
	return out
}

// mirrorArena returns the arena for a rank's mirrored private parts, made to their size. On the member's goroutine.
func (m *member) mirrorArena(lj *localJob, rank replica.Rank, man replica.Manifest) (*arenaRef, error) {
	mi := lj.mirrors[rank]
	if mi == nil {
		mi = &mirror{rank: rank}
		lj.mirrors[rank] = mi
	}
	if mi.arena != nil && mi.arena.Header().Geometry[replica.PrivatePart] == man.Geometry {
		return mi.arena, nil
	}
	if man.Bytes > privateCap(lj.job) {
		return nil, fmt.Errorf("private part of rank %d has %d bytes, the cap is %d", rank, man.Bytes, privateCap(lj.job))
	}
	g, err := replica.NewGeometry(man.Regions)
	if err != nil {
		return nil, fmt.Errorf("mirror of rank %d: %w", rank, err)
	}
	if shm.GeometryDigest(g, replica.PrivatePart) != man.Geometry || g.PrivateBytes != man.Bytes {
		return nil, fmt.Errorf("mirror of rank %d: the manifest's regions do not make its geometry", rank)
	}
	a, err := shm.Create(shm.Spec{Cluster: m.cluster, Era: m.era, Job: lj.job.ID, Rank: rank, Geometry: g, ChunkBytes: chunkBytes(lj.job), Slots: 0, Mirror: true, Margin: uint64(m.cfg.MemoryMargin)})
	if err != nil {
		return nil, fmt.Errorf("mirror of rank %d: %w", rank, err)
	}
	ref := newArenaRef(a, arenaKey(lj.job.ID, replica.Incarnation(m.requests+1), rank, true))
	m.requests++
	if err := m.keep(ref); err != nil {
		ref.drop()
		return nil, err
	}
	if mi.arena != nil {
		m.forget(mi.arena)
	}
	mi.arena = ref
	m.saveArenas()
	return ref, nil
}

// mirrored is a private part that lies sealed in a mirror arena.
type mirrored struct {
	job  replica.JobID
	rank replica.Rank
}

func (m *member) mirrored(ev mirrored) {
	if lj := m.jobs[ev.job]; lj != nil {
		if lj.job.Phase == replica.Open {
			m.answerCandidate(lj)
			m.retain(lj)
		} else {
			m.reconcile(lj)
		}
	}
}

// fetchMirrors fetches T's private parts that the plan wants mirrored here, before Resume.
func (m *member) fetchMirrors(lj *localJob) {
	job := lj.job
	if job.Phase != replica.Planned || job.Plan == nil || job.Plan.Epoch != job.Epoch {
		return
	}
	for r, nodes := range job.Plan.Mirrors {
		rank, plan := replica.Rank(r), job.Plan
		src, ok := plan.Source(replica.OfRank(rank))
		if !ok || !contains(nodes, m.self.Name) || lj.fetching[rank] == job.Epoch {
			continue
		}
		if _, held := lj.find(nil, replica.OfRank(rank), plan.Generation, src.Root); held {
			continue
		}
		if int(rank) < len(plan.Ranks) && src.Tier != replica.Disk && len(src.Holders) == 0 {
			continue
		}
		lj.fetching[rank] = job.Epoch
		m.spawn(func(ctx context.Context) memberEvent {
			err := m.fetchMirror(ctx, lj, job, rank, src)
			m.do(ctx, func() {
				if err != nil && lj.job.Epoch == plan.Epoch {
					time.AfterFunc(restoreRetry, func() { m.post(call{func() { delete(lj.fetching, rank) }, make(chan struct{})}) })
					m.log.failed("mirror", fmt.Sprintf("rank %d, epoch %d", rank, plan.Epoch), err.Error())
				}
			})
			return mirrored{job.ID, rank}
		})
	}
}

func (m *member) fetchMirror(ctx context.Context, lj *localJob, job *replica.Job, rank replica.Rank, src replica.Source) error {
	f := fetcher{m: m, lj: lj, job: job, plan: job.Plan, rank: rank, incarnation: job.Plan.Ranks[rank].Incarnation}
	var staging *shm.Staging
	var arena *arenaRef
	var place shm.Place
	begin := func(man replica.Manifest) (transfer.Sink, error) {
		var err error
		if !m.do(ctx, func() {
			if arena, err = m.mirrorArena(lj, rank, man); err == nil {
				place, staging, err = m.stage(lj, arena, shm.Ring, man)
			}
		}) {
			return nil, context.Cause(ctx)
		}
		return staging, err
	}
	var err error
	if src.Tier == replica.Disk {
		_, err = f.fromDisk(src.Part, src, begin)
	} else {
		key := transfer.Key{Cluster: m.cluster, Era: job.Era, Job: job.ID, Epoch: job.Plan.Epoch, Part: src.Part, Generation: job.Plan.Generation, Root: src.Root, Rank: rank, Incarnation: f.incarnation}
		_, err = transfer.Fetch(ctx, key, m.sources(ctx, src.Holders), begin)
	}
	if staging == nil {
		return errors.Join(err, errors.New("no source gave a manifest"))
	}
	if err == nil {
		err = staging.Seal()
	}
	if err != nil {
		staging.Abort()
		m.do(ctx, func() { arena.Free(place) })
	}
	return err
}
