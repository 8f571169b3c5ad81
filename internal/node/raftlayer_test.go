package node

import (
	"net"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// TestRaftStreamsOfAVoterAreBounded: one voter's streams, as many as it may open, leave room for the others'.
func TestRaftStreamsOfAVoterAreBounded(t *testing.T) {
	l := newRaftLayer(nil, newPaths(time.Second), "127.0.0.1:1", nil)
	end, _ := net.Pipe()
	take := func(n replica.NodeName, want bool) net.Conn {
		t.Helper()
		c, ok := l.count(n, end)
		if ok != want {
			t.Fatalf("a stream of %s: %v, want %v", n, ok, want)
		}
		return c
	}
	var last net.Conn
	for range maxRaftStreams {
		last = take("a", true)
	}
	take("a", false)
	take("b", true)
	last.Close()
	last.Close() // raft closes some twice
	take("a", true)
	take("a", false)
}
