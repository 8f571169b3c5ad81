package journal

import (
	"strings"
	"time"
)

// GossipLog passes on what memberlist warns of. A mixed-up node knocks many times a second, so each kind of line, told by
// how it begins, comes once in a while.
type GossipLog struct {
	log  *Journal
	addr string // this node's gossip address
	limiter
}

// NewGossipLog is the log of the gossip at an address of this node.
func NewGossipLog(log *Journal, addr string) *GossipLog { return &GossipLog{log: log, addr: addr} }

// Line takes a line of memberlist at its level.
func (g *GossipLog) Line(level, text string) {
	says, loud := gossipSays(text)
	ok := false
	if loud && (level == "ERR" || level == "WARN") {
		ok, _ = g.due(text[:min(len(text), 20)], time.Now())
	}
	if !ok {
		g.log.z.Load().Debug().Str("event", "library").Str("what", "gossip").Str("text", says).Msg("library log")
		return
	}
	g.log.Failed("gossip", g.addr, says)
}

// gossipSays is a line of memberlist's as people should read it; loud is false for what needs nobody's eyes.
func gossipSays(text string) (says string, loud bool) {
	switch {
	case strings.Contains(text, "UDP probes failed"):
		return strings.Replace(text, "network may be misconfigured", "one of the two hosts is short of CPU, or datagrams to gossip_addr are dropped; if this goes on, open its port for UDP", 1), true
	case strings.Contains(text, "decrypt"), strings.Contains(text, "label"):
		return text + ": is that node of another cluster, or its gossip key another one? Give both the gossip.key of one `replicad pki init`", true
	}
	return text, true
}
