package consensus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/franchise"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// Node is a running voter.
type Node struct {
	cfg     Config
	raft    *raft.Raft
	fsm     *fsm
	streams *streams
	store   *checkedLog
	dog     *watchdog
	ballot  *ballot

	life     uint64             // a number of this start
	kept     remembered         // what the memory had of this voter
	knows    bool               // it had anything
	opened   raft.Configuration // of the log as it was opened
	stands   atomic.Pointer[Standing]
	taken    chan struct{} // capacity 1: this voter was invited
	wanted   chan struct{} // capacity 1: a voter has to be invited
	changing chan struct{} // capacity 1: held while voters are changed

	notify  chan bool             // raft's leadership edges; raft blocks if watch does not drain it
	seen    chan raft.Observation // changes of leader, as followers see them; dropped when full, for one says it all
	news    news
	marks   chan *mark                // capacity 1: states whose digest is due
	ready   atomic.Uint64             // the last term whose barrier has passed here; 0: none
	running atomic.Pointer[raft.Raft] // raft, for its own callbacks: nil until it is made

	began  time.Time
	paceMu sync.Mutex // guards pace
	pace   pace
	late   atomic.Int64 // the worst of pace

	proposals gate
	upkeep    gate // barriers, transfers, changes of voters: proposals must not keep them out

	ctx   context.Context // ends with Close
	end   context.CancelFunc
	tasks sync.WaitGroup
	close func() error
}

// Start opens the log and runs the voter. It returns at once; Leadership and Changes tell how the election goes. It takes
// the StreamLayer over: a Start that fails has closed it.
func Start(cfg Config) (*Node, error) {
	return start(cfg, func(l raft.LogStore) raft.LogStore { return l })
}

// start lets tests put a log store of their own between raft and the disk.
func start(cfg Config, wrap func(raft.LogStore) raft.LogStore) (*Node, error) {
	n, err := open(cfg.withDefaults(), wrap)
	if err != nil {
		if cfg.Layer != nil {
			_ = cfg.Layer.Close() // nothing was sent on it; the first error is the one to know
		}
		return nil, err
	}
	n.tasks.Go(n.watch)
	n.tasks.Go(n.settle)
	n.tasks.Go(n.readmitting)
	n.tasks.Go(n.keepPace)
	return n, nil
}

func open(cfg Config, wrap func(raft.LogStore) raft.LogStore) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := claimDir(cfg); err != nil {
		return nil, err
	}
	store, snaps, err := openLog(cfg)
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, store: store, streams: newStreams(cfg.Layer),
		began: time.Now(), pace: pace{heartbeat: cfg.Heartbeat, election: cfg.Election, lease: cfg.Lease},
		notify: make(chan bool, 8), seen: make(chan raft.Observation, 8), news: newNews(), marks: make(chan *mark, 1),
		life: rand.Uint64(), taken: make(chan struct{}, 1), wanted: make(chan struct{}, 1), changing: make(chan struct{}, 1),
	}
	n.kept, n.knows = recall(cfg.Memory, cfg.ID, cfg.Cluster)
	n.dog = newWatchdog(cfg.WatchdogAfter, n.Late)
	n.ctx, n.end = context.WithCancel(context.Background())
	n.proposals, n.upkeep = newGate(n.ctx, maxProposals), newGate(n.ctx, maxUpkeep)
	n.fsm = newFSM(cfg.Cluster, n.news.applied, cfg.Logger.Error)
	n.fsm.inEra = n.entersEra
	n.fsm.every, n.fsm.marked = cfg.digestEvery, func(m *mark) {
		select {
		case n.marks <- m:
		default: // the last one is still on its way
		}
	}
	n.close = sync.OnceValue(n.shutdown)

	path := filepath.Join(cfg.Dir, logFile)
	err = guarded(path, func() error {
		if err := store.loadMark(snaps); err != nil {
			return damaged(path, err)
		}
		if n.opened, err = membersOf(store, snaps); err != nil {
			return damaged(path, err)
		}
		log, err := raft.NewLogCache(logCache, watchedLog{wrap(store), n.dog, &store.writes})
		if err != nil {
			return err
		}
		began := franchise.Judge(n.own(n.kept, n.knows, false, false), nil).Do == franchise.Begin
		if began { // there is nobody to ask
			if err := n.bootstrap(log, store, snaps); err != nil {
				return fmt.Errorf("bootstrap in %s: %w", cfg.Dir, err)
			}
		}
		return n.run(log, store, snaps, began)
	})
	if err != nil {
		n.end()
		return nil, errors.Join(err, store.Close())
	}
	return n, nil
}

func (n *Node) bootstrap(log raft.LogStore, stable raft.StableStore, snaps raft.SnapshotStore) error {
	_, inert := raft.NewInmemTransport(raft.ServerAddress(n.cfg.Addr))
	return raft.BootstrapCluster(n.cfg.raft(nil), log, stable, snaps, inert, n.first())
}

