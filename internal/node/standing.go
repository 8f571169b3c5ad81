package node

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
)

// What a daemon says of its own part in Raft goes to the leader with each hello and each change, and to the others in the welcome of a voter that does
// not lead. Without a leader each node knows of the voters that it asked for a link what they said of themselves.

const (
	diskLook = time.Second // between two looks at the room in state_dir
	diskLow  = 64 << 10    // a log with less room than this, in bytes, takes no further entry: its file grows by pages
	tellLook = 200 * time.Millisecond
)

// raftWord is this daemon's own part in Raft, now.
func (d *daemon) raftWord() control.Standing {
	st, votes := d.standing()
	if !votes {
		return control.Standing{State: control.NoRaft}
	}
	if why := d.diskFull.Load(); why != nil && st.Votes() {
		return control.Standing{State: control.RaftFailed, Why: *why}
	}
	return standingWord(st)
}

func standingWord(st consensus.Standing) control.Standing {
	if st.Votes() {
		return control.Standing{State: control.Votes}
	}
	state := control.RaftFailed
	switch st.Kind {
	case consensus.Learner:
		state = control.Learns
	case consensus.Waiting:
		state = control.WaitsToVote
	case consensus.Behind:
		state = control.LogBehind
	case consensus.Failed, consensus.Voting: // the latter was answered above
	}
	return control.Standing{State: state, Why: st.String()}.Fit()
}

// watchDisk looks whether the voter's log has room, before an entry that has none tells. A file system that hangs holds this goroutine alone.
func (d *daemon) watchDisk(ctx context.Context) error {
	if !d.cfg.IsVoter() {
		return nil
	}
	look := time.NewTicker(diskLook)
	defer look.Stop()
	for {
		d.diskFull.Store(noRoom(d.cfg.StateDir))
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// noRoom says that a directory's file system takes nothing more; nil: it does, or nobody knows.
func noRoom(dir string) *string {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Blocks == 0 { // one without blocks has no such limit
		return nil
	}
	free := fs.Bavail
	if os.Geteuid() == 0 {
		free = fs.Bfree
	}
	text := ""
	switch {
	case fs.Flags&unix.ST_RDONLY != 0:
		text = fmt.Sprintf("its log can't be written: the file system of state_dir %s is read-only: make it writable", dir)
	case free*uint64(fs.Bsize) < diskLow:
		text = fmt.Sprintf("its log can't be written: state_dir %s is full: free space in state_dir", dir)
	default:
		return nil
	}
	return &text
}

// votersKnown is what this node alone can tell of who votes: by its own log, else by its file, with what each said of itself when it was asked for a link.
func (d *daemon) votersKnown() (out []control.VoterStatus) {
	var list []consensus.Voter
	if d.cons != nil {
		list = d.cons.Voters()
		for _, v := range d.cons.Joining() {
			out = append(out, d.voterKnown(v, true))
		}
	}
	if len(list) == 0 {
		for _, v := range d.cfg.Voters {
			list = append(list, consensus.Voter{Name: v.Name, Addr: v.Addr})
		}
	}
	for _, v := range list {
		out = append(out, d.voterKnown(v, false))
	}
	return out
}

func (d *daemon) voterKnown(v consensus.Voter, joining bool) control.VoterStatus {
	now := time.Now()
	is := d.said.Of(v.Name, now)
	if v.Name == d.cfg.Node {
		is = d.raftWord()
	}
	s := control.VoterStatus{Name: v.Name, Addr: v.Addr, Joining: joining, Votes: is.State == control.Votes && !joining, State: is.State.String(), Why: is.Why}
	if is.State != control.VoteUnknown {
		return s
	}
	failed := d.unlinked.Now(now)
	if i := slices.IndexFunc(failed, func(n control.NoLink) bool { return n.Node == v.Name }); i >= 0 {
		s.State, s.Why = "away", failed[i].Why
	}
	return s
}

// keepTelling has the leader know each change of this daemon's part in Raft, until the link is down. It begins with what the hello said.
func keepTelling(l *control.Link, said control.Standing, word func() control.Standing) {
	look := time.NewTicker(tellLook)
	defer look.Stop()
	for {
		select {
		case <-l.Down:
			return
		case <-look.C:
			if is := word(); is != said {
				said = is
				l.Send(is)
			}
		}
	}
}

// notVoting names the voters of a list that say that they do not vote, with why and the remedies; those of which nothing is heard are left out.
func notVoting(list []control.VoterStatus) (out []string) {
	for _, v := range list {
		if !v.Votes && !v.Joining && v.Why != "" && v.State != "away" {
			out = append(out, fmt.Sprintf("%s does not vote: %s", v.Name, v.Why))
		}
	}
	return out
}
