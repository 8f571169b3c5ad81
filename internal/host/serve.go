package host

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/host/job"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// store answers other nodes' transfers: what this node holds, and the private parts it mirrors. Each stream names what it
// wants by job, epoch and incarnation; the check is made here, at the place that acts.
type store struct {
	h   *Host
	ctx context.Context
}

// check tells whether what a stream names is of now. A push is also taken in the epoch that was closed last, until its plan exists:
// what its ranks sealed is as good as before, and may be all that is left when another node goes.
func (s store) check(k transfer.Key, push bool) (*job.Job, error) {
	j := s.h.jobs.of(k.Job)
	switch {
	case k.Cluster != s.h.cluster:
		return nil, fmt.Errorf("a part of cluster %s, this is %s", k.Cluster, s.h.cluster)
	case j == nil || k.Epoch > j.Job.Epoch || k.Era > s.h.era:
		return nil, transfer.ErrNotYet
	case k.Era < s.h.era || j.Job.Phase == replica.Ended || k.Epoch <= j.Job.ClosedEpoch && !(push && j.Job.Phase == replica.Closed && k.Epoch == j.Job.Epoch):
		return nil, fmt.Errorf("%w: epoch %d of job %s is closed", transfer.ErrFenced, k.Epoch, j.Job.Name)
	case int(k.Rank) < len(j.Job.Ranks) && k.Incarnation > j.Job.NextIncarnation:
		return nil, transfer.ErrNotYet // ranks are claimed within an opening's epoch: this node has read the epoch, and not the claim
	case int(k.Rank) >= len(j.Job.Ranks) || k.Incarnation != j.Job.Ranks[k.Rank].Incarnation:
		return nil, fmt.Errorf("%w: incarnation %d does not hold rank %d", transfer.ErrFenced, k.Incarnation, k.Rank)
	}
	return j, nil
}

// Open serves a fetch of a part that is sealed here, or on its way here.
func (s store) Open(peer replica.NodeName, k transfer.Key) (transfer.Reader, error) {
	q := readWanted{s: s, peer: peer, key: k}
	if !s.h.ask(s.ctx, &q) {
		return nil, context.Canceled
	}
	if q.err != nil {
		return nil, q.err
	}
	return q.reader, nil
}

// readWanted is a fetch of another node's, or of another rank's here.
type readWanted struct {
	s    store
	peer replica.NodeName
	key  transfer.Key

	reader transfer.Reader
	err    error
}

func (q *readWanted) serve(h *Host) { q.reader, q.err = q.open(h) }

func (q *readWanted) open(h *Host) (transfer.Reader, error) {
	k := q.key
	j, err := q.s.check(k, false)
	if err != nil {
		return nil, err
	}
	if q.peer != j.Job.Ranks[k.Rank].Node && !room.MirrorsPlanned(j.Job, k.Rank, q.peer) && !j.Mirrors.Relayed(k.Part, k.Epoch, q.peer) {
		return nil, fmt.Errorf("%w: node %s neither holds nor mirrors rank %d", transfer.ErrRefused, q.peer, k.Rank)
	}
	at, ok := j.View().Find(nil, k.Part, k.Generation, k.Root)
	if !ok {
		if r := j.View().Receiving(k.Rank, k.Part, k.Generation, k.Root); r.Any() {
			return h.hands.Pace(r, j.FetchedFor(k, q.peer)), nil
		}
		return nil, fmt.Errorf("%w: %v of generation %v with root %v is not here", transfer.ErrUnknownPart, k.Part, k.Generation, k.Root)
	}
	r, err := h.hands.Open(j.Job, at)
	if err != nil {
		return nil, err // a nil *Reader in an interface would not be nil
	}
	return h.hands.Pace(r, j.FetchedFor(k, q.peer)), nil
}

