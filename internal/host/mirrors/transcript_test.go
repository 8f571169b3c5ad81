package mirrors

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Transcripts play n1 of fixture.Job. Rank 1 is on n2, and n1 mirrors its private parts.
func TestTranscripts(t *testing.T) {
	roomtest.Transcripts(t, func(n *roomtest.Node, _ []string) (act.Room, roomtest.Own) {
		p := &play{Node: n, from: roomtest.Arena(t, shm.Spec{Rank: 1, Geometry: fixture.Geometry(t, false)})}
		n.Errors = map[string]error{"canceled": context.Canceled, "brought": holding.ErrBrought}
		n.Word = p.word
		p.room = New(p, p, "n1")
		return p.room, p
	})
}

type play struct {
	*roomtest.Node
	room   *Room
	from   *holding.Arena // of rank 1, on its own node
	staged *shm.Staging   // on its way into a mirror
	missed []replica.NodeName
}

func (p *play) view() room.JobView {
	v := p.View
	v.Mirrors = p.held().All()
	return v
}

func (p *play) held() *Held                            { return p.room.Of(fixture.JobID) }
func (p *play) Jobs() []room.JobView                   { return []room.JobView{p.view()} }
func (p *play) Job(replica.JobID) (room.JobView, bool) { return p.view(), !p.Gone }

func (p *play) Spec(job *replica.Job, r replica.Rank) shm.Spec {
	return shm.Spec{Cluster: fixture.Cluster, Era: 1, Job: job.ID, Rank: r, ChunkBytes: 4096, Slots: 2, Margin: 1 << 20}
}

func (p *play) Hold(a *shm.Arena, key string) *holding.Arena {
	name := fmt.Sprintf("new-%d", len(p.Arenas))
	p.Arenas[name] = roomtest.Hold(a, key)
	return p.Arenas[name]
}

// word has a plan name what n2 holds, a node hold what it has loaded, and the job grow.
func (p *play) word(j *replica.Job, key, value string) bool {
	switch key {
	case "planned":
		j.Epoch, j.Phase = j.ClosedEpoch+1, replica.Planned
		held := []replica.Holder{{Node: "n2", Incarnation: 22}}
		root := roomtest.Manifest(p.from, shm.Place{Kind: shm.Ring}, roomtest.Gen("5")).Root
		j.Plan = &replica.Plan{Epoch: j.Epoch, Generation: roomtest.Gen("5"), Layout: j.Layout, Ranks: j.Ranks, Mirrors: j.Mirrors,
			Sources: []replica.Source{
				{Part: replica.OfGroup(0), Root: replica.Digest{7}, Tier: replica.PeerRAM, Holders: held},
				{Part: replica.OfRank(1), Root: root, Tier: replica.PeerRAM, Holders: held}}}
	case "loaded": // rank 1's part, by a node
		by := []replica.Holder{{Node: replica.NodeName(value)}}
		j.Parts = []replica.PartRoot{{Part: replica.OfRank(1), Root: j.Plan.Sources[1].Root, Holders: by}}
	case "grows":
		j.Growth = &replica.Growth{}
	default:
		return false
	}
	return true
}

// manifest is of a private part of rank 1, or of one with another region.
func (p *play) manifest(other bool) replica.Manifest {
	man := roomtest.Manifest(p.from, shm.Place{Kind: shm.Ring}, roomtest.Gen("6"))
	man.Regions = slices.Clone(p.from.Geometry().Of(replica.PrivatePart))
	if other {
		man.Regions[0].Name = "another"
		man.Geometry = shm.GeometryDigest(replica.Geometry{Regions: man.Regions}, replica.PrivatePart)
	}
	return man
}

func (p *play) spec(part replica.Part) shm.Spec {
	spec := shm.Spec{Rank: 1, Geometry: fixture.Geometry(p.T, false), Mirror: true}
	if part.Kind == replica.ReplicatedPart {
		spec.Slots, spec.Ring = 2, -1
	}
	return spec
}

