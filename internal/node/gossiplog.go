package node

import (
	"strings"
	"sync"
	"time"
)

const (
	gossipLogEvery = 30 * time.Second // between two lines of one kind
	gossipLogKinds = 64
)

// gossipLog passes on what memberlist warns of. A mixed-up node knocks many times a second, so each kind of line, told by
// how it begins, comes once in a while.
type gossipLog struct {
	log  *journal
	addr string // this node's gossip address

	mu   sync.Mutex // guards next
	next map[string]time.Time
}

func newGossipLog(log *journal, addr string) *gossipLog {
	return &gossipLog{log: log, addr: addr, next: map[string]time.Time{}}
}

func (g *gossipLog) line(level, text string) {
	if level != "ERR" && level != "WARN" || !g.due(text[:min(len(text), 20)]) {
		g.log.z.Debug().Str("event", "library").Str("what", "gossip").Str("text", text).Msg("library log")
		return
	}
	if strings.Contains(text, "decrypt") || strings.Contains(text, "label") {
		text += ": is that node of another cluster, or its gossip key another one? Give both the gossip.key of one `replicad pki init`"
	}
	g.log.failed("gossip", g.addr, text)
}

func (g *gossipLog) due(kind string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if now.Before(g.next[kind]) || len(g.next) >= gossipLogKinds && g.next[kind].IsZero() {
		return false
	}
	g.next[kind] = now.Add(gossipLogEvery)
	return true
}
