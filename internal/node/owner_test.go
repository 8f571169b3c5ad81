package node

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// A job is its owner's, root's and the daemon's; to any other user it is refused with the owner's number.
func TestJobIsItsOwners(t *testing.T) {
	job := fixture.Job()
	job.Owner = 61001
	for uid, mine := range map[int]bool{61001: true, 0: true, os.Geteuid(): true, 61002: false} {
		text := foreign(job, uid)
		if (text == "") != mine || !mine && (!strings.Contains(text, "user 61001's") || !strings.Contains(text, "user 61002's")) {
			t.Errorf("user %d: %q", uid, text)
		}
	}
}

// A node makes no job and claims no rank without the job's token, as the leader itself knows it; another job's is none.
func TestLeaderAsksForTheJobsToken(t *testing.T) {
	c := newChair(t)
	c.token = func(job string) string { return "token of " + job }
	n2 := c.node("n2", 22)
	led := c.knows(fixture.Job())
	layout := replica.Layout{World: 1, Groups: []replica.GroupID{0}}
	claim := replica.Claim{Job: led.job.ID, Rank: 0, Holder: n2.node.Holder()}

	for _, token := range []string{"", "token of other"} {
		c.message(t.Context(), n2, control.CreateRequest{ID: 1, Name: "new", Layout: layout, Token: token})
		c.message(t.Context(), n2, control.ClaimRequest{ID: 2, Claim: claim, Token: token})
		replies := told(t, n2)
		create, claimed := only[control.CreateReply](replies), only[control.ClaimReply](replies)
		if len(create) != 1 || !strings.Contains(create[0].Refused, "job_secret") || len(claimed) != 1 || !strings.Contains(claimed[0].Refused, "job_secret") {
			t.Errorf("token %q: %+v", token, replies)
		}
		for _, cmd := range c.proposed() {
			switch cmd.(type) {
			case replica.CreateJob, replica.Claim:
				t.Errorf("token %q: proposed %+v", token, cmd)
			}
		}
	}
	c.message(t.Context(), n2, control.CreateRequest{ID: 3, Name: "new", Layout: layout, Owner: 61001, Token: "token of new"})
	c.message(t.Context(), n2, control.ClaimRequest{ID: 4, Claim: claim, Token: "token of " + led.job.Name})
	got := c.proposed()
	if !slices.ContainsFunc(got, func(cmd replica.Command) bool {
		v, ok := cmd.(replica.CreateJob)
		return ok && v.Name == "new" && v.Owner == 61001
	}) || !slices.Contains(got, replica.Command(claim)) {
		t.Errorf("with its tokens: proposed %+v", got)
	}
}
