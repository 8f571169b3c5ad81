package leader

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

var askToResume = control.CreateRequest{Name: "job", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Resume: true}

// rotten turns a bit of an object's last byte over.
func rotten(t *testing.T, dir, pattern string) {
	t.Helper()
	name := lies(t, dir, pattern)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// plannable is what recovery is told of the durable tier of a job that was opened from a.
func (c *chair) plannable(a adopt) []plan.DurableGen {
	c.t.Helper()
	job := &replica.Job{ID: a.command.ID, Name: "job", Lineage: a.command.Lineage, Condemned: a.command.Condemned, Durable: a.command.Durable}
	found, err := c.durableFound(c.t.Context(), job)
	if err != nil {
		c.t.Fatal(err)
	}
	return found
}

// readBack reads a generation whole, as the leader does soon after it was written: what it finds is marked.
func (c *chair) readBack(g replica.Generation) {
	c.t.Helper()
	found, _, err := c.disk.Find(c.t.Context(), "job", fixture.JobID)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range found {
		if f.Generation == g {
			_ = c.disk.ReadBack(c.t.Context(), f, tier.How{}) // the mark says it
		}
	}
}

// A newest generation that is damaged, which nobody has seen, is passed over before the job is opened, whose epochs begin behind it, and recovery is told what to say.
func TestResumePassesOverWhatIsDamaged(t *testing.T) {
	c := newChair(t)
	dir := c.shelf()
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(3, 6))
	rotten(t, dir, "step-00000006.e3/group-0.w1.safetensors")
	a := c.adoptable(t.Context(), nil, askToResume)
	if a.refused != "" || a.command.Durable != fixture.Gen(1, 4) || a.command.Epoch != 3 {
		t.Fatalf("adopts %v in epoch %d, refused: %q", a.command.Durable, a.command.Epoch, a.refused)
	}
	if _, err := c.disk.Holds(t.Context(), "job", fixture.JobID, fixture.Gen(3, 6)); err == nil {
		t.Error("the damaged one is durable, by its mark")
	}
	bad, good := 0, 0
	says := regexp.MustCompile(`^step 4 of file://` + regexp.QuoteMeta(dir) + `/job \(\d+ s old, \d+ KiB\)$`) // a busy machine takes more than a second to come here
	for _, g := range c.plannable(a) {
		switch {
		case g.Bad == "group-0.w1.safetensors, chunk 2: digest differs" && g.Generation == fixture.Gen(3, 6):
			bad++
		case g.Bad == "" && g.Generation == fixture.Gen(1, 4) && says.MatchString(g.Says):
			good++
		default:
			t.Errorf("recovery is told %+v", g)
		}
	}
	if bad != 1 || good != 1 {
		t.Errorf("%d bad and %d good ones", bad, good)
	}
}

// counted is a tier that counts what is read whole.
type counted struct {
	*tier.Tier
	mu    sync.Mutex
	reads map[string]int
	hold  chan struct{} // not nil: a reading waits for it
}

func (s *counted) ReadBack(ctx context.Context, f tier.Found, how tier.How) error {
	s.mu.Lock()
	s.reads[filepath.Base(f.Where())]++
	s.mu.Unlock()
	if s.hold != nil {
		<-s.hold
	}
	return s.Tier.ReadBack(ctx, f, how)
}

