package host

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/checkpoint"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// A node that misses the view between two durable writes used to take its shard of the second for begun.
func TestNextDurableWriteIsAnother(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	write := func(g replica.Generation) []control.ShardReport {
		lj.job = fixture.Changed(lj.job, func(j *replica.Job) {
			j.Writer = &replica.DurableWrite{Generation: g, Shards: []replica.Shard{{Part: replica.OfRank(0), Node: "n1"}}}
		})
		d.durable(lj)
		d.durable(lj)
		return fixture.Only[control.ShardReport](d.says())
	}
	for _, g := range []replica.Generation{fixture.Gen(3, 5), fixture.Gen(3, 9)} {
		if got := write(g); len(got) != 1 || got[0].Generation != g {
			t.Errorf("of generation %v it says %+v, want one report", g, got)
		}
	}
	if len(lj.written) != 1 || lj.written[replica.OfRank(0)].Generation != fixture.Gen(3, 9) {
		t.Errorf("a new leader would be told %+v", lj.written)
	}
}

// The leader hears how far a shard is while bytes of it are written, and nothing of one that stands still.
func TestAShardThatGrowsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []uint64
		counted := new(shardWrite).counting(func(written uint64) { said = append(said, written) })
		read := func(takes time.Duration) func(int, []byte) ([]byte, error) {
			return counted(func(int, []byte) ([]byte, error) { time.Sleep(takes); return make([]byte, 1000), nil }, true)
		}
		slow, fast := read(growsEvery/4), read(time.Millisecond)
		for i := range 9 {
			slow(i, nil) //nolint:errcheck // it has none
		}
		for i := range 100 {
			fast(i, nil) //nolint:errcheck // it has none
		}
		if want := []uint64{4000, 8000}; !slices.Equal(said, want) {
			t.Errorf("said %v, want %v", said, want)
		}
	})
}

// A durable write holds the slot that it reads: until that is read whole, or until it stands still while a commit waits. What reads on then is
// refused, and the leader hears that the shard has failed, so that no marker names its file.
func TestADurableWriteGivesItsSlotUp(t *testing.T) {
	for what, c := range map[string]struct {
		read    int // chunks
		passed  time.Duration
		waits   bool // a commit does
		holds   bool
		failing bool
	}{
		"it stands still while a commit waits": {1, writeIdle, true, false, true},
		"it has just moved":                    {1, writeIdle - time.Millisecond, true, true, false},
		"no commit waits":                      {1, time.Hour, false, true, false},
		"all is read, and syncing takes long":  {-1, time.Hour, true, false, false},
		"all is read, and no commit waits":     {-1, time.Hour, false, false, false},
	} {
		d := newRig(t)
		job := fixture.Job()
		lj := d.put(job)
		lr := d.attach(lj, 0)
		d.seal(lr.arena, slot(0), job.Committed, 1)
		held := lj.parts()[0]
		reader, err := d.reader(lj, held)
		if err != nil {
			t.Fatal(err)
		}
		lj.job = fixture.Changed(job, func(j *replica.Job) { j.Writer = &replica.DurableWrite{Generation: job.Committed} })
		now := time.Now()
		w := &shardWrite{generation: job.Committed, seenAt: now}
		w.hold(reader, nil)
		lj.writes[held.Held.Part] = w
		if c.waits {
			next := fixture.Gen(3, job.Committed.Step+1)
			lj.candidate = replica.Candidate{Job: job.ID, Term: 9, N: 1, Position: replica.Position(next), Generation: next}
			lj.beyond, lj.waitsAt = job.Position, now.Add(-time.Hour)
		}
		read := w.counting(func(uint64) {})(reader.ReadChunk, true)
		n := c.read
		if n < 0 {
			n = len(reader.Manifest().Chunks)
		}
		for i := range n {
			if _, err := read(i, nil); err != nil {
				t.Fatal(err)
			}
		}
		d.lookAtWrites(lj, now)
		d.lookAtWrites(lj, now.Add(c.passed))
		if got := lr.arena.Readers(slot(0)) > 0; got != c.holds {
			t.Errorf("%s: the slot is held: %v", what, got)
		}
		_, err = read(0, nil)
		if (err == nil) != c.holds {
			t.Errorf("%s: a further read: %v", what, err)
		}
		reports := fixture.Only[control.ShardReport](d.says())
		if failed := len(reports) == 1 && strings.Contains(reports[0].Failed, "no byte was written for 2s while the commit of step 6 waited"); failed != c.failing || !failed && len(reports) != 0 {
			t.Errorf("%s: reported %+v", what, reports)
		}
		if hung := len(d.hung) == 1; hung != c.failing {
			t.Errorf("%s: %d writes count as hung", what, len(d.hung))
		}
		w.close()
		for _, r := range d.releases() {
			d.handle(r)
		}
		if lr.arena.Readers(slot(0)) != 0 {
			t.Errorf("%s: held at the end", what)
		}
	}
}

