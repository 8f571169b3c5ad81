package collective

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// cluster connects n ranks in this process.
func cluster(t *testing.T, n int, identity func(rank int) Identity) ([]*Mesh, []error) {
	t.Helper()
	lns := make([]*net.TCPListener, n)
	for i := range lns {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		lns[i] = ln.(*net.TCPListener)
		t.Cleanup(func() { _ = ln.Close() })
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	meshes, errs := make([]*Mesh, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			meshes[r], errs[r] = Connect(ctx, lns[r], identity(r), n, func(_ context.Context, to int) (string, error) {
				return lns[to].Addr().String(), nil
			})
			if errs[r] != nil {
				cancel() // the others would wait for this rank
			}
		})
	}
	wg.Wait()
	for _, m := range meshes {
		if m != nil {
			t.Cleanup(m.Close)
		}
	}
	return meshes, errs
}

func sameEpoch(r int) Identity { return Identity{Run: 7, Epoch: 3, Rank: r} }

func connected(t *testing.T, n int) []*Mesh {
	t.Helper()
	meshes, errs := cluster(t, n, sameEpoch)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return meshes
}

// each runs fn for every rank at once and returns the errors by rank.
func each(meshes []*Mesh, fn func(r int, m *Mesh) error) []error {
	errs := make([]error, len(meshes))
	var wg sync.WaitGroup
	for r, m := range meshes {
		wg.Go(func() { errs[r] = fn(r, m) })
	}
	wg.Wait()
	return errs
}

func TestAllReduceSumsInTheOrderOfRanks(t *testing.T) {
	meshes := connected(t, 4)
	const n = 40000 // more than a socket buffer holds at once
	value := func(r, i int) float32 { return float32(math.Sin(float64(i*7+r))) * float32(math.Pow(10, float64(r*3))) }
	want := make([]float32, n)
	for i := range want {
		want[i] = ((value(0, i) + value(1, i)) + value(2, i)) + value(3, i)
	}
	for round := range 5 {
		err := errors.Join(each(meshes, func(r int, m *Mesh) error {
			g := m.Group(3, 1, 0, 2)
			x := make([]float32, n)
			for i := range x {
				x[i] = value(r, i)
			}
			if err := g.AllReduce(x); err != nil {
				return err
			}
			if !slices.Equal(x, want) {
				return fmt.Errorf("round %d: rank %d has other bits than a sum in order of ranks", round, r)
			}
			return nil
		})...)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestGroupsCross(t *testing.T) {
	meshes := connected(t, 4)
	err := errors.Join(each(meshes, func(r int, m *Mesh) error {
		rows, columns := m.Group(r/2*2, r/2*2+1), m.Group(r%2, r%2+2)
		for range 50 {
			x := []float32{float32(r + 1)}
			if err := rows.AllReduce(x); err != nil {
				return err
			}
			if err := columns.AllReduce(x); err != nil {
				return err
			}
			if x[0] != 10 {
				return fmt.Errorf("rank %d: rows, then columns sum to %v, want 10", r, x[0])
			}
		}
		return nil
	})...)
	if err != nil {
		t.Fatal(err)
	}
}

func TestALostPeerFreesWhoWaitsAndClosesNothing(t *testing.T) {
	meshes := connected(t, 3)
	errs := each(meshes, func(r int, m *Mesh) error {
		if r == 2 {
			m.Close() // instead of joining the sum
			return nil
		}
		return m.Group(0, 1, 2).AllReduce(make([]float32, 100))
	})
	for r := range 2 {
		if !errors.Is(errs[r], ErrPeer) {
			t.Errorf("rank %d waits for a closed peer and gets %v, want ErrPeer", r, errs[r])
		}
		if err := meshes[r].Group(0, 1).AllReduce([]float32{1}); !errors.Is(err, ErrPeer) {
			t.Errorf("rank %d goes on after a lost peer: %v", r, err)
		}
	}
	// Ranks 0 and 1 have failed but not closed: neither may have seen the other's end.
	for r, m := range meshes[:2] {
		if p := m.peers[1-r]; p.conn.SetDeadline(time.Time{}) != nil {
			t.Errorf("rank %d closed its connection to rank %d by itself", r, 1-r)
		}
	}
}

func TestFailFreesAWaiter(t *testing.T) {
	meshes := connected(t, 2)
	fenced := errors.New("fenced")
	result := make(chan error, 1)
	go func() { result <- meshes[0].Group(0, 1).AllReduce(make([]float32, 8)) }()
	if b := <-meshes[1].peers[0].in; len(b) != 32 { // rank 0 is in its collective now
		t.Fatalf("rank 1 got %d bytes", len(b))
	}
	meshes[0].Fail(fenced)
	if err := <-result; !errors.Is(err, fenced) {
		t.Fatalf("a fenced collective returns %v", err)
	}
	if meshes[1].Err() != nil {
		t.Fatalf("the peer noticed before anything was closed: %v", meshes[1].Err())
	}
}

func TestDifferentLengthsAreNoticed(t *testing.T) {
	meshes := connected(t, 2)
	errs := each(meshes, func(r int, m *Mesh) error { return m.Group(0, 1).AllReduce(make([]float32, 4+r)) })
	if errs[0] == nil || errs[1] == nil {
		t.Fatalf("sums of 4 and 5 numbers: %v", errs)
	}
}

func TestARankOfAnotherEpochIsNotLetIn(t *testing.T) {
	_, errs := cluster(t, 2, func(r int) Identity { return Identity{Run: 7, Epoch: uint64(3 + r), Rank: r} })
	if errs[0] == nil || errs[1] == nil {
		t.Fatalf("ranks of epochs 3 and 4 met: %v", errs)
	}
}

func TestADamagedHeaderIsRefusedBeforeMemoryIsTaken(t *testing.T) {
	meshes := connected(t, 2)
	head := []byte{0x54, 0x4c, 0x4d, 0x31, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0}
	if _, err := meshes[1].peers[0].conn.Write(head); err != nil {
		t.Fatal(err)
	}
	if err := meshes[0].Group(0, 1).AllReduce(make([]float32, 4)); !errors.Is(err, ErrPeer) {
		t.Fatalf("a header of 4 GiB gives %v", err)
	}
}
