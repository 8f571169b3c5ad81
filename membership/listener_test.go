package membership

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/replicad/replicad/replica"
)

// stranger connects to the gossip port from an address of its own, and says that so many bytes follow.
func stranger(t *testing.T, to *peer, from string, bytes int) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	c, err := d.DialContext(context.Background(), "tcp", to.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	label := to.cfg.Cluster.String()
	b := append([]byte{markLabel, byte(len(label))}, label...)
	_, _ = c.Write(binary.BigEndian.AppendUint32(append(b, markEncrypted), uint32(bytes))) // it may have been closed
	return c
}

// held is what the streams of a peer hold: how many are read, how many wait, and bytes that they may bring.
func (p *peer) held() (read, waits, bytes int) {
	d := &p.ways.doors
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, v := range d.gate.visits {
		switch {
		case v.stage == waiting:
			waits++
		case v.stage == reading:
			read++
			bytes += min(v.wants, freeBytes)
		}
	}
	return read, waits, bytes + d.gate.pool
}

// TestStrangersAtTheGossipPort: many strangers send as much as they can without the key. No more of it is read than the bounds say, all are hung up
// on, a node joins meanwhile, and the line that names them comes once.
func TestStrangersAtTheGossipPort(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	said := 0
	logger := NewLogger(func(level, msg string) {
		mu.Lock()
		defer mu.Unlock()
		if level == "WARN" && strings.Contains(msg, "before they showed the cluster's key") {
			said++
		}
	})
	a := startPeer(t, Config{Name: "a", Incarnation: 1, Addr: "127.0.3.1:0", Logger: logger})
	noise := bytes.Repeat([]byte{0xa7}, strangeMost)
	var all sync.WaitGroup
	for i := range 100 {
		size := []int{strangeMost, 20 << 20, freeBytes}[i%3]
		c := stranger(t, a, fmt.Sprintf("127.0.4.%d", 1+i%25), size)
		all.Go(func() {
			for sent := 0; sent < size-1; {
				n, err := c.Write(noise[:min(len(noise), size-1-sent)])
				if err != nil {
					break
				}
				sent += n
			}
			_ = c.SetReadDeadline(time.Now().Add(patience))
			if n, err := io.Copy(io.Discard, c); n > 0 || isTimeout(err) {
				t.Errorf("a stranger reads %d bytes: %v", n, err)
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	b := startPeer(t, Config{Name: "b", Incarnation: 2, Addr: "127.0.3.2:0", Seeds: []string{a.Addr()}})
	b.await(t, Event{"a", Alive, 1})
	for over := false; !over; {
		read, waits, bytes := a.held()
		if read > maxReading || waits > maxWaiting || bytes > 4<<20 {
			t.Fatalf("%d streams are read, %d wait, %d bytes", read, waits, bytes)
		}
		select {
		case <-done:
			over = true
		default:
		}
	}
	if lines := a.Warnings(); len(lines) != 1 || !strings.Contains(lines[0], "127.0.4.") {
		t.Errorf("status says %q", lines)
	}
	mu.Lock()
	defer mu.Unlock()
	if said == 0 || said > 2 {
		t.Errorf("%d lines name the strangers", said)
	}
}

func isTimeout(err error) bool {
	late, ok := errors.AsType[net.Error](err)
	return ok && late.Timeout()
}

// TestWhoAnswersShowsTheKey: a node that dials a seed reads no more of its answer than a member's state could have, whatever is announced.
func TestWhoAnswersShowsTheKey(t *testing.T) {
	t.Parallel()
	for name, said := range map[string][]byte{
		"20 MiB":   binary.BigEndian.AppendUint32([]byte{markEncrypted}, 20<<20),
		"noise":    append(binary.BigEndian.AppendUint32([]byte{markEncrypted}, 1<<10), make([]byte, 1<<10)...),
		"no key":   {msgState, 0x83, 0xa5, 'N', 'o', 'd', 'e', 's', 0xce, 0x7f, 0xff, 0xff, 0xff},
		"too few":  binary.BigEndian.AppendUint32([]byte{markEncrypted}, 3),
		"no bytes": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := net.Pipe()
			defer near.Close()
			g := startPeer(t, Config{Name: "g", Incarnation: 1, Addr: "127.0.3.9:0"})
			go func() {
				_, _ = far.Write(said)
				_, _ = far.Write(make([]byte, 64<<10)) // nobody reads it
				far.Close()
			}()
			a := &answer{Conn: near, opener: &g.ways.opener}
			b := make([]byte, 64)
			if name == "no bytes" {
				far.Close()
			}
			if n, err := a.Read(b); n > 0 || err == nil {
				t.Errorf("memberlist reads %d bytes: %v", n, err)
			}
		})
	}
}

// TestManyNodesJoin: as many nodes as a large cluster has start at once and know one seed: it takes all of them in. Streams alone carry it here:
// datagrams of so many nodes would take all of a small machine.
func TestManyNodesJoin(t *testing.T) {
	const nodes = 200
	quiet := func(c *memberlist.Config) { c.ProbeInterval, c.GossipInterval, c.PushPullInterval = 0, 0, 0 }
	seed := startPeer(t, Config{Name: "seed", Incarnation: 1, Addr: "127.0.5.1:0", change: quiet})
	var all sync.WaitGroup
	for i := range nodes {
		all.Go(func() {
			startPeer(t, Config{Name: replica.NodeName(fmt.Sprintf("n%03d", i)), Incarnation: 1, Addr: fmt.Sprintf("127.0.%d.%d:0", 6+i/200, 1+i%200), Seeds: []string{seed.Addr()}, change: quiet})
		})
	}
	all.Wait()
	joined := map[replica.NodeName]bool{}
	deadline := time.After(patience)
	for len(joined) < nodes {
		select {
		case ev := <-seed.Events():
			if ev.Kind == Alive && ev.Node != "seed" {
				joined[ev.Node] = true
			}
		case <-deadline:
			t.Fatalf("%d of %d nodes joined; the seed says %q", len(joined), nodes, seed.Warnings())
		}
	}
}
