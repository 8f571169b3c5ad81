package recovery

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// A daemon that stopped for 1.5 s counted as a dead node. Its silence was taken for that of the host, and steps before the suspicion
// for none.
func TestSilence(t *testing.T) {
	limits := SilenceLimits{Fresh: 1500 * time.Millisecond, After: time.Second, Grace: 10 * time.Second, Beyond: 10 * time.Minute}
	of := replica.Holder{Node: "n2", Incarnation: 22}
	const ms = time.Millisecond
	job := func(change func(*replica.Job)) *replica.Job {
		j := &replica.Job{ID: replica.JobID{1}, Phase: replica.Open, Ranks: []replica.Claimed{{Incarnation: 1, Node: "n1", NodeIncarnation: 11}, {Incarnation: 2, Node: "n2", NodeIncarnation: 22}}}
		if change != nil {
			change(j)
		}
		return j
	}
	type said struct {
		from             replica.NodeName
		ago, silent      time.Duration
		still, pace      time.Duration
		hasRanks, others bool
		broken           bool
	}
	for _, c := range []struct {
		what string
		job  *replica.Job
		said []said
		why  string // empty: it lives
	}{
		{"steps of 0.3 s go on", job(nil), []said{{"n1", 0, 5 * time.Second, 200 * ms, 400 * ms, true, false, false}, {"n3", 0, 5 * time.Second, 0, 0, false, false, false}}, ""},
		{"steps of 5 s go on, 20 s of silence", job(nil), []said{{"n1", 0, 20 * time.Second, 4900 * ms, 5200 * ms, true, false, false}}, ""},
		{"short steps have ended", job(nil), []said{{"n1", 0, 1200 * ms, 1100 * ms, 50 * ms, true, false, false}}, "stood still for 1.1s"},
		{"not for silent_after yet", job(nil), []said{{"n1", 0, 1200 * ms, 900 * ms, 50 * ms, true, false, false}}, ""},
		{"steps of 0.3 s have ended", job(nil), []said{{"n1", 0, 1200 * ms, time.Second, 400 * ms, true, false, false}}, "stood still for 1s"},
		{"steps of 5 s, half a step late", job(nil), []said{{"n1", 0, 9 * time.Second, 7400 * ms, 5000 * ms, true, false, false}}, ""},
		{"steps of 5 s have ended", job(nil), []said{{"n1", 0, 9 * time.Second, 7500 * ms, 5000 * ms, true, false, false}}, "its longest step took 5s"},
		{"one of two witnesses sees a step", job(nil), []said{{"n1", 0, 3 * time.Second, 3 * time.Second, 50 * ms, true, false, false}, {"n3", 0, 3 * time.Second, 100 * ms, 50 * ms, true, false, false}}, ""},
		{"the one that saw it is heard no more", job(nil), []said{{"n1", 0, 3 * time.Second, 3 * time.Second, 50 * ms, true, false, false}, {"n3", 2 * time.Second, 3 * time.Second, 100 * ms, 50 * ms, true, false, false}}, "stood still"},
		{"a word ages", job(nil), []said{{"n1", 500 * ms, time.Second, 600 * ms, 50 * ms, true, false, false}}, "stood still for 1.1s"},
		{"pauses on purpose", job(nil), []said{{"n1", 0, 30 * time.Second, 0, 50 * ms, true, false, false}}, ""},
		{"before two steps are made", job(nil), []said{{"n1", 0, 8 * time.Second, 8 * time.Second, 0, true, false, false}}, ""},
		{"long before two steps are made", job(nil), []said{{"n1", 0, 12 * time.Second, 10 * time.Second, 0, true, false, false}}, "stood still for 10s"},
		{"no rank elsewhere", job(nil), []said{{"n3", 0, 5 * time.Second, 0, 0, false, false, false}}, ""},
		{"no rank elsewhere, long", job(nil), []said{{"n3", 0, 10 * time.Second, 0, 0, false, false, false}}, "nobody else runs a rank"},
		{"steps of another job", job(nil), []said{{"n3", 0, 10 * time.Second, 0, 50 * ms, false, true, false}}, "nobody else runs a rank"},
		{"independent ranks", job(nil), []said{{"n1", 0, 9 * time.Minute, 10 * ms, 50 * ms, true, false, false}}, ""},
		{"independent ranks, in the end", job(nil), []said{{"n1", 0, 10 * time.Minute, 10 * ms, 50 * ms, true, false, false}}, "though other ranks pass steps"},
		{"a rank has lost a peer", job(nil), []said{{"n1", 0, time.Second, 50 * ms, 5 * time.Second, true, false, true}}, "has lost its peers"},
		{"it mirrors", job(func(j *replica.Job) { j.Ranks[1].Node = "n3"; j.Mirrors = [][]replica.NodeName{{"n2"}} }), []said{{"n1", 0, time.Second, 0, 50 * ms, true, false, false}}, "silent"},
		{"a former life of it", job(func(j *replica.Job) { j.Ranks[1].NodeIncarnation = 21 }), []said{{"n1", 0, time.Second, 0, 50 * ms, true, false, false}}, "silent"},
		{"a rank has reported a broken peer", job(func(j *replica.Job) { j.Phase = replica.Closed }), []said{{"n1", 0, time.Second, 0, 50 * ms, true, false, false}}, "silent"},
		{"it opens", job(func(j *replica.Job) { j.Phase = replica.Opening }), []said{{"n1", 0, time.Second, 0, 0, true, false, false}}, "silent"},
	} {
		var s Silence
		now, fresh := time.Hour, 0
		for _, w := range c.said {
			word := Witness{For: w.silent, Steps: map[replica.JobID]Steps{}}
			if w.hasRanks {
				word.Steps[c.job.ID] = Steps{Still: w.still, Pace: w.pace, Broken: w.broken}
			}
			if w.others {
				word.Steps[replica.JobID{2}] = Steps{Still: w.still, Pace: w.pace}
			}
			s.Hear(now-w.ago, w.from, word)
			if w.ago <= limits.Fresh {
				fresh++
			}
		}
		if got := s.Dead(now, c.job, of, limits); (got == "") != (c.why == "") || !strings.Contains(got, c.why) {
			t.Errorf("%s: %q, want %q", c.what, got, c.why)
		}
		if n := s.Witnesses(now, limits); n != fresh {
			t.Errorf("%s: %d witnesses, want %d", c.what, n, fresh)
		}
	}
}

func TestPulseSaysHowARankGetsOn(t *testing.T) {
	at := func(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
	var p Pulse
	for i := range 5 {
		p.Look(at(float64(i)*2), replica.PackWord(3, replica.Step(7+i), replica.Idle))
	}
	if p.Still(at(9)) != at(1) || p.Pace() != at(2) {
		t.Errorf("still for %v, pace %v", p.Still(at(9)), p.Pace())
	}
	p.Pause(at(9), at(60))
	if p.Still(at(30)) != 0 {
		t.Error("a pause is no standstill")
	}
	p.Pause(at(31), 0)
	if p.Still(at(32)) != at(1) {
		t.Errorf("still for %v after a pause", p.Still(at(32)))
	}
	p.Look(at(40), replica.PackWord(4, 11, replica.Idle))
	if p.Pace() != 0 || p.Still(at(43)) != at(3) {
		t.Errorf("in a new epoch: still for %v, pace %v", p.Still(at(43)), p.Pace())
	}
}
