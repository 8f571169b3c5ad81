package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

const (
	linkQueue     = 1024                   // frames waiting to be written on a link; one that is full is closed, and opened anew
	linkHandshake = 2 * time.Second        // for hello and welcome; a leader that registers a node writes one log entry meanwhile
	linkDial      = 500 * time.Millisecond // to connect: a dead node must not cost more than the next voter's answer
	linkShun      = 2 * time.Second        // for which a voter whose link just went down is not the first to be asked, and has linkGlance
	linkGlance    = 100 * time.Millisecond // to connect to it: it may be there still, but mostly it is dead
	linkLook      = 20 * time.Millisecond  // between two looks at what this node's own Raft says
	linkRefused   = 200 * time.Millisecond // at most before a voter that refused this node is asked again; twice as long each time, up to
	linkAloof     = 5 * time.Second        // this: what it wants changes by an operator's hand, and each try costs it a handshake
	linkWrite     = 3 * time.Second        // for one frame
	linkBeat      = 200 * time.Millisecond // the leader says something at least so often
	linkSilent    = time.Second            // without a word the node looks for a leader elsewhere: QUIC would take three times as long to notice
)

var (
	errLinkFull     = errors.New("link: the other end does not read")
	errLeaderSilent = errors.New("link: no word from the leader")
	errLeaderMoved  = errors.New("link: this node's Raft follows another leader")
)

// link is one end of the stream between a node and the leader: a bounded queue to its writer, and a reader that hands
// decoded messages on. send never blocks its caller.
type link struct {
	conn net.Conn
	out  chan []byte
	once sync.Once
	up   chan struct{} // closed by the leader, once its end is in use
	down chan struct{}
	err  error // why it went down; read after down is closed

	orders sync.Map // at the leader's end: by id of an order under way, the func(operatorReply) that is told what becomes of it
}

func newLink(conn net.Conn) *link {
	return &link{conn: conn, out: make(chan []byte, linkQueue), up: make(chan struct{}), down: make(chan struct{})}
}

// send queues a message; a link whose queue is full is closed: the node links again and gets the whole state.
func (l *link) send(k wire.Kind, v any) {
	frame, err := wire.Append(nil, k, v)
	if err != nil {
		l.close(fmt.Errorf("encode message %d: %w", k, err))
		return
	}
	l.sendFrames([][]byte{frame})
}

// sendFrames queues what is encoded already.
func (l *link) sendFrames(frames [][]byte) {
	for _, frame := range frames {
		select {
		case l.out <- frame:
		default:
			l.close(errLinkFull)
			return
		}
	}
}

func (l *link) close(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.down)
		l.conn.Close()
	})
}

// run reads until the link is down; handle decodes and passes on. It returns why the link went down, after its writer ended.
func (l *link) run(ctx context.Context, handle func(wire.Kind, []byte) error) error {
	stop := context.AfterFunc(ctx, func() { l.close(context.Cause(ctx)) })
	defer stop()
	var writer sync.WaitGroup
	writer.Go(l.write)
	for {
		k, body, err := wire.Read(l.conn, maxLinkFrame)
		if err == nil {
			err = handle(k, body)
		}
		if err != nil {
			l.close(err)
			break
		}
	}
	writer.Wait()
	return l.err
}

func (l *link) write() {
	for {
		select {
		case <-l.down:
			return
		case frame := <-l.out:
			l.conn.SetWriteDeadline(time.Now().Add(linkWrite)) //nolint:errcheck // a dead stream fails the write
			if _, err := l.conn.Write(frame); err != nil {
				l.close(fmt.Errorf("write: %w", err))
				return
			}
		}
	}
}

// decode reads a message's body into a new T.
func decode[T any](body []byte) (T, error) {
	var v T
	err := wire.Unmarshal(body, &v)
	return v, err
}

// dialer opens a stream to a node for the linker: over the endpoint, or a pipe where the leader is this node.
type dialer func(ctx context.Context, node replica.NodeName, addr string) (net.Conn, error)

// linker keeps one link to whoever leads, for the member. It has one goroutine, run.
type linker struct {
	hello  func() linkHello
	self   func() (leader replica.NodeName, addr string, term uint64) // what this node's own Raft says; empty: nothing
	voters []voterAddr
	dial   dialer
	post   func(memberEvent)      // blocks; false once the member has ended
	failed func(voterAddr, error) // why a voter took no link, other than that it does not lead
}

type voterAddr struct {
	name replica.NodeName
	addr string
}

