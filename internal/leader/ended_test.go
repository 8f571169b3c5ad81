package leader

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// TestAJobThatEndedIsNotBegunAgainUnasked: an actor that is made again after its job was stopped would begin at step 0, and nobody has asked for that.
func TestAJobThatEndedIsNotBegunAgainUnasked(t *testing.T) {
	old := func(index uint64, step replica.Step, reason string) *replica.Job {
		return &replica.Job{ID: replica.JobID{byte(index)}, Name: "lm", Phase: replica.Ended, LastIndex: index, Position: replica.Position{Step: step}, EndReason: reason}
	}
	unasked := control.CreateRequest{Name: "lm", UnlessEnded: true}
	for name, c := range map[string]struct {
		ask  control.CreateRequest
		jobs []*replica.Job
		want string
	}{
		"stopped":         {unasked, []*replica.Job{old(1, 7, "ended by n1: enough")}, `create job "lm": it ended after step 7 (ended by n1: enough), and this would begin anew at step 0: go on with --resume (connect(resume=True)), ask for a new beginning (connect(resume=False)), or use another name`},
		"finished":        {unasked, []*replica.Job{old(1, 7, "finished at step 7, newest commit step 7")}, ""},
		"never committed": {unasked, []*replica.Job{old(1, 0, "ended by n1: enough")}, ""},
		"another name":    {control.CreateRequest{Name: "ml", UnlessEnded: true}, []*replica.Job{old(1, 7, "stopped")}, ""},
		"asked for":       {control.CreateRequest{Name: "lm"}, []*replica.Job{old(1, 7, "stopped")}, ""},
		"to be resumed":   {control.CreateRequest{Name: "lm", UnlessEnded: true, Resume: true}, []*replica.Job{old(1, 7, "stopped")}, ""},
		"finished since":  {unasked, []*replica.Job{old(2, 9, "finished"), old(1, 7, "stopped")}, ""},
		"stopped since":   {unasked, []*replica.Job{old(1, 9, "finished"), old(2, 7, "stopped")}, `create job "lm": it ended after step 7 (stopped), `},
	} {
		v := lock.View{Jobs: map[replica.JobID]*replica.Job{}}
		for _, j := range c.jobs {
			v.Jobs[j.ID] = j
		}
		if got := endedBefore(v, c.ask); !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestForgottenJobIsAdopted: a job that goes on from its durable tier after this log has forgotten it hands out no number that a
// zombie of it may carry.
func TestForgottenJobIsAdopted(t *testing.T) {
	old := lock.View{Index: 100, Era: 1, Jobs: map[replica.JobID]*replica.Job{}}
	for i := range 40 {
		id := replica.JobID{2, byte(i)}
		old.Jobs[id] = &replica.Job{ID: id, Name: "old", Phase: replica.Ended, Epoch: 7, LastIndex: uint64(i), NextIncarnation: 9000}
	}
	st := lock.FromView(old)
	id := replica.JobID{2, 0}
	if st.View().Jobs[id] != nil {
		t.Fatal("the oldest is still there")
	}
	out := st.Apply(101, replica.CreateJob{ID: id, Name: "old", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Epoch: 3, Lineage: replica.Lineage{{Epoch: 1}}, Durable: replica.Generation{Epoch: 1, Step: 5}})
	if out.Err != nil || out.Job.Epoch != 7 || out.Job.NextIncarnation != 9000 {
		t.Errorf("%v: epoch %d, incarnation %d", out.Err, out.Job.Epoch, out.Job.NextIncarnation)
	}
}
