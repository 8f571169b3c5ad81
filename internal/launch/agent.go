package launch

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/wire"
)

// agentVariable marks the processes that an agent's torchrun starts.
const agentVariable = "REPLICAD_AGENT"

// maxAgentLine bounds a line of an agent's torchrun, in bytes.
const maxAgentLine = 4096

// Agent stands with the daemon for an agent of torchrun, the process at the other ends of in and out. It creates the job unless that runs
// already, as Create does, says which rounds of the job's torchruns the agent is in, and prints what the daemon says to launchers.
// A round takes nodes agents.
//
// It reads lines {"join": "HOST:PORT"} (the agent has no processes, and wants a round; it serves a store there) and {"close": true} (it ends, and so does the
// rendezvous), and writes {"env": {...}, "host": ...} once, {"round": N, "rank": R, "head": "HOST:PORT"}, {"waiting": N} and {"done": CODE, "text": ...}.
// It returns when in ends. Without a close the agent was killed: processes that it has left behind are killed then, since their places are given away.
func Agent(ctx context.Context, o Options, nodes int, in io.Reader, out io.Writer) (code int, err error) {
	if err := o.Validate(); err != nil {
		return 1, err
	}
	if nodes < 1 || nodes > wire.MaxAgentNodes {
		return 1, fmt.Errorf("--nodes %d: want 1 to %d", nodes, wire.MaxAgentNodes)
	}
	o = o.withDefaults()
	o.Capacity, o.Ranks, o.Spare = 0, nil, true // torchrun starts the processes
	var id [8]byte
	rand.Read(id[:])
	linkCtx, unlink := context.WithCancel(ctx)
	a := &agent{opt: o, out: json.NewEncoder(out), is: wire.Agent{ID: hex.EncodeToString(id[:]), Nodes: uint32(nodes)}, lines: make(chan []byte), over: make(chan struct{}), unlink: unlink,
		link: &link{socket: o.Socket, daemons: o.Daemons, hello: o.hello(), wait: o.helloWait, events: make(chan linkEvent)}}
	ended := make(chan struct{})
	go func() { defer close(ended); a.link.run(linkCtx) }()
	go a.read(in) // ends with in, which is not this function's to close
	defer func() { close(a.over); unlink(); <-ended }()
	return a.loop(ctx)
}

// agent is owned by its loop.
type agent struct {
	opt    Options
	link   *link
	unlink context.CancelFunc // for good
	out    *json.Encoder
	lines  chan []byte   // closed where in ends
	failed error         // of reading them; to be read once they are closed
	over   chan struct{} // closed where nobody takes them any more

	conn   *net.UnixConn // nil: the daemon is away
	away   absence       // said once it was there
	ready  bool          // it was there
	heard  bool          // the daemon has said that the request is looked after, since the loop has looked
	joined bool
	done   bool // the job is over, or the rendezvous
	closed bool
	is     wire.Agent
	waits  uint32
	text   string // printed last
}

func (a *agent) read(in io.Reader) {
	defer close(a.lines)
	s := bufio.NewScanner(in)
	s.Buffer(make([]byte, maxAgentLine), maxAgentLine)
	for s.Scan() {
		select {
		case a.lines <- bytes.Clone(s.Bytes()):
		case <-a.over:
			return
		}
	}
	a.failed = s.Err()
}

func (a *agent) loop(ctx context.Context) (int, error) {
	patience := time.NewTimer(a.opt.Patience)
	defer patience.Stop()
	for {
		select {
		case e := <-a.link.events:
			if err := a.onLink(e); err != nil {
				return 1, err
			}
			if a.heard {
				a.heard = false
				patience.Reset(a.opt.Patience)
			}
		case line, ok := <-a.lines:
			if !ok {
				return 0, a.end()
			}
			if err := a.onLine(line); err != nil {
				return 1, err
			}
		case <-patience.C:
			if !a.ready {
				return 1, fmt.Errorf("job %q: %w", a.opt.Job, a.opt.nobody(fmt.Errorf("no answer for %v: %w", a.opt.Patience, a.away.last)))
			}
		case <-ctx.Done():
			return 1, context.Cause(ctx)
		}
	}
}

// end is that of the agent.
func (a *agent) end() error {
	if !a.closed {
		if n := killMarked(agentVariable + "=" + a.is.ID); n > 0 {
			a.opt.Logf("torchrun is gone: %d processes that it left behind were killed", n)
		}
	}
	return a.failed
}

// agentLine is what an agent's torchrun says in a line.
type agentLine struct {
	Join  string `json:"join"`
	Close bool   `json:"close"`
}

func parseAgentLine(line []byte) (c agentLine, err error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err = d.Decode(&c); err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("bytes behind its end")
		}
	}
	if err != nil {
		return agentLine{}, fmt.Errorf("line of torchrun's agent: %w", err)
	}
	return c, nil
}

