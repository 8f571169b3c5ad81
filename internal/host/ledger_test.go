package host

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

var epoch3 = kvScopeKey{fixture.JobID, 3}

// restarts kills the daemon and the leader. The ranks' processes live, and come back on sessions of their own.
func (m *meeting) restarts(guests ...*guest) {
	m.t.Helper()
	job := m.lj.job
	m.restart()
	m.views(control.View{Index: 20, Term: m.term, Era: 1, Nodes: m.nodes, Jobs: []*replica.Job{job}})
	m.lj = m.jobs[job.ID]
	m.elect()
	for _, g := range guests {
		again := m.guest(g.rank)
		g.peer, g.end = again.peer, again.end
	}
	m.serve()
}

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
	slow := &slowVault{m.keeper, make(chan string, 8), make(chan struct{}, 8)}
	m.keptBy(slow)
	a := m.guest(0)
	a.ask(wire.MKVSet, wire.KV{Key: "k", Value: []byte("v"), Once: 1})
	m.carry()
	if key := came(t, "the keeper's call", slow.called); key != epoch3.file() {
		t.Errorf("%s is parked, want %s", key, epoch3.file())
	}
	if len(m.kvs) != 1 {
		t.Fatalf("answered before the keeper has it: %s", a.hears())
	}
	a.ask(wire.MKVSet, wire.KV{Key: "k", Value: []byte("v"), Once: 1}) // it asks again meanwhile
	m.carry()
	slow.let <- struct{}{}
	m.serve()
	if got := a.hears(); got != "ok 0" || len(m.kvs) != 0 || len(m.asking) != 0 {
		t.Errorf("told %s; %d requests are pending, %d processes wait", got, len(m.kvs), len(m.asking))
	}
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "l"}) // at once
	a.end.quiet(a.peer)
}

// Without memory for the record, or without a keeper, the ranks are answered as before there were records.
func TestNoMemoryForTheLedger(t *testing.T) {
	m := newMeeting(t)
	a := m.guest(0)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "k"})
	f := m.kept[epoch3].file
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
	m := newMeeting(t)
	a := m.guest(0)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "k"})
	if !m.parked()[epoch3.file()] {
		t.Fatalf("the keeper has %v", m.parked())
	}
	m.restart()
	if len(m.kept) != 1 {
		t.Fatalf("kept %v", m.kept)
	}
	m.views(control.View{Index: 20, Term: 9, Era: 1, Nodes: m.nodes, Jobs: []*replica.Job{fixture.Closed(m.lj.job)}})
	if len(m.kept) != 0 || m.parked()[epoch3.file()] {
		t.Errorf("of a closed epoch: kept %v, the keeper has %v", m.kept, m.parked())
	}
	other := newMeeting(t)
	a = other.guest(0)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "k"})
	other.restart()
	other.views(control.View{Index: 20, Term: 9, Era: 1, Nodes: other.nodes})
	if len(other.kept) != 0 || other.parked()[epoch3.file()] {
		t.Errorf("of a job that ended: kept %v, the keeper has %v", other.kept, other.parked())
	}
}

// A key that is set again and again does not fill the memory; what comes while the file is written anew is not lost.
func TestLedgerFileIsWrittenAnew(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "first", Value: []byte("1")})
	b.tells("total 0 2", wire.MKVAdd, wire.KV{Key: "n", Value: addend(2)})
	first := m.kept[epoch3].file
	big := bytes.Repeat([]byte{7}, wire.MaxValueBytes)
	for !first.rewriting {
		a.tells("ok 0", wire.MKVSet, wire.KV{Key: "again", Value: big})
	}
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "meanwhile", Value: []byte("m")})
	m.until("the fresh file", func() bool { return m.kept[epoch3].file != first && m.kept[epoch3].file.parked })
	if f := m.kept[epoch3].file; f.size > 2*wire.MaxValueBytes || first.size < ledgerSlack {
		t.Errorf("a file of %d bytes became one of %d", first.size, f.size)
	}
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "after"})
	m.restarts(a, b)
	b.tells("value 0 1", wire.MKVGet, wire.KV{Key: "first"})
	b.tells("value 0 m", wire.MKVGet, wire.KV{Key: "meanwhile"})
	b.tells("value 0 "+string(big), wire.MKVGet, wire.KV{Key: "again"})
	a.tells("ok 0", wire.MKVCheck, wire.KV{Key: "after"})
	b.tells("total 0 3", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
}

// Its epoch may close while the file is written anew.
func TestLedgerOfAnEpochThatClosesMeanwhile(t *testing.T) {
	m := newMeeting(t)
	a := m.guest(0)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "k"})
	m.rewrite(epoch3, m.kept[epoch3])
	ev := came(t, "the fresh file", m.in)
	m.lj.job = fixture.Closed(m.lj.job)
	m.fence(m.lj)
	m.handle(ev)
	if _, err := ev.(ledgerRewritten).fresh.Stat(); err == nil || len(m.kept) != 0 || m.parked()[epoch3.file()] {
		t.Errorf("the fresh file is open (%v), kept %v, the keeper has %v", err, m.kept, m.parked())
	}
}

