package host

import (
	"github.com/replicad/replicad/internal/host/hands"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// A rank whose arena's memory others took ends before it writes there, and its fault says why. What it sealed stays.
func TestMemoryThatOthersTook(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	d.connect()
	lr := d.attach(lj, 1)
	d.seal(lr.Arena, slot(0), fixture.Gen(3, 6), 1)
	p := d.process()
	lr.PID, lr.Start = p.pid, p.start
	d.says()
	d.handle(hands.Short{Arena: lr.Arena, Err: &shm.TooLittleMemory{Need: 3 << 20, Have: 2 << 20, Limit: "memory.max"}})
	if err := p.cmd.Wait(); err == nil {
		t.Fatal("its process ended by itself")
	}
	d.handleSession(session.Exited{PID: p.pid, StartTime: p.start})
	var faults []replica.Fault
	for _, m := range d.says() {
		if e, ok := m.(control.Evidence); ok {
			faults = append(faults, e.Fault)
		}
	}
	if len(faults) != 1 || faults[0].Kind != replica.ProcessDead || faults[0].Rank != 1 || !strings.Contains(faults[0].Detail, "too little memory: need 3 MiB, have 2 MiB (memory.max") {
		t.Errorf("faults %+v", faults)
	}
	if lr.Arena.Word(slot(0)).State() != replica.SlotSealed {
		t.Error("what it had sealed is gone")
	}
}

// A mirror without memory is given up: nobody is killed, and the next push is told that there is no room.
func TestMirrorThatOthersTook(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	part := replica.OfRank(2)
	a := d.mirrorOf(lj, part, 2, false)
	d.handle(hands.Short{Arena: a, Err: &shm.TooLittleMemory{}})
	d.until("its memory given back", func() bool { return !d.parked()[a.Key()] })
	if len(lj.Mirrors.All()) != 0 {
		t.Errorf("mirrors %v", lj.Mirrors.All())
	}
}
