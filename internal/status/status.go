// Package status shows people what a daemon reports of its node, its jobs and its network. --json has the same for programs.
package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

// maxGenerations is how many generations of a part the table shows, newest first; --json has them all.
const maxGenerations = 4

// lateFrom is from when on a daemon's wait for a core is shown, in milliseconds: half of the lease that a leader has by default.
const lateFrom = 200

// Print writes the status for people.
func Print(w io.Writer, s control.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	leader := string(s.Leader)
	if leader == "" {
		leader = "none known: nothing is committed or planned until there is one"
	}
	console.Printf(t, "cluster\t%v\n", s.Cluster)
	console.Printf(t, "asked\t%s (incarnation %d, session %d, %s)\n", s.Node, s.Incarnation, s.Session, s.Version)
	console.Printf(t, "leader\t%s (term %d)\n", leader, s.Term)
	printVoters(t, s)
	printNotes(t, s)
	console.Printf(t, "\nNODE\tSTATE\tROLE\tSESSION\tADDRESS\n")
	for _, n := range s.Nodes {
		role := "client"
		switch {
		case n.Name == s.Leader:
			role = "leader"
		case slices.ContainsFunc(s.Voters, func(v control.VoterStatus) bool { return v.Name == n.Name && v.Joining }):
			role = "learner"
		case n.Voter && !n.Votes && whyNoVote(s, n.Name) != "":
			role = "voter, does not vote"
		case n.Voter:
			role = "voter"
		}
		state := n.State
		if n.Revoked {
			state += ", revoked"
		}
		console.Printf(t, "%s\t%s\t%s\t%d\t%s\n", n.Name, state, role, n.Session, n.Addr)
	}
	if len(s.Jobs) == 0 {
		console.Printf(t, "\nno jobs\n")
	}
	for _, j := range s.Jobs {
		printJob(t, s, j)
	}
	return t.Flush()
}

// printNotes has a line for each thing that an operator should know of the node that was asked, and of what it knows of others.
func printNotes(t io.Writer, s control.Status) {
	if s.Adopting {
		console.Printf(t, "adopting\tthis daemon is still taking back the arenas of its ranks\n")
	}
	if s.KeeperLost {
		console.Printf(t, "keeper\tgone: restart this daemon when convenient: until then its ranks' memory does not survive it\n")
	}
	if s.LogUnwritten != "" {
		console.Printf(t, "log\t%s\n", s.LogUnwritten)
	}
	for _, k := range s.FormerKeepers {
		console.Printf(t, "old keeper\t%s\n", k)
	}
	if s.Scrubbed.Bad > 0 {
		console.Printf(t, "memory\t%d copies here had a flipped bit since this daemon started, and were given up: check the node's "+
			"memory (ECC errors in the kernel's log)\n", s.Scrubbed.Bad)
	}
	if s.Certificate != "" {
		console.Printf(t, "expiry\t%s\n", s.Certificate)
	}
	for _, r := range s.Revoked {
		console.Printf(t, "revoked\t%s %s: certificates up to epoch %d, %s\n", r.Role, r.Name, r.Epoch,
			pki.EpochTime(r.Epoch).UTC().Format(time.RFC3339))
	}
	for _, p := range s.PassedOver {
		console.Printf(t, "unbelieved\t%s\n", passedText(p))
	}
	if len(s.GossipKeys) > 1 || len(s.GossipUnknown) > 0 || len(s.GossipKeys) == 1 && len(s.GossipKeys[0].Missing) > 0 {
		for _, k := range s.GossipKeys {
			console.Printf(t, "gossip key\t%s\n", gossipKeyText(k))
		}
	}
	if len(s.GossipUnknown) > 0 {
		console.Printf(t, "gossip key\tunknown of %v: their daemons answer, and their gossip is not heard: do they have the gossip.key "+
			"that the others have?\n", s.GossipUnknown)
	}
	for _, text := range s.Warnings {
		console.Printf(t, "warning\t%s\n", text)
	}
	if s.LateMS > lateFrom {
		console.Printf(t, "cores\ttaken by others: this daemon waited up to %d ms for one within the last 20 s: commits come later, and "+
			"with %d ms leaders change\n", s.LateMS, 2*lateFrom)
	}
	if s.Leaving != "" {
		console.Printf(t, "leaving\tthis daemon was asked to end: %s\n", s.Leaving)
	}
	if s.DurableSilent != "" {
		console.Printf(t, "durable\t%s\n", s.DurableSilent)
	}
	for _, n := range s.NoLink {
		console.Printf(t, "no link\tvoter %s, %d tries since %s: %s\n", n.Node, n.Tries, n.Since.Format(time.TimeOnly), n.Why)
	}
	for _, n := range s.Refused {
		who := string(n.Node)
		if n.Incarnation != 0 {
			who = fmt.Sprintf("%s (incarnation %d)", who, n.Incarnation)
		}
		console.Printf(t, "refused\tnode %s, %d tries since %s: %s\n", who, n.Tries, n.Since.Format(time.TimeOnly), n.Why)
	}
	for _, a := range s.Accounts {
		console.Printf(t, "user %d\t%s\n", a.User, accountText(a))
	}
}

