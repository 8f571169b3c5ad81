package desk

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
)

// A rolling restart used to lose what the ranks had contributed: one that was let through a barrier did not come again, and the one whose
// answer was lost waited for it for ever.
func TestContributionsOutliveTheDaemonAndTheLeader(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "addr", Value: []byte("here")})
	b.tells("total 0 3", wire.MKVAdd, wire.KV{Key: "n", Value: addend(3)})
	a.tells("total 0 5", wire.MKVAdd, wire.KV{Key: "n", Value: addend(2)})
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "mine", Value: []byte("a")})
	b.tells("value 0 b", wire.MKVCompareSet, wire.KV{Key: "mine", Value: []byte("ab"), Members: 1})
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "gone", Value: []byte("a")})
	b.tells("total 0 1", wire.MKVDelete, wire.KV{Key: "gone"})
	for range 3 {
		a.ask(wire.MBarrier, wire.KV{Key: "step 281", Members: 2})
		m.serve()
		b.tells("ok 0", wire.MBarrier, wire.KV{Key: "step 281", Members: 2})
		m.restarts(a, b) // a's answer is lost
		a.tells("ok 0", wire.MBarrier, wire.KV{Key: "step 281", Members: 2})
		b.tells("value 0 here", wire.MKVGet, wire.KV{Key: "addr"})
		b.tells("value 0 b", wire.MKVGet, wire.KV{Key: "mine"})
		a.tells(fmt.Sprint("ok ", wire.CodeAgain), wire.MKVCheck, wire.KV{Key: "gone"})
	}
	again := wire.KV{Key: "n", Value: addend(1), Once: 99}
	a.tells("total 0 6", wire.MKVAdd, again)
	m.restarts(a, b)
	a.tells("total 0 6", wire.MKVAdd, again) // its answer was lost, too
	b.tells("total 0 7", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
}

// A rank that heard its answer may go on: so nothing is answered before the keeper has the record.
func TestAnswersWaitForTheKeeper(t *testing.T) {
	m := newMeeting(t)
	a := m.guest(0)
	a.ask(wire.MKVSet, wire.KV{Key: "k", Value: []byte("v"), Once: 1})
	m.carry()
	if len(m.errands) != 1 || len(m.pending.all) != 1 {
		t.Fatalf("%d things are asked of the owner; answered before the keeper has it: %s", len(m.errands), a.hears())
	}
	a.ask(wire.MKVSet, wire.KV{Key: "k", Value: []byte("v"), Once: 1}) // it asks again meanwhile
	m.carry()
	a.quiet()
	m.runs()
	if got := a.hears(); got != "ok 0" || len(m.pending.all) != 0 || len(m.pending.newest) != 0 {
		t.Errorf("told %s; %d requests are pending, %d processes wait", got, len(m.pending.all), len(m.pending.newest))
	}
	if !m.parkedKeys()[epoch3.parkKey()] {
		t.Errorf("the keeper has %v", m.parkedKeys())
	}
	a.ask(wire.MKVSet, wire.KV{Key: "l"})
	m.carry() // and nothing of the owner: it is answered at once
	if got := a.hears(); got != "ok 0" || len(m.errands) != 0 {
		t.Errorf("the second answer is %s, and %d things are asked of the owner", got, len(m.errands))
	}
	a.quiet()
}

// Without memory for the record, or without a keeper, the ranks are answered as before there were records.
func TestNoMemoryForTheLedger(t *testing.T) {
	m := newMeeting(t)
	a := m.guest(0)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "k"})
	f := m.ledgers[epoch3].file
	writable := f.File
	readonly, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer readonly.Close()
	f.File = readonly
	for i := range 10 {
		a.tells("ok 0", wire.MKVSet, wire.KV{Key: fmt.Sprint(i)})
	}
	f.File = writable
	warned := 0
	for line := range strings.Lines(m.log.String()) {
		if strings.Contains(line, `"what":"rendezvous"`) && strings.Contains(line, `"level":"warn"`) {
			warned++
		}
	}
	if warned != 1 {
		t.Errorf("warned %d times of 10 records that could not be written:\n%s", warned, m.log)
	}
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "l"})
	m.restarts(a)
	a.tells("ok 0", wire.MKVCheck, wire.KV{Key: "k"})
	a.tells("ok 0", wire.MKVCheck, wire.KV{Key: "l"})
}

// The file goes with its epoch, and with a job that ended while no daemon was here.
func TestLedgerFileGoesWithItsEpoch(t *testing.T) {
	for name, told := range map[string]func(*meeting){
		"closed": func(m *meeting) { m.knows(fixture.Closed(m.job)) },
		"ended":  func(m *meeting) { m.JobsTold() }, // of none
	} {
		m := newMeeting(t)
		a := m.guest(0)
		a.tells("ok 0", wire.MKVSet, wire.KV{Key: "k"})
		if !m.parkedKeys()[epoch3.parkKey()] {
			t.Fatalf("%s: the keeper has %v", name, m.parkedKeys())
		}
		m.restart()
		if len(m.ledgers) != 1 {
			t.Fatalf("%s: kept %v", name, m.ledgers)
		}
		told(m)
		if len(m.ledgers) != 0 || m.parkedKeys()[epoch3.parkKey()] {
			t.Errorf("%s: kept %v, the keeper has %v", name, m.ledgers, m.parkedKeys())
		}
	}
}

