// Package voters is the leader's room for who votes: what Raft's configuration says, beside what each daemon says of its own Raft. It reads no clock
// and sends nothing.
package voters

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// Seat is a node in Raft's configuration.
type Seat struct {
	Name    replica.NodeName
	Addr    string
	Joining bool // it gets the log and has no vote
}

// Seen is what the leader knows of a node beside what it says.
type Seen struct {
	Linked, Quiet, Revoked bool
}

// Book is what the daemons said of their own part in Raft. The zero value is ready.
type Book struct {
	said map[replica.NodeName]control.Standing

	since  *time.Duration // since when it is short of voters; nil: it is not
	warned int            // how short launchers were told that it is
}

// Heard takes in what a daemon says of itself.
func (b *Book) Heard(from replica.NodeName, s control.Standing) {
	if b.said == nil {
		b.said = map[replica.NodeName]control.Standing{}
	}
	b.said[from] = s
}

// Mute tells whether a daemon says of itself that it does not vote.
func (b *Book) Mute(n replica.NodeName) bool {
	is := b.said[n].State
	return is != control.Votes && is != control.VoteUnknown
}

// Forget forgets all: this node leads no more.
func (b *Book) Forget() { *b = Book{} }

// Table says of each node in Raft's configuration whether it votes now, and if not, why and what to do. A node counts as a vote while it has a link
// to the leader and says on it that its Raft votes; the leader does without, but where it says that its log takes nothing more: others may go on in its term
// with what it had proposed.
func (b *Book) Table(seats []Seat, self replica.NodeName, seen func(replica.NodeName) Seen) (out []control.VoterStatus) {
	for _, s := range seats {
		v := control.VoterStatus{Name: s.Name, Addr: s.Addr, Joining: s.Joining}
		v.State, v.Why = b.judge(s, self, seen(s.Name))
		v.Votes = v.State == control.Votes.String()
		out = append(out, v)
	}
	slices.SortFunc(out, func(x, y control.VoterStatus) int { return cmp.Compare(x.Name, y.Name) })
	return out
}

// away is the state of a voter that the leader has no word of.
const away = "away"

func (b *Book) judge(s Seat, self replica.NodeName, seen Seen) (state, why string) {
	is := b.said[s.Name]
	switch {
	case s.Name == self && !s.Joining && is.State == control.RaftFailed && is.Why != "":
		return is.State.String(), is.Why
	case s.Name == self && !s.Joining:
		return control.Votes.String(), ""
	case seen.Revoked && !seen.Linked:
		return away, fmt.Sprintf("its certificate is revoked: issue another (replicad pki renew %s), or take its vote away (replicad voter remove %s)", s.Name, s.Name)
	case seen.Quiet && !seen.Linked:
		return away, fmt.Sprintf("its host is silent: bring it back, or replace it (replicad voter add, then replicad voter remove %s)", s.Name)
	case !seen.Linked:
		return away, fmt.Sprintf("its daemon has no link to the leader, node %s: start it; if it runs, its log says why", self)
	case s.Joining:
		return control.Learns.String(), fmt.Sprintf("it has the log and no vote: add it again (replicad voter add %s %s), or remove it (replicad voter remove %s)", s.Name, s.Addr, s.Name)
	case is.State == control.Votes:
		return is.State.String(), ""
	case is.State == control.NoRaft && is.Why == "":
		return is.State.String(), fmt.Sprintf("its configuration does not name it among the voters: correct that and start it again, or take its vote away (replicad voter remove %s)", s.Name)
	case is.Why == "":
		return is.State.String(), "it did not say why: its log does"
	}
	return is.State.String(), is.Why
}

// Mute are the voters of a table that do not vote.
func Mute(table []control.VoterStatus) (out []replica.NodeName) {
	for _, v := range table {
		if !v.Joining && !v.Votes {
			out = append(out, v.Name)
		}
	}
	return out
}

// Voters are those of a table that have a vote, whether or not they use it.
func Voters(table []control.VoterStatus) (out []replica.NodeName) {
	for _, v := range table {
		if !v.Joining {
			out = append(out, v.Name)
		}
	}
	return out
}

// warnAfter is for how long a voter may not vote before launchers hear of it: a daemon's restart takes less.
const warnAfter = 10 * time.Second

// Due is what launchers are to be told now: once, that the next loss of a voter would stop commits although it need not; once, that so few vote that
// nothing is committed; and once that this is over. Empty: nothing.
func (b *Book) Due(table []control.VoterStatus, now time.Duration) string {
	votes, of := control.Quorum(table)
	short := shortness(votes, of)
	switch {
	case short == enough:
		b.since = nil
		if b.warned == enough {
			return ""
		}
		b.warned = enough
		return fmt.Sprintf("%d of the %d voters vote again: the loss of one stops no commits", votes, of)
	case b.since == nil:
		b.since = &now
	}
	if b.warned >= short || now-*b.since < warnAfter {
		return ""
	}
	b.warned = short
	return "warning: " + Short(table)
}

// How short of voters that vote a cluster is.
const (
	enough  = iota
	scarce  // the loss of one more stops commits, though with all of them it would not
	stopped // no majority votes
)

func shortness(votes, of int) int {
	switch {
	case 2*votes <= of:
		return stopped
	case of < 3 || votes == of || 2*(votes-1) > of:
		return enough
	}
	return scarce
}

// Short says that nothing is committed, or that the loss of one more voter would stop commits, because others do not vote, which those are, and the
// remedies. Empty: neither, or there are so few voters that the loss of one always does.
func Short(table []control.VoterStatus) string {
	votes, of := control.Quorum(table)
	what := ""
	switch shortness(votes, of) {
	case enough:
		return ""
	case scarce:
		what = "the loss of one of them stops commits"
	case stopped:
		what = fmt.Sprintf("nothing is committed until %d do", of/2+1)
	}
	var mute []string
	for _, v := range table {
		if !v.Joining && !v.Votes {
			mute = append(mute, fmt.Sprintf("%s does not vote: %s", v.Name, v.Why))
		}
	}
	return fmt.Sprintf("%d of the %d voters vote, and %s: %s", votes, of, what, strings.Join(mute, "; "))
}
