package ranklife

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/session"
)

// Patience is how long what must come may take before a scenario is given up.
const Patience = 30 * time.Second

// Node is where a scenario's ranks connect.
type Node interface {
	Events() <-chan session.Event
	// Watch has the end of a rank's process reported as an event.
	Watch(session.Peer) error
	// Leave ends the daemon, and with it its sessions. Return starts the next one.
	Leave()
	Return()
}

// Idler is a node in virtual time: it waits until its ranks wait for time to pass. So what happens next happens at a certain moment.
type Idler interface{ Idle() }

// Client is the program of a rank.
type Client interface {
	// Do has it carry out a command; "die" kills its process.
	Do(command string) error
	// Answers are what it gets, one for each command. An answer is a word, and may have a text behind a colon. nil: it goes by itself, and
	// what the table has it get is passed over.
	Answers() <-chan string
}

// Play plays a scenario. A client that is nil follows its own program: what the table bids it to do, and what it gets, is passed over.
func Play(t testing.TB, s Scenario, n Node, c Client) {
	t.Helper()
	p := &play{t: t, node: n, client: c, daemon: newDaemon(n.Watch)}
	defer p.daemon.close()
	for _, p.at = range s.Lines {
		p.line()
		if t.Failed() {
			return
		}
	}
}

type play struct {
	t      testing.TB
	node   Node
	client Client
	daemon *daemon
	at     Line
	last   string          // what the rank sent last
	may    string          // what it may send beside the table's next lines
	early  []session.Event // that came while an answer was awaited
}

func (p *play) line() {
	p.t.Helper()
	text := p.at.Text
	if idler, is := p.node.(Idler); is && (p.at.Verb == does || p.at.Verb == leader) {
		idler.Idle()
	}
	switch p.at.Verb {
	case does:
		if p.client != nil {
			p.check(p.client.Do(text))
		}
	case gets:
		if p.client != nil && p.client.Answers() != nil {
			p.gets(text)
		}
	case sends:
		p.sends(text)
	case may:
		p.may = text
	case life:
		if got := p.daemon.life(); got != text {
			p.failf("the daemon has the rank as %s", got)
		}
	case leader:
		p.leader(text)
	}
}

// sends awaits the next message. A rank that waits repeats itself, as often as the machine is slow: what it sends again is passed over.
func (p *play) sends(want string) {
	p.t.Helper()
	late := time.After(Patience)
	for {
		var ev session.Event
		if len(p.early) > 0 {
			ev, p.early = p.early[0], p.early[1:]
		} else {
			select {
			case ev = <-p.node.Events():
			case <-late:
				p.failf("the rank sends nothing; its program gets %q", p.pending())
				return
			}
		}
		got := line(ev)
		if got != want && !p.passes(got) {
			p.failf("the rank sends %q", got)
			return
		}
		p.check(p.daemon.hears(ev))
		if got == want {
			p.last = got
			return
		}
	}
}

// gets awaits the program's answer. Meanwhile the daemon takes what the rank repeats: it waits for the answer to the newest. Anything else
// is for the lines that follow.
func (p *play) gets(want string) {
	p.t.Helper()
	late := time.After(Patience)
	for {
		select {
		case ev := <-p.node.Events():
			if len(p.early) > 0 || !p.passes(line(ev)) {
				p.early = append(p.early, ev)
				continue
			}
			p.check(p.daemon.hears(ev))
		case got := <-p.client.Answers():
			if !same(got, want) {
				p.failf("the program gets %q", got)
			}
			return
		case <-late:
			p.failf("the program gets nothing; the rank has sent %d more messages", len(p.early))
			return
		}
	}
}

// passes reports whether a message is passed over.
func (p *play) passes(got string) bool { return got == "" || got == p.last || got == p.may }

// same compares an answer with the table's: the word as a whole, and the text as a part of what a person reads.
func same(got, want string) bool {
	word, text, _ := strings.Cut(got, ": ")
	wantWord, wantText, _ := strings.Cut(want, ": ")
	return word == wantWord && strings.Contains(text, wantText)
}

// pending is what the program has got meanwhile, for a person to read.
func (p *play) pending() string {
	if p.client == nil || p.client.Answers() == nil {
		return ""
	}
	select {
	case got := <-p.client.Answers():
		return got
	default:
		return ""
	}
}

func (p *play) leader(what string) {
	p.t.Helper()
	switch what {
	case "hangs up":
		p.daemon.rank.Peer.Close()
		p.daemon.rank.Peer = nil
	case "is away":
		p.daemon.rank = nil // the next daemon knows the arena, and nothing else
		p.node.Leave()
	case "is back":
		p.node.Return()
	default:
		p.check(p.daemon.leads(what))
	}
}

func (p *play) check(err error) {
	p.t.Helper()
	if err != nil {
		p.failf("%v", err)
	}
}

func (p *play) failf(format string, args ...any) {
	p.t.Helper()
	p.t.Errorf("line %d: %s %s: "+format, append([]any{p.at.Number, p.at.Verb, p.at.Text}, args...)...)
}
