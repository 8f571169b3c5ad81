package leader

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

const scaleTerm = 9

var scaleRanks = flag.String("ranks", "256,1024,4096,10000", "worlds of BenchmarkCommit")

// instantLog applies what is proposed at once.
type instantLog struct {
	Log
	state *lock.State
	index uint64
	bytes int // of the newest entry
}

func (l *instantLog) ID() replica.NodeName { return "v1" }
func (l *instantLog) Leadership() (replica.NodeName, string, uint64, bool) {
	return "v1", "", scaleTerm, true
}
func (l *instantLog) State() lock.View           { return l.state.View() }
func (l *instantLog) Changes() <-chan struct{}   { return nil }
func (l *instantLog) Voters() []consensus.Voter  { return nil }
func (l *instantLog) Joining() []consensus.Voter { return nil }
func (l *instantLog) Propose(_ context.Context, c replica.Command) (uint64, lock.Outcome, error) {
	b, err := wire.EncodeCommand(c)
	if err != nil {
		return 0, lock.Outcome{}, err
	}
	l.index++
	l.bytes = len(b)
	return l.index, l.state.Apply(l.index, c), nil
}

// scaleJob is an open job of so many ranks, eight to a node, in groups of so many that lie side by side. Every private part has a mirror on
// the next node, and so has every group that lies on one.
func scaleJob(world, group int) (*replica.Job, map[replica.NodeName]replica.Node) {
	j := fixture.Job()
	j.Plan, j.Layout = nil, replica.Layout{World: uint32(world)}
	j.Ranks, j.Mirrors, j.GroupMirrors, j.GroupGeometry = nil, nil, nil, nil
	nodes := map[replica.NodeName]replica.Node{}
	count := (world + 7) / 8
	holder := func(i int) replica.Holder {
		n := replica.Node{Name: replica.NodeName(fmt.Sprintf("gpu-node-%05d", i%count)), Incarnation: replica.NodeIncarnation(1<<60 + i%count), Session: 1, Addr: "10.0.0.1:7000"}
		nodes[n.Name] = n
		return n.Holder()
	}
	var private []replica.PartRoot
	for r := range world {
		at, next := holder(r/8), holder(r/8+1)
		held := []replica.Holder{at, next}
		slices.SortFunc(held, func(a, b replica.Holder) int { return cmp.Compare(a.Node, b.Node) })
		j.Layout.Groups = append(j.Layout.Groups, replica.GroupID(r/group))
		j.Ranks = append(j.Ranks, replica.Claimed{Incarnation: replica.Incarnation(r + 1), Node: at.Node, NodeIncarnation: at.Incarnation, Nonce: 1<<63 + uint64(r)})
		j.Naming = append(j.Naming, replica.NoGroup)
		j.Mirrors = append(j.Mirrors, []replica.NodeName{next.Node})
		private = append(private, replica.PartRoot{Part: replica.OfRank(replica.Rank(r)), Root: replica.Digest{1, byte(r)}, Holders: held})
		if r%group != 0 {
			continue
		}
		p := replica.PartRoot{Part: replica.OfGroup(replica.GroupID(r / group)), Root: replica.Digest{1, byte(r)}}
		var mirrors []replica.NodeName
		if group <= 8 {
			mirrors = []replica.NodeName{next.Node}
			p.Holders = held
		} else {
			for i := r / 8; i < min(r+group, world+7)/8; i++ {
				p.Holders = append(p.Holders, holder(i))
			}
		}
		j.Parts = append(j.Parts, p)
		j.GroupGeometry, j.GroupMirrors = append(j.GroupGeometry, replica.Digest{3}), append(j.GroupMirrors, mirrors)
	}
	j.Parts = append(j.Parts, private...)
	return j, nodes
}

// scale is a leader of one job with a link to each of its nodes.
type scale struct {
	t     testing.TB
	log   *instantLog
	lead  *Stepped
	job   replica.JobID
	links map[replica.NodeName]*control.Link
	names []replica.NodeName
	holds map[replica.NodeName][]replica.Held
	nodes map[replica.NodeName]replica.Node
	out   int           // bytes to the nodes
	in    int           // bytes from them
	spent time.Duration // of the processor, by the leader alone
	most  time.Duration // that one message took
}

