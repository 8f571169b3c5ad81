// Package console prints what verbs of the program print: for people, where each text stays one line of printed characters
// whoever wrote it, and for programs, as JSON.
package console

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/replicad/replicad/replica"
)

// Printf is the only way of a verb to a terminal. Its arguments come from ranks, launchers, other nodes and stores: reasons, labels, names
// of files. Each may have been chosen to clear the screen, or to look like a line of ours, and comes out as printed characters of one line.
// The format's own line ends stay.
func Printf(w io.Writer, format string, args ...any) {
	_ = Write(w, format, args...)
}

// Write is Printf where the reader may have gone, and the verb is to end then.
func Write(w io.Writer, format string, args ...any) error {
	plain := make([]any, len(args))
	for i, arg := range args {
		plain[i] = printable{arg}
	}
	_, err := fmt.Fprintf(w, format, plain...)
	return err
}

// printable is a value that is formatted as it would be alone, and then as replica.Line has it.
type printable struct{ value any }

func (p printable) Format(f fmt.State, verb rune) {
	text := fmt.Sprintf(fmt.FormatString(f, verb), p.value)
	if _, ok := p.value.(Paragraph); !ok {
		_, _ = io.WriteString(f, replica.Line(text, len(text)))
		return
	}
	for text != "" { // up to what is ours, and that
		end := strings.IndexAny(text, "\n\t")
		if end < 0 {
			end = len(text)
		}
		_, _ = io.WriteString(f, replica.Line(text[:end], end)+text[end:min(end+1, len(text))])
		text = text[min(end+1, len(text)):]
	}
}

// Paragraph is a text whose line ends and tabs this program or its leader has put there: faults of a configuration, the answer to an order.
type Paragraph string

// JSON prints a value for programs. A terminal may show it, too: what is not printed is escaped, and the value stays the same.
func JSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(replica.PrintedJSON(b), '\n'))
	return err
}
