package adoption

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Whatever the order in which arenas of a rank come back, and whatever has its place already: the newest incarnation has it. Each other arena
// is a holder, once.
func TestTheNewestIncarnationHasThePlace(t *testing.T) {
	incs := []replica.Incarnation{2, 4, 6}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		for _, there := range []replica.Incarnation{0, 3, 6, 7} { // in its place already; 0: none
			p, keeps := newPlay(roomtest.NewNode(t)), "keeps"
			for _, i := range order {
				p.Play(fmt.Sprintf("arena %d 0 %d 100", incs[i], incs[i]))
				keeps += fmt.Sprint(" ", incs[i])
			}
			want := []string{"retire 2", "retire 4"}
			if there != 0 {
				p.Play(fmt.Sprintf("arena there 0 %d 100", there))
				p.Play(fmt.Sprintf("has there 0 %d", there))
			}
			switch {
			case there >= 6:
				want = append(want, "retire 6", "all are placed")
			case there != 0:
				want = append(want, "retire there", "place 6 as rank 0, incarnation 6", "all are placed", "settle rank 0:")
			default:
				want = append(want, "place 6 as rank 0, incarnation 6", "all are placed", "settle rank 0:")
			}
			p.Play(keeps)
			got := strings.Split(strings.TrimSpace(p.Play("knows")), "\n")
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("in order %v, where %d is there: %q, want %q", order, there, got, want)
			}
		}
	}
}

// Whatever a rank sends before its job is known, what is remembered is bounded, newest last, and is handed on once.
func TestWhatARankSendsIsBounded(t *testing.T) {
	n := newPlay(roomtest.NewNode(t))
	for _, line := range []string{"process 101", "arena a 0 4 101", "listed a 101 0", "keeps a", "back 101 0"} {
		n.Play(line)
	}
	p, other := n.peer("101"), n.peer("102")
	for i := range 10000 {
		n.Learn(Sent{p, session.Sealed{Peer: p, Sealed: wire.Sealed{Kind: uint32(i % 5), Index: uint32(i)}}})
		n.Learn(Sent{p, session.Stopped{Peer: p, Header: wire.RankHeader{Request: uint32(i)}}})
		n.Learn(Sent{p, session.Leave{Peer: p}})
		n.Learn(Sent{other, session.Fail{}})
	}
	if got := len(n.room.of(p).sent); got > len(n.Arenas["a"].Places())+2 {
		t.Errorf("%d events are remembered", got)
	}
	seals := len(n.room.of(p).sent) - 2
	if seals == 0 {
		t.Error("no seal is remembered")
	}
	n.informed, n.Gone = true, false
	n.Learn(act.Changed{})
	effects := n.room.Step(n.Now)
	s, ok := effects[len(effects)-1].(Settle)
	if !ok || len(s.Sent) != seals+2 {
		t.Fatalf("%+v", effects)
	}
	if last, ok := s.Sent[seals].(session.Stopped); !ok || last.Header.Request != 9999 {
		t.Errorf("not the newest is handed on: %+v", s.Sent[seals])
	}
}

func TestLoaded(t *testing.T) {
	wants := map[replica.JobPhase]replica.Epoch{replica.Opening: 0, replica.Planned: 0, replica.Open: 3, replica.Closed: 3}
	for phase, want := range wants {
		job := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase = phase })
		if got := loaded(job, replica.PackWord(3, 6, 0)); got != want {
			t.Errorf("%v, good in the job's epoch: loaded %d, want %d", phase, got, want)
		}
		if got := loaded(job, replica.PackWord(2, 6, 0)); got != 2 {
			t.Errorf("%v, good in a former epoch: loaded %d", phase, got)
		}
	}
}

func TestJudge(t *testing.T) {
	ended := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase = replica.Ended })
	for _, c := range []struct {
		job                     *replica.Job
		informed, mirror, alive bool
		want                    fate
	}{
		{nil, false, false, true, waits}, {nil, false, true, false, waits},
		{nil, true, false, true, unwanted}, {nil, true, true, false, unwanted},
		{ended, true, false, true, ranks}, {ended, true, false, false, unwanted}, {ended, true, true, true, unwanted},
		{fixture.Job(), true, true, false, mirrors}, {fixture.Job(), true, false, false, ranks}, {fixture.Job(), false, false, false, ranks},
	} {
		if got := judge(c.job, c.informed, c.mirror, c.alive); got != c.want {
			t.Errorf("%+v: %d, want %d", c, got, c.want)
		}
	}
}
