package room

import (
	"os"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
)

// A job is its owner's, root's and the daemon's; to any other user it is refused with the owner's number.
func TestJobIsItsOwners(t *testing.T) {
	job := fixture.Job()
	job.Owner = 61001
	for uid, mine := range map[int]bool{61001: true, 0: true, os.Geteuid(): true, 61002: false} {
		text := Foreign(job, uid)
		if (text == "") != mine || !mine && (!strings.Contains(text, "user 61001's") || !strings.Contains(text, "user 61002's")) {
			t.Errorf("user %d: %q", uid, text)
		}
	}
}
