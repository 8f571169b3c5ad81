package host

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// linkage is the link to the leader, and what the leader has told this node. Owned by run.
type linkage struct {
	link         *control.Link    // nil while no leader is known
	leader       replica.NodeName // of link
	term         uint64
	era          replica.Era
	nodes        map[replica.NodeName]replica.Node
	informed     bool                  // a view came since start: jobs can be judged
	told         control.Told          // by the leader of link
	asked        bool                  // for a whole view, which has not come
	questions    map[uint64]chan<- any // to the leader, not answered
	unlinked     time.Time             // since when there is no link to a leader; zero: there is one
	saidNoLeader time.Time             // when the log was told so, zero: not yet
	suspects     []control.Suspect     // what the last round of probes gave cause for
}

// send sends the leader something. Without a link it is dropped: resend repeats what still matters.
func (l *linkage) send(v any) {
	if l.link != nil {
		l.link.Send(v)
	}
}

// suspected tells the leader which nodes the last round of probes gave cause to suspect. A leader that comes meanwhile is told
// too (resend): where the lost node led, a witness's word waits for its successor, not for the next round.
func (l *linkage) suspected(s []control.Suspect) {
	l.suspects = s
	for _, s := range s {
		l.send(s)
	}
}

// answered passes an answer of the leader's on to who asked.
func (l *linkage) answered(id uint64, reply any) {
	if answer := l.questions[id]; answer != nil {
		delete(l.questions, id)
		answer <- reply
	}
}

// unanswered ends all that was asked: no answer will come.
func (l *linkage) unanswered() {
	for id, ch := range l.questions {
		delete(l.questions, id)
		close(ch)
	}
}

// unheard are the registered nodes that did not answer this one's newest probe.
func (h *Host) unheard() (names []replica.NodeName) {
	for name := range h.nodes {
		if name != h.self.Name && !h.hears(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// remedy is what it takes to have a leader, as the journal's NoLeader names it.
func (h *Host) remedy() string {
	if h.notVoting != nil {
		if why := h.notVoting(); len(why) > 0 {
			return strings.Join(why, "; ")
		}
	}
	n := len(h.cfg.Voters)
	return fmt.Sprintf("%d of the %d voters must run and reach each other, and this node must reach them", n/2+1, n)
}
