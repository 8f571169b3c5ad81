package hostile

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

// Target is what an attack is told.
type Target struct {
	Dir     string        // of the cluster
	Victim  string        // the node
	Job     string        // that trains
	Hold    time.Duration // how long a pattern of load lasts
	Program string        // replicad
}

// mallory is the node whose certificate a misbehaving peer has. No daemon runs as it.
const mallory = "mallory"

// attack is one pattern under way, in the process that misbehaves.
type attack struct {
	Target
	victim, own *config.Config // the attacked node's, mallory's

	mu     sync.Mutex // guards did
	did    map[string]int
	closer []func()
}

// Done is what an attack reports, as a line of JSON.
type Done struct {
	Did    map[string]int `json:"did"`              // what was done and seen, counted
	Failed string         `json:"failed,omitempty"` // what the daemon did not do though it must
}

// Misbehave runs one pattern to its end and reports on out.
func Misbehave(ctx context.Context, name string, t Target, out io.Writer) error {
	list, unknown := pick([]string{name}, false)
	if len(unknown) > 0 {
		return fmt.Errorf("no pattern is called %q", name)
	}
	// A stranger has a machine of its own: what it computes must not be what the daemons miss.
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 19); err != nil {
		return err
	}
	a := &attack{Target: t, did: map[string]int{}}
	var err error
	if a.victim, err = a.load(t.Victim); err != nil {
		return err
	}
	if a.own, err = a.load(mallory); err != nil {
		return err
	}
	err = list[0].act(ctx, a)
	for _, fn := range slices.Backward(a.closer) {
		fn()
	}
	d := Done{Did: a.did}
	if err != nil {
		d.Failed = err.Error()
	}
	return json.NewEncoder(out).Encode(d)
}

func (a *attack) load(node string) (*config.Config, error) {
	c, err := config.Load(filepath.Join(a.Dir, node+".yaml"))
	if err != nil {
		return nil, err
	}
	return c.WithDefaults(), nil
}

func (a *attack) count(what string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.did[what] += n
}

// counted is how often something was counted.
func (a *attack) counted(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.did[what]
}

func (a *attack) later(fn func()) { a.closer = append(a.closer, fn) }

// identity loads a node's credentials.
func (a *attack) identity(node string) (*pki.Identity, error) {
	c, err := a.load(node)
	if err != nil {
		return nil, err
	}
	return pki.Load(c.PKI.CA, c.PKI.Cert, c.PKI.Key, c.PKI.GossipKey)
}

// as opens an endpoint at a port of mallory's host, with a node's credentials. client changes what a handshake presents; nil: nothing.
func (a *attack) as(id *pki.Identity, client func(*tls.Config)) (*endpoint.Endpoint, error) {
	return a.probing(id, client, id.GossipKeys)
}

// probing is as with other keys of probes.
func (a *attack) probing(id *pki.Identity, client func(*tls.Config), keys func() [][]byte) (*endpoint.Endpoint, error) {
	e, err := endpoint.Listen(endpoint.Config{Addr: net.JoinHostPort(a.own.Host(), "0"), ServerTLS: id.ServerTLS(string(endpoint.Control)), PeerName: pki.PeerName,
		ClientTLS: func(want replica.NodeName, alpn ...string) *tls.Config {
			c := id.ClientTLS(want, alpn...)
			if client != nil {
				client(c)
			}
			return c
		}, ProbeKeys: keys, ResetKey: [32]byte{1}})
	if err == nil {
		a.later(func() { _ = e.Close() }) // the process ends
	}
	return e, err
}

// peer opens an endpoint with mallory's credentials.
func (a *attack) peer() (*endpoint.Endpoint, *pki.Identity, error) {
	id, err := a.identity(mallory)
	if err != nil {
		return nil, nil, err
	}
	e, err := a.as(id, nil)
	return e, id, err
}

// dial connects to the victim.
func (a *attack) dial(ctx context.Context, e *endpoint.Endpoint, c endpoint.Class) (*endpoint.Conn, error) {
	return e.Dial(ctx, a.victim.Addr, a.victim.Node, c)
}

// open connects and opens a stream, which closes its connection too.
func (a *attack) open(ctx context.Context, e *endpoint.Endpoint, c endpoint.Class) (*endpoint.Stream, error) {
	conn, err := a.dial(ctx, e, c)
	if err != nil {
		return nil, err
	}
	s, err := conn.Open(ctx)
	if err != nil {
		conn.Close("")
	}
	return s, err
}

// until calls fn again and again until the pattern has lasted, or it fails.
func (a *attack) until(ctx context.Context, fn func(i int) error) error {
	end := time.Now().Add(a.Hold)
	for i := 0; time.Now().Before(end) && ctx.Err() == nil; i++ {
		if err := fn(i); err != nil {
			return err
		}
	}
	return nil
}

// paced is until with so many calls a second.
func (a *attack) paced(ctx context.Context, perSecond int, fn func(i int) error) error {
	began := time.Now()
	return a.until(ctx, func(i int) error {
		if ahead := time.Duration(i)*time.Second/time.Duration(perSecond) - time.Since(began); ahead > time.Millisecond {
			time.Sleep(ahead)
		}
		return fn(i)
	})
}

// wait lets the pattern last.
func (a *attack) wait(ctx context.Context) { sleep(ctx, a.Hold) }

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// each runs fn for 0 to n-1, so many at once, and returns the first error.
func each(ctx context.Context, n, at int, fn func(i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var g sync.WaitGroup
	for range at {
		g.Go(func() {
			for i := range next {
				if err := fn(i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	g.Wait()
	return context.Cause(ctx)
}

// ends waits until the other end hangs up, for at most so long, and returns what it said before.
func ends(c net.Conn, within time.Duration) (said []byte, err error) {
	_ = c.SetReadDeadline(time.Now().Add(within)) // one that has ended fails the read
	said, err = io.ReadAll(io.LimitReader(c, 1<<20))
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return said, fmt.Errorf("still open after %v", within)
	}
	return said, nil
}

// cases sends one thing after another, each on a stream of its own, and wants the victim to hang up on each.
func (a *attack) cases(ctx context.Context, list map[string][]byte, open func(context.Context) (*endpoint.Stream, error), within time.Duration) error {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		s, err := open(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		_, _ = s.Write(list[name]) // the victim may have hung up already
		if _, err := ends(s, within); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		_ = s.CloseWrite()
		s.Conn().Close("")
		a.count("hung up", 1)
	}
	return nil
}
