package bench

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/quic-go/quic-go"

	"github.com/replicad/replicad/internal/endpoint"
)

// The limits of transfers: the part's bytes over so many connections of a kind, each its share, written in pieces of 1 MiB and read
// into place. Nothing is hashed or checked.

const (
	mib   = 1 << 20
	piece = mib
)

// serveSpan reads which bytes are wanted and writes them.
func (p *part) serveSpan(c io.ReadWriteCloser) {
	defer c.Close()
	var ask [16]byte
	if _, err := io.ReadFull(c, ask[:]); err != nil {
		return
	}
	off, n := binary.LittleEndian.Uint64(ask[:]), binary.LittleEndian.Uint64(ask[8:])
	for b := p.from[off : off+n]; len(b) > 0; b = b[min(piece, len(b)):] {
		if _, err := c.Write(b[:min(piece, len(b))]); err != nil {
			return
		}
	}
}

// readSpan asks for bytes and reads them into place.
func (p *part) readSpan(c io.ReadWriter, off, n uint64) error {
	ask := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, off), n)
	if _, err := c.Write(ask); err != nil {
		return err
	}
	_, err := io.ReadFull(c, p.to[off:off+n])
	return err
}

// overConns reads the part over so many connections at once.
func (p *part) overConns(ctx context.Context, conns int, dial func(context.Context) (io.ReadWriter, func(), error)) error {
	errs := make(chan error, conns)
	var wg sync.WaitGroup
	defer wg.Wait()
	share := p.bytes() / uint64(conns)
	for i := range conns {
		off, n := uint64(i)*share, share
		if i == conns-1 {
			n = p.bytes() - off
		}
		wg.Go(func() {
			c, end, err := dial(ctx)
			if err == nil {
				err = p.readSpan(c, off, n)
				end()
			}
			errs <- err
		})
	}
	for range conns {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// limit is one that has been set up: move moves the part once over so many connections.
type limit struct {
	name string
	move func(ctx context.Context, conns int) error
	stop func()
}

func (p *part) rawTCP() (limit, error) {
	ln, err := net.Listen("tcp", loopback)
	if err != nil {
		return limit{}, err
	}
	l := listen(ln, func(c net.Conn) { p.serveSpan(c) })
	return limit{"raw TCP", func(ctx context.Context, conns int) error {
		return p.overConns(ctx, conns, func(ctx context.Context) (io.ReadWriter, func(), error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", ln.Addr().String())
			return c, func() { _ = c.Close() }, err
		})
	}, l.stop}, nil
}

// configs are what the daemons' endpoints use of crypto/tls, and nothing else of theirs.
func (ids identities) configs() (server, client *tls.Config, err error) {
	s, err := ids.load(sourceName(0))
	if err != nil {
		return nil, nil, err
	}
	r, err := ids.load(receiverName)
	if err != nil {
		return nil, nil, err
	}
	return s.ServerTLS(string(endpoint.Bulk)), r.ClientTLS(sourceName(0), string(endpoint.Bulk)), nil
}

func (p *part) cryptoTLS(ids identities) (limit, error) {
	server, client, err := ids.configs()
	if err != nil {
		return limit{}, err
	}
	ln, err := tls.Listen("tcp", loopback, server)
	if err != nil {
		return limit{}, err
	}
	l := listen(ln, func(c net.Conn) { p.serveSpan(c) })
	return limit{"crypto/tls", func(ctx context.Context, conns int) error {
		return p.overConns(ctx, conns, func(ctx context.Context) (io.ReadWriter, func(), error) {
			d := tls.Dialer{Config: client}
			c, err := d.DialContext(ctx, "tcp", ln.Addr().String())
			return c, func() { _ = c.Close() }, err
		})
	}, l.stop}, nil
}

// quicGo has quic-go's own defaults.
func (p *part) quicGo(ids identities) (limit, error) {
	server, client, err := ids.configs()
	if err != nil {
		return limit{}, err
	}
	ln, err := quic.ListenAddr(loopback, server, nil)
	if err != nil {
		return limit{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() {
				s, err := c.AcceptStream(ctx)
				if err == nil {
					p.serveSpan(s)
				}
				<-c.Context().Done() // its client has read all
			})
		}
	})
	return limit{"stock quic-go", func(ctx context.Context, conns int) error {
		return p.overConns(ctx, conns, func(ctx context.Context) (io.ReadWriter, func(), error) {
			c, err := quic.DialAddr(ctx, ln.Addr().String(), client, nil)
			if err != nil {
				return nil, nil, fmt.Errorf("stock quic-go: %w", err)
			}
			s, err := c.OpenStreamSync(ctx)
			return s, func() { _ = c.CloseWithError(0, "") }, err
		})
	}, func() { cancel(); _ = ln.Close(); wg.Wait() }}, nil
}
