package mover

import (
	"errors"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// TestTraffic: bytes add up by peer and transport, a rate is that of the newest exchange worth the name, and the newest failure stays.
func TestTraffic(t *testing.T) {
	var m Mover
	now := time.Unix(100, 0)
	lane := func(node replica.NodeName, over transfer.Transport, mib uint64, took time.Duration, err error) transfer.LaneReport {
		return transfer.LaneReport{Node: node, Over: over, Bytes: mib << 20, Took: took, Err: err}
	}
	m.traffic.fetched([]transfer.LaneReport{lane("n2", transfer.QUIC, 1, 4*time.Second, nil), lane("n2", transfer.TCP, 30, time.Second, nil), lane("n2", transfer.TCP, 20, 2*time.Second, nil),
		lane("n3", transfer.TCP, 0, 0, errors.New("connection refused"))}, now)
	m.traffic.pushed(way{"n2", transfer.TCP}, 8<<20, 4*time.Second, nil, now)
	m.traffic.pushed(way{"n2", transfer.TCP}, 100, time.Second, nil, now)
	m.traffic.pushed(way{"n2", transfer.TCP}, 1<<20, time.Second, errors.New("reset"), now.Add(time.Second))
	got := m.Traffic()
	want := []Traffic{
		{Peer: "n2", Over: transfer.TCP, Fetched: 50 << 20, Pushed: 8<<20 + 100, Rate: 2 << 20, Failures: 1, Why: "reset", WhyAt: now.Add(time.Second)},
		{Peer: "n2", Over: transfer.QUIC, Fetched: 1 << 20, Rate: 1 << 18},
		{Peer: "n3", Over: transfer.TCP, Failures: 1, Why: "connection refused", WhyAt: now},
	}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %+v\nwant %+v", got[i], want[i])
		}
	}
}
