package roomtest

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
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/transcript"
	"github.com/replicad/replicad/replica"
)

// Own is what transcripts of one room have beside what those of all rooms have.
type Own interface {
	// Do carries out a command. False: there is no such one.
	Do(verb string, args []string) (is bool, err error)
	// Text is an effect, or a message to the leader. Empty: the effect is not printed.
	Text(v any) string
}

// Node is a node around one room, in a transcript. It has fixture.Job, and a clock of its own. The owner in a room's test embeds it.
type Node struct {
	T      *testing.T
	Room   act.Room
	View   room.JobView
	Gone   bool // the node does not know the job any more
	Now    time.Time
	Arenas map[string]*holding.Arena // by name
	Errors map[string]error          // what a command names by one word
	Again  bool                      // an effect that takes time has the number of an earlier one with its text
	Quiet  bool                      // nobody reports the command: the room is not called for it
	Word   func(j *replica.Job, key, value string) bool

	own   Own
	under []act.Effect // that take time, by number
	texts []string     // of them
	since time.Time    // when the command began
	lines []printed    // it prints
}

// Transcripts plays testdata/*.txt. A story begins with the command node, and fresh makes the room that it is about.
func Transcripts(t *testing.T, fresh func(n *Node, args []string) (act.Room, Own)) {
	transcript.Lines(t, func() transcript.Do {
		var n *Node
		return func(line string, out *strings.Builder) error {
			if words := strings.Fields(line); words[0] == "node" {
				n = NewNode(t)
				n.Is(fresh(n, words[1:]))
			}
			printed, err := n.play(line)
			out.WriteString(printed)
			return err
		}
	})
}

// NewNode is a node without a room yet.
func NewNode(t *testing.T) *Node {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &Node{T: t, View: room.JobView{Job: fixture.Job(), Fenced: 2}, Now: began, Arenas: map[string]*holding.Arena{}}
}

// Is gives the node its room.
func (n *Node) Is(r act.Room, own Own) { n.Room, n.own = r, own }

// Play carries out a command in a test in Go, and returns what it prints.
func (n *Node) Play(line string) string {
	n.T.Helper()
	printed, err := n.play(line)
	if err != nil {
		n.T.Fatalf("%q: %v", line, err)
	}
	return printed
}

// Jobs is what the node has of its one job.
func (n *Node) Jobs() []room.JobView {
	if n.Gone {
		return nil
	}
	return []room.JobView{n.View}
}

// Job is the same; false: the node does not know it.
func (n *Node) Job(replica.JobID) (room.JobView, bool) {
	if n.Gone {
		return room.JobView{}, false
	}
	return n.View, true
}

// Failed is what a room logs.
func (n *Node) Failed(what, subject, why string) { n.Say("log: %s, %s: %s", what, subject, why) }

// Retried is what a room logs of something that may fail many times a second.
func (n *Node) Retried(what, subject, why string) { n.Say("log: %s again, %s: %s", what, subject, why) }

// Note2 is what a room logs under a code.
func (n *Node) Note2(_ *replica.Job, code, text string) { n.Say("log: %s: %s", code, text) }

// Say prints a line. A line that comes again as time passes is printed once, with its times.
func (n *Node) Say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	i := slices.IndexFunc(n.lines, func(l printed) bool { return l.text == text && l.after[0] > 0 })
	if i < 0 {
		i, n.lines = len(n.lines), append(n.lines, printed{text: text})
	}
	n.lines[i].after = append(n.lines[i].after, n.Now.Sub(n.since))
}

// printed is a line.
type printed struct {
	text  string
	after []time.Duration
}

func (l printed) String() string {
	const listed = 8
	if l.after[0] == 0 {
		return l.text
	}
	when := ""
	for i, at := range l.after {
		switch {
		case i == 0:
			when = at.String()
		case len(l.after) <= listed || i < 2:
			when += ", " + at.String()
		case i == len(l.after)-1:
			when += fmt.Sprintf(" to %v, %d times", at, len(l.after))
		}
	}
	return fmt.Sprintf("after %s: %s", when, l.text)
}

// Learn has the room learn of an event.
func (n *Node) Learn(ev act.Event) { n.Room.Learn(n.Now, ev) }

// bad is why a word of a command means nothing.
type bad string

func (n *Node) play(line string) (text string, err error) {
	defer func() {
		if what := recover(); what != nil {
			word, is := what.(bad)
			if !is {
				panic(what)
			}
			err = errors.New(string(word))
		}
	}()
	n.since, n.lines = n.Now, nil
	words := strings.Fields(line)
	err = n.do(words[0], words[1:])
	for _, l := range n.lines {
		text += l.String() + "\n"
	}
	return text, err
}

func (n *Node) do(verb string, args []string) error {
	if verb == "passes" { // TIME
		return n.pass(args[0])
	}
	is, err := n.own.Do(verb, args)
	if err == nil && !is {
		err = n.common(verb, args)
	}
	if !n.Quiet {
		n.step()
	}
	n.Quiet = false
	return err
}

