// Package account is what one user has of what all users share, and what it may have. It is pure: its owner counts from what it holds, so
// that no count drifts from what is there, and asks before it takes more.
package account

import (
	"fmt"

	"github.com/replicad/replicad/internal/config"
)

// Use is what a user has.
type Use struct {
	Jobs       int
	Ranks      int // of these jobs' worlds
	Rendezvous int // bytes
}

// Plus is what a user has of both.
func (u Use) Plus(v Use) Use {
	return Use{u.Jobs + v.Jobs, u.Ranks + v.Ranks, u.Rendezvous + v.Rendezvous}
}

// Check refuses more than a user may have, of what it asks for more of.
func Check(user uint32, has, more Use, may config.PerUser) error {
	for _, k := range []struct {
		has, more, may int
		what, key      string
		remedy         string
	}{
		{has.Jobs, more.Jobs, may.Jobs, "jobs", "jobs", "end one first (replicad job end)"},
		{has.Ranks, more.Ranks, may.Ranks, "ranks of jobs", "ranks", "end a job first (replicad job end), or ask for a smaller world"},
		{has.Rendezvous, more.Rendezvous, int(may.Rendezvous), "bytes at the rendezvous of its jobs", "rendezvous", "delete keys that are not needed, and pass large data another way"},
	} {
		if k.more > 0 && k.has+k.more > k.may {
			return fmt.Errorf("user %d has %d %s and asks for %d more, and may have %d (per_user.%s of the leader's configuration): %s", user, k.has, k.what, k.more, k.may, k.key, k.remedy)
		}
	}
	return nil
}

// Own is how many bytes of rendezvous a job of so many ranks has for itself, whatever its user has besides: enough for all of them to meet, so
// that a recovery goes on though the account is full. A rank that meets the others takes about 700 bytes: its key, and its wait at a barrier.
// Those of a gathering that one left wait at a second one too.
func Own(world int) int { return 256<<10 + 2048*world }
