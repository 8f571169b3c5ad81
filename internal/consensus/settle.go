package consensus

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/franchise"
	"github.com/replicad/replicad/replica"
)

const (
	settleLate  = 10                     // heartbeats: for so long who has a log waits for all others, before a majority with itself is enough
	settleTick  = 100 * time.Millisecond // between two rounds of questions, at most
	leastWithin = time.Minute            // for so long a voter that may have acknowledged more than it has waits for who has that
	voteWithin  = 2 * time.Second        // for a voter to see the entry that lets it vote
	settleAgain = 2 * time.Second        // once it only waits to be taken in
)

// own is what this voter knows of itself.
func (n *Node) own(kept remembered, knows, began, late bool) franchise.Own {
	own := franchise.Own{Name: n.cfg.ID, Log: n.store.marked(), Kept: kept.Log, Knows: knows, Members: n.members(), Bootstrap: n.cfg.Bootstrap, Began: began, Late: late}
	if b := n.ballot; b != nil {
		b.mu.Lock()
		own.Taken = b.bound.Term > 0 && !b.bound.Done
		b.mu.Unlock()
	}
	return own
}

// members are the voters: of the log, else of the configuration.
func (n *Node) members() (names []replica.NodeName) {
	for _, v := range n.electorate() {
		names = append(names, v.Name)
	}
	return names
}

func (n *Node) electorate() (voters []Voter) {
	c := n.opened
	if r := n.running.Load(); r != nil {
		c = r.GetConfiguration().Configuration()
	}
	for _, s := range c.Servers {
		if s.Suffrage == raft.Voter {
			voters = append(voters, Voter{replica.NodeName(s.ID), string(s.Address)})
		}
	}
	if len(c.Servers) == 0 {
		voters = n.cfg.Voters
	}
	return voters
}

// settle runs until this voter votes, or the node ends.
func (n *Node) settle() {
	a := n.newAsker()
	defer a.close()
	began, heard, late := false, map[replica.NodeName]franchise.Answer{}, time.Now().Add(settleLate*n.cfg.Heartbeat)
	for n.ctx.Err() == nil {
		wait := min(settleTick, n.cfg.Heartbeat/3)
		switch n.ballot.is() {
		case votes:
			n.stand(Standing{})
			return
		case learns:
			if n.mayVoteAgain() {
				continue
			}
			n.stand(n.learner())
		default:
			n.questions(a, heard)
			v := franchise.Judge(n.own(n.kept, n.knows, began, time.Now().After(late)), heard)
			switch v.Do {
			case franchise.Begin:
				if n.cfg.Join {
					break // it was not among those who begin
				}
				if err := n.begin(); err != nil {
					n.cfg.Logger.Error("the first entry was not written, and is tried again", "error", err)
				} else {
					began = true
				}
			case franchise.Vote:
				n.ballot.opens(v)
				continue
			case franchise.Learn:
				if v.Cause == franchise.Old {
					n.kept.Log = v.Known // also once who said so has gone
				}
				n.ballot.asksIn()
				wait = min(settleAgain, 5*n.cfg.Heartbeat)
			default:
			}
			n.stand(n.waits(v))
		}
		select {
		case <-n.ctx.Done():
		case <-time.After(wait):
		case <-n.taken:
		}
	}
}

// questions asks all others, at once.
func (n *Node) questions(a *asker, heard map[replica.NodeName]franchise.Answer) {
	var mu sync.Mutex // guards heard
	var asked sync.WaitGroup
	for _, v := range n.electorate() {
		if v.Name == n.cfg.ID {
			continue
		}
		asked.Go(func() {
			if to := n.addrOf(raft.ServerID(v.Name)); to != "" {
				v.Addr = to
			}
			got, err := a.ask(v, nil)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				delete(heard, v.Name) // who has gone since may come back as somebody else
				return
			}
			heard[v.Name] = franchise.Answer{Log: got.Log, OfYou: got.OfYou, Members: got.Members, Forgot: got.Needs || got.Learns}
		})
	}
	asked.Wait()
}

// begin writes the first entry, into a running raft.
func (n *Node) begin() error { return n.raft.BootstrapCluster(n.first()).Error() }