func (p *play) Do(verb string, args []string) (bool, error) {
	switch verb {
	case "asks": // [other]: a push does, for where its part is to lie
		a, mk, err := p.room.Find(p.Now, p.View.Job, 1, p.manifest(len(args) > 0))
		switch {
		case err != nil:
			p.Say("%v", err)
		case a != nil:
			p.Say("it lies in %s", p.Name(a))
		case mk != p.held().making[replica.OfRank(1)]:
			p.Say("it waits for another arena")
		}
	case "waits": // NUMBER: who waits for an arena
		mk := p.Under(args[0]).(act.Make).Of.(*Making)
		select {
		case <-mk.Done():
			p.Say("it has waited: %v", mk.Err())
		default:
			p.Say("it waits: %v", mk.Late(p.Now))
		}
	case "ends": // NUMBER [WHY]
		err := p.Err(args[1:])
		switch of := p.Under(args[0]).(type) {
		case act.Make:
			made := act.Made{Of: of.Of, Err: err}
			if err == nil {
				made.Arena = roomtest.Memory(p.T, p.spec(replica.OfRank(1)))
			}
			p.Learn(made)
		case act.Park:
			p.Learn(of.Then)
		case *Fetch:
			of.Missed = room.Missed{Part: of.Source.Part, Nodes: p.missed}
			p.Learn(act.Ended{Of: of, Err: err})
		}
	case "misses": // NODES: fetches can't dial them
		p.missed = roomtest.Nodes(args[0])
	case "arena": // NAME PART: one of a mirror, that was left
		p.Node.Hold(args[0], p.spec(roomtest.Part(args[1])))
	case "back": // NAME PART: the keeper has it
		if other := p.room.Adopt(fixture.JobID, roomtest.Part(args[1]), p.Arenas[args[0]]); other != nil {
			p.Say("%s is a holder", p.Name(other))
		}
	case "half": // NAME PLACE STEP: is what a daemon has left that died
		at := roomtest.Place(args[1])
		_, err := p.Arenas[args[0]].Stage(at, roomtest.Manifest(p.from, at, roomtest.Gen(args[2])))
		return true, err
	case "begins": // NAME PLACE STEP: a push
		at := roomtest.Place(args[1])
		s, err := p.Arenas[args[0]].Take(at, roomtest.Manifest(p.from, at, roomtest.Gen(args[2])))
		if p.staged = s; err != nil {
			return true, err
		}
	case "breaks": // NAME PLACE
		p.staged.Abort()
		p.Arenas[args[0]].Unstage(roomtest.Place(args[1]), p.staged)
	case "place": // NAME PLACE
		p.Say("%v", p.Arenas[args[0]].Word(roomtest.Place(args[1])).State())
	case "short": // NAME
		p.Learn(Short{p.Arenas[args[0]], fmt.Errorf("too little memory")})
	case "relay": // NODE PART
		by := replica.Holder{Node: replica.NodeName(args[0])}
		p.Learn(Relay{control.RelayOrder{Job: fixture.JobID, Epoch: 4, Part: roomtest.Part(args[1]), Node: by}})
	case "relays": // PART EPOCH
		part, epoch := roomtest.Part(args[0]), replica.Epoch(roomtest.Number(args[1]))
		for _, h := range p.held().Relays(part, epoch) {
			p.Say("%s is asked, and known by that: %v", h.Node, p.held().Relayed(part, epoch, h.Node))
		}
	case "lists":
		p.Say("%d mirrors, %d to come", len(p.held().All()), len(p.held().Coming()))
	default:
		return false, nil
	}
	return true, nil
}

func (p *play) Text(v any) string {
	if f, is := v.(*Fetch); is {
		var from []replica.NodeName
		for _, h := range f.Source.Holders {
			from = append(from, h.Node)
		}
		return p.Runs(v.(*Fetch), fmt.Sprintf("fetch %v of %v for rank %d from %v", f.Source.Part, f.Plan.Generation, f.Rank, from))
	}
	return fmt.Sprintf("%T", v)
}

// The reservation of a large arena takes minutes on a busy machine.
func TestALargeArenaIsNotLateSoon(t *testing.T) {
	if long := makingLong(160 << 30); long < 5*time.Minute {
		t.Errorf("an arena of 160 GiB may take %v to be reserved", long)
	}
}
