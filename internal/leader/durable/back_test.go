package durable

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// led is a job under leaders that change: each hears what the one before has handed out.
type led struct {
	keep recovery.Keep
	term uint64
	now  time.Duration
}

// leads lets another leader lead for a while, from its first word on, and returns what people are told.
func (l *led) leads(job *replica.Job, first Event, long time.Duration) (s *stage) {
	s = newStage()
	s.job, s.now = job, l.now
	if word, ok := l.keep.Word(l.now, job.ID); ok {
		s.clocks.Learn(s.now, "n1", word, 0)
	}
	s.learns(first)
	s.learns(Changed{job})
	for ; long > 0; long -= time.Second {
		s.now += time.Second
		s.turn()
	}
	l.term, l.now = l.term+1, s.now
	l.keep.Take(l.now, replica.Ledger{Term: l.term, Seq: 1, Readings: s.clocks.Readings(l.now)})
	return s
}

// Writes are put off for what nobody reads back, and no leader leads for as long as it takes to say so: people are told all the same, with the true seconds,
// and of the end.
func TestWritesThatArePutOffOutliveTheirLeaders(t *testing.T) {
	job := fixture.Changed(newStage().job, func(j *replica.Job) {
		j.Options.DurableEvery = 5
		j.Durable = fixture.Gen(3, 10)
		j.Committed, j.Position = fixture.Gen(3, 15), replica.Position{Epoch: 3, Step: 15}
	})
	l, said := &led{now: time.Minute}, ""
	for n := range 10 {
		s := l.leads(job, Unread{Generations: []replica.Generation{fixture.Gen(3, 5), fixture.Gen(3, 10)}}, 9*time.Second)
		if out := s.printed.String(); strings.Contains(out, "proposes") {
			t.Fatalf("leader %d: %s", n, out)
		}
		said += s.printed.String()
		if want := (time.Duration(n+1) * 9 * time.Second).String(); !strings.Contains(s.room.Pace(s.now), "waits for "+want) {
			t.Errorf("leader %d: status says %q, want %s", n, s.room.Pace(s.now), want)
		}
	}
	for _, want := range []string{"none of them was read back for 10s,", "for 20s,", "for 40s,", "for 1m20s,"} {
		if strings.Count(said, want) != 1 {
			t.Errorf("people are told %d times of %q:\n%s", strings.Count(said, want), want, said)
		}
	}
	if out := l.leads(job, Unread{Listing: true}, 9*time.Second).printed.String(); strings.Contains(out, "tells") || strings.Contains(out, "proposes") {
		t.Errorf("before its list came: %s", out)
	}
	out := l.leads(job, Unread{Generations: []replica.Generation{fixture.Gen(3, 10)}}, 9*time.Second).printed.String()
	if !strings.Contains(out, "tells: durable writes go on: what was written before is read back, but for step 10") || !strings.Contains(out, "proposes to write (3,15)") {
		t.Errorf("once one is read back: %s", out)
	}
	if out := l.leads(job, Unread{}, 9*time.Second).printed.String(); strings.Contains(out, "go on") {
		t.Errorf("it is said twice: %s", out)
	}
}

// A new leader begins no write before it knows what is unread: by time and by steps. What a person asks for is written.
func TestNoWriteBeforeWhatIsUnreadIsListed(t *testing.T) {
	for _, every := range []string{"5", "1m", "auto"} {
		t.Run(every, func(t *testing.T) {
			s := newStage()
			s.now = 48 * time.Hour
			is, err := replica.ParseDurableEvery(every)
			if err != nil {
				t.Fatal(err)
			}
			job := fixture.Changed(s.job, func(j *replica.Job) {
				j.Options.DurableEvery = is
				j.Durable = fixture.Gen(3, 10)
				j.Committed, j.Position = fixture.Gen(3, 15), replica.Position{Epoch: 3, Step: 15}
			})
			new(recovery.Paced).Follow(0, &s.clocks, nil, job) // it began long ago
			s.job = job
			s.learns(Unread{Listing: true})
			s.learns(Changed{job})
			for range 10 {
				s.now += time.Second
				s.turn()
			}
			if out := s.printed.String(); strings.Contains(out, "proposes") || !strings.Contains(s.room.Pace(s.now), "until a new leader has listed") {
				t.Fatalf("before the list: %s; status says %q", out, s.room.Pace(s.now))
			}
			s.learns(Unread{})
			s.now += time.Second
			if s.turn(); !strings.Contains(s.printed.String(), "proposes to write (3,15)") {
				t.Errorf("after the list: %s", s.printed.String())
			}
			s = newStage()
			s.job = job
			s.learns(Unread{Listing: true})
			s.learns(Changed{job})
			if s.learns(Ask{}); !strings.Contains(s.printed.String(), "proposes to write (3,15)") {
				t.Errorf("what a person asked for: %s", s.printed.String())
			}
		})
	}
}