func (a *agent) onLine(line []byte) error {
	c, err := parseAgentLine(line)
	if err != nil {
		return err
	}
	switch {
	case c.Close:
		a.closed = true
		a.is.Closed = a.joined
	default:
		a.is.Left, a.is.Round, a.is.Rank, a.is.Head, a.is.Address = max(a.is.Left, a.is.Round), 0, 0, "", c.Join
		if err := a.is.Check(); err != nil {
			return fmt.Errorf("line of torchrun's agent: %w", err)
		}
		a.joined, a.waits = true, 0
	}
	a.say()
	return nil
}

// say tells the daemon what the agent stands in; one that comes back is told then.
func (a *agent) say() {
	if a.conn == nil || !a.joined {
		return
	}
	_ = send(a.conn, wire.MRunAgent, a.is.Append(nil)) // the link's reader says so
}

func (a *agent) onLink(e linkEvent) error {
	switch {
	case e.conn != nil:
		if a.away.last != nil && a.ready {
			a.opt.Logf("the daemon on %s is back", a.opt.Socket)
		}
		a.conn, a.away = e.conn, absence{}
		a.say()
		if a.ready {
			return nil
		}
		a.ready = true
		return a.print(map[string]any{"env": a.environ(), "host": a.opt.Host})
	case e.err != nil:
		return a.onAway(e.err)
	default:
		return a.onMessage(e.typ, e.body)
	}
}

// onAway: processes go on without the daemon, and the agent with them. A daemon that refuses it for good leaves one that waits for a round nothing to
// wait for.
func (a *agent) onAway(err error) error {
	a.conn = nil
	refused, ok := errors.AsType[*refusedError](err)
	forGood := ok && refused.Code != wire.CodeAgain
	switch {
	case forGood && !a.ready:
		return fmt.Errorf("job %q: %w", a.opt.Job, err)
	case forGood && (a.is.Round == 0 || refused.Code == wire.CodeStopped):
		return a.finish(1, err.Error())
	case stranger(err) && !a.ready:
		return fmt.Errorf("job %q: %w", a.opt.Job, a.opt.nobody(err))
	case !a.ready: // patience is what it has
		if a.away.last == nil || !errors.Is(err, context.DeadlineExceeded) {
			a.away.last = err
		}
		return nil
	}
	if news := a.away.news(time.Now(), &a.opt, err); news != "" {
		a.opt.Logf("%s; the processes go on, connecting again", news)
	}
	return nil
}

func (a *agent) onMessage(typ uint16, body []byte) error {
	switch typ {
	case wire.MRunRound:
		r, err := wire.ParseRound(body)
		if err != nil {
			return err
		}
		return a.onRound(r)
	case wire.MRunNote, wire.MRefused:
		n, err := wire.ParseRefused(body)
		if err != nil {
			return err
		}
		if n.Text != "" {
			a.opt.Logf("%s", n.Text)
		}
		a.heard = true
	case wire.MRunDone:
		n, err := wire.ParseRefused(body)
		if err != nil {
			return err
		}
		code := int(n.Code)
		if n.Code == wire.DoneStopped {
			code = 0
		}
		return a.finish(code, fmt.Sprintf("job %q is over: %s", a.opt.Job, n.Text))
	}
	return nil
}

func (a *agent) onRound(r wire.Round) error {
	switch {
	case r.ID != a.is.ID || r.Number != 0 && r.Number <= a.is.Left:
		return nil // of before this agent left
	case r.Closed:
		return a.finish(1, r.Text)
	}
	if r.Text != "" && r.Text != a.text {
		a.opt.Logf("%s", r.Text)
	}
	a.text = r.Text
	if r.Number == 0 {
		return nil
	}
	if a.is.Round == 0 {
		a.is.Round, a.is.Rank, a.is.Head, a.waits = r.Number, r.Rank, r.Head, 0
		a.say()
		if err := a.print(map[string]any{"round": r.Number, "rank": r.Rank, "head": r.Head}); err != nil {
			return err
		}
	}
	if r.Waits == a.waits {
		return nil
	}
	a.waits = r.Waits
	return a.print(map[string]any{"waiting": r.Waits})
}

// finish says that there is no further round. A link would make a new job of the name.
func (a *agent) finish(code int, text string) error {
	if a.done {
		return nil
	}
	a.done = true
	a.unlink()
	return a.print(map[string]any{"done": code, "text": text})
}

func (a *agent) print(line map[string]any) error {
	if err := a.out.Encode(line); err != nil {
		return fmt.Errorf("say something to torchrun's agent: %w", err)
	}
	return nil
}

// environ is what the agent's processes find of replicad, by name.
func (a *agent) environ() map[string]string {
	o := a.opt
	o.Env = slices.DeleteFunc(slices.Clone(o.Env), func(e string) bool { return !strings.HasPrefix(e, hashSeed+"=") }) // the rest they have of torchrun's
	env := map[string]string{agentVariable: a.is.ID}
	for _, e := range o.Environ() {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	return env
}