// Each byte leaves the store once for a resume from what was read back: for the rank that loads it. The leader reads nothing whole, at whatever age of what
// it knows. What nobody has read, or somebody has written to since, is read once before a process is started.
func TestAResumeReadsNothingTwice(t *testing.T) {
	c := newChair(t)
	dir := c.shelf()
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 6))
	shelf := &counted{Tier: c.disk, reads: map[string]int{}}
	c.store = shelf
	for i, want := range []int{1, 1, 2} { // the first time, and where a file was touched
		a := c.adoptable(t.Context(), nil, askToResume)
		c.plannable(a)
		c.pass(time.Hour)
		if c.plannable(a); a.command.Durable != fixture.Gen(1, 6) || shelf.reads["step-00000006.e1"] != want || shelf.reads["step-00000004.e1"] != 0 {
			t.Errorf("adopts %v, read %v, want %d reads of the newest", a.command.Durable, shelf.reads, want)
		}
		if soon := time.Now().Add(time.Hour); i == 1 {
			if err := os.Chtimes(lies(t, dir, "step-00000006.e1/group-0.w1.safetensors"), soon, soon); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A generation that nobody has read, and that is not read within adoptPatience, is gone on from as it is where one behind it was read back: the launcher hears that it
// waits, and then what is not known. Where none behind it was, the launcher waits until it is read.
func TestALargeUnreadGenerationIsNotWaitedFor(t *testing.T) {
	for _, behind := range []bool{true, false} {
		bubble.Test(t, func(t *testing.T) {
			c := newChair(t)
			c.on(memory.New(), fixture.Cluster)
			defer c.disk.Close()
			c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
			if behind {
				c.readBack(fixture.Gen(1, 4))
			}
			c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 6))
			shelf := &counted{Tier: c.disk, reads: map[string]int{}, hold: make(chan struct{})}
			c.store = shelf
			n := c.node("n2", 22)
			over := make(chan adopt, 1)
			began := time.Now()
			go func() { over <- c.adoptable(t.Context(), n, askToResume) }()
			if !behind {
				time.Sleep(time.Hour)
				close(shelf.hold)
			}
			a := <-over
			took := time.Since(began)
			if a.refused != "" || a.command.Durable != fixture.Gen(1, 6) || behind && took != adoptPatience || !behind && took != time.Hour {
				t.Errorf("behind it a trusted one %v: adopts %v after %v, refused: %q", behind, a.command.Durable, took, a.refused)
			}
			if warned := strings.Contains(strings.Join(a.news, ""), "nobody has read step 6 back since it was written"); warned != behind {
				t.Errorf("behind it a trusted one %v: launchers are told %q", behind, a.news)
			}
			said := fixture.Only[control.CreateReply](told(t, n))
			if len(said) < int(took/readingSaid)-1 || !said[0].Waits || !strings.Contains(said[0].Text, "step 6 is read before a process is started") || said[1].Text != "" {
				t.Errorf("behind it a trusted one %v: after %v the launcher has heard %d times: %+v", behind, took, len(said), said[:min(2, len(said))])
			}
			if behind {
				close(shelf.hold)
			}
			c.work.Wait()
		})
	}
}

// Where the last run of a name has damage alone, an older run does not pass for it.
func TestALostRunIsNotPassedOver(t *testing.T) {
	c := newChair(t)
	dir := c.shelf()
	c.writes("job", fixture.Cluster, replica.JobID{0x0a}, fixture.Gen(1, 9000))
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
	if err := os.Remove(lies(t, dir, "step-00000004.e1/group-0.w1.safetensors")); err != nil {
		t.Fatal(err)
	}
	a := c.adoptable(t.Context(), nil, askToResume)
	for _, want := range []string{"no durable generation of its last run, ", "step 4: group-0.w1.safetensors: is missing", "move that directory elsewhere", "step 9000"} {
		if !strings.Contains(a.refused, want) {
			t.Errorf("adopts %v; %q does not say %q", a.command.Durable, a.refused, want)
		}
	}
}