// run links, again and again, until ctx ends. Targets: the leader that this node's own Raft names, else the voters in turn; a
// redirect is followed at once, but no redirect's redirect: while leadership moves voters may name each other. The one whose
// link was lost is given a glance only, whoever still names it: where it died the others learn that later than this node. A voter
// that refused this node is left alone for a while, longer each time; all others are asked as before.
func (k *linker) run(ctx context.Context) {
	hint, next := voterAddr{}, 0
	away := map[replica.NodeName]aloof{}
	lost, lostAt := replica.NodeName(""), time.Time{}
	shunned := func(n replica.NodeName) bool { return n == lost && time.Since(lostAt) < linkShun }
	for turn := 0; ctx.Err() == nil; turn++ {
		target, redirected := hint, hint.addr != ""
		hint = voterAddr{}
		if !redirected {
			if name, addr, _ := k.self(); addr != "" && !shunned(name) {
				target = voterAddr{name, addr}
			} else {
				target, next = k.following(next, away)
			}
		}
		if wait := time.Until(away[target.name].until); wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
		patience := linkDial
		if shunned(target.name) {
			patience = linkGlance
		}
		w, err := k.once(ctx, target, patience)
		if ctx.Err() != nil {
			return
		}
		if err == nil && w.OK {
			lost, lostAt = target.name, time.Now()
		}
		if err == nil && !w.OK && w.Reason != notLeader {
			err = fmt.Errorf("link to %s: %s", target.name, w.Reason)
		}
		switch {
		case w.Refused || final(err):
			away[target.name] = away[target.name].again(time.Now())
			err = fmt.Errorf("this node is refused: %w", err)
		case err == nil:
			delete(away, target.name)
		}
		if err != nil {
			k.failed(target, err)
		}
		if err == nil && !w.OK && w.Address != "" && w.Leader != target.name && !redirected {
			hint = voterAddr{w.Leader, w.Address}
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(linkRetry(turn)):
		}
	}
}

// following is the voter whose turn it is: the first from next on that is not left alone, or the one whose time is over first.
func (k *linker) following(next int, away map[replica.NodeName]aloof) (voterAddr, int) {
	best, now := next, time.Now()
	for i := next; i < next+len(k.voters); i++ {
		until := away[k.voters[i%len(k.voters)].name].until
		if !until.After(now) {
			best = i
			break
		}
		if until.Before(away[k.voters[best%len(k.voters)].name].until) {
			best = i
		}
	}
	return k.voters[best%len(k.voters)], best + 1
}

// aloof is a voter that has refused this node so many times in a row, and is not asked before a moment.
type aloof struct {
	times int
	until time.Time
}

// again spreads the moment, so that many nodes refused for one reason do not come at once.
func (a aloof) again(now time.Time) aloof {
	pause := min(linkRefused<<min(a.times, 10), linkAloof)
	return aloof{a.times + 1, now.Add(pause/2 + rand.N(pause/2))}
}

// final tells whether a link failed for something that no further try changes: the certificate or release of one end.
func final(err error) bool {
	var closed *endpoint.CloseError
	return errors.Is(err, endpoint.ErrIdentity) || errors.Is(err, wire.ErrVersion) ||
		errors.As(err, &closed) && closed.Remote && (closed.Code == endpoint.CodeRefused || closed.Code == endpoint.CodeNoClass)
}

// linkRetry is 20 to 60 ms, spread so that nodes don't come all at once.
func linkRetry(turn int) time.Duration {
	return 20*time.Millisecond + time.Duration(turn*7%5)*10*time.Millisecond
}

