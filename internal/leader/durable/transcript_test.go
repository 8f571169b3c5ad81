package durable

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/transcript"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

func TestTranscripts(t *testing.T) {
	transcript.Blocks(t, "nothing", func() transcript.Do {
		s := newStage()
		return func(line string, out *strings.Builder) error {
			s.printed.Reset()
			err := s.run(line)
			out.WriteString(s.printed.String())
			return err
		}
	})
}

// stage is a room, and all that its owner knows. The job has two ranks of one group, on n1 and n2, which hold everything that is committed.
type stage struct {
	room    *Room
	job     *replica.Job
	now     time.Duration
	away    map[replica.NodeName]bool
	parted  bool
	alone   bool
	clocks  recovery.Clocks
	printed strings.Builder
}

func newStage() *stage {
	s := &stage{away: map[replica.NodeName]bool{}, job: fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Committed, j.Position = fixture.Gen(3, 4), replica.Position{Epoch: 3, Step: 4}
		both := []replica.Holder{{Node: "n1", Incarnation: 11}, {Node: "n2", Incarnation: 22}}
		for _, p := range []replica.Part{replica.OfGroup(0), replica.OfRank(0), replica.OfRank(1)} {
			j.Parts = append(j.Parts, replica.PartRoot{Part: p, Root: replica.Digest{1}, Holders: both})
		}
	})}
	s.room = New(s, LookEvery("file:///durable"), 64)
	return s
}

func (s *stage) Linked(n replica.NodeName) bool             { return !s.away[n] }
func (s *stage) Clocks() *recovery.Clocks                   { return &s.clocks }
func (s *stage) Unattended() bool                           { return s.alone }
func (s *stage) Parted() bool                               { return s.parted }
func (s *stage) Lacks(replica.Generation) []replica.Lacking { return nil }
func (s *stage) printf(format string, args ...any)          { fmt.Fprintf(&s.printed, format+"\n", args...) }
func (s *stage) changes(change func(*replica.Job)) {
	s.job = fixture.Changed(s.job, change)
	s.learns(Changed{s.job})
}
func (s *stage) learns(ev Event) { s.room.Learn(s.now, ev); s.turn() }
func (s *stage) report(part replica.Part) control.ShardReport {
	return control.ShardReport{Job: s.job.ID, Generation: s.job.Writer.Generation, Part: part}
}

// turn prints what the room wants done, and does to the log what it proposes.
func (s *stage) turn() {
	for _, e := range s.room.Step(s.now) {
		switch e := e.(type) {
		case Propose:
			s.proposed(e.Command)
		case Mark:
			s.printf("%s writes the marker of %v, with %d parts%s", e.Node, e.Order.Generation, len(e.Order.Shards), saidText(e.Order))
		case Turn:
			s.printf("lets %s write", e.Node)
		case Pin:
			s.printf("has %v kept: %s", e.Generation, e.Why)
		case Look:
			s.printf("looks for %v", e.Generation)
		case Tell:
			s.printf("tells: %s", e.Text)
		case Log:
			s.printf("logs: %s: %s", e.Subject, e.Why)
		case Over:
			s.printf("nothing is written any more")
		case Late:
			s.printf("commits are %v late for %v of %s", e.Late, e.Part, e.Node)
		}
	}
}

func (s *stage) proposed(c replica.Command) {
	switch c := c.(type) {
	case replica.BeginDurable:
		var who []string
		for _, sh := range c.Write.Shards {
			who = append(who, fmt.Sprintf("%v by %s", sh.Part, sh.Node))
		}
		s.printf("proposes to write %v: %s", c.Write.Generation, strings.Join(who, ", "))
		s.changes(func(j *replica.Job) { j.Writer = &c.Write })
	case replica.EndDurable:
		s.printf("proposes the end of %v, written %v", c.Generation, c.Done)
	}
}