// releases takes what was posted to the host.
func (d *rig) releases() (events []Event) {
	for {
		select {
		case ev := <-d.in:
			events = append(events, ev)
		default:
			return events
		}
	}
}

// Of a write that moves and holds the slot which the candidate lacks the leader hears, once a second; of one that holds nobody up it does not.
func TestAWriteThatHoldsACommitUpIsReported(t *testing.T) {
	for what, c := range map[string]struct {
		other replica.SlotState // of the arena's other slot
		holds replica.Step      // if that is sealed: what it holds
		late  bool
	}{
		"no place is left":      {replica.SlotSealed, 5, true},
		"a place is free":       {replica.SlotFree, 0, false},
		"it is being captured":  {replica.SlotCopying, 0, false},
		"the candidate is here": {replica.SlotSealed, 6, false},
	} {
		d := newRig(t)
		job := fixture.Job()
		lj := d.put(job)
		lr := d.attach(lj, 0)
		d.seal(lr.arena, slot(0), fixture.Gen(3, 4), 1)
		reader, err := d.reader(lj, lj.parts()[0])
		if err != nil {
			t.Fatal(err)
		}
		for i := 1; i < int(lr.arena.Header().Slots); i++ {
			if c.other == replica.SlotSealed {
				d.seal(lr.arena, slot(i), fixture.Gen(3, c.holds), 1)
			} else {
				d.setState(lr.arena, slot(i), c.other)
			}
		}
		lj.job = fixture.Changed(job, func(j *replica.Job) { j.Writer = &replica.DurableWrite{Generation: fixture.Gen(3, 4)} })
		now := time.Now()
		w := &shardWrite{generation: fixture.Gen(3, 4), seenAt: now}
		w.hold(reader, nil)
		lj.writes[replica.OfGroup(0)] = w
		next := fixture.Gen(3, 6)
		lj.candidate = replica.Candidate{Job: job.ID, Term: 9, N: 1, Position: replica.Position(next), Generation: next}
		lj.beyond, lj.waitsAt = job.Position, now.Add(-3*time.Second)
		var want []control.ShardReport
		for i := range 3 {
			w.moved.Add(1 << 20)
			at := now.Add(time.Duration(i) * lateEvery / 2)
			d.lookAtWrites(lj, at)
			if c.late && i != 1 {
				want = append(want, control.ShardReport{Job: job.ID, Generation: w.generation, Part: replica.OfGroup(0), Written: uint64(i+1) << 20, LateMS: uint64(3000 + 500*i)})
			}
		}
		if got := fixture.Only[control.ShardReport](d.says()); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: reported %+v, want %+v", what, got, want)
		}
		w.close()
	}
}

// While a write that was given up has not returned no other is begun on the node: it would keep a slot from a commit as the first one did.
func TestNoWriteIsBegunBesideOneThatHangs(t *testing.T) {
	d := newRig(t)
	s, err := checkpoint.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d.Host.store = s
	job := fixture.Job()
	lj := d.put(job)
	lr := d.attach(lj, 0)
	d.seal(lr.arena, slot(0), job.Committed, 1)
	hung := &shardWrite{generation: fixture.Gen(3, 2)}
	d.hung.add(hung, time.Now().Add(-12*time.Second))
	write := func(g replica.Generation) {
		lj.job = fixture.Changed(lj.job, func(j *replica.Job) {
			j.Writer = &replica.DurableWrite{Generation: g, Shards: []replica.Shard{{Part: replica.OfGroup(0), Node: "n1", Root: lj.parts()[0].Held.Root}}}
		})
		d.durable(lj)
	}
	write(job.Committed)
	reports := fixture.Only[control.ShardReport](d.says())
	if want := "the write of generation (3,2) was given up 12s ago and has not returned: see what ails the file system of durable_dir"; len(reports) != 1 || reports[0].Failed != want || lr.arena.Readers(slot(0)) != 0 {
		t.Fatalf("reported %+v, %d readers", reports, lr.arena.Readers(slot(0)))
	}
	d.handle(shardReturned{hung, shardWritten{Job: job.ID, Generation: hung.generation, Failed: "too late"}})
	if reports := fixture.Only[control.ShardReport](d.says()); len(reports) != 0 {
		t.Errorf("of what was given up the leader is told %+v", reports)
	}
	lj.writes.endBut(replica.Generation{})
	write(job.Committed)
	if lr.arena.Readers(slot(0)) != 1 {
		t.Error("no write is begun once it has returned")
	}
}
