package consensus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/leader/voters"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/recovery/odds"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// cutNet connects nodes of one process, and takes some of them off the network: to the others a node that is cut off is lost.
type cutNet struct {
	*memNet
	mu    sync.Mutex // guards both
	cut   map[replica.NodeName]bool
	conns map[net.Conn][2]replica.NodeName
}

type cutLayer struct {
	*memLayer
	net *cutNet
	own replica.NodeName
}

func (l cutLayer) Dial(ctx context.Context, addr string, to replica.NodeName) (net.Conn, error) {
	ends := [2]replica.NodeName{l.own, to}
	if l.net.off(ends) {
		return nil, errors.New("cut off")
	}
	c, err := l.memLayer.Dial(ctx, addr, to)
	if err == nil {
		l.net.mu.Lock()
		l.net.conns[c] = ends
		l.net.mu.Unlock()
	}
	return c, err
}

func (n *cutNet) off(ends [2]replica.NodeName) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut[ends[0]] || n.cut[ends[1]]
}

// only cuts these off, and nobody else.
func (n *cutNet) only(names ...replica.NodeName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
	for _, name := range names {
		n.cut[name] = true
	}
	for c, ends := range n.conns {
		if n.cut[ends[0]] || n.cut[ends[1]] {
			c.Close()
			delete(n.conns, c)
		}
	}
}

// promised is a cluster in which one node is in a state, and what is said of losses.
type promised struct {
	*trio
	net     *cutNet
	full    map[replica.NodeName]*atomic.Bool
	x       replica.NodeName   // whose state it is
	daemons []replica.NodeName // that run, in order: what may be lost
	failed  map[replica.NodeName]error
	absent  []replica.NodeName // the leader has no link of theirs
	drained []replica.NodeName
}

// voterStates are what may become of one voter. Each is reached as an operator, a disk or a mistake reaches it.
var voterStates = map[string]func(*promised){
	"all vote":          func(p *promised) { p.all(true) },
	"bootstrapped on 1": func(p *promised) { p.some(1) },
	"bootstrapped on 2": func(p *promised) { p.some(2) },
	"bootstrapped on 3": func(p *promised) { p.some(3) },
	"emptied":           func(p *promised) { p.all(true).stop(p.x); p.empty(); p.try(p.x) },
	"never added":       func(p *promised) { p.all(true).join("d") },
	"learner":           func(p *promised) { p.all(true).join("d"); p.learns("d") },
	"removed and running": func(p *promised) {
		p.all(true)
		if err := p.leads().RemoveVoter(within(p.t), p.x); err != nil {
			p.t.Fatal(err)
		}
	},
	"disk full": func(p *promised) {
		p.all(true)
		p.full[p.x].Store(true)
		p.wait("word of its disk", func() bool { p.commit(nil); return !p.nodes[p.x].Standing().Votes() })
	},
	"drained": func(p *promised) { p.all(true); p.drained = append(p.drained, p.x) },
	"revoked": func(p *promised) { p.all(true); p.absent = append(p.absent, p.x); p.net.only(p.x) },
	"old log": func(p *promised) {
		p.all(true)
		p.stop(p.x)
		dir := p.config(p.x).Dir
		old := dir + ".old"
		if err := os.CopyFS(old, os.DirFS(dir)); err != nil && !errors.Is(err, fs.ErrExist) {
			p.t.Fatal(err)
		}
		p.try(p.x)
		p.commit(nil)
		p.stop(p.x)
		p.empty()
		if err := os.Rename(old, dir); err != nil {
			p.t.Fatal(err)
		}
		p.try(p.x)
	},
}

func newPromised(t *testing.T, n int) *promised {
	p := &promised{trio: newTrio(t), net: &cutNet{memNet: newMemNet(), cut: map[replica.NodeName]bool{}, conns: map[net.Conn][2]replica.NodeName{}}, full: map[replica.NodeName]*atomic.Bool{}, failed: map[replica.NodeName]error{}}
	p.names = nil
	for i := range n {
		p.names = append(p.names, replica.NodeName(fmt.Sprint("n", i+1)))
	}
	p.x = p.names[n-1]
	p.layer = func(name replica.NodeName) StreamLayer { return cutLayer{p.net.layer(p.addr(name)), p.net, name} }
	p.wrap = func(name replica.NodeName, l raft.LogStore) raft.LogStore {
		if p.full[name] == nil {
			p.full[name] = new(atomic.Bool)
		}
		return fullLog{l, p.full[name]}
	}
	return p
}

func (p *promised) all(bootstrap bool) *promised {
	p.startAll(bootstrap)
	p.daemons = slices.Clone(p.names)
	p.commit(nil)
	if p.leads().ID() == p.x {
		if err := p.leads().TransferTo(p.names[0]); err != nil {
			p.t.Fatal(err)
		}
		p.commit(nil)
	}
	return p
}

