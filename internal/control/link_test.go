package control

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/wire"
)

func TestFullLinkClosesAndNeverBlocks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		l := NewLink(near, ToLeader)
		ended := make(chan error, 1)
		go func() {
			ended <- l.Run(t.Context(), func(wire.Kind, []byte) error { return nil })
		}()
		began := time.Now()
		for i := range LinkQueue + 10 { // nobody reads: one may be with the writer, the others queue
			l.Send(StatusRequest{uint64(i)})
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("send blocked for %v", took)
		}
		if err := <-ended; !errors.Is(err, errLinkFull) {
			t.Errorf("the link went down with %v, want %v", err, errLinkFull)
		}
		if took := time.Since(began); took >= linkWrite {
			t.Errorf("a full link stood for %v", took)
		}
		l.Send(StatusRequest{}) // of a link that is down: dropped
	})
}

func TestFarEndThatStopsReading(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		l := NewLink(near, ToLeader)
		began := time.Now()
		l.Send(StatusRequest{1})
		err := l.Run(t.Context(), func(wire.Kind, []byte) error { return nil })
		if took := time.Since(began); err == nil || took != linkWrite {
			t.Errorf("down after %v with %v, want %v", took, err, linkWrite)
		}
	})
}

func TestLinkEndsWithItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		ctx, cancel := context.WithCancelCause(t.Context())
		l := NewLink(near, ToLeader)
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx, func(wire.Kind, []byte) error { return nil }) }()
		synctest.Wait()
		why := errors.New("the daemon stops")
		cancel(why)
		synctest.Wait()
		select {
		case err := <-ended:
			if !errors.Is(err, why) {
				t.Errorf("ended with %v, want %v", err, why)
			}
		default:
			t.Fatal("the link outlives its context")
		}
	})
}

func TestLinkEndsWithWhatItCantRead(t *testing.T) {
	why := errors.New("no such message")
	for what, send := range map[string]func(net.Conn){
		"a message that its owner refuses": func(c net.Conn) { wire.Write(c, KindBeat, Beat{}) },
		"garbage":                          func(c net.Conn) { c.Write([]byte(strings.Repeat("garbage ", 8))) },
		"hanging up":                       func(c net.Conn) { c.Close() },
	} {
		bubble.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			defer far.Close()
			l := NewLink(near, ToLeader)
			go send(far)
			if err := l.Run(t.Context(), func(wire.Kind, []byte) error { return why }); err == nil {
				t.Errorf("%s ends a link without a reason", what)
			}
		})
	}
}
