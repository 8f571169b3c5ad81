package endpoint

import (
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// narrow is a path to an address that carries packets of at most some bytes and drops larger ones without a word, as a tunnel does. It returns
// where the path begins, and counts what it dropped.
func narrow(t *testing.T, to string, mtu, headers int) (addr string, dropped *atomic.Int64) {
	t.Helper()
	near, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	target, err := net.ResolveUDPAddr("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	far, err := net.DialUDP("udp", nil, target)
	if err != nil {
		t.Fatal(err)
	}
	dropped = &atomic.Int64{}
	var from atomic.Pointer[net.UDPAddr]
	var tasks sync.WaitGroup
	tasks.Go(func() {
		b := make([]byte, 65536)
		for {
			n, who, err := near.ReadFromUDP(b)
			if err != nil {
				return
			}
			if from.Store(who); n+headers > mtu {
				dropped.Add(1)
			} else if _, err := far.Write(b[:n]); err != nil {
				return
			}
		}
	})
	tasks.Go(func() {
		b := make([]byte, 65536)
		for {
			n, err := far.Read(b)
			if err != nil {
				return
			}
			if n+headers > mtu {
				dropped.Add(1)
			} else if _, err := near.WriteToUDP(b[:n], from.Load()); err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		near.Close()
		far.Close()
		tasks.Wait()
	})
	return near.LocalAddr().String(), dropped
}

// TestNarrowPath: a tunnel of 1,280 bytes, the least that IPv6 allows, carries connections and messages of many packets, both ways.
func TestNarrowPath(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	b := c.start("b", "127.0.0.1:0", allClasses(echo))
	a := c.start("a", "127.0.0.1:0", nil)
	const ipv6AndUDP = 48
	addr, dropped := narrow(t, b.Addr().String(), 1280, ipv6AndUDP)
	conn, err := a.Dial(ctx, addr, "b", Control)
	if err != nil {
		t.Fatalf("no connection (%d packets were too long): %v", dropped.Load(), err)
	}
	text := strings.Repeat("x", 200_000)
	if got, err := ask(ctx, conn, text); err != nil || !strings.HasSuffix(got, text) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
	if dropped.Load() == 0 {
		t.Error("the path dropped nothing: larger packets were never tried, or it is no narrow one")
	}
}
