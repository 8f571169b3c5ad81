package plan

import (
	"fmt"
	"strings"

	"github.com/replicad/replicad/replica"
)

// Listed is how many ranks a text names one by one; of more it names ranges, and at most so many of these.
const Listed = 16

// RankList is ranks in rising order, for people: thousands of them too.
type RankList []replica.Rank

func (l RankList) String() string {
	if len(l) <= Listed {
		return fmt.Sprint([]replica.Rank(l))
	}
	var spans []string
	for i := 0; i < len(l); {
		last := i
		for last+1 < len(l) && l[last+1] == l[last]+1 {
			last++
		}
		if len(spans) == Listed {
			spans = append(spans, "...")
			break
		}
		span := fmt.Sprint(l[i])
		if last > i {
			span += fmt.Sprintf("-%d", l[last])
		}
		spans, i = append(spans, span), last+1
	}
	return fmt.Sprintf("[%s] (%d of them)", strings.Join(spans, " "), len(l))
}
