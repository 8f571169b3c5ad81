package adoption

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

const hangFirst = 30 * time.Second

// boot is the life of the host that the tests are in.
var boot = replica.BootID{1}

// Transcripts play n1 of fixture.Job after its daemon was started again.
func TestTranscripts(t *testing.T) {
	roomtest.Transcripts(t, func(n *roomtest.Node, _ []string) (act.Room, roomtest.Own) {
		p := newPlay(n)
		return p.room, p
	})
}

type play struct {
	*roomtest.Node
	room     *Room
	informed bool
	runs     map[int]bool // processes; those that a signal has stopped are false
	peers    map[string]*roomtest.Peer
	listed   []holding.Entry
}

func newPlay(n *roomtest.Node) *play {
	p := &play{Node: n, runs: map[int]bool{}, peers: map[string]*roomtest.Peer{}}
	p.Gone = true
	p.room = New(p, p, boot, hangFirst)
	p.Is(p.room, p)
	return p
}

func (p *play) Informed() bool { return p.informed }

func (p *play) Alive(pid int, start uint64) bool {
	_, lives := p.runs[pid]
	return lives && start == uint64(pid)
}

func (p *play) Halted(pid int, _ uint64) bool { return !p.runs[pid] }

// peer is the session of a process: PID, or PID+ of a later one with the same number.
func (p *play) peer(word string) *roomtest.Peer {
	number, later := strings.CutSuffix(word, "+")
	if pid := roomtest.Number(number); p.peers[word] == nil {
		p.peers[word] = &roomtest.Peer{T: p.T, Session: pid, Process: int(pid), Began: pid}
		if later {
			p.peers[word].Began++
		}
	}
	return p.peers[word]
}

func rank(word string) replica.Rank { return replica.Rank(roomtest.Number(word)) }

// entry is what the list has of an arena: KEY PID RANK [for=JOB] [boot] [mirror]
func entry(args []string) holding.Entry {
	pid := roomtest.Number(args[1])
	e := holding.Entry{Key: args[0], Job: fixture.JobID, Rank: rank(args[2]), PID: int(pid), Start: pid, Boot: boot}
	for _, arg := range args[3:] {
		switch key, value, _ := strings.Cut(arg, "="); key {
		case "for":
			e.For = value
		case "boot":
			e.Boot = replica.BootID{2}
		case "mirror":
			e.Mirror = true
		}
	}
	return e
}

func (p *play) Do(verb string, args []string) (bool, error) {
	switch verb {
	case "process": // PID [halted]
		p.runs[int(roomtest.Number(args[0]))] = len(args) == 1
	case "dies":
		p.Quiet = true
		delete(p.runs, int(roomtest.Number(args[0])))
	case "arena": // NAME RANK INCARNATION PID
		a := p.Hold(args[0], shm.Spec{Rank: rank(args[1]), Geometry: fixture.Geometry(p.T, false)})
		a.SetOwner(replica.Incarnation(roomtest.Number(args[2])), roomtest.Number(args[3]), roomtest.Number(args[3]))
	case "mirror": // NAME RANK
		p.Hold(args[0], shm.Spec{Rank: rank(args[1]), Geometry: fixture.Geometry(p.T, false), Mirror: true})
	case "grown": // NAME OF
		p.Arenas[args[0]] = holding.New(p.Arenas[args[1]].Arena, holding.GrownKey(fixture.JobID, 0, 4, 9), func(*shm.Arena) {})
	case "has": // NAME RANK INCARNATION: its place already
		inc := replica.Incarnation(roomtest.Number(args[2]))
		p.View.Ranks = []room.Rank{{Rank: rank(args[1]), Incarnation: inc, Arena: p.Arenas[args[0]], Alive: true}}
	case "listed": // is on disk: see entry
		p.listed = append(p.listed, entry(args))
	case "keeps": // ARENA ...
		var arenas []*holding.Arena
		for _, name := range args {
			arenas = append(arenas, p.Arenas[name])
		}
		p.Learn(Kept{arenas, p.listed})
	case "informed": // a leader was heard, and its jobs are being taken over
		p.informed = true
	case "knows": // [ended|finished]: the node does, the job
		p.informed, p.Gone = true, false
		if len(args) > 0 {
			why := map[string]string{"ended": "given up", "finished": recovery.Finished}[args[0]]
			p.View.Job = fixture.Changed(p.View.Job, func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, why })
		}
		p.Learn(act.Changed{})
	case "unknown": // the leader has no such job
		p.informed = true
		p.Learn(act.Changed{})
	case "changed":
		p.Learn(act.Changed{})
	case "back": // PID RANK: a process has come
		if a, ok := p.room.Back(p.peer(args[0]), rank(args[1])); ok {
			p.Say("it has %s", p.Name(a))
		} else {
			p.Say("it has no arena here")
		}
	case "brings": // PID RANK [ARENA [job]]: may a process, and which one
		spec := shm.Spec{Job: fixture.JobID, Rank: rank(args[1])}
		if len(args) > 2 {
			spec = p.Arenas[args[2]].Spec()
		}
		if len(args) > 3 {
			spec.Job = replica.JobID{9}
		}
		key, ok := p.room.Key(p.peer(args[0]), rank(args[1]), spec)
		p.Say("awaited from it: %v; this one: %v, as %q", p.room.Awaits(p.peer(args[0]), rank(args[1])), ok, key)
	case "brought": // ARENA PID
		a, peer := p.Arenas[args[0]], p.peer(args[1])
		a.Process = holding.Process{PID: peer.Process, Start: peer.Began, Proven: true}
		p.Learn(Offered{Arena: a, Peer: peer})
	case "asks": // PID RANK [JOB]: for an arena
		p.Learn(Asked{Peer: p.peer(args[0]), Rank: rank(args[1]), Job: strings.Join(args[2:], "")})
	case "sends": // PID seal|stopped|leave REQUEST [PLACE]
		p.Learn(Sent{p.peer(args[0]), p.event(args[0], args[1], uint32(roomtest.Number(args[2])), args[3:])})
	case "gone": // PID [before]: its session, or one that it had before
		peer := p.peer(args[0])
		if len(args) > 1 {
			peer = &roomtest.Peer{Session: peer.Session, Process: peer.Process, Began: peer.Began}
		}
		p.Learn(act.Gone{Peer: peer})
	case "lists":
		p.lists()
	default:
		return false, nil
	}
	return true, nil
}

