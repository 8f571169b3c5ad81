package leader

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/rendezvous"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// Stepped is a leader that does nothing but in its calls: who drives it decides when a message arrives, what the log holds and how time
// passes. Run and Serve do the same from goroutines. Its log must answer Propose at once. A Stepped is its caller's goroutine's alone.
type Stepped struct{ l *Leader }

// NewStepped leads in a term, and knows nothing yet.
func NewStepped(log Log, cluster replica.ClusterID, term uint64, timing config.Timing, j *journal.Journal) *Stepped {
	l := New(Config{Log: log, Cluster: cluster, Timing: timing, Journal: j})
	l.active, l.term, l.kv = true, term, rendezvous.New(term, 0)
	return &Stepped{l}
}

// Follow takes a state that was applied, and tells the nodes that are linked what is new in it.
func (s *Stepped) Follow(ctx context.Context, v lock.View) {
	before := s.l.view
	s.l.view = v
	s.l.follow(ctx, before)
	s.settle(ctx)
}

// Link takes a registered node's link up: it is welcomed and told the state, in frames on the link's queue.
func (s *Stepped) Link(ctx context.Context, node replica.Node, link *control.Link) {
	s.l.linkUp(ctx, &nodeLink{Link: link, node: node})
	s.settle(ctx)
}

// Unlink ends a node's link.
func (s *Stepped) Unlink(ctx context.Context, name replica.NodeName, why error) {
	if n := s.l.links.of[name]; n != nil {
		s.l.handle(ctx, leaderLinkDown{n, why})
		s.settle(ctx)
	}
}

// Message takes what a linked node says.
func (s *Stepped) Message(ctx context.Context, from replica.NodeName, msg any) {
	if n := s.l.links.of[from]; n != nil {
		s.l.handle(ctx, nodeMessage{n, msg})
		s.settle(ctx)
	}
}

// Pass lets time go by.
func (s *Stepped) Pass(ctx context.Context, d time.Duration) {
	s.l.start = s.l.start.Add(-d)
	s.l.tick(ctx)
	s.settle(ctx)
}

// settle learns what became of what was proposed.
func (s *Stepped) settle(ctx context.Context) {
	for {
		s.l.work.Wait()
		select {
		case ev := <-s.l.first:
			s.l.handle(ctx, ev)
		case ev := <-s.l.in:
			s.l.handle(ctx, ev)
		default:
			return
		}
	}
}