func newScale(t testing.TB, world, group int) *scale {
	job, nodes := scaleJob(world, group)
	log := &instantLog{state: lock.FromView(lock.View{Index: 100, Cluster: fixture.Cluster, Era: 1, Nodes: nodes, Jobs: map[replica.JobID]*replica.Job{job.ID: job}}), index: 100}
	s := &scale{t: t, log: log, job: job.ID, links: map[replica.NodeName]*control.Link{}, holds: map[replica.NodeName][]replica.Held{}, nodes: nodes}
	lines, err := journal.New(io.Discard, config.Default().Log, "v1") // as much is logged as a daemon logs
	if err != nil {
		t.Fatal(err)
	}
	s.lead = NewStepped(log, fixture.Cluster, scaleTerm, config.Default().Timing, lines)
	s.lead.Follow(t.Context(), lock.View{Index: 99, Cluster: fixture.Cluster, Era: 1, Nodes: nodes, Jobs: map[replica.JobID]*replica.Job{}})
	for _, n := range nodes {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		s.links[n.Name] = control.NewLink(a, control.ToNode)
		s.lead.Link(t.Context(), n, s.links[n.Name]) // before there is a job: else each link is a look at all of it
		s.names = append(s.names, n.Name)
	}
	slices.Sort(s.names)
	s.drain(s.names...)
	s.lead.Follow(t.Context(), log.State())
	s.lead.l.listens(t.Context(), s.lead.l.jobs[job.ID])
	s.drain(s.names...)
	for r, c := range job.Ranks {
		rank, group := replica.Rank(r), replica.OfGroup(job.Layout.Groups[r])
		s.holds[c.Node] = append(s.holds[c.Node], replica.Held{Part: replica.OfRank(rank), Rank: rank}, replica.Held{Part: group, Rank: rank})
		for _, m := range job.Mirrors[r] {
			s.holds[m] = append(s.holds[m], replica.Held{Part: replica.OfRank(rank), Rank: rank, Mirror: true})
		}
	}
	for g, mirrors := range job.GroupMirrors {
		for _, m := range mirrors {
			s.holds[m] = append(s.holds[m], replica.Held{Part: replica.OfGroup(replica.GroupID(g)), Rank: job.Layout.Members()[g][0], Mirror: true})
		}
	}
	return s
}

// ledgerKind is control's number of a ledger that goes to a node.
const ledgerKind wire.Kind = 123

// drain takes what the leader has for some nodes.
func (s *scale) drain(nodes ...replica.NodeName) {
	for _, n := range nodes {
		for l := s.links[n]; ; {
			f := l.Take()
			if f == nil {
				break
			}
			var handed replica.Ledger
			if wire.Decode(f, ledgerKind, &handed) == nil { // what the clocks read goes out by time, and not by commit
				continue
			}
			s.out += len(f)
		}
	}
}

// answers are what the nodes say of the candidate, each in messages of at most so many parts, one message of each node by turns.
func (s *scale) answers(most int) (out []replica.Pinned) {
	c := s.lead.l.jobs[s.job].candidate
	for from := 0; ; from += most {
		began := len(out)
		for _, n := range s.names {
			parts := s.holds[n]
			if from >= len(parts) {
				continue
			}
			p := replica.Pinned{Job: s.job, Term: c.Term, N: c.N, Generation: c.Generation, Holder: s.nodes[n].Holder(), Session: 1, Heard: c.Position.Step, Live: c.Position.Step}
			for _, h := range parts[from:min(from+most, len(parts))] {
				h.Generation, h.Root = c.Generation, replica.Digest{byte(h.Part.Kind) + 1, byte(h.Part.Index), byte(h.Part.Index >> 8), byte(c.Position.Step)}
				p.Parts = append(p.Parts, h)
			}
			out = append(out, p)
		}
		if len(out) == began {
			return out
		}
	}
}

