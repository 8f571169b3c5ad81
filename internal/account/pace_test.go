package account

import (
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

const most = 1024 // a multiple of 64: shares leave nothing over

// loops has jobs of a user ask as often as they like, in turn, and counts what each may.
func loops(p *Pace, user uint32, jobs ...byte) (may map[byte]int, all int) {
	may = map[byte]int{}
	for range 2 * most {
		for _, j := range jobs {
			if p.May(user, replica.JobID{j}) {
				may[j]++
				all++
			}
		}
	}
	return may, all
}

func upTo(n int) (jobs []byte) {
	for j := range n {
		jobs = append(jobs, byte(j))
	}
	return jobs
}

// Each job had 1,024 requests in a tenth of a second: a user of 64 jobs had 64 times that.
func TestAUserHasAShareOfTheRequests(t *testing.T) {
	p, now := NewPace(most), time.Now()
	p.Tick(now)
	for spell := 1; spell <= 3; spell++ {
		may, all := loops(p, 1002, upTo(64)...)
		if all > most || spell > 1 && all < most-64 {
			t.Errorf("spell %d: 64 jobs of one user ask %d times, the user may %d times", spell, all, most)
		}
		for j, n := range may {
			if share := most / 64; spell > 1 && n != share {
				t.Errorf("spell %d: job %d asks %d times, its share is %d", spell, j, n, share)
			}
		}
		if _, all := loops(p, 1003, 0); all != most {
			t.Errorf("spell %d: the one job of another user asks %d times, it may %d times", spell, all, most)
		}
		p.Tick(now.Add(time.Duration(spell)*Spell - 1))
		if p.May(1003, replica.JobID{0}) {
			t.Errorf("spell %d has not ended, and a user that has asked as often as it may asks again", spell)
		}
		p.Tick(now.Add(time.Duration(spell) * Spell))
	}
	if got := p.Sent(); len(got) != 2 || got[1003] != most || got[1002] > most {
		t.Errorf("sent in the spell before: %v", got)
	}
	p.Tick(now.Add(4 * Spell))
	p.Tick(now.Add(5 * Spell))
	if len(p.users) != 0 {
		t.Errorf("of %d users who ask nothing something is kept", len(p.users))
	}
}

// A recovery asks while another job of its user loops: it has its half from the next spell on.
func TestAJobHasItsShareOfTheRequests(t *testing.T) {
	p, now := NewPace(most), time.Now()
	p.Tick(now)
	if may, _ := loops(p, 1002, 1, 2); may[1] != most/2 || may[2] != most/2 {
		t.Errorf("two jobs that begin at once: %v", may)
	}
	for range 2 { // in the spell behind it a job that has ended has its share still
		p.Tick(now.Add(Spell))
		now = now.Add(Spell)
		loops(p, 1002, 1)
	}
	if may, _ := loops(p, 1002, 2); len(may) != 0 {
		t.Errorf("the user has asked as often as it may, and another job asks %d times", may[2])
	}
	p.Tick(now.Add(Spell))
	loops(p, 1002, 1)
	if may, _ := loops(p, 1002, 2); may[2] != most/2 {
		t.Errorf("beside a job in a loop a recovery asks %d times", may[2])
	}
	// More jobs than requests: the user's limit holds, and somebody asks.
	few := NewPace(3)
	few.Tick(now)
	for range 2 {
		if _, all := loops(few, 1002, upTo(10)...); all != 3 {
			t.Errorf("ten jobs ask %d times, want 3", all)
		}
		now = now.Add(Spell)
		few.Tick(now)
	}
}

// A share was a limit: beside fifteen jobs that asked one question each a recovery of 700 ranks had 64 claims a spell.
func TestAShareIsNoLimit(t *testing.T) {
	p, now := NewPace(most), time.Now()
	p.Tick(now)
	others := upTo(16)[1:]
	for spell := 1; spell <= 3; spell++ {
		once := func() {
			for _, j := range others {
				if !p.May(1002, replica.JobID{j}) {
					t.Errorf("spell %d: job %d asks once, and has to wait", spell, j)
				}
			}
		}
		if spell < 2 { // in the first spell nobody knows of them yet
			once()
		}
		if may, _ := loops(p, 1002, 0); may[0] != most-len(others) {
			t.Errorf("spell %d: beside %d jobs that ask once a recovery asks %d times", spell, len(others), may[0])
		}
		if spell > 1 {
			once()
		}
		if at, waits := p.Next(); !waits || !at.Equal(now.Add(Spell)) {
			t.Errorf("spell %d: the next is due at %v, and a request waits for it: %v", spell, at, waits)
		}
		now = now.Add(Spell)
		p.Tick(now)
	}
	if _, waits := p.Next(); waits {
		t.Error("a request of a spell that is over waits for the next one still")
	}
	if may, _ := loops(p, 1002, 0); may[0] != most-len(others) {
		t.Errorf("in the spell behind them it asks %d times", may[0])
	}
	now = now.Add(Spell)
	p.Tick(now)
	if may, _ := loops(p, 1002, 0); may[0] != most {
		t.Errorf("alone it asks %d times", may[0])
	}
	// What shares leave over goes as well.
	odd := NewPace(1000)
	for spell := 1; spell <= 2; spell++ {
		now = now.Add(Spell)
		odd.Tick(now)
		may, all := loops(odd, 1002, upTo(64)...)
		if all != 1000 {
			t.Errorf("spell %d: 64 jobs that ask all the time ask %d times, want 1000", spell, all)
		}
		for j, n := range may {
			if spell > 1 && n < 1000/64 {
				t.Errorf("job %d asks %d times, its share is %d", j, n, 1000/64)
			}
		}
	}
}
