package launchers

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// An epoch that was closed because ranks differ says which, and at what step.
func TestLauncherIsToldWhoDiffers(t *testing.T) {
	dispute := replica.Dispute{Group: 1, Generation: fixture.Gen(3, 6), Votes: []replica.Vote{{Rank: 0}, {Rank: 1, Root: replica.Digest{1}}, {Rank: 2}}, Suspects: []replica.Rank{1}}
	split := replica.Dispute{Generation: fixture.Gen(3, 6), Votes: dispute.Votes[:2], Suspects: []replica.Rank{0, 1}}
	old := replica.Dispute{Generation: fixture.Gen(1, 2), Votes: dispute.Votes[:2], Suspects: []replica.Rank{0, 1}}
	for want, disputed := range map[string][]replica.Dispute{
		"(ranks differ at step 6: rank 1 of group 1, and the others agree; the regions in which they do are named next)":           {old, dispute},
		"(ranks differ at step 6: ranks 0, 1 of group 0, and no root has a majority; the regions in which they do are named next)": {split},
		"(ranks differ)": {old},
	} {
		job := fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
			if j.Disputed = disputed; disputed[0].Generation.Epoch == 3 || len(disputed) > 1 {
				j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 1, Incarnation: 5}} // of the rank that is outvoted
			}
		})
		if text := lossText(job); !strings.HasPrefix(text, "epoch 3 is closed "+want) {
			t.Errorf("it says %q, want %q", text, want)
		}
	}
}

// Each launcher of a job that began with another run's generation says so as it comes, and says what the job goes on from. One that asks for another
// beginning is refused with both.
func TestLaunchersSayWhatTheirJobBeganWith(t *testing.T) {
	opening := fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.From, j.Phase, j.Committed, j.Lineage = origin(), replica.Opening, replica.Generation{}, nil
	})
	trains := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.From, j.Position.Step = origin(), 2200 })
	other := &wire.From{Origin: *origin()}
	other.Asked, other.Generation.Step = "s3://b/ck/lm@9", 9
	gone := &wire.From{Origin: replica.Origin{Asked: "s3://b/ck/lm"}, Failed: "no checkpoints are there"}
	for name, c := range map[string]struct {
		job   *replica.Job
		hello wire.RunHello
		kind  uint16
		says  []string
	}{
		"it opens":                    {opening, wire.RunHello{From: &wire.From{Origin: *origin()}}, wire.MRunNote, []string{"from: step 2180 of s3://b/ck/lm (world 8, now 2)"}},
		"without the flag":            {opening, wire.RunHello{}, wire.MRunNote, []string{"from: step 2180 of s3://b/ck/lm (world 8, now 2)"}},
		"it trains":                   {trains, wire.RunHello{From: &wire.From{Origin: *origin()}}, wire.MRunNote, []string{"began with step 2180 of s3://b/ck/lm, and goes on from its own state since (step 2200)"}},
		"the source is gone":          {trains, wire.RunHello{From: gone}, wire.MRunNote, []string{"began with step 2180"}},
		"another generation":          {trains, wire.RunHello{From: other}, wire.MRefused, []string{"began with step 2180 of s3://b/ck/lm (s3://b/ck/lm), not with s3://b/ck/lm@9", "job end job"}},
		"another, with --resume":      {trains, wire.RunHello{From: other, Flags: wire.RunResume}, wire.MRefused, []string{"not with s3://b/ck/lm@9"}},
		"of one that began otherwise": {fixture.Job(), wire.RunHello{From: other}, wire.MRefused, []string{"began with its program's own state, not with s3://b/ck/lm@9", "leave --from out"}},
	} {
		d := newRig(t)
		d.put(c.job)
		peer, end := d.session()
		c.hello.Job, c.hello.World, c.hello.Spare = "job", 2, true
		d.serve(&launcher{peer: peer, user: peer.UID(), hello: c.hello, starts: starts{}}, time.Now())
		h, body := end.Reads()
		v, err := wire.ParseRefused(body)
		if h.Type != c.kind || err != nil {
			t.Errorf("%s: it reads message %d (%v)", name, h.Type, err)
		}
		if c.kind == wire.MRunNote { // who only waits to be accepted has it by then
			if h, _ := end.Reads(); h.Type != wire.MRunOK {
				t.Errorf("%s: then it reads message %d", name, h.Type)
			}
		}
		for _, want := range c.says {
			if !strings.Contains(v.Text, want) {
				t.Errorf("%s: %q does not say %q", name, v.Text, want)
			}
		}
	}
	resumes := control.CreateRequest{From: &other.Origin, Resume: true}
	if text := resumes.OtherOrigin(fixture.Job()); text != "" {
		t.Errorf("--resume of a job that began by itself: %q", text)
	}
	if s := control.StatusOf(trains, nil); s.From == nil || s.From.Generation.Step != 2180 {
		t.Errorf("status says %+v", s.From)
	}
}