// A launcher does not wait for a reading that takes long: the job is opened from what is read, and the search before the plan waits for the
// same reading.
func TestALongReadingIsJoined(t *testing.T) {
	c := newChair(t)
	dir := c.shelf()
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 6))
	rotten(t, dir, "step-00000006.e1/group-0.w1.safetensors")
	c.readBack(fixture.Gen(1, 6))
	rotten(t, dir, "step-00000006.e1/group-0.w1.safetensors") // it is as it was
	shelf := &counted{Tier: c.disk, reads: map[string]int{}, hold: make(chan struct{})}
	c.store = shelf
	found, skipped, err := c.disk.Find(t.Context(), "job", fixture.JobID)
	if err != nil || len(found) != 0 {
		t.Fatal(found, err)
	}
	over, end := context.WithCancel(t.Context())
	end()
	all := func(tier.Found) bool { return true }
	for range 2 {
		if s := c.search(t.Context(), over, found, skipped, all); s.good == nil || len(s.found) != 1 {
			t.Errorf("a search that nobody waits for comes to %+v", s)
		}
	}
	close(shelf.hold)
	c.work.Wait()
	if shelf.reads["step-00000006.e1"] != 1 {
		t.Errorf("two searches have read %v", shelf.reads)
	}
	if s := c.search(t.Context(), t.Context(), found, skipped, all); s.good == nil {
		t.Errorf("a search that waits comes to %+v", s)
	}
}

// Where nothing can be used the launcher is refused before a process is started, with each file that is wrong; and once somebody has
// brought a file back, it is not.
func TestNothingUsableIsRefusedByName(t *testing.T) {
	c := newChair(t)
	dir := c.shelf()
	for _, step := range []replica.Step{4, 6, 8} {
		c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, step))
	}
	rotten(t, dir, "step-00000004.e1/group-0.w1.safetensors")
	rotten(t, dir, "step-00000006.e1/node-n1.w1.safetensors")
	if err := os.Remove(lies(t, dir, "step-00000008.e1/node-n1.w1.safetensors")); err != nil {
		t.Fatal(err)
	}
	c.readBack(fixture.Gen(1, 4))
	c.readBack(fixture.Gen(1, 6))
	for range 2 { // by the marks, which are not believed alone
		a := c.adoptable(t.Context(), nil, askToResume)
		for _, want := range []string{"no durable generation in file://" + dir + "/job can be used: step 8: ", "step 8: node-n1.w1.safetensors: is missing", "; step 6: node-n1.w1.safetensors, chunk 0: digest differs; step 4: group-0.w1.safetensors, chunk 2: digest differs. Bring back"} {
			if !strings.Contains(a.refused, want) {
				t.Errorf("refused: %q does not say %q", a.refused, want)
			}
		}
	}
	rotten(t, dir, "step-00000004.e1/group-0.w1.safetensors") // it is as it was
	if a := c.adoptable(t.Context(), nil, askToResume); a.refused != "" || a.command.Durable != fixture.Gen(1, 4) {
		t.Errorf("adopts %v, refused: %q", a.command.Durable, a.refused)
	}
	if _, err := c.disk.Holds(t.Context(), "job", fixture.JobID, fixture.Gen(1, 4)); err != nil {
		t.Errorf("its mark says still: %v", err)
	}
}

// What people are told of a generation.
func TestSays(t *testing.T) {
	now := time.UnixMilli(1e12)
	f := tier.Found{Commit: tier.Said{Job: "lm", Position: replica.Position{Epoch: 1, Step: 2180}, At: 1e12 - 125_000, Bytes: 35 << 20}}
	if got := says("file:///b", f, now); got != "step 2180 of file:///b/lm (2 min old, 35 MiB)" {
		t.Errorf("says %q", got)
	}
	f.At = 1e12 + 5000 // by a clock that is ahead
	if got := says("file:///b/", f, now); got != "step 2180 of file:///b/lm (35 MiB)" {
		t.Errorf("says %q", got)
	}
	for d, want := range map[time.Duration]string{5 * time.Second: "5 s", 90 * time.Second: "1 min", 30 * time.Hour: "30 h", 50 * time.Hour: "2 days"} {
		if got := ageText(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0 KiB", 1: "1 KiB", 3 << 20: "3 MiB", 40 << 30: "40 GiB"} {
		if got := sizeText(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
}
