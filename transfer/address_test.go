package transfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// TestAnAddressDiesAndComesBack: one of a node's two addresses takes no connection for a while. Its lane is tried again, brings chunks once it is
// up, and the node is never set aside.
func TestAnAddressDiesAndComesBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(512*kib, 4*kib)
		st := &memStore{m: m, b: b, chunk: func(int) error { time.Sleep(100 * time.Millisecond); return nil }} // virtual time
		up, tries, back := time.Now().Add(2*time.Second), 0, false
		good := source("n1", st)
		good.At = "10.0.0.1:1"
		dead := Source{Node: "n1", At: "10.1.0.1:1", Dial: func(context.Context) (Lane, error) {
			if tries++; time.Now().Before(up) {
				return nil, errors.New("no route")
			}
			back = true
			return newPipeLane("n1", st, nil), nil
		}}
		sink := newSink(t, m)
		began := time.Now()
		rep, err := Fetch(t.Context(), k, []Source{good, dead}, sink.begin)
		if err != nil {
			t.Fatal(err)
		}
		sink.check(b)
		if !back || tries < 3 || tries > 8 || len(rep.Failed) != 0 {
			t.Errorf("%d tries, came back: %v, report %+v", tries, back, rep)
		}
		if took, alone := time.Since(began), time.Duration(len(m.Chunks))*100*time.Millisecond; took > alone*3/4 {
			t.Errorf("it took %v: a lane alone takes %v", took, alone)
		}
	})
}

// TestAllAddressesDie: what one of them brought stays, and a node none of whose addresses works any more is set aside soon.
func TestAllAddressesDie(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(512*kib, 4*kib)
		end := make(chan struct{})
		st := &memStore{m: m, b: b, chunk: func(i int) error {
			time.Sleep(100 * time.Millisecond)
			select {
			case <-end:
				return errors.New("gone")
			default:
				return nil
			}
		}}
		time.AfterFunc(3*time.Second, func() { close(end) })
		dying := Source{Node: "n1", At: "10.0.0.1:1", Dial: func(context.Context) (Lane, error) {
			select {
			case <-end:
				return nil, errors.New("no route")
			default:
			}
			return newPipeLane("n1", st, func(c net.Conn) net.Conn {
				go func() { <-end; c.Close() }()
				return c
			}), nil
		}}
		dead := Source{Node: "n1", At: "10.1.0.1:1", Dial: func(context.Context) (Lane, error) { return nil, errors.New("no route") }}
		sink := newSink(t, m)
		began := time.Now()
		rep, err := Fetch(t.Context(), k, []Source{dying, dead}, sink.begin)
		if err == nil || rep.Failed["n1"] == "" || rep.Bytes == 0 {
			t.Errorf("%v, report %+v", err, rep)
		}
		if took := time.Since(began); took > 3*time.Second+2*redialMost {
			t.Errorf("given up after %v", took)
		}
	})
}

// TestReserve: no more than a few nodes are asked at once, the first ones of the list; one that fails makes room for the next.
func TestReserve(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(512*kib, 4*kib)
		st := &memStore{m: m, b: b, chunk: func(int) error { time.Sleep(20 * time.Millisecond); return nil }}
		var mu sync.Mutex // guards asked
		var asked []replica.NodeName
		var sources []Source
		for i := range donorsAtOnce + 3 {
			name := replica.NodeName(fmt.Sprintf("n%d", i))
			for range 2 { // lanes
				sources = append(sources, Source{Node: name, Dial: func(context.Context) (Lane, error) {
					mu.Lock()
					defer mu.Unlock()
					if !slices.Contains(asked, name) {
						asked = append(asked, name)
					}
					if i == 1 {
						return nil, errors.New("no route")
					}
					return newPipeLane(name, st, nil), nil
				}})
			}
		}
		sink := newSink(t, m)
		rep, err := Fetch(t.Context(), k, sources, sink.begin)
		if err != nil {
			t.Fatal(err)
		}
		sink.check(b)
		slices.Sort(asked)
		if want := []replica.NodeName{"n0", "n1", "n2", "n3", "n4"}; !slices.Equal(asked, want) || len(rep.Failed) != 1 || rep.By["n4"] == 0 {
			t.Errorf("asked %v, want %v; report %+v", asked, want, rep)
		}
	})
}
