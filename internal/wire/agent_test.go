package wire

import (
	"strings"
	"testing"
)

const agentID = "00112233445566ff"

func anAgent() Agent { return Agent{ID: agentID, Nodes: 2, Address: "127.0.0.2:41000"} }

// inRound is an agent of round 7.
func inRound(change func(*Agent)) Agent {
	a := anAgent()
	a.Left, a.Round, a.Rank, a.Head = 5, 7, 1, "127.0.0.1:41001"
	change(&a)
	return a
}

func TestAgents(t *testing.T) {
	for _, a := range []Agent{anAgent(), inRound(func(*Agent) {}), inRound(func(a *Agent) { a.Closed = true })} {
		if got, err := ParseAgent(a.Append(nil)); err != nil || got != a {
			t.Errorf("%+v comes as %+v: %v", a, got, err)
		}
	}
	for text, a := range map[string]Agent{
		"hexadecimal":        {ID: "00112233445566FF", Nodes: 1, Address: "a:1"},
		"1 to 4096":          {ID: agentID, Nodes: 4097, Address: "a:1"},
		"want HOST:PORT":     {ID: agentID, Nodes: 1, Address: "a\nb:1"},
		`address "a:0"`:      {ID: agentID, Nodes: 1, Address: "a:0"},
		"of no round":        inRound(func(a *Agent) { a.Round = 0 }),
		"having left":        inRound(func(a *Agent) { a.Left = 7 }),
		"in a round of 2":    inRound(func(a *Agent) { a.Rank = 2 }),
		`address ""`:         inRound(func(a *Agent) { a.Head = "" }),
		"of at most 262":     {ID: agentID, Nodes: 1, Address: strings.Repeat("a", 300) + ":1"},
		"body of 1337 bytes": {ID: agentID, Nodes: 1, Address: strings.Repeat("a", 1300) + ":1"},
	} {
		if got, err := ParseAgent(a.Append(nil)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestRounds(t *testing.T) {
	for _, r := range []Round{{ID: agentID, Text: "waiting"}, {ID: agentID, Number: 7, Rank: 3, Head: "a:1", Waits: 1}, {ID: agentID, Closed: true, Text: "over"}} {
		if got, err := ParseRound(r.Append(nil)); err != nil || got != r {
			t.Errorf("%+v comes as %+v: %v", r, got, err)
		}
	}
	for text, r := range map[string]Round{
		"hexadecimal":   {ID: "x"},
		"of no round":   {ID: agentID, Waits: 1},
		`address ""`:    {ID: agentID, Number: 1},
		"at most 4096":  {ID: agentID, Number: 1, Rank: 4096, Head: "a:1"},
		"text of 1025 ": {ID: agentID, Text: strings.Repeat("a", 1025)},
	} {
		if got, err := ParseRound(r.Append(nil)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// FuzzAgents: whatever comes, what is taken has one encoding.
func FuzzAgents(f *testing.F) {
	f.Add(anAgent().Append(nil))
	f.Add(inRound(func(*Agent) {}).Append(nil))
	f.Add(Round{ID: agentID, Number: 7, Rank: 3, Head: "a:1", Waits: 1}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := ParseAgent(b); err == nil && string(a.Append(nil)) != string(b) {
			t.Errorf("agent %+v", a)
		}
		if r, err := ParseRound(b); err == nil && string(r.Append(nil)) != string(b) {
			t.Errorf("round %+v", r)
		}
	})
}
