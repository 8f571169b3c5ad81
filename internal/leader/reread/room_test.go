package reread

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

const (
	week = 7 * 24 * time.Hour
	name = "lm"
)

// house is a leader around a room, and its durable directory, in a time of its own.
type house struct {
	room  *Room
	now   time.Time
	began time.Time
	takes time.Duration // a read
	disk  map[replica.Step]time.Time
	read  map[replica.Step]time.Time
	deaf  bool // the disk refuses
	gone  bool // it can't be listed
	said  []string

	reading map[bool]*Read // by whether nobody has read it before
	until   map[bool]time.Time
}

func newHouse() *house {
	began := time.Unix(1e9, 0)
	room := New(began, week)
	room.led[replica.JobID{}] = true // whose all is
	return &house{room: room, now: began, began: began, takes: time.Minute, disk: map[replica.Step]time.Time{}, read: map[replica.Step]time.Time{},
		reading: map[bool]*Read{}, until: map[bool]time.Time{}}
}

func (h *house) say(format string, args ...any) {
	h.said = append(h.said, fmt.Sprintf("%v ", h.now.Sub(h.began).Round(time.Second))+fmt.Sprintf(format, args...))
}

// writes puts a generation on the disk.
func (h *house) writes(step replica.Step) {
	h.disk[step] = h.now
	delete(h.read, step)
	h.room.Learn(h.now, Wrote{Lying{Name: name, Generation: replica.Generation{Epoch: 1, Step: step}}})
}

// step carries out what the room wants.
func (h *house) step() {
	for {
		for _, back := range ways {
			of := h.reading[back]
			if of == nil || h.now.Before(h.until[back]) {
				continue
			}
			h.reading[back] = nil
			if !h.deaf {
				h.read[of.Generation.Step] = h.now
			}
			h.room.Learn(h.now, Ended{*of, h.deaf})
		}
		did := h.room.Step(h.now)
		if len(did) == 0 {
			return
		}
		for _, e := range did {
			switch e := e.(type) {
			case List:
				h.list(e.Name)
			case Read:
				how := map[bool]string{true: "read %d back", false: "read %d again"}[e.Back]
				h.say(how, e.Generation.Step)
				if h.reading[e.Back] != nil {
					h.say("reads two at once")
				}
				h.reading[e.Back], h.until[e.Back] = &e, h.now.Add(h.takes)
			}
		}
	}
}

func (h *house) list(of string) {
	ev := Listed{Name: of, Failed: h.gone}
	for step, at := range h.disk {
		ev.All = append(ev.All, Lying{Name: name, Generation: replica.Generation{Epoch: 1, Step: step}, Written: at, Read: h.read[step]})
	}
	h.room.Learn(h.now, ev)
}

// pass lets time pass, at the room's own pace.
func (h *house) pass(d time.Duration) {
	end := h.now.Add(d)
	for {
		h.step()
		next, ok := h.room.Next()
		for _, back := range ways {
			if h.reading[back] != nil && (!ok || h.until[back].Before(next)) {
				next, ok = h.until[back], true
			}
		}
		if !ok || next.After(end) {
			h.now = end
			h.step()
			return
		}
		if next.After(h.now) {
			h.now = next
		}
	}
}

