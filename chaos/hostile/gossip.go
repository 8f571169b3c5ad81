package hostile

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"time"
)

// What memberlist writes in front of its messages.
const (
	gossipLabel   = 244
	gossipEncrypt = 10
	gossipState   = 6 // an exchange of state
)

// labelled is what begins with the cluster's label, as a stream or datagram of a member does.
func (a *attack) labelled(b ...byte) ([]byte, error) {
	id, err := a.identity(mallory)
	if err != nil {
		return nil, err
	}
	label := id.Cluster.String()
	return append(append([]byte{gossipLabel, byte(len(label))}, label...), b...), nil
}

func gossipGarbage(ctx context.Context, a *attack) error {
	c, err := a.udp(a.victim.GossipAddr)
	if err != nil {
		return err
	}
	head, err := a.labelled(gossipEncrypt)
	if err != nil {
		return err
	}
	return a.paced(ctx, 20_000, func(i int) error {
		b := make([]byte, 1+mathrand.N(1400))
		_, _ = rand.Read(b) // never fails
		if i%2 == 0 {
			b = append(head[:len(head):len(head)], b...)
		}
		_, _ = c.Write(b)
		a.count("datagrams", 1)
		return nil
	})
}

// tcp connects to the gossip port.
func (a *attack) tcp(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", a.victim.GossipAddr)
}

// hangUpWithin is how long a stream of gossip may stay.
const hangUpWithin = 15 * time.Second

func gossipSilent(ctx context.Context, a *attack) error {
	return each(ctx, 400, 400, func(int) error {
		c, err := a.tcp(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := ends(c, hangUpWithin); err != nil {
			return fmt.Errorf("a silent stream: %w", err)
		}
		a.count("hung up", 1)
		return nil
	})
}

func gossipLoris(ctx context.Context, a *attack) error {
	head, err := a.labelled(gossipEncrypt)
	if err != nil {
		return err
	}
	return each(ctx, 100, 100, func(i int) error {
		head := binary.BigEndian.AppendUint32(head[:len(head):len(head)], []uint32{1<<31 - 1, 60 << 10}[i%2])
		c, err := a.tcp(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write(head); err != nil {
			return err
		}
		for end := time.Now().Add(hangUpWithin); time.Now().Before(end) && ctx.Err() == nil; {
			if _, err := c.Write([]byte{0}); err != nil {
				a.count("hung up", 1)
				return nil
			}
			sleep(ctx, 100*time.Millisecond)
		}
		return fmt.Errorf("a stream that brings a byte at a time is still open after %v", hangUpWithin)
	})
}

// gossipBulk is as fast as the machine is: what is announced comes, as noise.
func gossipBulk(ctx context.Context, a *attack) error {
	head, err := a.labelled(gossipEncrypt)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, 4*a.Hold)
	defer cancel()
	noise := make([]byte, 1<<20)
	_, _ = rand.Read(noise) // never fails
	const conns, sources = 100, 25
	err = each(within, conns, conns, func(i int) error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 201, 7, byte(1+i%sources))}}
		size := []int{len(noise), 20 << 20}[i/sources%2]
		b := append(binary.BigEndian.AppendUint32(head[:len(head):len(head)], uint32(size)), noise...)
		for within.Err() == nil {
			c, err := d.DialContext(within, "tcp", a.victim.GossipAddr)
			if err != nil {
				continue // its queue is full
			}
			a.count("connections", 1)
			for sent, ok := 0, true; ok && sent < size; {
				n, err := c.Write(b)
				sent, ok = sent+n, err == nil
			}
			_, err = ends(c, hangUpWithin)
			c.Close()
			if err != nil {
				return fmt.Errorf("a stream of noise: %w", err)
			}
			a.count("hung up", 1)
		}
		return nil
	})
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil // it was as long as it should be
	}
	return err
}

func gossipUnkeyed(ctx context.Context, a *attack) error {
	plain, err := a.labelled(gossipState)
	if err != nil {
		return err
	}
	// A header of 2^31 nodes in msgpack, and random bytes.
	bodies := [][]byte{{gossipState}, plain, append(plain, 0x83, 0xa5, 'N', 'o', 'd', 'e', 's', 0xce, 0x7f, 0xff, 0xff, 0xff), {gossipEncrypt, 0, 0, 1, 0}, {9, 0xff}, {244, 0xff}}
	return a.until(ctx, func(i int) error {
		c, err := a.tcp(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		b := append([]byte(nil), bodies[i%len(bodies)]...)
		_, _ = c.Write(append(b, make([]byte, 256)...)) // it may hang up before
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.CloseWrite()
		}
		said, err := ends(c, hangUpWithin)
		if err != nil {
			return fmt.Errorf("an exchange without the key: %w", err)
		}
		a.count("refused", 1)
		a.count("bytes answered", len(said))
		if len(said) > 1<<10 {
			return fmt.Errorf("%d bytes were said to somebody without the key", len(said))
		}
		return nil
	})
}