// printVoters names the voters that do not vote, and what that means for the next loss.
func printVoters(t io.Writer, s control.Status) {
	for _, v := range s.Voters {
		if v.Joining {
			console.Printf(t, "learner %s\t%s\n", v.Name, cmp.Or(v.Why, "it has the log and no vote yet"))
		} else if why := whyNoVote(s, v.Name); why != "" {
			console.Printf(t, "voter %s\tdoes not vote: %s\n", v.Name, why)
		}
	}
	votes, of := control.Quorum(s.Voters)
	switch {
	case s.Leader == "" && of > 1:
		console.Printf(t, "votes\t%d of the %d voters are known here to be able to vote, and a leader needs %d that reach each other\n",
			votes, of, of/2+1)
	case s.Leader != "" && 2*votes <= of:
		console.Printf(t, "votes\t%d of the %d voters vote: nothing is committed until %d do\n", votes, of, of/2+1)
	case s.Leader != "" && of > 2 && votes < of && 2*(votes-1) <= of &&
		slices.ContainsFunc(s.Voters, func(v control.VoterStatus) bool { return whyNoVote(s, v.Name) != "" }):
		console.Printf(t, "votes\t%d of the %d voters vote: the loss of one of them stops commits\n", votes, of)
	}
}

// whyNoVote says why a voter does not vote; empty: it does, or nothing is known of it though there is a leader.
func whyNoVote(s control.Status, name replica.NodeName) string {
	for _, v := range s.Voters {
		switch {
		case v.Name != name || v.Votes || v.Joining:
		case v.Why != "":
			return v.Why
		case s.Leader == "":
			return "nothing is known of it here: run replicad status on that node"
		}
	}
	return ""
}

// accountText says what a user has of what it may have. Where no leader answers only what this node counts is known.
func accountText(a control.AccountStatus) string {
	text := fmt.Sprintf("%d of %d sessions here, %d of %d requests in 0.1 s", a.Sessions, a.MostSessions, a.Requests, a.MostRequests)
	if a.MostJobs > 0 {
		text = fmt.Sprintf("%d of %d jobs, %d of %d ranks, %d of %d KiB to meet, ", a.Jobs, a.MostJobs, a.Ranks, a.MostRanks,
			a.Rendezvous>>10, a.MostRendezvous>>10) + text
	}
	return text
}

// passedText says which revocations a node does not believe.
func passedText(p control.PassedOver) string {
	by := "that nobody signed"
	if p.Operator != "" {
		by = "in the name of operator " + p.Operator
	}
	return fmt.Sprintf("%d revocation(s) %s count for nothing here, the newest of %s: %s: if it is meant, have another operator order it "+
		"again (replicad revoke), else a node that leads lies", p.Count, by, p.Of, p.Why)
}

// gossipKeyText says which nodes send with a key and which lack it, during a rotation.
func gossipKeyText(k control.GossipKeyStatus) string {
	text := k.Fingerprint + ", accepted"
	if k.Primary {
		text = k.Fingerprint + ", this node sends with it"
	}
	if len(k.SpokenBy) > 0 {
		text += fmt.Sprintf("; used for sending by %v", k.SpokenBy)
	}
	if len(k.Missing) > 0 {
		text += fmt.Sprintf("; missing on %v", k.Missing)
	}
	return text
}

