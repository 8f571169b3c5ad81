package leader

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// What --resume does with what it finds under the job's name: only where nothing was ever finished may the job start afresh.
func TestResumeAdoptsOrRefuses(t *testing.T) {
	spoil := func(name string, change func(string) error) func(*testing.T, *chair, string) {
		return func(t *testing.T, c *chair, dir string) {
			c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
			if err := change(lies(t, dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	unfinished := func(t *testing.T, c *chair, _ string) {
		a := tier.Attempt{Name: "job", Job: fixture.JobID, Cluster: fixture.Cluster, Epoch: 1, Generation: fixture.Gen(1, 4), Number: 1}
		if _, _, _, err := c.objects(a); err != nil {
			t.Fatal(err)
		}
	}
	other, earlier := replica.ClusterID{0xc2}, replica.JobID{0x0a}
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, c *chair, dir string)
		adopt replica.Generation
		says  []string // of the refusal; neither adopted nor refused: afresh
	}{
		{"nothing there", func(*testing.T, *chair, string) {}, replica.Generation{}, nil},
		{"whole", func(_ *testing.T, c *chair, _ string) {
			c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
		}, fixture.Gen(1, 4), nil},
		{"never finished", unfinished, replica.Generation{}, nil},
		{"its commit deleted", spoil("commits/step-00000004.e1.json", os.Remove), replica.Generation{}, []string{"/job can be used: step 4: commits/step-00000004.e1.json: is missing", "--resume"}},
		{"never finished, beside a stray file", func(t *testing.T, c *chair, dir string) {
			unfinished(t, c, dir)
			if err := os.WriteFile(filepath.Join(dir, "job", "notes.txt"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, replica.Generation{}, nil},
		{"damaged", spoil("step-00000004.e1/group-0.w1.safetensors", os.Remove), replica.Generation{}, []string{"/job can be used: step 4: group-0.w1.safetensors: is missing", "--resume"}},
		{"unreadable", func(_ *testing.T, c *chair, _ string) {
			c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
			c.refused = "commits/step-00000004.e1.json"
		}, replica.Generation{}, []string{"the store refuses", "--resume"}},
		{"the newest damaged", func(t *testing.T, c *chair, dir string) {
			c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 3))
			spoil("step-00000004.e1/group-0.w1.safetensors", os.Remove)(t, c, dir)
		}, fixture.Gen(1, 3), nil},
		{"of another cluster", func(_ *testing.T, c *chair, _ string) { c.writes("job", other, fixture.JobID, fixture.Gen(1, 4)) }, fixture.Gen(1, 4), nil},
		{"the later of two jobs", func(t *testing.T, c *chair, dir string) {
			c.writes("job", fixture.Cluster, earlier, fixture.Gen(1, 9000))
			c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
			soon := time.Now().Add(time.Hour)
			if err := os.Chtimes(lies(t, dir, "commits/step-00009000.e1.json"), soon, soon); err != nil {
				t.Fatal(err)
			}
		}, fixture.Gen(1, 4), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newChair(t)
			tc.spoil(t, c, c.shelf())
			a := c.adoptable(t.Context(), nil, control.CreateRequest{Name: "job", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Resume: true})
			if a.command.Durable != tc.adopt || (a.refused != "") != (tc.says != nil) {
				t.Errorf("adopts %v, want %v; refused: %q", a.command.Durable, tc.adopt, a.refused)
			}
			for _, text := range tc.says {
				if !strings.Contains(a.refused, text) {
					t.Errorf("%q does not say %q", a.refused, text)
				}
			}
		})
	}
}

// A generation is its owner's: nobody else's job goes on from it, but root's, which leaves it to its owner.
func TestAdoptsForItsOwner(t *testing.T) {
	c := newChair(t)
	c.shelf()
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4)) // root's
	ask := control.CreateRequest{Name: "job", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Resume: true, Owner: 61002}
	if a := c.adoptable(t.Context(), nil, ask); !strings.Contains(a.refused, "is user 0's, and user 61002 asks") {
		t.Errorf("refused: %q", a.refused)
	}
	ask.Owner = 0
	if a := c.adoptable(t.Context(), nil, ask); a.refused != "" || a.request.Owner != 0 {
		t.Errorf("refused its owner: %q", a.refused)
	}
}