// Who began a job with --from hears, once, when the ranks have read what it began with.
func TestLaunchersHearThatTheirJobHasBegun(t *testing.T) {
	d := newRig(t)
	opening := fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.From, j.Phase, j.Committed, j.Lineage = origin(), replica.Opening, replica.Generation{}, nil
	})
	lj := d.put(opening)
	peer, end := d.session()
	l := &launcher{peer: peer, user: peer.UID(), hello: wire.RunHello{Job: "job", World: 2, Spare: true, From: &wire.From{Origin: *origin()}}, starts: starts{}}
	reads := func() (types []uint16) {
		h, _ := end.Reads()
		return append(types, h.Type)
	}
	d.serve(l, time.Now())
	if note, ok := reads(), reads(); note[0] != wire.MRunNote || ok[0] != wire.MRunOK {
		t.Fatalf("it reads %v, %v", note, ok)
	}
	lj.job = fixture.Changed(opening, func(j *replica.Job) { j.Phase, j.Committed = replica.Open, fixture.Gen(1, 2180) })
	for range 2 {
		d.serve(l, time.Now())
	}
	if begun := reads(); begun[0] != wire.MRunBegun {
		t.Fatalf("it reads %v", begun)
	}
	h := wire.RankHeader{Type: wire.MRunNote}
	peer.Send(h, wire.Refused{Text: "last"}.Append(nil)) //nolint:errcheck // a test's
	if last := reads(); last[0] != wire.MRunNote {
		t.Errorf("it hears it again: %v", last)
	}
}

// origin is a generation that jobs of tests begin with.
func origin() *replica.Origin {
	return &replica.Origin{Asked: "s3://b/ck/lm", URL: "s3://b/ck", Job: "lm", Run: replica.JobID{7}, Place: "lm/run/step", Generation: fixture.Gen(2, 2180), World: 8}
}

// What a process's exit status says: 78 ends the job for good where the process had the rank, else its launcher, and success is none where the rank has not left.
func TestExitStatusOfARank(t *testing.T) {
	for what, c := range map[string]struct {
		status int32
		left   bool
		held   bool
		end    string
		note   string
	}{
		"final":          {wire.StatusFinal, false, true, recovery.DoNotRequeue + "rank 0 on node n1 ended with status 78", ""},
		"not left":       {0, false, true, "", "rank 0: process 4711 ended with status 0 and has not left the job"},
		"left":           {0, true, true, "", ""},
		"failed":         {1, false, true, "", ""},
		"never attached": {0, false, false, "", ""},
	} {
		d := newRig(t)
		lj := d.put(fixture.Job())
		rank := lj.attach(0)
		rank.Left = c.left
		if c.held {
			rank.PID = 4711
		}
		peer, end := d.listener()
		d.Of(lj).ended(d.all[peer.ID()], wire.RunExited{Rank: 0, Status: c.status, PID: 4711}, time.Now())
		d.Of(lj).Note("that is all")
		if note := end.note(); c.note != "" && !strings.HasPrefix(note, c.note) || c.note == "" && note != "that is all" {
			t.Errorf("%s: notes %q, want %q", what, note, c.note)
		}
		ends := fixture.Only[control.EndRequest](d.says())
		if len(ends) > 1 || len(ends) == 1 != (c.end != "") || len(ends) == 1 && !strings.HasPrefix(ends[0].Reason, c.end) {
			t.Errorf("%s: ends the job with %+v, want %q", what, ends, c.end)
		}
	}
}

