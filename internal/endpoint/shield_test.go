package endpoint

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"math"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// TestShieldLetsPeersThrough: with the shield up and no stranger let in, connections that there are go on, both ways and with new streams.
// Nodes with a key of the cluster, the asker's own or an older one, begin new ones and probe; others wait until it is down.
func TestShieldLetsPeersThrough(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	k := func(list ...byte) (keys [][]byte) {
		for _, b := range list {
			keys = append(keys, bytes.Repeat([]byte{b}, 32))
		}
		return keys
	}
	run := func(node replica.NodeName, addr string, keys [][]byte) *running {
		l := newLogs()
		cfg := c.config(node, addr, l)
		cfg.ProbeKeys = func() [][]byte { return keys }
		return start(t, cfg, l, allClasses(echo))
	}
	a := run("a", "127.0.0.1:0", k(1, 2, 3, 4)) // one of them uses the other's last key
	b := run("b", "127.0.0.2:0", k(4, 3, 2, 1))
	stranger := run("b", "127.0.0.2:0", k(5))
	a.SetProbeReply(ProbeReply{Node: "a"})
	var conns []*Conn // that b accepted, and that it dialed
	for _, d := range []struct {
		from, to *running
		name     replica.NodeName
	}{{a, b, "b"}, {b, a, "a"}} {
		for _, class := range []Class{Raft, Control, Bulk} {
			conn, err := d.from.Dial(ctx, d.to.Addr().String(), d.name, class)
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
		}
	}
	for _, e := range []*running{a, b} {
		if err := e.ids.raise(e.udp, 0); err != nil {
			t.Fatal(err)
		}
	}
	for i, conn := range conns {
		for range 20 {
			if _, err := ask(ctx, conn, "x"); err != nil {
				t.Fatalf("connection %d behind the shield: %v", i, err)
			}
		}
	}
	for _, class := range []Class{Raft, Control, Bulk} {
		conn, err := a.Dial(ctx, b.Addr().String(), "b", class)
		if err != nil {
			t.Fatalf("a peer's new connection (%s): %v", class, err)
		}
		if _, err := ask(ctx, conn, "x"); err != nil {
			t.Fatalf("a peer's new connection (%s): %v", class, err)
		}
	}
	if _, err := b.Probe(ctx, a.Addr().String()); err != nil {
		t.Errorf("a peer's probe: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if conn, err := stranger.Dial(short, a.Addr().String(), "a", Control); err == nil {
		t.Errorf("a stranger's first datagram was let in: %v", conn.RemoteAddr())
	}
	if r, err := stranger.Probe(short, a.Addr().String()); !errors.Is(err, ErrSilent) {
		t.Errorf("a stranger's probe was let in: %v, %v", r, err)
	}
	for _, e := range []*running{a, b} {
		if err := lower(e.udp); err != nil {
			t.Fatal(err)
		}
	}
	if err := dialAndAsk(ctx, stranger.Endpoint, a.Addr().String(), "a"); err != nil {
		t.Errorf("a new connection once the shield is down: %v", err)
	}
}

// TestShieldTakesAShare: of datagrams without a tag the kernel lets in about the share that it is told.
func TestShieldTakesAShare(t *testing.T) {
	in, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := net.DialUDP("udp", nil, in.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	keys := [][]byte{bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)}
	ids := newTagger(func() [][]byte { return keys })
	id, err := ids.GenerateConnectionID()
	if err != nil {
		t.Fatal(err)
	}
	short := append([]byte{0x40}, id.Bytes()...)
	long := append([]byte{0xe0, 0, 0, 0, 1, idBytes}, id.Bytes()...)
	tagged := [][]byte{appendProbe(nil, keys[1], newNonce(keys[1]), nil)}
	for _, n := range []int{0, 8, 20, 255} { // what begins a connection, with a destination that its client chose
		tagged = append(tagged, initialFrom(newTagger(func() [][]byte { return keys[1:] }), n))
	}
	pad := func(b []byte) []byte { return append(b[:len(b):len(b)], make([]byte, 40)...) }
	room := make([]byte, 2048)
	last := append(pad(short), "the one behind"...)
	_ = in.SetReadDeadline(time.Now().Add(time.Minute))
	came := func(b []byte) (yes bool) {
		t.Helper()
		for _, d := range [][]byte{b, last} { // the second one passes, and loopback keeps their order
			if _, err := out.Write(d); err != nil {
				t.Fatal(err)
			}
		}
		for {
			n, err := in.Read(room)
			switch {
			case err != nil:
				t.Fatalf("a datagram with a tag is dropped: %v", err)
			case bytes.Equal(room[:n], last):
				return yes
			}
			yes = true
		}
	}
	for _, let := range []uint32{0, math.MaxUint32 / 4} {
		if err := ids.raise(in, let); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			if !came(pad(short)) || !came(pad(long)) {
				t.Fatal("a datagram with a tag is dropped")
			}
			for i, b := range tagged {
				if !came(b) {
					t.Fatalf("datagram %d with the cluster's tag is dropped", i)
				}
			}
		}
		const tries = 400
		n := 0
		for i := range tries {
			b := make([]byte, 1+i%100)
			_, _ = rand.Read(b) // never fails
			if came(b) {
				n++
			}
		}
		if want := float64(let) / (1 << 32) * tries; math.Abs(float64(n)-want) > tries/8 { // seven standard deviations
			t.Errorf("share %v: %d of %d came", float64(let)/(1<<32), n, tries)
		}
	}
	wrong := pad(short)
	wrong[5] ^= 1
	if err := ids.raise(in, 0); err != nil {
		t.Fatal(err)
	}
	if came(wrong) || came([]byte{}) || came(short[:4]) {
		t.Error("a datagram without a right tag came")
	}
	for i, b := range tagged {
		bad := slices.Clone(b)
		for i := range bad[:300] {
			if i > 6 { // the tag lies among them, and so do the random bytes
				bad[i] ^= 1
			}
		}
		if i > 0 {
			bad[6+int(bad[5])] = idBytes
		}
		if came(bad) || came(b[:initialSize-1]) {
			t.Errorf("datagram %d with a wrong tag, or cut, came", i)
		}
	}
	if came(initialFrom(newTagger(func() [][]byte { return [][]byte{make([]byte, 32)} }), 8)) {
		t.Error("what begins a connection came with another cluster's tag")
	}
	if s, err := sampleOf(in); err != nil || s.dropped == 0 || s.room == 0 {
		t.Errorf("the kernel says %+v, %v", s, err)
	}
}

