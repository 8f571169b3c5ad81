package endpoint

import (
	"sync"

	"github.com/quic-go/quic-go"
)

// windows lends receive windows out of one budget, so that many fast senders can't make this node hold more than it.
type windows struct {
	mu     sync.Mutex // guards both
	lent   uint64
	byConn map[*quic.Conn]uint64
}

// allow is called by quic-go from the connection's goroutine; a refused increase leaves the window as it is.
func (w *windows) allow(c *quic.Conn, delta uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lent+delta > windowBudget {
		return false
	}
	w.lent += delta
	w.byConn[c] += delta
	return true
}

func (w *windows) giveBack(c *quic.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lent -= w.byConn[c]
	delete(w.byConn, c)
}
