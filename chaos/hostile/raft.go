package hostile

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/endpoint"
)

func raftClient(ctx context.Context, a *attack) error {
	e, _, err := a.peer()
	if err != nil {
		return err
	}
	return a.until(ctx, func(int) error {
		c, err := a.dial(ctx, e, endpoint.Raft)
		if err != nil {
			return err
		}
		t := time.NewTimer(10 * time.Second)
		defer t.Stop()
		select {
		case <-c.Done():
		case <-t.C:
			return errors.New("a node that is no voter keeps its raft connection")
		}
		var closed *endpoint.CloseError
		if !errors.As(c.Err(), &closed) {
			return fmt.Errorf("refused with %w, which is no reason", c.Err())
		}
		a.count("refused by name", 1)
		return nil
	})
}

// voter opens an endpoint with the credentials of a voter that is not the victim, the i-th: a node's key was stolen.
func (a *attack) voter(i int) (*endpoint.Endpoint, error) {
	for _, v := range a.victim.Voters {
		if v.Name == a.victim.Node {
			continue
		}
		if i--; i >= 0 {
			continue
		}
		id, err := a.identity(string(v.Name))
		if err != nil {
			return nil, err
		}
		return a.as(id, nil)
	}
	return nil, errors.New("there are too few voters")
}

func raftGarbage(ctx context.Context, a *attack) error {
	e, err := a.voter(0)
	if err != nil {
		return err
	}
	// What follows the kind of a request is msgpack: a map whose entry is an array, bytes, or a map of 2 GiB.
	bombs := [][]byte{
		{0, 0x81, 0xa7, 'E', 'n', 't', 'r', 'i', 'e', 's', 0xdd, 0x7f, 0xff, 0xff, 0xff},
		{0, 0x81, 0xa6, 'L', 'e', 'a', 'd', 'e', 'r', 0xc6, 0x7f, 0xff, 0xff, 0xff},
		{0, 0x81, 0xa6, 'L', 'e', 'a', 'd', 'e', 'r', 0xdb, 0x7f, 0xff, 0xff, 0xff},
		{1, 0xdf, 0x7f, 0xff, 0xff, 0xff},
		{2, 0x81, 0xa5, 'P', 'e', 'e', 'r', 's', 0xc6, 0x7f, 0xff, 0xff, 0xff},
		{2, 0x81, 0xa4, 'S', 'i', 'z', 'e', 0xd3, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		{9}, {255, 255},
	}
	conn, err := a.dial(ctx, e, endpoint.Raft)
	if err != nil {
		return err
	}
	return a.until(ctx, func(i int) error {
		s, err := conn.Open(ctx)
		if err != nil {
			return err
		}
		var b []byte
		if i%2 == 0 {
			b = append(b, bombs[i/2%len(bombs)]...)
		} else {
			b = make([]byte, 512)
			_, _ = rand.Read(b) // never fails
		}
		_, _ = s.Write(b)
		_ = s.CloseWrite() // what was announced does not come
		if _, err := ends(s, 15*time.Second); err != nil {
			return fmt.Errorf("%.16x: %w", b, err)
		}
		_ = s.Close()
		a.count("hung up", 1)
		return nil
	})
}

func raftStreams(ctx context.Context, a *attack) error {
	e, err := a.voter(0)
	if err != nil {
		return err
	}
	for range 16 {
		c, err := a.dial(ctx, e, endpoint.Raft)
		if err != nil {
			return err
		}
		for range 64 {
			s, err := c.Open(ctx)
			if err != nil {
				break
			}
			if _, err := s.Write([]byte{0}); err != nil {
				break
			}
			a.count("streams", 1)
		}
	}
	a.wait(ctx)
	other, err := a.voter(1)
	if err != nil {
		return err
	}
	s, err := a.open(ctx, other, endpoint.Raft)
	if err != nil {
		return fmt.Errorf("another voter's stream: %w", err)
	}
	if _, err := s.Write([]byte{0}); err != nil {
		return fmt.Errorf("another voter's stream: %w", err)
	}
	if _, err := ends(s, 2*time.Second); err == nil {
		return errors.New("another voter's stream is refused meanwhile")
	}
	return nil
}
