package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/transcript"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Transcripts play what processes and the leader do, and have what each of them is sent of it, and what the owner has to do.
func TestTranscripts(t *testing.T) {
	transcript.Blocks(t, "nothing", func() transcript.Do {
		p := &play{rig: newRig(t), named: map[string]*peer{}}
		return p.do
	})
}

// play is a rig whose processes have names.
type play struct {
	*rig
	names []string
	named map[string]*peer
}

func (p *play) do(line string, out *strings.Builder) error {
	words := strings.Fields(line)
	if err := p.one(words[0], words[1:]); err != nil {
		return err
	}
	for _, what := range p.did {
		fmt.Fprintf(out, "owner %s\n", what)
	}
	p.did = nil
	for _, m := range p.taken() {
		switch m := m.(type) {
		case control.ClaimRequest:
			fmt.Fprintf(out, "leader: claim %d of rank %d by %d, after incarnation %d\n", m.ID, m.Claim.Rank, m.Claim.Nonce, m.Claim.Expect)
		case control.Evidence:
			fmt.Fprintf(out, "leader: rank %d, incarnation %d: %v: %s\n", m.Fault.Rank, m.Fault.Incarnation, m.Fault.Kind, m.Fault.Detail)
		}
	}
	for _, name := range p.names {
		for _, m := range p.named[name].Got {
			fmt.Fprintf(out, "%s: %s\n", name, p.described(m))
		}
		p.named[name].Got = nil
	}
	p.Check()
	return nil
}

// described is a message to a process.
func (p *play) described(m roomtest.Message) string {
	switch m.Head.Type {
	case wire.MWelcome:
		return fmt.Sprintf("%d is welcome", m.Head.Request)
	case wire.MAttached:
		a, err := wire.ParseAttached(m.Body)
		if err != nil {
			p.t.Error(err)
		}
		return fmt.Sprintf("%d has the arena of incarnation %d, fenced at %d, in epoch %d",
			m.Head.Request, a.Incarnation, a.Fence, m.Head.Epoch)
	case wire.MRefused:
		r, err := wire.ParseRefused(m.Body)
		if err != nil {
			p.t.Error(err)
		}
		return fmt.Sprintf("%d refused %d %q", m.Head.Request, r.Code, r.Text)
	}
	return fmt.Sprint("message ", m.Head.Type)
}

func (p *play) one(verb string, args []string) error {
	lj := p.jobs[fixture.JobID]
	switch verb {
	case "job":
		p.knows(lj, args)
	case "node":
		return p.is(args)
	case "hello":
		return p.comes(args)
	case "attach":
		return p.attaches(p.named[args[0]], args[1:])
	case "goes":
		p.Gone(p.named[args[0]].Session)
	case "grants": // ID INCARNATION
		p.Claimed(control.ClaimReply{ID: roomtest.Number(args[0]), Incarnation: replica.Incarnation(roomtest.Number(args[1]))})
	case "denies": // ID TEXT
		p.Claimed(control.ClaimReply{ID: roomtest.Number(args[0]), Refused: strings.Join(args[1:], " ")})
	case "stumbles": // ID
		p.Claimed(control.ClaimReply{ID: roomtest.Number(args[0]), Refused: "leadership lost", Retry: true})
	case "end":
		return p.end()
	case "dies": // RANK
		held := lj.ranks[replica.Rank(roomtest.Number(args[0]))]
		held.Peer, held.Alive = nil, false
		p.Serve(p.at)
	case "retire": // RANK
		lj.Retire(replica.Rank(roomtest.Number(args[0])))
	case "tick":
		p.at = p.at.Add(200 * time.Millisecond)
		p.Tick(p.at)
		p.Retry(p.at)
	case "leader":
		p.Resend()
	default:
		return errors.New("no such command")
	}
	return nil
}