// commit has all nodes answer the candidate, and the leader look at its jobs as it does each 200 ms. With each, what every message takes is
// looked at: that takes time of its own.
func (s *scale) commit(most int, each bool) {
	is := func() replica.Step { return s.log.State().Jobs[s.job].Position.Step }
	before := is()
	s.in, s.out, s.spent, s.most = 0, 0, 0, 0
	answers := s.answers(most)
	for _, p := range answers {
		frames, err := control.Encode(control.ToLeader, p)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, f := range frames {
			s.in += len(f)
		}
	}
	began := processTime()
	for _, p := range answers {
		var at time.Duration
		if each {
			at = processTime()
		}
		s.event(nodeMessage{s.lead.l.links.of[p.Holder.Node], p})
		if each {
			s.most = max(s.most, processTime()-at)
		}
	}
	s.lead.l.step("tick", func() { s.lead.Pass(s.t.Context(), commitLook) })
	s.spent = processTime() - began
	s.drain(s.names...)
	if is() == before {
		s.t.Fatalf("nothing is committed after step %d: %v", before, s.lead.l.jobs[s.job].committer.Waiting())
	}
}

// event has the leader take in an event, and what comes of it.
func (s *scale) event(ev any) {
	l := s.lead.l
	for l.event(s.t.Context(), ev); ; l.event(s.t.Context(), ev) {
		l.work.Wait()
		select {
		case ev = <-l.first:
		case ev = <-l.in:
		default:
			return
		}
	}
}

func processTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCommit has a leader commit one generation of a job of so many ranks, eight to a node. What counts is the processor time of its
// goroutine, leader-ms; the answers are made, encoded and read beside it. GOMAXPROCS=1 keeps the collector's work within it.
func BenchmarkCommit(b *testing.B) {
	for _, ranks := range strings.Split(*scaleRanks, ",") {
		world, err := strconv.Atoi(ranks)
		if err != nil {
			b.Fatal(err)
		}
		for _, shape := range []struct {
			name        string
			group, most int // ranks of a group, parts of a message
		}{{"groups=8", 8, 64}, {"groups=8,messages=1", 8, 1}, {"group=all", world, 64}} {
			b.Run(fmt.Sprintf("ranks=%d/%s", world, shape.name), func(b *testing.B) {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				s := newScale(b, world, shape.group)
				s.commit(shape.most, true)
				spent, longest := time.Duration(0), s.most
				for b.Loop() {
					s.commit(shape.most, false)
					spent += s.spent
				}
				b.ReportMetric(float64(spent.Microseconds())/1e3/float64(b.N), "leader-ms/commit")
				b.ReportMetric(float64(longest.Microseconds())/1e3, "longest-ms")
				b.ReportMetric(float64(s.log.bytes), "entry-B")
				b.ReportMetric(float64(s.in), "in-B/commit")
				b.ReportMetric(float64(s.out), "out-B/commit")
				runtime.GC()
				runtime.ReadMemStats(&after)
				runtime.KeepAlive(s)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "heap-MiB")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// TestTenTimesTheRanksTakeTenTimesAsMuch: what a commit takes of the leader, of its log and of its links grows no faster than the job. Allocations stand for
// its time: they don't depend on what else the machine does, in a bubble, where no second passes meanwhile in which nodes are told of clocks.
func TestTenTimesTheRanksTakeTenTimesAsMuch(t *testing.T) {
	takes := func(world, group int) (took map[string]float64) {
		bubble.Test(t, func(t *testing.T) {
			s := newScale(t, world, group)
			s.commit(64, false)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s.commit(64, false)
			runtime.ReadMemStats(&after)
			took = map[string]float64{"allocations": float64(after.Mallocs - before.Mallocs), "bytes in the log": float64(s.log.bytes), "bytes from nodes": float64(s.in), "bytes to nodes": float64(s.out)}
		})
		return took
	}
	for _, group := range []func(world int) int{func(int) int { return 8 }, func(world int) int { return world }} {
		small, large := takes(256, group(256)), takes(2_560, group(2_560))
		for what, n := range large {
			t.Logf("groups of %d of 256 ranks: %s: %.0f, of ten times the ranks %.0f", group(256), what, small[what], n)
			if small[what] == 0 || n > 12*small[what] {
				t.Errorf("groups of %d of 256 ranks: %s: %.0f, of ten times the ranks %.0f: want at most 12 times as much", group(256), what, small[what], n)
			}
		}
	}
}