// Who takes another user's name takes nothing of theirs: each goes on from their own newest generation, and hears of the other's.
func TestAdoptsItsOwnBelowAnothersNewer(t *testing.T) {
	c := newChair(t)
	c.shelf()
	taken := replica.JobID{0x7a}
	for _, w := range []struct {
		id    replica.JobID
		owner uint32
		step  replica.Step
	}{{fixture.JobID, 61002, 4}, {taken, 61003, 6}} {
		a := tier.Attempt{Name: "job", Job: w.id, Owner: w.owner, Cluster: fixture.Cluster, Epoch: 1, Generation: fixture.Gen(1, w.step), Number: 1}
		said, roots, objects, err := c.objects(a)
		if said.Owner = w.owner; err == nil {
			err = c.disk.Commit(t.Context(), a, said, roots, objects)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		owner  uint32
		id     replica.JobID
		warned bool
	}{{61002, fixture.JobID, true}, {61003, taken, false}, {0, taken, false}} {
		ask := askToResume
		ask.Owner = tc.owner
		a := c.adoptable(t.Context(), nil, ask)
		if a.refused != "" || a.command.ID != tc.id {
			t.Errorf("user %d goes on from %v, refused: %q", tc.owner, a.command.ID, a.refused)
		}
		if news := strings.Join(a.news, ""); strings.Contains(news, "is user 61003's: it is passed over, and this job goes on from what user 61002 wrote") != tc.warned {
			t.Errorf("user %d is told %q", tc.owner, news)
		}
	}
	ask := askToResume
	ask.Owner = 61004
	if a := c.adoptable(t.Context(), nil, ask); !strings.Contains(a.refused, "is user 61003's, and user 61004 asks") {
		t.Errorf("refused: %q", a.refused)
	}
}

// A run of another cluster is taken over with a claim, its launchers are told so once it is theirs, and its owner stays.
func TestAdoptsFromAnotherCluster(t *testing.T) {
	c := newChair(t)
	c.shelf()
	other := replica.ClusterID{0xc2}
	c.writes("job", other, fixture.JobID, fixture.Gen(1, 4)) // root's
	ask := askToResume
	ask.Owner = 61002
	if a := c.adoptable(t.Context(), nil, ask); !strings.Contains(a.refused, "is user 0's, and user 61002 asks") {
		t.Errorf("refused: %q", a.refused)
	}
	a := c.adoptable(t.Context(), nil, askToResume)
	if a.refused != "" || a.command.ID != fixture.JobID || a.command.Epoch != 1 || a.command.Durable != fixture.Gen(1, 4) {
		t.Fatalf("adopts %+v, refused: %q", a.command, a.refused)
	}
	const want = "step 4, which the job goes on from, was written by cluster "
	if news := strings.Join(a.news, ""); !strings.HasPrefix(news, want+other.String()) || !strings.Contains(news, "this cluster's now ("+fixture.Cluster.String()) {
		t.Errorf("launchers are told %q", a.news)
	}
	late := tier.Attempt{Name: "job", Job: fixture.JobID, Cluster: other, Epoch: 1, Generation: fixture.Gen(1, 6), Number: 2}
	said, roots, objects, err := c.objects(late)
	if err == nil {
		err = c.disk.Commit(t.Context(), late, said, roots, objects)
	}
	if !errors.Is(err, tier.ErrFenced) {
		t.Errorf("the other cluster writes on with %v", err)
	}
}

// A new job begins with what --from names, unless --resume finds a state of its own. What can't be loaded begins none.
func TestBeginsWithAnotherRun(t *testing.T) {
	from := &replica.Origin{Asked: "s3://b/ck/lm@best", URL: "s3://b/ck", Job: "lm", Run: replica.JobID{7}, Place: "lm/run/step", Generation: fixture.Gen(2, 2180), World: 8}
	const failed = "s3://b/ck: no checkpoints of replicad's are there, nor in what lies above it"
	c := newChair(t)
	c.shelf()
	ask := askToResume
	ask.From = from
	a := c.adoptable(t.Context(), nil, ask)
	if a.refused != "" || a.command.From != from || strings.Join(a.news, "") != "" {
		t.Errorf("with nothing to resume it begins with %+v, says %q (refused: %q)", a.command.From, a.news, a.refused)
	}
	ask.FromFailed = failed
	if a = c.adoptable(t.Context(), nil, ask); a.refused != `begin job "job" with s3://b/ck/lm@best: `+failed {
		t.Errorf("with what is not there: refused %q", a.refused)
	}
	n := c.node("n2", 22)
	fresh := ask
	fresh.Resume, fresh.ID = false, 7
	c.create(t.Context(), n, fresh)
	if r := fixture.Only[control.CreateReply](told(t, n)); len(r) != 1 || r[0].ID != 7 || r[0].Retry || !strings.Contains(r[0].Refused, failed) {
		t.Errorf("answered by %+v", r)
	}
	wild := fresh
	wild.ID, wild.From = 9, &replica.Origin{Asked: "\x1b[2J"}
	c.create(t.Context(), n, wild)
	if r := fixture.Only[control.CreateReply](told(t, n)); len(r) != 1 || !strings.Contains(r[0].Refused, "that can be printed") {
		t.Errorf("answered by %+v", r)
	}
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
	a = c.adoptable(t.Context(), nil, ask)
	if a.refused != "" || a.command.Durable != fixture.Gen(1, 4) || a.command.From != nil || !strings.Contains(strings.Join(a.news, ""), "--from s3://b/ck/lm@best is not used") {
		t.Errorf("with a state of its own it goes on from %v, from %+v, says %q (refused: %q)", a.command.Durable, a.command.From, a.news, a.refused)
	}
	job := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Name = "job" })
	c.knows(job)
	fresh.Layout, fresh.ID = job.Layout, 8
	c.create(t.Context(), n, fresh)
	if r := fixture.Only[control.CreateReply](told(t, n)); len(r) != 1 || !strings.Contains(r[0].Refused, "began with its program's own state") {
		t.Errorf("of a job that runs: %+v", r)
	}
}