// is changes what the node can do: node [pace=N] [short|roomy] [fails=TEXT|hungry|works] [waits|over] [store] [deaf|informed]
// [runs=NAME|ended=NAME]
func (p *play) is(args []string) error {
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "pace":
			p.pace = int(roomtest.Number(value))
		case "short", "roomy":
			if p.lacks = nil; key == "short" {
				p.lacks = &shm.TooLittleMemory{Need: 3 << 20, Have: 2 << 20, Limit: "memory.max"}
			}
		case "fails":
			p.fails = errors.New(value)
		case "hungry":
			p.fails = &shm.TooLittleMemory{Need: 3 << 20, Have: 2 << 20, Limit: "memory.max"}
		case "works":
			p.fails = nil
		case "waits", "over":
			p.waits = key == "waits"
			p.retries = append(p.retries, !p.waits)
		case "store":
			p.store, p.kept = true, fixture.Geometry(p.t, false)
		case "deaf", "informed":
			p.informed = key == "informed"
			p.Serve(p.at)
		case "runs", "ended":
			p.runs[p.named[value].Process] = key == "runs"
		default:
			return fmt.Errorf("no such word: %s", key)
		}
	}
	return nil
}

// comes is hello NAME [rank=N] [world=N] [job=NAME]
func (p *play) comes(args []string) error {
	peer := p.session()
	p.names, p.named[args[0]] = append(p.names, args[0]), peer
	hello := wire.Hello{ABI: wire.RankABI, World: 2, Nonce: 100 + peer.Session, Job: "job"}
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "rank":
			hello.Rank = replica.Rank(roomtest.Number(value))
		case "world":
			hello.World = uint32(roomtest.Number(value))
		case "job":
			hello.Job = value
		default:
			return fmt.Errorf("no such word: %s", key)
		}
	}
	p.Hello(session.Hello{Peer: peer, Header: wire.RankHeader{Request: 1}, Hello: hello}, p.at)
	return nil
}

// attaches is attach NAME [request=N] [again] [wider] [huge]
func (p *play) attaches(peer *peer, args []string) error {
	ev := session.Attach{Peer: peer, Header: wire.RankHeader{Request: 2}, Regions: fixture.Geometry(p.t, false).Regions}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "request":
			ev.Header.Request = uint32(roomtest.Number(value))
		case "again":
			ev.Again, ev.Regions = true, nil
		case "wider":
			ev.Regions[1].Shape, ev.Regions[1].Bytes = []uint64{200}, 200
		case "huge":
			ev.Regions[1].Shape, ev.Regions[1].Bytes = []uint64{1 << 40}, 1<<40
		default:
			return fmt.Errorf("no such word: %s", key)
		}
	}
	p.Attach(ev, p.at)
	return nil
}

// knows has the job be another one from now on: job [opening|closed|ended] [lost=RANK] [claimed=RANK:INCARNATION[:NODE]] [durable]
// [forgotten]
func (p *play) knows(lj *localJob, args []string) {
	if lj == nil {
		lj = p.put(opening())
	}
	lj.job = fixture.Changed(lj.job, func(j *replica.Job) {
		j.Ranks, j.Faults = slices.Clone(j.Ranks), slices.Clone(j.Faults)
		for _, arg := range args {
			key, value, _ := strings.Cut(arg, "=")
			switch key {
			case "opening":
				j.Phase, j.Epoch = replica.Opening, j.ClosedEpoch+1
			case "closed":
				j.Phase, j.ClosedEpoch = replica.Closed, j.Epoch
			case "ended":
				j.Phase = replica.Ended
			case "lost":
				r := replica.Rank(roomtest.Number(value))
				of := j.Ranks[r].Incarnation
				j.Faults = append(j.Faults, replica.Fault{Epoch: j.Epoch, Kind: replica.ProcessDead, Rank: r, Incarnation: of})
			case "claimed":
				of := strings.Split(value+":n1", ":")
				inc := replica.Incarnation(roomtest.Number(of[1]))
				j.Ranks[roomtest.Number(of[0])] = replica.Claimed{Incarnation: inc, Node: replica.NodeName(of[2]), NodeIncarnation: 11}
			case "durable":
				j.Committed, j.Durable = replica.Generation{}, fixture.Gen(1, 4)
				j.Lineage = replica.Lineage{{Epoch: 1, Start: 0}}
			case "forgotten":
				delete(p.jobs, j.ID)
			default:
				p.t.Fatalf("no such word: %s", key)
			}
		}
	})
	p.Serve(p.at)
}