// once runs one link until it goes down; err is nil where the far end answered the hello.
func (k *linker) once(ctx context.Context, target voterAddr, patience time.Duration) (welcome, error) {
	dialCtx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := k.dial(dialCtx, target.name, target.addr)
	if err != nil {
		return welcome{}, fmt.Errorf("link to %s at %s: %w", target.name, target.addr, err)
	}
	l := newLink(conn)
	defer l.close(nil)
	conn.SetDeadline(time.Now().Add(linkHandshake)) //nolint:errcheck // a dead stream fails what follows
	if err := wire.Write(conn, kindLinkHello, k.hello()); err != nil {
		return welcome{}, fmt.Errorf("link to %s: hello: %w", target.name, err)
	}
	kind, body, err := wire.Read(conn, maxLinkFrame)
	if err != nil {
		return welcome{}, fmt.Errorf("link to %s: welcome: %w", target.name, err)
	}
	if kind != kindWelcome {
		return welcome{}, fmt.Errorf("link to %s: message %d instead of a welcome", target.name, kind)
	}
	w, err := decode[welcome](body)
	if err != nil || !w.OK {
		return w, err
	}
	conn.SetDeadline(time.Time{}) //nolint:errcheck // as above
	k.post(linkUp{link: l, welcome: w, leader: target.name})
	quiet := time.AfterFunc(linkSilent, func() { l.close(errLeaderSilent) })
	defer quiet.Stop()
	var looking sync.WaitGroup
	defer looking.Wait() // it ends with the link
	looking.Go(func() { k.leaveFormer(l, target.name, w.Term) })
	var pieces assembly
	err = l.run(ctx, func(kind wire.Kind, body []byte) error {
		quiet.Stop() // what takes its time from here on is this node
		defer quiet.Reset(linkSilent)
		if kind == kindBeat {
			return nil
		}
		if kind == kindPiece {
			p, err := decode[piece](body)
			if err != nil {
				return err
			}
			whole := false
			if kind, body, whole, err = pieces.add(p); err != nil || !whole {
				return err
			}
		}
		ev, err := decodeFromLeader(kind, body)
		if err != nil {
			return fmt.Errorf("message %d from leader %s: %w", kind, target.name, err)
		}
		k.post(fromLeader{link: l, msg: ev})
		return nil
	})
	k.post(linkDown{link: l, err: err})
	return w, nil
}

// leaveFormer closes a link once this node's own Raft follows another leader of a later term: a voter knows that before the
// silence of the former one has lasted.
func (k *linker) leaveFormer(l *link, leader replica.NodeName, term uint64) {
	look := time.NewTicker(linkLook)
	defer look.Stop()
	for {
		select {
		case <-l.down:
			return
		case <-look.C:
			if name, _, now := k.self(); name != "" && name != leader && now > term {
				l.close(errLeaderMoved)
				return
			}
		}
	}
}

func decodeFromLeader(kind wire.Kind, body []byte) (any, error) {
	switch kind {
	case kindView:
		return decode[view](body)
	case kindChange:
		return decode[change](body)
	case kindProgress:
		return decode[progress](body)
	case kindCandidate:
		return decode[replica.Candidate](body)
	case kindOffer:
		return decode[offer](body)
	case kindCapture:
		return decode[captureOrder](body)
	case kindMirror:
		return decode[mirrorOrder](body)
	case kindRecheck:
		return decode[corruptCopy](body)
	case kindClaimReply:
		return decode[claimReply](body)
	case kindCreateReply:
		return decode[createReply](body)
	case kindKVReply:
		return decode[kvReply](body)
	case kindMarker:
		return decode[markerOrder](body)
	case kindStatusReply:
		return decode[statusReply](body)
	case kindAskRegions:
		return decode[regionsOrder](body)
	case kindTell:
		return decode[tell](body)
	case kindRelay:
		return decode[relayOrder](body)
	case kindAskUnheard:
		return decode[unheardQuestion](body)
	}
	return nil, fmt.Errorf("unknown kind")
}

func decodeFromNode(kind wire.Kind, body []byte) (any, error) {
	switch kind {
	case kindReport:
		return decode[replica.NodeReport](body)
	case kindPinned:
		return decode[replica.Pinned](body)
	case kindPassed:
		return decode[replica.Passed](body)
	case kindEvidence:
		return decode[evidence](body)
	case kindReject:
		return decode[rejected](body)
	case kindCorrupt:
		return decode[corruptCopy](body)
	case kindClaim:
		return decode[claimRequest](body)
	case kindCreate:
		return decode[createRequest](body)
	case kindKV:
		return decode[kvRequest](body)
	case kindKept:
		return decode[kvKept](body)
	case kindSuspect:
		return decode[suspect](body)
	case kindShard:
		return decode[shardReport](body)
	case kindMarked:
		return decode[markedReport](body)
	case kindEnd:
		return decode[endRequest](body)
	case kindOperator:
		return decode[operatorRequest](body)
	case kindStatus:
		return decode[statusRequest](body)
	case kindRegions:
		return decode[replica.RegionReport](body)
	case kindUnreached:
		return decode[unreached](body)
	case kindUnheard:
		return decode[unheardAnswer](body)
	case kindAskView:
		return decode[askView](body)
	}
	return nil, fmt.Errorf("unknown kind")
}
