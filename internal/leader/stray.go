package leader

import (
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

const (
	strayAfter   = 2 * time.Second        // without a link to the leader and without an answer to it: longer than a daemon's restart or an election
	strayAsk     = 500 * time.Millisecond // between two questions to the voters whom they hear; twice as long each time none hears more
	strayAskMost = 10 * time.Second
)

// strays are the nodes that this leader lost and does not hear, though another voter may hear them. Owned by the leader.
type strays struct {
	since  map[replica.NodeName]time.Duration
	asked  []replica.NodeName // for whose sake the newest question was
	id     uint64             // of that question; an answer to it moves leadership once
	next   time.Duration      // when the next one is due
	pause  time.Duration      // after it
	moving bool               // leadership is being handed over
}

func newStrays() strays { return strays{since: map[replica.NodeName]time.Duration{}} }

// lookForStrays asks the other voters whom they hear while some node is out of this leader's reach (recovery.HearsMore).
func (l *Leader) lookForStrays() {
	s, now := &l.strays, l.now()
	for name := range l.view.Nodes {
		if name == l.cons.ID() || l.links.of[name] != nil || l.cfg.Hears(name) {
			delete(s.since, name)
		} else if _, known := s.since[name]; !known {
			s.since[name] = now
		}
	}
	maps.DeleteFunc(s.since, func(name replica.NodeName, _ time.Duration) bool { _, ok := l.view.Nodes[name]; return !ok })
	if lost := l.strayed(); !slices.Equal(lost, s.asked) {
		s.asked, s.next, s.pause = lost, now, strayAsk
	}
	if len(s.asked) == 0 || s.moving || now < s.next {
		return
	}
	s.id++
	s.next, s.pause = now+s.pause, min(2*s.pause, strayAskMost)
	for _, v := range l.cons.Voters() {
		if n := l.links.of[v.Name]; n != nil && v.Name != l.cons.ID() {
			n.Send(control.UnheardQuestion{ID: s.id})
		}
	}
}

// strayed are those that have been out of reach for long enough, in the order of their names.
func (l *Leader) strayed() (names []replica.NodeName) {
	for name, since := range l.strays.since {
		if l.now()-since >= strayAfter {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// unheard takes a voter's word whom it does not hear, and hands leadership to it where it hears more than this leader.
func (l *Leader) unheard(from replica.NodeName, m control.UnheardAnswer) {
	s, lost := &l.strays, l.strayed()
	votes := slices.ContainsFunc(l.cons.Voters(), func(v consensus.Voter) bool { return v.Name == from })
	if m.ID != s.id || s.moving || !votes || !recovery.HearsMore(lost, m.Nodes) {
		return
	}
	s.moving = true
	term := l.term
	l.log.Moving(term, from, lost)
	l.work.Go(func() { l.post(leadershipMoved{term, from, l.cons.TransferTo(from)}) })
}

// moved learns how a move ended; one that succeeded has ended this leader's term by itself.
func (l *Leader) moved(m leadershipMoved) {
	if m.err != nil {
		l.log.Failed("move leadership", "to node "+string(m.to), m.err.Error())
	}
	if m.term == l.term {
		l.strays.moving = false
	}
}