// A torn record ends what is taken back; the next one is written over it. What is no ledger at all is given up.
func TestTornLedger(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "whole", Value: []byte("v")})
	f := m.kept[epoch3].file
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
		err = m.keeper.Put(ledgerPrefix+"garbage", garbage)
	}
	if err == nil { // a good one under another's key
		err = m.keeper.Put(ledgerPrefix+"other", f.File)
	}
	if err != nil {
		t.Fatal(err)
	}
	garbage.Close()
	m.restarts(a, b)
	back := m.kept[epoch3].file
	if info, err := back.Stat(); err != nil || back.size != whole || info.Size() != whole {
		t.Errorf("%d bytes of %d are taken back, of a file of %v: %v", back.size, whole, info.Size(), err)
	}
	for _, name := range []string{"garbage", "other"} {
		if m.parked()[ledgerPrefix+name] || !strings.Contains(m.log.String(), ledgerPrefix+name) {
			t.Errorf("%s stays with the keeper, or the log does not name it", name)
		}
	}
	b.tells("value 0 v", wire.MKVGet, wire.KV{Key: "whole"})
	a.tells(fmt.Sprint("ok ", wire.CodeAgain), wire.MKVCheck, wire.KV{Key: "torn"})
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "torn", Value: []byte("w")})
	m.restarts(a, b)
	b.tells("value 0 w", wire.MKVGet, wire.KV{Key: "torn"})
}

// replayed is a host that was given the records of a file.
func replayed(t testing.TB, f *ledgerFile) (*Host, error) {
	t.Helper()
	m := &Host{kept: map[kvScopeKey]*ledger{}}
	return m, f.replay(func(s kvScopeKey, e control.KVEntry) error { m.restoreKV(s, e); return nil })
}

// lives lists what is kept, in one order.
func lives(m *Host) map[kvScopeKey][]string {
	all := map[kvScopeKey][]string{}
	for s, l := range m.kept {
		for _, k := range l.settled() {
			all[s] = append(all[s], fmt.Sprintf("%+v", k.entry()))
		}
		slices.Sort(all[s])
	}
	return all
}

// FuzzLedger: whatever a file's records say, nothing panics, they are taken up to the first wrong one, and what lives of them written anew,
// once or twice, is the same ledger.
func FuzzLedger(f *testing.F) {
	set := control.KVEntry{Op: control.KVSet, Key: "k", Value: []byte("v"), Rank: 0, Nonce: 9, Once: 1, Seq: 6<<32 | 41}
	add := control.KVEntry{Op: control.KVAdd, Key: "n", Delta: 5, Rank: 1, Nonce: 9, Once: 1, Seq: 6<<32 | 40, Total: 6}
	barrier := control.KVEntry{Op: control.KVBarrier, Key: "up", Members: 2, Rank: 1}
	later := set
	later.Seq++
	body := func(entries ...control.KVEntry) []byte {
		return fixture.Body(f, control.KindKept, control.KVKept{Job: fixture.JobID, Epoch: 3, Entries: entries})
	}
	f.Add(body(set), body(later), []byte(nil))
	f.Add(body(later), body(set), body(add))
	f.Add(body(add), body(barrier), []byte("torn"))
	f.Add(body(set, add), body(control.KVEntry{Op: control.KVGet, Key: "k", Seq: 1}), []byte{0})
	f.Fuzz(func(t *testing.T, one, two, tail []byte) {
		file := memfd(t)
		records := append(append(fixture.Sealed(control.KindKept, one), fixture.Sealed(control.KindKept, two)...), tail...)
		if _, err := file.WriteAt(records, 0); err != nil {
			t.Fatal(err)
		}
		m, err := replayed(t, file)
		if (err == nil) != (file.size == int64(len(records))) {
			t.Fatalf("%d bytes of %d are good: %v", file.size, len(records), err)
		}
		if err := file.Truncate(file.size); err != nil {
			t.Fatal(err)
		}
		if again, err := replayed(t, file); err != nil || !reflect.DeepEqual(lives(again), lives(m)) {
			t.Fatalf("read again it is %v, was %v: %v", lives(again), lives(m), err)
		}
		for s, l := range m.kept {
			fresh := memfd(t)
			for range 2 {
				for _, k := range l.settled() {
					if err := fresh.append(s, k.entry()); err != nil {
						t.Fatal(err)
					}
				}
				if again, err := replayed(t, fresh); err != nil || !reflect.DeepEqual(lives(again)[s], lives(m)[s]) {
					t.Fatalf("written anew it is %v, was %v: %v", lives(again)[s], lives(m)[s], err)
				}
			}
		}
	})
}

func memfd(t testing.TB) *ledgerFile {
	t.Helper()
	f, err := newLedgerFile(epoch3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// BenchmarkLedgerAppend is what a settled contribution costs more than before it was recorded.
func BenchmarkLedgerAppend(b *testing.B) {
	for _, size := range []int{0, 256, wire.MaxValueBytes} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			f := memfd(b)
			e := control.KVEntry{Op: control.KVBarrier, Key: "step 281", Members: 2, Rank: 1, Nonce: 1 << 60}
			if size > 0 {
				e = control.KVEntry{Op: control.KVSet, Key: "address", Value: make([]byte, size), Rank: 1, Nonce: 1 << 60, Once: 1, Seq: 6<<32 | 41}
			}
			for b.Loop() {
				if f.size > 2*ledgerSlack {
					f.size = 0
				}
				if err := f.append(epoch3, e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
