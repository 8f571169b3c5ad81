package hostile

import (
	"context"
	"net"
	"time"
	"unsafe"

	"github.com/replicad/replicad/internal/pki"
)

// cmsg is the header of control data.
func cmsg(oob []byte) unsafe.Pointer { return unsafe.Pointer(&oob[0]) }

// recordProbe has an endpoint probe a socket of ours, and returns what it sent.
func (a *attack) recordProbe(ctx context.Context, id *pki.Identity, keys func() [][]byte) ([]byte, error) {
	e, err := a.probing(id, nil, keys)
	if err != nil {
		return nil, err
	}
	sink, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(a.own.Host())})
	if err != nil {
		return nil, err
	}
	defer sink.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	asked := make(chan struct{})
	go func() { defer close(asked); _, _ = e.Probe(ctx, sink.LocalAddr().String()) }() // nobody answers
	_ = sink.SetReadDeadline(time.Now().Add(5 * time.Second))
	b := make([]byte, 2<<10)
	n, _, err := sink.ReadFrom(b)
	cancel()
	<-asked
	return b[:n], err
}

// replay sends one datagram again and again, and counts what comes back.
func (a *attack) replay(ctx context.Context, b []byte) (sent, back int, err error) {
	c, err := a.udp(a.victim.Addr)
	if err != nil {
		return 0, 0, err
	}
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		room := make([]byte, 4<<10)
		_ = c.SetReadDeadline(time.Now().Add(a.Hold + time.Second))
		for {
			n, err := c.Read(room)
			if err != nil {
				return
			}
			back += n
		}
	}()
	err = a.paced(ctx, 20_000, func(int) error { sent++; _, _ = c.Write(b); return nil })
	<-heard
	a.count("probes", sent)
	a.count("bytes answered", back)
	return sent, back, err
}
