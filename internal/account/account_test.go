package account

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/config"
)

func TestCheck(t *testing.T) {
	may := config.PerUser{Jobs: 4, Ranks: 100, Rendezvous: 1 << 20}
	for name, tc := range map[string]struct {
		has, more Use
		refused   string // what the text must have, by "|"
	}{
		"the last job":                 {Use{Jobs: 3, Ranks: 60}, Use{Jobs: 1, Ranks: 40}, ""},
		"one job too many":             {Use{Jobs: 4}, Use{Jobs: 1, Ranks: 1}, "user 1003 has 4 jobs|1 more|may have 4|per_user.jobs|replicad job end"},
		"one rank too many":            {Use{Jobs: 1, Ranks: 60}, Use{Jobs: 1, Ranks: 41}, "has 60 ranks|41 more|may have 100|per_user.ranks|smaller world"},
		"a world beyond all":           {Use{}, Use{Jobs: 1, Ranks: 1 << 20}, "1048576 more|may have 100"},
		"one byte too many":            {Use{Rendezvous: 1 << 20}, Use{Rendezvous: 1}, "has 1048576 bytes|may have 1048576|per_user.rendezvous"},
		"less of what is over already": {Use{Jobs: 9, Rendezvous: 2 << 20}, Use{Ranks: 1, Rendezvous: -5}, ""},
	} {
		err := Check(1003, tc.has, tc.more, may)
		if (err == nil) != (tc.refused == "") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for part := range strings.SplitSeq(tc.refused, "|") {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q lacks %q", name, err, part)
			}
		}
	}
}