// What copies take is said before they take it, and one that does not fit with four slots is told that it would with two.
func TestMemoryIsSaidBeforeItIsTaken(t *testing.T) {
	g, err := replica.NewGeometry([]replica.Region{{Name: "weight", DType: replica.U8, Shape: []uint64{1100 << 20}, Bytes: 1100 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	spec := shm.Spec{Geometry: g, Slots: 4, ChunkBytes: 1 << 20}
	d := newRig(t)
	lj := d.put(fixture.Job())
	_, end := d.listener()
	d.Of(lj).Memory(shm.Spec{Geometry: fixture.Geometry(t, false), Slots: 4, ChunkBytes: 4096}) // too small to speak of
	d.Of(lj).Memory(spec)
	d.Of(lj).Memory(spec)
	d.Of(lj).Note("that is all")
	if text := end.note(); !regexp.MustCompile(`^a rank's copies take 440\d MiB of this node's memory: 4 slots of 1100 MiB, .*; with --slots 2 they take 220\d MiB$`).MatchString(text) {
		t.Errorf("says %q", text)
	}
	if text := end.note(); text != "that is all" {
		t.Errorf("says it again: %q", text)
	}
	all, err := spec.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		short shm.TooLittleMemory
		slots int
		fits  bool
	}{
		"two fit":                 {shm.TooLittleMemory{Need: all, Have: 3 << 30}, 4, true},
		"two fit, found out late": {shm.TooLittleMemory{Need: all - 2<<30, Have: 1 << 30}, 4, true},
		"two do not":              {shm.TooLittleMemory{Need: all, Have: 2 << 30}, 4, false},
		"there are two":           {shm.TooLittleMemory{Need: all, Have: 3 << 30}, 2, false},
	} {
		of := spec
		of.Slots = c.slots
		err := FewerSlots(of, fmt.Errorf("arena: %w", &c.short))
		if says := strings.Contains(err.Error(), "with two slots it needs 220"); says != c.fits || !errors.As(err, new(*shm.TooLittleMemory)) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A job comes out of a loss from the tier that ranks here needed, where any needed one, and the loss is over then, or with the job.
func TestAJobComesOutOfALoss(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		tier replica.Tier
		end  func(*replica.Job)
		want []string
	}{
		"ranks here had all": {replica.OwnRAM, nil, []string{"recovered: step 5 from own memory, 1 step lost, 2.0 s", "resumed: step 5 of disk; loaded in 1.5 s"}},
		"no rank is here":    {0, nil, []string{"recovered: step 5 from other nodes' memory, 1 step lost, 2.0 s", "resumed: step 5 of disk"}},
		"it ends":            {0, func(j *replica.Job) { j.Phase = replica.Ended }, nil},
		"it is stopped":      {0, func(j *replica.Job) { j.Stop = &replica.Stop{} }, nil},
	} {
		d := newRig(t)
		lj := d.put(fixture.Job())
		_, end := d.listener()
		d.tier = c.tier
		see := func(job *replica.Job, at time.Duration) {
			was := lj.job
			lj.job = job
			d.Of(lj).Follow(was, now.Add(at))
		}
		see(fixture.Closed(lj.job), 0)
		if end.note(); lj.book.outage == nil {
			t.Errorf("%s: no loss is seen", name)
		}
		see(fixture.Changed(lj.job, func(j *replica.Job) {
			j.Phase, j.Epoch = replica.Planned, 4
			j.Plan = &replica.Plan{Epoch: 4, Generation: fixture.Gen(3, 5), StepsLost: 1, Sources: []replica.Source{{Tier: replica.PeerRAM}}, Resumed: "step 5 of disk"}
		}), time.Second)
		end.quiet()
		if c.end == nil {
			c.end = func(j *replica.Job) { j.Phase, j.Position = replica.Open, replica.Position{Epoch: 4, Step: 5} }
		}
		see(fixture.Changed(lj.job, c.end), 2*time.Second)
		for _, want := range c.want {
			if text := end.note(); text != want {
				t.Errorf("%s: %q, want %q", name, text, want)
			}
		}
		if end.quiet(); lj.book.outage != nil {
			t.Errorf("%s: it is not over", name)
		}
	}
}