// some starts all, and creates the cluster on so many of them.
func (p *promised) some(bootstrap int) {
	for i, name := range p.names {
		if i < bootstrap {
			p.start(name, true)
		} else {
			p.try(name)
		}
	}
	p.daemons = slices.Clone(p.names)
}

// try starts a node that may not open its log: its daemon runs all the same.
func (p *promised) try(name replica.NodeName) {
	cfg := p.config(name)
	cfg.Layer = p.layer(name)
	n, err := start(cfg, func(l raft.LogStore) raft.LogStore { return p.wrap(name, l) })
	if p.failed[name] = err; err == nil {
		p.nodes[name] = n
	}
}

func (p *promised) empty() {
	if err := os.RemoveAll(p.config(p.x).Dir); err != nil {
		p.t.Fatal(err)
	}
}

func (p *promised) join(name replica.NodeName) {
	p.names = append(p.names, name)
	p.tune = func(c *Config) { c.Join = c.ID == name }
	p.start(name, false)
	p.names = p.names[:len(p.names)-1]
	p.daemons = append(p.daemons, name)
}

// learns gives a node the log and no vote: what an addition leaves whose leader changed meanwhile.
func (p *promised) learns(name replica.NodeName) {
	if err := p.leads().raft.AddNonvoter(raft.ServerID(name), raft.ServerAddress(p.addr(name)), 0, time.Second).Error(); err != nil {
		p.t.Fatal(err)
	}
}