func printJob(t io.Writer, s control.Status, j control.JobStatus) {
	if j.Phase == replica.Ended.String() {
		console.Printf(t, "\njob %s\tended, newest commit step %d, on disk %s: %s\n", j.Name, j.Position.Step, OnDisk(j), j.EndReason)
		return
	}
	phase := j.Phase
	if j.Stopped != "" {
		phase = "stopped (" + j.Stopped + ")"
	}
	console.Printf(t, "\njob %s\t%s, epoch %d\t%v\n", j.Name, phase, j.Epoch, j.ID)
	committed := "none yet"
	if !j.Committed.IsZero() {
		committed = fmt.Sprintf("step %d, as generation %v", j.Position.Step, j.Committed)
	}
	console.Printf(t, "committed\t%s\n", committed)
	if c := j.Commits; c != nil {
		console.Printf(t, "commits\t%s\n", commitText(*c))
	}
	if j.Stalled != "" {
		console.Printf(t, "STALLED\t%s\n", j.Stalled)
	}
	if j.From != nil {
		console.Printf(t, "from\t%v (world %d, now %d)\n", j.From, j.From.World, len(j.Ranks))
	}
	if j.Resumed != "" {
		console.Printf(t, "resumed\t%s\n", j.Resumed)
	}
	if j.WentBack != "" {
		console.Printf(t, "WENT BACK\tthe job %s\n", j.WentBack)
	}
	for _, l := range j.Lacks {
		console.Printf(t, "lacks\t%s: %s: a restart is not the same run\n", l.Who(), l.Text)
	}
	if j.AtRisk {
		console.Printf(t, "at risk\tone more fault would cost %d steps (committed %d, live %d)\n", j.Uncommitted, j.Position.Step,
			j.Position.Step+j.Uncommitted)
	}
	printDurable(t, j)
	copies := fmt.Sprintf("%d", j.Copies)
	if j.Stalled != "" {
		copies += fmt.Sprintf(" of step %d; of the steps since: fewer", j.Position.Step)
	} else if j.Degraded {
		copies += " (degraded: fewer than min_copies)"
	}
	console.Printf(t, "copies\t%s\n", copies)
	if j.Unvouched != "" {
		console.Printf(t, "UNVOUCHED\tthe job goes on from one rank's word alone, until the next commit: %s\n", j.Unvouched)
	}
	for _, d := range j.Disputes {
		console.Printf(t, "dispute\t%s\n", disputeText(d))
	}
	if len(j.Quarantined) > 0 {
		console.Printf(t, "quarantined\t%v\n", j.Quarantined)
	}
	for _, w := range j.Waiting {
		console.Printf(t, "waiting\t%s\n", w)
	}
	if len(s.Nodes) > 1 && j.Phase == replica.Open.String() { // a node alone has nobody to survive it
		if odds := oddsText(j.Odds); odds != "" {
			console.Printf(t, "survives\t%s\n", odds)
		}
		for _, l := range lossTexts(j.Losses) {
			console.Printf(t, "if lost\t%s\n", l)
		}
	}
	printRanks(t, s, j)
}

// printDurable shows how new what is on disk is, and what keeps the newest from it.
func printDurable(t io.Writer, j control.JobStatus) {
	durable := generation(j.Durable)
	if j.DurableAgeMS > 0 {
		durable += fmt.Sprintf(", %v old", time.Duration(j.DurableAgeMS*uint64(time.Millisecond)).Round(time.Second))
	}
	if j.DurablePace != "" {
		durable += ", written " + j.DurablePace
	}
	console.Printf(t, "durable\t%s\n", durable)
	switch {
	case j.DurableEnded:
		console.Printf(t, "\tdurable writes have ended: %s\n", j.DurableError)
	case j.DurableError != "":
		console.Printf(t, "\tdurable writes are tried again: %s\n", j.DurableError)
	}
}

// printRanks shows where the ranks of a job are, and who holds what of its state.
func printRanks(t io.Writer, s control.Status, j control.JobStatus) {
	console.Printf(t, "\nRANK\tGROUP\tSTATE\tNODE\tSTEP\tPID\tINCARNATION\n")
	for _, r := range j.Ranks {
		group := fmt.Sprint(r.Group)
		if j.Naming {
			group = "-"
		}
		console.Printf(t, "%d\t%s\t%s\t%s\t%d\t%s\t%d\n", r.Rank, group, r.State, console.Dash(string(r.Node)), r.Live,
			console.Dash(zeroIsEmpty(r.PID)), r.Incarnation)
	}
	if len(j.Holdings) == 0 {
		if s.Leader != "" && !s.IsLeader {
			console.Printf(t, "\nwho holds what: ask the leader, %s\n", s.Leader)
		}
		return
	}
	console.Printf(t, "\nPART\tGENERATION\tROOT\tHELD BY (* mirror)\n")
	for _, row := range holdingRows(j.Holdings) {
		console.Printf(t, "%s\t%v\t%.8s\t%s\n", row.part, row.generation, row.root, strings.Join(row.nodes, " "))
	}
}