// first is the configuration that a cluster begins with: the same on each voter.
func (n *Node) first() (c raft.Configuration) {
	for _, v := range n.cfg.Voters {
		c.Servers = append(c.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(v.Name), Address: raft.ServerAddress(v.Addr)})
	}
	return c
}

// invited takes an invite: from here on this voter takes entries.
func (n *Node) invited(inv invite) error {
	b := n.ballot
	b.mu.Lock()
	is := b.phase
	b.mu.Unlock()
	switch {
	case inv.Life != n.life || is == votes:
		return fmt.Errorf("node %s has started again, or votes, and needs no such invite", n.cfg.ID)
	case is == learns:
		return nil
	}
	to := bound{Term: inv.Term, Index: inv.Index, Returns: inv.Returns}
	if err := n.store.Set(boundKey, to.marshal()); err != nil {
		return err
	}
	b.mu.Lock()
	b.phase, b.bound, b.floor = learns, to, inv.Term
	b.mu.Unlock()
	n.cfg.Logger.Warn("a leader takes this voter in: it gets the log, and votes once it has it, in later terms than this", "term", inv.Term)
	nudge(n.taken)
	return nil
}

// mayVoteAgain opens the ballot once this voter has the entry that lets it vote again.
func (n *Node) mayVoteAgain() bool {
	b := n.ballot
	b.mu.Lock()
	to := b.bound
	b.mu.Unlock()
	if n.raft.CommitIndex() < to.Index || !slices.Contains(n.members(), n.cfg.ID) {
		return false
	}
	to.Done, to.Term = true, max(to.Term, n.raft.CurrentTerm())
	if err := n.store.Set(boundKey, to.marshal()); err != nil {
		n.cfg.Logger.Error("this voter stays without a vote until it can write its log", "error", err)
		return false
	}
	n.stands.Store(&Standing{})
	b.mu.Lock()
	b.phase, b.bound, b.floor = votes, to, to.Term
	b.mu.Unlock()
	n.cfg.Logger.Warn("this voter votes again", "after term", to.Term)
	n.news.poke()
	return true
}

func (b *ballot) is() phase {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.phase
}

// opens lets this voter vote.
func (b *ballot) opens(v franchise.Verdict) {
	b.mu.Lock()
	b.phase, b.floor, b.least, b.until = votes, max(b.floor, v.Floor), v.Least, time.Now().Add(leastWithin)
	b.remember(b.n.store.marked())
	b.mu.Unlock()
	b.n.news.poke()
}

// asksIn has a leader know that this voter waits for it.
func (b *ballot) asksIn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == asks {
		b.phase = needs
	}
}

// stand notes where this voter stands, and says so where that is new.
func (n *Node) stand(s Standing) {
	was := n.stands.Swap(&s)
	if was != nil && was.String() == s.String() {
		return
	}
	if s.Kind != Voting {
		n.cfg.Logger.Warn("this voter " + s.String())
	}
	n.news.poke()
}

