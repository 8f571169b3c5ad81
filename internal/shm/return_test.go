package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// dialled is a daemon's connection to a keeper, until the test ends.
func dialled(t *testing.T, k *Keeper, err error) *Keeper {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func memfd(t *testing.T) *os.File {
	t.Helper()
	f, err := NewMemfd("x")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// life is who a daemon that starts under the keeper is told it is, and what it finds there.
func life(t *testing.T, socket string) (inc replica.NodeIncarnation, s replica.Session, keys int) {
	t.Helper()
	k, err := DialKeeper(t.Context(), socket)
	dialled(t, k, err)
	files, err := k.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		f.Close()
	}
	return k.Incarnation(), k.Session(), len(files)
}

// TestKeeperTakesALife: a daemon that runs brings a fresh keeper its descriptors, and then its life: the next daemon finds both.
func TestKeeperTakesALife(t *testing.T) {
	socket := inProcessKeeper(t)
	k, err := ReturnToKeeper(t.Context(), socket, 77, 3)
	dialled(t, k, err)
	if err := errors.Join(k.Put("a", memfd(t)), k.TakeLife()); err != nil {
		t.Fatal(err)
	}
	if inc, s, keys := life(t, socket); inc != 77 || s != 4 || keys != 1 {
		t.Errorf("the next daemon is told incarnation %d, session %d, and finds %d descriptors; want 77, 4 and 1", inc, s, keys)
	}
}

// TestKeeperTakesALifeLast: a daemon that dies while it brings its descriptors has died with its keeper. The next one is told of another life, and
// finds what had been brought.
func TestKeeperTakesALifeLast(t *testing.T) {
	socket := inProcessKeeper(t)
	k, err := ReturnToKeeper(t.Context(), socket, 77, 3)
	dialled(t, k, err)
	if err := k.Put("a", memfd(t)); err != nil {
		t.Fatal(err)
	}
	k.Close()
	inc, s, keys := life(t, socket)
	if inc == 77 || inc == 0 || s != 1 || keys != 1 {
		t.Errorf("the next daemon is told incarnation %d, session %d, and finds %d descriptors", inc, s, keys)
	}
	// It is the keeper's daemon from now on, whoever else still runs.
	if _, err := ReturnToKeeper(t.Context(), socket, 77, 3); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("serves incarnation %d, session 1", inc)) {
		t.Errorf("the daemon of before returns: %v", err)
	}
	// A daemon that only lost the connection is taken back, with what the keeper holds.
	k, err = ReturnToKeeper(t.Context(), socket, inc, s)
	dialled(t, k, err)
	if files, err := k.All(); err != nil || len(files) != 1 || k.TakeLife() != nil {
		t.Errorf("it finds %d descriptors: %v", len(files), err)
	}
	if after, s, _ := life(t, socket); after != inc || s != 2 {
		t.Errorf("then incarnation %d, session %d", after, s)
	}
}

// A daemon without a life of its own brings none, and one that another has followed gives the keeper none.
func TestKeeperTakesNoLife(t *testing.T) {
	socket := inProcessKeeper(t)
	for _, who := range [][2]uint64{{0, 3}, {77, 0}} {
		if _, err := ReturnToKeeper(t.Context(), socket, replica.NodeIncarnation(who[0]), replica.Session(who[1])); err == nil {
			t.Errorf("%v was taken", who)
		}
	}
	first, err := ReturnToKeeper(t.Context(), socket, 77, 3)
	dialled(t, first, err)
	inc, _, _ := life(t, socket)
	if err := first.TakeLife(); err == nil {
		t.Error("a daemon that another has followed gives the keeper its life")
	}
	if again, s, _ := life(t, socket); again != inc || s != 2 {
		t.Errorf("incarnation %d, session %d; want %d and 2", again, s, inc)
	}
}

// TestAFailedExchangeHangsUp: a keeper that answers too late is not asked again on that connection: its reply would be taken for the next one's.
func TestAFailedExchangeHangsUp(t *testing.T) {
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: t.TempDir() + "/k", Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	served, over := make(chan error, 1), make(chan struct{})
	defer close(over)
	go func() { // it answers the start, then nonsense, and stays
		c, err := ln.AcceptUnix()
		if err != nil {
			served <- err
			return
		}
		defer c.Close()
		if _, _, err = receiveKeeper(c); err == nil {
			err = sendKeeper(c, keeperMessage{typ: keepDone, incarnation: 5, session: 1}, nil)
		}
		if err == nil {
			_, _, err = receiveKeeper(c)
		}
		if err == nil {
			err = errors.Join(sendKeeper(c, keeperMessage{typ: keepItem, key: "late"}, nil), sendKeeper(c, keeperMessage{typ: keepDone}, nil))
		}
		served <- err
		<-over
	}()
	k, err := DialKeeper(context.Background(), ln.Addr().String())
	dialled(t, k, err)
	if err := k.Drop("a"); err == nil {
		t.Error("nonsense is taken for an answer")
	}
	select {
	case <-k.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the connection stays")
	}
	if err := k.Drop("b"); err == nil {
		t.Error("the second answer is taken for that of another question")
	}
	if err := <-served; err != nil && !errors.Is(err, syscall.EPIPE) { // who has hung up already takes no second answer
		t.Error(err)
	}
}
