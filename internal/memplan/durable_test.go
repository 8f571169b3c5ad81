package memplan

import (
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

func TestDurable(t *testing.T) {
	j := Job{Params: 1 << 30, Frozen: 1 << 29, DType: replica.BF16, Optimizer: "none", Moments: replica.F32, Own: 1 << 20, Shards: 4, Replicas: 2, RanksPerNode: 2, Copies: 2}
	d, err := NewDurable(j, Store{Rate: 1 << 28, Between: 24 * time.Hour, Grace: 2 * time.Second, Keep: 3})
	if err != nil {
		t.Fatal(err)
	}
	trained, once := j.shard()
	if d.World != 8 || d.Nodes != 4 || d.Bytes != 4*trained+8<<20 || d.Once != 8*once || once < 1<<28 || d.Kept != 3*d.Bytes+d.Once || d.Objects != 8 {
		t.Errorf("%+v; a shard has %d bytes, and %d once", d, trained, once)
	}
	// Each of four nodes writes one of the four shards, and may have to write those of both its ranks at a stop.
	if d.NodeBytes != trained+2<<20 || d.StopBytes != 2*trained+2<<20 || d.Write >= d.Stop || d.Stop < 2*time.Second || d.Fits {
		t.Errorf("%+v", d)
	}
	if d.Every.Seconds() != replica.DurableInterval(d.Write.Seconds(), 24*3600) {
		t.Errorf("every %v", d.Every)
	}
	if d, err = NewDurable(j, Store{Rate: 1 << 30, Between: 24 * time.Hour, Grace: 2 * time.Second, Keep: 1}); err != nil || !d.Fits {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err = NewDurable(j, Store{Rate: 1, Between: time.Hour, Grace: time.Hour, Keep: 1}); err != nil || d.Fits || d.Write <= 0 {
		t.Errorf("%+v, %v", d, err)
	}
}