func (n *Node) common(verb string, args []string) error {
	switch verb {
	case "node", "steps":
	case "job": // is another one: see change
		was := n.View.Job
		n.View.Job = fixture.Changed(was, func(j *replica.Job) {
			for _, arg := range args {
				n.change(j, arg)
			}
		})
		n.Learn(act.Changed{Job: was.ID, Was: was})
	case "commits": // STEP
		g := Gen(args[0])
		n.View.Job = fixture.Changed(n.View.Job, func(j *replica.Job) { j.Committed, j.Position = g, replica.Position(g) })
		n.Learn(act.Committed{Job: n.View.Job.ID})
	case "forgotten":
		n.Gone = true
		n.Learn(act.Changed{Job: n.View.Job.ID})
	case "linked":
		n.Learn(act.Linked{})
	case "rank": // RANK WORD ...: see rank
		n.rank(replica.Rank(Number(args[0])), args[1:])
		n.Learn(act.Changed{Job: n.View.Job.ID})
	case "seals": // ARENA PLACE STEP [BINDS]: nobody reports it
		n.Seal(args[0], args[1], args[2:]...)
	case "frees": // ARENA PLACE
		n.Arenas[args[0]].Free(Place(args[1]))
	case "sleeps":
		_, due := n.Room.Next()
		n.Say("the room is to be called again: %v", due)
	case "ends": // NUMBER [WHY]
		n.Learn(act.Ended{Of: n.Under(args[0]), Err: n.Err(args[1:])})
	default:
		return errors.New("no such command")
	}
	return nil
}

// change is one of open, opening, closed, fenced[=EPOCH], planned, ended[=REASON], copies=N, previous=STEP, durable=STEP. It may be a word
// of the room's test. Or it is mirrors=NODE,NODE/NODE, of the ranks in order, or group-mirrors=NODE,NODE, of group 0.
func (n *Node) change(j *replica.Job, arg string) {
	key, value, _ := strings.Cut(arg, "=")
	if n.Word != nil && n.Word(j, key, value) {
		return
	}
	switch key {
	case "open":
		j.Phase = replica.Open
	case "opening":
		j.Phase = replica.Opening
	case "closed":
		j.Phase, j.ClosedEpoch = replica.Closed, j.Epoch
	case "fenced": // and the ranks here are, or as of an EPOCH
		if n.View.Fenced = j.ClosedEpoch; value != "" {
			n.View.Fenced = replica.Epoch(Number(value))
		}
	case "planned":
		j.Epoch, j.Phase = j.ClosedEpoch+1, replica.Planned
		j.Plan = &replica.Plan{Epoch: j.Epoch, Generation: j.Committed, Layout: j.Layout, Ranks: j.Ranks, Mirrors: j.Mirrors}
	case "ended":
		j.Phase, j.EndReason = replica.Ended, value
	case "copies":
		j.Copies = int(Number(value))
	case "previous":
		j.Previous = &replica.Earlier{Generation: Gen(value)}
	case "durable":
		j.Durable = Gen(value)
	case "mirrors":
		j.Mirrors = nil
		for of := range strings.SplitSeq(value, "/") {
			j.Mirrors = append(j.Mirrors, Nodes(of))
		}
	case "group-mirrors":
		j.GroupMirrors = [][]replica.NodeName{Nodes(value)}
	default:
		panic(bad("no such word: " + arg))
	}
}

// rank has a rank here be waits, runs, dead, gone or incarnation=N.
func (n *Node) rank(r replica.Rank, words []string) {
	i := slices.IndexFunc(n.View.Ranks, func(is room.Rank) bool { return is.Rank == r })
	n.View.Ranks = slices.Clone(n.View.Ranks)
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch is := &n.View.Ranks[i]; key {
		case "waits", "runs":
			is.Waits = key == "waits"
		case "dead":
			is.Alive, is.Waits = false, false
		case "gone":
			n.View.Ranks = slices.Delete(n.View.Ranks, i, i+1)
		case "incarnation":
			is.Incarnation = replica.Incarnation(Number(value))
		default:
			panic(bad("no such word: " + word))
		}
	}
}

// pass lets time pass. The room is called as its Next has it, and not oftener.
func (n *Node) pass(long string) error {
	took, err := time.ParseDuration(long)
	if err != nil {
		return err
	}
	for end := n.Now.Add(took); ; {
		next, due := n.Room.Next()
		if !due || next.After(end) {
			n.Now = end
			return nil
		}
		if next.After(n.Now) {
			n.Now = next
		}
		n.step()
		if next, due = n.Room.Next(); due && !next.After(n.Now) {
			return fmt.Errorf("after %v the room is to be called again at once", n.Now.Sub(n.since))
		}
	}
}

func (n *Node) step() {
	for _, e := range n.Room.Step(n.Now) {
		if text := n.text(e); text != "" {
			n.Say("%s", text)
		}
	}
}

