package recovery

import (
	"reflect"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// TestAClosingReplacesTheOneBefore: whatever a leader knew of one recovery, the next closed epoch has it begin with nothing.
func TestAClosingReplacesTheOneBefore(t *testing.T) {
	g := replica.Generation{Epoch: 1, Step: 5}
	job := func(closed replica.Epoch) JobChanged {
		return JobChanged{Job: &replica.Job{ID: replica.JobID{1}, Epoch: closed, ClosedEpoch: closed, LastIndex: uint64(closed), Phase: replica.Closed, Lineage: replica.Lineage{{Epoch: 1}}}}
	}
	l := NewLeader(replica.JobID{1}, DefaultTiming())
	l.Learn(0, job(1))
	full := closing{epoch: 1, capture: capturing{asked: true, gen: g, at: 1}, mirrored: g, durable: []plan.DurableGen{{Generation: g}}, scanned: true, unread: "no mount",
		scanNext: time.Hour, loaded: loading{epoch: 1, at: 1}, lacking: map[lack]replica.Rank{{node: "a"}: 1}, asked: map[lack]asked{{node: "a"}: {node: "b"}},
		meets: meets{{rank: 1}: {since: 1}}}
	for v, i := reflect.ValueOf(full), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("the test leaves %s empty", v.Type().Field(i).Name)
		}
	}
	l.closing = full
	if l.Learn(0, job(1)); !reflect.DeepEqual(l.closing, full) {
		t.Errorf("the same closed epoch again has left %+v", l.closing)
	}
	if l.Learn(0, job(2)); !reflect.DeepEqual(l.closing, newClosing(2)) {
		t.Errorf("the next closed epoch has left %+v", l.closing)
	}
}
