package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/replicad/replicad/replica"
)

// printf is the only way from here to a terminal. What it is given of ranks, launchers, other nodes and stores (reasons, labels, names of
// files) may have been chosen to clear the screen, or to look like a line of ours: each argument comes out as printed characters of one line.
// The format's own line ends stay.
func printf(w io.Writer, format string, args ...any) {
	_ = write(w, format, args...)
}

// write is printf where the reader may have gone, and the verb is to end then.
func write(w io.Writer, format string, args ...any) error {
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
	if _, ok := p.value.(paragraph); !ok {
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

// paragraph is a text whose line ends and tabs this program or its leader has put there: faults of a configuration, the answer to an order.
type paragraph string

// writeJSON prints a value for programs. A terminal may show it, too: what is not printed is escaped, and the value stays the same.
func writeJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(replica.PrintedJSON(b), '\n'))
	return err
}