// The launchers of a job that goes on from a generation which lacks something are told so, in a note's length.
func TestAdoptsWhatLacksSomething(t *testing.T) {
	c := newChair(t)
	c.shelf()
	ask := control.CreateRequest{Name: "job", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Resume: true}
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
	if a := c.adoptable(t.Context(), nil, ask); strings.Join(a.news, "") != "" || a.refused != "" {
		t.Errorf("of one that lacks nothing: %q%s", a.news, a.refused)
	}
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 6), replica.Lacking{Rank: 0, Text: "model.teacher.0.weight"}, replica.Lacking{Rank: 2, More: 1, Text: "buffer"})
	const want = "warning: step 6, which the job goes on from, lacks model.teacher.0.weight (rank 0); buffer (rank 2 and 1 more): this is not the same run; session.noticed says what to do"
	if a := c.adoptable(t.Context(), nil, ask); strings.Join(a.news, "") != want || a.refused != "" {
		t.Errorf("launchers are told %q, want %q (refused: %q)", a.news, want, a.refused)
	}
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 8), replica.Lacking{Text: strings.Repeat("é", replica.MaxLacks/2)}, replica.Lacking{Rank: 1, Text: strings.Repeat("x", replica.MaxLacks)})
	a := c.adoptable(t.Context(), nil, ask)
	if news := strings.Join(a.news, ""); len(news) > wire.MaxRefusedText || !strings.HasSuffix(news, "says what to do") || !utf8.ValidString(news) {
		t.Errorf("%d bytes: %q", len(news), a.news)
	}
}

