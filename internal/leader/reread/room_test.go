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

	reading *Read
	until   time.Time
}

func newHouse() *house {
	began := time.Unix(1e9, 0)
	return &house{room: New(began, week), now: began, began: began, takes: time.Minute, disk: map[replica.Step]time.Time{}, read: map[replica.Step]time.Time{}}
}

func (h *house) say(format string, args ...any) {
	h.said = append(h.said, fmt.Sprintf("%v ", h.now.Sub(h.began).Round(time.Second))+fmt.Sprintf(format, args...))
}

// writes puts a generation on the disk.
func (h *house) writes(step replica.Step) {
	h.disk[step] = h.now
	h.room.Learn(h.now, Wrote{name})
}

// step carries out what the room wants.
func (h *house) step() {
	for {
		if h.reading != nil && !h.now.Before(h.until) {
			of := *h.reading
			h.reading = nil
			if !h.deaf {
				h.read[of.Generation.Step] = h.now
			}
			h.room.Learn(h.now, Ended{of.Lying, h.deaf})
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
				h.say("read %d", e.Generation.Step)
				h.reading, h.until = &e, h.now.Add(h.takes)
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
		if h.reading != nil && (!ok || h.until.Before(next)) {
			next, ok = h.until, true
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

// What was never read comes first, the newest of it; then what was read longest ago, when its week is over. One at a time.
func TestOrder(t *testing.T) {
	h := newHouse()
	h.disk[10], h.disk[20], h.disk[30] = h.now.Add(-3*time.Hour), h.now.Add(-2*time.Hour), h.now.Add(-time.Hour)
	h.disk[5], h.read[5] = h.now.Add(-400*time.Hour), h.now.Add(-week+time.Hour)
	h.disk[6], h.read[6] = h.now.Add(-400*time.Hour), h.now.Add(-week-time.Hour)
	h.pass(2 * time.Hour)
	h.check(t, "30s read 30", "1m30s read 20", "2m30s read 10", "3m30s read 6", "1h0m0s read 5")
	h.pass(week)
	h.check(t, "168h1m30s read 30", "168h2m30s read 20", "168h3m30s read 10", "168h4m30s read 6", "169h1m0s read 5")
}

// What was just written is read soon, and no sooner than its writer is done with it; what is removed is not read.
func TestWritten(t *testing.T) {
	h := newHouse()
	h.pass(time.Minute)
	for i := range 4 {
		h.writes(replica.Step(10 * (i + 1)))
		delete(h.disk, replica.Step(10*(i-1)))
		h.pass(5 * time.Minute)
	}
	h.check(t, "1m10s read 10", "6m10s read 20", "11m10s read 30", "16m10s read 40")
	delete(h.disk, 30)
	delete(h.disk, 40)
	h.pass(2 * week)
	h.check(t)
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
	h.check(t, "30s read 20")
	h.room.Learn(h.now, Busy{false})
	h.pass(time.Minute)
	h.check(t, "5m40s read 10")
	h.disk[30] = h.now
	h.room.Learn(h.now, Busy{true})
	h.room.Learn(h.now, Wrote{name})
	h.pass(time.Hour)
	h.check(t, "16m40s read 30")
}

// A disk that refuses is asked again, more and more rarely; others are read meanwhile.
func TestRefused(t *testing.T) {
	h := newHouse()
	h.disk[10], h.deaf = h.now, true
	h.pass(2 * time.Hour)
	h.check(t, "30s read 10", "11m30s read 10", "32m30s read 10", "1h13m30s read 10")
	h.pass(4 * week)
	if n := len(h.said); n < 6 || n > 14 {
		t.Errorf("in four weeks it is tried %d times", n)
	}
	h.said, h.deaf = nil, false
	h.pass(week + time.Hour)
	if len(h.said) == 0 || len(h.said) > 2 {
		t.Errorf("once it answers: %v", h.said)
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
	h.check(t, "10m30s read 10")
	h.gone = true
	h.pass(week)
	h.check(t, "168h11m30s read 10")
}

// A list that takes long is not begun again, and what falls due meanwhile is listed once it is over.
func TestListIsUnderWay(t *testing.T) {
	began := time.Unix(1e9, 0)
	r := New(began, week)
	at := began.Add(firstList)
	if out := r.Step(at); len(out) != 1 || out[0] != (List{}) {
		t.Fatalf("it wants %v", out)
	}
	r.Learn(at, Wrote{name})
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

// With no period, nothing is ever read.
func TestNever(t *testing.T) {
	r := New(time.Unix(1e9, 0), 0)
	r.Learn(time.Unix(1e9, 0), Wrote{name})
	if out := r.Step(time.Unix(2e9, 0)); len(out) != 0 {
		t.Errorf("it wants %v", out)
	}
	if at, ok := r.Next(); ok {
		t.Errorf("it wants to be asked at %v", at)
	}
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
			if at, ok := h.room.Next(); ok && !at.After(h.now) && h.reading == nil {
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