func (h *house) check(t *testing.T, want ...string) {
	t.Helper()
	if got := strings.Join(h.said, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("it says\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	h.said = nil
}

// What was never read is read back, the newest of it first; beside it what was read longest ago, when its week is over. One at a time of each.
func TestOrder(t *testing.T) {
	h := newHouse()
	h.disk[10], h.disk[20], h.disk[30] = h.now.Add(-3*time.Hour), h.now.Add(-2*time.Hour), h.now.Add(-time.Hour)
	h.disk[5], h.read[5] = h.now.Add(-400*time.Hour), h.now.Add(-week+time.Hour)
	h.disk[6], h.read[6] = h.now.Add(-400*time.Hour), h.now.Add(-week-time.Hour)
	h.pass(2 * time.Hour)
	h.check(t, "30s read 6 again", "30s read 30 back", "1m30s read 20 back", "2m30s read 10 back", "1h0m0s read 5 again")
	h.pass(week)
	h.check(t, "168h1m30s read 30 again", "168h2m30s read 6 again", "168h3m30s read 20 again", "168h4m30s read 10 again", "169h1m0s read 5 again")
}

// What was just written is read back at once, while a list is made too; what is removed is not read.
func TestWritten(t *testing.T) {
	h := newHouse()
	h.pass(time.Minute)
	for i := range 4 {
		h.writes(replica.Step(10 * (i + 1)))
		delete(h.disk, replica.Step(10*(i-1)))
		h.pass(5 * time.Minute)
	}
	h.check(t, "1m0s read 10 back", "6m0s read 20 back", "11m0s read 30 back", "16m0s read 40 back")
	delete(h.disk, 30)
	delete(h.disk, 40)
	h.pass(2 * week)
	h.check(t)
}

// Another leader has what a job has written listed at once, and reads back what the one before has not.
func TestAnotherLeader(t *testing.T) {
	h := newHouse()
	h.disk[10], h.disk[20] = h.now, h.now
	h.room.Learn(h.now, Leads{Name: name})
	h.pass(time.Second)
	h.check(t, "0s read 20 back")
	if got := h.room.Unread(replica.JobID{}); fmt.Sprint(got) != "[(1,10) (1,20)]" {
		t.Errorf("unread are %v", got)
	}
	h.pass(time.Minute - time.Second)
	h.check(t, "1m0s read 10 back")
	if got := h.room.Unread(replica.JobID{}); len(got) != 0 {
		t.Errorf("unread are %v", got)
	}
}

// A list that was begun before a read ended, or before something was written, says nothing of it.
func TestListOfBefore(t *testing.T) {
	began := time.Unix(1e9, 0)
	r := New(began, week)
	one, two := Lying{Name: name, Generation: replica.Generation{Epoch: 1, Step: 10}}, Lying{Name: name, Generation: replica.Generation{Epoch: 1, Step: 20}}
	r.Learn(began, Wrote{one})
	if out := r.Step(began); len(out) != 1 || out[0].(Read).Generation != one.Generation || !out[0].(Read).Back {
		t.Fatalf("it wants %v", out)
	}
	at := began.Add(firstList)
	if out := r.Step(at); len(out) != 1 || out[0] != (List{}) {
		t.Fatalf("it wants %v", out)
	}
	at = at.Add(time.Second)
	r.Learn(at, Ended{Read: Read{one, true}})
	r.Learn(at, Wrote{two})
	if out := r.Step(at); len(out) != 1 || out[0].(Read).Generation != two.Generation {
		t.Fatalf("it wants %v", out)
	}
	r.Learn(at, Listed{All: []Lying{one}})
	if out := r.Step(at); len(out) != 0 || len(r.Unread(replica.JobID{})) != 1 {
		t.Errorf("it wants %v; unread are %v", out, r.Unread(replica.JobID{}))
	}
}

// While a job recovers no read begins, for ten minutes: it may wait for its launchers for days. One that has begun goes on: it is held to its
// rate.
func TestBusy(t *testing.T) {
	h := newHouse()
	h.disk[10], h.disk[20] = h.now, h.now
	h.pass(40 * time.Second)
	h.room.Learn(h.now, Busy{true})
	h.pass(5 * time.Minute)
	h.room.Learn(h.now, Busy{true}) // another one recovers as well
	h.check(t, "30s read 20 back")
	h.room.Learn(h.now, Busy{false})
	h.pass(time.Minute)
	h.check(t, "5m40s read 10 back")
	h.room.Learn(h.now, Busy{true})
	h.writes(30)
	h.pass(time.Hour)
	h.check(t, "16m40s read 30 back")
}

// A disk that refuses is asked again, more and more rarely; others are read meanwhile, and the next write does not wait for what can't be read.
func TestRefused(t *testing.T) {
	h := newHouse()
	h.disk[10], h.deaf = h.now, true
	h.pass(4 * time.Hour)
	h.check(t, "30s read 10 back", "11m30s read 10 back", "32m30s read 10 back", "1h13m30s read 10 back", "2h14m30s read 10 back", "3h15m30s read 10 back")
	if got := h.room.Unread(replica.JobID{}); len(got) != 0 {
		t.Errorf("unread are %v", got)
	}
	h.deaf = false
	h.pass(2 * time.Hour)
	h.check(t, "4h16m30s read 10 back")
	h.deaf = true
	h.pass(4 * week)
	if n := len(h.said); n < 6 || n > 14 {
		t.Errorf("in four weeks it is tried %d times", n)
	}
}

// A directory that can't be listed is listed again, and what is known of it stands.
func TestUnlisted(t *testing.T) {
	h := newHouse()
	h.gone = true
	h.disk[10] = h.now
	h.pass(5 * time.Minute)
	h.check(t)
	h.gone = false
	h.pass(10 * time.Minute)
	h.check(t, "10m30s read 10 back")
	h.gone = true
	h.pass(week)
	h.check(t, "168h11m30s read 10 again")
}

// A list that takes long is not begun again, and what falls due meanwhile is listed once it is over.
func TestListIsUnderWay(t *testing.T) {
	began := time.Unix(1e9, 0)
	r := New(began, week)
	at := began.Add(firstList)
	if out := r.Step(at); len(out) != 1 || out[0] != (List{}) {
		t.Fatalf("it wants %v", out)
	}
	r.Learn(at, Leads{Name: name})
	at = at.Add(3 * listEvery)
	if out := r.Step(at); len(out) != 0 {
		t.Errorf("while a list is under way it wants %v", out)
	}
	if next, ok := r.Next(); ok {
		t.Errorf("it wants to be asked at %v", next)
	}
	r.Learn(at, Listed{})
	if out := r.Step(at); len(out) != 1 || out[0] != (List{}) {
		t.Errorf("once it is over it wants %v", out)
	}
}

// With no period, each is read back once.
func TestOnce(t *testing.T) {
	h := newHouse()
	h.room = New(h.now, 0)
	h.writes(10)
	h.pass(4 * week)
	h.check(t, "0s read 10 back")
}

// Whatever is written and removed: nothing is read twice within its period, never two at once, and nothing that lies there stays unread for
// longer than the period and the time that all the others take.
func TestAnyCourse(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 31))
		h := newHouse()
		for range 50 {
			switch rng.IntN(4) {
			case 0:
				h.writes(replica.Step(rng.IntN(1000)))
			case 1:
				for step := range h.disk {
					delete(h.disk, step)
					delete(h.read, step)
					break
				}
			case 2:
				h.room.Learn(h.now, Busy{true})
				h.pass(time.Duration(rng.IntN(60)) * time.Minute)
				h.room.Learn(h.now, Busy{false})
			}
			h.pass(time.Duration(rng.IntN(3000)) * time.Minute)
			if at, ok := h.room.Next(); ok && !at.After(h.now) && h.reading[true] == nil && h.reading[false] == nil {
				t.Fatalf("seed %d: it wants to be asked at %v, at %v", seed, at, h.now)
			}
		}
		h.pass(week + listEvery + time.Duration(len(h.disk)+2)*h.takes)
		for step := range h.disk {
			if ago := h.now.Sub(h.read[step]); ago > week+listEvery+time.Duration(len(h.disk)+2)*h.takes {
				t.Errorf("seed %d: step %d was read %v ago", seed, step, ago)
			}
		}
	}
}

