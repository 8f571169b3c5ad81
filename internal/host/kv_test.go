package host

import (
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
)

// What a rank asked of the rendezvous used to be kept, and sent again to each new leader, after its session was over.
func TestRequestsEndWithTheirSession(t *testing.T) {
	d := newRig(t)
	gone, _ := d.session(0)
	stays, _ := d.session(1)
	d.kvs[1], d.kvs[2] = &kvPending{peer: gone, op: control.KVGet, by: caller{job: fixture.JobID}}, &kvPending{peer: stays, op: control.KVGet, by: caller{job: fixture.JobID}}
	d.peerGone(gone)
	if d.kvs[1] != nil || d.kvs[2] == nil {
		t.Errorf("kept %v: want the request of the session that stays alone", d.kvs)
	}
}
