package bench

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

const (
	mostSources  = 4
	receiverName = replica.NodeName("receiver")
	tcpLanes     = 2 // of a daemon to each holder, beside one over QUIC: internal/node's, which is not ours to import
)

func sourceName(i int) replica.NodeName { return replica.NodeName(fmt.Sprintf("source-%d", i+1)) }

// stand is what transfers need: a part, who may have it, and all that has to be stopped.
type stand struct {
	part     *part
	ids      identities
	sources  []*node
	receiver *node
	plain    *listener
	raw, tls limit
	quic     limit
	stops    []func()
}

// newStand starts sources, a receiver, and the servers of the limits.
func newStand(dir string, bytes uint64) (s *stand, err error) {
	s = &stand{}
	defer func() {
		if err != nil {
			s.stop()
			err = fmt.Errorf("set up transfers: %w", err)
		}
	}()
	if s.part, err = newPart(bytes); err != nil {
		return s, err
	}
	names := []replica.NodeName{receiverName}
	for i := range mostSources {
		names = append(names, sourceName(i))
	}
	if s.ids, err = newIdentities(dir, names...); err != nil {
		return s, err
	}
	for _, name := range names {
		n, err := s.ids.start(name, s.part, nil)
		if err != nil {
			return s, err
		}
		s.stops = append(s.stops, n.stop)
		if name == receiverName {
			s.receiver = n
		} else {
			s.sources = append(s.sources, n)
		}
	}
	if s.plain, err = s.part.servePlain(nil); err != nil {
		return s, err
	}
	s.stops = append(s.stops, s.plain.stop)
	for _, l := range []struct {
		to    *limit
		start func() (limit, error)
	}{{&s.raw, s.part.rawTCP}, {&s.tls, func() (limit, error) { return s.part.cryptoTLS(s.ids) }}, {&s.quic, func() (limit, error) { return s.part.quicGo(s.ids) }}} {
		if *l.to, err = l.start(); err != nil {
			return s, err
		}
		s.stops = append(s.stops, l.to.stop)
	}
	return s, nil
}

func (s *stand) stop() {
	for _, stop := range s.stops {
		stop()
	}
}

// servePlain serves the part over connections without TLS.
func (p *part) servePlain(wrap func(net.Conn) net.Conn) (*listener, error) {
	ln, err := net.Listen("tcp", loopback)
	if err != nil {
		return nil, err
	}
	return listen(ln, func(c net.Conn) {
		if wrap != nil {
			c = wrap(c)
		}
		_ = transfer.Serve(context.Background(), receiverName, c, p, nil) // the receiver's report says what went wrong
	}), nil
}

// contest is a transfer beside its limit.
type contest struct {
	name    string
	limit   *limit
	conns   int // of the limit
	want    bound
	sources func() []transfer.Source
}

// contests are the transfers by lane and by mix.
func (s *stand) contests() (list []contest) {
	many := func(n int, source func() transfer.Source) func() []transfer.Source {
		return func() (list []transfer.Source) {
			for range n {
				list = append(list, source())
			}
			return list
		}
	}
	for _, n := range []int{1, 2} {
		list = append(list, contest{fmt.Sprintf("transfer/plain/%d", n), &s.raw, n, atLeast(0.95), many(n, func() transfer.Source { return overPlain(sourceName(0), s.plain.Addr().String()) })})
	}
	for _, n := range []int{1, 2, 4} {
		list = append(list, contest{fmt.Sprintf("transfer/tls/%d", n), &s.tls, n, atLeast(1.3), many(n, func() transfer.Source { return s.sources[0].overTLS(s.receiver) })})
	}
	for _, n := range []int{1, 2} {
		c := contest{fmt.Sprintf("transfer/quic/%d", n), &s.quic, n, bound{}, many(n, func() transfer.Source { return s.sources[0].overQUIC(s.receiver) })}
		if n == 1 {
			c.want = atLeast(1.25)
		}
		list = append(list, c)
	}
	for n := 1; n <= mostSources; n++ {
		list = append(list, contest{fmt.Sprintf("transfer/default/%d-%s", n, plural(n, "source")), &s.tls, n * tcpLanes, bound{}, func() []transfer.Source { return s.defaultLanes(n) }})
	}
	return list
}

// defaultLanes are those of a daemon to so many holders.
func (s *stand) defaultLanes(n int) (list []transfer.Source) {
	for _, source := range s.sources[:n] {
		list = append(list, source.overQUIC(s.receiver))
		for range tcpLanes {
			list = append(list, source.overTLS(s.receiver))
		}
	}
	return list
}

// rate is how many GB a second move takes the part at.
func (p *part) rate(move func(context.Context) error) measure {
	return func(ctx context.Context) (float64, error) {
		began := time.Now()
		if err := move(ctx); err != nil {
			return 0, err
		}
		return float64(p.bytes()) / 1e9 / time.Since(began).Seconds(), nil
	}
}

// fetch brings the part once, verified.
func (p *part) fetch(ctx context.Context, sources []transfer.Source) error {
	r, err := transfer.Fetch(ctx, p.key, sources, p.sink().begin)
	if err == nil && r.Bytes != p.bytes() {
		err = fmt.Errorf("a fetch brought %d of %d bytes: %+v", r.Bytes, p.bytes(), r)
	}
	return err
}

func (s *stand) run(ctx context.Context, c contest, rounds int) (Figure, error) {
	values, limits, err := alternate(ctx, rounds,
		s.part.rate(func(ctx context.Context) error { return c.limit.move(ctx, c.conns) }),
		s.part.rate(func(ctx context.Context) error { return s.part.fetch(ctx, c.sources()) }))
	return newFigure(c.name, "GB/s", values, fmt.Sprintf("%s, %d %s", c.limit.name, c.conns, plural(c.conns, "connection")), limits, c.want), err
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// mostPartMiB is what a transfer moves at most: sender and receiver hold it both.
const mostPartMiB = 8 << 10

// transferJobs has one job: setting up costs a second, and twice the part's memory.
func transferJobs(opt Options) []job {
	bytes := opt.PartMiB * mib
	switch {
	case bytes > 0:
	case opt.Quick:
		bytes = 64 * mib
	default:
		bytes = 256 * mib
	}
	return []job{{"transfer/", func(ctx context.Context, r *runner) error {
		s, err := newStand(r.sub("transfer"), bytes)
		if err != nil {
			return err
		}
		defer s.stop()
		for _, c := range s.contests() {
			if !(job{name: c.name}).wanted(r.opt.Only) {
				continue
			}
			r.say("%s: %d rounds of %d MiB ...", c.name, r.rounds, bytes/mib)
			f, err := s.run(ctx, c, r.rounds)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			r.add(f)
		}
		return nil
	}}}
}
