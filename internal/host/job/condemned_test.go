package job

import (
	"reflect"
	"testing"

	"github.com/replicad/replicad/replica"
)

func TestCondemned(t *testing.T) {
	hang := replica.Fault{Kind: replica.Hang, Rank: 1, Incarnation: 4}
	outvoted := replica.Fault{Kind: replica.Outvoted, Rank: 0, Incarnation: 3}
	job := &replica.Job{Faults: []replica.Fault{{Kind: replica.ProcessDead, Rank: 2, Incarnation: 5}, hang, {Kind: replica.NodeDead, Node: "n2"}, outvoted}}
	if got := condemned(job); !reflect.DeepEqual(got, []replica.Fault{hang, outvoted}) {
		t.Errorf("%+v", got)
	}
}
