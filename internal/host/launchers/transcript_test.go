package launchers

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/transcript"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// Transcripts play what launchers, ranks and the leader do, and have what launchers and the leader are sent of it.
func TestTranscripts(t *testing.T) {
	transcript.Blocks(t, "nothing", func() transcript.Do {
		p := &play{rig: newRig(t), peers: map[string]*peer{}}
		p.at, p.store, p.cfg.PerUser.Sessions = time.Unix(1000, 0), true, 8
		return p.do
	})
}

// play is a rig with a clock of its own, and launchers with names.
type play struct {
	*rig
	names []string
	peers map[string]*peer
}

func (p *play) do(line string, out *strings.Builder) error {
	words := strings.Fields(line)
	if err := p.one(words[0], words[1:]); err != nil {
		return err
	}
	for _, m := range p.says() {
		switch m := m.(type) {
		case control.CreateRequest:
			fmt.Fprintf(out, "leader: create %d of job %s\n", m.ID, m.Name)
		case control.EndRequest:
			fmt.Fprintf(out, "leader: end job %s: %s\n", m.Name, m.Reason)
		case replica.NodeReport:
			fmt.Fprintf(out, "leader: %d launchers, %d offers, starting %v as %v, halted %v%s\n", m.Launchers, m.Offers, m.Starting, m.StartingPIDs, m.StartingHalted,
				map[bool]string{true: ", short"}[m.Short != ""])
		}
	}
	for _, name := range p.names {
		peer := p.peers[name]
		for _, m := range peer.Got {
			fmt.Fprintf(out, "%s: %s\n", name, described(p.t, m))
		}
		peer.Got = nil
	}
	return nil
}

// described is a message to a launcher.
func described(t *testing.T, m roomtest.Message) string {
	t.Helper()
	var err error
	text := fmt.Sprint("message ", m.Head.Type)
	switch m.Head.Type {
	case wire.MRunOK:
		text = "accepted"
	case wire.MRunStart:
		var s wire.RunStart
		s, err = wire.ParseRunStart(m.Body)
		text = fmt.Sprintf("start rank %d of %d, %d before it", s.Rank, s.World, s.Early)
	case wire.MRunStop:
		var s wire.RunStop
		s, err = wire.ParseRunStop(m.Body)
		text = fmt.Sprintf("stop rank %d with signal %d", s.Rank, s.Signal)
	case wire.MRunLeave:
		text = "leave"
	case wire.MRunNote, wire.MRunDone, wire.MRefused:
		var r wire.Refused
		r, err = wire.ParseRefused(m.Body)
		text = fmt.Sprintf("%s%q", map[uint16]string{wire.MRunDone: fmt.Sprint("done ", r.Code, " "), wire.MRefused: fmt.Sprint("refused ", r.Code, " ")}[m.Head.Type], r.Text)
	}
	if err != nil {
		t.Error(err)
	}
	return text
}

func (p *play) one(verb string, args []string) error {
	lj := p.jobs[fixture.JobID]
	rank := func() replica.Rank { return replica.Rank(roomtest.Number(args[0])) }
	switch verb {
	case "job":
		p.knows(lj, args)
	case "comes":
		return p.comes(args)
	case "runs":
		p.running(p.peers[args[0]], replica.Rank(roomtest.Number(args[1])), roomtest.Number(args[2]))
	case "exits":
		status, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		p.Handle(session.RunExited{Peer: p.peers[args[0]], RunExited: wire.RunExited{Rank: replica.Rank(roomtest.Number(args[1])), PID: roomtest.Number(args[2]), Status: int32(status)}}, p.at)
	case "connects":
		p.Connected("job", rank())
	case "attaches": // as process ...
		lj.ranks[rank()] = &Rank{PID: roomtest.Number(args[1]), Alive: true, Loaded: 3}
		p.Attached("job", rank())
	case "dies":
		lj.ranks[rank()].Alive = false
	case "trains": // in step ...
		lj.ranks[rank()].Trains, lj.ranks[rank()].Word = true, replica.PackWord(lj.job.Epoch, replica.Step(roomtest.Number(args[1])), replica.Updating)
	case "refuses":
		p.Refused("job", rank(), strings.Join(args[1:], " "))
	case "offer": // expecting incarnation ...
		p.Of(lj).Offered(control.Offers{Job: lj.job.ID, Ranges: []control.OfferRange{{First: rank(), Count: 1, Expect: replica.Incarnation(roomtest.Number(args[1]))}}}, p.at)
	case "fails": // in epoch, step, with
		p.Of(lj).Failed(rank(), replica.Epoch(roomtest.Number(args[1])), replica.Step(roomtest.Number(args[2])), strings.Join(args[3:], " "))
	case "short":
		p.Of(lj).Short(rank(), want.Memory, "a test", p.at)
	case "all-short":
		p.Handle(session.Short{Err: errors.New("a test")}, p.at)
	case "found":
		p.Of(lj).Found()
	case "kills": // process ...
		if !p.Of(lj).Kill(rank(), roomtest.Number(args[1])) {
			p.Of(lj).Note("no launcher here runs process " + args[1])
		}
	case "notes":
		p.Of(lj).NoteRank(rank(), strings.Join(args[1:], " "))
	case "keeps": // files of this digest, or why it is not known
		k := Kept{Job: lj.job.ID, There: args[0]}
		if len(args) > 1 {
			k = Kept{Job: lj.job.ID, Err: errors.New(strings.Join(args, " "))}
		}
		p.Of(lj).Keeps(k)
	case "halts":
		p.halted[p.peers[args[0]].PID()] = true
	case "goes-on":
		delete(p.halted, p.peers[args[0]].PID())
	case "halts-process":
		p.halted[int(roomtest.Number(args[0]))] = true
	case "ending":
		lj.ranks[rank()].Ending = true
	case "leaves":
		p.Handle(session.RunLeaving{Peer: p.peers[args[0]]}, p.at)
	case "gone":
		p.Gone(p.peers[args[0]].ID())
	case "created":
		reply := control.CreateReply{ID: roomtest.Number(args[0])}
		switch text := strings.Join(args[2:], " "); args[1] {
		case "retry":
			reply.Retry = true
		case "waits":
			reply.Waits, reply.Text = true, text
		case "refused":
			reply.Refused = text
		}
		p.Created(reply, p.at)
	case "link":
		p.Resend()
	case "report":
		p.Report(lj.job.ID)
	case "pass":
		return p.pass(lj, args[0])
	default:
		return errors.New("no such command")
	}
	return nil
}