// waits says what a voter that does not vote waits for.
func (n *Node) waits(v franchise.Verdict) Standing {
	s := Standing{Kind: Waiting, For: v.For}
	gone := "bring them back; for one that is gone for good, replicad voter remove NAME while a leader is known, else replicad voter recover on a voter that has a log"
	switch {
	case n.cfg.Join && n.store.marked().Disk() == franchise.Empty:
		s.For = nil
		s.Why = "it waits to be added to the voters"
		s.Remedy = fmt.Sprintf("replicad voter add %s %s", n.cfg.ID, n.cfg.Addr)
	case v.Do == franchise.Begin:
		s.Why = "it begins the cluster"
	case v.Do == franchise.Learn:
		s.Kind, s.For = Learner, nil
		s.Why = "its log is empty, and there is a history: the next leader takes it in under its name"
		if v.Cause == franchise.Old {
			s.Kind = Behind
			s.Why = fmt.Sprintf("its log reaches entry %d of term %d, and it is known to have promised up to entry %d in term %d: an old copy was put back, or the disk lost what it had written. The next leader takes it in under its name",
				n.store.marked().Index, n.store.marked().Term, v.Known.Index, v.Known.Term)
		}
		if v.Cause == franchise.Unsure {
			s.Why = "its log is of when a leader took it in, and since then its machine has started again: what it has promised meanwhile nobody remembers. The next leader takes it in once more"
		}
		s.Remedy = "a leader comes once a majority of voters with their logs is up; if too many are lost for good, replicad voter recover on a voter that has a log"
		if v.Cause == franchise.Lost && len(v.For) == 0 {
			s.Why = "its log is empty, and its keeper or another voter remembers that it had one"
			s.Remedy += "; if the logs of all are lost for good, end the keepers too, and start with --bootstrap"
		}
	case v.Cause == franchise.NobodyHas:
		s.For = nil
		s.Why = "no voter has a log, and none was told to begin a cluster"
		s.Remedy = "start one of them with replicad daemon --bootstrap"
	case v.Cause == franchise.Differ:
		s.Why = "their configurations name other voters than this node's"
		s.Remedy = "put the same list of voters into the configuration of each node, and start their daemons again"
	case v.Cause == franchise.Unbegun:
		s.Why = "they have not begun yet"
	case n.store.marked().Disk() == franchise.Empty:
		s.Why = "its log is empty, and one that does not answer may have the cluster's history"
		s.Remedy = gone
	default:
		s.Why = "after the start of this node its log is held against what the others have seen of it"
		s.Remedy = gone
	}
	return s
}

// learner is the standing of one that was invited.
func (n *Node) learner() Standing {
	return Standing{Kind: Learner, Why: fmt.Sprintf("a leader took it in: its log reaches entry %d, and it votes once it has all", n.store.marked().Index)}
}

// admit has the ballot begin as the disk and the memory say.
func (n *Node) admit(began bool) error {
	b := n.ballot
	to, err := n.store.loadBound()
	if err != nil {
		return err
	}
	b.mu.Lock() // questions come in already
	maps.Copy(b.seen, n.kept.Seen)
	b.write, b.bound, b.floor = n.kept.Write, to, to.Term
	b.mu.Unlock()
	v := franchise.Judge(n.own(n.kept, n.knows, began, false), nil)
	b.mu.Lock()
	switch {
	case v.Do == franchise.Learn && v.Cause != franchise.Lost:
		b.phase = needs
	case to.Term > 0 && !to.Done && n.knows:
		b.phase = learns
	case n.cfg.Join && n.store.marked().Disk() == franchise.Empty:
		b.phase = needs
	case v.Do == franchise.Vote:
		b.phase, b.floor = votes, max(b.floor, v.Floor)
	}
	s := n.waits(v)
	if b.phase == votes {
		b.remember(n.store.marked())
		s = Standing{}
	}
	b.mu.Unlock()
	n.stands.Store(&s)
	if v.Do == franchise.Learn && slices.Equal(n.members(), []replica.NodeName{n.cfg.ID}) {
		return fmt.Errorf("%w: %s: this is the only voter, so nobody can take it in: %s. Put the newer log back; or, if it is lost for good, give up what came after: replicad voter recover --accept-loss, and start the daemon again", ErrOldLog, n.cfg.Dir, s.Why)
	}
	return nil
}

// readmitting is the leader's part: it runs until the node ends, and takes in voters that have forgotten what they promised.
func (n *Node) readmitting() {
	a := n.newAsker()
	defer a.close()
	for n.ctx.Err() == nil {
		select {
		case <-n.ctx.Done():
			return
		case <-n.wanted:
		case <-time.After(5 * n.cfg.Heartbeat):
		}
		if _, _, _, leads := n.Leadership(); !leads {
			continue
		}
		for _, v := range n.forgotten() {
			ctx, cancel := context.WithTimeout(n.ctx, readmitWithin)
			if err := n.takeIn(ctx, a, v); err != nil && n.ctx.Err() == nil {
				n.cfg.Logger.Warn(fmt.Sprintf("voter %s, which has lost its log or has an old one, was not taken in, and that is tried again", v.Name), "error", err)
			}
			cancel()
		}
	}
}

// readmitWithin is for one voter: the log of a large cluster goes over in seconds.
const readmitWithin = time.Minute