// within waits in virtual time for what an election brings; false: it did not.
func (p *promised) within(cond func() bool) bool {
	for range 800 {
		if cond() {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

func (p *promised) wait(what string, cond func() bool) {
	p.t.Helper()
	if !p.within(cond) {
		p.t.Fatalf("waited in vain for %s", what)
	}
}

// leads is the leader among those that are not lost; nil: there is none for as long as elections take.
func (p *promised) leads(lost ...replica.NodeName) (found *Node) {
	p.within(func() bool {
		found = p.leader(lost)
		return found != nil
	})
	return found
}

func (p *promised) leader(lost []replica.NodeName) *Node {
	for name, n := range p.nodes {
		if _, _, _, self := n.Leadership(); self && !slices.Contains(lost, name) {
			return n
		}
	}
	return nil
}

// commit tells whether those that are not lost commit something.
func (p *promised) commit(lost []replica.NodeName) bool {
	return p.within(func() bool {
		n := p.leader(lost)
		if n == nil {
			return false
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, out, err := n.Propose(ctx, register("job"))
		return err == nil && out.Err == nil || err == nil
	})
}

// table is what the leader says of the voters.
func (p *promised) table(lead *Node) []control.VoterStatus {
	var book voters.Book
	for _, name := range p.daemons {
		var st Standing
		if n := p.nodes[name]; n != nil {
			st = n.Standing()
		} else {
			st = FailedStart(p.failed[name])
		}
		said := control.Standing{State: control.Votes}
		if !st.Votes() {
			said = control.Standing{State: control.RaftFailed, Why: st.String()}
		}
		book.Heard(name, said)
	}
	var seats []voters.Seat
	for _, v := range lead.Voters() {
		seats = append(seats, voters.Seat{Name: v.Name, Addr: v.Addr})
	}
	for _, v := range lead.Joining() {
		seats = append(seats, voters.Seat{Name: v.Name, Addr: v.Addr, Joining: true})
	}
	return book.Table(seats, lead.ID(), func(n replica.NodeName) voters.Seen {
		gone := slices.Contains(p.absent, n)
		return voters.Seen{Linked: slices.Contains(p.daemons, n) && !gone, Revoked: gone}
	})
}

// job trains on all daemons; each part lies on two neighbours.
func (p *promised) job() plan.Input {
	at := replica.Generation{Epoch: 1, Step: 7}
	in := plan.Input{Nodes: map[replica.NodeName]replica.Node{}, Reports: map[replica.NodeName]replica.NodeReport{}, Connected: map[replica.NodeName]bool{}}
	in.Job = &replica.Job{ID: replica.JobID{1}, Phase: replica.Open, Lineage: replica.Lineage{{Epoch: 1}}, Epoch: 1, Committed: at, Position: replica.Position(at), Copies: 2, Layout: replica.Apart(uint32(len(p.daemons))), Quarantined: p.drained}
	for i, n := range p.daemons {
		h := replica.Holder{Node: n, Incarnation: 1}
		in.Nodes[n], in.Connected[n] = replica.Node{Name: n, Incarnation: 1, Session: 1}, true
		in.Reports[n] = replica.NodeReport{Job: in.Job.ID, Holder: h, Session: 1, Offers: 9}
		in.Job.Ranks = append(in.Job.Ranks, replica.Claimed{Incarnation: 1, Node: n, NodeIncarnation: 1})
		next := replica.Holder{Node: p.daemons[(i+1)%len(p.daemons)], Incarnation: 1}
		for _, part := range []replica.Part{replica.OfRank(replica.Rank(i)), replica.OfGroup(replica.GroupID(i))} {
			in.Job.Parts = append(in.Job.Parts, replica.PartRoot{Part: part, Root: replica.Digest{1}, Holders: []replica.Holder{h, next}})
		}
	}
	return in
}

// losses are each node and each pair of those that are there; the leader is among them.
func (p *promised) losses() (out [][]replica.NodeName) {
	for i, a := range p.daemons {
		out = append(out, []replica.NodeName{a})
		for _, b := range p.daemons[i+1:] {
			out = append(out, []replica.NodeName{a, b})
		}
	}
	return out
}

// goesOn is what becomes of the cluster and the job when these are lost.
func (p *promised) goesOn(lost []replica.NodeName) bool {
	p.net.only(append(slices.Clone(p.absent), lost...)...)
	defer func() {
		p.net.only(p.absent...)
		if !p.commit(p.absent) {
			p.t.Fatalf("no leader once %v are back", lost)
		}
	}()
	for _, part := range p.job().Job.Parts {
		if !slices.ContainsFunc(part.Holders, func(h replica.Holder) bool {
			return !slices.Contains(lost, h.Node) && !slices.Contains(p.absent, h.Node)
		}) {
			return false
		}
	}
	return p.commit(append(slices.Clone(p.absent), lost...))
}

// run says what becomes of each loss.
func (p *promised) run() (kept map[string]bool) {
	kept = map[string]bool{}
	for _, lost := range p.losses() {
		kept[fmt.Sprint(lost)] = p.goesOn(lost)
	}
	return kept
}

// against holds what is said of each loss against what comes of it: broken are promises that the run breaks, doubted the losses of which less is said than
// is true.
func (p *promised) against(kept map[string]bool, in plan.Input, beyond odds.Loss) (broken, doubted []string) {
	ways := odds.Survives(in, beyond)[0].Odds()
	survived := map[int]uint64{}
	for _, lost := range p.losses() {
		loss := beyond
		loss.Nodes = lost
		why, goes := odds.Survives(in, loss)[0].Why(), kept[fmt.Sprint(lost)]
		if goes {
			survived[len(lost)]++
		}
		switch {
		case len(why) == 0 && !goes:
			broken = append(broken, fmt.Sprintf("if %v are lost, nothing is said, and nothing is committed", lost))
		case len(why) > 0 && goes:
			doubted = append(doubted, fmt.Sprintf("if %v are lost, it is said that %s, and it goes on", lost, strings.Join(why, "; ")))
		}
	}
	for _, o := range ways {
		if o.Lost <= 2 && o.Survive > survived[o.Lost] {
			broken = append(broken, fmt.Sprintf("%d of %d losses of %d nodes are said to be survived, %d are", o.Survive, o.Ways, o.Lost, survived[o.Lost]))
		}
	}
	return broken, doubted
}

// TestPromisesAreKept: in each state of a voter no loss of a node, a pair or the leader breaks what `survives` and `if lost` say. The control counts the
// voters of the configuration again, and must break promises.
func TestPromisesAreKept(t *testing.T) {
	t.Parallel()
	silent := []string{"disk full", "revoked"} // in the configuration, and without a vote
	for i, state := range slices.Sorted(maps.Keys(voterStates)) {
		for _, n := range []int{3, 5} {
			if (2*i+n/4)%racing.Stride != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%d, %s", n, state), func(t *testing.T) {
				t.Parallel()
				bubble.Test(t, func(t *testing.T) {
					p := newPromised(t, n)
					voterStates[state](p)
					lead := p.leads(p.absent...)
					if lead == nil {
						return // nobody says anything of losses
					}
					table, in := p.table(lead), p.job()
					loss := odds.Loss{Absent: p.absent, Voters: voters.Voters(table), Mute: voters.Mute(table)}
					kept := p.run()
					broken, doubted := p.against(kept, in, loss)
					if now := p.leads(p.absent...); now == nil || !slices.Equal(voters.Mute(p.table(now)), loss.Mute) {
						doubted = nil // a voter came back to its vote meanwhile, with an old log by itself
					}
					if len(broken)+len(doubted) > 0 {
						t.Errorf("promised and not kept: %s\nkept and not promised: %s", strings.Join(broken, "\n"), strings.Join(doubted, "\n"))
					}
					loss.Mute, loss.Absent = nil, nil
					if broken, _ := p.against(kept, in, loss); slices.Contains(silent, state) && len(broken) == 0 {
						t.Error("the voters of the configuration keep each promise too: this test sees nothing")
					}
				})
			})
		}
	}
}