// A key that is set again and again does not fill the memory; what comes while the file is written anew is not lost.
func TestLedgerFileIsWrittenAnew(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "first", Value: []byte("1")})
	b.tells("total 0 2", wire.MKVAdd, wire.KV{Key: "n", Value: addend(2)})
	first := m.ledgers[epoch3].file
	big := bytes.Repeat([]byte{7}, wire.MaxValueBytes)
	for !first.rewriting {
		m.runs()
		a.ask(wire.MKVSet, wire.KV{Key: "again", Value: big})
		m.carry()
		if got := a.hears(); got != "ok 0" {
			t.Fatalf("told %s", got)
		}
	}
	a.ask(wire.MKVSet, wire.KV{Key: "meanwhile", Value: []byte("m")})
	m.carry()
	if got := a.hears(); got != "ok 0" || len(m.errands) != 1 {
		t.Errorf("while the file is written anew: %s, %d things are asked of the owner", got, len(m.errands))
	}
	written := m.errands[0]()
	m.errands = nil
	m.Handle(written)
	a.ask(wire.MKVSet, wire.KV{Key: "before it is parked", Value: []byte("p")})
	m.carry()
	a.quiet() // the keeper has the old file, and so not this
	m.runs()
	if got := a.hears(); got != "ok 0" {
		t.Errorf("once the keeper has the fresh file: %s", got)
	}
	f := m.ledgers[epoch3].file
	if f == first || !f.parked || f.size > 2*wire.MaxValueBytes || first.size < slack {
		t.Errorf("a file of %d bytes became one of %d", first.size, f.size)
	}
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "after"})
	m.restarts(a, b)
	b.tells("value 0 1", wire.MKVGet, wire.KV{Key: "first"})
	b.tells("value 0 m", wire.MKVGet, wire.KV{Key: "meanwhile"})
	b.tells("value 0 p", wire.MKVGet, wire.KV{Key: "before it is parked"})
	b.tells("value 0 "+string(big), wire.MKVGet, wire.KV{Key: "again"})
	a.tells("ok 0", wire.MKVCheck, wire.KV{Key: "after"})
	b.tells("total 0 3", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
}

// Its epoch may close while the file is written anew.
func TestLedgerOfAnEpochThatClosesMeanwhile(t *testing.T) {
	m := newMeeting(t)
	a := m.guest(0)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "k"})
	m.rewrite(epoch3, m.ledgers[epoch3])
	ev := m.errands[0]().(rewritten)
	m.errands = nil
	m.knows(fixture.Closed(m.job))
	m.Handle(ev)
	if _, err := ev.fresh.Stat(); err == nil || len(m.ledgers) != 0 || m.parkedKeys()[epoch3.parkKey()] {
		t.Errorf("the fresh file is open (%v), kept %v, the keeper has %v", err, m.ledgers, m.parkedKeys())
	}
}

// A torn record ends what is taken back; the next one is written over it. What is no ledger at all is given up.
func TestTornLedger(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "whole", Value: []byte("v")})
	f := m.ledgers[epoch3].file
	whole := f.size
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "torn", Value: []byte("v")})
	if err := f.Truncate(f.size - 1); err != nil {
		t.Fatal(err)
	}
	garbage, err := shm.NewMemfd("garbage")
	if err == nil {
		_, err = garbage.WriteString("this is no ledger")
	}
	if err == nil {
		err = m.keeper.Put(filePrefix+"garbage", garbage)
	}
	if err == nil { // a good one under another's key
		err = m.keeper.Put(filePrefix+"other", f.File)
	}
	if err != nil {
		t.Fatal(err)
	}
	garbage.Close()
	m.restarts(a, b)
	back := m.ledgers[epoch3].file
	if info, err := back.Stat(); err != nil || back.size != whole || info.Size() != whole {
		t.Errorf("%d bytes of %d are taken back, of a file of %v: %v", back.size, whole, info.Size(), err)
	}
	for _, name := range []string{"garbage", "other"} {
		if m.parkedKeys()[filePrefix+name] || !strings.Contains(m.log.String(), filePrefix+name) {
			t.Errorf("%s stays with the keeper, or the log does not name it", name)
		}
	}
	b.tells("value 0 v", wire.MKVGet, wire.KV{Key: "whole"})
	a.tells(fmt.Sprint("ok ", wire.CodeAgain), wire.MKVCheck, wire.KV{Key: "torn"})
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "torn", Value: []byte("w")})
	m.restarts(a, b)
	b.tells("value 0 w", wire.MKVGet, wire.KV{Key: "torn"})
}

// The file may be written anew before the keeper has the first one: who waits is answered once it has the fresh one.
func TestLedgerFileIsWrittenAnewBeforeItIsParked(t *testing.T) {
	m := newMeeting(t)
	a := m.guest(0)
	a.ask(wire.MKVSet, wire.KV{Key: "k", Value: []byte("v")})
	m.carry()
	m.rewrite(epoch3, m.ledgers[epoch3])
	park, write := m.errands[0], m.errands[1]
	m.errands = nil
	m.Handle(write())
	m.Handle(park())
	a.quiet()
	m.runs()
	if got := a.hears(); got != "ok 0" || !m.ledgers[epoch3].file.parked {
		t.Errorf("once the keeper has the fresh file: %s", got)
	}
}

// A job may be forgotten, and told again, while a file of its is written anew: the fresh one is of the old ledger.
func TestLedgerOfAJobThatIsToldAgain(t *testing.T) {
	m := newMeeting(t)
	a := m.guest(0)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "old"})
	m.rewrite(epoch3, m.ledgers[epoch3])
	ev := m.errands[0]().(rewritten)
	m.errands = nil
	delete(m.jobs, fixture.JobID)
	m.JobsTold()
	m.knows(m.job)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "new"})
	is := m.ledgers[epoch3].file
	m.Handle(ev)
	if _, err := ev.fresh.Stat(); err == nil || m.ledgers[epoch3].file != is {
		t.Errorf("the file of the old ledger is open (%v), or in the place of the new one", err)
	}
}
