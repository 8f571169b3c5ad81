package journal

import (
	"fmt"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/replica"
)

// AuditFile lies in the state_dir.
const AuditFile = "audit.jsonl"

// Auditor decides what goes into the audit log. What one node causes again and again is written once in a while, with how often: one that
// does not give up must not fill the disk, and must not take the lines of others. Nil writes nothing. Safe for concurrent use.
type Auditor struct {
	Log   *audit.Log
	nodes sync.Map // limiters by node; names are those of certificates
}

// Note writes a line, without fields that are empty.
func (a *Auditor) Note(event string, f audit.Fields) {
	if a == nil {
		return
	}
	for k, v := range f {
		if v == "" {
			delete(f, k)
		}
	}
	a.Log.Append(event, f)
}

// Some writes a line about a node unless one of this kind was written a moment ago; false: it was.
func (a *Auditor) Some(event string, node replica.NodeName, kind string, f audit.Fields) bool {
	if a == nil {
		return false
	}
	l, _ := a.nodes.LoadOrStore(node, new(limiter))
	due, held := l.(*limiter).due(event+" "+kind, time.Now())
	if !due {
		return false
	}
	if held > 0 {
		f["like_it_before"] = fmt.Sprint(held)
	}
	a.Note(event, f)
	return true
}

// Refused writes down what was refused to a node.
func (a *Auditor) Refused(what string, node replica.NodeName, f audit.Fields) {
	f["what"], f["from"] = what, string(node)
	a.Some("refused", node, what, f)
}