func (n *Node) run(log raft.LogStore, stable raft.StableStore, snaps raft.SnapshotStore, began bool) error {
	trans := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider: n, Logger: n.cfg.Logger, Stream: n.streams, MaxPool: maxPooled, Timeout: ioTimeout,
		MaxRPCsInFlight: 1, // no pipelining: it costs latency at our few entries a second
	})
	n.ballot = newBallot(n, trans)
	n.store.tell(n.ballot.promised)
	defer func() {
		if n.raft == nil { // also where raft panics: see guarded
			_ = trans.Close() // the first error is the one to know
			n.ballot.stop()
		}
	}()
	if err := n.admit(began); err != nil {
		return err
	}
	r, err := raft.NewRaft(n.cfg.raft(n.notify), n.fsm, log, stable, snaps, n.ballot)
	if err != nil {
		return fmt.Errorf("raft in %s: %w", n.cfg.Dir, err)
	}
	n.raft = r
	n.running.Store(r)
	r.RegisterObserver(raft.NewObserver(n.seen, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	}))
	return nil
}

// ServerAddr implements raft.ServerAddressProvider: configured addresses come first, so that a voter may move.
func (n *Node) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if replica.NodeName(id) == n.cfg.ID {
		return target(n.cfg.ID, n.cfg.Addr), nil
	}
	for _, v := range n.cfg.Voters {
		if v.Name == replica.NodeName(id) {
			return target(v.Name, v.Addr), nil
		}
	}
	if r := n.running.Load(); r != nil {
		for _, s := range r.GetConfiguration().Configuration().Servers {
			if s.ID == id {
				return target(replica.NodeName(id), string(s.Address)), nil
			}
		}
	}
	return "", fmt.Errorf("voter %q is not known here", id)
}

// answer is raft's to a proposal.
type answer struct {
	applied
	raft error
}

// Propose replicates a command and applies it; out is what it did. Errors: ErrNotLeader and ErrBusy mean that nothing was
// proposed, ErrUnknown (also when ctx ends) that it may yet take effect, ErrHalted that this node can't tell.
func (n *Node) Propose(ctx context.Context, c replica.Command) (index uint64, out lock.Outcome, err error) {
	fail := func(err error) (uint64, lock.Outcome, error) {
		return 0, lock.Outcome{}, fmt.Errorf("propose %T: %w", c, err)
	}
	if err := n.fsm.failure(); err != nil {
		return fail(err)
	}
	data, err := wire.EncodeCommand(c)
	if err != nil {
		return fail(err)
	}
	if _, _, _, isSelf := n.Leadership(); !isSelf {
		return fail(n.notLeader("it does not lead, or not yet, or can't write its log"))
	}
	done := make(chan answer, 1)
	err = n.proposals.call(ctx, func() {
		defer n.dog.proposal()()
		f := n.raft.Apply(data, n.enqueueTimeout(ctx))
		if err := f.Error(); err != nil {
			done <- answer{raft: err}
		} else {
			done <- answer{applied: f.Response().(applied)}
		}
	})
	if err != nil {
		return fail(fmt.Errorf("%w: %w", ErrBusy, err))
	}
	select {
	case a := <-done:
		if err := errors.Join(n.outcome(a.raft), a.err); err != nil {
			return fail(err)
		}
		return a.index, a.out, nil
	case <-ctx.Done():
		return fail(fmt.Errorf("%w: %w", ErrUnknown, context.Cause(ctx)))
	}
}

// enqueueTimeout bounds how long a call may wait for raft's main loop to take it.
func (n *Node) enqueueTimeout(ctx context.Context) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		return max(time.Until(d), time.Millisecond)
	}
	return n.cfg.WatchdogAfter + n.cfg.Election
}

// State is the replicated state as applied here; it may lag behind the leader's.
func (n *Node) State() lock.View { return *n.fsm.view.Load() }

// Changes is poked after each entry that changed anything, and when leadership changes here or elsewhere.
func (n *Node) Changes() <-chan struct{} { return n.news.changes }

// Moved is closed when leadership changes here or elsewhere next: Leadership may differ then. Any number of goroutines may wait for it.
func (n *Node) Moved() <-chan struct{} { return *n.news.moved.Load() }

// readmit has the leader look for voters that have to be taken in.
func (n *Node) readmit() { nudge(n.wanted) }

// Err is ErrHalted with its reason when the state machine stands still.
func (n *Node) Err() error { return n.fsm.failure() }

// Close stops the voter and closes its log and StreamLayer. It is idempotent. It waits for a log write that is under way.
func (n *Node) Close() error { return n.close() }

func (n *Node) shutdown() error {
	n.end()
	n.tasks.Wait()
	// What raft has committed it also applies and answers, unless it is shut down in between: give it the time.
	proposals, upkeep := n.proposals.collect(0, n.cfg.Election), n.upkeep.collect(0, n.cfg.Election)
	err := n.raft.Shutdown().Error() // closes the transport, and with it the streams
	n.ballot.stop()
	// raft drops, unanswered, what its FSM's queue holds at shutdown. Nobody but its goroutine waits for such an answer.
	n.proposals.collect(proposals, n.cfg.Election)
	n.upkeep.collect(upkeep, n.cfg.Election)
	return errors.Join(err, n.streams.Close(), n.store.Close())
}
