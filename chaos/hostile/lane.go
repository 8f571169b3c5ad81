package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/wire"
)

// lane connects to the port of the data path, on which nodes take lanes.
func (a *attack) lane(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", a.victim.Addr)
}

// laneSilent never goes on with its handshakes: half of them say nothing, the others the beginning of a record of TLS.
func laneSilent(ctx context.Context, a *attack) error {
	first := []byte{22, 3, 1, 0x40} // a handshake, of a length whose second byte never comes
	ctx, cancel := context.WithTimeout(ctx, 5*a.Hold)
	defer cancel()
	err := each(ctx, 10_000, 1024, func(i int) error {
		c, err := a.lane(ctx)
		if err != nil {
			if ctx.Err() == nil {
				a.count("not connected", 1)
			}
			return nil
		}
		defer c.Close()
		_, _ = c.Write(first[:len(first)*(i%2)]) // the victim may have hung up already
		if _, err := ends(c, 15*time.Second); err != nil {
			return err
		}
		a.count("hung up", 1)
		return nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil // as many as there was time for
	}
	return err
}

// laneRefused wants a lane refused whatever it presents.
func (a *attack) laneRefused(ctx context.Context, e *endpoint.Endpoint) error {
	c, err := e.DialTCP(ctx, a.victim.Addr, a.victim.Node)
	if err == nil { // a client has its connection before the server has judged its certificate
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err = c.Read(make([]byte, 1))
	}
	var late net.Error
	if err == nil || errors.As(err, &late) && late.Timeout() {
		return errors.New("a lane is let in")
	}
	a.count("lanes refused", 1)
	return nil
}

// laneMany opens as many lanes as it can and keeps them.
func laneMany(ctx context.Context, a *attack) error {
	e, _, err := a.peer()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*a.Hold)
	defer cancel()
	const most = 64 // of one node
	err = each(ctx, 10_000, 2*most, func(int) error {
		c, err := e.DialTCP(ctx, a.victim.Addr, a.victim.Node)
		if err != nil {
			if ctx.Err() == nil {
				a.count("not connected", 1)
			}
			return nil
		}
		defer c.Close()
		a.count("lanes", 1)
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		_, err = c.Read(make([]byte, 1))
		var kept net.Error
		if errors.As(err, &kept) && kept.Timeout() {
			a.count("kept", 1)
		} else if ctx.Err() == nil {
			a.count("refused", 1)
		}
		return nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	if err == nil && a.counted("refused")+a.counted("not connected") == 0 && a.counted("lanes") > 4*most {
		return fmt.Errorf("no lane of %d was refused", a.counted("lanes"))
	}
	return err
}

// laneSlow writes its requests a byte at a time, and reads nothing of what it asked for.
func laneSlow(ctx context.Context, a *attack) error {
	e, _, err := a.peer()
	if err != nil {
		return err
	}
	k, _, err := a.key(ctx)
	if err != nil {
		return err
	}
	request, err := wire.Append(nil, kindFetch, k)
	if err != nil {
		return err
	}
	return each(ctx, 64, 64, func(int) error {
		c, err := e.DialTCP(ctx, a.victim.Addr, a.victim.Node)
		if err != nil {
			a.count("not connected", 1)
			return nil
		}
		defer c.Close()
		for i := range request {
			if _, err := c.Write(request[i : i+1]); err != nil {
				a.count("hung up", 1)
				return nil
			}
			sleep(ctx, a.Hold/time.Duration(len(request)))
		}
		_ = c.SetReadDeadline(time.Now().Add(15 * time.Second))
		kind, _, err := wire.Read(c, wire.MaxBody)
		switch {
		case err == nil && kind != kindError:
			return fmt.Errorf("answered with a frame of kind %d", kind)
		case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			return err
		}
		a.count("refused", 1)
		return nil
	})
}