// Accept takes a part to mirror from the node of the rank that made it.
func (s store) Accept(peer replica.NodeName, k transfer.Key, man replica.Manifest) (sink transfer.Sink, done func(error) error, err error) {
	q := pushWanted{s: s, peer: peer, key: k, manifest: man}
	if !s.h.ask(s.ctx, &q) {
		return nil, nil, context.Canceled
	}
	if q.err != nil {
		return nil, nil, q.err
	}
	if q.held {
		s.h.Post(act.Wake{Job: k.Job, Depth: act.Commit})
		return heldSink{}, func(err error) error { return err }, nil
	}
	soon, cancel := context.WithTimeoutCause(s.ctx, acceptWait, fmt.Errorf("%w: the mirror's arena is being made", transfer.ErrNotYet))
	defer cancel()
	arena, err := handsOwner{s.h}.Arena(soon, k.Job, k.Rank, man)
	if err != nil {
		return nil, nil, err
	}
	place, staging, err := s.h.hands.Fetches.Stage(s.ctx, k.Job, arena, man, &q)
	if err != nil {
		return nil, nil, err
	}
	sink, end := s.h.hands.PaceSink(staging, man.Bytes, q.class)
	return sink, func(err error) error {
		end()
		if err == nil {
			err = staging.Seal()
		}
		if err != nil {
			staging.Abort()
		}
		s.h.ask(s.ctx, &pushEnd{k.Job, arena, place, staging, err})
		return err
	}, nil
}

// pushWanted is another node's push; pushEnd gives back the place that it was given.
type (
	pushWanted struct {
		s        store
		peer     replica.NodeName
		key      transfer.Key
		manifest replica.Manifest

		held  bool // the part is here already
		class manners.Class
		err   error
	}
	pushEnd struct {
		job   replica.JobID
		arena *holding.Arena
		place shm.Place
		of    *shm.Staging
		err   error
	}
)

func (q *pushWanted) serve(h *Host) {
	j, err := q.admit()
	if q.err = err; err == nil {
		q.held, q.class = j.View().Has(q.key.Part, q.key.Generation, q.key.Root), h.push.Class(j.Job, q.key.Generation)
	}
}

// Admit is asked again when the bytes are looked for.
func (q *pushWanted) Admit(fetch.Node) error {
	_, err := q.admit()
	return err
}

func (q *pushWanted) admit() (*job.Job, error) {
	k := q.key
	j, err := q.s.check(k, true)
	if err != nil {
		return nil, err
	}
	if k.Part != room.Part(j.Job, holding.KindFor(k.Part), k.Rank) || q.peer != j.Job.Ranks[k.Rank].Node {
		return nil, fmt.Errorf("%v of rank %d from node %s: that rank makes %v, and node %s holds it", k.Part, k.Rank, q.peer, room.Part(j.Job, holding.KindFor(k.Part), k.Rank), j.Job.Ranks[k.Rank].Node)
	}
	if err := room.Fits(j.Job, q.manifest); err != nil {
		return nil, err
	}
	if !slices.Contains(room.MirrorsOfPart(j.Job, k.Part, k.Rank), q.s.h.self.Name) {
		return nil, fmt.Errorf("%w: node %s is not to mirror %v, as far as it has read", transfer.ErrNotYet, q.s.h.self.Name, k.Part)
	}
	return j, nil
}

func (q *pushEnd) serve(h *Host) {
	q.arena.Unstage(q.place, q.of)
	h.wake(act.Wake{Job: q.job, Depth: act.Commit}) // a commit may wait for this part: it is pinned in the same turn. One that did not come is fetched, where a plan wants it

}

// acceptWait is how long a push waits for an arena that is being made; then its node is told to come again. It is less than a push
// may take.
const acceptWait = 2 * time.Second

// heldSink answers a push of what is here already.
type heldSink struct{}

func (heldSink) Have(int) bool         { return true }
func (heldSink) Put(int, []byte) error { return nil }

// Parts is what other nodes may fetch here, and where they push what is mirrored here.
func (h *Host) Parts() transfer.Store { return store{h, context.Background()} }
