package find

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// TestAbandoned: what a later epoch left aside comes behind its ancestors.
func TestAbandoned(t *testing.T) {
	r := Run{}
	line := replica.Lineage{{Epoch: 1}, {Epoch: 2, Start: 50}}
	com := func(e replica.Epoch, s replica.Step, l replica.Lineage) *format.Commit {
		return &format.Commit{Generation: replica.Generation{Epoch: e, Step: s}, Position: replica.Position{Epoch: e, Step: s}, Lineage: l}
	}
	list := inOrder(r, []*format.Commit{com(1, 50, line[:1]), com(1, 90, line[:1]), com(2, 60, line), com(1, 20, line[:1])})
	var got []string
	for _, f := range list {
		got = append(got, fmt.Sprint(f.Generation, f.Abandoned))
	}
	if want := []string{"(2,60) false", "(1,50) false", "(1,20) false", "(1,90) true"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
}
