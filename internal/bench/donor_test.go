package bench

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

// Only whole steps of the measured process count, each in the while in which it began and ended.
func TestStepClock(t *testing.T) {
	var clock stepClock
	at := func(ms int64) time.Time { return time.Unix(0, ms*1e6) }
	say := func(pid int, event string, ms int64) {
		clock.hear(cluster.RankEvent{PID: pid, Event: event, T: ms * 1e6})
	}
	say(7, "start", 0)
	say(8, "start", 1)
	for _, ms := range []int64{10, 30, 35, 60} {
		say(7, "step", ms)
		say(8, "step", ms+1)
	}
	for _, tc := range []struct {
		from, to int64
		want     []float64
	}{{0, 100, []float64{20, 5, 25}}, {10, 35, []float64{20, 5}}, {11, 59, []float64{5}}, {31, 34, nil}} {
		if got := clock.within(at(tc.from), at(tc.to)); !slices.Equal(got, tc.want) {
			t.Errorf("from %d to %d: %v, want %v", tc.from, tc.to, got, tc.want)
		}
	}
}

// A heal is that of the epoch that opened after the kill, in whichever order the nodes' logs are read.
func TestHealOf(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	event := func(s int64, name, job string, epoch uint64) cluster.LogEvent {
		return cluster.LogEvent{Time: at(s), Event: name, Job: job, Epoch: epoch}
	}
	log := []cluster.LogEvent{event(1, "planned", "healed", 1), event(2, "verified", "healed", 1), event(3, "resumed", "healed", 1),
		event(9, "resumed", "healed", 3), event(5, "planned", "healed", 2), event(6, "planned", "healed", 3), event(8, "planned", "felt", 3), event(7, "verified", "healed", 3)}
	if planned, verified := healOf(log, at(4)); !planned.Equal(at(6)) || !verified.Equal(at(7)) {
		t.Errorf("%v to %v", planned, verified)
	}
	for name, short := range map[string][]cluster.LogEvent{"not resumed": log[4:], "not verified": log[:7], "nothing since": log[:3]} {
		if planned, verified := healOf(slices.DeleteFunc(slices.Clone(short), func(e cluster.LogEvent) bool { return name == "not resumed" && e.Event == "resumed" }), at(4)); !verified.IsZero() {
			t.Errorf("%s: %v to %v", name, planned, verified)
		}
	}
}

func TestResidentMemfds(t *testing.T) {
	const smaps = `7f0000000000-7f0000400000 rw-s 00000000 00:01 1026                       /memfd:replicad-arena (deleted)
Size:               4096 kB
Rss:                1024 kB
Shared_Dirty:       1024 kB
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
Rss:                4096 kB
7f0000800000-7f0000c00000 rw-s 00000000 00:01 1027                       /memfd:other (deleted)
Rss:                   8 kB
7f0001000000-7f0001400000 r-xp 00000000 fe:00 5                          /usr/lib/libc.so.6
Rss:                 900 kB
`
	if got := residentMemfds(smaps); got != 1032<<10 {
		t.Errorf("%d bytes", got)
	}
}

// What a process has had of processors grows, and its own memory is something; of a process that is gone both are told.
func TestProcessFigures(t *testing.T) {
	self := os.Getpid()
	before, err := cpu(self)
	if err != nil {
		t.Fatal(err)
	}
	for now := before; now <= before; { // this loop takes the time that it waits for
		if now, err = cpu(self); err != nil {
			t.Fatal(err)
		}
	}
	if own(self) < mib {
		t.Errorf("own memory: %d bytes", own(self))
	}
	if _, err := cpu(1 << 30); err == nil || own(1<<30) != 0 {
		t.Errorf("of no process: %v, %d bytes", err, own(1<<30))
	}
}