// text is an effect.
func (n *Node) text(e act.Effect) string {
	switch e := e.(type) {
	case act.Send:
		return "leader: " + n.message(e.Msg)
	case act.Wake:
		return "job again: " + [...]string{"report", "retain", "commit", "reconcile"}[e.Depth]
	case act.Make:
		return n.Runs(e, fmt.Sprintf("make an arena of rank %d", e.Spec.Rank))
	case act.Park:
		return n.Runs(e, "park "+n.Name(e.Arena))
	case act.Reserve:
		return "reserve " + n.Name(e.Arena)
	case act.Forget:
		return "forget " + n.Name(e.Arena)
	case act.Retire:
		return "retire " + n.Name(e.Arena)
	case act.Save:
		return "save the list"
	case act.Unmap:
		return "unmap an arena"
	case act.Cancel:
		return fmt.Sprintf("cancel %d", slices.Index(n.under, e.Of)+1)
	case act.Kill:
		return fmt.Sprintf("kill process %d, which has %s", e.PID, e.Key)
	}
	return n.own.Text(e)
}

// message is what the leader is sent.
func (n *Node) message(m any) string {
	switch m := m.(type) {
	case control.Unreached:
		return fmt.Sprintf("%v can't be reached for %v after %v: %s", m.To, m.Part, time.Duration(m.TookMS)*time.Millisecond, m.Why)
	case control.Evidence:
		return fmt.Sprintf("rank %d, incarnation %d: %v: %s", m.Fault.Rank, m.Fault.Incarnation, m.Fault.Kind, m.Fault.Detail)
	}
	return n.own.Text(m)
}

// Runs gives an effect that takes time a number, by which commands name it.
func (n *Node) Runs(e act.Effect, text string) string {
	i := slices.Index(n.texts, text)
	if i < 0 || !n.Again {
		i, n.under, n.texts = len(n.under), append(n.under, nil), append(n.texts, text)
	}
	n.under[i] = e
	return fmt.Sprintf("%d: %s", i+1, text)
}

// Begun are the effects that have a number, in order.
func (n *Node) Begun() []act.Effect { return n.under }

// Under is the effect of a number.
func (n *Node) Under(number string) act.Effect {
	i := Number(number)
	if i == 0 || int(i) > len(n.under) {
		panic(bad("nothing has number " + number))
	}
	return n.under[i-1]
}

// Err is an error of words; none: nil.
func (n *Node) Err(words []string) error {
	if len(words) == 0 {
		return nil
	}
	if err := n.Errors[words[0]]; err != nil {
		return err
	}
	return errors.New(strings.Join(words, " "))
}

// Hold makes an arena with a name, which is its key too.
func (n *Node) Hold(name string, spec shm.Spec) *holding.Arena {
	n.Arenas[name] = Hold(Memory(n.T, spec), name)
	return n.Arenas[name]
}

// Name is that of an arena.
func (n *Node) Name(a *holding.Arena) string {
	for name, is := range n.Arenas {
		if is == a {
			return name
		}
	}
	return a.Key()
}

// Seal seals a part in a place of an arena: of a step, or of what else Gen reads.
func (n *Node) Seal(arena, place string, of ...string) shm.Info {
	n.T.Helper()
	var binds replica.Digest
	if len(of) > 1 { // the frozen part of an arena
		info, err := n.Arenas[of[1]].Info(shm.Place{Kind: shm.Frozen})
		if err != nil {
			panic(bad(err.Error()))
		}
		binds = info.Root
	}
	return Seal(n.T, n.Arenas[arena], Place(place), Gen(of[0]), binds)
}

// Number reads a word that is a number.
func Number(word string) uint64 {
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		panic(bad(err.Error()))
	}
	return n
}

// Gen reads a step of epoch 3, or EPOCH:STEP.
func Gen(word string) replica.Generation {
	epoch, step, of := strings.Cut(word, ":")
	if !of {
		epoch, step = "3", word
	}
	return fixture.Gen(replica.Epoch(Number(epoch)), replica.Step(Number(step)))
}

// Place reads slot:N, ring:N or frozen.
func Place(word string) shm.Place {
	kind, index, of := strings.Cut(word, ":")
	p := shm.Place{Kind: map[string]shm.PlaceKind{"slot": shm.Slot, "ring": shm.Ring, "frozen": shm.Frozen}[kind]}
	if of {
		p.Index = int(Number(index))
	}
	return p
}

// Part reads group:N, private:N or frozen:N.
func Part(word string) replica.Part {
	kind, index, _ := strings.Cut(word, ":")
	of := map[string]replica.PartKind{"group": replica.ReplicatedPart, "private": replica.PrivatePart, "frozen": replica.FrozenPart}
	return replica.Part{Kind: of[kind], Index: uint32(Number(index))}
}

// Nodes reads names of nodes with commas between them.
func Nodes(words string) (list []replica.NodeName) {
	for name := range strings.SplitSeq(words, ",") {
		if name != "" {
			list = append(list, replica.NodeName(name))
		}
	}
	return list
}