// oddsText says how likely memory keeps every committed step, and the cluster a majority of its voters, when so many nodes are lost at
// once, each of
// them as likely as any other.
func oddsText(odds []control.OddsStatus) string {
	var out []string
	for _, o := range odds {
		nodes := "nodes"
		if o.Lost == 1 {
			nodes = "node"
		}
		out = append(out, fmt.Sprintf("%d %s: %s", o.Lost, nodes, chance(o)))
	}
	if len(out) == 0 {
		return ""
	}
	return fmt.Sprintf("loss of %s, of the %d nodes that hold the committed step or vote", strings.Join(out, ", "), odds[0].Of)
}

// chance is a share in percent, which says 0 and 100 where it is so and nowhere else.
func chance(o control.OddsStatus) string {
	if o.Survive == 0 || o.Survive == o.Ways {
		return fmt.Sprintf("%d %%", 100*o.Survive/o.Ways)
	}
	return fmt.Sprintf("%.2f %% (all but %d of %d ways)", min(max(100*float64(o.Survive)/float64(o.Ways), 0.01), 99.99), o.Ways-o.Survive,
		o.Ways)
}

// commitText says every how many steps a job commits, and why not more often.
func commitText(c control.CommitStatus) string {
	text := "every step"
	if c.Every() >= 1.05 {
		text = fmt.Sprintf("every %.1f steps", c.Every())
	}
	if c.Why != "" {
		text += ": " + c.Why
	}
	return text
}

// maxLosses bounds the losses that the table names; --json has them all.
const maxLosses = 8

// lossTexts says which losses the job would not survive from memory, and why not.
func lossTexts(losses []control.LossStatus) (out []string) {
	more := 0
	for _, l := range losses {
		switch {
		case len(l.Why) == 0:
		case len(out) < maxLosses:
			out = append(out, l.Of+": "+strings.Join(l.Why, "; "))
		default:
			more++
		}
		if len(l.Nodes) == 0 && len(l.Why) > 0 {
			return out // what stands in the way of a process alone stands in that of all
		}
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("and %d more: see replicad status --json", more))
	}
	return out
}

// disputeVotes bounds the votes of a dispute that the table names; --json has them all.
const disputeVotes = 8

// disputeText says who disagreed about what, and who is suspect.
func disputeText(d control.DisputeStatus) string {
	what := "no majority, all suspect"
	if d.Majority {
		what = fmt.Sprintf("suspect: rank %s", strings.Trim(fmt.Sprint(d.Suspects), "[]"))
	}
	var votes []string
	for _, v := range d.Votes[:min(len(d.Votes), disputeVotes)] {
		votes = append(votes, fmt.Sprintf("rank %d on %s %.8s", v.Rank, v.Node, v.Root.String()))
	}
	if more := len(d.Votes) - len(votes); more > 0 {
		votes = append(votes, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("group %d at step %d (generation %v): %s; roots: %s", d.Group, d.Step, d.Generation, what, strings.Join(votes, ", "))
}

type holdingRow struct {
	part       string
	generation replica.Generation
	root       string
	nodes      []string
}

// holdingRows gathers who holds the same bytes, newest generations first within a part; groups come before private parts.
func holdingRows(list []control.Holding) []holdingRow {
	type key struct {
		part       string
		generation replica.Generation
		root       replica.Digest
	}
	nodes := map[key][]string{}
	for _, h := range list {
		name := string(h.Node)
		if h.Mirror {
			name += "*"
		}
		k := key{h.Part, h.Generation, h.Root}
		nodes[k] = append(nodes[k], name)
	}
	var rows []holdingRow
	for k, names := range nodes {
		slices.Sort(names)
		rows = append(rows, holdingRow{k.part, k.generation, k.root.String(), slices.Compact(names)})
	}
	slices.SortFunc(rows, func(a, b holdingRow) int {
		return cmp.Or(comparePart(a.part, b.part), b.generation.Compare(a.generation), cmp.Compare(a.root, b.root))
	})
	shown, last, seen := rows[:0], "", map[replica.Generation]bool{}
	for _, r := range rows {
		if r.part != last {
			last, seen = r.part, map[replica.Generation]bool{}
		}
		if seen[r.generation] = true; len(seen) <= maxGenerations {
			shown = append(shown, r)
		}
	}
	return shown
}

// comparePart orders "group 2" before "group 10" before "private 0".
func comparePart(a, b string) int {
	return cmp.Or(cmp.Compare(strings.Fields(a + " ?")[0], strings.Fields(b + " ?")[0]), cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func generation(g replica.Generation) string {
	if g.IsZero() {
		return "none yet"
	}
	return g.String()
}

func zeroIsEmpty(n uint64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// OnDisk names the newest durable step.
func OnDisk(j control.JobStatus) string {
	if j.Durable.IsZero() {
		return "nothing"
	}
	return fmt.Sprintf("step %d", j.Durable.Step)
}
