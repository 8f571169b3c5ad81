package control

import (
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// What is remembered of failures is bounded.
func TestNoLinksAreBounded(t *testing.T) {
	var l NoLinks
	now := time.Now()
	for i := range 10 * maxNoLinks {
		l.Add(replica.Holder{Node: "n", Incarnation: replica.NodeIncarnation(i + 1)}, "no", now)
	}
	if n := len(l.Now(now)); n != maxNoLinks {
		t.Errorf("%d are kept, want %d", n, maxNoLinks)
	}
	later := now.Add(2 * NoLinkKept)
	l.Add(replica.Holder{Node: "m"}, "no", later)
	if list := l.Now(later); len(list) != 1 || list[0].Node != "m" {
		t.Errorf("later %+v are kept", list)
	}
}
