package roomtest

import (
	"os"
	"testing"

	"github.com/replicad/replicad/internal/wire"
)

// Peer is a session, and what its process was sent and has not read.
type Peer struct {
	T       *testing.T
	Session uint64
	Process int
	Began   uint64 // the process
	User    int
	Short   error // why no descriptor reaches it
	Got     []Message
}

// Message is one to a process.
type Message struct {
	Head wire.RankHeader
	Body []byte
}

func (p *Peer) ID() uint64        { return p.Session }
func (p *Peer) PID() int          { return p.Process }
func (p *Peer) StartTime() uint64 { return p.Began }
func (p *Peer) UID() int          { return p.User }
func (p *Peer) Close()            {}

func (p *Peer) Send(h wire.RankHeader, body []byte) error {
	p.Got = append(p.Got, Message{h, body})
	return nil
}

func (p *Peer) SendFile(h wire.RankHeader, body []byte, _ *os.File) error {
	if p.Short != nil {
		return p.Short
	}
	return p.Send(h, body)
}

func (p *Peer) Refuse(req uint32, code int32, text string) {
	p.Got = append(p.Got, Message{wire.RankHeader{Type: wire.MRefused, Request: req}, wire.Refused{Code: code, Text: text}.Append(nil)})
}

// Reads takes the next message.
func (p *Peer) Reads() (wire.RankHeader, []byte) {
	p.T.Helper()
	if len(p.Got) == 0 {
		p.T.Fatal("the process was sent nothing more")
	}
	m := p.Got[0]
	p.Got = p.Got[1:]
	return m.Head, m.Body
}
