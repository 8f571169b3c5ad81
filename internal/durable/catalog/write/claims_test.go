package write

import (
	"errors"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// held reads claims as "a2! a3 b4! ?5": fleet, epoch, whether it took the run; ? cannot be read.
func held(text string) (list []find.Holding) {
	for f := range strings.FieldsSeq(text) {
		var h find.Holding
		h.Epoch = replica.Epoch(f[1] - '0')
		if f[0] == '?' {
			h.Err = format.ErrCorrupt
		} else {
			h.Said = &format.Claim{Epoch: h.Epoch, Cluster: durabletest.Cluster, Fleet: f[:1], Takes: strings.HasSuffix(f, "!")}
		}
		list = append(list, h)
	}
	return list
}

// TestMay: the fleet that took a run last owns it, whatever others claim.
func TestMay(t *testing.T) {
	for _, row := range []struct {
		claims, fleet string
		want          string
	}{
		{"", "a1", "takes"},
		{"a1!", "a1", "commits"},
		{"a1!", "a2", "claims"},
		{"a1! a2", "a2", "commits"},
		{"a1! a2", "a1", "commits"}, // a generation that was written before its epoch closed
		{"a1!", "b1", "fenced"},
		{"a1! a3", "b2", "fenced"},
		{"a1!", "b2", "takes"}, // it could not when it resumed
		{"a1! b2!", "b2", "commits"},
		{"a1! b2!", "a1", "fenced"},
		{"a1! b2!", "a2", "fenced"},
		{"a1! b2!", "a3", "fenced"},
		{"a1! b2! a3", "b2", "commits"}, // it was put while b took the run
		{"a1! b2! a3", "b3", "commits"}, // a can commit nothing in it
		{"a1! b2! a3", "a3", "fenced"},
		{"a1! b2! a3", "b4", "claims"},
		{"a1! b2! a3!", "b2", "fenced"}, // a resumed it
		{"a1! b2! a3!", "a3", "commits"},
		{"a1! ?2", "a1", "unknown"},
		{"a1! ?2", "b2", "unknown"}, // it may be b's own
		{"a1! ?2", "b3", "takes"},
		{"a1! ?2", "a3", "unknown"},
		{"a1! ?2 b3!", "a1", "fenced"},
		{"a1! b2! ?3", "a1", "fenced"},
		{"a1! b2! ?3", "a3", "unknown"}, // a may have resumed it
		{"a1! b2! ?3", "b2", "unknown"},
		{"a2", "a2", "commits"}, // the claim that took the run is gone
		{"a2", "a3", "claims"},
		{"a2", "b2", "fenced"},
		{"?1 a2", "a2", "commits"},
		{"?1 a2", "b2", "fenced"},
		{"?1", "b2", "takes"},
		{"?1", "b1", "unknown"},
		{"a1! ?2 b3!", "b3", "commits"},
		{"?1", "a1", "unknown"},
		{"a1! b2! c2!", "a1", "fenced"}, // the store has no conditions
		{"a1! b2! c2!", "b2", "fenced"},
		{"a1! b2! c2!", "c2", "fenced"},
		{"a1! b2! c2!", "b3", "fenced"},
		{"a1! b2! c2! d3!", "d3", "commits"},
		{"a1! b2! c2! b3!", "b3", "commits"},
		{"a1! b2! ?2", "b2", "unknown"},
		{"a1! b2! a2", "b2", "commits"}, // a sees b's when it lists
		{"a1! b2! a2", "a2", "fenced"},
	} {
		f := held(row.fleet)[0].Said
		takes, err := may(held(row.claims), Fleet{f.Cluster, f.Fleet, f.Epoch})
		got := "commits"
		switch {
		case errors.Is(err, ErrFenced):
			got = "fenced"
		case errors.Is(err, find.ErrNone) && takes:
			got = "takes"
		case errors.Is(err, find.ErrNone):
			got = "claims"
		case err != nil:
			got = "unknown"
		}
		if got != row.want {
			t.Errorf("%q, %s: %s (%v), want %s", row.claims, row.fleet, got, err, row.want)
		}
	}
}
