package endpoint

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

// revokes gives an endpoint an identity that revocations reach while it runs.
func (c cluster) revokes(node replica.NodeName, addr string, refused func(replica.NodeName, string)) (*running, *pki.Identity) {
	c.t.Helper()
	l, id := newLogs(), c.identity(node)
	cfg := c.config(node, addr, l)
	cfg.Revoked, cfg.Refused = id.CheckRevoked, refused
	return start(c.t, cfg, l, allClasses(echo)), id
}

// A revoked peer's connections end, and none comes up, whoever dials; either end reads why.
func TestRevoked(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	refused := make(chan string, 100)
	a, id := c.revokes("a", "127.0.0.1:0", func(n replica.NodeName, why string) { refused <- string(n) + ": " + why })
	b, _ := c.revokes("b", "127.0.0.2:0", nil)
	in, err := b.Dial(ctx, a.Addr().String(), "a", Control)
	if err != nil {
		t.Fatal(err)
	}
	out, err := a.Dial(ctx, b.Addr().String(), "b", Bulk)
	if err != nil {
		t.Fatal(err)
	}
	for _, conn := range []*Conn{in, out} { // both ends have them
		s, err := conn.Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := s.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Read(make([]byte, 100)); n == 0 {
			t.Fatal(err)
		}
	}
	epoch := id.Newest(replica.NodeRole, "b")
	if epoch == 0 {
		t.Fatal("a has not seen b's epoch")
	}
	if id.Revoke(replica.Revocation{Role: replica.NodeRole, Name: "b", Epoch: epoch - 1}) {
		a.Recheck()
	}
	if in.Err() != nil || out.Err() != nil {
		t.Fatalf("an earlier certificate of b was revoked: %v, %v", in.Err(), out.Err())
	}
	if !id.Revoke(replica.Revocation{Role: replica.NodeRole, Name: "b", Epoch: epoch}) {
		t.Fatal("no news")
	}
	a.Recheck()
	told := func(err error) {
		t.Helper()
		var closed *CloseError
		if !errors.As(err, &closed) || closed.Code != CodeRefused || !closed.Remote || !strings.Contains(closed.Reason, "pki renew b --after") {
			t.Errorf("b is told %v", err)
		}
	}
	<-in.Done()
	told(in.Err())
	<-out.Done()
	if why := <-refused; !strings.Contains(why, "b: certificate revoked") {
		t.Errorf("a says %q", why)
	}
	// In: the client's handshake is over before the server has judged it.
	if again, err := b.Dial(ctx, a.Addr().String(), "a", Raft); err == nil {
		<-again.Done()
		told(again.Err())
	} else {
		told(err)
	}
	// Out.
	if _, err := a.Dial(ctx, b.Addr().String(), "b", Raft); !errors.Is(err, ErrIdentity) || !strings.Contains(err.Error(), "certificate revoked") {
		t.Errorf("a dials b: %v", err)
	}
	a.mu.Lock()
	left := len(a.conns)
	a.mu.Unlock()
	if left > 2 { // those just closed may not have been taken out yet
		t.Errorf("%d connections are left", left)
	}
}

// While a cluster's keys change, a daemon hears who asks with an older or a newer one, and answers with the same.
func TestProbeWithSeveralKeys(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	old, fresh := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	node := func(name replica.NodeName, addr string, keys ...[]byte) *running {
		l := newLogs()
		cfg := c.config(name, addr, l)
		cfg.ProbeKeys = func() [][]byte { return keys }
		e := start(t, cfg, l, nil)
		e.SetProbeReply(ProbeReply{Node: name})
		return e
	}
	const a, b = "127.0.0.1:0", "127.0.0.2:0"
	for name, tc := range map[string]struct {
		asker, asked [][]byte
		hears        bool
	}{
		"before":                 {[][]byte{old}, [][]byte{old}, true},
		"new key is installed":   {[][]byte{old}, [][]byte{old, fresh}, true},
		"asked uses the new one": {[][]byte{old, fresh}, [][]byte{fresh, old}, true},
		"asker uses the new one": {[][]byte{fresh, old}, [][]byte{old, fresh}, true},
		"asked dropped the old":  {[][]byte{fresh, old}, [][]byte{fresh}, true},
		"asker missed it all":    {[][]byte{old}, [][]byte{fresh}, false},
	} {
		t.Run(name, func(t *testing.T) {
			asker, asked := node("a", a, tc.asker...), node("b", b, tc.asked...)
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if !tc.hears {
				ctx, cancel = context.WithTimeout(ctx, 3*probeResend)
				defer cancel()
			}
			if _, err := asker.Probe(ctx, asked.Addr().String()); (err == nil) != tc.hears {
				t.Errorf("%v", err)
			}
		})
	}
}