func (p *play) event(pid, what string, request uint32, at []string) session.Event {
	peer, h := p.peer(pid), wire.RankHeader{Request: request}
	switch what {
	case "stopped":
		return session.Stopped{Peer: peer, Header: h}
	case "leave":
		return session.Leave{Peer: peer, Header: h}
	}
	place := roomtest.Place(at[0])
	return session.Sealed{Peer: peer, Header: h, Sealed: wire.Sealed{Kind: uint32(place.Kind), Index: uint32(place.Index)}}
}

// lists prints what the room has.
func (p *play) lists() {
	var arenas, listed, awaited []string
	for _, a := range p.room.Arenas() {
		arenas = append(arenas, p.Name(a))
	}
	for _, e := range p.room.Listed() {
		listed = append(listed, fmt.Sprintf("%s of %d", e.Key, e.PID)+map[bool]string{true: ", a mirror"}[e.Mirror])
	}
	for _, e := range p.room.Awaited() {
		awaited = append(awaited, e.Key)
	}
	p.Say("without a place: %s; listed: %s; awaited: %s; claims that run: %v", strings.Join(arenas, " "), strings.Join(listed, "; "),
		strings.Join(awaited, " "), p.room.Running())
}

func (p *play) Text(v any) string {
	switch v := v.(type) {
	case Place:
		text := fmt.Sprintf("place %s as rank %d, incarnation %d", p.Name(v.Arena), v.Rank, v.Incarnation)
		return text + map[bool]string{true: ", attached"}[v.Peer != nil] + map[bool]string{true: ", finished"}[v.Finished]
	case Mirror:
		return fmt.Sprintf("mirror %v in %s", v.Part, p.Name(v.Arena))
	case GiveUp:
		text := "give up " + p.Name(v.Arena)
		if v.Peer != nil {
			text += fmt.Sprintf(", and have process %d stop", v.Peer.PID())
		}
		return text
	case Placed:
		return "all are placed"
	case Settle:
		text := fmt.Sprintf("settle rank %d:", v.Rank)
		for _, ev := range v.Sent {
			switch ev := ev.(type) {
			case session.Sealed:
				text += fmt.Sprint(" seal ", ev.Header.Request)
			case session.Stopped:
				text += fmt.Sprint(" stopped ", ev.Header.Request)
			case session.Leave:
				text += fmt.Sprint(" leave ", ev.Header.Request)
			}
		}
		return text
	}
	return fmt.Sprintf("%T", v)
}