// forgotten are voters that took no entries, and nodes that were being taken in.
func (n *Node) forgotten() (list []Voter) {
	b := n.ballot
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if s.ID != raft.ServerID(n.cfg.ID) && (b.wants[replica.NodeName(s.ID)] || s.Suffrage != raft.Voter) {
			list = append(list, Voter{replica.NodeName(s.ID), string(s.Address)})
		}
	}
	clear(b.wants)
	return list
}

// takeIn has a voter that has forgotten what it promised vote again: the majority without it commits that it is no voter, so that whatever it forgot
// binds nobody, it is invited, gets the log, and is made a voter again.
func (n *Node) takeIn(ctx context.Context, a *asker, v Voter) error {
	if to := n.addrOf(raft.ServerID(v.Name)); to != "" {
		v.Addr = to
	}
	got, err := a.ask(v, nil)
	voter := slices.Contains(n.members(), v.Name)
	named := slices.ContainsFunc(n.cfg.Voters, func(c Voter) bool { return c.Name == v.Name })
	if err != nil || voter && !got.Needs || !voter && !got.Returns && !named {
		return nil // it is away, or nothing is the matter, or it is new, and an operator adds it
	}
	if err := n.turn(ctx); err != nil {
		return err
	}
	defer n.endTurn()
	if is := func(w Voter) bool { return w.Name == v.Name }; !slices.ContainsFunc(n.Voters(), is) && !slices.ContainsFunc(n.Joining(), is) {
		return nil // an operator has removed it meanwhile
	}
	if got.Needs {
		n.cfg.Logger.Warn(fmt.Sprintf("voter %s has lost its log, or has an old one (up to entry %d in term %d): it is taken in again, and does not vote until it has the log", v.Name, got.Log.Index, got.Log.Term))
		if err := n.invite(ctx, a, v, got, true); err != nil {
			return err
		}
	}
	if err := n.caughtUp(ctx, a, v); err != nil {
		return err
	}
	if err := a.majority(append(slices.DeleteFunc(n.Voters(), func(w Voter) bool { return w.Name == v.Name }), v), v.Name); err != nil {
		return err
	}
	if err := n.await(ctx, "let it vote again", func(d time.Duration) error {
		return n.raft.AddVoter(raft.ServerID(v.Name), raft.ServerAddress(v.Addr), 0, d).Error()
	}); err != nil {
		return err
	}
	n.cfg.Logger.Warn(fmt.Sprintf("voter %s has the log, and votes again", v.Name))
	a.awaitVote(ctx, v)
	return nil
}

// awaitVote waits, for a while, until a voter knows that it is one.
func (a *asker) awaitVote(ctx context.Context, v Voter) {
	ctx, cancel := context.WithTimeout(ctx, voteWithin)
	defer cancel()
	for ctx.Err() == nil {
		if got, err := a.ask(v, nil); err != nil || got.Votes {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(settleTick / 10):
		}
	}
}

// invite takes a vote from a node that has forgotten what it promised with it, and lets it take the log in.
func (n *Node) invite(ctx context.Context, a *asker, v Voter, got answered, returns bool) error {
	rest := slices.DeleteFunc(n.Voters(), func(w Voter) bool { return w.Name == v.Name })
	if err := a.majority(rest, ""); err != nil {
		return err
	}
	term := n.raft.CurrentTerm()
	var index uint64
	if err := n.await(ctx, "take its vote", func(d time.Duration) error {
		f := n.raft.DemoteVoter(raft.ServerID(v.Name), 0, d) // also of one that has none: that a majority commits it now is what counts
		if err := f.Error(); err != nil {
			return err
		}
		index = f.Index()
		return nil
	}); err != nil {
		return err
	}
	if n.raft.CurrentTerm() != term {
		return n.notLeader("its term has ended")
	}
	_, err := a.ask(v, &invite{Life: got.Life, Term: term, Index: index, Returns: returns})
	return err
}

// turn waits for its turn to change the voters.
func (n *Node) turn(ctx context.Context) error {
	select {
	case n.changing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: another change of voters is under way: %w", ErrBusy, context.Cause(ctx))
	}
}

func (n *Node) endTurn() { <-n.changing }