// The launchers of a job that goes on from a generation are told, in one line, which of their notes are other ones than it has.
func TestNotesThatDiffer(t *testing.T) {
	f := tier.Found{Commit: tier.Said{Position: replica.Position{Epoch: 1, Step: 6}, Notes: map[string]string{"lr": "0.1", "data": "v2", "seen": "by the program"}}}
	note := func(name, text string) replica.Remark {
		return replica.Remark{Kind: replica.Note, Name: name, Text: text}
	}
	for want, notes := range map[string][]replica.Remark{
		"": {note("data", "v2")},
		`notes differ from those of step 6, which the job goes on from: lr is "0.2", and was "0.1"; who is "ada", and was not noted`: {note("lr", "0.2"), note("data", "v2"), note("who", "ada")},
	} {
		if got := notesNews(f, notes); got != want {
			t.Errorf("%v: %q, want %q", notes, got, want)
		}
	}
}

// The launchers of a job that takes a run from a fleet which has committed nothing are told whose it was. Nobody is, where one has.
func TestTheFleetBeforeIsNamed(t *testing.T) {
	c := newChair(t)
	c.shelf()
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
	found, _, err := c.disk.Find(t.Context(), "job", fixture.JobID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.disk.Resume(t.Context(), found[0], fixture.Cluster, "n7-1f", 1); err != nil {
		t.Fatal(err)
	}
	a := c.adoptable(t.Context(), nil, askToResume)
	if a.refused != "" || a.command.Epoch != 2 || !strings.Contains(strings.Join(a.news, "; "), "warning: fleet n7-1f (cluster ") || !strings.Contains(strings.Join(a.news, "; "), "committed nothing since step 4") {
		t.Errorf("it opens behind epoch %d, launchers are told %q (refused: %q)", a.command.Epoch, a.news, a.refused)
	}
	if got := takenNews(found[0], tier.Claim{Epoch: 1, Fleet: "n8-2f"}); !strings.Contains(got, "fleet n8-2f") || !strings.Contains(got, "another fleet did so too") {
		t.Errorf("of one that was not alone: %q", got)
	}
	if a := c.adoptable(t.Context(), nil, askToResume); a.refused != "" || a.command.Epoch != 2 || strings.Join(a.news, "") != "" {
		t.Errorf("asked again it opens behind epoch %d, launchers are told %q (refused: %q)", a.command.Epoch, a.news, a.refused)
	}
}

// A launcher that says nothing of groups takes those of the generation that it resumes.
func TestAdoptsWithItsGroups(t *testing.T) {
	c := newChair(t)
	c.shelf()
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
	ask := control.CreateRequest{Name: "job", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{1}}, Resume: true}
	if a := c.adoptable(t.Context(), nil, ask); !strings.Contains(a.refused, "has 1 ranks in groups [0], not 1 in [1]") {
		t.Errorf("of other groups: %q", a.refused)
	}
	ask.AnyGroups = true
	if a := c.adoptable(t.Context(), nil, ask); a.refused != "" || !slices.Equal(a.request.Layout.Groups, []replica.GroupID{0}) {
		t.Errorf("of any groups: %v, refused: %q", a.request.Layout, a.refused)
	}
}

// A launcher whose job the log did not take, or did not say so, asks again: leadership has moved, say. It used to be refused, and `replicad run`
// ended with "outcome unknown".
func TestCreateIsTriedAgain(t *testing.T) {
	c := newChair(t) // of a log that does not lead
	n := c.node("n2", 22)
	c.create(t.Context(), n, control.CreateRequest{ID: 7, Name: "job", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}})
	c.handle(t.Context(), <-c.in)
	if r := fixture.Only[control.CreateReply](told(t, n)); len(r) != 1 || r[0].ID != 7 || !r[0].Retry {
		t.Errorf("answered by %+v, want to be asked again", r)
	}
}

// A run that was encrypted and goes on without is told of.
func TestWhatWasEncryptedIsWrittenPlain(t *testing.T) {
	var f tier.Found
	f.Position.Step = 30
	if got := plainNews(f, false); got != "" {
		t.Error(got)
	}
	f.Sealed = &format.Sealing{}
	if got := plainNews(f, true); got != "" {
		t.Error(got)
	}
	if got := plainNews(f, false); !strings.Contains(got, "step 30") || !strings.Contains(got, "no durable_recipients are set here") {
		t.Error(got)
	}
}
