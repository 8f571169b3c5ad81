package job

import (
	"reflect"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// said are the words of an arena as a test has them.
type said struct {
	live   replica.Word
	holds  []replica.Generation
	misses bool
}

func (s said) Step() replica.Word             { return s.live }
func (s said) Holds() []replica.Generation    { return s.holds }
func (s said) Misses(replica.Generation) bool { return s.misses }

// Which copies a candidate wants pinned, and which pins are another one's.
func TestCandidacyPins(t *testing.T) {
	copyOf := func(p replica.Part, s replica.Step, rank replica.Rank, mirror bool, pin uint64) holding.Copy {
		return holding.Copy{Place: shm.Place{Kind: shm.Ring}, Info: shm.Info{Generation: fixture.Gen(3, s), PinTerm: 9, PinN: pin}, Held: replica.Held{Part: p, Generation: fixture.Gen(3, s), Rank: rank, Mirror: mirror}}
	}
	c := newCandidacy()
	c.obey(fixture.Candidate(2, 6), replica.Position{Epoch: 3, Step: 5}, time.Unix(100, 0), 7)
	c.Answered[pinKey(copyOf(replica.OfGroup(0), 6, 0, false, 0))] = true
	for name, want := range map[string]struct {
		l              holding.Copy
		owes, outdated bool
	}{
		"pinned for the same one of the leader before": {copyOf(replica.OfRank(0), 6, 0, false, 1), true, false},
		"its own":                  {copyOf(replica.OfRank(0), 6, 0, false, 0), true, false},
		"pinned before a new link": {copyOf(replica.OfRank(0), 6, 0, false, 2), true, false},
		"pinned for an older one":  {copyOf(replica.OfRank(0), 5, 0, false, 1), false, true},
		"of another step":          {copyOf(replica.OfRank(0), 5, 0, false, 0), false, false},
		"frozen":                   {copyOf(replica.FrozenOf(0), 6, 0, false, 0), false, false},
		"answered":                 {copyOf(replica.OfGroup(0), 6, 0, false, 2), false, false},
		"another rank's vote":      {copyOf(replica.OfGroup(0), 6, 1, false, 0), true, false},
		"the mirror's vote":        {copyOf(replica.OfGroup(0), 6, 0, true, 0), true, false},
	} {
		if owes, outdated := c.owes(want.l), c.outdated(want.l); owes != want.owes || outdated != want.outdated {
			t.Errorf("%s: owed %v, outdated %v; want %v, %v", name, owes, outdated, want.owes, want.outdated)
		}
	}
	self := replica.Node{Name: "n1", Incarnation: 11, Session: 3}
	want := replica.Pinned{Job: fixture.JobID, Term: 9, N: 2, Generation: fixture.Gen(3, 6), Holder: self.Holder(), Session: 3, Heard: 7, Live: 8}
	if got := c.pins(self, nil, 8); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A rank's answers in order: each is given once, until the leader's link or its candidate is another.
func TestCandidacyPasses(t *testing.T) {
	c := newCandidacy()
	c.obey(fixture.Candidate(1, 8), replica.Position{Epoch: 3, Step: 5}, time.Unix(100, 0), 5)
	job, self := fixture.Job(), replica.Node{Name: "n1", Incarnation: 11, Session: 3}
	at := func(s replica.Step) replica.Word { return replica.PackWord(3, s, replica.Idle) }
	six, seven := []replica.Generation{fixture.Gen(3, 6)}, []replica.Generation{fixture.Gen(3, 6), fixture.Gen(3, 7)}
	for i, e := range []struct {
		says    said
		stands  bool
		renewed bool // the link
		due     bool
	}{
		{said{live: at(6), holds: six}, false, false, false},                                    // it moves
		{said{live: at(5), holds: []replica.Generation{fixture.Gen(3, 5)}}, true, false, false}, // that is committed
		{said{live: at(6), holds: six}, true, false, true},
		{said{live: at(6), holds: six}, true, false, false},
		{said{live: at(6), holds: six}, true, true, true},
		{said{live: at(7), holds: seven}, true, false, true}, // it has a newer one
		{said{live: replica.PackWord(3, 7, replica.Updating), holds: six}, true, false, false},
		{said{live: at(9)}, false, false, false}, // it captured the candidate
		{said{live: at(9), misses: true}, false, false, true},
		{said{live: at(10), misses: true}, false, false, false},
		{said{live: at(6), holds: six}, true, false, false}, // what it said last is final
		{said{live: at(10), misses: true}, false, true, true},
	} {
		if e.renewed {
			c.repeat()
		}
		p, due := c.passes(job, self, 0, e.says, e.stands)
		want := replica.Passed{Job: fixture.JobID, Term: 9, N: 1, Holder: self.Holder(), Session: 3, Live: e.says.live.Generation(), Holds: e.says.holds, Heard: 5}
		if due != e.due || due && !reflect.DeepEqual(p, want) {
			t.Errorf("%d: %v, %+v; want %v, %+v", i, due, p, e.due, want)
		}
	}
	c.obey(fixture.Candidate(2, 9), replica.Position{Epoch: 3, Step: 5}, time.Unix(101, 0), 10)
	if _, due := c.passes(job, self, 0, said{live: at(10), misses: true}, false); !due {
		t.Error("the next candidate is not answered")
	}
}

// A commit waits since the first candidate that was named for it. Where a rank has no place for one it passes it, and the leader names another:
// the wait for each may be short, and there is no end of them.
func TestACommitWaitsThroughCandidatesThatLapse(t *testing.T) {
	c, five, nine := newCandidacy(), replica.Position{Epoch: 3, Step: 5}, replica.Position{Epoch: 3, Step: 9}
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	for i, e := range []struct {
		n         uint64
		committed replica.Position
		now, from int64
	}{
		{1, five, 100, 100},
		{2, five, 101, 100},
		{3, five, 109, 100},
		{4, nine, 110, 110},
		{5, nine, 112, 110},
	} {
		c.obey(fixture.Candidate(e.n, e.committed.Step+replica.Step(i)+1), e.committed, at(e.now), 0)
		if got := c.waitsFrom(e.committed); !got.Equal(at(e.from)) {
			t.Errorf("event %d: since %v, want %d", i, got.Unix(), e.from)
		}
	}
	if got := c.waitsFrom(replica.Position{Epoch: 3, Step: 10}); !got.Equal(at(112)) { // the news of a commit came behind the candidate
		t.Errorf("since %v", got.Unix())
	}
}

// What the next leader is to name again: the candidate, or, where the daemon has started since, what the one before it has pinned.
func TestCandidacyGoesOn(t *testing.T) {
	pinned := func(s replica.Step, n uint64) holding.Copy {
		return holding.Copy{Info: shm.Info{Generation: fixture.Gen(3, s), PinTerm: 9, PinN: n}}
	}
	job := fixture.Job() // at step 5 of epoch 3
	for name, c := range map[string]struct {
		candidate replica.Candidate
		parts     []holding.Copy
		want      replica.Generation
	}{
		"nothing is named":                            {},
		"a candidate":                                 {candidate: fixture.Candidate(2, 6), want: fixture.Gen(3, 6)},
		"a candidate that is committed":               {candidate: fixture.Candidate(2, 5)},
		"a candidate, and a pin of an older one":      {candidate: fixture.Candidate(2, 8), parts: []holding.Copy{pinned(6, 1)}, want: fixture.Gen(3, 8)},
		"pins that the daemon before made":            {parts: []holding.Copy{pinned(5, 1), pinned(7, 3), pinned(6, 2), pinned(9, 0)}, want: fixture.Gen(3, 7)},
		"pins that the daemon before made, committed": {parts: []holding.Copy{pinned(5, 1)}},
	} {
		cy := newCandidacy()
		cy.Candidate = c.candidate
		if got := cy.goesOnWith(job, c.parts); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// For how long no leader has asked for the candidate: from the end of the link over which one did, until one does over another.
func TestCandidacyUnasked(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	c := newCandidacy()
	c.Unlinked(at(50))
	if got := c.unasked(at(200)); got != 0 {
		t.Errorf("without a candidate: %v", got)
	}
	c.obey(fixture.Candidate(1, 6), replica.Position{Epoch: 3, Step: 5}, at(100), 5)
	if got := c.unasked(at(200)); got != 0 {
		t.Errorf("over the link: %v", got)
	}
	c.Unlinked(at(210))
	c.Unlinked(at(220)) // a link came up, and nobody asked
	if got := c.unasked(at(270)); got != 60*time.Second {
		t.Errorf("60 s after the link: %v", got)
	}
	c.obey(fixture.Candidate(2, 8), replica.Position{Epoch: 3, Step: 5}, at(280), 5)
	if got := c.unasked(at(900)); got != 0 {
		t.Errorf("asked again: %v", got)
	}
}