// comes NAME [ranks=0,1] [capacity=N] [spare] [joined] [world=N] [files=TEXT]
func (p *play) comes(args []string) error {
	peer := newPeer(p.t, uint64(len(p.names))+1, 1002)
	p.names, p.peers[args[0]] = append(p.names, args[0]), peer
	hello, kept := wire.RunHello{Job: "job", World: 2, Capacity: 1}, (*kept.Tar)(nil)
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "ranks":
			for r := range strings.SplitSeq(value, ",") {
				hello.Ranks = append(hello.Ranks, replica.Rank(roomtest.Number(r)))
			}
		case "capacity":
			hello.Capacity = uint32(roomtest.Number(value))
		case "spare":
			hello.Spare = true
		case "files":
			tar := tarOf(p.t, value)
			hello.DurableEvery, kept = 5, tar
		case "joined":
			hello.Joined = fixture.JobID
		case "world":
			hello.World = uint32(roomtest.Number(value))
		default:
			return fmt.Errorf("no such word: %s", key)
		}
	}
	p.Handle(session.RunHello{Peer: peer, RunHello: hello, Kept: kept}, p.at)
	return nil
}

// knows has the job be another one from now on: job [opening|open|closed|planned|ended] [lost=RANK] [claimed=RANK:INCARNATION] [step=N] [stop=...] [reason=...]
func (p *play) knows(lj *localJob, args []string) {
	if lj == nil {
		lj = p.put(fixture.Changed(fixture.Job(), func(j *replica.Job) {
			j.Owner, j.Phase, j.Position, j.Committed, j.Lineage = 1002, replica.Opening, replica.Position{}, replica.Generation{}, nil
			j.Ranks = make([]replica.Claimed, 2)
		}))
	}
	was := lj.job
	lj.job = fixture.Changed(lj.job, func(j *replica.Job) {
		j.Ranks, j.Faults = slices.Clone(j.Ranks), slices.Clone(j.Faults)
		for _, arg := range args {
			key, value, _ := strings.Cut(arg, "=")
			switch key {
			case "opening":
				j.Phase = replica.Opening
			case "open":
				j.Phase, j.Faults = replica.Open, nil
			case "closed":
				j.Phase, j.ClosedEpoch = replica.Closed, j.Epoch
				lj.closedAt = p.at
			case "planned":
				j.Phase, j.Epoch = replica.Planned, j.Epoch+1
				j.Plan = &replica.Plan{Epoch: j.Epoch, Generation: j.Committed, StepsLost: 1, Sources: []replica.Source{{Tier: replica.PeerRAM}}}
			case "ended":
				j.Phase = replica.Ended
			case "lost":
				r := replica.Rank(roomtest.Number(value))
				j.Faults = append(j.Faults, replica.Fault{Epoch: j.Epoch, Kind: replica.ProcessDead, Rank: r, Incarnation: j.Ranks[r].Incarnation})
			case "claimed":
				r, inc, _ := strings.Cut(value, ":")
				j.Ranks[roomtest.Number(r)] = replica.Claimed{Incarnation: replica.Incarnation(roomtest.Number(inc)), Node: "n1", NodeIncarnation: 11}
			case "step":
				j.Position = replica.Position{Epoch: j.Epoch, Step: replica.Step(roomtest.Number(value))}
				j.Committed = fixture.Gen(j.Epoch, j.Position.Step)
			case "stop":
				j.Stop = &replica.Stop{Reason: cmp.Or(value, "an operator")}
			case "reason":
				j.EndReason = cmp.Or(map[string]string{"finished": recovery.Finished}[value], value)
			default:
				p.t.Fatalf("no such word: %s", key)
			}
		}
	})
	p.Of(lj).Follow(was, p.at)
	p.Serve(p.at)
}

// pass lets time pass, and has the pool do what its owner has it do then.
func (p *play) pass(lj *localJob, long string) error {
	took, err := time.ParseDuration(long)
	if err != nil {
		return err
	}
	p.at = p.at.Add(took)
	if lj != nil {
		p.Of(lj).TakeOffers(p.at)
		p.Of(lj).Poll()
		p.Of(lj).Await(p.at)
	}
	for over := range p.Retries(p.at) {
		if over {
			p.Report(lj.job.ID)
		}
	}
	p.Serve(p.at)
	p.LetGo()
	p.KillStuck(p.at)
	return nil
}
