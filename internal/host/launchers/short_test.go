package launchers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
	"golang.org/x/sys/unix"
)

// A want lasts while it is met, has one text, and is said more rarely the longer it lasts.
func TestShortages(t *testing.T) {
	s, now, said := shortages{}, time.Unix(1000, 0), []int{}
	for n := 1; n <= 20; n++ {
		if _, say := s.meets("job", want.Memory, "need 5 MiB", now); say {
			said = append(said, n)
		}
		if text := s.of("job", now.Add(shortFor-1)); !strings.HasPrefix(text, "memory (need 5 MiB): ") || s.of("other", now) != "" {
			t.Fatalf("after %d: %q, %q", n, text, s.of("other", now))
		}
		if !s.waits("job", now.Add(shortAgain-1)) || s.waits("job", now.Add(shortAgain)) || s.waits("other", now) {
			t.Fatal("it is tried again after a second")
		}
		now = now.Add(shortAgain)
	}
	if fmt.Sprint(said) != "[1 2 4 8 16]" {
		t.Errorf("said at %v", said)
	}
	if s.of("job", now.Add(shortFor)) != "" {
		t.Error("a want that is met no more lasts")
	}
	if _, say := s.meets("job", want.Memory, "", now.Add(shortFor)); !say {
		t.Error("one that is met anew is not said")
	}
	s.meets("", want.Descriptors, "", now)
	if s.found("job"); !strings.HasPrefix(s.of("job", now), "descriptors") || s.waits("job", now) {
		t.Error("what everybody is short of a job is short of, and tries on")
	}
}

// However often processes end for want of something, the job does not, and none of them counts among those that failed. While the node is short
// it offers none of the processes that its launcher could start: the leader asks another node.
func TestWantsEndNoJob(t *testing.T) {
	for name, status := range map[string]int32{"fork": -int32(want.Processes), "unknown": -99, "its own word": wire.StatusWant, "the node is short": 1} {
		d := newRig(t)
		lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase = replica.Opening }))
		peer, _ := d.listener()
		l := d.all[peer.ID()]
		l.hello.Capacity = 2
		if n, _ := d.offers(lj.job); n != 2 {
			t.Fatalf("%s: a node that is short of nothing offers %d processes", name, n)
		}
		for n := range 3 * startTries {
			if status == 1 {
				d.Handle(session.Short{Err: unix.EMFILE}, time.Now())
			}
			l.starts.asked(0, time.Now())
			d.Handle(session.RunExited{Peer: peer, RunExited: wire.RunExited{Rank: 0, Status: status}}, time.Now())
			if l.starts.may(0, time.Now()) || !l.starts.may(0, time.Now().Add(wantAgain+time.Second)) {
				t.Fatalf("%s: end %d: the next one follows at once, or never", name, n)
			}
		}
		if p := l.starts.of(0); p.tries != 0 || len(fixture.Only[control.EndRequest](d.says())) != 0 || l.done {
			t.Errorf("%s: %+v", name, p)
		}
		if n, _ := d.offers(lj.job); n != 0 || d.short.of("job", time.Now()) == "" {
			t.Errorf("%s: a node that is short offers %d processes", name, n)
		}
		if r := d.reported(lj); r.Offers != 0 || r.Short == "" {
			t.Errorf("%s: the leader is told of %d offers, short of %q", name, r.Offers, r.Short)
		}
		clear(d.short)
		if n, _ := d.offers(lj.job); n != 2 {
			t.Errorf("%s: a node that has what it was short of offers %d processes", name, n)
		}
		if d.log.Count(`"short"`) == 0 {
			t.Errorf("%s: the log does not name it", name)
		}
	}
}