// What another cluster or a former program left unread is read at the patrol's rate, in its turn: it keeps no job that is led from its next write.
func TestWhatOthersLeftUnread(t *testing.T) {
	began := time.Unix(1e9, 0)
	r := New(began, week)
	lm := Lying{Name: name, Job: replica.JobID{1}, Generation: replica.Generation{Epoch: 1, Step: 10}}
	others := Lying{Name: name, Job: replica.JobID{7}, Generation: replica.Generation{Epoch: 1, Step: 5}, Written: began.Add(-time.Hour)}
	at := began.Add(firstList)
	r.Step(at)
	r.Learn(at, Listed{All: []Lying{others}})
	if out := r.Step(at); len(out) != 1 || out[0] != (Read{others, false}) {
		t.Fatalf("it wants %+v", out)
	}
	r.Learn(at, Wrote{lm})
	if out := r.Step(at); len(out) != 1 || out[0].(Read).Generation != lm.Generation || !out[0].(Read).Back {
		t.Errorf("beside the other's it wants %+v", out)
	}
	r.Learn(at, Ended{Read: Read{lm, true}})
	if left := r.Unread(lm.Job); len(left) != 0 {
		t.Errorf("unread are %v", left)
	}
	off := New(began, 0) // the patrol is off
	off.Step(at)
	off.Learn(at, Listed{All: []Lying{others}})
	if out := off.Step(at); len(out) != 0 {
		t.Errorf("without a patrol it wants %+v", out)
	}
}

// What is unread of a job is not known before the first list of its name, or of all, has come or failed.
func TestListing(t *testing.T) {
	began := time.Unix(1e9, 0)
	for _, first := range []Listed{{Name: name}, {}, {Name: name, Failed: true}, {Failed: true}} {
		r := New(began, week)
		if r.Listing(name) {
			t.Error("of what nobody leads")
		}
		r.Learn(began, Leads{name, replica.JobID{1}})
		r.Step(began)
		if r.Learn(began, Listed{Name: "other"}); !r.Listing(name) {
			t.Error("after another's list")
		}
		if r.Learn(began, first); r.Listing(name) {
			t.Errorf("after %+v", first)
		}
		if next, ok := r.Next(); first.Failed && (!ok || next.After(began.Add(listAgain))) {
			t.Errorf("after %+v it wants to be asked at %v", first, next)
		}
	}
}

// A read that goes on from an earlier leadership holds its place: nothing is read back beside it, and its end is this one's.
func TestAReadThatGoesOn(t *testing.T) {
	began := time.Unix(1e9, 0)
	r := New(began, week)
	one := Lying{Name: name, Job: replica.JobID{1}, Generation: replica.Generation{Epoch: 1, Step: 10}, Written: began}
	r.Learn(began, Reads{Read{one, true}})
	r.Learn(began, Leads{name, one.Job})
	r.Step(began)
	r.Learn(began, Listed{Name: name, All: []Lying{one}})
	if out := r.Step(began); len(out) != 0 || len(r.Unread(one.Job)) != 1 {
		t.Errorf("it wants %+v; unread are %v", out, r.Unread(one.Job))
	}
	r.Learn(began, Ended{Read: Read{one, true}})
	if out := r.Step(began); len(out) != 0 || len(r.Unread(one.Job)) != 0 {
		t.Errorf("then it wants %+v; unread are %v", out, r.Unread(one.Job))
	}
}
