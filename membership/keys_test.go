package membership

import (
	"bytes"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/replicad/replicad/replica"
)

func key(n byte) Key { return Key{string([]byte{'k', '0' + n}), bytes.Repeat([]byte{n}, keyBytes)} }

// TestKeysRotate: three nodes go from one key to another, one after the other in each of three steps, and none loses sight of any; in the
// end a node with the old key alone is nobody.
func TestKeysRotate(t *testing.T) {
	first, second := []Key{key(1)}, []Key{key(2)}
	a := startPeer(t, Config{Name: "a", Incarnation: 1, Addr: "127.0.0.1:0", Keys: first})
	seeds := []string{a.Addr()}
	b := startPeer(t, Config{Name: "b", Incarnation: 2, Addr: "127.0.0.2:0", Keys: first, Seeds: seeds})
	c := startPeer(t, Config{Name: "c", Incarnation: 3, Addr: "127.0.0.3:0", Keys: first, Seeds: seeds})
	peers := []*peer{a, b, c}
	for _, p := range peers {
		for _, q := range peers {
			p.knows(t, q.cfg.Name, "k1")
		}
	}
	for _, p := range peers {
		for len(p.Events()) > 0 {
			<-p.Events()
		}
	}
	for _, step := range []struct {
		keys []Key
		said string
	}{{[]Key{key(1), key(2)}, "k1, k2"}, {[]Key{key(2), key(1)}, "k2, k1"}, {second, "k2"}} {
		for _, p := range peers {
			if err := p.SetKeys(step.keys); err != nil {
				t.Fatal(err)
			}
			for _, q := range peers { // with what it speaks now, everybody hears it
				q.knows(t, p.cfg.Name, step.said)
			}
		}
	}
	for _, p := range peers {
		for len(p.Events()) > 0 {
			t.Errorf("%s saw %+v", p.cfg.Name, <-p.Events())
		}
	}
	old := startPeer(t, Config{Name: "old", Incarnation: 4, Addr: "127.0.0.4:0", Keys: first, Seeds: seeds})
	fresh := startPeer(t, Config{Name: "fresh", Incarnation: 5, Addr: "127.0.0.5:0", Keys: second, Seeds: seeds})
	fresh.knows(t, "c", "k2")
	c.knows(t, "fresh", "k2")
	if m := old.member("a"); m.Alive || a.member("old").Alive {
		t.Errorf("the old key is heard: %+v", m)
	}
}

// knows waits until a member is alive and says that it has these keys.
func (p *peer) knows(t *testing.T, name replica.NodeName, keys string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; {
		if m := p.member(name); m.Alive && m.Keys == keys {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s knows %+v, want keys %q", p.cfg.Name, p.member(name), keys)
		}
	}
}

// Whatever a ring was, it becomes what is wanted, and only ever speaks with what was or will be its primary key.
func TestSetRing(t *testing.T) {
	of := func(s string) (keys [][]byte) {
		for _, c := range []byte(s) {
			keys = append(keys, bytes.Repeat([]byte{c}, keyBytes))
		}
		return keys
	}
	sets := []string{"a", "b", "c", "ab", "ba", "cb", "ac", "abc", "cab", "bcd", "dcba"}
	for _, from := range sets {
		for _, to := range sets {
			ring, err := memberlist.NewKeyring(of(from), of(from)[0])
			if err != nil {
				t.Fatal(err)
			}
			before := ring.GetKeys()
			kept := append([][]byte{}, before...)
			if err := setRing(ring, of(to)); err != nil {
				t.Errorf("%s to %s: %v", from, to, err)
			}
			have := ring.GetKeys()
			if !bytes.Equal(have[0], of(to)[0]) || len(have) != len(to) {
				t.Errorf("%s to %s: %d keys, the first %c", from, to, len(have), have[0][0])
			}
			for _, k := range of(to) {
				if !bytes.Contains(bytes.Join(have, nil), k) {
					t.Errorf("%s to %s: %c is missing", from, to, k[0])
				}
			}
			for i := range before {
				if !bytes.Equal(before[i], kept[i]) {
					t.Errorf("%s to %s: the list that readers had was changed", from, to)
				}
			}
		}
	}
}