// TestShieldDropsCoalescedStrangers: the kernel counts coalesced datagrams as one, which must not let in a flood.
func TestShieldDropsCoalescedStrangers(t *testing.T) {
	in, out, c := coalescedPair(t)
	keys := [][]byte{bytes.Repeat([]byte{1}, 32)}
	ids := newTagger(func() [][]byte { return keys })
	if err := ids.raise(in, math.MaxUint32); err != nil {
		t.Fatal(err)
	}
	id, err := ids.GenerateConnectionID()
	if err != nil {
		t.Fatal(err)
	}
	tagged := append([]byte{0x40}, id.Bytes()...)
	tagged = append(tagged, make([]byte, segmentSize-len(tagged))...)
	stranger := make([]byte, segmentSize)
	last := slices.Clone(tagged)
	last[len(last)-1] = 1
	for _, b := range [][]byte{bytes.Repeat(stranger, 3), stranger, bytes.Repeat(tagged, 3), last} {
		if _, err := out.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	var got []byte
	for !bytes.HasSuffix(got, last) {
		b, _ := readSome(t, c)
		got = append(got, b...)
	}
	if want := slices.Concat(stranger, bytes.Repeat(tagged, 3), last); !bytes.Equal(got, want) {
		t.Errorf("%d bytes came, want %d: one stranger, and whatever has a tag", len(got), len(want))
	}
}

// initialFrom is a datagram that begins a connection, to an id of so many bytes.
func initialFrom(ids tagger, n int) []byte {
	id, _ := ids.GenerateConnectionID() // never fails
	b := append([]byte{0xc0, 0, 0, 0, 1, byte(n)}, make([]byte, n)...)
	b = append(append(b, idBytes), id.Bytes()...)
	return append(b, make([]byte, initialSize-len(b))...)
}

// The shield goes up when the buffer fills, lets in so many strangers, and goes down only when the flood has ended.
func TestShieldFollowsTheFlood(t *testing.T) {
	const room = 1 << 20
	var s shield
	dropped := uint32(math.MaxUint32 - 5) // it wraps
	s.last = dropped
	calm := func(n uint32) { dropped += n; s.next(sample{queued: room / shieldAt, room: room, dropped: dropped}) }
	calm(0)
	if s.let != 0 {
		t.Fatal("it is up though nothing queues")
	}
	s.next(sample{queued: room, room: room, dropped: dropped})
	if s.let != firstLet {
		t.Fatalf("lets in %d", s.let)
	}
	const perSample = 7500 // 150,000 a second
	for range 1000 {
		calm(uint32(float64(perSample) * (1 - float64(s.let)/(1<<32))))
		if s.let == 0 {
			t.Fatal("it is down in the middle of the flood")
		}
	}
	if in := float64(s.let) / (1 << 32) * 150_000; in < strangers/4 || in > strangers {
		t.Errorf("lets in %.0f a second", in)
	}
	was := s.let
	s.next(sample{queued: room, room: room, dropped: dropped})
	if s.let >= was {
		t.Error("the buffer fills behind it, and it lets in as many")
	}
	for i := range 1000 {
		calm(0)
		if s.let == 0 {
			if d := time.Duration(i+1) * shieldEvery; d < shieldQuiet {
				t.Errorf("down %v after the flood", d)
			}
			return
		}
	}
	t.Error("it stays up")
}