// run carries out one command.
func (s *stage) run(line string) error {
	f := strings.Fields(line)
	verb, args := f[0], f[1:]
	rest := strings.Join(args, " ")
	at := func(i int) replica.Generation {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			panic(err)
		}
		return fixture.Gen(3, replica.Step(n))
	}
	if slices.Contains([]string{"applied", "unknown", "parts", "moves", "late", "fails", "fenced", "crowded", "ails", "stranger", "marked", "says", "crowds"}, verb) && s.job.Writer == nil {
		return errors.New("nothing is being written:\n" + s.printed.String())
	}
	switch verb {
	case "every": // durable_every
		every, err := replica.ParseDurableEvery(rest)
		if err != nil {
			return err
		}
		s.changes(func(j *replica.Job) { j.Options.DurableEvery = every })
	case "writers": // at once
		s.room.writers, _ = strconv.Atoi(rest)
	case "part": // is reported as written
		for _, sh := range s.job.Writer.Shards {
			if sh.Part.String() == rest {
				s.learns(Shard{sh.Node, s.report(sh.Part)})
			}
		}
	case "leader": // another one, who has heard nothing
		writers := s.room.writers
		s.room = New(s, s.room.looks, writers)
		s.learns(Changed{s.job})
	case "store": // another one than a directory
		s.room.looks = LookEvery(rest)
	case "commit":
		s.changes(func(j *replica.Job) { j.Committed, j.Position = at(0), replica.Position(at(0)) })
	case "durable": // as an earlier leader left it
		s.changes(func(j *replica.Job) { j.Durable = at(0) })
	case "applied": // the end of the write, as the log applied it
		done := rest == "written"
		s.changes(func(j *replica.Job) {
			if done {
				j.Durable = j.Writer.Generation
			}
			j.Writer = nil
		})
	case "unknown":
		s.learns(Unknown{replica.EndDurable{Job: s.job.ID, Generation: s.job.Writer.Generation, Done: true}})
	case "parts": // all are reported as written
		for _, sh := range s.job.Writer.Shards {
			s.learns(Shard{sh.Node, s.report(sh.Part)})
		}
	case "moves", "late", "fails", "fenced", "crowded", "ails": // of the part that node n1 writes first
		r := s.report(replica.OfGroup(0))
		switch verb {
		case "moves":
			r.Written = 1 << 30
		case "late":
			r.Written, r.LateMS = 1<<30, 2500
		case "ails":
			r.Written, r.Ails = 1, rest
		default:
			r.Failed, r.Fenced, r.Crowded = rest, verb == "fenced", verb == "crowded"
		}
		s.learns(Shard{"n1", r})
	case "stranger": // a node reports of a part that it does not write
		r := s.report(replica.OfGroup(0))
		r.Written = 1 << 30
		s.learns(Shard{"n2", r})
	case "marked":
		s.learns(Marked{s.job.Writer.Writer, control.MarkedReport{Job: s.job.ID, Generation: s.job.Writer.Generation, Failed: rest}})
	case "seen":
		ev := Seen{Generation: s.job.Durable}
		if at, ok := strings.CutPrefix(rest, "of "); ok {
			ev.Since, _ = time.Parse(time.TimeOnly, at)
		} else if rest != "" {
			ev.Why = errors.New(rest)
		}
		s.learns(ev)
	case "listing": // nobody knows yet what is unread
		s.learns(Unread{Listing: true})
	case "unread": // steps that wait to be read back
		var ev Unread
		for i := range args {
			ev.Generations = append(ev.Generations, at(i))
		}
		s.learns(ev)
	case "blind": // the leader has no durable tier
		s.room.looks = 0
	case "away":
		s.away[replica.NodeName(args[0])] = true
	case "parted":
		s.parted = true
		s.turn()
	case "closed": // a fault has closed the epoch
		s.changes(func(j *replica.Job) {
			j.Phase, j.ClosedEpoch, j.Faults = replica.Closed, j.Epoch, []replica.Fault{{Kind: replica.ProcessDead}}
		})
	case "opened": // it has recovered
		s.changes(func(j *replica.Job) { j.Phase, j.Epoch = replica.Open, j.Epoch+1 })
	case "stopped": // by an operator
		s.changes(func(j *replica.Job) {
			j.Phase, j.ClosedEpoch, j.Stop = replica.Closed, j.Epoch, &replica.Stop{Reason: "enough"}
		})
	case "alone": // the last launcher has gone, and so have all processes
		s.alone = true
		s.turn()
	case "lost": // what is committed has no holder of a part left
		s.changes(func(j *replica.Job) {
			j.Parts = slices.Clone(j.Parts)
			j.Parts[2].Holders = nil
		})
	case "asked": // maybe to be kept for a reason
		s.learns(Ask{Keep: rest})
	case "says": // a node, of the write under way: KIND=TEXT of each name
		var list []replica.Remark
		for _, a := range args {
			name, text, _ := strings.Cut(a, "=")
			list = append(list, replica.Remark{Kind: replica.Note, Name: name, Text: text})
		}
		s.learns(Said{control.SaidReport{Job: s.job.ID, Number: s.job.Writer.Number, Said: list}})
	case "crowds": // as many notes as there may be, and one
		var list []replica.Remark
		for i := range replica.MaxRemarks + 1 {
			list = append(list, replica.Remark{Kind: replica.Note, Name: fmt.Sprintf("n%02d", i)})
		}
		s.learns(Said{control.SaidReport{Job: s.job.ID, Number: s.job.Writer.Number, Said: list}})
	case "pass": // time, in one turn
		d, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		s.now += d
		s.turn()
	case "until": // whatever the room wants next
		next, ok := s.room.Next()
		if !ok {
			s.printf("nothing is to come")
			return nil
		}
		s.printf("%v later:", max(next-s.now, 0))
		s.now = max(s.now, next)
		s.turn()
	case "status":
		s.printf("durable %v %s", s.room.Durable(), s.room.Why())
		if s.room.Fenced() {
			s.printf("writes have ended")
		}
		if since := s.room.Since(); !since.IsZero() {
			s.printf("since %s", since.Format(time.TimeOnly))
		}
	case "pace":
		s.printf("%s", s.room.Pace(s.now))
	default:
		return errors.New("unknown")
	}
	return nil
}

// saidText is what a commit is to say beside its parts.
func saidText(o control.MarkerOrder) (text string) {
	for _, r := range o.Said[:min(len(o.Said), 4)] {
		text += fmt.Sprintf(", %v %s=%s", r.Kind, r.Name, r.Text)
	}
	if o.Keep != "" {
		text += ", kept: " + o.Keep
	}
	return text
}
