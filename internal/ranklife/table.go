package ranklife

import (
	"fmt"
	"slices"
	"strings"
)

// Scenario is one transcript of the table.
type Scenario struct {
	Name  string
	Lines []Line
	// Without names the clients that the scenario is not played against, each with the reason.
	Without map[string]string
}

// Does reports whether the rank's program carries out a command in the scenario.
func (s Scenario) Does(command string) bool {
	return slices.ContainsFunc(s.Lines, func(l Line) bool { return l.Verb == does && l.Text == command })
}

// Line is one line of a scenario.
type Line struct {
	Number int // in the table
	Verb   string
	Text   string
}

// The verbs of a scenario's lines.
const (
	does    = "does"    // what the rank's program does: a command to it
	gets    = "gets"    // what the program gets of that
	sends   = "sends"   // the next message that the daemon gets from the rank
	may     = "may"     // a message that comes or not before the next ones, by a race that the comment above it explains
	life    = "life"    // the rank's life as the daemon has it by now
	leader  = "leader"  // what the leader, or the daemon itself, does
	as      = "as"      // the lines of an earlier scenario come first
	without = "without" // a client that does not play the scenario, and why
)

var verbs = []string{does, gets, sends, may, life, leader, as, without}

// Parse reads a table. A scenario begins with a line "== NAME"; empty lines and those that begin with # are comments.
func Parse(text string) (list []Scenario, err error) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if name, is := strings.CutPrefix(line, "== "); is {
			if slices.ContainsFunc(list, func(s Scenario) bool { return s.Name == name }) {
				return nil, fmt.Errorf("line %d: a second scenario %q", number, name)
			}
			list = append(list, Scenario{Name: name, Without: map[string]string{}})
			continue
		}
		verb, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		if !slices.Contains(verbs, verb) || rest == "" || len(list) == 0 {
			return nil, fmt.Errorf("line %d: %q: want one of %v and a text, in a scenario", number, line, verbs)
		}
		s := &list[len(list)-1]
		if verb == as {
			i := slices.IndexFunc(list, func(s Scenario) bool { return s.Name == rest })
			if i < 0 || len(s.Lines) > 0 {
				return nil, fmt.Errorf("line %d: no earlier scenario %q to begin with", number, rest)
			}
			s.Lines = slices.Clone(list[i].Lines)
			continue
		}
		if verb != without {
			s.Lines = append(s.Lines, Line{number, verb, rest})
			continue
		}
		client, why, reasoned := strings.Cut(rest, ": ")
		if !reasoned {
			return nil, fmt.Errorf("line %d: client %q is left out without a reason", number, client)
		}
		s.Without[client] = why
	}
	return list, nil
}
