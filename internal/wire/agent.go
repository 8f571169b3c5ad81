package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/replicad/replicad/replica"
)

// Agent is the body of MRunAgent: where an agent of torchrun, for which a launcher stands, is among its rounds. It is whole each time.
type Agent struct {
	ID      string `cbor:"1,keyasint"` // 16 hexadecimal digits, minted by the agent
	Nodes   uint32 `cbor:"2,keyasint"` // how many agents a round takes
	Address string `cbor:"3,keyasint"` // host:port of the store that the agent serves if it leads the next round
	Left    uint64 `cbor:"4,keyasint"` // the newest round that it has left; 0: none
	Round   uint64 `cbor:"5,keyasint"` // that it is in; 0: it waits for one after Left
	Rank    uint32 `cbor:"6,keyasint"` // among the nodes of Round
	Head    string `cbor:"7,keyasint"` // Address of Round's rank 0; empty where there is no Round
	Closed  bool   `cbor:"8,keyasint"` // it has ended by itself, and there is to be no further round
}

// Round is the body of MRunRound: what an agent is to do.
type Round struct {
	ID     string `cbor:"1,keyasint"` // of the agent
	Number uint64 `cbor:"2,keyasint"` // of the round that it is in; 0: it is to wait
	Rank   uint32 `cbor:"3,keyasint"`
	Head   string `cbor:"4,keyasint"`
	Waits  uint32 `cbor:"5,keyasint"` // how many agents wait for this round to be left
	Text   string `cbor:"6,keyasint"` // for people, at most MaxRefusedText bytes
	Closed bool   `cbor:"7,keyasint"` // there is no further round for it, and Text says why
}

// Limits of agents.
const (
	MaxAgentNodes   = 4096
	agentIDDigits   = 16
	maxAgentAddress = 262 // bytes: a name of 255, a colon and a port
	maxAgentBody    = 1 << 10
	maxRoundBody    = 1<<10 + MaxRefusedText
)

// Append appends the body.
func (a Agent) Append(dst []byte) []byte { return appendCBOR(dst, a) }

// Append appends the body.
func (r Round) Append(dst []byte) []byte { return appendCBOR(dst, r) }

func appendCBOR(dst []byte, v any) []byte {
	b, err := Marshal(v)
	if err != nil {
		panic(err) // texts and numbers
	}
	return append(dst, b...)
}

// ParseAgent reads the body of MRunAgent.
func ParseAgent(b []byte) (a Agent, err error) {
	if err := parseCBOR("agent", b, maxAgentBody, &a); err != nil {
		return Agent{}, err
	}
	if !bytes.Equal(a.Append(nil), b) {
		return Agent{}, errors.New("agent: it is not encoded as it is to be")
	}
	if err := a.Check(); err != nil {
		return Agent{}, fmt.Errorf("agent: %w", err)
	}
	return a, nil
}

// ParseRound reads the body of MRunRound.
func ParseRound(b []byte) (r Round, err error) {
	if err := parseCBOR("round", b, maxRoundBody, &r); err != nil {
		return Round{}, err
	}
	if !bytes.Equal(r.Append(nil), b) {
		return Round{}, errors.New("round: it is not encoded as it is to be")
	}
	if err := r.check(); err != nil {
		return Round{}, fmt.Errorf("round: %w", err)
	}
	return r, nil
}

func parseCBOR(what string, b []byte, most int, v any) error {
	if len(b) > most {
		return fmt.Errorf("%s: body of %d bytes, at most %d", what, len(b), most)
	}
	if err := Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Check refuses what no agent says.
func (a Agent) Check() error {
	if err := checkAgentID(a.ID); err != nil {
		return err
	}
	if a.Nodes == 0 || a.Nodes > MaxAgentNodes {
		return fmt.Errorf("rounds of %d nodes: want 1 to %d", a.Nodes, MaxAgentNodes)
	}
	if err := checkAgentAddress(a.Address); err != nil {
		return err
	}
	switch {
	case a.Round == 0 && (a.Rank != 0 || a.Head != ""):
		return fmt.Errorf("rank %d of no round", a.Rank)
	case a.Round == 0:
		return nil
	case a.Round <= a.Left:
		return fmt.Errorf("in round %d, having left round %d", a.Round, a.Left)
	case a.Rank >= a.Nodes:
		return fmt.Errorf("rank %d in a round of %d nodes", a.Rank, a.Nodes)
	}
	return checkAgentAddress(a.Head)
}

func (r Round) check() error {
	if err := checkAgentID(r.ID); err != nil {
		return err
	}
	switch {
	case len(r.Text) > MaxRefusedText:
		return fmt.Errorf("text of %d bytes, at most %d", len(r.Text), MaxRefusedText)
	case r.Number == 0 && (r.Rank != 0 || r.Head != "" || r.Waits != 0):
		return fmt.Errorf("rank %d of no round", r.Rank)
	case r.Number == 0:
		return nil
	case r.Rank >= MaxAgentNodes || r.Waits > MaxAgentNodes:
		return fmt.Errorf("rank %d, and %d agents that wait: at most %d", r.Rank, r.Waits, MaxAgentNodes)
	}
	return checkAgentAddress(r.Head)
}

func checkAgentID(id string) error {
	if b, err := hex.DecodeString(id); err != nil || len(id) != agentIDDigits || hex.EncodeToString(b) != id {
		return fmt.Errorf("agent %q: want %d hexadecimal digits", replica.Line(id, agentIDDigits), agentIDDigits)
	}
	return nil
}

// checkAgentAddress wants what can be dialed, and printed.
func checkAgentAddress(text string) error {
	host, port, err := net.SplitHostPort(text)
	n, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || n == 0 || host == "" || len(text) > maxAgentAddress || replica.Line(text, maxAgentAddress) != text {
		return fmt.Errorf("address %q: want HOST:PORT of at most %d bytes", replica.Line(text, maxAgentAddress), maxAgentAddress)
	}
	return nil
}
